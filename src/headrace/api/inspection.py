"""
Verbs for a person who looks at an engine: its tables, recent batches, dead letters and events.

They are what the web console shows beyond the status. All of them only read.

`Events` is a stream of what observers are told, from a bounded memory of the last events. The
memory begins with the first request for it, or when the engine is served on a network: an engine
that nobody can look at keeps none.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from headrace.api import table_reads
from headrace.api.connect import error_object
from headrace.api.handlers import AnswerStream, EmptyRequest, OfPipeline, Request, Verb
from headrace.errors import BadRequest, HeadraceError
from headrace.observe.events import (
    AckAdvanced,
    BaselineRowsLoaded,
    ChangesApplied,
    ChangesReceived,
    LagUpdated,
)
from headrace.targets.target import Readable

if TYPE_CHECKING:
    from headrace.deadletters.letter import DeadLetter, Image
    from headrace.engine.engine import Engine
    from headrace.observe.dispatch import ObserverHandle
    from headrace.observe.events import Event
    from headrace.runtime.info import PipelineInfo
    from headrace.targets.target import ReadableTable

MOST_LISTED = 500
"""How many dead letters, or batches, one answer has at most."""


class Batches(OfPipeline, frozen=True):
    """The last batches of a pipeline, at most `limit`."""

    limit: int = 200


class DeadLetterList(Request, frozen=True):
    """
    Dead letters of a pipeline, or of all, at most `limit`.

    `after` is the number of those to skip; with `ended`, also those that ended a while ago.
    """

    pipeline: str | None = None
    table: str | None = None
    ended: bool = False
    after: int = 0
    limit: int = 100


class EventRequest(Request, frozen=True):
    """The events after this number, as far as they are remembered, and every later one."""

    after: int = 0


class Inspection:
    """The verbs, for one engine. Safe to call from several threads."""

    def __init__(self, engine: Engine, pipeline: Callable[[str], PipelineInfo]) -> None:
        """`pipeline` returns a pipeline by its name, and raises if there is none."""
        self._engine = engine
        self._pipeline = pipeline
        self._memory = EventMemory()
        self._observed: ObserverHandle | None = None
        self._turn = threading.Lock()
        self.unary: dict[str, Verb] = {
            "Me": Verb(EmptyRequest, _local),
            "Tables": Verb(OfPipeline, self._tables),
            "Batches": Verb(Batches, self._batches),
            "DeadLetters": Verb(DeadLetterList, self._dead_letters),
        }
        self.streams: dict[str, Verb] = {"Events": Verb(EventRequest, self._events)}

    def _tables(self, asked: OfPipeline) -> dict[str, Any]:
        """Return what can be read of a pipeline's target, and by which columns."""
        info = self._pipeline(asked.pipeline)
        target = self._engine.target(info.name)
        if not isinstance(target, Readable):
            return {"pipeline": info.name, "readable": False, "tables": []}
        return {
            "pipeline": info.name,
            "readable": True,
            "tables": [_table_fields(name, target.table(name)) for name in target.tables],
        }

    def _batches(self, asked: Batches) -> dict[str, Any]:
        info = self._pipeline(asked.pipeline)
        found = self._engine.recent_batches(info.name)
        return {
            "pipeline": info.name,
            "batches": [
                {
                    "at": round(each.applied, 3),
                    "changes": each.changes,
                    "way": each.way,
                    "captured_ms": _milliseconds(each.committed, each.captured),
                    "flushed_ms": _milliseconds(each.captured, each.flushed),
                    "job_ms": _milliseconds(each.flushed, each.computed),
                    "applied_ms": _milliseconds(each.computed, each.applied),
                }
                for each in found[-_limit(asked.limit) :]
            ],
        }

    def _dead_letters(self, asked: DeadLetterList) -> dict[str, Any]:
        if asked.after < 0:
            raise BadRequest("The number of dead letters to skip must not be negative")
        name = None if asked.pipeline is None else self._pipeline(asked.pipeline).name
        found = [
            each
            for each in self._engine.dead_letters(name, superseded=asked.ended)
            if asked.table in (None, each.table)
        ]
        shown = found[asked.after : asked.after + _limit(asked.limit)]
        return {"total": len(found), "dead_letters": [_dead_letter_fields(each) for each in shown]}

    @property
    def memory(self) -> EventMemory:
        """The last events of the engine, from the first time that this is asked for."""
        with self._turn:
            if self._observed is None:
                self._observed = self._engine.observe(self._memory, "events for clients")
        return self._memory

    def _events(self, asked: EventRequest) -> AnswerStream:
        return _EventStream(self.memory, asked.after)


def _local(_asked: EmptyRequest) -> dict[str, Any]:
    """Return who asks; a server on the network answers for its callers itself."""
    return {"name": "local", "role": "admin"}


def _limit(asked: int) -> int:
    if not 0 < asked <= MOST_LISTED:
        raise BadRequest(f"The limit must be from 1 to {MOST_LISTED}")
    return asked


def _milliseconds(begin: float, end: float) -> float:
    # Not below zero: the first times are of another machine's clock.
    return max(0.0, round(1_000 * (end - begin), 3))


