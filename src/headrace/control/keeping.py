"""How long a log is kept, and how much of it: what `Engine(log=…)` takes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.units import duration, size
from headrace.errors import WrongValue
from headrace.storage.places import bucket_of


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

    storage: str | None = None
    """Where logs and dead letters lie, as `s3://bucket/prefix`; None: in the data directory."""


def log(
    *,
    keep: str | float = "24h",
    cap: str | int | None = None,
    lease: str | float = "10m",
    keep_baselines: bool | None = None,
    compact: bool = True,
    fold: bool = True,
    storage: str | None = None,
) -> LogOptions:
    """
    Return how logs are to be kept: `Engine(…, log=hr.log(keep="24h", cap="10GB"))`.

    Amounts are numbers of seconds or bytes, or texts like `90s`, `24h`, `7d`, `500MB`, `10GiB`.
    `storage` is where they lie instead of in the data directory: `s3://bucket/prefix`.
    """
    if storage is not None:
        bucket_of(storage)
    return LogOptions(
        keep=_not_below_zero(duration(keep) if isinstance(keep, str) else keep),
        cap=None if cap is None else int(_not_below_zero(_bytes(cap))),
        lease=_not_below_zero(duration(lease) if isinstance(lease, str) else lease),
        keep_baselines=keep_baselines,
        compact=compact,
        fold=fold,
        storage=storage,
    )


def _not_below_zero(amount: float) -> float:
    if amount < 0:
        raise WrongValue("An amount of a log is below zero", given=amount)
    return float(amount)


def _bytes(amount: str | int) -> int:
    return size(amount) if isinstance(amount, str) else amount
