"""
The one value mapping: from a source's value to Arrow, and to a value at the edge (S6).

Each column has one type, whichever path its values came by: baseline or stream. A
`ValueType` says how it is stored in a segment, and therefore what Spark sees. The
physical type alone cannot always express it; then the field has a marker under
`headrace` in its metadata.

| kind | in the segment | at the edge |
|---|---|---|
| int16 int32 int64, float32 float64, boolean | the same | int, float, bool |
| decimal(p,s), p up to 38 | decimal128 | Decimal |
| numeric | canonical text | Decimal, NaN and infinities too |
| text, json | utf8 | str; json as its exact text |
| bytes, text_bytes | binary | bytes; text_bytes is text that need not be UTF-8 |
| uuid | 16 bytes | UUID |
| date | date32 | date, or BeyondDate |
| timestamp, timestamptz | timestamp(us), with UTC | datetime, or BeyondTimestamp |
| time | int64 microseconds | time, or BeyondTime |
| timetz, interval | structs | OffsetTime, Interval |
| variant | struct of kind and four values | int, float, str or bytes |
| arrow(…) | the type that Spark made | as Arrow returns it |

A value that a column cannot hold exactly becomes null there, and its exact text is kept: never
an approximation (invariant 6), and never an error, since data must not be able to stop a
recorder (R23f). Types are strict: a column of whole numbers does not accept 1.0, because it is
unknown why the source sent it.

A database has times that Python's `datetime` cannot express: infinity, years before Christ and
after 9999, a day that ends at 24:00, times with an offset and intervals of months. On disk each
is the same integer as an ordinary time of its kind; at the edge it is a value of a type of its
own, never an approximation in `datetime` (invariant 6). Their texts are those of PostgreSQL in
ISO style.

The exact text of an unrepresentable value (R23f) must still distinguish text from number and
number from bytes: `12` in a column of whole numbers is a fact, `'12'` there is a mistake at the
source that should be visible. So the text is an SQL literal, except that a text that cannot be
mistaken for another literal is written without quotes.

`PHYSICAL` converts a value into what the column stores, or raises `Unfit`; `EDGES` converts it
back. `quickly` is for the usual case, a column whose values are all of the kind's own type: then
Arrow converts them at once.

Long because the two conversions of every kind of value are together.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache
from math import isfinite
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from headrace.errors import BadSchema

# --- times beyond datetime ------------------------------------------------------------------------

MICROS_PER_DAY: Final = 86_400_000_000
MIN_INT32, MAX_INT32 = -(2**31), 2**31 - 1
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
"""The smallest and largest stored integers mean minus and plus infinity."""


@dataclass(frozen=True, order=True, slots=True)
class BeyondDate:
    """A date before year 1 or after 9999, or at infinity."""

    days: int
    """Since 1970-01-01; the ends of 32 bits are the infinities."""

    @property
    def infinite(self) -> bool:
        """Whether this is an infinity and not a day."""
        return self.days in (MIN_INT32, MAX_INT32)

    def __str__(self) -> str:
        if self.infinite:
            return _infinity(self.days)
        day, era = _civil(self.days)
        return day + era


@dataclass(frozen=True, order=True, slots=True)
class BeyondTimestamp:
    """An instant before year 1 or after 9999, or at infinity."""

    micros: int
    """Since 1970-01-01 00:00; the ends of 64 bits are the infinities."""

    utc: bool = False
    """Whether it is an instant in time (timestamptz), not a local clock time."""

    @property
    def infinite(self) -> bool:
        """Whether this is an infinity and not an instant."""
        return self.micros in (MIN_INT64, MAX_INT64)

    def __str__(self) -> str:
        if self.infinite:
            return _infinity(self.micros)
        days, rest = divmod(self.micros, MICROS_PER_DAY)
        day, era = _civil(days)
        return f"{day} {_clock(rest)}{'+00' if self.utc else ''}{era}"


@dataclass(frozen=True, order=True, slots=True)
class BeyondTime:
    """The end of a day, 24:00, which is not the beginning of the next."""

    micros: int = MICROS_PER_DAY

    def __str__(self) -> str:
        return _clock(self.micros)


@dataclass(frozen=True, slots=True)
class OffsetTime:
    """A time of day with an offset from UTC, as SQL's `time with time zone` has it."""

    micros: int
    """Since midnight, up to and including 24:00."""

    offset: int
    """Seconds east of UTC."""

    def __str__(self) -> str:
        sign = "-" if self.offset < 0 else "+"
        minutes, seconds = divmod(abs(self.offset), 60)
        tail = f":{seconds:02}" if seconds else ""
        return f"{_clock(self.micros)}{sign}{minutes // 60:02}:{minutes % 60:02}{tail}"


@dataclass(frozen=True, slots=True)
class Interval:
    """Months, days and microseconds: three numbers, because a month has no fixed length."""

    months: int = 0
    days: int = 0
    micros: int = 0

    def __str__(self) -> str:
        if self in (_FOREVER, _NEVER):
            return _infinity(self.micros)
        sign = "-" if self.micros < 0 else ""
        return f"{self.months} mons {self.days} days {sign}{_clock(abs(self.micros))}"


