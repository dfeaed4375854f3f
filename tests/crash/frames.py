"""
A function for `foreach_batch` that writes each frame it is given to a file, and its reading.

Its files are named by the batch's id and by how often that came: what came again must be
the same (R25, S17).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.foreach import FrameBatch


class FrameWriter:
    """Called with frames."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, frame: DataFrame, batch: FrameBatch) -> None:
        rows = [row.asDict() for row in frame.orderBy("_position", "_op").collect()]
        for row in rows:
            row.pop("_time")
        if batch.baseline is not None:
            rows.sort(key=lambda row: int(row["id"]))
        self._folder.mkdir(exist_ok=True)
        stem = quote(batch.id, safe="")
        number = len(list(self._folder.glob(f"{stem}#*.json")))
        about = {
            "table": batch.table,
            "first": str(batch.first),
            "last": str(batch.last),
            "baseline": batch.baseline,
            "rows": rows,
        }
        part = self._folder / "part"
        with part.open("w") as file:
            json.dump(about, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(self._folder / f"{stem}#{number}.json")


@dataclass(frozen=True, slots=True)
class Given:
    """One call of the function."""

    id: str
    time: int
    """When it was over: calls are one after the other."""

    about: dict[str, Any]


def read_frames(folder: Path) -> list[Given]:
    """Return every call that came to its end, in order."""
    found = [
        Given(unquote(path.name.rpartition("#")[0]), path.stat().st_mtime_ns, _read(path))
        for path in folder.glob("*.json")
    ]
    return sorted(found, key=lambda given: given.time)


def _read(path: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(path.read_text())
    return about
