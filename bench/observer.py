"""
What an event costs: from its construction on a thread of the engine to an observer's call.

The floor is the same events passed to the same observer by a plain call. Time is that of the
process, both threads together. Events come in bursts, as those of batches do, and the queue never
gets full.
"""

from __future__ import annotations

import threading
import time

from bench.harness import Result, Rounds, at_most
from headrace.changelog.position import Position
from headrace.observe.dispatch import MOST_WAITING, Dispatcher
from headrace.observe.events import ChangesApplied, Event

BURST = MOST_WAITING // 10
EVENTS = 200 * BURST


class _Counting:
    """Counts its events, and says when a burst has come."""

    def __init__(self) -> None:
        self.count = 0
        self.burst = threading.Event()

    def on_event(self, event: Event) -> None:
        self.count += 1
        if self.count % BURST == 0:
            self.burst.set()


def _applied(at: float) -> ChangesApplied:
    return ChangesApplied("orders", "orders", 3, 2, 1, 0, _AT, False, 0.01, at)


_AT = Position(1, 1_000, 3)


def run(*, quick: bool) -> list[Result]:
    """Pass events on in several rounds, in turns with the floor."""
    rounds = Rounds()
    events = EVENTS // 10 if quick else EVENTS
    for _ in range(3 if quick else 9):
        rounds.floor.append(_direct(events))
        rounds.ours.append(_dispatched(events))
    return [rounds.result("observer.cpu_us_per_event", "µs", at_most(5), "a plain call")]


def _direct(events: int) -> float:
    observer = _Counting()
    begin = time.process_time()
    for number in range(events):
        observer.on_event(_applied(number))
    return _each(begin, events)


def _dispatched(events: int) -> float:
    dispatcher, observer = Dispatcher(), _Counting()
    dispatcher.observe(observer)
    dispatcher.start()
    begin = time.process_time()
    for first in range(0, events, BURST):
        for number in range(first, first + BURST):
            dispatcher.emit(_applied(number))
        assert observer.burst.wait(60), "the observer did not get all events"
        observer.burst.clear()
    spent = _each(begin, events)
    dispatcher.stop(60)
    assert observer.count == events, "events were dropped"
    return spent


def _each(begin: float, events: int) -> float:
    return 1_000_000 * (time.process_time() - begin) / events
