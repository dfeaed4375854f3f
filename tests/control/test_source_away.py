"""A source that is away at the start: what the log has is served, and it connects later."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from headrace.api.handlers import ControlService
from headrace.capture import recorder
from headrace.engine.checks import checked_schemas
from headrace.errors import HeadraceError, InvalidConfiguration
from headrace.pipeline.steps import equals
from headrace.targets.memory import memory
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget
from tests.support.shop import PATIENCE, Market, await_seen, await_that


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A source that comes back is noticed at once."""
    monkeypatch.setattr(recorder, "LONGEST_PAUSE_SECONDS", 0.02)
    yield


@pytest.mark.meets("R8", "P7")
def test_what_the_log_has_is_served_while_the_source_is_away(market: Market) -> None:
    kept = ScriptedTarget()
    first = market.pipeline(kept, name="kept"), market.pipeline(memory(), name="first")
    with market.engine(*first) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert await_seen(lambda: (11,) in kept.rows("orders"))
    market.source.set_away(True)
    market.put("orders", 12)
    orders, again = memory(), ScriptedTarget(kept.disk)
    engine = market.engine(
        market.pipeline(orders, name="shown"), market.pipeline(again, name="kept")
    )
    with engine:
        assert await_that(engine, lambda: engine.pipeline_info("shown").state == "live")
        assert orders.count() == 11
        assert not engine.is_ready()
        # During an attempt, which is short, it is `connecting`.
        assert await_that(engine, lambda: engine.source_info("shop").state == "reconnecting")
        source = engine.source_info("shop")
        assert source.reason == "The source is away"
        assert source.error_since is not None
        assert source.newest is not None
        status = ControlService(engine).unary["Status"]({})
        assert {each["state"] for each in status["pipelines"]} == {"not_ready"}
        assert "The source is away" in status["pipelines"][0]["reason"]
        market.source.set_away(False)
        assert await_seen(lambda: orders.count() == 12)
        assert engine.await_ready(PATIENCE)
        assert engine.source_info("shop").error_since is None
        assert await_seen(lambda: (12,) in again.rows("orders"))
        assert market.source.wait_until_acknowledged(PATIENCE)
    assert kept.disk.duplicates() == []


@pytest.mark.parametrize("mode", ["baseline_then_changes", "changes"])
def test_a_first_start_begins_when_the_source_is_back(market: Market, mode: str) -> None:
    market.source.set_away(True)
    target = ScriptedTarget()
    engine = market.engine(market.pipeline(target, name="kept", mode=mode))
    with engine:
        assert await_that(engine, lambda: engine.source_info("shop").error_since is not None)
        assert engine.source_info("shop").reason == "The source is away"
        info = engine.pipeline_info("kept")
        assert (info.state, info.tables, engine.is_ready()) == ("waiting", (), False)
        assert engine.source_info("shop").acknowledged in (None, market.log().end)
        market.source.set_away(False)
        assert engine.await_ready(PATIENCE)
        assert engine.schema("orders").key == ("id",)
        market.put("orders", 11)
        assert await_seen(lambda: (11,) in target.rows("orders"))
        assert len(target.rows("orders")) == (11 if mode != "changes" else 1)


def test_sources_that_are_there_go_on_beside_it(market: Market) -> None:
    other = MemorySource("other")
    other.set_schema("parcels", {"id": "int64"}, key=["id"])
    other.add_row("parcels", {"id": 1})
    market.source.set_away(True)
    parcels = memory()
    sound = type(market.pipeline(memory()))(other, "parcels", parcels, name="parcels")
    with market.engine(market.pipeline(memory(), name="lame"), sound) as engine:
        assert await_that(engine, lambda: engine.is_ready(pipeline="parcels"))
        assert parcels.count() == 1
        assert not engine.is_ready()


def test_tables_by_pattern_are_served_too(market: Market) -> None:
    orders = memory()
    with market.engine(market.pipeline(memory(), "ord*", name="first")) as engine:
        assert engine.await_ready(PATIENCE)
    market.source.set_away(True)
    with market.engine(market.pipeline(orders, "ord*", name="shown")) as engine:
        assert await_seen(lambda: orders.row_count("orders") == 10)
        assert orders.tables == ("orders",)
        assert not engine.is_ready()
        market.source.set_schema("ordinances", {"id": "int64"}, key=["id"])
        market.source.set_away(False)
        assert await_seen(lambda: orders.tables == ("orders", "ordinances"))
        assert engine.await_ready(PATIENCE)


