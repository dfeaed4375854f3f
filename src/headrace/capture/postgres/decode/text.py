"""
Decodes columns of PostgreSQL's texts, as the stream sends them, into columns of the log.

The texts are those of a session with R18's settings: ISO dates, UTC, shortest exact floats, bytea
in hex. A text that is not valid for its type, or that its column cannot hold, becomes null, and
its exact text is reported with its row: data must not be able to stop a recorder (R23f). JSON is
not parsed: its exact text is its value.

A column's bytes are seen as numpy arrays, and its values are read in two ways. Nearly all values
look alike and are read at once. The others are read one by one, each distinct one only once, so
that an `infinity` in every other row costs no more than none. A reader gets a column without nulls
and returns null for a value that the column's type cannot hold; the value is then found by its row.

For dates and times in ISO style, `read_…` reads the usual format of a whole column at once and
returns which rows have it. `parse_…` reads any single text that PostgreSQL writes, including
infinities, years before Christ and beyond 9999, 24:00, and offsets other than UTC's. It returns
None for anything else.

Long because every type has its reader of whole columns next to its reader of single values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
    Unrepresentable,
    ValueType,
    exact_text,
    numeric_text,
)
from headrace.errors import BadSchema

# --- the two ways to read a column ----------------------------------------------------------------

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Reader: TypeAlias = Callable[[ValueType, pa.Array], pa.Array]

CHUNK = 1 << 15
"""Rows that numpy works on at once, so that its many small steps stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The bytes of a column without nulls, and the start and length of each value."""

    data: Bytes
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, values: pa.Array) -> Cells:
        """Return the cells of a binary column, which may be a slice of another."""
        offsets, data = _parts(values)
        if not len(offsets):
            return cls(data, np.empty(0, np.int64), np.empty(0, np.int64))
        starts = offsets[:-1].astype(np.int64) - int(offsets[0])
        return cls(data, starts, np.diff(offsets).astype(np.int64))

    def part(self, begin: int) -> Cells:
        """Return a chunk of the rows, from `begin` on."""
        rows = slice(begin, begin + CHUNK)
        return Cells(self.data, self.starts[rows], self.lengths[rows])

    def at(self, offset: int | Ints) -> Bytes:
        """Return one byte of each value; an unrelated byte if the value is shorter."""
        if not len(self.data):
            return np.zeros(len(self.starts), np.uint8)
        return self.data.take(self.starts + offset, mode="clip")


def content(values: pa.Array) -> Bytes:
    """Return the bytes of all values of a binary column, one after the other."""
    return _parts(values)[1]


def _parts(values: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Return the offsets of the values, none for an empty column, and the bytes of all values."""
    _, offset_buffer, data = values.buffers()
    count = len(values)
    if count == 0 or offset_buffer is None:
        return np.empty(0, np.int32), np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * values.offset)
    first, last = int(offsets[0]), int(offsets[-1])
    if data is None or last <= first:
        return offsets, np.empty(0, np.uint8)
    return offsets, np.frombuffer(data, np.uint8, last - first, first)


def read(
    type: ValueType, values: pa.Array, reader: Reader, exact: Callable[[ValueType, bytes], str]
) -> tuple[pa.Array, Unrepresentable]:
    """Return the column as `reader` reads it, and the `exact` texts of what it cannot hold."""
    nulls = values.null_count
    dense = values.drop_null() if nulls else values
    array = reader(type, dense)
    unrepresentable: Unrepresentable = []
    rows: npt.NDArray[Any] = np.arange(0)
    if nulls:
        valid = np.asarray(values.is_valid())
        rows = np.flatnonzero(valid)
    if array.null_count:
        for row in np.flatnonzero(np.asarray(array.is_null())).tolist():
            index = int(rows[row]) if nulls else row
            unrepresentable.append((index, exact(type, dense[row].as_py())))
    return spread(array, valid) if nulls else array, unrepresentable


