"""
From the rows of a job to what a target takes.

Spark gives rows in the order its tasks end (S1), so they are put back in position order.
Truncates are taken out, and with them every row of the table up to the last one (R23d);
for a target that keeps what was, all of them stay where they are. A row whose key changed
becomes two of the same position, the delete of the old key first (R23). A delete holds its
key and nothing else, a truncate nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.schema import META, TableSchema

POSITIONS = tuple(META[at] for at in (0, 1, 2, 4))
"""`_op _commit _ordinal _time`: the first columns of a result, by place and not by name."""


RowReference: TypeAlias = tuple[int, int]
"""
Where a row stands: commit and ordinal of a change.

The rows of a baseline have no position (R20); there it is the number of the segment among
the part's paths, and of the row within it, both from 0.
"""


FUNCTION_FAILED = "FUNCTION_FAILED"
OUTSIDE_TYPE = "VALUE_OUTSIDE_TYPE"
"""Codes of failures that are not conditions of Spark."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that cannot be computed, and why. Never what else may go wrong in a job (S2)."""

    place: RowReference
    code: str
    """Spark's condition (`DIVIDE_BY_ZERO`), `FUNCTION_FAILED`, or `VALUE_OUTSIDE_TYPE`."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """What helps a person: the column, the function, its own words. Kept in the letter only."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The rows of a batch, filtered and transformed, in position order."""

    rows: pa.Table
    """`_op _commit _ordinal _time`, then the row's columns; a column may have such a name, too."""

    truncate: tuple[int, int] | None
    """Commit and ordinal of the last truncate; the rows come after it, but where all are kept."""

    job_ms: float
    scanned_rows: int
    failures: tuple[Failure, ...] = ()
    """Rows that are not among these, because they cannot be computed, by position."""


def result_schema(output: TableSchema) -> pa.Schema:
    """Return the columns of a result whose rows look like `output`."""
    return pa.schema([*POSITIONS, *output.arrow])


def arranged(
    parts: Sequence[pa.Table], output: TableSchema, *, every_change: bool = False
) -> tuple[pa.Table, tuple[int, int] | None]:
    """
    Return the rows of all parts as one, and the last truncate.

    With `every_change` truncates are rows, and nothing is left out. Each part has the columns
    of a result; where keys may have changed, then one that is true for such a row, and its old
    key's columns in the key's order.
    """
    width = len(POSITIONS) + len(output.columns)
    rows = _joined(parts, output, width)
    rows = _in_order(rows)
    after, truncate = _after_truncate(rows)
    rows = rows if every_change else after
    if rows.num_columns > width:
        rows = _moves_told(rows, output, width)
    return _bare_deletes(rows, output), truncate


def shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return Spark's columns, given in this order, under their names and in our types."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def aligned(rows: pa.Table, have: TableSchema, want: TableSchema) -> pa.Table:
    """Return rows of an older schema's result in the shape of the newest."""
    if have is want or have.columns == want.columns:
        return rows
    places = {name: at for at, name in enumerate(have.names, len(POSITIONS))}
    columns = [rows.column(at) for at in range(len(POSITIONS))]
    for column in want.columns:
        at = places.get(column.name)
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
    """Return the rows by position; one look tells whether they are already."""
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


def _moves_told(rows: pa.Table, output: TableSchema, width: int) -> pa.Table:
    """Put a delete of the old key before each row whose key changed."""
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
    Leave a delete nothing but its key, and a truncate nothing.

    A row that left the filter still has all its values, and a step may give one to any row.
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
