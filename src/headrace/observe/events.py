"""
What an engine reports while it works, as typed values, and the protocol of those who take them.

An event says that something has happened: it is emitted after its effect, never before. Changes
and rows are reported per batch and table, with counts, not one by one: a batch may have 400,000.
Events carry names, counts, positions and errors, never values of rows.

Times (`at`) are seconds since 1970. Position and counts of changes are those of the log: before
filters, with changes that became dead letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from headrace.changelog.position import Position
from headrace.config.plugins import Part
from headrace.config.schema import Choice, Key, ListOf
from headrace.errors import HeadraceError
from headrace.observe.logs import logger

if TYPE_CHECKING:
    from headrace.changelog.schema import TableSchema

# --- sources --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceConnected:
    """A source is connected: its recorder reads changes, or is about to."""

    source: str
    kind: str
    at: float


@dataclass(frozen=True, slots=True)
class SourceDisconnected:
    """A source was connected, and is not any more."""

    source: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class SourceStateChanged:
    """A source moved from one state to another; they are those of `SourceInfo.phase`."""

    source: str
    old: str
    new: str
    reason: str
    """Why; may be empty."""

    at: float


@dataclass(frozen=True, slots=True)
class AckAdvanced:
    """A source may discard what it keeps for us up to a position: no pipeline needs it."""

    source: str
    position: Position
    at: float


@dataclass(frozen=True, slots=True)
class LagUpdated:
    """The lag of reading a source was measured, and differs from the last event."""

    source: str
    changes: int | None
    bytes: int | None
    seconds: float | None
    at: float


# --- pipelines ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PipelineStateChanged:
    """A pipeline moved from one state to another; see `PipelineInfo.state`."""

    pipeline: str
    old: str
    """Empty for the first event of a pipeline."""

    new: str
    error: HeadraceError | None
    at: float


@dataclass(frozen=True, slots=True)
class BaselineStarted:
    """A pipeline begins to load a table from a baseline in the log."""

    pipeline: str
    table: str
    baseline: int
    at: float


@dataclass(frozen=True, slots=True)
class BaselineRowsLoaded:
    """The target has taken a piece of a baseline; readers do not see it yet."""

    pipeline: str
    table: str
    baseline: int
    rows: int
    """Loaded so far, after filters; before filters if executors prepare the rows."""

    at: float


@dataclass(frozen=True, slots=True)
class BaselineCompleted:
    """Readers see a table as of its new baseline and the changes since."""

    pipeline: str
    table: str
    baseline: int
    rows: int
    """As in the log, before filters."""

    seconds: float
    """Since it was started, until readers see it."""

    at: float


@dataclass(frozen=True, slots=True)
class RebaselineTriggered:
    """A table of a pipeline cannot continue, or a reload was requested: it is loaded again."""

    pipeline: str
    source: str
    table: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class ChangesReceived:
    """A batch was taken from the log; again for each attempt, if it fails."""

    pipeline: str
    table: str
    inserts: int
    updates: int
    deletes: int
    truncates: int
    first: Position
    last: Position
    catching_up: bool
    """Whether they are for a table that is being loaded, apart from what readers see."""

    at: float


@dataclass(frozen=True, slots=True)
class ChangesApplied:
    """The target has taken a batch, and the progress of a durable target is stored."""

    pipeline: str
    table: str
    inserts: int
    updates: int
    deletes: int
    truncates: int
    position: Position
    """The position that the table has reached."""

    catching_up: bool
    """Whether they are for a table that is being loaded, apart from what readers see."""

    seconds: float
    """From `ChangesReceived` of the last attempt to the target's answer."""

    at: float


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A pipeline's attempt to open its target, load a baseline or deliver a batch failed."""

    pipeline: str
    error: HeadraceError
    attempt: int
    """How many failed in a row, with this one."""

    retry_seconds: float | None
    """When it is tried again; None: not before a resume, or a restart."""

    at: float


@dataclass(frozen=True, slots=True)
class DeadLettersWritten:
    """Dead letters were stored durably; the rest of their batch follows."""

    pipeline: str
    table: str
    """Empty if they are of several tables and some were stored before."""

    count: int
    at: float


@dataclass(frozen=True, slots=True)
class RowsExpired:
    """Rows of a target had expired, and were deleted."""

    pipeline: str
    table: str
    rows: int
    position: Position
    """Where the deletes stand: after a commit, before the next one."""

    at: float


