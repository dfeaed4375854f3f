"""
What a target of Delta tables does, told in a process of its own with one Spark for all.

`python -m tests.pipeline.lake.stories FOLDER` tells all of them, or those named behind it, and
writes to `FOLDER/told.json` of each what went wrong, or nothing.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

STORIES: dict[str, Callable[[Place], None]] = {}
"""By name; each has a folder of its own."""


class Place:
    """Where a story happens."""

    def __init__(self, spark: Spark, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)


def story(tell: Callable[[Place], None]) -> Callable[[Place], None]:
    STORIES[tell.__name__] = tell
    return tell


if TYPE_CHECKING:
    from headrace.pipeline.session import Spark


def main(folder: Path, names: list[str]) -> None:
    from tests.pipeline.lake import (  # noqa: F401  # They fill it.
        changes_stories,
        delta_stories,
        engine_stories,
        foreign_stories,
    )
    from tests.pipeline.lake.lending import spark_with_delta

    spark = spark_with_delta(folder / "spark")
    told: dict[str, str] = {}
    for name in names or STORIES:
        try:
            STORIES[name](Place(spark, folder / name))
        except Exception:  # noqa: BLE001  # Whatever it is, the others are told as well.
            told[name] = traceback.format_exc()
        else:
            told[name] = ""
        (folder / "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    # Imported under its own name: the modules that fill it import that one.
    from tests.pipeline.lake.stories import main as run

    run(Path(sys.argv[1]), sys.argv[2:])