def spread(array: pa.Array, here: Mask) -> pa.Array:
    """Return a column with the values where `here` is true, in order, and null elsewhere."""
    return array.take(pa.array(np.cumsum(here) - 1, mask=~here))


def parse_others(
    quick: pa.Array,
    good: Mask,
    values: pa.Array,
    parse: Callable[[bytes], object],
    type: ValueType,
) -> pa.Array:
    """Return `quick`, with the rows that are not good parsed one by one; None becomes null."""
    if good.all():
        return quick
    bad = pa.array(~good)
    return pc.replace_with_mask(quick, bad, each(values.filter(bad), parse, type))


def each(values: pa.Array, parse: Callable[[bytes], object], type: ValueType) -> pa.Array:
    """Return the values parsed one by one, equal ones only once."""
    distinct = values.dictionary_encode()
    parsed, _ = type.to_arrow([parse(raw) for raw in distinct.dictionary.to_pylist()])
    return parsed.take(distinct.indices)


def as_utf8(values: pa.Array) -> pa.Array:
    """Return a column of bytes as text; values that are not UTF-8 become null."""
    try:
        return values.cast(pa.utf8())
    except pa.ArrowInvalid:
        pass
    dense = Cells.of(values)
    high = np.flatnonzero(dense.data >= 0x80)
    rows = np.unique(np.searchsorted(dense.starts + dense.lengths, high, side="right"))
    good = np.ones(len(values), np.bool_)
    for row in rows.tolist():
        good[row] = _is_utf8(values[row].as_py() or b"")
    return pc.if_else(pa.array(good), values, pa.scalar(None, pa.binary())).cast(pa.utf8())


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- dates and times in ISO style -----------------------------------------------------------------

_DAY_ZERO: Final = date(1970, 1, 1).toordinal()
_MONTH_DAYS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_DAYS_BEFORE: Final = np.concatenate([[0], np.cumsum(_MONTH_DAYS)[:-1]])
_INFINITIES: Final = {b"infinity": 1, b"-infinity": -1}

_CLOCK = rb"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
_DAY = rb"([0-9]{4}|[1-9][0-9]{4,6})-([0-9]{2})-([0-9]{2})"
_OFFSET = rb"([-+])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?"
_DATE = re.compile(_DAY + rb"( BC)?")
_TIME = re.compile(_CLOCK)
_TIMETZ = re.compile(_CLOCK + _OFFSET)
_TIMESTAMP = re.compile(_DAY + rb" " + _CLOCK + rb"()()()()( BC)?")
_TIMESTAMPTZ = re.compile(_DAY + rb" " + _CLOCK + _OFFSET + rb"( BC)?")
_INTERVAL = re.compile(
    rb"(?:([-+]?[0-9]{1,10}) years?(?: |$))?"
    rb"(?:([-+]?[0-9]{1,10}) mons?(?: |$))?"
    rb"(?:([-+]?[0-9]{1,10}) days?(?: |$))?"
    rb"(?:([-+]?)([0-9]{2,10}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?)?"
)


# --- whole columns ---------------------------------------------------------------------------


def read_dates(cells: Cells) -> tuple[npt.NDArray[np.int32], Mask]:
    """Return days since 1970, and which rows are plain dates."""
    days = np.zeros(len(cells.starts), np.int32)
    good = np.zeros(len(days), np.bool_)
    for begin in range(0, len(days), CHUNK):
        part = cells.part(begin)
        rows = slice(begin, begin + CHUNK)
        days[rows], good[rows] = _days(part)
        good[rows] &= part.lengths == 10
    return days, good


