"""
The data source `format("headrace")` (S11) and its readers, as Spark calls them.

The source returns the columns, and a reader for a part of the log or for a stream. A reader has the
options, and opens the log when it is first needed. Spark creates one in each process that plans,
and sends it to the executors, where `read` finds everything it needs in its partition. Names in
camel case occur only in this module.

Only the text of an error passes through Spark. So the text has everything: the code, what happened,
and what to do. Spark would print a page of its own stack frames before it, and is set not to. The
setting is made in the worker that fails, which is not used again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogReader
from headrace.errors import BadSchema, ChangesMissing, HeadraceError, UnknownTable
from headrace.pipeline.plan.types import spark_type
from headrace.spark_source.columns import FrameColumns, frame_of
from headrace.spark_source.leases import QueryLease, needed
from headrace.spark_source.offsets import (
    NEWEST_BASELINE,
    Offset,
    ReadRequest,
    check_end,
    exact_from,
    first_offset,
    idle_offset,
    last_position,
    least_end,
    newest_baseline,
    next_offset,
)
from headrace.spark_source.options import (
    ReadOptions,
    check_batch,
    check_stream,
    known_table,
    located,
    opened,
    parse_options,
    wait_for,
)
from headrace.spark_source.plan import between, grouped
from headrace.spark_source.slices import Slice, Task, read_slices
from headrace.storage.locations import elsewhere

# --- errors that pass through Spark ---------------------------------------------------------------

_WORKER = "PYTHON_WORKER_FACTORY"
"""Prefix of environment variables that only Spark's workers have."""


