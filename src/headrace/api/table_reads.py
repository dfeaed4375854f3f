"""
Rows and changes of a pipeline's target, for callers in another process.

Row values are sent as JSON. Values in requests are JSON, too, and are converted to column values.

| value | in JSON |
|---|---|
| null, booleans, text, finite floats | as in JSON |
| integers | numbers from -2^53 to 2^53, text beyond, as in protobuf's JSON |
| decimals | text with every digit |
| nan and infinities | `"NaN"`, `"Infinity"`, `"-Infinity"` |
| bytes | base64 |
| uuid, dates, times, intervals | text; ISO 8601 where that can express it |
| lists, structs | lists, objects |

The kind of each column is sent with the rows, so nothing of this is ambiguous. Only a `variant`
column has values of several kinds: there, bytes and large integers are
`{"kind": "bytes", "value": …}` and `{"kind": "int", "value": …}`. Text that is not UTF-8 is
`{"kind": "text_bytes", "value": base64}` everywhere.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from headrace.changelog.values import from_exact
from headrace.changelog.values_json import by_kind, kind_text
from headrace.errors import BadRequest, TableError, UnknownIndex, UnknownPipeline
from headrace.targets.target import Readable, ReadableTable

if TYPE_CHECKING:
    from headrace.changelog.schema import Column, TableSchema
    from headrace.tables import Row


# --- row values as JSON, and back -----------------------------------------------------------------

_HEX = re.compile(r"[xX]'([0-9a-fA-F]*)'")
_MIXED = "variant"


def columns_shown(schema: TableSchema) -> list[dict[str, str]]:
    """Return the names and kinds of a table's columns."""
    return [{"name": column.name, "type": str(column.type)} for column in schema.columns]


class RowsAsJson:
    """Converts the rows of one table to JSON values."""

    def __init__(self, schema: TableSchema) -> None:
        self._mixed = {column.name for column in schema.columns if column.type.kind == _MIXED}

    def shown(self, row: Mapping[str, object]) -> dict[str, Any]:
        """Return a row."""
        return {name: shown_value(row[name], mixed=name in self._mixed) for name in row}

    def values(self, names: Sequence[str], values: Sequence[object]) -> list[Any]:
        """Return the values of some columns: a key's."""
        return [
            shown_value(value, mixed=name in self._mixed)
            for name, value in zip(names, values, strict=False)
        ]


def shown_value(value: object, *, mixed: bool = False) -> Any:
    """Return a value in the form that the module's docstring describes."""
    return by_kind(value, _of_mixed if mixed else _of_column)


def _of_column(kind: str, value: Any) -> object:
    text = kind_text(kind, value)
    return {"kind": kind, "value": text} if kind == "text_bytes" else text


def _of_mixed(kind: str, value: Any) -> object:
    text = kind_text(kind, value)
    return {"kind": kind, "value": text} if kind in ("bytes", "int", "text_bytes") else text


def readings(column: Column, given: object) -> Iterator[object]:
    """
    Yield the possible meanings of a value, from JSON or typed by a user, in a column.

    That is one meaning, with two exceptions. In a column with values of several kinds, `42` may be
    a number or a text. In one of text that need not be UTF-8, `abcd` may be base64. Both are looked
    up.
    """
    kind = column.type.kind
    try:
        if isinstance(given, Mapping) and kind != "arrow":
            yield _of_named_kind(kind, given)
        elif not isinstance(given, str):
            yield given
        elif kind == "arrow" and pa.types.is_temporal(column.type.arrow):
            yield _arrow_time(column.type.arrow, given)
        elif kind in (_MIXED, "arrow"):
            yield (number := from_exact(given))
            if number != given:
                yield given
        elif kind == "text_bytes":
            yield given.encode()
            with suppress(binascii.Error):
                yield base64.b64decode(given, validate=True)
        else:
            yield _READ.get(kind, str)(given)
    except (ValueError, InvalidOperation, binascii.Error):
        raise not_a_value(column) from None


