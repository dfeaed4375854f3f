"""What tests of the log share: a small table, a source's positions, a log on either disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from headrace.changelog.change import Change, Changes, Op, TableChanges, as_segment
from headrace.changelog.entries import Flush
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader, LogWriter
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.storage.disk import Disk
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk

ROOT = "/data"
SOURCE = "shop"
ORIGIN_TEXT = "sqlite:/srv/shop.db"
LINEAGE = "sqlite/1c9e"


@dataclass(frozen=True, slots=True)
class At:
    """A position of a source that counts its commits."""

    commit: int
    lineage: str = LINEAGE

    def __str__(self) -> str:
        return f"{self.lineage}@{self.commit}"


def table(name: str = "orders", /, **columns: str) -> TableSchema:
    """Return a schema keyed by its first column."""
    kinds = columns or {"id": "int64", "name": "text"}
    return TableSchema(
        name,
        tuple(
            Column(column, ValueType.parse(kind), field, declared=kind.upper())
            for field, (column, kind) in enumerate(kinds.items(), 1)
        ),
        (next(iter(kinds)),),
    )


ORDERS = table()


def insert(commit: int, key: int | None = None, ordinal: int = 0, time: int = 0) -> Change:
    values = {"id": commit if key is None else key, "name": f"n{commit}"}
    return Change(Op.INSERT, commit, ordinal, time or commit * 1_000, after=values)


def update(commit: int, key: int, old: int | None = None, ordinal: int = 0) -> Change:
    before = {"id": key if old is None else old, "name": "before"}
    after = {"id": key, "name": f"n{commit}"}
    return Change(Op.UPDATE, commit, ordinal, commit * 1_000, before=before, after=after)


def delete(commit: int, key: int, ordinal: int = 0) -> Change:
    return Change(Op.DELETE, commit, ordinal, commit * 1_000, before={"id": key})


def truncate(commit: int, ordinal: int = 0) -> Change:
    return Change(Op.TRUNCATE, commit, ordinal, commit * 1_000)


def changes(
    rows: Iterable[Change],
    schema: TableSchema = ORDERS,
    *,
    upto: At | None = None,
    ends: bool = True,
) -> Changes:
    """Return changes of one table, as a source would hand them over."""
    found = list(rows)
    return Changes(
        [TableChanges(schema, as_segment(schema, found))],
        upto or At(max(row.commit for row in found)),
        ends,
    )


def commits(*numbers: int) -> Changes:
    """Return an insert for each of these commits."""
    return changes([insert(number) for number in numbers])


def at(commit: int, ordinal: int = 0, epoch: int = 1) -> Position:
    return Position(epoch, commit, ordinal)


def files_on(disk: Disk | None = None) -> Files:
    return Files(disk or SimulatedDisk(), ROOT)


def opened(
    files: Files, *, writer: str = "one", term: int = 1, origin: str = ORIGIN_TEXT
) -> LogWriter:
    return LogWriter.open(
        files, source=SOURCE, origin=origin, writer=writer, term=term, clock=lambda: 12.5
    )


def begun(files: Files, at: int = 0) -> LogWriter:
    """Return a writer of a log that has begun."""
    log = opened(files)
    log.begin(At(at), "start", ORIGIN_TEXT)
    return log


def flush(log: LogWriter, *numbers: int, name: str = "orders") -> Flush:
    """Write an insert for each of these commits, in one flush."""
    log.append(changes([insert(number) for number in numbers], table(name)))
    flushed = log.flush()
    assert flushed is not None
    return flushed


def fill(log: LogWriter, first: int, last: int) -> None:
    """Write these commits, a flush each."""
    for number in range(first, last + 1):
        flush(log, number)


def baseline(log: LogWriter, schema: TableSchema = ORDERS) -> int:
    """Write a baseline of one row at the end of the log; return its number."""
    writer = log.baseline(schema)
    writer.write(row_table(schema, {"id": 1, "name": "a"}))
    return writer.finish(log.end.commit, log.end.commit).baseline


def reading(files: Files) -> LogReader:
    return LogReader.open(files, SOURCE)


def segments(files: Files) -> list[str]:
    return files.list(f"log/{SOURCE}/segments")


def logged(reader: LogReader, name: str = "orders") -> list[int]:
    """Return the commits of every change in the log, in the log's order."""
    found: list[int] = []
    for step in reader._history.tables[name].files if name in reader.tables() else ():
        for file in step:
            found += reader.rows(file)["_commit"].to_pylist()
    return found


def row_table(schema: TableSchema, *rows: dict[str, object]) -> pa.Table:
    """Return rows in the shape that a baseline takes."""
    return pa.Table.from_pylist(list(rows), schema=schema.arrow)
