"""What is done to an engine that is watched, decided by a round's seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """What can go wrong, or be changed without a message, while an engine runs."""

    TO_US = "stream silent to us"
    TO_SERVER = "stream silent to the server"
    STREAM = "stream silent"
    QUERIES = "connection for queries silent"
    ALL = "all connections silent"
    SENDER_SUSPENDED = "walsender suspended"
    RECORDER_SUSPENDED = "recorder suspended"
    RECORDER_KILLED = "recorder killed"
    ENGINE_KILLED = "engine killed"
    SERVER_KILLED = "server killed"
    SERVER_STOPPED = "server stopped"
    DISK_FULL = "disk full"
    SLOT_DROPPED = "slot dropped"
    TABLE_LEFT_OUT = "table unpublished for a moment"
    INSERTS_ONLY = "publication of inserts alone for a moment"
    TABLES_SWAPPED = "two tables renamed into each other"
    LABEL_RENAMED = "label of an enum renamed"
    COLUMN_ADDED = "column with a default added"
    PARTITION_GONE = "partition truncated"


HOLDS_UP = frozenset(
    {
        Fault.TO_US,
        Fault.STREAM,
        Fault.ALL,
        Fault.SENDER_SUSPENDED,
        Fault.RECORDER_SUSPENDED,
        Fault.DISK_FULL,
    }
)
"""Nothing arrives while they last: they last until the engine is no longer ready."""

CHANGES = frozenset(
    {
        Fault.TABLE_LEFT_OUT,
        Fault.INSERTS_ONLY,
        Fault.TABLES_SWAPPED,
        Fault.LABEL_RENAMED,
        Fault.COLUMN_ADDED,
    }
)
"""Changes of the catalog, of tables that nothing else changes."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault, so many seconds after what came before, and how long it lasts at least."""

    fault: Fault
    after: float
    lasts: float


def planned(seed: int) -> tuple[Blow, ...]:
    """Return the faults of a round: neighbouring seeds take them in turn, and more at random."""
    dice = Random(f"witness {seed}")
    kinds = list(Fault)
    first = kinds[seed % len(kinds)]
    others = [dice.choice(kinds) for _ in range(dice.randint(2, 4))]
    return tuple(
        Blow(fault, after=dice.uniform(0, 2), lasts=dice.choice([0.5, 3.0]))
        for fault in (first, *others)
    )