def not_a_value(column: Column) -> BadRequest:
    """Return the error for a value that no row of this column can have."""
    # The value itself is row data, which must not be in the message.
    return BadRequest(
        f"The value for {column.name} is not a valid {column.type}",
        remedy="Write it as headrace query prints it; bytes as base64 or X'00FF'.",
        column=column.name,
        type=str(column.type),
    )


def _of_named_kind(kind: str, given: Mapping[str, Any]) -> object:
    """Return the value of `{"kind": …, "value": …}`, as answers have it."""
    value = given.get("value")
    if set(given) != {"kind", "value"} or not isinstance(value, str):
        raise ValueError
    if given["kind"] == "int":
        return int(value)
    if given["kind"] not in ("bytes", "text_bytes"):
        raise ValueError
    found = base64.b64decode(value, validate=True)
    if given["kind"] == "text_bytes" and kind == _MIXED:
        return found.decode(errors="surrogateescape")
    return found


def _bytes(text: str) -> bytes:
    if match := _HEX.fullmatch(text):
        return bytes.fromhex(match[1])
    return base64.b64decode(text, validate=True)


def _boolean(text: str) -> bool:
    words = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if (found := words.get(text.lower())) is None:
        raise ValueError
    return found


def _beyond(kind: str, text: str) -> object:
    """Return a time that Python's `datetime` cannot express, from the text that answers have."""
    # Imported here: hardly a key is one of these.
    from headrace.capture.postgres.decode import text as postgres

    parse: Callable[[bytes], object] = getattr(postgres, f"parse_{kind}")
    if (found := parse(text.encode())) is None:
        raise ValueError
    return found


_DURATION = re.compile(r"(?:(-?[0-9]+) days?, )?([0-9]+):([0-9]{2}):([0-9]{2})(?:\.([0-9]{6}))?")


def _arrow_time(type: pa.DataType, text: str) -> object:
    """Return a value of a type that an expression made, from its text."""
    if not pa.types.is_duration(type):
        return pa.scalar(text).cast(type).as_py()  # what it refuses is a ValueError
    if (match := _DURATION.fullmatch(text)) is None:
        raise ValueError
    days, hours, minutes, seconds, micros = (int(each or 0) for each in match.groups())
    return timedelta(days, seconds, micros, hours=hours, minutes=minutes)


def _or_beyond(kind: str, read: Callable[[str], object]) -> Callable[[str], object]:
    def either(text: str) -> object:
        with suppress(ValueError):
            return read(text)
        return _beyond(kind, text)

    return either


_READ: dict[str, Callable[[str], object]] = {
    "int16": int,
    "int32": int,
    "int64": int,
    "float32": float,
    "float64": float,
    "boolean": _boolean,
    "decimal": Decimal,
    "numeric": Decimal,
    "bytes": _bytes,
    "uuid": UUID,
    "date": _or_beyond("date", date.fromisoformat),
    "timestamp": _or_beyond("timestamp", datetime.fromisoformat),
    "timestamptz": _or_beyond("timestamptz", datetime.fromisoformat),
    "time": _or_beyond("time", time.fromisoformat),
    "timetz": partial(_beyond, "timetz"),
    "interval": partial(_beyond, "interval"),
}


# --- tables, rows and changes ---------------------------------------------------------------------

_ROWS_A_MESSAGE = 500


def table_of(pipeline: str, target: object, name: str | None) -> tuple[str, ReadableTable]:
    """Return a table of a target; `name` may be None if there is only one."""
    if not isinstance(target, Readable):
        raise BadRequest(
            f"The target of pipeline {pipeline} cannot be queried",
            remedy="Read the rows where the target stores them; headrace status shows its type.",
            pipeline=pipeline,
        )
    tables = target.tables
    if name is None:
        if len(tables) != 1:
            raise BadRequest(
                f"Pipeline {pipeline} has {'several tables' if tables else 'no table yet'}",
                remedy="Choose one: --table NAME." if tables else "Try again in a moment.",
                pipeline=pipeline,
                tables=list(tables),
            )
        name = tables[0]
    if name not in tables:
        raise UnknownPipeline(
            f"Pipeline {pipeline} has no table {name}",
            remedy=f"Use one of {', '.join(tables)}." if tables else "It has no table yet.",
            tables=list(tables),
        )
    return name, target.table(name)


