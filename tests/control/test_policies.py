"""What happens when a pipeline fails or lags behind: retries, who else stops, limits of the lag."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.messages import Retries
from headrace.changelog.position import ORIGIN, Position
from headrace.config.schema import Plain, node_of
from headrace.config.text import SourceLocation
from headrace.engine.apply_config import apply, planned
from headrace.engine.engine import Engine
from headrace.engine.from_config import EngineConfig, configured
from headrace.errors import (
    BadTransform,
    CorruptSegment,
    InvalidConfiguration,
    JobFailed,
    SourceUnreachable,
    TargetError,
    WrongValue,
)
from headrace.observe.events import Event, PipelineStateChanged, PolicyTriggered
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.definition import LagLimit, OnFailure, Pipeline
from headrace.pipeline.result import JobResult
from headrace.runtime.pipeline_run import IDLE
from headrace.runtime.wal_pressure import LagWatch
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from headrace.testing import MemorySource
from headrace.testing.target import ScriptedTarget
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen, await_that
from tests.support.tiers import examples

PAUSES = (0.01, 0.02)


class Failing(ArrowRunner):
    """A runner that fails for pipelines in `away`, and counts the attempts of each."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str | None] = set()
        self.tries: dict[str | None, int] = {}

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        if pipeline.name in self.away:
            self.tries[pipeline.name] = self.tries.get(pipeline.name, 0) + 1
            raise JobFailed("No executors")
        return super().rows(pipeline, parts, facts)


def market_engine(market: Market, runner: Failing, *pipelines: Pipeline, **options: Any) -> Engine:
    return Engine(*pipelines, data=market.data, runner=runner, recorder="thread", **options)


def state_of(engine: Engine, pipeline: str) -> str:
    return engine.pipeline_info(pipeline).state


def code_of(engine: Engine, pipeline: str) -> str:
    error = engine.pipeline_info(pipeline).error
    return "" if error is None else error.code


# --- retries --------------------------------------------------------------------------------------


@pytest.mark.meets("ENG-45", "ENG-47", "ACC-16")
@pytest.mark.parametrize("how", ["resume", "reload"])
def test_a_pipeline_has_its_own_retries_and_continues_after_a_resume_or_a_reload(
    market: Market, how: str
) -> None:
    runner, orders = Failing(), memory()
    engine = market_engine(
        market,
        runner,
        market.pipeline(orders, name="few", retry=Retries(2, *PAUSES)),
        market.pipeline(memory(), name="more"),
        retry=Retries(4, *PAUSES),
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        runner.away = {"few", "more"}
        market.put("orders", 11)
        assert await_that(
            engine, lambda: {state_of(engine, n) for n in ("few", "more")} == {"failed"}
        )
        assert runner.tries == {"few": 2, "more": 4}
        assert code_of(engine, "few") == JobFailed.code
        if how == "resume":
            # It may fail as often again: the failures before do not count.
            engine.resume("few")
            assert await_seen(lambda: runner.tries["few"] == 4)
            assert await_that(engine, lambda: state_of(engine, "few") == "failed")
            runner.away = set()
            engine.resume()
        else:
            runner.away = set()
            assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: orders.count() == 11)


@pytest.mark.parametrize("attempts", [0, -1])
def test_a_number_of_attempts_below_one_is_refused(attempts: int) -> None:
    with pytest.raises(WrongValue, match="at least 1"):
        Retries(attempts)


def test_a_first_pause_that_is_longer_than_the_longest_is_refused() -> None:
    with pytest.raises(WrongValue, match="must not be longer"):
        Retries(None, 2.0, 1.0)


