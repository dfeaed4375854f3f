"""Who lives in the world, with what is theirs, and what was asked of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.changelog.schema import TableName
from headrace.corrections.expiry import Expiry
from headrace.targets.memory import ChangeReader
from headrace.testing.source import MemoryPosition
from tests.simulation.engine import Engine, RecorderLife
from tests.simulation.plan import Flow
from tests.simulation.target import DurableTarget, WatchedMemory


@dataclass(slots=True)
class Seat:
    """A pipeline's target in one life of an engine."""

    number: int
    flow: Flow
    limited: bool
    """Whether a few bad rows are enough to stop it."""

    target: DurableTarget | WatchedMemory
    readers: dict[TableName, ChangeReader] = field(default_factory=dict)
    expiry: Expiry | None = None

    @property
    def upto(self) -> int:
        """The watermark up to which its rows have expired."""
        return 0 if self.expiry is None else self.expiry.mark.upto


@dataclass(slots=True)
class Life:
    """An engine that lives, or should not any more."""

    engine: Engine
    seats: list[Seat]
    steps_left: int = 0
    """For one that another has taken over from: how long it does not notice."""


@dataclass(slots=True)
class Lingering:
    """A recorder whose engine is gone, and that has not noticed."""

    recorder: RecorderLife
    steps_left: int


@dataclass(slots=True)
class Wish:
    """A reload that was asked for."""

    pipeline: int
    table: TableName
    newest: tuple[int, int]
    """How many logs were lost, and the newest baseline's number that the engine knows of."""

    source: MemoryPosition
    """Where the source stood."""

    taken: bool = False
    """Whether the pipeline has noted it, and may not forget it."""
