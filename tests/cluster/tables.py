"""
A Delta table that executors prepare: what it shows, what is staged for it, and tasks held up.

The table is read from its own log and files, not by Spark: that needs no core of the cluster,
and is another reader than the one that wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.lake import parts
from headrace.lake.history import CommitNote
from headrace.lake.history import read as read_note
from tests.cluster.shop import Rows

APART = ("python", "headrace")
"""What `shop_rules` tells of where it ran."""

Write = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def rows_in(table: Path) -> list[dict[str, Any]]:
    """Return every row that a reader of the newest version sees."""
    there: set[str] = set()
    for action in _actions(table):
        if added := action.get("add"):
            assert "deletionVector" not in added, "this reader knows none"
            there.add(unquote(added["path"]))
        if removed := action.get("remove"):
            there.discard(unquote(removed["path"]))
    return [row for path in there for row in pq.read_table(table / path).to_pylist()]


def merged(table: Path) -> Rows:
    """Return the rows of a table kept by `merge`; each key is there once."""
    found = rows_in(table)
    rows = {row["id"]: row for row in found}
    assert len(rows) == len(found), "a key is there twice"
    return rows


def replayed(table: Path) -> Rows:
    """Return what the changes of a table kept by `append` result in; none is appended twice."""
    found = rows_in(table)
    changes = {(row["_position"], row["_change_type"], row["id"]) for row in found}
    assert len(changes) == len(found), "a change is appended twice"
    rows: Rows = {}
    # A delete of an old key stands at the position of its row, and comes first.
    for change in sorted(found, key=lambda row: (row["_position"], row["_change_type"])):
        row = {name: value for name, value in change.items() if not name.startswith("_")}
        if change["_change_type"] == "delete":
            del rows[row["id"]]
        else:
            rows[row["id"]] = row
    return rows


READ = {"merge": merged, "append": replayed}


def plain(rows: Rows) -> Rows:
    """Return rows without what tells where they were computed."""
    return {
        key: {name: value for name, value in row.items() if name not in APART}
        for key, row in rows.items()
    }


def notes(table: Path) -> list[CommitNote]:
    """Return what our commits say, in order: one a batch, each number and position once."""
    notes = [read_note(each.get("commitInfo", {}).get("userMetadata")) for each in _actions(table)]
    found = [note for note in notes if note is not None]
    assert [note.number for note in found] == list(range(1, len(found) + 1))
    positions = [note.position for note in found]
    assert positions == sorted(set(positions)), "a position is committed twice"
    return found


def staged(data: Path) -> list[Path]:
    """Return the parts that lie in a data directory's staging folders."""
    # Not by `rglob`, which fails on a folder that is removed meanwhile.
    return [
        Path(folder, name)
        for folder, _, names in os.walk(data / "tables" / "staging")
        for name in names
        if name.startswith("part-")
    ]


def _actions(table: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((table / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


class PartsGate:
    """
    Where tasks stand that write parts: before they write, or before they hand in the receipt.

    Each leaves a file in `waiting` when it comes there, and one in `wrote` when its part is
    there, with the folder of its executor, which has its name.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        for name in ("waiting", "wrote"):
            (folder / name).mkdir(parents=True)
        collected = parts._collected
        monkeypatch.setattr(
            parts,
            "_collected",
            lambda frame, write: collected(frame, partial(_held_up(write, folder))),
        )

    @contextmanager
    def shut(self, where: str) -> Iterator[None]:
        """Hold tasks up meanwhile: `before` their part is written, or `after`."""
        (self._folder / where).touch()
        try:
            yield
        finally:
            self.open()

    def open(self) -> None:
        for where in ("before", "after"):
            (self._folder / where).unlink(missing_ok=True)

    def waiting(self) -> list[Path]:
        """Return where those ran that have ever stood here, one for each task."""
        return self._reported("waiting")

    def wrote(self) -> list[Path]:
        """Return where those ran that wrote a part, one for each part."""
        return self._reported("wrote")

    def _reported(self, what: str) -> list[Path]:
        return [Path(each.read_text()) for each in (self._folder / what).glob("*.done")]


def _held_up(write: Write, folder: Path) -> Write:
    """Return a function that writes a part as `write` does, and stands at the gate."""

    def held_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        import uuid
        from pathlib import Path

        own = uuid.uuid4().hex

        def leave(what: str) -> None:
            note = folder / what / own
            note.write_text(str(Path.cwd()))
            note.rename(note.with_suffix(".done"))

        def stand(where: str) -> None:
            if (folder / where).exists():
                leave("waiting")
            while (folder / where).exists():
                time.sleep(0.01)

        rows = list(batches)
        if rows:
            stand("before")
        receipts = list(write(rows))
        if receipts:
            leave("wrote")
            stand("after")
        yield from receipts

    return held_up
