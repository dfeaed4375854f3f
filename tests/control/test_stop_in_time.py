"""A stop ends in time whatever hangs, names what it left behind, and nothing of that is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace.engine.engine as engine_module
from headrace.engine.engine import Engine, _part
from headrace.errors import ControlError, WrongValue
from headrace.observe import logs
from headrace.runtime import threads
from headrace.runtime.info import RowCounts
from headrace.runtime.threads import StopLimits
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, Shop, await_seen


def stopped(engine: Engine) -> bool:
    """Whether the engine stops, on a thread of its own."""
    thread = threading.Thread(target=engine.stop, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def left_behind(market: Market) -> list[str]:
    lines = (market.data / "logs" / "headrace.log").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [each["left"] for each in found if "did not wait" in each.get("event", str(each))]


def brief(market: Market, *pipelines, **options) -> Engine:  # type: ignore[no-untyped-def]
    return Engine(
        *pipelines, data=market.data, runner=ArrowRunner(), recorder="thread",
        shutdown_timeout=0.6, **options,
    )  # fmt: skip


@pytest.mark.meets("R8")
def test_a_write_that_hangs_is_left_behind_by_name_and_nothing_of_it_is_acknowledged(
    market: Market,
) -> None:
    disk, steps = TargetDisk(), list[str]()
    target, orders = ScriptedTarget(disk), memory()
    pipelines = market.pipeline(target, name="lame"), market.pipeline(orders, name="sound")
    engine = brief(market, *pipelines, on_step=steps.append)
    engine.start()
    assert engine.await_ready(PATIENCE)
    assert market.source.wait_until_acknowledged(PATIENCE)
    before = market.source.position
    target.hold()
    market.put("orders", 11)
    assert target.holding.wait(PATIENCE)
    assert await_seen(lambda: orders.count() == 11)
    assert stopped(engine)
    assert left_behind(market) == ["pipeline lame"]
    assert steps[-1] == "pipeline lame did not stop in time and was left behind"
    assert target.calls["close"] == 0
    target.release()
    assert await_seen(lambda: not target.holding.is_set())
    parse = type(before).parse
    assert all(parse(text) <= before for text in market.source.acknowledged)
    again = ScriptedTarget(disk)
    with market.engine(market.pipeline(again, name="lame")) as other:
        assert other.await_ready(PATIENCE)
        assert await_seen(lambda: (11,) in disk.tables["orders"].rows)
        assert market.source.wait_until_acknowledged(PATIENCE)
    assert disk.duplicates() == []


class Unclosable(IndexedMemory):
    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def close(self) -> None:
        self.free.wait()


def test_a_target_whose_close_hangs_keeps_nothing_else_from_stopping(market: Market) -> None:
    hanging, sound = Unclosable(), ScriptedTarget()
    pipelines = market.pipeline(hanging, name="lame"), market.pipeline(sound, name="sound")
    engine = brief(market, *pipelines)
    engine.start()
    assert engine.await_ready(PATIENCE)
    assert stopped(engine)
    assert left_behind(market) == ["the target of pipeline lame"]
    assert sound.calls["close"] == 1
    hanging.free.set()
    # Everything else was let go of: the directory, too.
    with market.engine(market.pipeline(memory())) as other:
        assert other.await_ready(PATIENCE)


def test_a_pipeline_that_hangs_can_be_dropped(market: Market) -> None:
    target = ScriptedTarget()
    lame, sound = market.pipeline(target, name="lame"), market.pipeline(memory(), name="sound")
    engine = brief(market, lame, sound)
    engine.start()
    assert engine.await_ready(PATIENCE)
    target.hold()
    market.put("orders", 11)
    assert target.holding.wait(PATIENCE)
    engine.change(drop=["lame"])
    assert [each.name for each in engine.pipelines()] == ["sound"]
    target.release()
    assert await_seen(lambda: not target.holding.is_set())
    assert stopped(engine)


def test_each_part_of_a_stop_has_a_name_for_people(market: Market) -> None:
    with brief(market, market.pipeline(memory(), name="orders")) as engine:
        parts = [_part(call) for call in engine._state.undo]
    assert parts == [
        "the lock of the data directory",
        "the log file",
        "the thread of the observers",
        "the control store (control.sqlite)",
        "source shop",
        "the target of pipeline orders",
        "the last acknowledgement",
        "the threads of the pipelines",
        "the retention of the logs",
    ]


def test_each_step_of_a_stop_leaves_time_for_the_ones_after_it() -> None:
    limits = StopLimits(30.0)
    assert 0 < limits.next <= 15.0
    assert StopLimits(0.0).next == 0.0
    with pytest.raises(WrongValue):
        Engine(shutdown_timeout="0s")


def test_all_steps_together_end_in_time_though_every_one_hangs(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, left = [0.0], list[str]()

    def hangs(seconds: float, call: object) -> bool:
        now[0] += seconds
        return False

    engine = Engine(data=market.data, shutdown_timeout=30, on_step=left.append)
    monkeypatch.setattr(threads, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(engine_module, "call_within", hangs)
    # Each is named in the log file, too, whose disk hangs as well.
    engine._state.undo = [lambda: None] * 10
    engine._end(StopLimits(30.0))
    assert len(left) == 10
    assert now[0] <= 30


PROGRAM = """
import sys, threading
from pathlib import Path
from headrace.engine.engine import Engine
from headrace.testing.target import ScriptedTarget
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import Market, PATIENCE