def read_timestamps(cells: Cells, *, utc: bool) -> tuple[Ints, Mask]:
    """Return microseconds since 1970, and which rows are plain; with `utc`, they end in +00."""
    micros = np.zeros(len(cells.starts), np.int64)
    good = np.zeros(len(micros), np.bool_)
    for begin in range(0, len(micros), CHUNK):
        part = cells.part(begin)
        ends = part.lengths - 3 if utc else part.lengths
        days, fine = _days(part)
        clock, fine_clock = _clock(part, 11, ends)
        fine &= fine_clock & (part.at(10) == ord(" "))
        if utc:
            fine &= part.at(ends) == ord("+")
            fine &= (part.at(ends + 1) == ord("0")) & (part.at(ends + 2) == ord("0"))
        rows = slice(begin, begin + CHUNK)
        micros[rows] = days * MICROS_PER_DAY + clock
        good[rows] = fine
    return micros, good


def read_times(cells: Cells) -> tuple[Ints, Mask]:
    """Return microseconds since midnight, and which rows are plain times of day."""
    micros = np.zeros(len(cells.starts), np.int64)
    good = np.zeros(len(micros), np.bool_)
    for begin in range(0, len(micros), CHUNK):
        part = cells.part(begin)
        rows = slice(begin, begin + CHUNK)
        micros[rows], good[rows] = _clock(part, 0, part.lengths)
    return micros, good


def _two(cells: Cells, offset: int) -> tuple[Ints, Mask]:
    # Bytes below the digit 0 wrap around to large numbers.
    tens, ones = cells.at(offset) - ord("0"), cells.at(offset + 1) - ord("0")
    return tens.astype(np.int64) * 10 + ones, (tens <= 9) & (ones <= 9)


def _days(cells: Cells) -> tuple[Ints, Mask]:
    """Read YYYY-MM-DD at the beginning of each value."""
    century, good = _two(cells, 0)
    years, fine = _two(cells, 2)
    month, fine_month = _two(cells, 5)
    day, fine_day = _two(cells, 8)
    year = century * 100 + years
    good &= fine & fine_month & fine_day & (year >= 1)
    good &= (cells.at(4) == ord("-")) & (cells.at(7) == ord("-")) & (month >= 1) & (month <= 12)
    month = np.where(good, month, 1)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    good &= (day >= 1) & (day <= _MONTH_DAYS[month] + (leap & (month == 2)))
    past = year - 1
    ordinal = past * 365 + past // 4 - past // 100 + past // 400
    ordinal += _DAYS_BEFORE[month] + (leap & (month > 2)) + day
    return ordinal - _DAY_ZERO, good


def _clock(cells: Cells, offset: int, ends: Ints) -> tuple[Ints, Mask]:
    """Read HH:MM:SS, and a fraction of up to six digits before `ends`."""
    hour, good = _two(cells, offset)
    minute, fine_minute = _two(cells, offset + 3)
    second, fine_second = _two(cells, offset + 6)
    good &= fine_minute & fine_second & (hour <= 23) & (minute <= 59) & (second <= 59)
    good &= (cells.at(offset + 2) == ord(":")) & (cells.at(offset + 5) == ord(":"))
    micros = (hour * 60 + minute) * 60 + second
    whole = ends == offset + 8
    if whole.all():
        return micros * 1_000_000, good
    point = cells.at(offset + 8) == ord(".")
    good &= whole | point & (ends >= offset + 10) & (ends <= offset + 15)
    for digit in range(offset + 9, offset + 15):
        there = ends > digit
        ones = np.where(there, cells.at(digit) - ord("0"), 0)
        good &= ones <= 9
        micros = micros * 10 + ones
    return micros, good


# --- one by one ------------------------------------------------------------------------------


def parse_date(raw: bytes) -> BeyondDate | None:
    """Read any date that PostgreSQL writes."""
    if sign := _INFINITIES.get(raw):
        return BeyondDate(MAX_INT32 if sign > 0 else MIN_INT32)
    match = _DATE.fullmatch(raw)
    days = None if match is None else _ordinal(*match.groups())
    return BeyondDate(days) if days is not None and MIN_INT32 < days < MAX_INT32 else None


