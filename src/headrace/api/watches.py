"""
Streams of what happens in an engine: states as they change, and events.

A reader may be slow, and must not slow anything down. What waits for it is bounded: once there is
too much, the messages about the same thing become one, with the latest state and the number of
those that it stands for. Events come from a memory that drops the oldest; a reader that comes late
is told how many it missed.

States change with events, and some change when nothing happens: a pipeline is not ready any more
once its oldest change has waited for too long. So the states are also looked at once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from headrace.api.inspection import FREQUENT
from headrace.api.status_messages import (
    error_message,
    laredo_state,
    names,
    struct,
    text,
    timestamp,
)
from headrace.engine.health import sentence
from headrace.errors import BadRequest, HeadraceError
from headrace.observe.events import (
    EVENTS,
    ChangesApplied,
    PipelineStateChanged,
    SourceConnected,
    SourceDisconnected,
    SourceStateChanged,
)
from headrace.v1 import oam_pb2

if TYPE_CHECKING:
    from headrace.api.inspection import EventMemory
    from headrace.engine.engine import Engine
    from headrace.observe.events import Event

LOOK_SECONDS = 1.0
"""How often states are looked at that change without an event."""

MOST_WAITING = 256
"""How many messages wait for a reader before those about the same thing become one."""


# --- states ---------------------------------------------------------------------------------------

_Subject = tuple[str, ...]


@dataclass(slots=True)
class _Waiting:
    """A message that waits for the reader."""

    subject: _Subject
    message: oam_pb2.WatchStatusResponse


class StatusWatch:
    """The states of an engine, of its sources and of its pipelines, as they change."""

    def __init__(
        self,
        engine: Engine,
        statuses: Callable[[], oam_pb2.GetStatusResponse],
        asked: oam_pb2.WatchStatusRequest,
    ) -> None:
        """`statuses` returns the status of everything, without counting rows."""
        self._statuses = statuses
        self._tables = frozenset(asked.tables)
        self._named = frozenset(asked.pipeline_ids)
        self._states_only = asked.states_only
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._moves = 0
        """How many events of states there were."""
        self._closed = False
        self._service: tuple[oam_pb2.ServiceState, bool] = (
            oam_pb2.SERVICE_STATE_UNSPECIFIED,
            False,
        )
        self._pipelines: dict[str, tuple[oam_pb2.PipelineState, str]] = {}
        """The state of each pipeline that the reader knows, in Laredo's words and in ours."""
        self._sources: dict[str, str] = {}
        # Before the states are read: no change is between the two.
        self._observed = engine.observe(self, "watch of states")
        self._look(report=asked.initial)

    def __iter__(self) -> Iterator[oam_pb2.WatchStatusResponse]:
        while not self._closed:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed, LOOK_SECONDS)
                ready, self._waiting = self._waiting, []
            if not ready:
                self._look(report=True)
            for each in ready:
                if self._closed:
                    return
                yield each.message
            if any(each.subject[0] != "rows" for each in ready):
                self._look(report=True, pipelines=False)

    def close(self) -> None:
        """End the stream."""
        self._observed.remove()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- events, on the engine's thread for them ------------------------------------------

    def on_event(self, event: Event) -> None:
        """Take an event of the engine."""
        with self._changed:
            self._moves += isinstance(event, PipelineStateChanged | SourceStateChanged)
            match event:
                case PipelineStateChanged():
                    state = "streaming" if event.new == "live" else event.new
                    self._pipeline(event.pipeline, state, event.error, event.at)
                case SourceStateChanged():
                    self._source(event.source, event.new, event.reason, event.at)
                case SourceConnected():
                    self._source_event(event.source, "connected", "", event.at)
                case SourceDisconnected():
                    self._source_event(event.source, "disconnected", event.reason, event.at)
                case ChangesApplied():
                    self._rows(event)
                case _:
                    pass

    def _rows(self, event: ChangesApplied) -> None:
        if self._states_only or not self._follows(event.pipeline, [event.table]):
            return
        schema, table = names(event.table)
        for action, count in (
            ("INSERT", event.inserts),
            ("UPDATE", event.updates),
            ("DELETE", event.deletes),
            ("TRUNCATE", event.truncates),
        ):
            if count:
                found = oam_pb2.RowChange(
                    pipeline_id=event.pipeline,
                    schema=schema,
                    table=table,
                    action=action,
                    position=str(event.position),
                    count=count,
                )
                self._put(("rows", event.pipeline, event.table, action), event.at, row_change=found)

    # -- the states of now ----------------------------------------------------------------

    def _look(self, *, report: bool, pipelines: bool = True) -> None:
        """
        Compare the states with those that the reader knows.

        Not those of `pipelines` right after an event: one that begins to stream is not ready for
        a moment, and that is no news.
        """
        moves = self._moves
        status = self._statuses()
        now = time.time()
        with self._changed:
            if report and moves != self._moves:
                return  # they are older than what the events say; the next look compares
            for source in status.sources:
                if self._sources.get(source.source_id) != source.phase:
                    self._source(source.source_id, source.phase, source.reason, now, report=report)
            for each in status.pipelines if pipelines else ():
                tables = [table.table for table in each.tables]
                if self._follows(each.pipeline_id, tables):
                    known = self._pipelines.get(each.pipeline_id)
                    if known != (each.state, each.state_name):
                        error = each.error if each.HasField("error") else None
                        found = (each.state, each.state_name)
                        self._put_pipeline(each.pipeline_id, found, error, now, report=report)
            after = (status.state, status.ready)
            if after != self._service:
                before, self._service = self._service, after
                if report:
                    change = oam_pb2.ServiceStateChange(
                        old_state=before[0], new_state=after[0], ready=after[1]
                    )
                    self._put(("service",), now, service_state_change=change)

    def _follows(self, pipeline: str, tables: Iterable[str]) -> bool:
        return (not self._named or pipeline in self._named) and (
            not self._tables or not self._tables.isdisjoint(tables)
        )

    def _source(
        self, name: str, state: str, reason: str, at: float, *, report: bool = True
    ) -> None:
        before = self._sources.get(name, "")
        self._sources[name] = state
        if report and before != state:
            self._source_event(name, "state", reason, at, before, state)

    def _source_event(
        self, name: str, kind: str, reason: str, at: float, old: str = "", new: str = ""
    ) -> None:
        found = oam_pb2.SourceStateChange(
            source_id=name, event_type=kind, message=text(reason), old_state=old, new_state=new
        )
        self._put(("source", name, kind), at, source_state_change=found)

    def _pipeline(self, name: str, state: str, error: HeadraceError | None, at: float) -> None:
        known = name in self._pipelines
        # One that is new is found by the next look, which knows its tables.
        if known or (not self._tables and self._follows(name, ())):
            found = (laredo_state(state, error=error is not None), state)
            self._put_pipeline(name, found, error_message(error), at)

    def _put_pipeline(
        self,
        name: str,
        found: tuple[oam_pb2.PipelineState, str],
        error: Any,
        at: float,
        *,
        report: bool = True,
    ) -> None:
        old = self._pipelines.get(name, (oam_pb2.PIPELINE_STATE_UNSPECIFIED, ""))
        self._pipelines[name] = found
        if report and old != found:
            change = oam_pb2.PipelineStateChangeEvent(
                pipeline_id=name,
                old_state=old[0],
                new_state=found[0],
                old_name=old[1],
                new_name=found[1],
                error=error,
            )
            self._put(("pipeline", name), at, pipeline_state_change=change)

    def _put(self, subject: _Subject, at: float, **change: Any) -> None:
        message = oam_pb2.WatchStatusResponse(timestamp=timestamp(at), **change)
        self._waiting.append(_Waiting(subject, message))
        if len(self._waiting) > MOST_WAITING:
            self._waiting = merged(self._waiting)
        self._changed.notify_all()