@pytest.mark.meets("TYP-13", "ACC-14")
def test_a_source_has_its_own_retries_and_a_resume_of_it_leads_back(market: Market) -> None:
    engine = market_engine(
        market,
        Failing(),
        market.pipeline(memory(), name="orders"),
        reconnect={"shop": Retries(2, *PAUSES)},
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        market.source.set_away(True)
        assert await_that(engine, lambda: state_of_source(engine) == "failed")
        assert not engine.await_ready(PATIENCE)
        market.source.set_away(False)
        engine.resume(source="shop")
        assert engine.await_ready(PATIENCE)


def state_of_source(engine: Engine) -> str:
    return engine.source_info("shop").state


def test_retries_of_a_source_that_the_engine_does_not_have_are_refused(market: Market) -> None:
    with pytest.raises(WrongValue, match="which reconnect names"):
        market_engine(market, Failing(), market.pipeline(memory()), reconnect={"other": Retries()})


# --- who stops with a failed pipeline -------------------------------------------------------------

OTHERS: dict[OnFailure, set[str]] = {
    "isolate": set(),
    "stop_source": {"beside"},
    "stop_all": {"beside", "elsewhere"},
}


@pytest.mark.meets("ENG-46", "TYP-28", "ACC-16")
@pytest.mark.parametrize("policy", OTHERS)
def test_a_failure_stops_the_pipelines_that_its_policy_names_and_they_resume(
    market: Market, policy: OnFailure
) -> None:
    other = MemorySource("other")
    other.set_schema("items", {"id": "int64"}, key=["id"])
    runner, beside, elsewhere = Failing(), memory(), memory()
    engine = market_engine(
        market,
        runner,
        market.pipeline(memory(), name="orders", on_failure=policy, retry=Retries(1)),
        market.pipeline(beside, name="beside"),
        Pipeline(other, "items", elsewhere, name="elsewhere"),
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        runner.away = {"orders"}
        market.put("orders", 11)
        stopped = OTHERS[policy]
        assert await_that(
            engine,
            lambda: all(state_of(engine, name) == "failed" for name in {"orders", *stopped}),
        )
        for name in stopped:
            error = engine.pipeline_info(name).error
            assert error is not None
            assert error.code == "control.stopped_with_another"
            assert error.facts == {"pipeline": name, "failed": "orders", "cause": JobFailed.code}
        assert code_of(engine, "orders") == JobFailed.code
        assert not engine.is_ready(pipeline="orders")
        # Capture continues, and those that are not stopped deliver.
        market.put("orders", 12)
        other.emit_insert("items", {"id": 1})
        assert market.recorded(engine)
        for name, target, count in (("beside", beside, 12), ("elsewhere", elsewhere, 1)):
            if name in stopped:
                assert state_of(engine, name) == "failed"
            else:
                assert await_seen(lambda target=target, count=count: target.count() == count)  # type: ignore[misc]
        runner.away = set()
        engine.resume()
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: (beside.count(), elsewhere.count()) == (12, 1))


@pytest.mark.meets("ENG-46")
def test_a_policy_stops_its_pipelines_at_once_not_with_their_next_batch(market: Market) -> None:
    other = MemorySource("other")
    other.set_schema("items", {"id": "int64"}, key=["id"])
    policies: list[OnFailure] = ["isolate", "stop_source", "stop_all"]
    pipelines = [market.pipeline(memory(), name=each, on_failure=each) for each in policies]
    elsewhere = Pipeline(other, "items", memory(), name="elsewhere")
    with market_engine(market, Failing(), *pipelines, elsewhere) as engine:
        assert engine.await_ready(PATIENCE)
        stopped = {}
        for policy in policies:
            engine._state.stop_others(policy, JobFailed("No executors"))
            states = {info.name: info.state for info in engine.pipelines()}
            stopped[policy] = {name for name, state in states.items() if state == "failed"}
            engine.resume()
        assert stopped == {
            "isolate": set(),
            "stop_source": {"isolate", "stop_all"},
            "stop_all": {"isolate", "stop_source", "elsewhere"},
        }


def test_a_pipeline_that_is_stopped_with_another_does_not_stop_more(market: Market) -> None:
    runner = Failing()
    other = MemorySource("other")
    other.set_schema("items", {"id": "int64"}, key=["id"])
    engine = market_engine(
        market,
        runner,
        market.pipeline(memory(), name="orders", on_failure="stop_source", retry=Retries(1)),
        market.pipeline(memory(), name="beside", on_failure="stop_all"),
        Pipeline(other, "items", memory(), name="elsewhere"),
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        runner.away = {"orders"}
        market.put("orders", 11)
        assert await_that(engine, lambda: state_of(engine, "beside") == "failed")
        assert engine.is_ready(pipeline="elsewhere")


def test_a_pipeline_that_is_stopped_with_another_takes_no_step_and_continues_after_a_restart() -> (
    None
):
    world = Stepping()
    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, "orders", target))
    world.settle(run)
    run.halt(TargetError("Another one failed"))
    world.put(1)
    assert run.step() == IDLE
    assert (run.failed, run.state, run.ready) == (True, "failed", False)
    assert target.rows("orders") == {}
    run.halt(JobFailed("And one more"))
    assert isinstance(run.error, TargetError), "the first reason stays"
    run.close()
    run = world.run(Pipeline(world.source, "orders", target))
    assert not run.failed
    world.settle(run)
    assert target.rows("orders") == world.source.rows("orders")


