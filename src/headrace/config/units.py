"""
Durations and sizes with units: `250ms`, `24h`, `512 MiB`.

A duration must have a unit, except 0: `timeout = 30` could mean seconds or milliseconds, and a
wrong guess is off by a factor of a thousand. A size without a unit is in bytes.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from headrace.errors import WrongValue

_AMOUNT = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-zµ]*)\s*")

_SECONDS = {
    name: Decimal(seconds)
    for names, seconds in (
        ("ns nano nanos nanosecond nanoseconds", "1e-9"),
        ("us µs micro micros microsecond microseconds", "1e-6"),
        ("ms milli millis millisecond milliseconds", "1e-3"),
        ("s second seconds", "1"),
        ("m minute minutes", "60"),
        ("h hour hours", "3600"),
        ("d day days", "86400"),
    )
    for name in names.split()
}

_BYTES = {"": 1, "B": 1, "b": 1, "byte": 1, "bytes": 1}
for _power, (_ten, _two) in enumerate(
    (("kilo", "kibi"), ("mega", "mebi"), ("giga", "gibi"), ("tera", "tebi"), ("peta", "pebi")), 1
):
    _initial = _ten[0]
    # By convention, k is lower case in kB and upper case in KiB.
    _decimal = "kB" if _initial == "k" else f"{_initial.upper()}B"
    _binary = (_initial, _initial.upper(), f"{_initial.upper()}i", f"{_initial.upper()}iB")
    _BYTES |= dict.fromkeys((_decimal, f"{_ten}byte", f"{_ten}bytes"), 1000**_power)
    _BYTES |= dict.fromkeys((*_binary, f"{_two}byte", f"{_two}bytes"), 1024**_power)


def duration(text: str) -> float:
    """Return a duration in seconds; raise `WrongValue` if `text` is not one."""
    amount, unit = _parts(text, "duration", "ns, us, ms, s, m, h or d: 250ms, 1.5h")
    if unit == "" and amount == 0:
        return 0.0
    if unit not in _SECONDS:
        raise _wrong("duration", "ns, us, ms, s, m, h or d: 250ms, 1.5h")
    return float(amount * _SECONDS[unit])


def size(text: str) -> int:
    """Return a size in whole bytes; raise `WrongValue` if `text` is not one."""
    units = "B, kB, MB, GB, TB (by 1000) or KiB, MiB, GiB, TiB (by 1024): 512MiB"
    amount, unit = _parts(text, "size", units)
    if unit not in _BYTES:
        raise _wrong("size", units)
    return math.floor(amount * _BYTES[unit])


def _parts(text: str, what: str, units: str) -> tuple[Decimal, str]:
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise _wrong(what, units)
    return Decimal(found[1]), found[2]


def _wrong(what: str, units: str) -> WrongValue:
    # Without the text: it may be a secret that was written in the wrong line.
    return WrongValue(f"Not a valid {what}", remedy=f"Write a number and a unit: {units}.")
