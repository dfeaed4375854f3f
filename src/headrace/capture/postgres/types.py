"""
Which of the log's types a column of PostgreSQL has, and how a copy asks for it.

The stream sends the text of every value. A copy sends the binary form where that says the
same with less work, and the text where the binary form says something else or is a form of
its own: `"char"`, `xml`, `money`, arrays, enums and all that extensions bring.

A cast to text is not that text. `inet '10.0.0.1'::text` ends in `/32`, `true::text` is not
`t`, `char(5)` loses its blanks, and anybody may create a cast; `concat` calls the type's
output function, as the stream does, so that both have one text for one value (R18).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.changelog.values import ValueType

NUMERIC: Final = 1700
_TEXT: Final = ValueType("text")
_NUMERIC: Final = ValueType("numeric")

_TYPES: Final[Mapping[int, ValueType]] = {
    16: ValueType("boolean"),
    17: ValueType("bytes"),
    20: ValueType("int64"),
    21: ValueType("int16"),
    23: ValueType("int32"),
    26: ValueType("int64"),  # oid: 32 bits without a sign
    114: ValueType("json"),
    700: ValueType("float32"),
    701: ValueType("float64"),
    1082: ValueType("date"),
    1083: ValueType("time"),
    1114: ValueType("timestamp"),
    1184: ValueType("timestamptz"),
    1186: ValueType("interval"),
    1266: ValueType("timetz"),
    2950: ValueType("uuid"),
    3802: ValueType("json"),  # jsonb
}
"""By the type's oid, which for these is the same on every server. The rest is text."""

_PLAIN_TEXT: Final = frozenset({19, 25, 1042, 1043})
"""name, text, bpchar, varchar: their binary form is their text."""


def value_type(oid: int, modifier: int) -> ValueType:
    """Return the type of a column of this base type; a domain's is that of what it is over."""
    if oid != NUMERIC:
        return _TYPES.get(oid, _TEXT)
    if modifier < 4:
        return _NUMERIC
    precision = (modifier - 4) >> 16 & 0xFFFF
    # Eleven bits with a sign: since PostgreSQL 15 a scale may be negative, or exceed the precision.
    scale = ((modifier - 4 & 0x7FF) ^ 0x400) - 0x400
    if 1 <= precision <= 38 and 0 <= scale <= precision:
        return ValueType("decimal", precision, scale)
    return _NUMERIC


def sends_binary(oid: int, modifier: int) -> bool:
    """Return whether `binary_column` reads the type's binary form; else ask for `as_text`."""
    return oid == NUMERIC or oid in _TYPES or oid in _PLAIN_TEXT


def as_text(expression: str) -> str:
    """Return SQL for the text of `expression` as the stream would send it; NULL stays NULL."""
    # Not IS NOT NULL: a row of nulls is not null, yet fails that test.
    return f"case when {expression} is distinct from null then pg_catalog.concat({expression}) end"
