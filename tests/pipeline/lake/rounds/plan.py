"""
What happens in a round, decided by its seed alone.

How fast the machine is decides what each blow finds, so a seed repeats the plan and not the
instant; at a named point the two are nearly the same. Neighbouring seeds take the blows in turn,
so that a run of them comes by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from headrace.storage import killpoints


class Who(StrEnum):
    """Whom a blow hits."""

    ENGINE = "engine"
    JVM = "JVM"
    WORKER = "Python worker"
    RECORDER = "recorder"


class When(StrEnum):
    """Instants that are seen from outside; all others are named points."""

    DATA = "data file begun"
    """A commit's data file is being written, or is written; the commit is not there."""

    COMMIT = "commit visible"
    """The table's log has a new commit, and hardly anybody knows."""

    ANY = "any moment"


@dataclass(frozen=True, slots=True)
class Blow:
    """Somebody is killed at an instant."""

    who: Who
    when: str

    def __str__(self) -> str:
        return f"{self.who} at {self.when}"


OF_ENGINE = (
    killpoints.BASELINE_LOADED,
    killpoints.TABLE_SWITCHED,
    killpoints.JOB_DONE,
    killpoints.TARGET_WRITTEN,
    killpoints.TABLE_COMMITTED,
    killpoints.COLUMNS_ADDED,
    killpoints.TABLE_COMPACTED,
)
"""Points that the engine's own process passes, and where its JVM can be killed as well."""

OF_RECORDER = (
    killpoints.SEGMENT_WRITTEN,
    killpoints.ENTRY_SYNCED,
    killpoints.CHANGES_READ,
    killpoints.BEFORE_ACKNOWLEDGE,
    killpoints.BASELINE_FINISHED,
)
OF_LOADING = (killpoints.BASELINE_LOADED, killpoints.TABLE_SWITCHED, killpoints.BASELINE_FINISHED)
"""Passed when a table is loaded, and again when it is loaded anew."""

ENDS = (
    *(Blow(Who.ENGINE, point) for point in OF_ENGINE),
    *(Blow(Who.ENGINE, when) for when in When),
)
"""How the life of an engine may end."""

ARMED = (
    Blow(Who.WORKER, killpoints.PART_WRITTEN),
    *(Blow(Who.RECORDER, point) for point in OF_RECORDER),
)
"""What a process must be told when it starts, and one of its kind alone."""

BLOWS = (
    *(Blow(Who.JVM, point) for point in OF_ENGINE),
    *(Blow(Who.JVM, when) for when in When),
    Blow(Who.WORKER, When.ANY),
    Blow(Who.RECORDER, When.ANY),
)
"""What else an engine lives through."""

ALL = (*ENDS, *ARMED, *BLOWS)


@dataclass(frozen=True, slots=True)
class Life:
    """One engine, from its start to its end."""

    armed: Blow
    """Of a process that must be told when it starts: a worker's point, or the recorder's."""

    blow: Blow
    end: Blow
    nth: int
    """How often the points of the engine are passed before somebody dies there."""

    waits: bool
    """Whether the first blow waits until all is loaded; otherwise it falls into the start."""

    staged: bool
    """Whether executors prepare every batch."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round."""

    seed: int
    lives: tuple[Life, ...]


def planned(seed: int, lives: int = 2) -> Plan:
    """Return the round of this seed."""
    dice = Random(f"lake {seed}")
    made = []
    for number in range(seed * lives, (seed + 1) * lives):
        # Each list is gone through for itself.
        armed = ARMED[number % len(ARMED)]
        made.append(
            Life(
                armed=armed,
                blow=BLOWS[number % len(BLOWS)],
                end=ENDS[number % len(ENDS)],
                nth=dice.choice([1, 1, 2]),
                waits=dice.random() < 0.7,
                staged=armed.who == Who.WORKER or dice.random() < 0.5,
            )
        )
    return Plan(seed, tuple(made))
