"""
Values as JSON, which can be read back with the type of their column.

| kind | in JSON |
|---|---|
| int16 int32 int64 | a number, with every digit; no reader may take it for a float |
| float32 float64 | a number with a point or an exponent; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| boolean | true, false |
| decimal, numeric | text, with every digit: `"1.50"`; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| text, json | text; json as its exact text |
| bytes, text_bytes | base64 |
| uuid | its text |
| date | `"2026-11-15"`; beyond the years 1 to 9999 as PostgreSQL writes it, `"infinity"` too |
| timestamp, timestamptz | ISO 8601 with microseconds, the second in UTC with `+00:00`; or as dates |
| time, timetz | `"12:30:00.000001"`, `"24:00:00"`; with an offset `"12:30:00+01:00"` |
| interval | `"14 mons 3 days 04:05:06.789000"`: three numbers, since a month has no fixed length |
| variant | a number, or text; bytes are `{"bytes": base64}`, a float that is no number `{"float": "NaN"}` |
| arrow(…) | lists and objects of such values |

A value that its column cannot hold is `{"exact": text}`, with its text in the log (R23f). A value
that the source did not send is absent (R21), which is different from null.

`by_kind` is for a single value without its column: its Python type determines its kind.
The caller decides which kinds are written with their name.
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import (
    BeyondDate,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
    ValueType,
    exact_text,
    text_bytes,
)

Image: TypeAlias = dict[str, Any]
Side: TypeAlias = Literal["before", "after"]


def plain(kind: ValueType, values: Sequence[object]) -> list[Any]:
    """Return a column's values, as `from_arrow` returns them, in the form above."""
    make = _PLAIN.get(kind.kind)
    if make is None:
        return list(values)
    return [None if value is None else make(value) for value in values]


def outside(text: str) -> Any:
    """Return a value that its column cannot hold, by its exact text."""
    return {"exact": text}


@dataclass(frozen=True, slots=True)
class JsonForm:
    """How rows are written: the values of a column, and values that it cannot hold or lacks."""

    values: Callable[[ValueType, Sequence[object]], list[Any]] = plain
    outside: Callable[[str], Any] = outside
    unsent: str | None = None
    """The replacement for a value that was not sent; None: it is left out."""


PLAIN = JsonForm()


def row_values(rows: pa.Table, columns: Sequence[Column], form: JsonForm = PLAIN) -> list[Image]:
    """Return rows as objects; columns are matched by index, from the first."""
    made = [
        form.values(column.type, column.type.from_arrow(rows.column(at)))
        for at, column in enumerate(columns)
    ]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*made, strict=True)]


def images(
    rows: pa.Table, schema: TableSchema, side: Side, form: JsonForm = PLAIN
) -> list[Image | None]:
    """
    Return one image of each change of a segment; None if there is none.

    A before image that holds the key at most has no other columns here: an absent value must
    not be read as null.
    """
    image = rows.column(side)
    present = image.is_valid().to_pylist()
    columns = _columns_of(schema, side)
    # By index: a name with a dot would be read as a path.
    made = [
        form.values(column.type, column.type.from_arrow(pc.struct_field(image, index)))
        for index, column in columns
    ]
    names = [column.name for _, column in columns]
    found: list[Image | None] = [
        dict(zip(names, row, strict=True)) if there else None
        for there, row in zip(present, zip(*made, strict=True), strict=True)
    ]
    sign = 1 if side == "after" else -1
    fields = {sign * column.field: column.name for _, column in columns}
    for at, texts in marked_rows(rows.column("_exact")):
        for number, text in texts:
            if number in fields and (row := found[at]) is not None:
                row[fields[number]] = form.outside(text)
    for at, numbers in marked_rows(rows.column("_unsent")):
        for number in numbers:
            if number in fields and (row := found[at]) is not None:
                if form.unsent is None:
                    del row[fields[number]]
                else:
                    row[fields[number]] = form.unsent
    return found


