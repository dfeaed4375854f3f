"""
What happens in a round, decided by its seed alone.

How fast the machine is decides what each blow finds, so a seed repeats the plan and not the
instant; at a named point the two are nearly the same. Neighbouring seeds take the points
in turn, so that a run of them comes by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from headrace.storage import killpoints
from tests.postgres.rounds.workload import KEYS


class Act(StrEnum):
    """What can be done to a round from outside."""

    RECORDER = "recorder killed"
    ENGINE = "engine killed"
    ENGINE_STOPPED = "engine stopped"
    SENDER_ENDED = "walsender terminated"
    SENDER_KILLED = "walsender killed"
    HOLDER_ENDED = "holder terminated"
    HOLDER_KILLED = "holder killed"
    SERVER_KILLED = "server killed"
    SERVER_STOPPED = "server stopped"
    RELOAD = "reload asked"
    PAUSE = "pipeline paused"
    RESUME = "pipeline resumed"
    SLOT_DROPPED = "slot dropped"


ENGINE_POINTS = (
    killpoints.BASELINE_LOADED,
    killpoints.JOB_DONE,
    killpoints.TARGET_WRITTEN,
    killpoints.TABLE_SWITCHED,
)
"""Points that the engine's own process passes; all others are the recorder's."""

OF_BEGINNING = (killpoints.SLOT_CREATED, killpoints.LOG_BEGUN)
"""Passed only where history begins."""

OF_COPYING = (
    killpoints.SNAPSHOT_TAKEN,
    killpoints.COPY_PLANNED,
    killpoints.BASELINE_CHUNK,
    killpoints.BASELINE_COPIED,
    killpoints.BASELINE_FINISHED,
    killpoints.BASELINE_LOADED,
    killpoints.TABLE_SWITCHED,
)
"""Passed when a table is loaded, and again when it is loaded anew."""

OF_STREAMING = (
    killpoints.SEGMENT_WRITTEN,
    killpoints.ENTRY_LINKED,
    killpoints.ENTRY_SYNCED,
    killpoints.CHANGES_READ,
    killpoints.BEFORE_ACKNOWLEDGE,
    killpoints.JOB_DONE,
    killpoints.TARGET_WRITTEN,
)
STRIKES = (killpoints.PUBLICATION_ENSURED, *OF_BEGINNING, *OF_COPYING, *OF_STREAMING)
"""Every named point that a round can come by."""

_ACTS = {
    Act.RECORDER: 4,
    Act.SENDER_ENDED: 2,
    Act.SENDER_KILLED: 1,
    Act.HOLDER_ENDED: 3,
    Act.HOLDER_KILLED: 1,
    Act.SERVER_KILLED: 2,
    Act.SERVER_STOPPED: 2,
    Act.RELOAD: 5,
    Act.PAUSE: 2,
    Act.RESUME: 2,
}
"""What may happen while an engine runs, and how often."""


@dataclass(frozen=True, slots=True)
class Blow:
    """Something done to the round, so many seconds after what came before."""

    act: Act
    after: float
    table: str
    """What a reload is about."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class Life:
    """One engine, from its start to its end."""

    armed: str | None
    nth: int
    tables: tuple[str, ...]
    shared: bool
    """Whether the engine copies tables itself where it can, as Spark would."""

    blows: tuple[Blow, ...]
    waits: bool
    """Whether the first blow waits until changes are read; otherwise it falls into the start."""

    end: Act
    loses_slot: bool
    """Whether the slot is dropped once the engine is gone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round."""

    seed: int
    lives: tuple[Life, ...]

    @property
    def loses_slot(self) -> bool:
        return any(life.loses_slot for life in self.lives)


def planned(seed: int) -> Plan:
    """Return the round of this seed."""
    dice = Random(f"postgres {seed}")
    first = STRIKES[seed % len(STRIKES)]
    # A snapshot of its own is taken for a copy once history has begun.
    strikes: list[str | None] = [None] if first == killpoints.SNAPSHOT_TAKEN else []
    strikes.append(first)
    while len(strikes) < 4 and dice.random() < 0.6:
        strikes.append(dice.choice([None, *STRIKES]))
    late = dice.random() < 0.7
    lives: list[Life] = []
    begins = True
    for number, strike in enumerate(strikes):
        if strike in OF_BEGINNING and not begins:
            strike = killpoints.PUBLICATION_ENSURED
        last = number == len(strikes) - 1
        tables = tuple(KEYS) if number or not late else tuple(KEYS)[:-1]
        begins = not last and dice.random() < 0.15
        lives.append(
            Life(
                armed=strike,
                nth=1 if strike not in OF_STREAMING else dice.choice([1, 1, 2, 4]),
                tables=tables,
                shared=strike == killpoints.COPY_PLANNED or dice.random() < 0.5,
                blows=tuple(_blow(dice, tables) for _ in range(dice.randint(1, 4))),
                waits=dice.random() < 0.6,
                end=dice.choice([Act.ENGINE, Act.ENGINE_STOPPED]),
                loses_slot=begins,
            )
        )
    return Plan(seed, tuple(lives))


def _blow(dice: Random, tables: tuple[str, ...]) -> Blow:
    act = dice.choices(list(_ACTS), list(_ACTS.values()))[0]
    # From the first moments, which belong to the copy, to well after everything stands.
    after = dice.choice([dice.uniform(0, 0.3), dice.uniform(0, 2.0)])
    return Blow(act, after, dice.choice(tables), dice.choice(["file", "memory"]))