def _table_fields(name: str, table: ReadableTable) -> dict[str, Any]:
    try:
        lookup = list(table.columns_of(None))
    except HeadraceError:
        lookup = []
    return {
        "table": name,
        "columns": table_reads.columns_shown(table.schema),
        "key": list(table.key),
        "lookup": lookup,
        "indexes": {index: list(columns) for index, columns in table.indexes.items()},
    }


# --- dead letters ---------------------------------------------------------------------------------


def _dead_letter_fields(found: DeadLetter) -> dict[str, Any]:
    schema = None if found.change is None else found.change.schema
    mixed = {
        column.name
        for column in (schema.columns if schema else ())
        if column.type.kind == "variant"
    }

    def shown(image: Image | None) -> dict[str, Any] | None:
        if image is None:
            return None
        return {
            name: table_reads.shown_value(value, mixed=name in mixed)
            for name, value in image.items()
        }

    return {
        "pipeline": found.pipeline,
        "table": found.table,
        "position": str(found.position),
        "baseline": found.baseline,
        "op": found.op,
        "kind": found.kind,
        "code": found.code,
        "facts": dict(found.facts),
        "columns": [] if schema is None else table_reads.columns_shown(schema),
        "key_columns": [] if schema is None else list(schema.key),
        "key": [table_reads.shown_value(value) for value in found.key],
        "before": shown(found.before),
        "after": shown(found.after),
        "time": found.time.isoformat() if found.time else None,
        "parked": found.parked.isoformat(),
        "ended": found.ended.isoformat() if found.ended else None,
        "end": found.superseded,
        "note": found.note,
    }


# --- events ---------------------------------------------------------------------------------------

MOST_REMEMBERED = 1_000
"""How many events are kept for those who ask later: of the frequent ones, and of all others."""

FREQUENT = frozenset({AckAdvanced, BaselineRowsLoaded, ChangesApplied, ChangesReceived, LagUpdated})
"""What happens with every batch. A day of it would displace the one failure that is looked for."""

_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


class EventMemory:
    """The last events of an engine, numbered from 1. An observer; safe for several threads."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self.run = f"{time.time_ns():x}"
        """Tells the events of this run of the engine from those of another one."""
        self._found: tuple[deque[tuple[int, Event]], ...] = (deque(maxlen=most), deque(maxlen=most))
        self._counts = [0, 0]
        """The frequent ones are the second of both."""
        self._changed = threading.Condition()
        self._newest = 0

    def on_event(self, event: Event) -> None:
        """Remember an event, and wake those who wait for one."""
        with self._changed:
            self._newest += 1
            kind = int(type(event) in FREQUENT)
            self._found[kind].append((self._newest, event))
            self._counts[kind] += 1
            self._changed.notify_all()

    def after(self, number: int, over: Callable[[], bool]) -> list[tuple[int, Event]]:
        """Wait until there are events after a number, or it is over; return them."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest > number or over())
            return self._after(number)

    def read(self, number: int, *, frequent: bool) -> tuple[list[tuple[int, Event]], int]:
        """Return the events after a number, and how many there have been in all; never waits."""
        with self._changed:
            return self._after(number, frequent=frequent), sum(self._counts[: 1 + frequent])

    def _after(self, number: int, *, frequent: bool = True) -> list[tuple[int, Event]]:
        found: list[tuple[int, Event]] = []
        for kind in self._found[: 1 + frequent]:
            # From the newest: those who follow have all but the last ones.
            found += itertools.takewhile(lambda each: each[0] > number, reversed(kind))
        return sorted(found, key=lambda each: each[0])

    @property
    def newest(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._newest

    def wake(self) -> None:
        """Let those who wait check whether it is over."""
        with self._changed:
            self._changed.notify_all()


class _EventStream:
    """Events from a memory, one in each message."""

    def __init__(self, memory: EventMemory, after: int) -> None:
        self._memory = memory
        # A number beyond the newest is one of an engine that has been restarted since.
        self._number = after if after <= memory.newest else 0
        self._closed = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        # At once, so that a reader knows that it is connected.
        yield {"newest": self._memory.newest}
        follows = False
        while not self._closed:
            for number, event in self._memory.after(self._number, lambda: self._closed):
                # What was forgotten before it followed is not missing.
                if follows and number > self._number + 1:
                    yield {"skipped": number - self._number - 1}
                self._number = number
                yield event_fields(number, event)
            follows = True

    def close(self) -> None:
        self._closed = True
        self._memory.wake()


def event_fields(number: int, event: Event) -> dict[str, Any]:
    """Return an event; its type is in words with underscores: `changes_applied`."""
    kind = _HUMP.sub("_", type(event).__name__).lower()
    shown = {each.name: _shown(getattr(event, each.name)) for each in fields(event)}
    return {"number": number, "event": kind, **shown}


def _shown(value: object) -> object:
    if isinstance(value, HeadraceError):
        return error_object(value)
    if (names := getattr(value, "names", None)) is not None:  # the columns of a table
        return list(names)
    return value if value is None or isinstance(value, bool | int | float) else str(value)