def found(
    table: ReadableTable,
    *,
    key: Sequence[object] | None,
    lookup: Sequence[object] | None,
    index: str | None,
    values: Sequence[object],
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Return the rows asked for: by key, by the unique lookup, or by an index."""
    rows: list[Row] = []
    if key is not None:
        rows = _first(table.get(*each) for each in meanings(table, table.key, key))
    elif lookup is not None:
        columns = columns_of(table, None)
        rows = _first(table.lookup(*each) for each in meanings(table, columns, lookup))
    elif index is not None:
        columns = columns_of(table, index)
        for each in meanings(table, columns, values):
            rows += table.lookup_all(index, *each)
    shown = RowsAsJson(table.schema).shown
    return [shown(row) for row in rows[:limit]]


def columns_of(table: ReadableTable, index: str | None) -> tuple[str, ...]:
    """Return the columns of an index, or of the lookup; the remedy is in configuration syntax."""
    try:
        return table.columns_of(index)
    except UnknownIndex as error:
        if index is None:
            remedy = "Declare it in the pipeline's target: lookup_fields = [COLUMN]."
        else:
            declared = f"indexes.{index} {{ fields = [COLUMN] }}"
            remedy = f"Declare it in the pipeline's target: {declared}."
            if isinstance(known := error.facts.pop("indexes", None), list) and known:
                remedy = f"Use one of {', '.join(known)}; or d{remedy[1:]}"
        raise UnknownIndex(error.message, remedy=remedy, **error.facts) from None


class RowStream:
    """All rows of a table at one moment, in messages of a few hundred rows."""

    def __init__(self, table: ReadableTable, limit: int | None) -> None:
        self._schema = table.schema
        # Both before the first message: a table that is not ready is refused at once.
        self._position = table.position
        self._rows = itertools.islice(table.all(), limit)
        self._closed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"columns": columns_shown(self._schema), "position": str(self._position)}
        shown = RowsAsJson(self._schema).shown
        while not self._closed and (some := [*itertools.islice(self._rows, _ROWS_A_MESSAGE)]):
            yield {"rows": [shown(row) for row in some]}

    def close(self) -> None:
        """End the stream."""
        self._closed = True


class ChangeStream:
    """Every change of a table from now on; with `rows` the current rows come first."""

    def __init__(self, table: ReadableTable, *, rows: bool) -> None:
        self._table = table
        self._reader = table.changes("rows" if rows else "now")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # At once, so that the reader knows that it will get every later change.
        yield {"columns": columns_shown(self._table.schema)}
        schema = self._table.schema
        rows = RowsAsJson(schema)
        for change in self._reader:
            if self._table.schema is not schema:
                schema = self._table.schema
                rows = RowsAsJson(schema)
                yield {"columns": columns_shown(schema)}
            yield {
                "op": change.op,
                "key": rows.values(self._table.key, change.key),
                "before": None if change.before is None else rows.shown(change.before),
                "after": None if change.after is None else rows.shown(change.after),
                "position": str(change.position),
            }

    def close(self) -> None:
        """End the stream; a reader that waits for the next change is woken."""
        self._reader.close()


def meanings(
    table: ReadableTable, columns: Sequence[str], given: Sequence[object]
) -> Iterator[tuple[object, ...]]:
    """Yield the possible meanings of the values for some columns."""
    if len(columns) != len(given):
        raise BadRequest(
            f"{len(columns)} value{'' if len(columns) == 1 else 's'} needed, {len(given)} given",
            remedy=f"Give the values of {', '.join(columns)}, in this order.",
            columns=list(columns),
            given=len(given),
        )
    schema = table.schema
    return itertools.product(
        *(
            list(readings(schema.column(name), value))
            for name, value in zip(columns, given, strict=True)
        )
    )


def _first(rows: Iterator[Row | None]) -> list[Row]:
    return [row] if (row := next((row for row in rows if row is not None), None)) else []


def position_of(table: ReadableTable) -> str | None:
    """Return the position of the rows that readers see; None before there are rows."""
    with suppress(TableError):
        table.count()
        return str(table.position)
    return None
