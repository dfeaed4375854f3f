"""
The rows of the value table: how each kind lies in Arrow, and how it comes back.

`PHYSICAL` turns a value into what the column stores, or raises `Unfit`; `EDGES` is the
way back. `quickly` is for the usual case, a column whose values are all of the kind's own
type: then Arrow converts them at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from headrace.changelog.beyond import (
    MAX_INT32,
    MAX_INT64,
    MICROS_PER_DAY,
    MIN_INT32,
    MIN_INT64,
    BeyondDate,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
)
from headrace.changelog.exact import numeric_text, text_bytes

SHAPES: Final[Mapping[str, pa.DataType]] = {
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "numeric": pa.utf8(),
    "text": pa.utf8(),
    "json": pa.utf8(),
    "bytes": pa.binary(),
    "text_bytes": pa.binary(),
    "uuid": pa.binary(16),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    # Spark refuses Parquet's own TIME (S6).
    "time": pa.int64(),
    "timetz": pa.struct([("us", pa.int64()), ("offset", pa.int32())]),
    "interval": pa.struct([("months", pa.int32()), ("days", pa.int32()), ("us", pa.int64())]),
    "variant": pa.struct(
        [
            ("kind", pa.int8()),
            ("i", pa.int64()),
            ("d", pa.float64()),
            ("t", pa.utf8()),
            ("b", pa.binary()),
        ]
    ),
}
"""Arrow's type for each kind; a decimal's has its own digits."""

MARKED: Final = frozenset(
    {"numeric", "json", "text_bytes", "uuid", "time", "timetz", "interval", "variant"}
)
"""Kinds that share Arrow's type with another one, so that the field must say which it is."""

VARIANT: Final[Mapping[type, int]] = {int: 1, float: 2, str: 3, bytes: 4}
"""The kinds of a variant, by SQLite's own numbers; a null has none, it is a null."""

_VARIANT_FIELD: Final = {1: "i", 2: "d", 3: "t", 4: "b"}

_MOST_DIGITS = 38
"""Digits of Arrow's decimal128, before and after the point together."""

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1, 1, 1).toordinal()
_DAY_ZERO = date(1970, 1, 1).toordinal()
_DAYS = range(_FIRST_DAY - _DAY_ZERO, date(9999, 12, 31).toordinal() - _DAY_ZERO + 1)
_MICROS = range(_DAYS.start * MICROS_PER_DAY, _DAYS.stop * MICROS_PER_DAY)
_MICRO = timedelta(microseconds=1)


class Unfit(Exception):
    """A value that its column cannot hold exactly."""


# --- from a value to what the column stores ------------------------------------------------


def _integer(bits: int) -> Callable[[object], object]:
    span = range(-(2 ** (bits - 1)), 2 ** (bits - 1))

    def fit(value: object) -> object:
        if type(value) is int and value in span:
            return value
        raise Unfit

    return fit


def _only(*kinds: type) -> Callable[[object], object]:
    def fit(value: object) -> object:
        if type(value) in kinds:
            return value
        raise Unfit

    return fit


def _float64(value: object) -> object:
    if type(value) is float:
        return value
    # A whole number is the same number as a float, up to 2^53 and here and there beyond.
    if type(value) is int and abs(value) < 2**1023 and float(value) == value:
        return float(value)
    raise Unfit


def _float32(value: object) -> object:
    number = _float64(value)
    assert isinstance(number, float)
    try:
        short: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError as error:
        raise Unfit from error
    if short == number or number != number:
        return number
    raise Unfit


def _decimal(value: object) -> object:
    text = numeric_text(value)
    if text is None:
        raise Unfit
    number = Decimal(text)
    exponent = number.as_tuple().exponent
    # Arrow rescales over more than 38 digits to zero, and says nothing.
    if isinstance(exponent, int) and exponent < -_MOST_DIGITS:
        digits = number.as_tuple().digits[exponent + _MOST_DIGITS :]
        if any(digits):
            raise Unfit
        number = Decimal(format(number, f".{_MOST_DIGITS}f"))
    return number


def _numeric(value: object) -> object:
    text = numeric_text(value)
    if text is None:
        raise Unfit
    return text


def _text(value: object) -> object:
    if type(value) is not str:
        raise Unfit
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Unfit from error
    return value


def _bytes(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Unfit


def _text_bytes(value: object) -> object:
    return text_bytes(value) if isinstance(value, str) else _bytes(value)


def _uuid(value: object) -> object:
    if isinstance(value, UUID):
        return value.bytes
    raise Unfit


def _date(value: object) -> object:
    if type(value) is date:
        return value.toordinal() - _DAY_ZERO
    if isinstance(value, BeyondDate) and MIN_INT32 <= value.days <= MAX_INT32:
        return value.days
    raise Unfit


def _timestamp(value: object) -> object:
    if isinstance(value, datetime) and value.tzinfo is None:
        return (value - _EPOCH) // _MICRO
    return _beyond(value, utc=False)


def _timestamptz(value: object) -> object:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH_UTC) // _MICRO
    return _beyond(value, utc=True)


def _beyond(value: object, *, utc: bool) -> object:
    if (
        isinstance(value, BeyondTimestamp)
        and value.utc == utc
        and MIN_INT64 <= value.micros <= MAX_INT64
    ):
        return value.micros
    raise Unfit


