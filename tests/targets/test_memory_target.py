"""The memory target: readers and listeners of changes, and the calls of the engine."""

import gc
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.changelog.position import ORIGIN, Position
from headrace.errors import FellBehind, NoKey, TableError, UnknownColumn, UnknownTable
from headrace.observe import logs
from headrace.tables import Row, TableChange
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.target import Batch, Loading, Target
from tests.support.patience import patience
from tests.support.shop import await_seen
from tests.tables.build import DELETE, INSERT, UPDATE, Values, baseline, changes, table_schema

ORDERS = table_schema(id="int64", grp="int32")


def batch(*steps: tuple[int, Values], at: int, truncate: Position | None = None) -> Batch:
    """Return changes of one commit."""
    placed = [(op, Position(1, at, n), row) for n, (op, row) in enumerate(steps)]
    last = placed[-1][1] if placed else Position(1, at, 2**31 - 1)
    truncates = {} if truncate is None else {"orders": truncate}
    return Batch(str(at), 1, Position(1, at), last, {"orders": changes(ORDERS, placed)}, truncates)


def opened(*, show: bool = True) -> IndexedMemory:
    target = memory(indexes={"by_grp": ["grp"]})
    target.open({"orders": ORDERS}, {"orders": ORIGIN})
    if show:
        target.load("orders", 0).switch(ORIGIN)
    return target


def operations(found: Sequence[TableChange]) -> list[tuple[str, object, object]]:
    return [
        (
            change.op,
            None if change.before is None else change.before["grp"],
            None if change.after is None else change.after["grp"],
        )
        for change in found
    ]