_FOREVER = Interval(MAX_INT32, MAX_INT32, MAX_INT64)
_NEVER = Interval(MIN_INT32, MIN_INT32, MIN_INT64)


def _infinity(number: int) -> str:
    return "infinity" if number > 0 else "-infinity"


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    return f"{text}.{fraction:06}" if fraction else text


def _civil(days: int) -> tuple[str, str]:
    """Return the day in the Gregorian calendar, which repeats every 400 years, and its era."""
    # Counted from 1 March of year 0, so that the leap day is a year's last.
    era, day = divmod(days + 719_468, 146_097)
    year_of_era = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year_of_era + year_of_era // 4 - year_of_era // 100
    month = (5 * day + 2) // 153
    day_of_month = day - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = 400 * era + year_of_era + (month <= 2)
    # There is no year 0: it is 1 BC.
    shown, suffix = (year, "") if year > 0 else (1 - year, " BC")
    return f"{shown:04}-{month:02}-{day_of_month:02}", suffix


# --- the exact text of a value, and reading it back -----------------------------------------------

_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(inf|nan)", re.I)
_BYTES = re.compile(r"X'([0-9A-F]*)'")
_BROKEN = re.compile(r"cast\(X'([0-9A-F]*)' as text\)")
_WORDS = {"true": True, "false": False}


def exact_text(value: object) -> str:
    """Return a text that identifies the value: most texts themselves, otherwise a literal."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            # Not UTF-8 at the source; the exact text always is.
            return f"cast(X'{text_bytes(value).hex().upper()}' as text)"
        if from_exact(value) == value:
            return value
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"X'{bytes(value).hex().upper()}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Through Decimal: Python refuses to print an int of more than 4,300 digits.
        return format(Decimal(value), "f")
    if isinstance(value, Decimal):
        return numeric_text(value) or str(value)
    return str(value)


def from_exact(text: str) -> object:
    """Return the number, bytes, truth value or text that `text` represents."""
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if match := _BYTES.fullmatch(text):
        return bytes.fromhex(match[1])
    if match := _BROKEN.fullmatch(text):
        return bytes.fromhex(match[1]).decode(errors="surrogateescape")
    if _INTEGER.fullmatch(text):
        return int(Decimal(text))
    if _NUMBER.fullmatch(text):
        number = float(text)
        if str(number) == text or not isfinite(number):
            return number
        try:
            # A text that differs from its float's has more digits than a float can hold.
            return Decimal(text)
        except InvalidOperation:
            return number  # its exponent has too many digits for a Decimal
    return _WORDS.get(text, text)


def text_bytes(text: str) -> bytes:
    """Return the bytes of a text that may contain bytes encoded as lone surrogates."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


_NUMERIC = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,9})?")
_SPECIAL = {"nan": "NaN", "infinity": "Infinity", "-infinity": "-Infinity"}
_PLAIN = range(-16_383, 131_073)
"""Exponents written out as digits: those of PostgreSQL's numeric; this limits the text."""


def numeric_text(value: object) -> str | None:
    """Return the canonical text of a number of any size, or None if it is not a number."""
    if type(value) is int:
        value = Decimal(value)
    elif isinstance(value, str):
        if special := _SPECIAL.get(value.lower()):
            return special
        # Decimal accepts underscores, blanks and the digits of every script; sources do not.
        if _NUMERIC.fullmatch(value) is None:
            return None
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    if not isinstance(value, Decimal):
        return None
    if not value.is_finite():
        text = str(value)
        return text if text in _SPECIAL.values() else None
    exponent = value.as_tuple().exponent
    plain = value.adjusted() in _PLAIN and isinstance(exponent, int) and exponent in _PLAIN
    return format(value, "f") if plain else str(value)


# --- each kind's type in Arrow --------------------------------------------------------------------

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
"""Arrow's type for each kind, except decimal, whose type has its precision and scale."""

MARKED: Final = frozenset(
    {"numeric", "json", "text_bytes", "uuid", "time", "timetz", "interval", "variant"}
)
"""Kinds that share Arrow's type with another kind, so that the field needs a marker."""

VARIANT: Final[Mapping[type, int]] = {int: 1, float: 2, str: 3, bytes: 4}
"""The kinds of a variant, by SQLite's own numbers; null has none."""

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


# --- converting a value to what the column stores -------------------------------------------------


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
    # A whole number up to 2^53, and some beyond, is exact as a float.
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
    # Arrow silently rescales over more than 38 digits to zero.
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
    """Return the column if all its values are of the kind's own type and fit; otherwise None."""
    types = set(map(type, values))
    try:
        if types <= _QUICK.get(kind, frozenset()):
            return pa.array(values, shape)
        if kind == "variant" and types <= _VARIANTS:
            return _variants(values, types)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        pass  # One of them does not fit; reading value by value finds it.
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


