"""
What a target of tables does, told in a process of its own with one Spark for all.

`python -m tests.pipeline.lake.stories FORMAT FOLDER` tells all of them, or those named behind it,
and writes to `FOLDER/told.json` of each what went wrong, or nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.patience import patience

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark
    from tests.pipeline.lake.kinds import Kind

ROOT = Path(__file__).parents[3]


class Place:
    """Where a story happens: with a Spark, in a folder of its own, about one format."""

    def __init__(self, spark: Spark, folder: Path, kind: Kind) -> None:
        self.spark = spark
        self.folder = folder
        self.kind = kind
        folder.mkdir(parents=True, exist_ok=True)

    def within(self, name: str) -> Place:
        return Place(self.spark, self.folder / name, self.kind)


Story = Callable[[Place], None]
STORIES: dict[str, dict[str, Story]] = {"delta": {}, "iceberg": {}}
"""By format and name."""


def story(tell: Story) -> Story:
    """Tell it of every format."""
    for told in STORIES.values():
        told[tell.__name__] = tell
    return tell


def story_of(format: str) -> Callable[[Story], Story]:
    """Tell it of one format alone."""

    def take(tell: Story) -> Story:
        STORIES[format][tell.__name__] = tell
        return tell

    return take


def stories_of(format: str) -> dict[str, Story]:
    """Return all stories of a format, by name."""
    from tests.pipeline.lake import (  # noqa: F401  # They fill it.
        changes_stories,
        delta_stories,
        engine_stories,
        foreign_stories,
        iceberg_stories,
    )

    return STORIES[format]


def told_of(format: str, folder: Path, names: Sequence[str] = ()) -> dict[str, str]:
    """Tell stories of a format, or all, in another process; return what went wrong with each."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.lake.stories", format, str(folder), *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(3000),
        check=False,
    )
    path = folder / "told.json"
    assert path.exists(), done.stderr[-4000:]
    found: dict[str, str] = json.loads(path.read_text())
    return found


def main(format: str, folder: Path, names: list[str]) -> None:
    from headrace.spark_session.session import start_session
    from tests.pipeline.lake.kinds import KINDS

    kind, stories = KINDS[format], stories_of(format)
    spark = start_session(folder / "spark", conf=kind.needs(folder))
    told: dict[str, str] = {}
    for name in names or stories:
        try:
            stories[name](Place(spark, folder / name, kind))
        except Exception:  # noqa: BLE001  # Whatever it is, the others are told as well.
            told[name] = traceback.format_exc()
        else:
            told[name] = ""
        (folder / "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    # Imported under its own name: the modules that fill it import that one.
    from tests.pipeline.lake.stories import main as run

    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
