"""
The dispatcher: takes events from the engine's threads, and passes them to observers on its own.

`emit` never waits. Between it and the observers is one queue of limited length: if observers are
too slow, or hang, new events are dropped and counted, and the place where they are missing is
marked by an `EventsDropped`. Without observers, `emit` only looks whether there are any.

All observers are called on one thread, one after the other: each sees all events in one order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from headrace.errors import WrongValue
from headrace.observe.events import Event, EventsDropped, Observer
from headrace.observe.logs import logger

MOST_WAITING = 10_000
"""How many events may wait for the observers: some megabytes, and minutes of a busy engine."""

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ObserverInfo:
    """One observer of an engine, as observed."""

    name: str
    delivered: int
    """Events that it was called with."""

    dropped: int
    """Events that it did not get, because observers were too slow."""

    errors: int
    """How often it raised."""


class ObserverHandle:
    """Removes an observer from its engine."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Call the observer no more; a call that is running ends. A second time does nothing."""
        self._remove()


class _Registered:
    """An observer, with its counts. Changed by the dispatcher's thread alone, but `removed`."""

    __slots__ = ("delivered", "dropped_before", "errors", "name", "observer", "removed")

    def __init__(self, observer: Observer, name: str, dropped_before: int) -> None:
        self.observer = observer
        self.name = name
        self.dropped_before = dropped_before
        self.delivered = 0
        self.errors = 0
        self.removed = False


class Dispatcher:
    """
    Passes events to observers.

    *Threads*: any may call every method. *Life*: events are only taken between `start` and `stop`;
    observers stay for the next start.
    """

    def __init__(self, most: int = MOST_WAITING, wall: Callable[[], float] = time.time) -> None:
        self._most = most
        self._wall = wall
        self._lock = threading.Lock()
        self._observers: tuple[_Registered, ...] = ()
        """Replaced as a whole, so that the thread reads it without the lock."""
        self._queue: SimpleQueue[Event | None] | None = None
        """None while events are not taken."""
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        """Set once no observer may be called any more; another one for each start."""
        self._unmarked = 0
        """Dropped events whose place is not marked yet."""
        self._dropped = 0

    def observe(self, observer: Observer, name: str = "") -> ObserverHandle:
        """Pass events to an observer from now on; `name` is for the log file and the status."""
        if not isinstance(observer, Observer):
            raise WrongValue("An observer needs a method on_event", given=type(observer).__name__)
        with self._lock:
            new = _Registered(observer, name or type(observer).__name__, self._dropped)
            self._observers = (*self._observers, new)

        def remove() -> None:
            with self._lock:
                new.removed = True
                self._observers = tuple(each for each in self._observers if each is not new)

        return ObserverHandle(remove)

    def emit(self, event: Event) -> None:
        """Pass an event on, after its effect; never waits and never raises."""
        queue = self._queue
        if queue is None or not self._observers:
            return
        if queue.qsize() >= self._most:
            with self._lock:
                self._unmarked += 1
                self._dropped += 1
            return
        if self._unmarked and (mark := self._mark()) is not None:
            queue.put(mark)
        queue.put(event)

    def start(self) -> None:
        """Begin to take events."""
        self._queue, self._over = SimpleQueue(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._queue, self._over), name="headrace events", daemon=True
        )
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Pass on what waits, for at most some seconds; then call no observer any more."""
        queue, thread, self._queue, self._thread = self._queue, self._thread, None, None
        if queue is None or thread is None:
            return
        queue.put(None)
        if thread is not threading.current_thread():  # an observer may stop its engine
            thread.join(seconds)
            if thread.is_alive():
                _log.warning("observers did not take all events", left=queue.qsize())
        self._over.set()

    def infos(self) -> tuple[ObserverInfo, ...]:
        """Return the current observers with their counts."""
        return tuple(
            ObserverInfo(
                each.name, each.delivered, self._dropped - each.dropped_before, each.errors
            )
            for each in self._observers
        )

    def _mark(self) -> EventsDropped | None:
        """Return the mark for dropped events; None if another thread has taken it."""
        with self._lock:
            count, self._unmarked = self._unmarked, 0
        return EventsDropped(count, self._wall()) if count else None

    def _run(self, queue: SimpleQueue[Event | None], over: threading.Event) -> None:
        while (event := queue.get()) is not None:
            if over.is_set():
                return
            self._pass_on(event)
            # If nothing else happens, no later event brings the mark.
            if self._unmarked and queue.empty() and (mark := self._mark()) is not None:
                self._pass_on(mark)

    def _pass_on(self, event: Event) -> None:
        for each in self._observers:
            if each.removed:
                continue
            try:
                each.observer.on_event(event)
            except BaseException as error:  # noqa: BLE001 - the user's own code may raise anything
                each.errors += 1
                if each.errors == 1:
                    _log.failed("observer raised", error, observer=each.name)
            each.delivered += 1