@dataclass(frozen=True, slots=True)
class PolicyTriggered:
    """A policy was applied to a pipeline."""

    pipeline: str
    policy: str
    """
    Its `on_failure`, when it is stopped on an error: `isolate`, `stop_source` or `stop_all`.
    `lag`: it is stopped because it lags behind by more than its limit.
    `release`: it was released from its source, which may discard what the pipeline still needs;
    its tables are loaded again.
    """

    error: HeadraceError | None
    """What the policy reacts to."""

    at: float


@dataclass(frozen=True, slots=True)
class TableAltered:
    """A pipeline has followed changed columns of a table."""

    pipeline: str
    source: str
    table: str
    old: TableSchema
    new: TableSchema
    response: str
    """`continue`, `reload` (from the log) or `rebaseline` (a new copy)."""

    at: float


# --- observers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventsDropped:
    """Events were dropped at this place, because observers were too slow."""

    count: int
    at: float


Event: TypeAlias = (
    SourceConnected
    | SourceDisconnected
    | SourceStateChanged
    | AckAdvanced
    | LagUpdated
    | PipelineStateChanged
    | BaselineStarted
    | BaselineRowsLoaded
    | BaselineCompleted
    | RebaselineTriggered
    | ChangesReceived
    | ChangesApplied
    | AttemptFailed
    | DeadLettersWritten
    | RowsExpired
    | PolicyTriggered
    | TableAltered
    | EventsDropped
)
"""Every event. Later versions may add some: an observer ignores what it does not know."""

EVENTS: tuple[type[Event], ...] = Event.__args__
"""The types of all events."""


@runtime_checkable
class Observer(Protocol):
    """
    Takes the events of an engine.

    *Order*: the events of a pipeline, and those of a source, come in the order in which they
    happened. *Threads*: all calls, for all observers, are made one after another on one thread of
    the engine, which holds up nothing else. *Slowness*: at most 10,000 events wait for it; what
    comes then is dropped, and `EventsDropped` says how many. An observer that may block should
    pass events on to a thread of its own, because the other observers wait for it. *Errors*: what
    it raises is logged once; it gets the next event all the same.
    """

    def on_event(self, event: Event) -> None:
        """Take an event."""
        ...


class NullObserver:
    """Takes every event, and does nothing."""

    def on_event(self, event: Event) -> None:
        """Do nothing."""


class CompositeObserver:
    """Passes every event to several observers, in their order; one that raises stops no other."""

    def __init__(self, *observers: Observer) -> None:
        self.observers: Sequence[Observer] = observers

    def on_event(self, event: Event) -> None:
        """Pass an event on; then raise what was raised first."""
        first: Exception | None = None
        for observer in self.observers:
            try:
                observer.on_event(event)
            except Exception as error:  # noqa: BLE001 - the user's own code
                first = first or error
        if first is not None:
            raise first


class LogObserver:
    """Writes events to the log file, with their fields."""

    def __init__(self, events: Sequence[str] = ()) -> None:
        """`events` are the names of those to write; none for all."""
        self._names = frozenset(events)
        self._log = logger(__name__)

    def on_event(self, event: Event) -> None:
        """Write an event as one line: `changes applied`."""
        name = type(event).__name__
        if self._names and name not in self._names:
            return
        shown = {each.name: _shown(getattr(event, each.name)) for each in fields(event)}
        self._log.info(_HUMP.sub(lambda hump: f" {hump[0].lower()}", name).strip(), **shown)


_HUMP = re.compile(r"[A-Z]")


def _shown(value: object) -> object:
    """Return a field for a line of JSON."""
    if isinstance(value, HeadraceError):
        return value.code
    if (names := getattr(value, "names", None)) is not None:  # the columns of a table
        return list(names)
    return value if value is None or isinstance(value, int | float) else str(value)


LOG = Part(
    "Writes events to the log file `logs/headrace.log`.",
    (
        Key(
            "events",
            ListOf(Choice(tuple(each.__name__ for each in EVENTS)), example="[AttemptFailed]"),
            "The events to write (default: all).",
            default=[],
        ),
    ),
    lambda _, values: LogObserver(values["events"]),
)
"""The type of observer that comes with Headrace."""