def parse_timestamp(raw: bytes) -> BeyondTimestamp | None:
    """Read any timestamp without a zone; None also for one beyond 64 bits of microseconds."""
    return _instant(raw, _TIMESTAMP, utc=False)


def parse_timestamptz(raw: bytes) -> BeyondTimestamp | None:
    """Read any instant; None also for one beyond 64 bits of microseconds."""
    return _instant(raw, _TIMESTAMPTZ, utc=True)


def parse_time(raw: bytes) -> time | BeyondTime | None:
    """Read any time of day, including 24:00."""
    match = _TIME.fullmatch(raw)
    micros = None if match is None else _of_day(*match.groups())
    if micros is None or micros == MICROS_PER_DAY:
        return None if micros is None else BeyondTime()
    seconds, fraction = divmod(micros, 1_000_000)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, fraction)


def parse_timetz(raw: bytes) -> OffsetTime | None:
    """Read a time of day with its offset."""
    if (match := _TIMETZ.fullmatch(raw)) is None:
        return None
    micros, offset = _of_day(*match.groups()[:4]), _east(*match.groups()[4:])
    return None if micros is None or offset is None else OffsetTime(micros, offset)


def parse_interval(raw: bytes) -> Interval | None:
    """Read an interval in the style `postgres`."""
    if sign := _INFINITIES.get(raw):
        if sign > 0:
            return Interval(MAX_INT32, MAX_INT32, MAX_INT64)
        return Interval(MIN_INT32, MIN_INT32, MIN_INT64)
    if not raw or raw.endswith(b" ") or (match := _INTERVAL.fullmatch(raw)) is None:
        return None
    years, months, days, minus, hour, minute, second, fraction = match.groups()
    micros = 0
    if hour is not None:
        if int(minute) > 59 or int(second) > 59:
            return None
        micros = _micros(int(hour), int(minute), int(second), fraction)
    found = Interval(
        12 * int(years or 0) + int(months or 0),
        int(days or 0),
        -micros if minus == b"-" else micros,
    )
    # Three extreme numbers are how infinity is stored; no server writes it as numbers.
    ends = (MAX_INT32, MAX_INT32, MAX_INT64), (MIN_INT32, MIN_INT32, MIN_INT64)
    return None if (found.months, found.days, found.micros) in ends else found


def _instant(raw: bytes, shape: re.Pattern[bytes], *, utc: bool) -> BeyondTimestamp | None:
    if sign := _INFINITIES.get(raw):
        return BeyondTimestamp(MAX_INT64 if sign > 0 else MIN_INT64, utc)
    if (match := shape.fullmatch(raw)) is None:
        return None
    year, month, day, *rest, era = match.groups()
    days, clock = _ordinal(year, month, day, era), _of_day(*rest[:4])
    offset = _east(*rest[4:]) if utc else 0
    if days is None or clock is None or offset is None:
        return None
    micros = days * MICROS_PER_DAY + clock - offset * 1_000_000
    # PostgreSQL counts from 2000: its last 30 years are out of range when counted from 1970.
    return BeyondTimestamp(micros, utc) if MIN_INT64 < micros < MAX_INT64 else None


def _ordinal(year: bytes, month: bytes, day: bytes, era: bytes | None) -> int | None:
    """Return days since 1970; None if there is no such day."""
    full = int(year) if era is None else 1 - int(year)
    if (era is None and full < 1) or (era is not None and full > 0):
        return None
    # The calendar repeats every 400 years, so `date` can count the days of any year.
    cycles, within = divmod(full - 1, 400)
    try:
        there = date(within + 1, int(month), int(day))
    except ValueError:
        return None
    return cycles * 146_097 + there.toordinal() - _DAY_ZERO


def _of_day(hour: bytes, minute: bytes, second: bytes, fraction: bytes | None) -> int | None:
    if int(minute) > 59 or int(second) > 59:
        return None
    micros = _micros(int(hour), int(minute), int(second), fraction)
    return micros if micros <= MICROS_PER_DAY else None


