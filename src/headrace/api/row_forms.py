"""
Rows and keys in the messages of `QueryService`.

A row is written as a Struct, as JSON or as Arrow. Structs and JSON have the values that
`table_reads` describes; the types of Arrow are those of the table. A key is read in the same forms,
so a value from an answer can be used as a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.struct_pb2 import NULL_VALUE, Struct, Value

from headrace.api.table_reads import not_a_value, readings, shown_value
from headrace.errors import BadRequest
from headrace.v1 import query_pb2 as v1

if TYPE_CHECKING:
    from headrace.changelog.schema import Column, TableSchema
    from headrace.tables import Row
    from headrace.tables.version import TableVersion


# --- values of requests ---------------------------------------------------------------------------

_EXACT: Final = 2**53
_WHOLE: Final = frozenset({"int16", "int32", "int64"})
_DECIMALS: Final = frozenset({"decimal", "numeric"})
NUMBERS: Final = _WHOLE | _DECIMALS | {"float32", "float64", "variant", "arrow"}


def given_value(value: Value) -> Any:
    """Return a value as JSON has it."""
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return value.number_value
        case "bool_value":
            return value.bool_value
        case "list_value":
            return [given_value(each) for each in value.list_value.values]
        case "struct_value":
            return {name: given_value(each) for name, each in value.struct_value.fields.items()}
    return None


class KeyReader:
    """Reads the values of a request as those of some columns."""

    def __init__(self, schema: TableSchema, names: Sequence[str]) -> None:
        self._columns = [schema.column(name) for name in names]

    def meanings(self, given: Sequence[object]) -> list[tuple[object, ...]]:
        """Return the possible meanings of the values: one, but see `readings`."""
        columns = self._columns
        if len(columns) != len(given):
            names = [column.name for column in columns]
            raise BadRequest(
                f"{len(columns)} value{'' if len(columns) == 1 else 's'} needed,"
                f" {len(given)} given",
                remedy=f"Give the values of {', '.join(names)}, in this order.",
                columns=names,
                given=len(given),
            )
        found: list[tuple[object, ...]] = [()]
        for column, value in zip(columns, given, strict=True):
            values = _values(column, value)
            found = [(*each, more) for each in found for more in values]
        return found


def _values(column: Column, given: object) -> list[object]:
    kind = column.type.kind
    if type(given) is float:
        if kind in _WHOLE or kind in _DECIMALS:
            # A double: beyond 2^53 it may be another number than the client meant.
            if not abs(given) <= _EXACT or (kind in _WHOLE and not given.is_integer()):
                raise not_a_value(column)
            return [int(given)] if given.is_integer() else list(readings(column, repr(given)))
        if kind == "arrow":
            return [given, int(given)] if given.is_integer() else [given]
        if kind not in NUMBERS:
            raise not_a_value(column)
        return [given]
    if type(given) is bool and kind not in ("boolean", "arrow"):
        raise not_a_value(column)
    if kind == "arrow" and isinstance(given, list | dict):
        whole = _whole(given)
        return [given] if repr(whole) == repr(given) else [given, whole]
    if type(given) is list:
        raise not_a_value(column)
    return list(readings(column, given))


def _whole(given: Any) -> Any:
    """Return a value with integers where it has floats that are whole."""
    if isinstance(given, list):
        return [_whole(each) for each in given]
    if isinstance(given, dict):
        return {name: _whole(each) for name, each in given.items()}
    return int(given) if isinstance(given, float) and given.is_integer() else given


# --- rows of answers ------------------------------------------------------------------------------

MOST_BYTES: Final = 4_000_000
"""Of the rows of an answer: most clients of gRPC take no more. A single row may have more."""

_FIRST_ROWS: Final = 32
"""How many rows are looked at first, to see how large they are."""

STRUCTS: Final = frozenset({v1.ROW_FORM_UNSPECIFIED, v1.ROW_FORM_STRUCT})
"""The forms that are Structs."""


def columns_of(schema: TableSchema, key: Sequence[str]) -> list[v1.Column]:
    """Return the columns of a table, as answers have them."""
    return [
        v1.Column(name=column.name, type=str(column.type), key=column.name in key)
        for column in schema.columns
    ]


def mixed_columns(schema: TableSchema) -> frozenset[str]:
    """Return the columns with values of several kinds."""
    return frozenset(column.name for column in schema.columns if column.type.kind == "variant")


def put_rows(answer: Any, version: TableVersion, numbers: Sequence[int], form: int) -> int:
    """
    Put rows into an answer with several, in a form; return how many.

    That is all of them, unless they have more than `MOST_BYTES`.
    """
    if form not in STRUCTS:
        return put_form(answer, version, numbers, form)
    mixed = mixed_columns(version.schema)
    size = 0
    for count, number in enumerate(numbers):
        row = answer.rows.add()
        fill(row, version.row(number), mixed)
        size += row.ByteSize()
        if size > MOST_BYTES and count:
            del answer.rows[-1]
            return count
    return len(numbers)


def put_form(answer: Any, version: TableVersion, numbers: Sequence[int], form: int) -> int:
    """Put rows into an answer, in a form other than Structs; return how many, as `put_rows`."""
    table = _limited(version, np.array(numbers, np.int32))
    if form == v1.ROW_FORM_JSON:
        answer.json = rows_json(version.schema, table)
    elif form == v1.ROW_FORM_ARROW:
        answer.arrow = rows_arrow(table)
    else:
        raise BadRequest("This form of rows is not known", form=form)
    return int(table.num_rows)


def _limited(version: TableVersion, numbers: npt.NDArray[np.int32]) -> pa.Table:
    """Return as many of the rows as `MOST_BYTES` permits, as Arrow."""
    pieces: list[pa.Table] = []
    start, size, step = 0, 0, _FIRST_ROWS
    while start < len(numbers):
        piece = version.arrow(numbers[start : start + step])
        size += piece.nbytes
        if size > MOST_BYTES and pieces:
            break
        pieces.append(piece)
        start += piece.num_rows
        # The next ones are probably as large: no more than a quarter of what is permitted.
        step = max(1, min(4096, int(MOST_BYTES / 4 * start / max(size, 1))))
    return pa.concat_tables(pieces) if pieces else version.arrow(numbers)


def rows_json(schema: TableSchema, table: pa.Table) -> bytes:
    """Return rows as a JSON array, with the values that Structs would have."""
    columns = [_column_json(column, table.column(at)) for at, column in enumerate(schema.columns)]
    names = schema.names
    return msgspec.json.encode(
        [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    )


def _column_json(column: Column, array: pa.ChunkedArray) -> list[Any]:
    kind = column.type.kind
    values = column.type.from_arrow(array)
    if kind in _AS_THEY_ARE:
        return values
    mixed = kind == "variant"
    return [None if value is None else shown_value(value, mixed=mixed) for value in values]


_AS_THEY_ARE: Final = frozenset({"int16", "int32", "boolean", "text", "json"})


def rows_arrow(table: pa.Table) -> bytes:
    """Return rows as a stream of Arrow's IPC format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def fill(into: Struct, row: Row, mixed: frozenset[str]) -> None:
    """Put the values of a row into a Struct."""
    # By the type of each value, not of its column: a subscriber also gets rows from before the
    # columns changed.
    fields = into.fields
    for name in row:
        value = row[name]
        put = _PUT.get(type(value))
        if put is None or name in mixed:
            put_json(fields[name], shown_value(value, mixed=name in mixed))
        else:
            put(fields[name], value)


def _put_null(into: Value, _value: None) -> None:
    into.null_value = NULL_VALUE


def _put_flag(into: Value, value: bool) -> None:
    into.bool_value = value


def _put_int(into: Value, value: int) -> None:
    if -_EXACT <= value <= _EXACT:
        into.number_value = value
    else:
        into.string_value = str(value)


def _put_float(into: Value, value: float) -> None:
    if math.isfinite(value):
        into.number_value = value
    else:
        into.string_value = shown_value(value)


def _put_text(into: Value, value: str) -> None:
    into.string_value = value


_PUT: Final[Mapping[type, Callable[[Any, Any], None]]] = {
    type(None): _put_null,
    bool: _put_flag,
    int: _put_int,
    float: _put_float,
    str: _put_text,
}


def put_json(into: Value, value: Any) -> None:
    """Put a value, as JSON has it, into a message."""
    if isinstance(value, list):
        into.list_value.SetInParent()
        for each in value:
            put_json(into.list_value.values.add(), each)
    elif isinstance(value, dict):
        into.struct_value.SetInParent()
        for name, each in value.items():
            put_json(into.struct_value.fields[name], each)
    else:
        _PUT[type(value)](into, value)
