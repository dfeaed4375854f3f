"""
Evaluates batches with Arrow instead of Spark: same interface, no JVM.

For simulation and crash tests, which run thousands of batches. It knows `equals`, `drop`
and `rename`, which is enough for rows to enter, leave and cross a filter; Spark's own
tests hold the two to the same answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.capture.source import SourceTraits
from headrace.changelog.change import Op
from headrace.changelog.schema import TableSchema
from headrace.errors import BadExpression, JobFailed
from headrace.pipeline.batch import BatchFacts, Part
from headrace.pipeline.definition import Drop, Equals, Pipeline, Rename
from headrace.pipeline.result import Result, result_schema
from headrace.storage.disk import Disk, RealDisk

Row = dict[str, Any]


class ArrowRunner:
    """A runner for tests. Reads segments from the disk it is given."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or RealDisk()
        self._replaces: dict[int, bool] = {}
        self.batches = 0

    def prepare(self, pipeline: Pipeline, schema: TableSchema, traits: SourceTraits) -> TableSchema:
        if errors := pipeline.check(schema):
            raise errors[0]
        self._replaces[id(pipeline)] = traits.inserts_replace
        return _output(pipeline, schema)

    def rows(self, pipeline: Pipeline, parts: Sequence[Part], facts: BatchFacts) -> Result:
        self.batches += 1
        changes = sorted(
            (change for part in parts for change in self._read(part)),
            key=lambda change: (change["_commit"], change["_ordinal"]),
        )
        output = _output(pipeline, parts[-1].schema)
        truncate: tuple[int, int] | None = None
        found: list[Row] = []
        for change in changes:
            if change["_op"] == Op.TRUNCATE:
                truncate = (change["_commit"], change["_ordinal"])
                found.clear()
                continue
            found += self._told(pipeline, parts[-1].schema, change)
        rows = pa.Table.from_pylist(found, schema=result_schema(output))
        return Result(rows, truncate, 0.0, len(changes))

    def baseline(self, pipeline: Pipeline, part: Part) -> Iterator[pa.Table]:
        output = _output(pipeline, part.schema)
        rows = [
            _transformed(pipeline, change["after"])
            for change in self._read(part)
            if _kept(pipeline, change["after"])
        ]
        yield pa.Table.from_pylist(rows, schema=output.arrow)

    def _read(self, part: Part) -> list[Row]:
        found: list[Row] = []
        for path in part.paths:
            try:
                data = self._disk.read(path)
            except OSError as error:
                raise JobFailed("Segment cannot be read") from error  # as Spark's would
            found += self._segment(data)
        return found

    def _segment(self, data: bytes) -> list[Row]:
        return segment_rows(data)

    def _told(self, pipeline: Pipeline, schema: TableSchema, change: Row) -> list[Row]:
        before, after = change["before"], change["after"]
        was, is_ = _kept(pipeline, before), _kept(pipeline, after)
        meta = {name: change[name] for name in ("_commit", "_ordinal", "_time")}

        def deleted(image: Row) -> Row:
            key = {name: image[name] for name in schema.key}
            return {"_op": int(Op.DELETE), **meta, **_transformed(pipeline, key)}

        found = []
        moved = before and after and any(before[n] != after[n] for n in schema.key)
        if was and (moved or not is_):
            found.append(deleted(before))
        if is_:
            op = Op.UPDATE if was or (change["_op"] == Op.UPDATE and before is None) else Op.INSERT
            found.append({"_op": int(op), **meta, **_transformed(pipeline, after)})
        elif after and self._replaces[id(pipeline)] and (moved or not was):
            found.append(deleted(after))
        return found


def segment_rows(data: bytes) -> list[Row]:
    """Return a segment's changes as plain values."""
    # Not read_table: for a few rows its threads cost three times as much as the reading.
    rows: list[Row] = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).to_pylist()
    return rows


def _kept(pipeline: Pipeline, image: object) -> bool:
    if not isinstance(image, Mapping):
        return False
    for each in pipeline.filters:
        if not isinstance(each, Equals):
            raise BadExpression("Only equals is known here")
        if image[each.field] != each.value:
            return False
    return True


def _transformed(pipeline: Pipeline, image: object) -> Row:
    assert isinstance(image, Mapping)
    row = dict(image)
    for transform in pipeline.transforms:
        match transform:
            case Drop(names):
                row = {name: value for name, value in row.items() if name not in names}
            case Rename(names):
                new = dict(names)
                row = {new.get(name, name): value for name, value in row.items()}
            case _:
                raise BadExpression("Only drop and rename are known here")
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
            case _:
                raise BadExpression("Only drop and rename are known here")
    return TableSchema(schema.table, tuple(columns), key)