# --- converting what Arrow holds to the value at the edge -----------------------------------------


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


# --- the type of a column -------------------------------------------------------------------------

Unrepresentable: TypeAlias = list[tuple[int, str]]
"""Index and exact text of the values that a column cannot hold."""

_TEXT = re.compile(r"([a-z0-9_]+)(?:\((.*)\))?")
MARK = b"headrace"
"""The key of a field's marker; its value is the type's text."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a column, in the log's terms."""

    kind: str
    precision: int = 0
    scale: int = 0
    other: pa.DataType | None = None
    """For the kind `arrow`: a type that a pipeline's expression made."""

    def __post_init__(self) -> None:
        if self.kind == "decimal":
            if not (1 <= self.precision <= 38 and 0 <= self.scale <= self.precision):
                raise BadSchema(
                    "A decimal must have a precision of 1 to 38, and a scale of 0 to its precision",
                    precision=self.precision,
                    scale=self.scale,
                )
        elif self.kind not in SHAPES and (self.kind != "arrow" or self.other is None):
            raise BadSchema("Unknown kind of value", kind=self.kind)

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column in a segment."""
        if self.kind == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return SHAPES[self.kind] if self.other is None else self.other

    def field(self, name: str) -> pa.Field:
        """Return the field of a column, with a marker if Arrow's type is ambiguous."""
        mark = {MARK: str(self).encode()} if self.kind in MARKED else None
        return pa.field(name, self.arrow, metadata=mark)

    def to_arrow(self, values: Sequence[object]) -> tuple[pa.Array, Unrepresentable]:
        """Return the values as a column, None as null; unrepresentable ones become null, too."""
        # Most columns are of one Python type; for them only the types are checked.
        if (array := quickly(self.kind, self.arrow, values)) is not None:
            return array, []
        physical = PHYSICAL.get(self.kind)
        ready: list[object] = []
        unrepresentable: Unrepresentable = []
        for index, value in enumerate(values):
            try:
                fit = None if value is None else self._fit(physical, value)
            except Unfit:
                unrepresentable.append((index, exact_text(value)))
                fit = None
            ready.append(fit)
        return pa.array(ready, self.arrow), unrepresentable

    def _fit(self, physical: Callable[[object], object] | None, value: object) -> object:
        fit = physical(value) if physical else value
        if self.kind in ("decimal", "arrow"):
            # Arrow itself determines whether it fits.
            try:
                pa.array([fit], self.arrow)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise Unfit from error
        return fit

    def decoder(self) -> Callable[[object], object] | None:
        """
        Return a function from what Arrow holds to the value at the edge; None if it is the same.

        It takes the result of `as_py`, and for dates and times also the stored integer: `as_py`
        fails on an infinity, and is slow on an instant. It does not accept nulls.
        """
        return EDGES.get(self.kind)

    def from_arrow(self, array: pa.Array | pa.ChunkedArray) -> list[object]:
        """Return the values at the edge; null becomes None."""
        if self.kind in ("timestamp", "timestamptz"):
            array = array.cast(pa.int64())
        elif self.kind == "date":
            array = array.cast(pa.int32())
        values: list[object] = array.to_pylist()
        if (decode := self.decoder()) is None:
            return values
        return [None if value is None else decode(value) for value in values]

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.other is None:
            return self.kind
        schema = pa.schema([pa.field("", self.other)]).serialize()
        return f"arrow({base64.b64encode(schema).decode()})"

    @classmethod
    def parse(cls, text: str) -> ValueType:
        """Read back what `str()` wrote; anything else raises `BadSchema`."""
        return _parse(text)

    @classmethod
    def of_arrow(cls, type: pa.DataType) -> ValueType:
        """Return the type of a column that an expression made, by its Arrow type alone."""
        if pa.types.is_decimal128(type) and 0 <= type.scale <= type.precision:
            return cls("decimal", type.precision, type.scale)
        for kind, shape in SHAPES.items():
            if kind not in MARKED and shape == type:
                return cls(kind)
        return cls("arrow", other=type)

    @classmethod
    def of_field(cls, field: pa.Field) -> ValueType:
        """Return the type of a field that may have a marker."""
        mark = (field.metadata or {}).get(MARK)
        return cls.of_arrow(field.type) if mark is None else cls.parse(mark.decode())


@cache
def _parse(text: str) -> ValueType:
    match = _TEXT.fullmatch(text)
    try:
        if match is None:
            raise BadSchema("Text is not a type", text=text)
        kind, inner = match.groups()
        if kind == "decimal":
            precision, scale = (inner or "").split(",")
            return ValueType(kind, int(precision), int(scale))
        if kind == "arrow":
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(inner or "")))
            return ValueType(kind, other=schema.field(0).type)
        if inner is not None:
            raise BadSchema("Text is not a type", text=text)
        return ValueType(kind)
    except (ValueError, pa.ArrowException) as error:
        raise BadSchema("Text is not a type", text=text) from error
