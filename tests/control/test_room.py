"""A source that runs out of room keeps our place: whoever holds it back most gives way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.messages import REPORTS, LagReport
from headrace.capture.source import Lag, Room
from headrace.changelog.position import Position
from headrace.engine.engine import Engine
from headrace.errors import SetAside
from headrace.runtime.model import Watermark, acknowledged
from headrace.runtime.wal_pressure import (
    FULL,
    LOG,
    SERVER,
    is_full,
    is_tight,
    pinned_by,
    to_release,
)
from headrace.targets.memory import memory
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget
from tests.support.shop import PATIENCE, Market, await_seen, await_that

END = Position(1, 100)
BUSY = Room(used=90, limit=100, unacknowledged=90, ours=80)

positions = st.builds(Position, st.just(1), st.integers(0, 120))
watermarks = st.builds(Watermark, st.booleans(), positions, st.none() | positions, st.booleans())
rooms = st.builds(
    Room,
    st.integers(0, 200),
    st.none() | st.integers(1, 200),
    st.integers(0, 200),
    st.integers(0, 200),
    st.sampled_from(["", "transaction of pid 7, 90 s old"]),
)


def at(commit: int, *, released: bool = False) -> Watermark:
    return Watermark(durable=True, settled=Position(1, commit), released=released)


# -- who gives way ------------------------------------------------------------------------


@pytest.mark.meets("R28")
def test_the_one_with_the_lowest_pin_gives_way() -> None:
    marks = {"late": at(60), "later": at(40), "even": at(100)}
    assert to_release(BUSY, END, marks) == "later"
    assert pinned_by(BUSY, END, marks) == "later"


@pytest.mark.meets("R28")
@pytest.mark.parametrize(("used", "gives_way"), [(89, None), (90, "held"), (130, "held")])
def test_it_gives_way_at_90_percent(used: int, gives_way: str | None) -> None:
    room = replace(BUSY, used=used, ours=70)
    assert to_release(room, END, {"held": at(40)}) == gives_way


def test_without_a_limit_nobody_gives_way() -> None:
    room = replace(BUSY, limit=None)
    assert to_release(room, END, {"held": at(1)}) is None
    assert pinned_by(room, END, {"held": at(1)}) == "held"


@pytest.mark.meets("R28", "R8")
def test_a_volatile_target_never_gives_way_for_what_it_did_not_take() -> None:
    volatile = Watermark(durable=False, settled=Position(1, 1))
    assert to_release(BUSY, END, {"memory": volatile}) is None
    assert pinned_by(BUSY, END, {"memory": volatile}) == LOG


def test_what_is_being_loaded_holds_the_source_as_well() -> None:
    loading = Watermark(durable=False, settled=END, loading_from=Position(1, 3))
    assert to_release(BUSY, END, {"memory": loading, "kept": at(50)}) == "memory"


def test_one_that_was_set_aside_is_not_asked_again() -> None:
    assert to_release(BUSY, END, {"gone": at(1, released=True)}) is None
    assert to_release(BUSY, END, {"gone": at(1, released=True), "next": at(9)}) == "next"


@pytest.mark.meets("R28", "R4")
def test_nobody_gives_way_for_a_transaction_that_is_open() -> None:
    room = replace(BUSY, ours=5, oldest="transaction of pid 7, 90 s old")
    assert to_release(room, END, {"held": at(40)}) is None
    assert pinned_by(room, END, {"held": at(40)}) == "transaction of pid 7, 90 s old"


@pytest.mark.meets("R28")
def test_nobody_gives_way_for_what_was_not_read_yet_or_is_let_go_of_later() -> None:
    unread = replace(BUSY, ours=5)
    assert to_release(unread, END, {"working": at(99)}) is None
    assert pinned_by(unread, END, {"working": at(99)}) == LOG
    told = replace(BUSY, ours=0, unacknowledged=1)
    assert to_release(told, END, {"working": at(99)}) is None
    assert pinned_by(told, END, {"working": at(99)}) == SERVER


@pytest.mark.meets("R28", "R8")
@given(rooms, positions, st.dictionaries(st.sampled_from("abc"), watermarks))
def test_whoever_gives_way_is_what_the_acknowledgement_waits_for(
    room: Room, end: Position, marks: dict[str, Watermark]
) -> None:
    name = to_release(room, end, marks)
    if name is None:
        return
    assert is_full(room)
    assert room.limit is not None
    assert room.used >= FULL * room.limit
    assert not marks[name].released
    assert acknowledged(end, marks.values(), None) == marks[name].upto(end) < end
    assert pinned_by(room, end, marks) == name


def test_a_measurement_comes_over_the_wire() -> None:
    report = LagReport(None, 1.0, 3, 4, BUSY)
    assert REPORTS.decode(msgspec.json.encode(report)) == report


def test_an_amount_that_goes_up_and_down_around_the_limit_is_one_crossing() -> None:
    tight, told = False, 0
    for used in (69, 70, 69, 71, 60, 75, 59, 69, 70):
        before, tight = tight, is_tight(used, 100, before=tight)
        told += tight and not before
    assert told == 2
    assert not is_tight(1_000, None, before=True)


# -- in the engine ------------------------------------------------------------------------


class SmallSource(MemorySource):
    """A source with little room: what is not acknowledged fills it up."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.limit: int | None = None
        self.oldest = ""
        self.measured = 0

    @property
    def held(self) -> int:
        told = self.acknowledged[-1].partition(":")[2] if self.acknowledged else "0"
        return self.position.commit - int(told)

    def lag(self) -> Lag:
        self.measured += 1
        ours = 0 if self.oldest else self.held
        room = Room(self.held, self.limit, self.held, ours, self.oldest)
        return replace(super().lag(), room=room)


