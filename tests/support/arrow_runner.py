"""
Evaluates batches with Arrow instead of Spark: same interface, no JVM.

For simulation and crash tests, which run thousands of batches. It knows `equals`, `drop`,
`rename` and `timestamp`, which is enough for rows to enter, leave and cross a filter; Spark's own
tests hold the two to the same answers. Rows that `fails` speaks of cannot be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.capture.source import SourceTraits
from headrace.changelog.change import Op
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadExpression, JobFailed, RowFailed, TooManyFailed
from headrace.pipeline.batch import BatchFacts, BlockedRows, LoadedRows, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import Failure, JobResult, result_schema
from headrace.pipeline.steps import Drop, Equals, Rename, Timestamp
from headrace.storage.disk import Disk, RealDisk

Row = dict[str, Any]
META_NAMES = ("_op", "_commit", "_ordinal", "_time")


class ArrowRunner:
    """A runner for tests. Reads segments from the disk it is given."""

    def __init__(
        self,
        disk: Disk | None = None,
        fails: Callable[[Pipeline, Row], str | None] = lambda pipeline, image: None,
    ) -> None:
        self._disk = disk or RealDisk()
        self._fails = fails
        """The code of the failure, for a row after its change that passes the filter."""
        self._replaces: dict[int, bool] = {}
        self.batches = 0
        self.cancelled: list[Pipeline] = []
        self.closed: list[str | None] = []
        """The names of those that were prepared and are closed."""

    def prepare(
        self, pipeline: Pipeline, traits: SourceTraits, name: str | None = None
    ) -> ArrowPipeline:
        self._replaces[id(pipeline)] = traits.inserts_replace
        kind = ArrowFrames if hasattr(self, "give") else ArrowPipeline
        return kind(self, pipeline, name or pipeline.name)

    def output(self, pipeline: Pipeline, schema: TableSchema) -> TableSchema:
        if errors := pipeline.check(schema):
            raise errors[0]
        return self._output(pipeline, schema)

    def needs(self, pipeline: Pipeline, schema: TableSchema) -> frozenset[int]:
        kept = {column.field for column in self._output(pipeline, schema).columns}
        asked = (each.field for each in pipeline.filters if isinstance(each, Equals))
        return frozenset(kept | {schema.column(name).field for name in asked})

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        self.batches += 1
        changes = sorted(
            (change for part in parts for change in self._read(part)),
            key=lambda change: (change["_commit"], change["_ordinal"]),
        )
        output = self._output(pipeline, parts[-1].now)
        truncate: tuple[int, int] | None = None
        found: list[Row] = []
        failures: list[Failure] = []
        for change in changes:
            place = (change["_commit"], change["_ordinal"])
            if place in facts.without:
                continue
            if change["_op"] == Op.TRUNCATE:
                truncate = place
                if facts.every_change:
                    found.append({name: change[name] for name in META_NAMES})
                else:
                    found.clear()
            elif code := self._failing(pipeline, change["after"]):
                failures.append(Failure(place, code))
            else:
                found += self._told(pipeline, parts[-1].now, change)
        _refuse(pipeline, failures)
        rows = pa.Table.from_pylist(found, schema=result_schema(output))
        return JobResult(rows, truncate, 0.0, len(changes), tuple(failures))

    def baseline(self, pipeline: Pipeline, part: SegmentGroup) -> Iterator[LoadedRows]:
        output = self._output(pipeline, part.now)
        rows: list[Row] = []
        failures: list[Failure] = []
        for number, changes in enumerate(self._segments_of(part)):
            for place, change in enumerate(changes):
                if code := self._failing(pipeline, change["after"]):
                    failures.append(Failure((number, place), code))
                elif self._kept(pipeline, change["after"]):
                    rows.append(self._transformed(pipeline, change["after"], change))
        _refuse(pipeline, failures)
        yield LoadedRows(pa.Table.from_pylist(rows, schema=output.arrow), tuple(failures))

    def cancel(self, pipeline: Pipeline) -> None:
        self.cancelled.append(pipeline)

    def _failing(self, pipeline: Pipeline, image: object) -> str | None:
        return self._fails(pipeline, dict(image)) if self._kept(pipeline, image) else None  # type: ignore[call-overload]

    def _read(self, part: SegmentGroup) -> list[Row]:
        return [change for changes in self._segments_of(part) for change in changes]

    def _segments_of(self, part: SegmentGroup) -> Iterator[list[Row]]:
        for path in part.paths:
            try:
                data = self._disk.read(path)
            except OSError as error:
                raise JobFailed("Segment cannot be read") from error  # as Spark's would
            yield [_lifted(change, part) for change in self._segment(data)]

    def _segment(self, data: bytes) -> list[Row]:
        return segment_rows(data)

    def _told(self, pipeline: Pipeline, schema: TableSchema, change: Row) -> list[Row]:
        before, after = change["before"], change["after"]
        was, is_ = self._kept(pipeline, before), self._kept(pipeline, after)
        if not schema.whole_before:
            was = before is not None
        meta = {name: change[name] for name in ("_commit", "_ordinal", "_time")}

        def deleted(image: Row) -> Row:
            key = {name: image[name] for name in schema.key}
            return {"_op": int(Op.DELETE), **meta, **self._transformed(pipeline, key, {})}

        found = []
        moved = before and after and any(before[n] != after[n] for n in schema.key)
        if was and (moved or not is_):
            found.append(deleted(before))
        if is_:
            op = Op.UPDATE if was or (change["_op"] == Op.UPDATE and before is None) else Op.INSERT
            found.append({"_op": int(op), **meta, **self._transformed(pipeline, after, change)})
        elif after and self._replaces[id(pipeline)] and (moved or not was):
            found.append(deleted(after))
        return found

    def _kept(self, pipeline: Pipeline, image: object) -> bool:
        return _kept(pipeline, image)

    def _transformed(self, pipeline: Pipeline, image: object, change: Row) -> Row:
        return _transformed(pipeline, image, change)

    def _output(self, pipeline: Pipeline, schema: TableSchema) -> TableSchema:
        return _output(pipeline, schema)


class ArrowPipeline:
    """A pipeline prepared on such a runner, which does the work: tests replace parts of it."""

    def __init__(self, runner: ArrowRunner, pipeline: Pipeline, name: str | None) -> None:
        self.name = name
        self._runner: Any = runner
        self._pipeline = pipeline

    def output(self, schema: TableSchema) -> TableSchema:
        return cast(TableSchema, self._runner.output(self._pipeline, schema))

    def needs(self, schema: TableSchema) -> frozenset[int]:
        return cast(frozenset[int], self._runner.needs(self._pipeline, schema))

    def rows(self, parts: Sequence[SegmentGroup], facts: BatchFacts) -> JobResult:
        return cast(JobResult, self._runner.rows(self._pipeline, parts, facts))

    def baseline(self, part: SegmentGroup) -> Iterator[LoadedRows]:
        return cast(Iterator[LoadedRows], self._runner.baseline(self._pipeline, part))

    def cancel(self) -> None:
        self._runner.cancel(self._pipeline)

    def close(self) -> None:
        self._runner.closed.append(self.name)


class ArrowFrames(ArrowPipeline):
    """The same of a runner that gives frames."""

    def give(
        self,
        parts: Sequence[SegmentGroup],
        facts: BatchFacts,
        behind: BlockedRows,
        take: Callable[[Any], None],
    ) -> tuple[Failure, ...]:
        found = self._runner.give(self._pipeline, parts, facts, behind, take)
        return cast(tuple[Failure, ...], found)

    def give_baseline(
        self,
        part: SegmentGroup,
        take: Callable[[Any, int], None],
        blocked: BlockedRows | None = None,
    ) -> tuple[Failure, ...]:
        found = self._runner.give_baseline(self._pipeline, part, take, blocked)
        return cast(tuple[Failure, ...], found)


def _lifted(change: Row, part: SegmentGroup) -> Row:
    """Return a change in the columns that its table has now."""
    if part.newest is None or part.newest.columns == part.schema.columns:
        return change
    images = {name: _image(change[name], part) for name in ("before", "after")}
    return {**change, **images}


def _image(image: Row | None, part: SegmentGroup) -> Row | None:
    if image is None:
        return None
    written = {column.field: column.name for column in part.schema.columns}
    return {
        column.name: image[written[column.field]]
        if column.field in written
        else column.missing
        if column.missing is None or column.type.kind == "text"
        else int(column.missing)
        for column in part.now.columns
    }


def segment_rows(data: bytes) -> list[Row]:
    """Return a segment's changes as plain values."""
    # Not read_table: for a few rows its threads cost three times as much as the reading.
    rows: list[Row] = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).to_pylist()
    return rows


