"""A log on a real disk, and readers of it that are called as Spark calls them, without a JVM."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.changelog.change import Change, Changes, TableChanges, as_segment
from headrace.changelog.reader import LogWriter
from headrace.changelog.schema import TableSchema
from headrace.spark_source.source import HeadraceReader, HeadraceSource, HeadraceStreamReader
from headrace.storage.s3 import opened
from tests.changelog.log_making import ORDERS, ORIGIN_TEXT, At, begun, row_table

Row = dict[str, Any]


class MadeLog:
    """A log of `orders`, written flush by flush; in a folder, or at a `location`."""

    def __init__(self, folder: Path, at: int = 0, *, location: str | None = None) -> None:
        self.data = folder / "data"
        self.location = location or str(self.data)
        self.files = opened(self.location)
        self.writer: LogWriter = begun(self.files, at)

    def flush(self, *rows: Change, schema: TableSchema = ORDERS) -> None:
        table = TableChanges(schema, as_segment(schema, rows))
        self.writer.append(Changes([table], self._at(rows[-1].commit)))
        self.writer.flush()

    def flush_rows(self, rows: pa.Table, schema: TableSchema = ORDERS) -> None:
        last = rows["_commit"][rows.num_rows - 1].as_py()
        self.writer.append(Changes([TableChanges(schema, rows)], self._at(last)))
        self.writer.flush()

    def _at(self, commit: int) -> At:
        return At(commit, self.writer.lineage or "")

    def baseline(
        self, rows: Iterable[Row], first: int, last: int, schema: TableSchema = ORDERS, **facts: str
    ) -> None:
        copy = self.writer.baseline(schema)
        copy.write(row_table(schema, *rows))
        copy.finish(first, last, **facts)

    def restart_history(self, commit: int, lineage: str, reason: str = "lineage") -> None:
        """Begin a new history, as after a restore."""
        self.writer.begin(At(commit, lineage), reason, ORIGIN_TEXT)

    # --- reading

    def source(self, **options: object) -> HeadraceSource:
        given = {"log": self.location, "table": "orders", "wait": "0s"}
        given |= {name: str(value) for name, value in options.items()}
        # As Spark hands them over.
        return HeadraceSource({name.lower(): value for name, value in given.items()})

    def reader(self, **options: object) -> HeadraceReader:
        source = self.source(**options)
        reader = source.reader(source.schema())
        assert isinstance(reader, HeadraceReader)
        return reader

    def table(self, **options: object) -> pa.Table:
        reader = self.reader(**options)
        return collected(reader, reader.partitions())

    def read(self, **options: object) -> list[Row]:
        """Return the rows of `spark.read`, in the order of partitions."""
        found: list[Row] = self.table(**options).to_pylist()
        return found

    def stream(self, **options: object) -> Stream:
        return Stream(self, **options)


class Stream:
    """What Spark does for a streaming query, a batch at a time."""

    def __init__(self, log: MadeLog, **options: object) -> None:
        self._log, self._options = log, options
        self._reader: HeadraceStreamReader | None = None
        self.kept: list[dict[str, Any]] = []
        """The checkpoint: every offset so far."""
        self.start_again()

    @property
    def reader(self) -> HeadraceStreamReader:
        assert self._reader is not None
        return self._reader

    def start_again(self, **options: object) -> None:
        self._options |= options
        if self._reader is not None:
            # As Spark does; if a process is killed, the kernel releases the name.
            self._reader.stop()
        source = self._log.source(**self._options)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, HeadraceStreamReader)
        self._reader = reader
        if not self.kept:
            reader.initialOffset()
            self.kept.append(reader.initialOffset())

    def batch(self) -> list[Row] | None:
        """Return the rows of the next batch; None if there is none."""
        limit = self.reader.getDefaultReadLimit()
        end = self.reader.latestOffset(self.kept[-1], limit)
        if end == self.kept[-1]:
            return None
        if len(self.kept) > 1:
            self.reader.commit(self.kept[-1])
        self.kept.append(end)
        return self.again()

    def again(self) -> list[Row]:
        """Return the rows of the last batch once more, as after a crash."""
        parts = self.reader.partitions(self.kept[-2], self.kept[-1])
        found: list[Row] = collected(self.reader, parts).to_pylist()
        return found

    def all(self) -> list[list[Row]]:
        """Return every batch there is."""
        found = []
        while (rows := self.batch()) is not None:
            found.append(rows)
        return found


def collected(reader: Any, partitions: Any) -> pa.Table:
    batches = [batch for each in partitions for batch in reader.read(each)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def short(rows: Iterable[Row]) -> list[tuple[Any, str, int]]:
    """Return rows as (id, type, version)."""
    return [(row["id"], row["_change_type"], row["_commit_version"]) for row in rows]


def ids(rows: Iterable[Row]) -> list[Any]:
    return [row["id"] for row in rows]
