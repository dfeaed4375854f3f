"""
Literals of a predicate, in the type of the column that they are compared with.

A literal that does not fit its column is refused rather than rounded: `id > 1.5` says
something else than it seems to where the column holds whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

from headrace.changelog.values import ValueType
from headrace.errors import BadExpression

TYPED: Final = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True)
class Literal:
    """
    A literal as it was written.

    `kind` is `number`, `text`, `boolean`, `null`, or what stood before it: one of `TYPED`.
    """

    kind: str
    text: str


def fitted(column: str, type: ValueType, literal: Literal) -> object:
    """Return the literal as a value of the column; `BadExpression` where it is none."""
    made = None
    make = _MAKERS.get(type.kind)
    if make is not None and literal.kind in make[0]:
        try:
            made = make[1](literal.text, type)
        except (ValueError, InvalidOperation, OverflowError):
            made = None
    if made is None:
        raise BadExpression(
            "A literal that the column cannot be compared with",
            column=column,
            type=str(type),
            literal=literal.kind,
            remedy="Write it in the column's own type; or filter behind load(): .where(…).",
        )
    return made


_MOST_DIGITS: Final = 38
"""Of a decimal in Spark."""


def comparable(type: ValueType) -> bool:
    """Whether columns of this type can be compared here as Spark compares them."""
    return type.kind in _MAKERS


def _exact(text: str) -> Decimal:
    # With an exponent it is a double to Spark, which then compares by what both are as doubles.
    if "e" in text.lower():
        raise ValueError
    return Decimal(text)


def _whole(text: str, type: ValueType) -> int | None:
    number = _exact(text)
    bits = type.arrow.bit_width - 1
    return int(number) if number == int(number) and -(2**bits) <= number < 2**bits else None


def _float(text: str, type: ValueType) -> float:
    return float(text)


def _decimal(text: str, type: ValueType) -> Decimal | None:
    # With its own digits: 1.005 is beside decimal(5,2) what it says.
    number = _exact(text)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    whole, scale = max(len(digits) + exponent, 0), max(-exponent, 0)
    return number if whole + scale <= _MOST_DIGITS else None


def _text(text: str, type: ValueType) -> str:
    return text


def _boolean(text: str, type: ValueType) -> bool:
    return text == "true"


def _date(text: str, type: ValueType) -> date:
    return date.fromisoformat(text)


def _timestamp(text: str, type: ValueType) -> datetime | None:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is None else None  # an offset names a moment, no local time


def _timestamptz(text: str, type: ValueType) -> datetime | None:
    found = datetime.fromisoformat(text)
    # Without an offset it would depend on the session's time zone, which is not known here.
    return None if found.tzinfo is None else found.astimezone(UTC)


_WHOLE = (frozenset({"number"}), _whole)
_REAL = (frozenset({"number"}), _float)
_MAKERS: Final[Mapping[str, tuple[frozenset[str], Callable[[str, ValueType], object]]]] = {
    "int16": _WHOLE,
    "int32": _WHOLE,
    "int64": _WHOLE,
    "float32": _REAL,
    "float64": _REAL,
    "decimal": (frozenset({"number"}), _decimal),
    "text": (frozenset({"text"}), _text),
    "json": (frozenset({"text"}), _text),
    "boolean": (frozenset({"boolean"}), _boolean),
    "date": (frozenset({"date", "text"}), _date),
    # Beside `timestamp '…'` Spark takes such a column for moments, by the session's time zone.
    "timestamp": (frozenset({"timestamp_ntz", "text"}), _timestamp),
    "timestamptz": (frozenset({"timestamp", "text"}), _timestamptz),
}