def unsent(rows: pa.Table, schema: TableSchema) -> list[list[str]]:
    """Return for each change the columns that the source did not send (R21)."""
    names = {column.field: column.name for column in schema.columns}
    found: list[list[str]] = [[] for _ in range(rows.num_rows)]
    for at, numbers in marked_rows(rows.column("_unsent")):
        found[at] = [names[number] for number in numbers if number in names]
    return found


def _columns_of(schema: TableSchema, side: Side) -> list[tuple[int, Column]]:
    columns = list(enumerate(schema.columns))
    if side == "after" or schema.whole_before or not schema.key:
        return columns
    return [(index, column) for index, column in columns if column.name in schema.key]


def marked_rows(column: pa.ChunkedArray) -> list[tuple[int, Any]]:
    """Return the values of `_exact` or `_unsent`, with their rows; most rows have none."""
    if column.null_count == len(column):
        return []
    return [(at, value) for at, value in enumerate(column.to_pylist()) if value]


# --- a value whose column's type is not known -----------------------------------------------------

_LARGEST = 2**53
"""Up to here every JSON parser reads an integer exactly."""


def by_kind(value: object, write: Callable[[str, Any], object]) -> Any:
    """Return a value in JSON; `write` gets the kind and value of all that JSON cannot express."""
    if (kind := _KINDS.get(type(value))) is not None:
        return write(kind, value)
    match value:
        case None | bool():
            return value
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return write("text_bytes", value)
            return value
        case int():
            return value if -_LARGEST <= value <= _LARGEST else write("int", value)
        case float():
            return value if math.isfinite(value) else write("float", value)
        case datetime():
            return write("timestamptz" if value.tzinfo else "timestamp", value)
        case BeyondTimestamp():
            return write("timestamptz" if value.utc else "timestamp", value)
        case list() | tuple():
            return [by_kind(each, write) for each in value]
        case Mapping():
            inside = {str(name): by_kind(each, write) for name, each in value.items()}
            return write("struct", inside)
    return write("other", value)


_KINDS: Mapping[type, str] = {
    bytes: "bytes",
    Decimal: "decimal",
    UUID: "uuid",
    date: "date",
    BeyondDate: "date",
    time: "time",
    BeyondTime: "time",
    OffsetTime: "timetz",
    Interval: "interval",
}


def kind_text(kind: str, value: Any) -> Any:
    """Return the text of a value by its kind; ISO 8601 if that can express it."""
    match kind:
        case "bytes":
            return _base64(value)
        case "text_bytes":
            return _base64(text_bytes(value))
        case "int" | "decimal":
            return exact_text(value)
        case "float":
            return _float(value)
        case "struct":
            return value
    return value.isoformat() if isinstance(value, date | time) else str(value)


# --- a value of each kind -------------------------------------------------------------------------


def _float(value: Any) -> object:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode()


def _instant(value: Any) -> str:
    known = isinstance(value, datetime | time)
    return value.isoformat(timespec="microseconds") if known else str(value)


def _variant(value: Any) -> object:
    if isinstance(value, bytes):
        return {"bytes": _base64(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": _float(value)}
    return value


def _of_arrow(kind: str, value: Any) -> object:
    if kind in ("int", "text_bytes"):
        return value
    return _instant(value) if isinstance(value, datetime | time) else kind_text(kind, value)


_PLAIN: Mapping[str, Callable[[Any], object]] = {
    "float32": _float,
    "float64": _float,
    "decimal": exact_text,
    "numeric": exact_text,
    "bytes": _base64,
    "text_bytes": _base64,
    "uuid": str,
    "date": str,
    "timestamp": _instant,
    "timestamptz": _instant,
    "time": _instant,
    "timetz": str,
    "interval": str,
    "variant": _variant,
    "arrow": lambda value: by_kind(value, _of_arrow),
}
"""Kinds that are not listed are the same in JSON."""
