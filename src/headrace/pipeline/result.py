"""
From the rows of a job to the rows for a target.

Spark returns rows in the order in which its tasks end (S1), so they are sorted by position.
Truncates are removed, and with them every row of the table up to the last one (R23d). For a target
that keeps every change, all of them stay. A row whose key changed becomes two rows with the same
position, the delete of the old key first (R23). A delete has only its key, a truncate has no
values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.schema import META, TableSchema

POSITIONS = tuple(META[at] for at in (0, 1, 2, 4))
"""`_op _commit _ordinal _time`: the first columns of a result, by index and not by name."""


RowReference: TypeAlias = tuple[int, int]
"""
Identifies a row: commit and ordinal of a change.

The rows of a baseline have no position (R20). For them it is the number of the segment among the
part's paths, and the number of the row in the segment, both from 0.
"""


FUNCTION_FAILED = "FUNCTION_FAILED"
OUTSIDE_TYPE = "VALUE_OUTSIDE_TYPE"
"""Codes of failures that are not Spark's error conditions."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that cannot be computed, and why. Other errors of a job are never a `Failure` (S2)."""

    reference: RowReference
    code: str
    """Spark's error condition (`DIVIDE_BY_ZERO`), `FUNCTION_FAILED` or `VALUE_OUTSIDE_TYPE`."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """Details: the column, the function, the text of its error. Only kept in the dead letter."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The rows of a batch, filtered and transformed, in position order."""

    rows: pa.Table
    """`_op _commit _ordinal _time`, then the row's columns, which may have these names, too."""

    truncate: tuple[int, int] | None
    """Commit and ordinal of the last truncate. `rows` follow it, unless all are kept."""

    job_ms: float
    scanned_rows: int
    failures: tuple[Failure, ...] = ()
    """The rows that could not be computed, by position; they are not in `rows`."""

    direct: bool = False
    """Whether they were computed without a Spark job."""

    check: Callable[[], None] | None = None
    """
    For some direct results: computes the batch again by a job, and raises `ResultsDiffer` if that
    gives something else. To be called once readers see the rows.
    """


def result_schema(output: TableSchema) -> pa.Schema:
    """Return the columns of a result with the schema `output`."""
    return pa.schema([*POSITIONS, *output.arrow])


def arranged(
    parts: Sequence[pa.Table], output: TableSchema, *, every_change: bool = False
) -> tuple[pa.Table, tuple[int, int] | None]:
    """
    Return the rows of all parts as one table, and the last truncate.

    With `every_change`, truncates are rows and nothing is left out. Each part has the columns of
    a result. If keys may have changed, these are followed by a column that is true for such
    rows, and the columns of the old key in the key's order.
    """
    width = len(POSITIONS) + len(output.columns)
    rows = _joined(parts, output, width)
    rows = _in_order(rows)
    after, truncate = _after_truncate(rows)
    rows = rows if every_change else after
    if rows.num_columns > width:
        rows = _with_deletes_of_old_keys(rows, output, width)
    return _bare_deletes(rows, output), truncate


def same_results(one: JobResult, other: JobResult) -> bool:
    """Return whether two computations of a batch gave the same rows, bit by bit, and failures."""
    return (
        one.rows.schema.equals(other.rows.schema)
        and one.truncate == other.truncate
        and [(each.reference, each.code) for each in one.failures]
        == [(each.reference, each.code) for each in other.failures]
        and all(
            _same(mine.combine_chunks(), theirs.combine_chunks())
            for mine, theirs in zip(one.rows.columns, other.rows.columns, strict=True)
        )
    )


def _same(one: pa.Array, other: pa.Array) -> bool:
    """Compare two columns of one type; NaN equals NaN, and 0.0 differs from -0.0."""
    if len(one) != len(other) or not one.is_null().equals(other.is_null()):
        return False
    type = one.type
    if pa.types.is_struct(type):
        return all(map(_same, one.flatten(), other.flatten()))
    if pa.types.is_map(type):
        one, other = (_as_lists(each) for each in (one, other))
        type = one.type
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        lengths = (pc.list_value_length(each) for each in (one, other))
        return next(lengths).equals(next(lengths)) and _same(one.flatten(), other.flatten())
    if pa.types.is_floating(type):
        bits = pa.int32() if type.bit_width == 32 else pa.int64()
        # The sign and the payload of a NaN depend on how Java compiled the expression.
        one, other = (
            pc.if_else(pc.is_nan(each), pa.scalar(float("nan"), type), each).drop_null().view(bits)
            for each in (one, other)
        )
    return bool(one.equals(other))