@contextmanager
def full_error_text() -> Iterator[None]:
    """Put facts and remedy into the text of our errors."""
    try:
        yield
    except HeadraceError as error:
        facts = "".join(f", {name}={value}" for name, value in error.facts.items())
        error.args, error.facts = (f"{error.message}{facts}. {error.remedy}",), {}
        if any(name.startswith(_WORKER) for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error from None


# --- readers --------------------------------------------------------------------------------------

try:  # since Spark 4.2
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # pragma: no cover - Spark 4.1
    HAS_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """Placeholder: this version of Spark does not have it."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder: this version of Spark does not have it."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """Placeholder: this version of Spark does not have it."""

        max_rows: int

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Placeholder: this version of Spark does not have it."""


LOOK_SECONDS = 1.0
"""Minimum seconds between two reads of the index in a bucket, where each request costs money."""

IDLE_SECONDS = 60.0
"""How often the offset of a query without rows moves: rarely, as it costs Spark a job (R34)."""


@dataclass(frozen=True)
class Partition(InputPartition):
    """What one task reads."""

    task: Task
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class TableReference:
    """A table of a log, with its schema when the DataFrame was loaded."""

    data: str
    source: str
    schema_id: int


class _Reader:
    """What both kinds of reader share: the log, opened when it is first needed."""

    _resumes = False
    """Whether the query may have begun in an earlier process."""

    def __init__(self, options: ReadOptions, reference: TableReference) -> None:
        self._options = options
        self._table = reference
        self._opened: ReadRequest | None = None
        self._looked = 0.0
        self._lease: QueryLease | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the options; the open log stays on the driver.
        return {**self.__dict__, "_opened": None, "_lease": None}

    def _frame(self, log: LogReader) -> FrameColumns:
        return framed(log, self._table, self._options)

    def _asked(self, *, polled: bool = False) -> ReadRequest:
        """Return the log as it is now; if `polled` often, as it was a moment ago."""
        now = time.monotonic()
        if self._opened is not None:
            recent = now - self._looked < LOOK_SECONDS
            if polled and recent and elsewhere(self._table.data):
                return self._opened
            self._opened.log.refresh()
        else:
            log = opened(self._table.data, self._table.source)
            asked = ReadRequest(log, self._options, self._frame(log))
            if self._options.reader is not None:
                self._lease = QueryLease(
                    self._table.data,
                    self._table.source,
                    self._options.reader,
                    self._options.lease,
                    wait=self._options.wait,
                    resumes=self._resumes,
                )
            self._opened = asked
        self._looked = now
        return self._opened

    def _keep(self, asked: ReadRequest, at: Offset) -> None:
        if self._lease is not None:
            self._lease.keep(needed(asked, at), asked.log)

    def _move(self, asked: ReadRequest, to: Offset) -> None:
        if self._lease is not None:
            self._lease.move(needed(asked, to), asked.log)

    def _end(self) -> None:
        """Release the reader name."""
        if self._lease is not None:
            self._lease.end()
        self._opened = self._lease = None

    def _partitions(self, asked: ReadRequest, slices: Sequence[Slice]) -> list[Partition]:
        task = Task(
            self._table.data,
            self._table.source,
            asked.frame,
            self._options.images,
            self._options.on_truncate == "row",
        )
        return [Partition(task, tuple(group)) for group in grouped(slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; runs on an executor."""
        if isinstance(partition, Partition):
            with full_error_text():
                yield from read_slices(partition.task, partition.slices)


class HeadraceReader(_Reader, DataSourceReader):
    """Reads a part of the log, to its end as it is when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return what each task reads."""
        with full_error_text():
            asked = self._asked()
            start = first_offset(asked.log, self._options)
            if start.waits:
                start, end = self._from_baseline(asked)
            else:
                end = Offset(last_position(asked.log, self._options))
            self._keep(asked, start)
            self._end()  # Spark does not say when it was read; the lease limits the time
            return self._partitions(asked, between(asked, start, end))

    def _from_baseline(self, asked: ReadRequest) -> tuple[Offset, Offset]:
        """Return the offsets from a baseline to an end at which the result is exact (R11)."""

        def exact() -> bool | None:
            asked.log.refresh()
            found = newest_baseline(asked)
            return (
                found is not None and last_position(asked.log, self._options) >= (found.window[1])
            ) or None

        if wait_for(exact, self._options.wait) is None:
            raise _no_baseline(asked)
        found = newest_baseline(asked)
        assert found is not None
        start = Offset(found.window[0], found.baseline, 0)
        return start, Offset(last_position(asked.log, self._options))


class HeadraceStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log."""

    _resumes = True

    def __init__(self, options: ReadOptions, reference: TableReference) -> None:
        super().__init__(options, reference)
        self._first: Offset | None = None
        """Where a query without a checkpoint begins."""
        self._seen: Offset | None = None
        self._answered: Offset | None = None
        self._upto: Position | None = None
        self._moved = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins; Spark calls this several times."""
        with full_error_text():
            asked = self._asked()
            if self._first is None:
                self._first = first_offset(asked.log, self._options)
            self._keep(asked, self._first)
            self._seen = self._seen or self._first
            return self._first.as_json()

    def latestOffset(
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return where the next batch ends; Spark calls this about 80 times a second."""
        with full_error_text():
            asked = self._asked(polled=True)
            at = Offset.parse(start) if start is not None else self._seen
            if at is None:
                # Spark 4.1 does not pass the offset of a query that was restarted.
                end = self._from_anywhere(asked)
                if end == self._answered:  # and nothing was planned: the query is at that end
                    self._move(asked, end)
                    self._keep(asked, end)
                self._answered = end
                return end.as_json()
            self._keep(asked, at)
            if self._upto is not None and at.baseline is not None:
                self._upto = max(self._upto, self._await_exact(asked, at, self._upto))
            found = next_offset(asked, at, getattr(limit, "max_rows", None), self._upto)
            if found == at:
                if at != self._first:
                    check_end(asked, at)
                found = self._idle(asked, at)
            if found != at:
                self._moved = time.monotonic()
                if at == self._first and not at.waits:
                    found = replace(found, since=at.position)
            return found.as_json()

    def _from_anywhere(self, asked: ReadRequest) -> Offset:
        """Return an end that is right for any checkpoint: the end of the log."""
        number = None
        if self._options.start == "baseline":
            # The query may still wait for a baseline. The end lies after that one's window, so
            # that its number makes no difference to a query that is past it.
            self._await_exact(asked, NEWEST_BASELINE, ORIGIN)
            found = newest_baseline(asked)
            number = None if found is None else found.baseline
        end = least_end(asked.log, self._options)
        return Offset(end, number, None, asked.log.lineage or "")

    def _idle(self, asked: ReadRequest, at: Offset) -> Offset:
        # A query with an end moves there in each run: before the next, the log may prune it.
        if self._upto is None and time.monotonic() - self._moved < IDLE_SECONDS:
            return at
        return idle_offset(asked, at, self._upto)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much a batch may hold."""
        most = self._options.most_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the log's end, for the query's progress."""
        with full_error_text():
            return Offset(self._asked().log.end).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end at the log's current end."""
        with full_error_text():
            self._upto = self._asked().log.end

    def _await_exact(self, asked: ReadRequest, at: Offset, upto: Position) -> Position:
        """Return an end, at least `upto`, at which the result is exact (R11); wait for it."""

        def there() -> Position | None:
            asked.log.refresh()
            newest = newest_baseline(asked) if at.waits else None
            exact = exact_from(asked, at) if newest is None else newest.window[1]
            if exact is None:
                return None if at.waits else upto
            return upto if exact <= upto else asked.log.end if exact <= asked.log.end else None

        found = wait_for(there, self._options.wait)
        if found is None:
            raise _no_baseline(asked)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what each task of a batch reads."""
        with full_error_text():
            asked = self._asked()
            first, last = Offset.parse(start), Offset.parse(end)
            self._seen = last
            if first == last:
                return []
            first = _begun(first, last, fresh=first == self._first)
            self._keep(asked, first)
            return self._partitions(asked, between(asked, first, last))

    def commit(self, end: dict[str, Any]) -> None:
        """Release what was read; Spark calls this when it plans the next batch, not while idle."""
        if self._options.reader is None:
            return
        with full_error_text():
            self._move(self._asked(), Offset.parse(end))

    def stop(self) -> None:
        """End; the lease stays, so that a restarted query can continue where it was."""
        self._end()


def _begun(first: Offset, last: Offset, *, fresh: bool) -> Offset:
    """
    Return where a batch began when it was planned.

    For the first batch, Spark only knows where a query would begin now. The log may have been
    pruned since, or have grown. The batch's end has where it really began.
    """
    if last.since is not None:
        return Offset(last.since, lineage=last.lineage)
    return NEWEST_BASELINE if fresh and last.baseline is not None else first


def _no_baseline(asked: ReadRequest) -> ChangesMissing:
    return ChangesMissing(
        "There is no baseline of this table yet, or the changes made during its copy are not in"
        " the log yet",
        table=asked.table,
        remedy="Wait until the engine is ready (await_ready), or wait longer here: wait=60s.",
    )


def framed(log: LogReader, reference: TableReference, options: ReadOptions) -> FrameColumns:
    """Return the columns of a DataFrame of a table."""
    return frame_of(log.schema(options.table, reference.schema_id), reference.schema_id, options)


# --- the source -----------------------------------------------------------------------------------


class HeadraceSource(DataSource):
    """The changes of one table, from the log that an engine or `hr.record` writes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        with full_error_text():
            self._options = parse_options(options)
        self._table: TableReference | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "headrace"

    def schema(self) -> t.StructType:
        """Return the table's columns as they are now, then ours."""
        with full_error_text():
            table, log = self._located()
            self._table = table
            return _spark_schema(framed(log, table, self._options))

    def reader(self, schema: t.StructType) -> DataSourceReader:
        """Return a reader of a part of the log."""
        with full_error_text():
            check_batch(self._options)
            table = self._table_with(schema)
        return HeadraceReader(self._options, table)

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:
        """Return a reader that follows the log."""
        with full_error_text():
            check_stream(self._options, admission=HAS_LIMITS)
            table = self._table_with(schema)
        return HeadraceStreamReader(self._options, table)

    def _located(self) -> tuple[TableReference, LogReader]:
        options = self._options
        data, source = located(options, options.wait)
        log = opened(data, source)
        known_table(log, options.table, options.wait)
        return TableReference(data, source, log.columns(options.table, 0).schema), log

    def _table_with(self, schema: t.StructType) -> TableReference:
        """Return the table version of a frame; for a catalog table, by its columns."""
        if self._table is not None:
            return self._table
        table, log = self._located()
        for schema_id in range(table.schema_id, 0, -1):
            found = replace(table, schema_id=schema_id)
            with suppress(UnknownTable):
                mine = _spark_schema(framed(log, found, self._options))
                if _same(mine, schema):
                    return found
        raise BadSchema(
            "The table never had these columns",
            table=self._options.table,
            remedy="Leave out .schema(…): the source has its own. If this is a catalog table whose"
            " source has new columns, drop it and create it again.",
        )


def _spark_schema(frame: FrameColumns) -> t.StructType:
    return t.StructType([t.StructField(each.name, spark_type(each.type)) for each in frame.arrow])


def _same(ours: t.StructType, given: t.StructType) -> bool:
    return [(each.name, each.dataType) for each in ours] == [
        (each.name, each.dataType) for each in given
    ]