def _time(value: object) -> object:
    if isinstance(value, time) and value.tzinfo is None:
        return _of_day(value)
    if isinstance(value, BeyondTime) and value.micros == MICROS_PER_DAY:
        return value.micros
    raise Unfit


def _timetz(value: object) -> object:
    if isinstance(value, time) and (offset := value.utcoffset()) is not None:
        if offset.microseconds:
            raise Unfit
        return {"us": _of_day(value), "offset": int(offset.total_seconds())}
    if isinstance(value, OffsetTime) and 0 <= value.micros <= MICROS_PER_DAY:
        return {"us": value.micros, "offset": _integer(32)(value.offset)}
    raise Unfit


def _of_day(value: time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _interval(value: object) -> object:
    if not isinstance(value, Interval):
        raise Unfit
    short, long = _integer(32), _integer(64)
    return {
        "months": short(value.months),
        "days": short(value.days),
        "us": long(value.micros),
    }


def _variant(value: object) -> object:
    kind = VARIANT.get(type(value))
    if kind is None:
        raise Unfit
    if kind == 1:
        _integer(64)(value)
    elif kind == 3:
        _text(value)
    return {"kind": kind, _VARIANT_FIELD[kind]: value}


PHYSICAL: Final[Mapping[str, Callable[[object], object]]] = {
    "int16": _integer(16),
    "int32": _integer(32),
    "int64": _integer(64),
    "float32": _float32,
    "float64": _float64,
    "boolean": _only(bool),
    "decimal": _decimal,
    "numeric": _numeric,
    "text": _text,
    "json": _text,
    "bytes": _bytes,
    "text_bytes": _text_bytes,
    "uuid": _uuid,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "time": _time,
    "timetz": _timetz,
    "interval": _interval,
    "variant": _variant,
}

_QUICK: Final[Mapping[str, frozenset[type]]] = {
    "int16": frozenset({int, type(None)}),
    "int32": frozenset({int, type(None)}),
    "int64": frozenset({int, type(None)}),
    "float64": frozenset({float, type(None)}),
    "boolean": frozenset({bool, type(None)}),
    "text": frozenset({str, type(None)}),
    "json": frozenset({str, type(None)}),
    "bytes": frozenset({bytes, type(None)}),
    "text_bytes": frozenset({bytes, type(None)}),
}
_VARIANTS: Final = frozenset({*VARIANT, type(None)})


def quickly(kind: str, shape: pa.DataType, values: Sequence[object]) -> pa.Array | None:
    """Return the column if all its values are of the kind's own type and fit; else None."""
    types = set(map(type, values))
    try:
        if types <= _QUICK.get(kind, frozenset()):
            return pa.array(values, shape)
        if kind == "variant" and types <= _VARIANTS:
            return _variants(values, types)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        pass  # One of them does not fit; which one is found value by value.
    return None


def _variants(values: Sequence[object], types: set[type]) -> pa.Array:
    shape = SHAPES["variant"]
    kinds = [VARIANT.get(type(value)) for value in values]
    children = [pa.array(kinds, pa.int8())]
    for of, kind in VARIANT.items():
        field = shape.field(_VARIANT_FIELD[kind]).type
        if of in types:
            column = [
                value if at == kind else None for value, at in zip(values, kinds, strict=True)
            ]
            children.append(pa.array(column, field))
        else:
            children.append(pa.nulls(len(values), field))
    return pa.StructArray.from_arrays(children, fields=list(shape), mask=children[0].is_null())


# --- from what Arrow holds to the value at the edge -----------------------------------------


def _to_date(value: Any) -> object:
    if type(value) is not int:
        return value
    return date.fromordinal(value + _DAY_ZERO) if value in _DAYS else BeyondDate(value)


def _to_timestamp(value: Any) -> object:
    if type(value) is not int:
        return value
    return _EPOCH + timedelta(microseconds=value) if value in _MICROS else BeyondTimestamp(value)


def _to_timestamptz(value: Any) -> object:
    if type(value) is not int:
        return value.replace(tzinfo=UTC)
    if value in _MICROS:
        return _EPOCH_UTC + timedelta(microseconds=value)
    return BeyondTimestamp(value, utc=True)


def _to_time(value: Any) -> object:
    if value == MICROS_PER_DAY:
        return BeyondTime()
    seconds, micros = divmod(value, 1_000_000)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, micros)


def _to_timetz(value: Any) -> object:
    return OffsetTime(value["us"], value["offset"])


def _to_interval(value: Any) -> object:
    return Interval(value["months"], value["days"], value["us"])


def _to_variant(value: Any) -> object:
    return value[_VARIANT_FIELD[value["kind"]]]


def _to_uuid(value: Any) -> object:
    return UUID(bytes=value)


EDGES: Final[Mapping[str, Callable[[object], object]]] = {
    "numeric": Decimal,  # type: ignore[dict-item]
    "uuid": _to_uuid,
    "date": _to_date,
    "timestamp": _to_timestamp,
    "timestamptz": _to_timestamptz,
    "time": _to_time,
    "timetz": _to_timetz,
    "interval": _to_interval,
    "variant": _to_variant,
}