market, target = Market(Path(sys.argv[1])), ScriptedTarget()
engine = Engine(market.pipeline(target), data=market.data, runner=ArrowRunner(),
                recorder="thread", shutdown_timeout=0.6)
with engine:
    assert engine.await_ready(PATIENCE)
    target.hold()
    market.put("orders", 11)
    assert target.holding.wait(PATIENCE)
print("stopped")
"""


@pytest.mark.process
def test_the_process_exits_although_a_write_hangs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, timeout=3 * PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


def test_a_pause_does_not_wait_for_a_write_that_hangs_and_says_so(market: Market) -> None:
    target, orders = ScriptedTarget(), memory()
    pipelines = market.pipeline(target, name="lame"), market.pipeline(orders, name="sound")
    engine = brief(market, *pipelines)
    with engine:
        assert engine.await_ready(PATIENCE)
        target.hold()
        market.put("orders", 11)
        assert target.holding.wait(PATIENCE)
        with pytest.raises(ControlError, match="batch of lame does not end"):
            engine.pause()
        assert {each.state for each in engine.pipelines()} == {"paused"}
        target.release()
        assert await_seen(lambda: not target.holding.is_set())
        engine.pause()
        market.put("orders", 12)
        assert market.recorded(engine)
        assert (12,) not in target.rows("orders")
        engine.resume()
        assert await_seen(lambda: (12,) in target.rows("orders"))


class HangingDisk:
    """What `os` offers, on a disk of which writes hang until they are `free`."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.hangs = threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: bytes) -> int:
        self.hangs.set()
        self.free.wait()
        return os.write(descriptor, data)


def test_a_log_file_whose_disk_hangs_does_not_keep_an_engine_from_stopping(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LINE_SECONDS", 0.02)
    engine, disk = brief(market, market.pipeline(memory())), HangingDisk()
    engine.start()
    assert engine.await_ready(PATIENCE)
    monkeypatch.setattr(logs, "os", disk)
    threading.Thread(target=logs.logger("test").error, args=("lost",), daemon=True).start()
    assert disk.hangs.wait(PATIENCE)
    assert stopped(engine)
    logs.close_all()
    disk.free.set()


@pytest.mark.process
@pytest.mark.slow
def test_a_recorder_that_is_suspended_is_killed_in_time(tmp_path: Path) -> None:
    shop, steps = Shop(tmp_path), list[str]()
    engine = Engine(
        shop.pipeline(memory()), data=shop.data, runner=ArrowRunner(), recorder="process",
        shutdown_timeout=2.0, on_step=steps.append,
    )  # fmt: skip
    engine.start()
    assert engine.await_ready(PATIENCE)
    pid = engine.source_info("shop").recorder_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert stopped(engine)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "left behind" not in steps[-1]
    shop.close()


class Counting(ScriptedTarget):
    """A target that says whether its rows are counted when or after it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.counting, self.goes = threading.Event(), threading.Event()
        self.goes.set()
        self.open_now, self.wrong = False, list[str]()

    def row_count(self, table: str) -> int | None:
        if not self.open_now:
            self.wrong.append("counted after it was closed")
        self.counting.set()
        self.goes.wait(PATIENCE)
        self.counting.clear()
        return super().row_count(table)

    def close(self) -> None:
        self.open_now = False
        if self.counting.is_set():
            self.wrong.append("closed while it was counted")
        super().close()


@pytest.mark.meets("R8")
def test_rows_of_a_target_are_not_counted_while_it_is_closed_nor_afterwards(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Counting()
    engine = market.engine(market.pipeline(target, name="counted"))
    engine.start()
    assert engine.await_ready(PATIENCE)
    target.open_now = True
    target.goes.clear()
    engine.pipelines()
    assert target.counting.is_set()
    # The count ends when the stop waits for it.
    close = RowCounts.close

    def closing(counts: RowCounts) -> None:
        target.goes.set()
        close(counts)

    monkeypatch.setattr(RowCounts, "close", closing)
    engine.stop()
    target.counting.clear()
    engine.pipelines()
    assert target.wrong == []