# --- the limit of the lag -------------------------------------------------------------------------


class Policies:
    """Takes the events of an engine."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.seen.append(event)


class Gate(ScriptedTarget):
    """A target that holds each batch while it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.open_ = threading.Event()
        self.open_.set()

    def write(self, batch: Batch) -> Position:
        assert self.open_.wait(PATIENCE)
        return super().write(batch)


@pytest.mark.meets("R29", "TYP-28")
def test_a_pipeline_beyond_its_lag_limit_fails_by_name_and_catches_up_after_a_resume(
    market: Market,
) -> None:
    orders = memory()
    limit = LagLimit(max_changes=3, policy="error")
    engine = market_engine(market, Failing(), market.pipeline(orders, name="orders", lag=limit))
    events = Policies()
    engine.observe(events)
    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("orders")
        for key in range(11, 15):
            market.put("orders", key)
        assert await_that(engine, lambda: state_of(engine, "orders") == "failed")
        error = engine.pipeline_info("orders").error
        assert error is not None
        assert error.code == "control.lag_exceeded"
        assert {**error.facts, "lag": 4} == {
            "pipeline": "orders", "measure": "changes", "lag": 4, "limit": 3,
        }  # fmt: skip
        engine.resume("orders")
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: orders.count() == 14)
    [event] = [each for each in events.seen if isinstance(each, PolicyTriggered)]
    assert (event.pipeline, event.policy, event.error) == ("orders", "lag", error)
    moves = [each.new for each in events.seen if isinstance(each, PipelineStateChanged)]
    assert moves[moves.index("paused") :][:2] == ["paused", "failed"]


@pytest.mark.meets("R29", "R28", "TYP-28")
@pytest.mark.parametrize("durable", [True, False])
def test_a_pipeline_that_is_released_for_its_lag_gets_a_new_baseline(
    market: Market, durable: bool
) -> None:
    target = ScriptedTarget() if durable else memory()
    limit = LagLimit(max_changes=3, policy="release")
    engine = market_engine(market, Failing(), market.pipeline(target, name="orders", lag=limit))
    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("orders")
        for key in range(11, 15):
            market.put("orders", key)
        assert await_that(engine, lambda: engine.pipeline_info("orders").releases == 1)
        info = engine.pipeline_info("orders")
        assert info.set_aside is not None
        assert info.set_aside.facts["measure"] == "changes"
        assert "lagged behind" in info.set_aside.message
        assert not engine.is_ready(pipeline="orders")
        # What the source keeps for it is free at once.
        assert market.source.wait_until_acknowledged(PATIENCE)
        engine.resume("orders")
        assert engine.await_ready(PATIENCE)
        info = engine.pipeline_info("orders")
        assert (info.releases, info.set_aside, info.tables[0].baseline) == (1, None, 2)
        assert info.rows == 14


