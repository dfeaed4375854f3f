"""
What happens in a round, decided by its seed alone.

How fast the machine is decides what each kill finds, so a seed repeats the plan and not
the instant; at a named point the two are nearly the same. Neighbouring seeds take the
points in turn, so that a run of them comes by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from headrace.storage import points

ENGINE = "engine at any moment"
RECORDER = "recorder at any moment"
STRIKES = (*points.POINTS, ENGINE, RECORDER)
"""Every way to be killed."""

ENGINE_POINTS = (points.BASELINE_LOADED, points.JOB_DONE, points.TARGET_WRITTEN)
"""Points that the engine's own process passes; all others are the recorder's."""

_ONCE = (
    points.BASELINE_CHUNK,
    points.BASELINE_FINISHED,
    points.BASELINE_LOADED,
    points.BEFORE_CHECKPOINT,
)
"""Passed once in the life of a small table or a log of a thousand entries."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill, and whether all is looked at before the next."""

    strike: str
    nth: int = 1
    """The how-manieth passing of a named point."""

    after: float = 0.0
    """Seconds from the start to the kill, where it comes at any moment."""

    settles: bool = True
    """False: the next kill follows at once, while what this one broke is being mended."""

    @property
    def armed(self) -> str | None:
        """What the environment arms; None for a kill from outside."""
        return None if self.strike in (ENGINE, RECORDER) else f"{self.strike}:{self.nth}"

    @property
    def ends_engine(self) -> bool:
        """Whether the engine itself dies; otherwise its recorder does."""
        return self.strike == ENGINE or self.strike in ENGINE_POINTS


@dataclass(frozen=True, slots=True)
class Plan:
    """One round."""

    seed: int
    spark: bool
    memory: bool
    """Whether the target is in memory, and built anew by every engine; else a file."""

    wal: bool
    rows: int
    """In the table before anything starts."""

    entries: int
    """In the log before anything starts: 0, or nearly as many as a checkpoint covers."""

    kills: tuple[Kill, ...]


def planned(seed: int, spark_share: float) -> Plan:
    """Return the round of this seed."""
    dice = Random(f"plan {seed}")
    spark = dice.random() < spark_share
    first = STRIKES[seed % len(STRIKES)]
    strikes = [first]
    while len(strikes) < (2 if spark else 4) and dice.random() < 0.4:
        strikes.append(dice.choice([name for name in STRIKES if name not in _ONCE]))
    kills = []
    for number, strike in enumerate(strikes):
        last = number == len(strikes) - 1
        kills.append(_kill(dice, strike, spark, settles=last or dice.random() < 0.5))
    return Plan(
        seed=seed,
        spark=spark,
        memory=dice.random() < (0.7 if spark else 0.2),
        wal=dice.random() < 0.8,
        rows=dice.choice([0, 1, 40, 400]) if first != points.BASELINE_CHUNK else 40,
        entries=dice.randrange(988, 999) if first == points.BEFORE_CHECKPOINT else 0,
        kills=tuple(kills),
    )


def _kill(dice: Random, strike: str, spark: bool, *, settles: bool) -> Kill:
    nth = 1 if strike in _ONCE else dice.choice([1, 1, 2, 3, 5])
    # From the first moments, which belong to recovery, to well after everything stands.
    after = dice.uniform(0.05, 15.0 if spark else 2.5)
    return Kill(strike, nth, after, settles)