def merged(waiting: Iterable[_Waiting]) -> list[_Waiting]:
    """Return one message for each subject, the latest, with the number of those before it."""
    last: dict[_Subject, _Waiting] = {}
    for each in waiting:
        before = last.pop(each.subject, None)
        if before is not None:
            _follow(before.message, each.message)
        last[each.subject] = each
    return list(last.values())


def _follow(before: oam_pb2.WatchStatusResponse, after: oam_pb2.WatchStatusResponse) -> None:
    """Let a message stand for the one before it, too."""
    after.skipped += before.skipped + 1
    kind = after.WhichOneof("event")
    old, new = getattr(before, kind), getattr(after, kind)
    if kind == "row_change":
        new.count += old.count
    elif kind == "pipeline_state_change":
        new.old_state, new.old_name = old.old_state, old.old_name
    else:
        new.old_state = old.old_state


# --- events ---------------------------------------------------------------------------------------

_TYPES = {each.__name__: each for each in EVENTS}


@dataclass(frozen=True, slots=True)
class EventChoice:
    """Which events: of some types, of a source, of a pipeline."""

    types: frozenset[type]
    source: str
    pipeline: str

    @classmethod
    def of(cls, types: Iterable[str], source: str, pipeline: str) -> EventChoice:
        """Read the fields of a request; no type means all but the frequent ones."""
        given = set(types)
        if unknown := sorted(given - _TYPES.keys()):
            raise BadRequest(
                f"There is no event {unknown[0]}",
                remedy=f"Events are: {', '.join(_TYPES)}.",
                types=unknown,
            )
        chosen = {_TYPES[name] for name in given} or set(EVENTS) - FREQUENT
        return cls(frozenset(chosen), source, pipeline)

    @property
    def frequent(self) -> bool:
        """Whether it includes frequent ones."""
        return not self.types.isdisjoint(FREQUENT)

    def has(self, event: Event) -> bool:
        """Whether an event is one of them."""
        return (
            type(event) in self.types
            and self.source in ("", getattr(event, "source", ""))
            and self.pipeline in ("", getattr(event, "pipeline", ""))
        )