class SmallMarket(Market):
    """A market whose source has little room."""

    source: SmallSource

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.source = SmallSource("shop")
        self.source.set_schema(
            "orders", {"id": "int64", "status": "text", "version": "int64"}, key=["id"]
        )
        for key in range(1, 4):
            self.source.add_row("orders", {"id": key, "status": "paid", "version": 0})

    def fill(self, engine: Engine, upto: int) -> None:
        """Change rows until so much is held."""
        while self.source.held < upto:
            self.put("orders", 1, version=self.source.position.commit)
        assert self.recorded(engine)

    def measured(self, times: int) -> bool:
        """Let the source be measured so often, and tell of it."""
        wanted = self.source.measured + times
        return await_seen(lambda: self.source.measured >= wanted)


@pytest.fixture
def market(tmp_path: Path) -> SmallMarket:
    return SmallMarket(tmp_path)


def is_released(engine: Engine, name: str) -> Callable[[], bool]:
    return lambda: engine.pipeline_info(name).set_aside is not None


@pytest.mark.meets("R28", "R8")
def test_a_paused_pipeline_that_fills_its_source_is_set_aside(market: SmallMarket) -> None:
    kept, shown = ScriptedTarget(), memory()
    with market.engine(
        market.pipeline(kept, name="kept"), market.pipeline(shown, name="shown")
    ) as engine:
        assert engine.await_ready(PATIENCE)
        assert market.source.wait_until_acknowledged(PATIENCE)
        engine.pause("kept")
        market.fill(engine, 50)
        assert market.measured(3)
        room = engine.source_info("shop").room
        assert room is not None
        assert (room.limit, room.percent, room.pinned_by) == (None, None, "kept")
        assert not is_released(engine, "kept")()
        assert engine.source_info("shop").notices == ()
        market.source.limit = 65
        assert await_seen(lambda: engine.source_info("shop").notices != ())
        assert market.measured(3)
        [filling] = engine.source_info("shop").notices
        assert filling.problem.code == "capture.filling"
        assert filling.problem.message.endswith("of 65 bytes that it may keep, for kept")
        market.source.limit = 55
        assert await_that(engine, is_released(engine, "kept"))
        assert await_seen(lambda: market.source.held == 0)
        [_, notice] = engine.source_info("shop").notices
        assert notice.problem.code == "control.set_aside"
        assert "Pipeline kept was released from its source" in notice.problem.message
        info = engine.pipeline_info("kept")
        assert await_seen(lambda: engine.pipeline_info("kept").tables[0].state == "waiting")
        assert info.state == "paused"
        assert isinstance(info.error, SetAside)
        assert engine.pipeline_info("shown").set_aside is None
        assert not engine.is_ready(pipeline="kept")
        assert engine.is_ready(pipeline="shown")
    with market.engine(
        market.pipeline(kept, name="kept"), market.pipeline(shown, name="shown")
    ) as engine:
        assert is_released(engine, "kept")()
        market.fill(engine, 1)
        assert market.source.wait_until_acknowledged(PATIENCE)
        engine.resume("kept")
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: kept.rows("orders") == market.source.rows("orders"))
        assert engine.pipeline_info("kept").error is None
        assert not is_released(engine, "kept")()


@pytest.mark.meets("R28")
def test_a_pipeline_whose_write_hangs_gives_way_too(market: SmallMarket) -> None:
    kept = ScriptedTarget()
    with market.engine(market.pipeline(kept, name="kept")) as engine:
        assert engine.await_ready(PATIENCE)
        kept.hold()
        market.put("orders", 1, "sent")
        assert kept.holding.wait(PATIENCE)
        market.source.limit = 55
        market.fill(engine, 50)
        assert await_seen(lambda: market.source.held == 0)
        assert not engine.is_ready()
        kept.release()
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: kept.rows("orders") == market.source.rows("orders"))


@pytest.mark.meets("R28")
def test_one_gives_way_at_a_time(market: SmallMarket) -> None:
    first, second = ScriptedTarget(), ScriptedTarget()
    with market.engine(
        market.pipeline(first, name="first"), market.pipeline(second, name="second")
    ) as engine:
        assert engine.await_ready(PATIENCE)
        assert market.source.wait_until_acknowledged(PATIENCE)
        engine.pause("first")
        market.fill(engine, 30)
        assert await_seen(lambda: second.rows("orders") == market.source.rows("orders"))
        engine.pause("second")
        market.fill(engine, 50)
        market.source.limit = 55
        assert await_that(engine, is_released(engine, "first"))
        assert await_seen(lambda: market.source.held < 30)
        assert market.measured(4)
        assert not is_released(engine, "second")()
        market.source.limit = 10
        assert await_that(engine, is_released(engine, "second"))


@pytest.mark.meets("R28", "R4")
def test_a_transaction_at_the_source_is_named_and_nobody_gives_way(market: SmallMarket) -> None:
    kept = ScriptedTarget()
    with market.engine(market.pipeline(kept, name="kept")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("kept")
        market.source.oldest = "transaction of pid 7, 90 s old"
        market.fill(engine, 50)
        market.source.limit = 50
        assert market.measured(4)
        room = engine.source_info("shop").room
        assert room is not None
        assert (room.percent, room.pinned_by) == (100.0, "transaction of pid 7, 90 s old")
        assert not is_released(engine, "kept")()
