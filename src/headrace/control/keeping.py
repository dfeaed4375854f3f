"""How long a log is kept, and how much of it: what `Engine(log=…)` takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import InvalidConfiguration

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is asked of every log of an engine."""

    keep: float = 24 * 3600.0
    """Seconds that a change is kept after its commit, whoever needs it."""

    cap: int | None = None
    """The most bytes of a source's log; at 90 % of it nothing is read any more (R28)."""

    lease: float = 600.0
    """Seconds from a file being dropped to its being deleted."""

    keep_baselines: bool | None = None
    """
    Whether the newest baseline of each table stays usable (R19).

    None: of tables that a volatile target has. Without it a pipeline that is added later, or
    rebuilt, takes a new copy. What is only recorded keeps its own in any case.
    """

    compact: bool = True
    """Whether many small flushes become one."""

    fold: bool = True
    """Whether a baseline is brought up to date, so that the changes before need not be kept."""


def log(
    *,
    keep: str | float = "24h",
    cap: str | int | None = None,
    lease: str | float = "10m",
    keep_baselines: bool | None = None,
    compact: bool = True,
    fold: bool = True,
) -> LogOptions:
    """
    Return how logs are to be kept: `Engine(…, log=hr.log(keep="24h", cap="10GB"))`.

    Amounts are numbers of seconds or bytes, or texts like `90s`, `24h`, `7d`, `500MB`, `10GiB`.
    """
    return LogOptions(
        keep=_amount("keep", keep, _SECONDS, "24h"),
        cap=None if cap is None else int(_amount("cap", cap, _BYTES, "10GB")),
        lease=_amount("lease", lease, _SECONDS, "10m"),
        keep_baselines=keep_baselines,
        compact=compact,
        fold=fold,
    )


def _amount(name: str, value: str | float, units: Mapping[str, float], example: str) -> float:
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value)
        if match is None or match[2] not in units:
            raise InvalidConfiguration(
                f"log({name}=) is no amount",
                given=value,
                remedy=f"Write it like {example}; units are {', '.join(units)}.",
            )
        return float(match[1]) * units[match[2]]
    if value < 0:
        raise InvalidConfiguration(f"log({name}=) is below zero", given=value)
    return float(value)
