"""Events reach observers in order, from one thread, and no observer holds anything up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path

import pytest

from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import TargetError, WrongValue
from headrace.observe.dispatch import Dispatcher
from headrace.observe.events import (
    EVENTS,
    AckAdvanced,
    AttemptFailed,
    CompositeObserver,
    Event,
    EventsDropped,
    LogObserver,
    NullObserver,
    SourceConnected,
    TableAltered,
)
from headrace.observe.logs import FILE, log_into
from tests.support.patience import patience

PATIENCE = patience()


def event(number: int) -> AckAdvanced:
    return AckAdvanced("shop", Position(1, number), float(number))


class Collector:
    """Takes events; the test waits until one has come."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[int] = set()
        self._changed = threading.Condition()

    def on_event(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self.threads.add(threading.get_ident())
            self._changed.notify_all()

    def await_count(self, count: int) -> list[Event]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.events) >= count, PATIENCE)
            return list(self.events)


class Blocked(Collector):
    """Does not return from its first event until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def on_event(self, event: Event) -> None:
        self.entered.set()
        assert self.released.wait(PATIENCE)
        super().on_event(event)


class Raises(Collector):
    def on_event(self, event: Event) -> None:
        super().on_event(event)
        raise ValueError("no")


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    made = Dispatcher(most=5, wall=lambda: 9.0)
    made.start()
    yield made
    made.stop(PATIENCE)


@pytest.fixture
def slow(dispatcher: Dispatcher) -> Iterator[Blocked]:
    """An observer of the dispatcher that is released at the latest before this is stopped."""
    made = Blocked()
    dispatcher.observe(made, "slow")
    yield made
    made.released.set()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    close = log_into(tmp_path)
    yield tmp_path / FILE
    close()


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_events_come_in_order_on_one_thread_that_is_not_the_emitters() -> None:
    dispatcher = Dispatcher()
    first, second = Collector(), Collector()
    dispatcher.observe(first)
    dispatcher.observe(second)
    dispatcher.start()
    emitted = [event(number) for number in range(500)]
    for each in emitted:
        dispatcher.emit(each)
    dispatcher.stop(PATIENCE)
    assert first.events == second.events == emitted
    assert first.threads == second.threads
    assert len(first.threads) == 1
    assert threading.get_ident() not in first.threads


def test_events_of_several_threads_keep_the_order_of_each() -> None:
    dispatcher = Dispatcher()
    collector = Collector()
    dispatcher.observe(collector)
    dispatcher.start()

    def emit(source: str) -> None:
        for number in range(300):
            dispatcher.emit(SourceConnected(source, "test", float(number)))

    threads = [threading.Thread(target=emit, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dispatcher.stop(PATIENCE)
    for name in "abc":
        times = [each.at for each in collector.events if getattr(each, "source", "") == name]
        assert times == [float(number) for number in range(300)]


def test_a_slow_observer_loses_events_and_learns_how_many_where_they_are_missing(
    dispatcher: Dispatcher, slow: Blocked
) -> None:
    dispatcher.emit(event(0))
    assert slow.entered.wait(PATIENCE)
    for number in range(1, 9):  # the first is being handled, five wait, three are dropped
        dispatcher.emit(event(number))
    [info] = dispatcher.infos()
    assert (info.name, info.delivered, info.dropped, info.errors) == ("slow", 0, 3, 0)
    slow.released.set()
    slow.await_count(6)
    # What comes next is after the mark, also if the mark is only then due.
    dispatcher.emit(event(9))
    seen = slow.await_count(8)
    assert seen == [*map(event, range(6)), EventsDropped(3, 9.0), event(9)]
    assert dispatcher.infos()[0].dropped == 3


def test_a_slow_observer_learns_of_dropped_events_although_nothing_else_happens(
    dispatcher: Dispatcher, slow: Blocked
) -> None:
    dispatcher.emit(event(0))
    assert slow.entered.wait(PATIENCE)
    for number in range(1, 8):
        dispatcher.emit(event(number))
    slow.released.set()
    assert slow.await_count(7)[-1] == EventsDropped(2, 9.0)


def test_an_observer_that_came_later_did_not_miss_what_was_dropped_before(
    dispatcher: Dispatcher, slow: Blocked
) -> None:
    dispatcher.emit(event(0))
    assert slow.entered.wait(PATIENCE)
    for number in range(1, 8):
        dispatcher.emit(event(number))
    dispatcher.observe(NullObserver())
    assert [each.dropped for each in dispatcher.infos()] == [2, 0]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
def test_an_observer_that_raises_is_logged_once_by_name_and_gets_the_next_event(
    dispatcher: Dispatcher, log: Path, error: BaseException
) -> None:
    class Fails(Collector):
        def on_event(self, event: Event) -> None:
            super().on_event(event)
            raise error

    fails, other = Fails(), Collector()
    dispatcher.observe(fails)
    dispatcher.observe(other)
    for number in range(3):
        dispatcher.emit(event(number))
    assert fails.await_count(3) == other.await_count(3)
    dispatcher.stop(PATIENCE)
    assert dispatcher.infos()[0].errors == 3
    [line] = lines(log)
    assert (line["event"], line["observer"], line["level"]) == ("observer raised", "Fails", "error")


def test_a_removed_observer_gets_nothing_more_and_others_do(dispatcher: Dispatcher) -> None:
    gone, other = Collector(), Collector()
    handle = dispatcher.observe(gone)
    dispatcher.observe(other)
    dispatcher.emit(event(0))
    other.await_count(1)
    handle.remove()
    handle.remove()
    dispatcher.emit(event(1))
    other.await_count(2)
    assert gone.events == [event(0)]
    assert [each.name for each in dispatcher.infos()] == ["Collector"]


def test_an_observer_may_remove_itself_and_one_after_it(dispatcher: Dispatcher) -> None:
    class Removes(Collector):
        def on_event(self, event: Event) -> None:
            super().on_event(event)
            own.remove()
            next_one.remove()

    first, second = Removes(), Collector()
    own = dispatcher.observe(first)
    next_one = dispatcher.observe(second)
    dispatcher.emit(event(0))
    dispatcher.emit(event(1))
    dispatcher.stop(PATIENCE)
    assert (first.events, second.events) == ([event(0)], [])


def test_events_before_the_start_and_after_the_stop_are_not_taken() -> None:
    dispatcher, collector = Dispatcher(), Collector()
    dispatcher.observe(collector)
    dispatcher.emit(event(0))
    for number in (1, 2):  # it may be started again
        dispatcher.start()
        dispatcher.emit(event(number))
        dispatcher.stop(PATIENCE)
        dispatcher.emit(event(9))
    assert collector.events == [event(1), event(2)]


def test_a_stop_passes_on_what_waits_but_does_not_wait_for_an_observer_that_hangs(
    log: Path,
) -> None:
    dispatcher, hangs = Dispatcher(), Blocked()
    dispatcher.observe(hangs)
    dispatcher.start()
    dispatcher.emit(event(0))
    assert hangs.entered.wait(PATIENCE)
    dispatcher.emit(event(1))
    thread = dispatcher._thread
    assert thread is not None
    dispatcher.stop(0.01)
    [line] = lines(log)
    assert line["event"] == "observers did not take all events"
    hangs.released.set()
    thread.join(PATIENCE)
    assert hangs.events == [event(0)]


def test_an_observer_may_stop_what_it_observes() -> None:
    dispatcher, done = Dispatcher(), threading.Event()

    class Stops:
        def on_event(self, event: Event) -> None:
            dispatcher.stop(PATIENCE)
            done.set()

    dispatcher.observe(Stops())
    dispatcher.start()
    dispatcher.emit(event(0))
    assert done.wait(PATIENCE)


def test_what_has_no_method_for_events_is_no_observer(dispatcher: Dispatcher) -> None:
    with pytest.raises(WrongValue) as caught:
        dispatcher.observe(object())  # type: ignore[arg-type]
    assert caught.value.facts["given"] == "object"


def test_a_composite_passes_on_everything_though_one_raises() -> None:
    fails, after = Raises(), Collector()
    composite = CompositeObserver(NullObserver(), fails, after)
    with pytest.raises(ValueError, match="no"):
        composite.on_event(event(1))
    assert fails.events == after.events == [event(1)]


def test_the_log_observer_writes_the_events_that_are_chosen_as_lines(log: Path) -> None:
    old = TableSchema("orders", (Column("id", ValueType.parse("int64"), 1),), ("id",))
    error = TargetError("the answer was 4711")
    observer = LogObserver(["AttemptFailed", "TableAltered"])
    observer.on_event(event(1))
    observer.on_event(AttemptFailed("orders", error, 2, 0.5, 9.0))
    observer.on_event(TableAltered("orders", "shop", "orders", old, old, "continue", 9.0))
    failed, altered = lines(log)
    assert failed["event"] == "attempt failed"
    assert (failed["error"], failed["attempt"], failed["retry_seconds"]) == (error.code, 2, 0.5)
    assert (altered["event"], altered["old"]) == ("table altered", ["id"])
    LogObserver().on_event(event(1))
    assert lines(log)[2]["position"] == str(Position(1, 1))


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_is_a_frozen_value_with_a_time_and_a_docstring(kind: type[Event]) -> None:
    assert is_dataclass(kind)
    names = [each.name for each in fields(kind)]
    assert names[-1] == "at"
    assert kind.__doc__
    assert "__slots__" in vars(kind)
    made = kind(*range(len(names)))
    with pytest.raises(FrozenInstanceError):
        made.at = 1.0  # type: ignore[misc]
