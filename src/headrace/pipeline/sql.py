"""
SQL for names and for values compared with a column.

A literal is written in the column's own type, so that a comparison never converts the column, and
the session's settings do not change its meaning. Texts and bytes are written in hexadecimal, so
that nothing in a value can end the literal.
"""

from __future__ import annotations

from decimal import Decimal

from headrace.changelog.values import ValueType
from headrace.errors import BadExpression
from headrace.pipeline.steps import Equals, Prefix, Regex

_SQL_TYPES = {
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "time": "bigint",
}
TEXTS = ("text", "json")
"""Kinds of columns that hold only text."""

_INT64 = range(-(2**63), 2**63)


def quoted(name: str) -> str:
    """Return a name quoted for SQL, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def condition(filter_: Equals | Prefix | Regex, column: str, type: ValueType) -> str:
    """
    Return SQL that is true if the filter is true for `column`, otherwise false, never null.

    Raises `BadExpression` for a filter that can never be true for this type.
    """
    match filter_:
        case Equals(_, value):
            return equality(column, type, value)
        case Prefix(_, text):
            return f"coalesce(startswith({_texts(column, type)}, {text_literal(text)}), false)"
        case Regex(_, pattern):
            return f"coalesce({_texts(column, type)} rlike {text_literal(pattern)}, false)"


def masked(column: str, keep: int, with_: str) -> str:
    """Return SQL for the text with all characters replaced, except the last `keep`."""
    hidden = f"greatest(char_length({column}) - {keep}, 0)"
    return f"concat(repeat({text_literal(with_)}, {hidden}), right({column}, {keep}))"


def text_literal(value: str) -> str:
    """Return a text as a SQL literal, whatever characters it has."""
    if not isinstance(value, str):
        raise BadExpression("The value is not text", type=type(value).__name__)
    try:
        return f"cast(x'{value.encode().hex()}' as string)"
    except UnicodeEncodeError:
        raise BadExpression("The text cannot be encoded as UTF-8") from None


def _texts(column: str, type: ValueType) -> str:
    """Return SQL for the text of a column; for a variant, for its text field."""
    if type.kind == "variant":
        return f"{column}.t"
    if type.kind not in TEXTS:
        raise BadExpression(f"A column of type {type} is not text")
    return column


def equality(column: str, type: ValueType, value: object) -> str:
    """
    Return SQL that is true if `column` has exactly this value, otherwise false, never null.

    Raises `BadExpression` for a value that no row of this type can have.
    """
    if value is None:
        return f"({column} is null)"
    match type.kind:
        case "variant":
            return _variant(column, value)
        case "numeric":
            return _numeric(column, type, value)
        case "timetz" | "interval" | "arrow":
            raise BadExpression(f"A column of type {type.kind} cannot be compared with a value")
    return f"({column} <=> {_literal(type, value)})"


def _literal(type: ValueType, value: object) -> str:
    # The log's own mapping decides what fits, and how it is stored.
    array, unrepresentable = type.to_arrow([value])
    if unrepresentable:
        raise BadExpression(f"A column of type {type} cannot have this value")
    kind = type.kind
    if kind in ("date", "timestamp", "timestamptz"):
        return _moment(kind, array.cast("int32" if kind == "date" else "int64")[0].as_py())
    stored = array[0].as_py()
    if kind == "boolean":
        return "true" if stored else "false"
    if kind in ("text", "json"):
        return text_literal(stored)
    if kind in ("bytes", "text_bytes", "uuid"):
        return f"x'{stored.hex()}'"
    if kind == "decimal":
        return f"cast('{stored:f}' as decimal({type.precision},{type.scale}))"
    return f"cast('{stored}' as {_SQL_TYPES[kind]})"


def _moment(kind: str, stored: int) -> str:
    # From the stored number: a text cannot express years beyond 9999, nor infinity.
    if kind == "date":
        return f"date_from_unix_date({stored})"
    instant = f"timestamp_micros(cast('{stored}' as bigint))"
    return instant if kind == "timestamptz" else f"cast({instant} as timestamp_ntz)"


def _numeric(column: str, type: ValueType, value: object) -> str:
    array, unrepresentable = type.to_arrow([value])
    if unrepresentable:
        raise BadExpression(f"A column of type {type} cannot have this value")
    text = array[0].as_py()
    same = f"({column} <=> {text_literal(text)})"
    if not Decimal(text).is_finite():
        return same
    # 1.0 and 1.00 are one number and two texts. Numbers of more than 38 digits compare as text.
    number = "decimal(38,19)"
    equal = f"try_cast({column} as {number}) = try_cast('{text}' as {number})"
    return f"({same} or coalesce({equal}, false))"


def _variant(column: str, value: object) -> str:
    """Compare as SQLite does: whole and real numbers by value, texts and bytes by bytes."""
    if isinstance(value, str):
        return f"({column}.t <=> {text_literal(value)})"
    if isinstance(value, bytes):
        return f"({column}.b <=> x'{value.hex()}')"
    if not isinstance(value, int | float | Decimal) or value != value:
        raise BadExpression("SQLite has no value of this type", type=type(value).__name__)
    real = float(value)
    either = [f"{column}.d <=> cast('{real!r}' as double)"]
    if value == int(value) if real not in (float("inf"), float("-inf")) else False:
        whole = int(value)
        if real != whole:
            either = []
        if whole in _INT64:
            either.append(f"{column}.i <=> cast('{whole}' as bigint)")
    if not either:
        raise BadExpression("SQLite has no number this large")
    return f"({' or '.join(either)})"
