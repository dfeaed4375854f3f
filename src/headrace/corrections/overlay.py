"""
The log as one pipeline reads it: with its corrections between the commits.

`CorrectedLog.next_batch` returns batches of the log that end before the next correction, then the
correction as a batch of its own. Everything after that is the same for both: the job, dead letters,
holds and the target. The rows of a correction lie in a Parquet file of their own, in the shape of
a segment, beside the log's segments, because Spark's executors must be able to read them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

import pyarrow as pa

from headrace.changelog.entries import File
from headrace.changelog.history import BaselineWindow
from headrace.changelog.position import CHANGES_END, Position, before_commit, in_log
from headrace.changelog.reader import LogBatch, LogReader
from headrace.changelog.schema import TableSchema
from headrace.changelog.segment import describe, read_segment, segment_bytes, verify
from headrace.corrections.journal import Correction, Journal

_FOLDER = "corrections"

_NAME = re.compile(r"([0-9a-f]{12})-[0-9]+\.parquet")


class CorrectedLog:
    """A log with the corrections of one pipeline. *Threads*: those of its pipeline."""

    def __init__(self, log: LogReader, pipeline: str, journal: Journal) -> None:
        self._log = log
        self._journal = journal
        self._files = log.folder(f"{_FOLDER}/{pipeline}")
        self._written: dict[int, tuple[File, ...]] = {}
        """The files of corrections that were read, by the correction's number."""

        self._schemas: dict[int, TableSchema] = {}
        """Their schemas, by numbers below all of the log's."""

        self._numbers = count(1)

    @property
    def lineage(self) -> str | None:
        """The lineage of the current epoch."""
        return self._log.lineage

    def end(self, tables: Sequence[str]) -> Position:
        """Return where the log ends, or the last correction of these tables after that."""
        end = self._log.end
        lasts = [each.last for each in self._journal.all() if each.table in tables and each.counts]
        # A correction is placed where the pipeline stands, which is never beyond the log's end.
        return max([end, *(last for last in lasts if in_log(end) >= before_commit(last))])

    def next_batch(
        self,
        tables: str | Sequence[str],
        after: Position,
        most_rows: int,
        upto: Position | None = None,
        most_files: int = 64,
        loaded: tuple[int, Position] | None = None,
    ) -> LogBatch | None:
        """
        Return the changes that follow `after`, as `LogReader.next_batch`, or the next correction.

        With `loaded`, the number and the F of a copy that is brought up to date, corrections that
        it covers are left out.
        """
        names = (tables,) if isinstance(tables, str) else tuple(tables)
        correction = self._journal.next(self.lineage or "", names, after, upto, loaded)
        if correction is None:
            return self._log.next_batch(names, in_log(after), most_rows, upto, most_files)
        first = correction.first
        before = Position(first.epoch, first.commit, CHANGES_END)
        if after < before:
            found = self._log.next_batch(names, in_log(after), most_rows, before, most_files)
            if found is not None:
                return found
        return self.batch(names, correction)

    def batch(self, names: tuple[str, ...], correction: Correction) -> LogBatch:
        """Return a correction as a batch."""
        files = self._files_of(correction)
        return LogBatch(
            tables=names,
            epoch=correction.first.epoch,
            first=correction.first,
            last=correction.last,
            files=files,
            rows=sum(file.rows for file in files),
            entries=(0, 0),
            begun=0,
            time=0,
            corrects=True,
        )

    def _files_of(self, correction: Correction) -> tuple[File, ...]:
        """Return the files of a correction's rows; written if this run has not yet done so."""
        number = correction.number
        if number and (known := self._written.get(number)) is not None:
            return known
        self._files.make_folder("")
        files = []
        for index, each in enumerate(correction.changes()):
            schema_id = -next(self._numbers)
            self._schemas[schema_id] = each.schema
            name = f"{number:012x}-{index}.parquet"
            data = segment_bytes(each.rows)
            self._files.put(name, data)
            files.append(describe(name, correction.table, schema_id, each.schema, each.rows, data))
        self._written[number] = tuple(files)
        return self._written[number]

    def tidy(self) -> None:
        """Remove the files of corrections that the journal does not have any more."""
        known = {each.number for each in self._journal.all()}
        found = filter(None, map(_NAME.fullmatch, self._files.list("")))
        self._files.remove_many([each[0] for each in found if int(each[1], 16) not in known])
        self._written = {n: files for n, files in self._written.items() if n in known}
        used = {file.schema for files in self._written.values() for file in files}
        self._schemas = {n: schema for n, schema in self._schemas.items() if n in used}

    # -- segments ---------------------------------------------------------------------

    def schema(self, table: str, schema_id: int | None = None) -> TableSchema:
        """Return a table's schema in the log, or that of a correction."""
        if schema_id is None or schema_id >= 0:
            return self._log.schema(table, schema_id)
        return self._schemas[schema_id]

    def path(self, file: File) -> str:
        """Return a segment's full path, for Spark."""
        return self._log.path(file) if file.schema >= 0 else self._files.path(file.name)

    def rows(self, file: File) -> pa.Table:
        """Return a segment's rows, verified, with the schema it was written with."""
        if file.schema >= 0:
            return self._log.rows(file)
        return read_segment(self._files, file, self.schema(file.table, file.schema))

    def verify(self, file: File) -> None:
        """Check a segment's bytes; raises as `rows` does."""
        if file.schema >= 0:
            self._log.verify(file)
        else:
            verify(self._files, file)

    def window(self, table: str, baseline: int) -> BaselineWindow | None:
        """Return the window of a baseline: commits after F that its rows hold; None: none."""
        return self._log.window(table, baseline)
