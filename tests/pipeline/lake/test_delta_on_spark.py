"""The stories of Delta tables, all told in one process with a Spark of its own."""

from __future__ import annotations

import pytest

from tests.pipeline.lake.jars import need_format
from tests.pipeline.lake.stories import stories_of, told_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    need_format("delta")
    return told_of("delta", tmp_path_factory.mktemp("stories"))


@pytest.mark.meets("R24", "S16")
@pytest.mark.parametrize("name", sorted(stories_of("delta")))
def test_delta(told: dict[str, str], name: str) -> None:
    assert told.get(name, "not told: the process ended before") == ""
