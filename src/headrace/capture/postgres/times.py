"""
PostgreSQL's texts of days and hours, in ISO style.

`read_…` reads the usual shape of a whole column at once and says which rows have it;
`parse_…` reads any text that PostgreSQL writes, one by one, and gives None for others:
infinities, years before Christ and beyond 9999, 24:00, offsets other than UTC's.
"""

from __future__ import annotations

import re
from datetime import date, time
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.capture.postgres.cells import CHUNK, Cells, Ints, Mask
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
    """Return microseconds since 1970, and which rows are plain; with `utc` they end in +00."""
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


def _two(cells: Cells, place: int) -> tuple[Ints, Mask]:
    # Below the digit 0 the bytes wrap around to large ones.
    tens, ones = cells.at(place) - ord("0"), cells.at(place + 1) - ord("0")
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


def _clock(cells: Cells, place: int, ends: Ints) -> tuple[Ints, Mask]:
    """Read HH:MM:SS, and up to six digits of a fraction before `ends`."""
    hour, good = _two(cells, place)
    minute, fine_minute = _two(cells, place + 3)
    second, fine_second = _two(cells, place + 6)
    good &= fine_minute & fine_second & (hour <= 23) & (minute <= 59) & (second <= 59)
    good &= (cells.at(place + 2) == ord(":")) & (cells.at(place + 5) == ord(":"))
    micros = (hour * 60 + minute) * 60 + second
    whole = ends == place + 8
    if whole.all():
        return micros * 1_000_000, good
    point = cells.at(place + 8) == ord(".")
    good &= whole | point & (ends >= place + 10) & (ends <= place + 15)
    for digit in range(place + 9, place + 15):
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
    """Read any time of day, 24:00 too."""
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
    # All three at their ends is how infinity is stored, and no server writes it as numbers.
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
    # PostgreSQL counts from 2000: its last 30 years are beyond what is counted from 1970.
    return BeyondTimestamp(micros, utc) if MIN_INT64 < micros < MAX_INT64 else None


def _ordinal(year: bytes, month: bytes, day: bytes, era: bytes | None) -> int | None:
    """Return days since 1970; None where there is no such day."""
    full = int(year) if era is None else 1 - int(year)
    if (era is None and full < 1) or (era is not None and full > 0):
        return None
    # The calendar repeats every 400 years, so that `date` can count for all of them.
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
