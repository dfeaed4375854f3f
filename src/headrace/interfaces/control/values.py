"""
Row values as JSON, and back into what a table is asked for.

| value | in JSON |
|---|---|
| null, booleans, text, finite floats | themselves |
| whole numbers | numbers up to 2^53 either way, text beyond, as protobuf's JSON has it |
| decimals | text with every digit |
| nan and infinities | `"NaN"`, `"Infinity"`, `"-Infinity"` |
| bytes | base64 |
| uuid, dates, times, intervals | text; ISO 8601 where that can say it |
| lists, structs | lists, objects |

The kind of each column is sent beside the rows, so nothing of this is ambiguous. Only a
`variant` column holds values of several kinds: there, what is no number, text or null by
itself is `{"kind": "bytes", "value": …}` or `{"kind": "int", "value": …}`. Text that is not UTF-8
is `{"kind": "text_bytes", "value": base64}` everywhere.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.changelog.exact import exact_text, from_exact, text_bytes
from headrace.errors import BadRequest

if TYPE_CHECKING:
    from headrace.changelog.schema import Column, TableSchema

_EXACT = 2**53
"""Up to here every reader of JSON takes a number as it is written."""

_HEX = re.compile(r"[xX]'([0-9a-fA-F]*)'")
_MIXED = "variant"


def columns_shown(schema: TableSchema) -> list[dict[str, str]]:
    """Return the names and kinds of a table's columns."""
    return [{"name": column.name, "type": str(column.type)} for column in schema.columns]


class Rows:
    """Turns the rows of one table into JSON's values."""

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
    """Return a value as the table above has it."""
    match value:
        case None | bool():
            return value
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return {"kind": "text_bytes", "value": _base64(text_bytes(value))}
            return value
        case int():
            if -_EXACT <= value <= _EXACT:
                return value
            return {"kind": "int", "value": exact_text(value)} if mixed else exact_text(value)
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return {"kind": "bytes", "value": _base64(value)} if mixed else _base64(value)
        case Decimal():
            return exact_text(value)
        case datetime() | date() | time():
            return value.isoformat()
        case list() | tuple():
            return [shown_value(each, mixed=mixed) for each in value]
        case Mapping():
            return {str(name): shown_value(each, mixed=mixed) for name, each in value.items()}
    return str(value)


def readings(column: Column, given: object) -> Iterator[object]:
    """
    Yield what a value given in JSON, or typed by a person, can mean in a column.

    That is one thing, but in a column that holds values of several kinds: `42` may be a
    number or a text there, and both are looked for.
    """
    if given is None or not isinstance(given, str):
        yield given
        return
    kind = column.type.kind
    if kind in (_MIXED, "arrow"):
        yield (number := from_exact(given))
        if number != given:
            yield given
        return
    try:
        yield _READ.get(kind, str)(given)
    except (ValueError, InvalidOperation, binascii.Error):
        # The value itself is row data, and stays out of the message.
        raise BadRequest(
            f"The value for {column.name} is not of its type",
            remedy="Give it as headrace query shows it; bytes as base64 or X'00FF'.",
            column=column.name,
            type=str(column.type),
        ) from None


def _bytes(text: str) -> bytes:
    if match := _HEX.fullmatch(text):
        return bytes.fromhex(match[1])
    return base64.b64decode(text, validate=True)


def _boolean(text: str) -> bool:
    words = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if (found := words.get(text.lower())) is None:
        raise ValueError
    return found


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
    "text_bytes": str.encode,
    "uuid": UUID,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamptz": datetime.fromisoformat,
    "time": time.fromisoformat,
}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