def test_an_error_of_the_steps_that_is_found_late_stops_its_pipeline_by_name(
    market: Market,
) -> None:
    market.source.set_away(True)
    wrong = market.pipeline(memory(), name="wrong", filters=[equals("colour", "red")])
    with market.engine(wrong, market.pipeline(memory(), name="right")) as engine:
        market.source.set_away(False)
        assert await_that(engine, lambda: engine.is_ready(pipeline="right"))
        assert await_that(engine, lambda: engine.pipeline_info("wrong").state == "failed")
        error = engine.pipeline_info("wrong").error
        assert error is not None
        assert error.code == "pipeline.unknown_column"


def test_an_error_of_the_steps_is_refused_at_the_start_where_the_log_knows_the_table(
    market: Market,
) -> None:
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
    market.source.set_away(True)
    wrong = market.pipeline(memory(), name="wrong", filters=[equals("colour", "red")])
    with pytest.raises(InvalidConfiguration, match="colour"):
        market.engine(wrong).start()


def test_a_table_that_is_new_in_the_configuration_holds_what_its_pipeline_needs(
    market: Market,
) -> None:
    market.source.set_schema("parcels", {"id": "int64"}, key=["id"])
    target = ScriptedTarget()
    with market.engine(market.pipeline(target, name="kept")) as engine:
        assert engine.await_ready(PATIENCE)
    market.source.set_away(True)
    market.put("orders", 11)
    again = ScriptedTarget(target.disk)
    with market.engine(market.pipeline(again, "orders", "parcels", name="kept")) as engine:
        assert await_that(engine, lambda: engine.source_info("shop").error_since is not None)
        assert engine.reload("shop", "orders") is False
        market.source.set_away(False)
        assert engine.await_ready(PATIENCE)
        assert len(again.rows("orders")) == 11


def test_sources_are_looked_at_together_and_one_that_is_away_not_again_for_every_table(
    market: Market,
) -> None:
    """A server that does not answer at all costs seconds at each attempt."""
    both = threading.Barrier(2)

    class Slow(MemorySource):
        def check(self, tables: Sequence[str]) -> Sequence[HeadraceError]:
            both.wait(PATIENCE)
            return super().check(tables)

    away, there = Slow("away"), Slow("there")
    names = [f"parcels{number}" for number in range(5)]
    for source in (away, there):
        for name in names:
            source.set_schema(name, {"id": "int64"}, key=["id"])
    away.set_away(True)
    found: dict[str, HeadraceError] = {}
    schemas = checked_schemas(
        {"away": away, "there": there}, {"away": names, "there": names}, (), (), None, found,
        logged=lambda source: {},
    )  # fmt: skip
    assert schemas.keys() == {f"there/{name}" for name in names}
    assert list(found) == ["away"]
    assert away.calls["describe"] == 0


def test_a_source_that_is_away_says_so_while_it_is_tried_for_the_first_time(
    market: Market,
) -> None:
    answers = threading.Event()

    class Mute(MemorySource):
        def check(self, tables: Sequence[str]) -> Sequence[HeadraceError]:
            if self.calls["check"]:
                answers.wait(PATIENCE)
            return super().check(tables)

    source = Mute("shop")
    source.set_schema("orders", {"id": "int64"}, key=["id"])
    source.set_away(True)
    pipeline = type(market.pipeline(memory()))(source, "orders", memory(), name="orders")
    with market.engine(pipeline) as engine:
        assert await_seen(lambda: source.calls["check"] == 1)
        info = engine.source_info("shop")
        assert (info.state, info.reason) == ("connecting", "The source is away")
        assert info.error_since is not None
        source.set_away(False)
        answers.set()
        assert engine.await_ready(PATIENCE)
        info = engine.source_info("shop")
        assert (info.reason, info.error_since) == ("", None)