@pytest.mark.meets("R29")
def test_a_lag_with_the_policy_block_fails_nothing_and_releases_nothing(market: Market) -> None:
    orders = memory()
    engine = market_engine(
        market, Failing(), market.pipeline(orders, name="orders", lag=LagLimit(max_changes=1))
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("orders")
        for key in range(11, 15):
            market.put("orders", key)
        assert market.recorded(engine)
        guard = engine._state.recordings["shop"].guard
        assert guard is not None
        guard.look_at_lags()
        info = engine.pipeline_info("orders")
        assert (info.state, info.set_aside, info.releases) == ("paused", None, 0)


def test_what_a_pipeline_lags_behind_when_it_begins_may_be_caught_up_first() -> None:
    world = Stepping()
    target = ScriptedTarget()
    pipeline = Pipeline(world.source, "orders", target, lag=LagLimit(max_changes=2, policy="error"))
    run = world.run(pipeline)
    world.settle(run)
    run.pause()
    for key in range(5):
        world.put(key)
    found = run.lag_excess()
    assert found is not None
    assert (found.measure, found.lag, found.limit) == ("changes", 5, 2)
    # A restart, as after a day off: the five changes do not count, three more do.
    run = world.run(pipeline)
    assert run.lag_excess() is None
    world.put(5)
    world.put(6)
    assert run.lag_excess() is None
    world.put(7)
    found = run.lag_excess()
    assert found is not None
    assert (found.lag, found.limit) == (8, 7)
    run.resume()
    world.settle(run)
    assert run.lag_excess() is None
    for key in range(3):
        world.put(key, "again")
    found = run.lag_excess()
    assert found is not None
    assert found.limit == 2, "once it has caught up, the limit itself counts"


class Waiting:
    """A log in which so many changes wait."""

    def __init__(self, changes: int) -> None:
        self.changes = changes

    def waiting_after(self, table: str, position: Position) -> tuple[int, int]:
        return self.changes, 0


@pytest.mark.meets("R29")
@examples(200)
@given(st.integers(1, 5), st.lists(st.integers(0, 20), min_size=1, max_size=30))
def test_a_lag_exceeds_its_limit_unless_it_is_still_caught_up(limit: int, lags: list[int]) -> None:
    watch = LagWatch(LagLimit(max_changes=limit, policy="error"))
    log = Waiting(lags[0])
    watch.begin(log, [("orders", ORIGIN)], 0.0)  # type: ignore[arg-type]
    caught_up = False
    for number, lag in enumerate(lags):
        log.changes = lag
        found = watch.excess(log, [("orders", ORIGIN)], 0.0)  # type: ignore[arg-type]
        caught_up = caught_up or lag <= limit
        lowest = 0 if caught_up else min(lags[: number + 1])
        assert (found is not None) == (lag > lowest + limit)
        assert found is None or (found.lag, found.limit) == (lag, lowest + limit)


@pytest.mark.parametrize(
    ("limit", "measure"), [({"max_bytes": 10}, "bytes"), ({"max_age": 5.0}, "age")]
)
def test_a_lag_is_limited_in_bytes_and_by_age(limit: dict[str, Any], measure: str) -> None:
    world = Stepping()
    run = world.run(
        Pipeline(world.source, "orders", ScriptedTarget(), lag=LagLimit(policy="error", **limit))
    )
    world.settle(run)
    assert run.lag_excess() is None
    run.pause()
    world.put(1)
    following = [("orders", run.members[0].reached)]
    late = run.context.wall() + 10
    found = run.lag_watch.excess(world.log, following, late)
    assert found is not None
    assert found.measure == measure
    assert found.lag > found.limit


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"policy": "drop"}, "not known"),
        ({"policy": "error"}, "never acts"),
        ({"max_changes": 0}, "greater than 0"),
        ({"max_age": -1.0}, "greater than 0"),
    ],
)
def test_a_lag_limit_that_makes_no_sense_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongValue, match=why):
        LagLimit(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"on_failure": "stop"},
        {"mode": "changes", "lag": LagLimit(max_changes=1, policy="release")},
    ],
)
def test_a_pipeline_refuses_policies_that_make_no_sense(
    market: Market, given: dict[str, Any]
) -> None:
    with pytest.raises(BadTransform):
        market.pipeline(memory(), **given)


# --- in a configuration ---------------------------------------------------------------------------


def read(pipeline: dict[str, Plain], source: dict[str, Plain] | None = None) -> EngineConfig:
    text: Plain = {
        "sources": {"shop": {"type": "sqlite", "path": "shop.db", **(source or {})}},
        "pipelines": {
            "orders": {
                "source": "shop",
                "tables": ["orders"],
                "target": {"type": "indexed-memory"},
                **pipeline,
            }
        },
        "retry": {"max_attempts": 9, "first_pause": "2s"},
        "reconnect": {"max_attempts": 7},
    }
    return configured(node_of(text, SourceLocation("headrace.conf", 7, 3)))


