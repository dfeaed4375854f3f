"""What is done to an engine that is watched, decided by a round's seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from tests.postgres.rounds.plan import STRIKES


class Fault(StrEnum):
    """What can go wrong, or be changed without a message, while an engine runs."""

    TO_US = "stream silent to us"
    TO_SERVER = "stream silent to the server"
    STREAM = "stream silent"
    QUERIES = "connection for queries silent"
    ALL = "all connections silent"
    SENDER_SUSPENDED = "walsender suspended"
    SENDER_ENDED = "walsender terminated"
    SENDER_KILLED = "walsender killed"
    HOLDER_ENDED = "snapshot holder terminated"
    HOLDER_KILLED = "snapshot holder killed"
    RECORDER_SUSPENDED = "recorder suspended"
    RECORDER_KILLED = "recorder killed"
    ENGINE_SUSPENDED = "engine suspended"
    ENGINE_SUSPENDED_SLOW = "engine suspended, target slow"
    MACHINE_SUSPENDED = "engine and recorder suspended"
    ENGINE_KILLED = "engine killed"
    ENGINE_STOPPED = "engine stopped and started"
    SERVER_KILLED = "server killed"
    SERVER_STOPPED = "server stopped"
    DISK_FULL = "disk of the data directory full"
    LOG_FULL = "disk of the log full"
    TARGET_HANGS = "target hangs"
    TARGET_REFUSES = "target refuses"
    PAUSED = "pipeline paused and resumed"
    RELOADED = "table reloaded"
    SLOT_DROPPED = "slot dropped"
    PUBLICATION_DROPPED = "publication dropped"
    TABLE_LEFT_OUT = "table unpublished for a moment"
    INSERTS_ONLY = "publication of inserts alone for a moment"
    TABLES_SWAPPED = "two tables renamed into each other"
    LABEL_RENAMED = "label of an enum renamed"
    COLUMN_ADDED = "column with a default added"
    UNLOGGED = "table unlogged for a moment"
    NO_IDENTITY = "replica identity nothing for a moment"
    PARTITION_GONE = "partition truncated"
    FILE_LOCKED = "SQLite: file locked"
    FILE_REPLACED = "SQLite: file replaced"
    CATALOG_SWAP = "catalog: swap"
    CATALOG_AWAY = "catalog: away"
    CATALOG_TYPE = "catalog: type"
    CATALOG_PUBLICATION = "catalog: publication"
    CATALOG_IDENTITY = "catalog: identity"
    CATALOG_COLUMN = "catalog: column"
    CATALOG_PARTITION = "catalog: partition"
    CATALOG_REPLACE = "catalog: replace"
    CATALOG_REWRITE = "catalog: rewrite"
    CATALOG_WOUND = "catalog: wound"
    CATALOG_UNSEEN = "catalog: unseen"
    JVM_KILLED = "JVM killed"
    JVM_SUSPENDED = "JVM suspended"


DRAWN = tuple(fault for fault in Fault if fault.startswith("catalog: "))
"""Families of the list of catalog changes; which of a family is drawn when it is its turn."""

HOLDS_UP = frozenset(
    {
        Fault.TO_US,
        Fault.STREAM,
        Fault.ALL,
        Fault.SENDER_SUSPENDED,
        Fault.RECORDER_SUSPENDED,
        Fault.LOG_FULL,
        Fault.TARGET_HANGS,
        Fault.TARGET_REFUSES,
        Fault.PAUSED,
        Fault.FILE_LOCKED,
        Fault.CATALOG_WOUND,
        Fault.JVM_SUSPENDED,
    }
)
"""A pipeline lacks something while they last: they last until one is no longer ready."""

UNSENT = frozenset({Fault.INSERTS_ONLY, Fault.PUBLICATION_DROPPED, Fault.CATALOG_PUBLICATION})
"""Something that is committed meanwhile may not be sent: it is noticed with the next look."""

POINTS = tuple(f"killed at {point}" for point in STRIKES)
"""Kills at the named points of the product."""

OF_SPARK: tuple[str, ...] = (str(Fault.JVM_KILLED), str(Fault.JVM_SUSPENDED))
"""Where batches are computed by Spark, and not by Arrow."""

KINDS: tuple[str, ...] = (
    *(str(fault) for fault in Fault if fault not in OF_SPARK),
    *POINTS,
)

LONG = frozenset({Fault.ENGINE_SUSPENDED, Fault.ENGINE_SUSPENDED_SLOW, Fault.MACHINE_SUSPENDED})
"""Suspended until reports that wait for the engine fill their pipe, and more come afterwards."""

LONG_SECONDS = 25.0

BLOWS = 7
"""In a round."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault, so many seconds after what came before, and how long it lasts at least."""

    kind: str
    after: float
    lasts: float


def planned(seed: int, *, spark: bool = False) -> tuple[Blow, ...]:
    """
    Return the faults of a round: a run of seeds deals all kinds, shuffled, again and again.

    With Spark, every round also has what can happen to the JVM.
    """
    dice = Random(f"witness {seed}")
    first = seed * BLOWS
    dealt = [_dealt(number) for number in range(first, first + BLOWS)]
    if spark:
        dealt[: len(OF_SPARK)] = OF_SPARK
    return tuple(
        blow(kind, after=dice.uniform(0, 2), lasts=dice.choice([0.5, 3.0])) for kind in dealt
    )


def blow(kind: str, *, after: float = 0.5, lasts: float = 0.5) -> Blow:
    """Return one fault that lasts as long as its kind needs."""
    return Blow(kind, after, LONG_SECONDS if kind in LONG else lasts)


def _dealt(number: int) -> str:
    pack = list(KINDS)
    Random(f"pack {number // len(pack)}").shuffle(pack)
    return pack[number % len(pack)]