class EventWatch:
    """The events of an engine as they happen, from its memory of the last ones."""

    def __init__(self, memory: EventMemory, chosen: EventChoice, after: str) -> None:
        """`after` is the id of the event to begin after; empty to begin with the next one."""
        self._memory = memory
        self._chosen = chosen
        self._number = number_of(memory, after) if after else memory.newest
        found, count = memory.read(self._number, frequent=chosen.frequent)
        self._count = count - len(found)
        """How many events there were that the reader has, or does not want."""
        self._skipped = 0
        self._closed = False

    def __iter__(self) -> Iterator[oam_pb2.WatchEventsResponse]:
        while not self._closed:
            self._memory.after(self._number, lambda: self._closed)
            newest = self._memory.newest
            found, count = self._memory.read(self._number, frequent=self._chosen.frequent)
            self._skipped += count - self._count - len(found)
            self._count = count
            self._number = max([newest, *(number for number, _ in found)])
            for number, event in found:
                if self._closed:
                    return
                if self._chosen.has(event):
                    skipped, self._skipped = self._skipped, 0
                    yield oam_pb2.WatchEventsResponse(
                        event=event_message(self._memory, number, event), skipped=skipped
                    )

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self._memory.wake()


def number_of(memory: EventMemory, id: str) -> int:
    """Return the number of an event; 0, before all, for one of another run of the engine."""
    run, _, number = id.partition("-")
    if not number.isdecimal():
        raise BadRequest("This is not the id of an event", remedy="Give the id of an event.")
    return min(int(number), memory.newest) if run == memory.run else 0


def event_message(memory: EventMemory, number: int, event: Event) -> oam_pb2.EngineEvent:
    """Return an event, with its fields and in a sentence."""
    shown = {each.name: getattr(event, each.name) for each in fields(event)}
    error = shown.pop("error", None)
    at = shown.pop("at")
    place = {name: shown.pop(name, "") for name in ("source", "pipeline", "table")}
    plain = {name: _shown(value) for name, value in shown.items()}
    return oam_pb2.EngineEvent(
        id=f"{memory.run}-{number}",
        time=timestamp(at),
        type=type(event).__name__,
        text=text(_sentence(type(event).__name__, place, plain, error)),
        fields=struct(plain),
        error=error_message(error),
        **place,
    )


def _shown(value: object) -> object:
    if (names := getattr(value, "names", None)) is not None:  # the columns of a table
        return list(names)
    return value if value is None or isinstance(value, bool | int | float) else text(value)


def _sentence(
    type: str, place: dict[str, str], shown: dict[str, object], error: HeadraceError | None
) -> str:
    """Return `pipeline orders, state changed: old=waiting, new=live`."""
    subject = ", ".join(f"{part} {name}" for part, name in place.items() if name)
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in type).strip()
    for part in ("source ", "pipeline "):
        words = words.removeprefix(part)
    rest = ", ".join(f"{name}={value}" for name, value in shown.items() if value not in (None, ""))
    why = sentence(error, place["pipeline"] or place["source"])
    return ": ".join(each for each in (f"{subject}, {words}".strip(", "), rest, why) if each)