def test_a_pipeline_and_a_source_take_what_they_do_not_set_from_the_sections_for_all() -> None:
    found = read({"retry": {"max_attempts": 3}}, {"reconnect": {"longest_pause": "1m"}})
    (pipeline,) = found.build().pipelines
    assert pipeline.retry == Retries(3, 2.0, 30.0)
    assert found.reconnects() == {"shop": Retries(7, None, 60.0)}
    state = found.engine()._state
    assert state.reconnect_of("shop") == Retries(7, None, 60.0)
    (pipeline,) = read({}).build().pipelines
    assert pipeline.retry is None
    assert (pipeline.on_failure, pipeline.lag) == ("isolate", LagLimit())


def test_a_configuration_has_the_policies_of_a_pipeline() -> None:
    found = read(
        {
            "on_failure": "stop_all",
            "lag": {"max_bytes": "1MB", "max_changes": 5, "max_age": "10m", "policy": "release"},
        }
    )
    (pipeline,) = found.build().pipelines
    assert pipeline.on_failure == "stop_all"
    assert pipeline.lag == LagLimit(1_000_000, 5, 600.0, "release")


@pytest.mark.parametrize(
    ("pipeline", "source", "why"),
    [
        ({"on_failure": "stop"}, {}, "on_failure must be one of"),
        ({"retry": {"max_attempts": 0}}, {}, "retry.max_attempts must be at least 1"),
        ({"retry": {"attempts": 1}}, {}, "retry.attempts is not a known key"),
        ({"lag": {"max": 1}}, {}, "lag.max is not a known key"),
        ({"lag": {"policy": "error"}}, {}, "lag.policy is error, but there is no limit"),
        ({"lag": {"max_changes": 0}}, {}, "lag.max_changes must be at least 1"),
        ({"lag": {"max_age": "0s"}}, {}, "lag.max_age must be at least 1s"),
        (
            {"mode": "changes", "lag": {"max_changes": 1, "policy": "release"}},
            {},
            "lag.policy is release, but mode changes does not copy tables",
        ),
        ({}, {"reconnect": {"pause": "1s"}}, "reconnect.pause is not a known key"),
        ({}, {"reconnect": {"first_pause": "0s"}}, "first_pause must be at least 10ms"),
        ({"retry": {"longest_pause": "1s"}}, {}, "first_pause must not be longer than"),
        ({}, {"reconnect": {"first_pause": "31s"}}, "first_pause must not be longer than"),
    ],
)
def test_a_policy_that_makes_no_sense_is_an_error_of_the_configuration(
    pipeline: dict[str, Plain], source: dict[str, Plain], why: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=why):
        read(pipeline, source)


def test_other_retries_of_a_source_are_applied_by_a_restart_of_its_recorder_alone() -> None:
    before, after = read({}), read({}, {"reconnect": {"max_attempts": 2}})
    plan = planned(before, after)
    (step,) = plan.steps
    assert (step.what, step.why) == ("sources.shop", ("reconnect.max_attempts",))
    assert (plan.add, plan.drop, plan.sources) == ((), (), ("shop",))
    asked: list[Any] = []

    class Asked:
        def change(self, *given: Any) -> None:
            asked.append(given)

    apply(Asked(), plan, after)  # type: ignore[arg-type]
    ((_, _, _, reconnect),) = asked
    assert reconnect == {"shop": Retries(2, None, 30.0)}


def test_a_running_engine_takes_other_retries_of_a_source(market: Market) -> None:
    runner = Failing()
    with market_engine(market, runner, market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.change(sources=[market.source], reconnect={"shop": Retries(1, *PAUSES)})
        assert engine.await_ready(PATIENCE)
        market.source.inject_error(SourceUnreachable("Away", source="shop"))
        assert await_that(engine, lambda: state_of_source(engine) == "failed")


def test_an_error_that_a_retry_cannot_fix_stops_at_once_however_many_are_left() -> None:
    world = Stepping()
    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, "orders", target, retry=Retries(5)))
    world.settle(run)
    target.reject(CorruptSegment("Segment is shorter than recorded", file="x.parquet"))
    world.put(1)
    while run.step() != IDLE:
        pass
    assert run.failed