def _as_lists(maps: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of their entries."""
    entry = pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])
    return maps.cast(pa.list_(entry))


def shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return Spark's columns, which are in this order, with our names and types."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def aligned(rows: pa.Table, have: TableSchema, want: TableSchema) -> pa.Table:
    """Convert rows with an older schema to the newest."""
    if have is want or have.columns == want.columns:
        return rows
    indexes = {name: at for at, name in enumerate(have.names, len(POSITIONS))}
    columns = [rows.column(at) for at in range(len(POSITIONS))]
    for column in want.columns:
        at = indexes.get(column.name)
        columns.append(
            pa.nulls(rows.num_rows, column.type.arrow) if at is None else rows.column(at)
        )
    extra = rows.columns[len(POSITIONS) + len(have.columns) :]
    schema = [
        *result_schema(want),
        *(pa.field(f"_{at}", each.type) for at, each in enumerate(extra)),
    ]
    return pa.table([*columns, *extra], names=[field.name for field in schema])


def _joined(parts: Sequence[pa.Table], output: TableSchema, width: int) -> pa.Table:
    schema = result_schema(output)
    if parts[0].num_columns > width:
        old = [output.arrow.field(name).with_name(f"_old_{name}") for name in output.key]
        schema = pa.schema([*schema, pa.field("_moved", pa.bool_()), *old])
    return pa.concat_tables([shaped(part, schema) for part in parts])


def _in_order(rows: pa.Table) -> pa.Table:
    """Return the rows by position; first check whether they are already in order."""
    if rows.num_rows < 2:
        return rows
    commits, ordinals = rows.column(1).to_numpy(), rows.column(2).to_numpy()
    steps = np.diff(commits)
    if bool(np.all((steps > 0) | ((steps == 0) & (np.diff(ordinals) >= 0)))):
        return rows
    return rows.take(pa.array(np.lexsort((ordinals, commits))))


def _after_truncate(rows: pa.Table) -> tuple[pa.Table, tuple[int, int] | None]:
    ops = rows.column(0).to_numpy()
    found = np.flatnonzero(ops == Op.TRUNCATE)
    if not len(found):
        return rows, None
    last = int(found[-1])
    return rows.slice(last + 1), (rows.column(1)[last].as_py(), rows.column(2)[last].as_py())


def _with_deletes_of_old_keys(rows: pa.Table, output: TableSchema, width: int) -> pa.Table:
    """Insert a delete of the old key before each row whose key changed."""
    moved = np.flatnonzero(pc.fill_null(rows.column(width), False).to_numpy())
    kept = rows.select(list(range(width)))
    if not len(moved):
        return kept
    chosen = rows.take(pa.array(moved))
    old = dict(zip(output.key, chosen.columns[width + 1 :], strict=True))
    deletes = pa.Table.from_arrays(
        [
            pa.array(np.full(len(moved), Op.DELETE, np.int8)),
            *(chosen.column(at) for at in (1, 2, 3)),
            *(
                old.get(column.name, pa.nulls(len(moved), column.type.arrow))
                for column in output.columns
            ),
        ],
        schema=kept.schema,
    )
    order = np.insert(np.arange(len(kept)), moved, len(kept) + np.arange(len(moved)))
    return pa.concat_tables([kept, deletes]).take(pa.array(order))


def _bare_deletes(rows: pa.Table, output: TableSchema) -> pa.Table:
    """
    Remove all values from a delete, except its key, and all from a truncate.

    A row that no longer passes a filter still has all its values, and a step may compute values
    for any row.
    """
    ops = rows.column(0).to_numpy()
    truncates = ops == Op.TRUNCATE
    bare = truncates | (ops == Op.DELETE)
    if not bare.any():
        return rows
    columns = list(rows.columns)
    for at, column in enumerate(output.columns, len(POSITIONS)):
        where = truncates if column.name in output.key else bare
        if _any_value(columns[at], where):
            nothing = pa.scalar(None, column.type.arrow)
            columns[at] = pc.if_else(pa.array(where), nothing, columns[at])
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _any_value(column: pa.ChunkedArray, where: npt.NDArray[np.bool_]) -> bool:
    return bool((column.is_valid().to_numpy() & where).any())
