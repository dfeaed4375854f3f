"""
What happens in a round, decided by its seed alone.

How fast the machine is decides what each kill finds, so a seed repeats the plan and not
the instant; at a named point the two are nearly the same. Neighbouring seeds take the
points in turn, so that a run of them comes by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

from headrace.storage import killpoints

ENGINE = "engine at any moment"
RECORDER = "recorder at any moment"
STRIKES = (*killpoints.POINTS, ENGINE, RECORDER)
"""Every way to be killed."""

ENGINE_POINTS = (
    killpoints.BASELINE_LOADED,
    killpoints.JOB_DONE,
    killpoints.TARGET_WRITTEN,
    killpoints.DEAD_LETTERS_STORED,
    killpoints.INTENT_STORED,
    killpoints.EFFECT_DONE,
    killpoints.TABLE_SWITCHED,
)
"""Points that the engine's own process passes; all others are the recorder's."""

_OF_LOADING = (
    killpoints.BASELINE_CHUNK,
    killpoints.BASELINE_FINISHED,
    killpoints.BASELINE_LOADED,
    killpoints.TABLE_SWITCHED,
)
"""Passed once in the life of a small table, and again when it is loaded anew."""

_ONCE = (*_OF_LOADING, killpoints.BEFORE_CHECKPOINT)
"""The last is passed once in a thousand entries."""

_OF_INTENTS = (killpoints.INTENT_STORED, killpoints.EFFECT_DONE)
_NOT_OF_FRAMES = (
    killpoints.BASELINE_LOADED,
    killpoints.JOB_DONE,
    killpoints.TARGET_WRITTEN,
    killpoints.TABLE_SWITCHED,
)
"""A function is given its frames before anything is computed, and nothing is switched."""

Kind: TypeAlias = Literal["file", "memory", "queue", "frames"]
"""
What the target is.

`file`: rows and position together. `memory`: built anew by every engine. `queue`: a file that
is only appended to, which knows no position. `frames`: a function that is given DataFrames.
"""


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
    target: Kind
    tables: tuple[str, ...]
    fails: bool
    """Whether some rows cannot be computed, and become dead letters."""

    reload: bool
    """Whether every engine is asked to load the first table anew."""

    wal: bool
    rows: int
    """In each table before anything starts."""

    entries: int
    """In the log before anything starts: 0, or nearly as many as a checkpoint covers."""

    kills: tuple[Kill, ...]


def planned(seed: int, spark_share: float) -> Plan:
    """Return the round of this seed."""
    dice = Random(f"plan {seed}")
    spark = dice.random() < spark_share
    first = STRIKES[seed % len(STRIKES)]
    target = _target(dice, first, spark)
    fails = first == killpoints.DEAD_LETTERS_STORED or dice.random() < 0.5
    reload = dice.random() < 0.3
    strikes = [first]
    while len(strikes) < (2 if spark else 4) and dice.random() < 0.4:
        strikes.append(dice.choice(_passed(target, fails=fails, reload=reload)))
    kills = []
    for number, strike in enumerate(strikes):
        last = number == len(strikes) - 1
        # The first life loads a table, and once more where a reload is asked for.
        most = 2 if reload and number == 0 else 1
        kills.append(_kill(dice, strike, spark, most, settles=last or dice.random() < 0.5))
    return Plan(
        seed=seed,
        spark=spark,
        target=target,
        # Several tables of one memory have no feed in common, which the check would need.
        tables=("orders", "returns") if target != "memory" and dice.random() < 0.5 else ("orders",),
        fails=fails,
        reload=reload,
        wal=dice.random() < 0.8,
        rows=dice.choice([0, 1, 40, 400]) if first != killpoints.BASELINE_CHUNK else 40,
        entries=dice.randrange(988, 999) if first == killpoints.BEFORE_CHECKPOINT else 0,
        kills=tuple(kills),
    )


def _target(dice: Random, first: str, spark: bool) -> Kind:
    kinds: tuple[Kind, ...] = ("file", "memory", "queue", "frames")
    weights = [2, 3, 1, 2] if spark else [5, 2, 2, 0]
    if first in _OF_INTENTS:
        weights[0] = weights[1] = 0
    if first in _NOT_OF_FRAMES:
        weights[3] = 0
    return dice.choices(kinds, weights)[0]


def _passed(target: Kind, *, fails: bool, reload: bool) -> list[str]:
    """Return the ways to be killed that such a round comes by again and again."""
    never = {killpoints.BEFORE_CHECKPOINT}
    if not reload:
        never.update(_OF_LOADING)
    if not fails:
        never.add(killpoints.DEAD_LETTERS_STORED)
    if target not in ("queue", "frames"):
        never.update(_OF_INTENTS)
    if target == "frames":
        never.update(_NOT_OF_FRAMES)
    return [name for name in STRIKES if name not in never]


def _kill(dice: Random, strike: str, spark: bool, most: int, *, settles: bool) -> Kill:
    nth = dice.choice([1, 1, 2, 3, 5])
    if strike in _ONCE:
        nth = dice.randint(1, most) if strike in _OF_LOADING else 1
    elif spark and strike == killpoints.DEAD_LETTERS_STORED:
        nth = 1  # few rows fail there
    # From the first moments, which belong to recovery, to well after everything stands.
    after = dice.uniform(0.05, 15.0 if spark else 2.5)
    return Kill(strike, nth, after, settles)
