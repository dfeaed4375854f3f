"""
Times that Python's `datetime` cannot say.

A database knows infinity, years before Christ and years beyond 9999, a day that ends at
24:00, times with an offset and intervals of months. Each is the same integer on disk as
its ordinary brothers, and at the edge a value of its own, never an approximation in
`datetime` (invariant 6). Their texts are those of PostgreSQL in ISO style.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MICROS_PER_DAY: Final = 86_400_000_000
MIN_INT32, MAX_INT32 = -(2**31), 2**31 - 1
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
"""The ends of the stored integers stand for minus and plus infinity."""


@dataclass(frozen=True, order=True, slots=True)
class BeyondDate:
    """A date before year 1 or after 9999, or at infinity."""

    days: int
    """Since 1970-01-01; the ends of 32 bits are the infinities."""

    @property
    def infinite(self) -> bool:
        """Whether this is no day at all."""
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
    """Whether it is an instant in time (timestamptz), not a reading of a clock."""

    @property
    def infinite(self) -> bool:
        """Whether this is no instant at all."""
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
    """Since midnight, up to and with 24:00."""

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
