"""Recording alone: a baseline and changes in the log, and no Spark."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.capture.messages import Failed, StateReport, TakeBaseline
from headrace.engine.engine import Engine
from headrace.errors import NotRunning
from headrace.pipeline.definition import Pipeline
from headrace.runtime.source_run import SourceRun
from headrace.targets.memory import memory
from headrace.testing.source import MemorySource
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, Shop, await_seen, await_that

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import sys
import headrace as hr

engine = hr.record(hr.sqlite(sys.argv[1]), "orders", data=sys.argv[2])
assert engine.await_ready(float(sys.argv[3]))
engine.stop()
print(sorted({"pyspark", "py4j"} & set(sys.modules)))
"""


@pytest.mark.process
def test_what_is_only_recorded_needs_no_spark(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(shop.path), str(shop.data), str(PATIENCE)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    baseline = shop.log("shop").usable_baseline("orders")
    assert baseline is not None
    shop.close()


@pytest.mark.meets("R8")
@pytest.mark.process
def test_a_baseline_and_changes_are_recorded_and_the_source_may_forget(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    engine = hr.record(shop.source(), ["orders"], data=shop.data)
    try:
        assert engine.await_ready(PATIENCE)
        assert engine.is_ready(source="shop", table="orders")
        assert not engine.is_ready(table="nothing")
        assert engine.pipelines() == ()
        shop.insert(range(20, 30))
        end = shop.captured()
        assert await_that(engine, lambda: engine.source_info("shop").end.commit >= end)
        assert await_seen(lambda: shop.cursor() >= end)
        with pytest.raises(NotRunning):
            engine.pause()
        with pytest.raises(NotRunning):
            engine.reload("shop", "orders")
    finally:
        engine.stop()
    assert not engine.is_ready()
    log = shop.log()
    baseline = log.usable_baseline("orders")
    assert baseline is not None
    assert baseline.rows == 10
    assert log.counts().rows == 10
    shop.close()


@pytest.mark.meets("R12", "R19")
def test_pipelines_that_come_later_take_what_was_recorded(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    source = shop.source()
    with Engine(data=shop.data, records=[(source, ["orders"])], recorder="thread") as recording:
        assert recording.await_ready(PATIENCE)
        shop.insert(range(20, 30))
        end = shop.captured()
        assert await_that(recording, lambda: recording.source_info("shop").end.commit >= end)
    orders = memory()
    with shop.engine(shop.pipeline_from(source, orders)) as engine:
        assert engine.await_ready(PATIENCE)
        assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()
    baseline = shop.log().usable_baseline("orders")
    assert baseline is not None
    assert baseline.baseline == 1
    shop.close()


@pytest.mark.meets("R1")
def test_what_is_only_recorded_gets_a_new_baseline_after_a_gap(tmp_path: Path) -> None:
    market = Market(tmp_path)
    engine = Engine(data=market.data, records=[(market.source, ["orders"])], recorder="thread")
    with engine:
        assert engine.await_ready(PATIENCE)
        market.source.reset()
        # Something to read, so that the recorder notices.
        market.put("orders", 11)
        assert await_that(engine, lambda: engine.source_info("shop").end.epoch == 2)
        assert engine.await_ready(PATIENCE)
    baseline = market.log().usable_baseline("orders")
    assert baseline is not None
    assert baseline.baseline == 2


@pytest.mark.parametrize("how", ["start", "resume"])
def test_what_a_recorder_was_asked_before_it_was_known_is_asked_again(
    tmp_path: Path, how: str
) -> None:
    market = Market(tmp_path)
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        recording = SourceRun("shop", "test", market.log(), lambda: None, time.time)
        made: list[Asked] = []

        def start() -> Asked:
            made.append(Asked())
            # As a recorder's thread does it that is quicker than who starts it.
            recording.on_report(StateReport("streaming", ""))
            recording.ask_baseline("items" if len(made) == 1 else "returns")
            return made[-1]

        recording.start(start)
        if how == "resume":
            recording.on_report(Failed.of(NotRunning("gone"), stops=True))
            recording.resume()
        asked = {each.table for each in made[-1].sent if isinstance(each, TakeBaseline)}
        assert asked == ({"items"} if how == "start" else {"items", "returns"})


class Asked:
    """A recorder that is told things."""

    pid, alive, restarts = None, True, 0

    def __init__(self) -> None:
        self.sent: list[object] = []

    def start(self) -> None: ...

    def send(self, command: object) -> None:
        self.sent.append(command)

    def stop(self, timeout: float = 0.0) -> None: ...


@pytest.mark.meets("R8")
def test_a_source_without_pipelines_is_acknowledged_beside_one_with_some(tmp_path: Path) -> None:
    market = Market(tmp_path)
    other = MemorySource("other")
    other.set_schema("items", {"id": "int64"}, key=["id"])
    engine = Engine(
        Pipeline(market.source, "orders", memory()),
        data=market.data,
        records=[(other, ["items"])],
        runner=ArrowRunner(),
        recorder="thread",
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        other.emit_insert("items", {"id": 1})
        assert other.wait_until_acknowledged(PATIENCE)


def test_a_table_is_recorded_beside_a_pipeline_of_another(tmp_path: Path) -> None:
    market = Market(tmp_path, ["orders", "items"])
    orders = memory()
    engine = Engine(
        market.pipeline(orders),
        data=market.data,
        records=[(market.source, ["items"])],
        runner=ArrowRunner(),
        recorder="thread",
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("items", 11)
        assert market.recorded(engine)
        assert market.source.wait_until_acknowledged(PATIENCE)
    assert market.log().usable_baseline("items") is not None
