"""Tables, segments and batches for the tests of pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from headrace.capture.source import SourceTraits
from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.entries import File
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.segment import describe, segment_bytes
from headrace.changelog.values import ValueType
from headrace.pipeline.batch import BatchFacts, Runner, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import POSITIONS, JobResult

TRAITS = SourceTraits("test")
REPLACING = SourceTraits("sqlite", inserts_replace=True)
Row = dict[str, Any]


def table(
    *columns: tuple[str, str], key: Sequence[str] = ("id",), name: str = "orders"
) -> TableSchema:
    """A table of these columns, each with its type as the index writes it."""
    return TableSchema(
        name,
        tuple(
            Column(column, ValueType.parse(kind), field)
            for field, (column, kind) in enumerate(columns, 1)
        ),
        tuple(key),
    )


ORDERS = table(("id", "int64"), ("status", "text"), ("qty", "int32"), ("price", "decimal(12,2)"))


def order(id: int, qty: Any = 2, status: Any = "paid", **given: Any) -> Row:
    return {"id": id, "status": status, "qty": qty, "price": Decimal("1.50")} | given


def insert(commit: int, after: Row, ordinal: int = 0) -> Change:
    return Change(Op.INSERT, commit, ordinal, commit, None, after)


def update(commit: int, before: Row | None, after: Row, ordinal: int = 0) -> Change:
    return Change(Op.UPDATE, commit, ordinal, commit, before, after)


def delete(commit: int, before: Row, ordinal: int = 0) -> Change:
    return Change(Op.DELETE, commit, ordinal, commit, before, None)


def truncate(commit: int, ordinal: int = 0) -> Change:
    return Change(Op.TRUNCATE, commit, ordinal, commit)


def written(folder: Path, schema: TableSchema, changes: Sequence[Change]) -> tuple[str, File]:
    """Write a segment; return its path and what the index would say of it."""
    rows = as_segment(schema, changes)
    data = segment_bytes(rows)
    path = folder / f"{len(list(folder.iterdir())):012x}.parquet"
    path.write_bytes(data)
    return str(path), describe(path.name, schema.table, 1, schema, rows, data)


def batch(
    folder: Path, schema: TableSchema, *segments: Sequence[Change]
) -> tuple[list[SegmentGroup], BatchFacts]:
    """Write segments of one schema, and return them as a batch."""
    made = [written(folder, schema, changes) for changes in segments]
    files = [file for _, file in made]
    part = SegmentGroup(
        schema,
        tuple(path for path, _ in made),
        tuple(file.rows for file in files),
        sizes=tuple(file.bytes for file in files),
    )
    return [part], BatchFacts.of(files, Position(1, 1), Position(1, 99))


def pipeline(table: str = "orders", **given: Any) -> Pipeline:
    """A pipeline whose ends do not matter."""
    return Pipeline(cast(Any, object()), table, cast(Any, object()), **given)


def run(
    runner: Runner,
    what: Pipeline,
    folder: Path,
    schema: TableSchema,
    *segments: Sequence[Change],
    traits: SourceTraits = TRAITS,
) -> JobResult:
    """Prepare a pipeline and run one batch through it."""
    prepared = runner.prepare(what, traits)
    prepared.output(schema)
    parts, facts = batch(folder, schema, *segments)
    return prepared.rows(parts, facts)


def row_tuples(result: JobResult, *names: str) -> list[tuple[Any, ...]]:
    """The rows as tuples of op, commit and the columns with these names; by default all."""
    rows = result.rows
    assert [field.name for field in rows.schema][: len(POSITIONS)] == [p.name for p in POSITIONS]
    indexes = (
        [rows.schema.get_field_index(name) for name in names]
        if names
        else range(4, rows.num_columns)
    )
    columns = [rows.column(0).to_pylist(), rows.column(1).to_pylist()]
    columns += [rows.column(at).to_pylist() for at in indexes]
    return list(zip((Op(op).name.lower() for op in columns[0]), *columns[1:], strict=True))
