"""
Values of every kind as Python has them, and as PostgreSQL writes them: as text and in binary.

Written from PostgreSQL's documentation and sources, not from the code under test; that both
agree with a real server is what `test_types_on_a_server.py` shows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from headrace.changelog.values import (
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
    ValueType,
)

DAYS_TO_2000 = 10_957
MICROS_TO_2000 = DAYS_TO_2000 * MICROS_PER_DAY
FIRST_DAY = -2_440_588 + 1  # 4713-11-24 BC in this calendar
LAST_DAY = 2_145_031_948  # 5874897-12-31


@dataclass(frozen=True)
class Kind:
    """One kind of column."""

    type: ValueType
    values: st.SearchStrategy[Any]
    text: Callable[[Any], str | bytes]
    binary: Callable[[Any], bytes]

    def __repr__(self) -> str:
        return str(self.type)


def packed(shape: str) -> Callable[[Any], bytes]:
    return lambda value: struct.pack(shape, value)


def float_text(value: float, size: str = "d") -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if size == "f":
        return str(np.float32(value))
    text = repr(value)
    return text.removesuffix(".0")


def clock_text(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def days_of(value: date | BeyondDate) -> int:
    if isinstance(value, BeyondDate):
        return value.days
    return value.toordinal() - date(1970, 1, 1).toordinal()


def micros_of(value: datetime | BeyondTimestamp) -> int:
    if isinstance(value, BeyondTimestamp):
        return value.micros
    zero = datetime(1970, 1, 1, tzinfo=value.tzinfo)
    return (value - zero) // timedelta(microseconds=1)


def date_binary(value: date | BeyondDate) -> bytes:
    days = days_of(value)
    return struct.pack(">i", days if days in (MIN_INT32, MAX_INT32) else days - DAYS_TO_2000)


def timestamp_text(value: datetime | BeyondTimestamp) -> str:
    micros = micros_of(value)
    if micros in (MIN_INT64, MAX_INT64):
        return "infinity" if micros > 0 else "-infinity"
    days, rest = divmod(micros, MICROS_PER_DAY)
    utc = value.utc if isinstance(value, BeyondTimestamp) else value.tzinfo is not None
    day, *era = str(BeyondDate(days)).split(" ")
    return " ".join([day, clock_text(rest) + ("+00" if utc else ""), *era])


def timestamp_binary(value: datetime | BeyondTimestamp) -> bytes:
    micros = micros_of(value)
    infinite = micros in (MIN_INT64, MAX_INT64)
    return struct.pack(">q", micros if infinite else micros - MICROS_TO_2000)


def time_micros(value: time | BeyondTime) -> int:
    if isinstance(value, BeyondTime):
        return value.micros
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def offset_text(value: OffsetTime) -> str:
    sign = "-" if value.offset < 0 else "+"
    minutes, seconds = divmod(abs(value.offset), 60)
    hours, minutes = divmod(minutes, 60)
    tail = f":{minutes:02}:{seconds:02}" if seconds else f":{minutes:02}" if minutes else ""
    return f"{clock_text(value.micros)}{sign}{hours:02}{tail}"


def interval_text(value: Interval) -> str:
    """Follow `EncodeInterval` for the style `postgres`."""
    if value == Interval(MAX_INT32, MAX_INT32, MAX_INT64):
        return "infinity"
    if value == Interval(MIN_INT32, MIN_INT32, MIN_INT64):
        return "-infinity"
    parts: list[str] = []
    negative = False
    years = abs(value.months) // 12 * (-1 if value.months < 0 else 1)
    for number, unit in ((years, "year"), (value.months - 12 * years, "mon"), (value.days, "day")):
        if number:
            plus = "+" if negative and number > 0 else ""
            parts.append(f"{plus}{number} {unit}{'' if number == 1 else 's'}")
            negative = number < 0
    if value.micros or not parts:
        sign = "-" if value.micros < 0 else "+" if negative else ""
        parts.append(sign + clock_text(abs(value.micros)))
    return " ".join(parts)


def numeric_binary(value: Decimal) -> bytes:
    if not value.is_finite():
        sign = 0xC000 if value.is_nan() else 0xD000 if value > 0 else 0xF000
        return struct.pack(">HhHH", 0, 0, sign, 0)
    minus, _, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    whole, _, fraction = format(value.copy_abs(), "f").partition(".")
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[at : at + 4]) for at in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups, weight = groups[1:], weight - 1
    while groups and groups[-1] == 0:
        groups = groups[:-1]
    weight, minus = (weight, minus) if groups else (0, 0)
    head = struct.pack(">HhHH", len(groups), weight, 0x4000 if minus else 0, scale)
    return head + struct.pack(f">{len(groups)}H", *groups)


def numeric_text_of(value: Decimal) -> str:
    return format(value, "f") if value.is_finite() else str(value)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    exact = st.integers(-most, most).map(lambda n: _scaled(n, scale))
    return exact | st.sampled_from([Decimal("NaN"), _scaled(0, scale), _scaled(most, scale)])


def _scaled(number: int, scale: int) -> Decimal:
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -scale))


def decimal_kind(precision: int, scale: int) -> Kind:
    type = ValueType("decimal", precision, scale)
    return Kind(type, decimals(precision, scale), numeric_text_of, numeric_binary)


def _numerics() -> st.SearchStrategy[Decimal]:
    def number(sign: bool, digits: int, scale: int) -> Decimal:
        return _scaled(-digits if sign else digits, scale)

    small = st.builds(number, st.booleans(), st.integers(0, 10**12), st.integers(0, 14))
    large = st.builds(number, st.booleans(), st.integers(0, 10**90), st.integers(0, 80))
    huge = st.builds(
        lambda power, scale: Decimal(
            "7" + "0" * power + "3" + ("." + "0" * scale if scale else "")
        ),
        st.integers(0, 5000),
        st.integers(0, 2000),
    )
    special = st.sampled_from([Decimal(text) for text in ("NaN", "Infinity", "-Infinity", "0.00")])
    return (small | large | huge | special).map(lambda d: d.copy_abs() if d.is_zero() else d)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_DATES: st.SearchStrategy[object] = (
    st.dates()
    | st.sampled_from([BeyondDate(MIN_INT32), BeyondDate(MAX_INT32)])
    | st.integers(FIRST_DAY, -719_163).map(BeyondDate)
    | st.integers(2_932_897, LAST_DAY).map(BeyondDate)
)


def _timestamps(utc: bool) -> st.SearchStrategy[object]:
    zone = UTC if utc else None
    plain = st.datetimes(timezones=st.just(zone) if zone else st.none())
    beyond = (
        st.sampled_from([MIN_INT64, MAX_INT64, MAX_INT64 - 1])
        | st.integers(FIRST_DAY * MICROS_PER_DAY, -719_163 * MICROS_PER_DAY)
        | st.integers(2_932_897 * MICROS_PER_DAY, MAX_INT64 - 1)
    )
    whole = plain.map(lambda value: value.replace(microsecond=0))
    return plain | whole | beyond.map(lambda micros: BeyondTimestamp(micros, utc))


_OF_DAY = st.integers(0, MICROS_PER_DAY) | st.integers(0, 86_400).map(lambda s: s * 1_000_000)
_INT32 = st.integers(MIN_INT32, MAX_INT32)

KINDS = [
    Kind(ValueType("int16"), st.integers(-(2**15), 2**15 - 1), str, packed(">h")),
    Kind(ValueType("int32"), _INT32, str, packed(">i")),
    Kind(ValueType("int64"), st.integers(MIN_INT64, MAX_INT64), str, packed(">q")),
    Kind(
        ValueType("float32"),
        st.floats(width=32),
        lambda value: float_text(value, "f"),
        packed(">f"),
    ),
    Kind(ValueType("float64"), st.floats(), float_text, packed(">d")),
    Kind(ValueType("boolean"), st.booleans(), lambda v: "t" if v else "f", packed(">?")),
    Kind(ValueType("numeric"), _numerics(), numeric_text_of, numeric_binary),
    Kind(ValueType("text"), _TEXTS, str, str.encode),
    Kind(ValueType("json"), _TEXTS, str, lambda value: b"\x01" + value.encode()),
    Kind(ValueType("bytes"), st.binary(), lambda value: "\\x" + value.hex(), bytes),
    Kind(ValueType("uuid"), st.uuids(), str, lambda value: value.bytes),
    Kind(ValueType("date"), _DATES, str, date_binary),
    Kind(ValueType("timestamp"), _timestamps(False), timestamp_text, timestamp_binary),
    Kind(ValueType("timestamptz"), _timestamps(True), timestamp_text, timestamp_binary),
    Kind(
        ValueType("time"),
        _OF_DAY.map(lambda m: BeyondTime() if m == MICROS_PER_DAY else _time(m)),
        lambda value: clock_text(time_micros(value)),
        lambda value: struct.pack(">q", time_micros(value)),
    ),
    Kind(
        ValueType("timetz"),
        st.builds(OffsetTime, _OF_DAY, st.integers(-57_599, 57_599)),
        offset_text,
        lambda value: struct.pack(">qi", value.micros, -value.offset),
    ),
    Kind(
        ValueType("interval"),
        st.builds(Interval, _INT32, _INT32, st.integers(MIN_INT64, MAX_INT64))
        | st.builds(Interval, st.integers(-30, 30), st.integers(-9, 9), st.integers(-9, 10**8))
        | st.sampled_from(
            [
                Interval(),
                Interval(MAX_INT32, MAX_INT32, MAX_INT64),
                Interval(MIN_INT32, MIN_INT32, MIN_INT64),
            ]
        ),
        interval_text,
        lambda value: struct.pack(">qii", value.micros, value.days, value.months),
    ),
    *(decimal_kind(p, s) for p, s in ((10, 2), (1, 0), (4, 4), (17, 3), (18, 0), (20, 7), (38, 0))),
    *(decimal_kind(p, s) for p, s in ((38, 38), (38, 10), (37, 5), (9, 1), (3, 3))),
]


def _time(micros: int) -> time:
    seconds, fraction = divmod(micros, 1_000_000)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, fraction)


def column(values: list[bytes | None], before: int = 0) -> pa.Array:
    """Return a binary column that is a slice of a longer one."""
    longer = [b"\xff-not-ours"] * before + list(values) + [b"\xfe"] * before
    return pa.array(longer, pa.binary()).slice(before, len(values))


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def plain(array: pa.Array) -> str:
    """Return what a column holds as text: there NaN equals NaN, and -0.0 is not 0.0."""
    array.validate(full=True)
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    return f"{array.type} {array.to_pylist()}"
