"""
What a table target does: test cases ("stories") that run in one process with one Spark.

`python -m tests.pipeline.lake.stories FORMAT FOLDER` runs all of them, or those named after it,
and writes the traceback of each to `FOLDER/results.json`, or an empty text.
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


class StoryEnvironment:
    """What a story runs with: a Spark, a folder of its own, and one format."""

    def __init__(self, spark: Spark, folder: Path, kind: Kind) -> None:
        self.spark = spark
        self.folder = folder
        self.kind = kind
        folder.mkdir(parents=True, exist_ok=True)

    def within(self, name: str) -> StoryEnvironment:
        return StoryEnvironment(self.spark, self.folder / name, self.kind)


Story = Callable[[StoryEnvironment], None]
STORIES: dict[str, dict[str, Story]] = {"delta": {}, "iceberg": {}}
"""By format and name."""


def story(function: Story) -> Story:
    """Run a function with every format."""
    for stories in STORIES.values():
        stories[function.__name__] = function
    return function


def story_of(format: str) -> Callable[[Story], Story]:
    """Run a function with only one format."""

    def take(function: Story) -> Story:
        STORIES[format][function.__name__] = function
        return function

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


def run_stories(format: str, folder: Path, names: Sequence[str] = ()) -> dict[str, str]:
    """Run stories of a format, by default all, in another process; return their tracebacks."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.lake.stories", format, str(folder), *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(3000),
        check=False,
    )
    path = folder / "results.json"
    assert path.exists(), done.stderr[-4000:]
    found: dict[str, str] = json.loads(path.read_text())
    return found


def main(format: str, folder: Path, names: list[str]) -> None:
    from headrace.spark_session.session import start_session
    from tests.pipeline.lake.kinds import KINDS

    kind, stories = KINDS[format], stories_of(format)
    spark = start_session(folder / "spark", conf=kind.needs(folder))
    results: dict[str, str] = {}
    for name in names or stories:
        try:
            stories[name](StoryEnvironment(spark, folder / name, kind))
        except Exception:  # noqa: BLE001  # The other stories run in any case.
            results[name] = traceback.format_exc()
        else:
            results[name] = ""
        (folder / "results.json").write_text(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    # Imported under its own name: the modules that fill it import that one.
    from tests.pipeline.lake.stories import main as run

    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