def _refuse(pipeline: Pipeline, failures: Sequence[Failure]) -> None:
    """Raise where more rows failed than the pipeline allows."""
    if len(failures) <= pipeline.most_failures:
        return
    kind = TooManyFailed if pipeline.most_failures else RowFailed
    raise kind("Rows cannot be computed", found=len(failures), condition=failures[0].code)


def _kept(pipeline: Pipeline, image: object) -> bool:
    if not isinstance(image, Mapping):
        return False
    for each in pipeline.filters:
        if not isinstance(each, Equals):
            raise BadExpression("Only equals is known here")
        if image[each.field] != each.value:
            return False
    return True


def _transformed(pipeline: Pipeline, image: object, change: Row) -> Row:
    assert isinstance(image, Mapping)
    times = {"commit": change.get("_time"), "capture": change.get("_captured")}
    row = dict(image)
    for transform in pipeline.transforms:
        match transform:
            case Drop(names):
                row = {name: value for name, value in row.items() if name not in names}
            case Rename(names):
                new = dict(names)
                row = {new.get(name, name): value for name, value in row.items()}
            case Timestamp(name, of):
                row[name] = times[of] or times["commit"]
            case _:
                raise BadExpression("Only drop, rename and timestamp are known here")
    return row


def _output(pipeline: Pipeline, schema: TableSchema) -> TableSchema:
    columns, key = list(schema.columns), schema.key
    for transform in pipeline.transforms:
        match transform:
            case Drop(names):
                columns = [column for column in columns if column.name not in names]
            case Rename(names):
                new = dict(names)
                columns = [replace(c, name=new.get(c.name, c.name)) for c in columns]
                key = tuple(new.get(name, name) for name in key)
            case Timestamp(name):
                field = 1 + max(column.field for column in (*schema.columns, *columns))
                columns.append(Column(name, ValueType("timestamptz"), field))
            case _:
                raise BadExpression("Only drop, rename and timestamp are known here")
    return TableSchema(schema.table, tuple(columns), key)