def _micros(hour: int, minute: int, second: int, fraction: bytes | None) -> int:
    whole = (hour * 60 + minute) * 60 + second
    return whole * 1_000_000 + int((fraction or b"").ljust(6, b"0"))


def _east(sign: bytes, hours: bytes, minutes: bytes | None, seconds: bytes | None) -> int | None:
    minute, second = int(minutes or 0), int(seconds or 0)
    if minute > 59 or second > 59:
        return None
    offset = (int(hours) * 60 + minute) * 60 + second
    return -offset if sign == b"-" else offset


# --- columns from texts, type by type -------------------------------------------------------------

_SURE_DIGITS: Final = {"int16": 4, "int32": 9, "int64": 18}
"""A number with this many digits always fits."""

_BOOLEANS: Final = {b"t": True, b"true": True, b"f": False, b"false": False}
_NUMBERS: Final = frozenset({"int16", "int32", "int64", "float32", "float64", "decimal"})
_INTEGER = re.compile(rb"-?[0-9]{1,40}")
_FLOAT = re.compile(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|-?infinity|nan", re.I)
_FLOAT_SHAPE = r"^-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?$"
_NUMERIC_SHAPE = r"^(-?[0-9]+(\.[0-9]+)?|NaN|-?Infinity)$"
_EDGES: Final = pa.array([b"0", b"-0", b"NaN", b"Infinity", b"-Infinity"], pa.binary())
"""What PostgreSQL writes for the floats that numbers out of range are converted to as well."""

_NIBBLES: Final = np.full(256, 255, np.uint8)
for _digit in range(16):
    _NIBBLES[ord(f"{_digit:x}")] = _NIBBLES[ord(f"{_digit:X}")] = _digit

_YEAR_ONE: Final = -62_135_596_800_000_000
"""The first microsecond of year 1, since 1970. The year before is 1 BC, which Arrow calls 0."""

_UUID_HYPHENS: Final = (8, 13, 18, 23)
_UUID_DIGITS: Final = [offset for offset in range(36) if offset not in _UUID_HYPHENS]


def text_column(type: ValueType, values: pa.Array) -> tuple[pa.Array, Unrepresentable]:
    """
    Return a column of `type` from PostgreSQL's texts, and the values that it cannot hold.

    `values` is binary, null for NULL, and may be a slice. No bytes make it raise an error.
    """
    if (reader := _READERS.get(type.kind)) is None:
        raise BadSchema("PostgreSQL has no values of this kind", kind=type.kind)
    return read(type, values, reader, _exact)


def _exact(type: ValueType, raw: bytes) -> str:
    text = raw.decode(errors="surrogateescape")
    # A number in a column of numbers needs no quotes to distinguish it from a text.
    number = numeric_text(text) if type.kind in _NUMBERS else None
    return exact_text(text) if number is None else number


def _matching(values: pa.Array, shape: str) -> Mask:
    found: Mask = np.asarray(pc.match_substring_regex(values, shape))
    return found


def _cast(values: pa.Array, good: Mask, type: ValueType) -> pa.Array:
    """Cast the good rows, which Arrow must be able to do; the others get an arbitrary value."""
    return pc.if_else(pa.array(good), values, b"0").view(pa.utf8()).cast(type.arrow)


# --- numbers ---------------------------------------------------------------------------------


def _digits_only(data: Bytes) -> bool:
    """Whether there are only digits, signs and points: Arrow also reads 0xFFFF as -1."""
    return not len(data) or bool(data.max() <= ord("9"))


def _integers(type: ValueType, values: pa.Array) -> pa.Array:
    if _digits_only(content(values)):
        try:
            return values.view(pa.utf8()).cast(type.arrow)
        except pa.ArrowInvalid:
            pass  # One of them is not a number, or too large; the code below finds it.
    good = _matching(values, rf"^-?[0-9]{{1,{_SURE_DIGITS[type.kind]}}}$")
    return parse_others(_cast(values, good, type), good, values, _parse_integer, type)


def _parse_integer(raw: bytes) -> object:
    return int(raw) if _INTEGER.fullmatch(raw) else None


def _floats(type: ValueType, values: pa.Array) -> pa.Array:
    def parse(raw: bytes) -> object:
        if _FLOAT.fullmatch(raw) is None:
            return None
        number: float = pa.scalar(raw.decode()).cast(type.arrow).as_py()
        digits = raw.lower().split(b"e")[0].strip(b"+-0.")
        lost = (np.isinf(number) and b"inf" not in raw.lower()) or (number == 0 and digits)
        return None if lost else number

    good = np.ones(len(values), np.bool_)
    try:
        quick = as_utf8(values).cast(type.arrow)
    except pa.ArrowInvalid:
        good = _matching(values, _FLOAT_SHAPE)
        quick = _cast(values, good, type)
    else:
        if quick.null_count:
            good = np.asarray(quick.is_valid()).copy()
            quick = quick.fill_null(0)
    numbers = np.asarray(quick)
    doubtful = np.flatnonzero((numbers == 0) | ~np.isfinite(numbers))
    if len(doubtful):
        usual = pc.is_in(values.take(pa.array(doubtful)), value_set=_EDGES)
        # Rows that are not good already are read one by one in any case.
        good[doubtful] &= np.asarray(usual)
    return parse_others(quick, good, values, parse, type)


def _decimals(type: ValueType, values: pa.Array) -> pa.Array:
    def parse(raw: bytes) -> object:
        text = numeric_text(raw.decode(errors="surrogateescape"))
        return None if text is None else Decimal(text)

    # Arrow silently wraps around if the digits exceed 128 bits, which 39 of them can.
    cells = Cells.of(values)
    if _digits_only(cells.data) and (not len(cells.lengths) or cells.lengths.max() <= 38):
        try:
            return values.view(pa.utf8()).cast(type.arrow)
        except pa.ArrowInvalid:
            pass
    whole = max(type.precision - type.scale, 1)
    fraction = rf"(\.[0-9]{{1,{type.scale}}})?" if type.scale else ""
    lead = "0" if type.precision == type.scale else rf"[0-9]{{1,{whole}}}"
    good = _matching(values, rf"^-?{lead}{fraction}$")
    return parse_others(_cast(values, good, type), good, values, parse, type)


def _numerics(type: ValueType, values: pa.Array) -> pa.Array:
    def parse(raw: bytes) -> object:
        return numeric_text(raw.decode(errors="surrogateescape"))

    good = _matching(values, _NUMERIC_SHAPE)
    if good.all():
        return values.view(pa.utf8())
    return parse_others(
        pc.if_else(pa.array(good), values, b"0").view(pa.utf8()), good, values, parse, type
    )


def _booleans(type: ValueType, values: pa.Array) -> pa.Array:
    cells = Cells.of(values)
    first_bytes = cells.at(0)
    true = first_bytes == ord("t")
    good = (cells.lengths == 1) & (true | (first_bytes == ord("f")))
    return parse_others(pa.array(true), good, values, _BOOLEANS.get, type)


# --- texts and bytes -------------------------------------------------------------------------


def _texts(type: ValueType, values: pa.Array) -> pa.Array:
    return as_utf8(values)


def _bytes(type: ValueType, values: pa.Array) -> pa.Array:
    cells = Cells.of(values)
    lengths = cells.lengths
    good = (lengths >= 2) & (lengths % 2 == 0)
    good &= (cells.at(0) == ord("\\")) & (cells.at(1) == ord("x"))
    nibbles = _NIBBLES[cells.data]
    # Remove the prefixes, and every text that is not hex; pairs of digits remain.
    keep = np.ones(len(nibbles), np.bool_)
    keep[cells.starts[good]] = keep[cells.starts[good] + 1] = False
    wrong = np.flatnonzero((nibbles == 255) & keep)
    good[np.searchsorted(cells.starts + lengths, wrong, side="right")] = False
    for row in np.flatnonzero(~good).tolist():
        keep[cells.starts[row] : cells.starts[row] + lengths[row]] = False
    pairs = nibbles[keep]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.where(good, (lengths - 2) // 2, 0), out=offsets[1:])
    array = pa.Array.from_buffers(
        pa.binary(),
        len(values),
        [None, pa.py_buffer(offsets), pa.py_buffer(pairs[0::2] << 4 | pairs[1::2])],
    )
    return parse_others(array, good, values, lambda raw: None, type)


def _uuids(type: ValueType, values: pa.Array) -> pa.Array:
    cells = Cells.of(values)
    good = cells.lengths == 36
    regular = values if good.all() else pc.if_else(pa.array(good), values, bytes(36))
    table = Cells.of(regular).data.reshape(len(values), 36)
    for offset in _UUID_HYPHENS:
        good &= table[:, offset] == ord("-")
    nibbles = _NIBBLES[table[:, _UUID_DIGITS]]
    good &= nibbles.max(axis=1, initial=0) < 16
    content = np.ascontiguousarray(nibbles[:, 0::2] << 4 | nibbles[:, 1::2])
    array = pa.Array.from_buffers(type.arrow, len(values), [None, pa.py_buffer(content)])
    return parse_others(array, good, values, lambda raw: None, type)


# --- days and hours --------------------------------------------------------------------------


def _dates(type: ValueType, values: pa.Array) -> pa.Array:
    days, good = read_dates(Cells.of(values))
    return parse_others(pa.array(days).view(type.arrow), good, values, parse_date, type)


def _timestamps(type: ValueType, values: pa.Array) -> pa.Array:
    utc = type.kind == "timestamptz"
    if (quick := _usual_timestamps(type, values, utc=utc)) is not None:
        return quick
    micros, good = read_timestamps(Cells.of(values), utc=utc)
    parse = parse_timestamptz if utc else parse_timestamp
    return parse_others(pa.array(micros).view(type.arrow), good, values, parse, type)


def _usual_timestamps(type: ValueType, values: pa.Array, *, utc: bool) -> pa.Array | None:
    """Return the column if all values are in the format of the years 1 to 9999, else None."""
    cells = Cells.of(values)
    zone = 3 if utc else 0
    # Arrow is as strict as we are with days and hours, but accepts more formats than PostgreSQL
    # writes.
    if not len(values) or cells.lengths.min() < 19 + zone or (cells.at(10) != ord(" ")).any():
        return None
    ends = cells.lengths - zone
    if utc and (cells.at(ends) != ord("+")).any():
        return None
    try:
        quick = values.view(pa.utf8()).cast(type.arrow)
    except pa.ArrowInvalid:
        return None
    return quick if quick.view(pa.int64()).to_numpy().min() >= _YEAR_ONE else None


def _times(type: ValueType, values: pa.Array) -> pa.Array:
    micros, good = read_times(Cells.of(values))
    return parse_others(pa.array(micros), good, values, parse_time, type)


def _timetzs(type: ValueType, values: pa.Array) -> pa.Array:
    return each(values, parse_timetz, type)


def _intervals(type: ValueType, values: pa.Array) -> pa.Array:
    return each(values, parse_interval, type)


_READERS: Final[Mapping[str, Reader]] = {
    "int16": _integers,
    "int32": _integers,
    "int64": _integers,
    "float32": _floats,
    "float64": _floats,
    "boolean": _booleans,
    "decimal": _decimals,
    "numeric": _numerics,
    "text": _texts,
    "json": _texts,
    "bytes": _bytes,
    "uuid": _uuids,
    "date": _dates,
    "timestamp": _timestamps,
    "timestamptz": _timestamps,
    "time": _times,
    "timetz": _timetzs,
    "interval": _intervals,
}
