"""The stories of Delta tables, all told in one process with a Spark of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.lake import (  # noqa: F401  # They fill STORIES.
    changes_stories,
    delta_stories,
    engine_stories,
    foreign_stories,
)
from tests.pipeline.lake.jars import need_delta
from tests.pipeline.lake.stories import STORIES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    need_delta()
    folder = tmp_path_factory.mktemp("stories")
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.lake.stories", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    path = folder / "told.json"
    assert path.exists(), done.stderr[-4000:]
    found: dict[str, str] = json.loads(path.read_text())
    return found


@pytest.mark.meets("R24", "S16")
@pytest.mark.parametrize("name", sorted(STORIES))
def test_delta(told: dict[str, str], name: str) -> None:
    assert told.get(name, "not told: the process ended before") == ""