class RecordingListener:
    """A listener that can be waited for."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Row | None, Row | None]] = []
        self._more = threading.Condition()

    def __call__(self, old: Row | None, new: Row | None) -> None:
        with self._more:
            self.pairs.append((old, new))
            self._more.notify_all()

    def wait(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self.pairs) >= count, timeout=patience())


def test_it_is_a_target() -> None:
    target: Target = memory()
    target.open({"orders": ORDERS}, {"orders": ORIGIN})
    loading: Loading = target.load("orders", 1)
    loading.discard()
    assert target.traits.type == "indexed-memory"
    assert not target.traits.durable
    assert target.traits.keyed


def test_every_change_is_heard_in_order_with_both_rows() -> None:
    target = opened()
    reader = target.changes()
    target.write(
        batch(
            (INSERT, {"id": 1, "grp": 1}),
            (UPDATE, {"id": 1, "grp": 2}),
            (DELETE, {"id": 1}),
            (DELETE, {"id": 1}),
            (UPDATE, {"id": 1, "grp": 3}),
            (INSERT, {"id": 1, "grp": 4}),
            at=1,
        )
    )
    target.close()
    found = list(reader)
    assert operations(found) == [
        ("insert", None, 1),
        ("update", 1, 2),
        ("delete", 2, None),
        ("insert", None, 3),
        ("update", 3, 4),
    ]
    assert [change.position.ordinal for change in found] == [0, 1, 2, 4, 5]
    assert {change.key for change in found} == {(1,)}
    assert target.get(1) == {"id": 1, "grp": 4}


@pytest.mark.meets("invariant 4")
def test_a_batch_that_comes_again_is_not_heard_again() -> None:
    target = opened()
    reader = target.changes()
    first = batch((INSERT, {"id": 1, "grp": 1}), at=1)
    assert target.write(first) == Position(1, 1)
    target.write(batch((DELETE, {"id": 1}), at=2))
    assert target.write(first) == Position(1, 2)
    target.close()
    assert operations(list(reader)) == [("insert", None, 1), ("delete", 1, None)]


@pytest.mark.meets("R23d")
def test_a_truncate_is_one_change_before_the_rows_that_follow() -> None:
    target = opened()
    target.write(batch((INSERT, {"id": 1, "grp": 1}), (INSERT, {"id": 2, "grp": 1}), at=1))
    reader, listener = target.changes(), RecordingListener()
    target.listen(listener)
    late = batch((INSERT, {"id": 3, "grp": 3}), at=3, truncate=Position(1, 2))
    target.write(late)
    target.write(late)
    target.close()
    found = list(reader)
    assert operations(found) == [("truncate", None, None), ("insert", None, 3)]
    assert found[0].key == ()
    assert [change.position for change in found] == [Position(1, 2), Position(1, 3)]
    assert listener.pairs[0] == (None, None)
    assert [row["id"] for row in target.all()] == [3]


def test_changes_end_when_the_engine_stops_after_what_was_there() -> None:
    target = opened()
    reader = target.changes()
    target.write(batch((INSERT, {"id": 1}), at=1))
    target.close()
    assert [change.op for change in reader] == ["insert"]
    assert list(reader) == []
    assert target.get(1) is not None


def test_a_reader_that_waits_is_woken_when_the_engine_stops() -> None:
    target = opened()
    reader = target.changes()
    ended = threading.Event()

    def read() -> None:
        for _ in reader:
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    target.close()
    assert ended.wait(patience())


def test_a_reader_may_begin_with_the_rows_that_are_there() -> None:
    target = opened()
    target.write(batch((INSERT, {"id": 1, "grp": 1}), (INSERT, {"id": 2, "grp": 2}), at=1))
    reader = target.changes(start="rows")
    target.write(batch((DELETE, {"id": 1}), at=2))
    target.close()
    found = list(reader)
    assert operations(found) == [("insert", None, 1), ("insert", None, 2), ("delete", 1, None)]
    assert [change.position.commit for change in found] == [1, 1, 2]
    with pytest.raises(TableError):
        target.changes(start="then")


@pytest.mark.meets("invariant 7")
def test_who_listens_before_the_start_hears_the_first_rows_once_they_are_exact() -> None:
    target = memory()
    listener, reader = RecordingListener(), target.changes("rows")
    target.listen(listener)
    target.open({"orders": ORDERS}, {"orders": ORIGIN})
    loading = target.load("orders", 1)
    loading.write(baseline(ORDERS, [{"id": 1, "grp": 1}, {"id": 2, "grp": 2}]))
    loading.catch_up(batch((UPDATE, {"id": 1, "grp": 7}), at=6))
    assert reader.lag == 0
    assert target.position == ORIGIN
    with pytest.raises(UnknownTable):
        target.get(1)
    loading.switch(Position(1, 6))
    listener.wait(2)
    target.close()
    assert sorted(operations(list(reader))) == [("insert", None, 2), ("insert", None, 7)]
    assert target.position == Position(1, 6)


def test_a_reload_is_heard_as_the_difference() -> None:
    target = opened()
    target.write(batch(*((INSERT, {"id": n, "grp": n}) for n in range(4)), at=1))
    reader = target.changes()
    loading = target.load("orders", 2)
    loading.write(baseline(ORDERS, [{"id": 1, "grp": 1}, {"id": 2, "grp": 22}]))
    loading.write(baseline(ORDERS, [{"id": 9, "grp": 9}, {"id": 3, "grp": None}]))
    assert target.count() == 4
    loading.switch(Position(1, 5))
    target.close()
    found = list(reader)
    assert operations(found) == [
        ("delete", 0, None),
        ("update", 2, 22),
        ("insert", None, 9),
        ("update", 3, None),
    ]
    assert {change.position for change in found} == {Position(1, 5)}


@pytest.mark.slow
def test_a_reader_too_far_behind_is_told_and_the_others_go_on() -> None:
    target = opened()
    slow, quick = target.changes(), target.changes()
    first = [(INSERT, {"id": n}) for n in range(60_000)]
    target.write(batch(*first, at=1))
    for _ in range(60_000):
        next(quick)
    target.write(batch(*first, at=2))
    with pytest.raises(FellBehind) as caught:
        next(slow)
    assert caught.value.facts["behind"] == 120_000
    assert quick.lag == 60_000
    assert next(quick).op == "update"


@pytest.mark.slow
def test_one_batch_may_be_larger_than_what_may_wait() -> None:
    target = opened()
    reader = target.changes()
    target.write(batch(*((INSERT, {"id": n}) for n in range(100_001)), at=1))
    assert reader.lag == 100_001
    target.close()
    assert sum(1 for _ in reader) == 100_001


def test_a_loop_that_was_left_gathers_nothing_more() -> None:
    target = opened()
    reader = target.changes()
    assert target._feeds["orders"].wanted
    del reader
    gc.collect()
    assert not target._feeds["orders"].wanted


def test_a_reader_can_be_closed_from_another_thread() -> None:
    target = opened()
    reader = target.changes()
    target.write(batch((INSERT, {"id": 1}), at=1))
    reader.close()
    target.write(batch((INSERT, {"id": 2}), at=2))
    assert list(reader) == []


def test_a_listener_hears_both_rows_until_it_is_stopped() -> None:
    target = opened()
    listener = RecordingListener()
    stop = target.listen(listener)
    target.write(batch((INSERT, {"id": 1, "grp": 1}), (UPDATE, {"id": 1, "grp": 2}), at=1))
    target.write(batch((DELETE, {"id": 1}), at=2))
    listener.wait(3)
    stop()
    stop()
    target.write(batch((INSERT, {"id": 2}), at=3))
    target.close()
    one, two = {"id": 1, "grp": 1}, {"id": 1, "grp": 2}
    assert listener.pairs == [(None, one), (one, two), (two, None)]


def test_a_change_is_visible_before_it_is_heard() -> None:
    target = opened()
    seen: list[Row | None] = []
    done = threading.Event()

    def look(old: Row | None, new: Row | None) -> None:
        seen.append(target.get(1))
        done.set()

    target.listen(look)
    target.write(batch((INSERT, {"id": 1, "grp": 1}), at=1))
    assert done.wait(patience())
    assert seen == [{"id": 1, "grp": 1}]
    target.close()


def test_a_slow_listener_holds_up_neither_the_writer_nor_the_others() -> None:
    target = opened()
    go, listener = threading.Event(), RecordingListener()
    target.listen(lambda old, new: go.wait(patience()))
    target.listen(listener)
    for at in range(1, 51):
        target.write(batch((INSERT, {"id": at}), at=at))
    listener.wait(50)
    assert target.count() == 50
    go.set()
    target.close()


def test_a_listener_that_raises_is_dropped_logged_and_counted(tmp_path: Path) -> None:
    target = opened()
    listener = RecordingListener()

    def fail(old: Row | None, new: Row | None) -> None:
        raise RuntimeError("secret value")

    close = logs.log_into(tmp_path)
    target.listen(fail)
    target.listen(listener)
    target.write(batch((INSERT, {"id": 1}), at=1))
    target.write(batch((INSERT, {"id": 2}), at=2))
    listener.wait(2)
    assert await_seen(lambda: target.dropped_listeners == 1)
    target.close()
    close()
    assert target.dropped_listeners == 1
    (line,) = (tmp_path / logs.FILE).read_text().splitlines()
    assert json.loads(line)["event"] == "listener dropped"
    assert "secret" not in line


def test_a_listener_may_stop_the_engine() -> None:
    target = opened()
    closed = threading.Event()

    def close(old: Row | None, new: Row | None) -> None:
        target.close()
        closed.set()

    target.listen(close)
    target.write(batch((INSERT, {"id": 1}), at=1))
    assert closed.wait(patience())


@pytest.mark.meets("S13")
def test_nothing_is_made_for_rows_that_nobody_listens_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: object) -> None:
        raise AssertionError("a row was made")

    target = opened()
    monkeypatch.setattr(Row, "__init__", made)
    target.write(batch((INSERT, {"id": 1}), (UPDATE, {"id": 1}), at=1))
    assert target.count() == 1


def test_several_tables_are_asked_by_name() -> None:
    target = memory(indexes={"by_grp": ["grp"]})
    target.open({"orders": ORDERS, "items": ORDERS}, {})
    for name in ("orders", "items"):
        target.load(name, 0).switch(ORIGIN)
    reader = target.table("items").changes()
    rows = changes(ORDERS, [(INSERT, Position(1, 1), {"id": 1, "grp": 5})])
    tables = {"items": rows, "orders": changes(ORDERS, [])}
    target.write(Batch("1", 1, Position(1, 1), Position(1, 1), tables))
    assert target.table("items").get(1) == {"id": 1, "grp": 5}
    assert len(target.table("items").lookup_all("by_grp", 5)) == 1
    assert target.table("orders").count() == 0
    assert target.table("orders").position == target.position == Position(1, 1)
    for read in (lambda: target.get(1), target.count, target.changes, lambda: target.table("x")):
        with pytest.raises(UnknownTable):
            read()
    target.close()
    assert operations(list(reader)) == [("insert", None, 5)]


@pytest.mark.meets("R26a")
def test_no_table_of_a_batch_is_changed_if_another_one_cannot_take_it() -> None:
    target = memory()
    target.open({"orders": ORDERS, "items": ORDERS}, {})
    for name in ("orders", "items"):
        target.load(name, 0).switch(ORIGIN)
    good = changes(ORDERS, [(INSERT, Position(1, 1), {"id": 1})])
    bad = changes(ORDERS, [(INSERT, Position(1, 1), {"id": None})])
    both = Batch("1", 1, Position(1, 1), Position(1, 1), {"orders": good, "items": bad})
    reader = target.table("orders").changes()
    with pytest.raises(TableError):
        target.write(both)
    assert target.table("orders").count() == 0
    assert reader.lag == 0
    target.write(Batch("1", 1, Position(1, 1), Position(1, 1), {"orders": good, "items": good}))
    assert [target.table(name).count() for name in ("orders", "items")] == [1, 1]
    target.close()
    assert [change.op for change in reader] == ["insert"]


@pytest.mark.meets("R26a")
def test_a_reload_after_a_batch_that_failed_tells_each_change_once() -> None:
    target = memory()
    target.open({"orders": ORDERS, "items": ORDERS}, {})
    for name in ("orders", "items"):
        target.load(name, 0).switch(ORIGIN)
    reader = target.table("orders").changes()
    good = changes(ORDERS, [(INSERT, Position(1, 1), {"id": 1})])
    bad = changes(ORDERS, [(INSERT, Position(1, 1), {"id": None})])
    with pytest.raises(TableError):
        target.write(Batch("1", 1, Position(1, 1), Position(1, 1), {"orders": good, "items": bad}))
    loading = target.load("orders", 1)
    loading.write(baseline(ORDERS, [{"id": 1}]))
    loading.switch(Position(1, 1))
    target.write(Batch("1", 1, Position(1, 1), Position(1, 1), {"orders": good, "items": good}))
    target.close()
    assert [(change.op, change.key) for change in reader] == [("insert", (1,))]


def test_a_load_that_is_over_takes_nothing_more() -> None:
    target = opened()
    first = target.load("orders", 1)
    second = target.load("orders", 2)
    first.discard()
    second.write(baseline(ORDERS, [{"id": 1}]))
    with pytest.raises(TableError):
        first.write(baseline(ORDERS, [{"id": 2}]))
    second.switch(Position(1, 1))
    with pytest.raises(TableError):
        second.switch(Position(1, 2))
    second.discard()
    assert [row["id"] for row in target.all()] == [1]


def test_a_table_that_no_batch_names_is_left_alone() -> None:
    target = memory()
    target.open({"orders": ORDERS, "items": ORDERS}, {})
    target.load("orders", 0).switch(ORIGIN)
    target.write(batch((INSERT, {"id": 1}), at=1))
    assert target.table("orders").position == Position(1, 1)
    assert target.row_count("orders") == 1
    assert target.row_count("items") is None
    with pytest.raises(UnknownTable):
        target.table("items").count()


def test_what_keeps_a_table_from_being_held_is_said_before_it_is_opened() -> None:
    with pytest.raises(NoKey):
        memory().check({"orders": table_schema((), a="text")})
    with pytest.raises(UnknownColumn):
        memory(lookup=["x"]).check({"orders": ORDERS})
    memory(key="a").check({"orders": table_schema((), a="text")})


def test_before_the_engine_starts_there_is_no_table() -> None:
    with pytest.raises(UnknownTable):
        memory().get(1)
    with pytest.raises(UnknownTable):
        opened(show=False).count()
    with pytest.raises(UnknownTable):
        opened().load("other", 1)


def test_a_target_can_be_opened_again() -> None:
    target = opened()
    target.write(batch((INSERT, {"id": 1}), at=1))
    target.close()
    target.open({"orders": ORDERS}, {})
    with pytest.raises(UnknownTable):
        target.get(1)
    target.load("orders", 0).switch(ORIGIN)
    reader = target.changes()
    target.write(batch((INSERT, {"id": 2}), at=1))
    assert target.count() == 1
    assert next(reader).key == (2,)
    target.close()
