"""
A dead letter: a change that the target was not given, whole (R30).

It holds both images as the log had them, with every value exact, so that it can be read when
the log is long gone; and a reason. `failed` are the changes that could not be computed,
`behind` those that follow one by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.exact import from_exact
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.changelog.values import ValueType
from headrace.pipeline.keys import key_columns

Kind: TypeAlias = Literal["failed", "behind"]
Image: TypeAlias = Mapping[str, object]

BASELINE: Final = "baseline"
"""The `op` of a baseline's row."""


@dataclass(frozen=True, slots=True)
class NewLetter:
    """A letter as a run gives it."""

    table: str
    lineage: str
    position: Position
    """Of a change; of a baseline's row, where the baseline begins (F)."""

    baseline: int | None
    """The number of the baseline whose row it is; None for a change."""

    kind: Kind
    code: str
    """Of the failure; empty for a change that is behind another."""

    facts: Mapping[str, str]
    keys: tuple[bytes, ...]
    """Its old key and its new one, as `packed_keys` makes them: both are held."""

    schema: TableSchema
    row: pa.Table
    """The change alone, in the shape of `schema.segment`."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A letter as it is read: its values are those of the value table, none of them rounded."""

    pipeline: str
    table: str
    lineage: str
    position: Position
    """Of a change; of a baseline's row, where the baseline begins (F)."""

    baseline: int | None
    """The number of the baseline whose row it is; None for a change."""

    op: str
    """`insert`, `update`, `delete` or `truncate`; `baseline` for a baseline's row."""

    kind: Kind
    code: str
    """Spark's condition, `FUNCTION_FAILED` or `VALUE_OUTSIDE_TYPE`; empty for those behind."""

    facts: Mapping[str, str]
    key: tuple[object, ...]
    """Of the row as it is after the change, or before, where it is gone."""

    before: Image | None
    after: Image | None
    """The row; a column whose value the source did not send is not in it."""

    time: datetime | None
    """When it was committed, UTC; not known of a baseline's row."""

    parked: datetime
    """When it was set aside, UTC."""

    superseded: str | None
    """None while it holds its keys; `truncate` or `reload` once that made it history."""

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """The keys that it holds, as bytes."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a row in the shape of a segment says, as values."""

    op: str
    key: tuple[object, ...]
    before: Image | None
    after: Image | None
    time: datetime | None


def contents(rows: pa.Table, schema: TableSchema) -> Iterator[Content]:
    """Yield what each of these changes says, as exact values."""
    before, after = (_images(rows, schema, side) for side in ("before", "after"))
    instants = ValueType("timestamptz").from_arrow(rows.column("_time"))
    columns = [column.name for column in key_columns(schema)]
    for op, old, new, instant in zip(
        rows.column("_op").to_pylist(), before, after, instants, strict=True
    ):
        found = {**(old or {}), **(new or {})}
        yield Content(
            op=Op(op).name.lower(),
            key=tuple(found.get(name) for name in columns) if found else (),
            before=old,
            after=new,
            time=instant if isinstance(instant, datetime) else None,
        )


def behind(letter: DeadLetter, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Return the letters that are held back by `letter`; `letters` are in position order."""
    keys = set(letter.keys)
    found = []
    for other in letters:
        if (other.pipeline, other.table) != (letter.pipeline, letter.table):
            continue
        if other.position <= letter.position or other.superseded != letter.superseded:
            continue
        if keys.intersection(other.keys):
            keys.update(other.keys)
            found.append(other)
    return found


def _images(rows: pa.Table, schema: TableSchema, side: str) -> list[dict[str, object] | None]:
    image = rows.column(side)
    present = image.is_valid().to_pylist()
    # By place: a name with a dot in it would be taken for a path.
    columns = [
        column.type.from_arrow(pc.struct_field(image, place))
        for place, column in enumerate(schema.columns)
    ]
    fields = {
        column.field if side == "after" else -column.field: column.name for column in schema.columns
    }
    images: list[dict[str, object] | None] = []
    for at, (exact, unsent) in enumerate(
        zip(rows.column("_exact").to_pylist(), rows.column("_unsent").to_pylist(), strict=True)
    ):
        if not present[at]:
            images.append(None)
            continue
        values: dict[str, Any] = {
            name: column[at] for name, column in zip(schema.names, columns, strict=True)
        }
        for number, text in exact or ():
            if number in fields:
                values[fields[number]] = from_exact(text)
        for number in unsent or ():
            if number in fields:
                del values[fields[number]]
        images.append(values)
    return images
