"""`status` answers from what is known, whatever hangs: a target, Spark, a disk."""

from __future__ import annotations

import json
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api import client
from headrace.api.handlers import ControlService
from headrace.cli.main import exit_code
from headrace.cli.run import all_counted, rows_text
from headrace.cli.status import remarks
from headrace.deadletters.store import DeadLetterStore
from headrace.engine import state, status
from headrace.engine.engine import Engine
from headrace.runtime.info import RowCounts
from headrace.runtime.lease import Lease
from headrace.runtime.spark import FROZEN_SECONDS, SparkWatchdog
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import ScriptedTarget
from tests.interfaces.at_work import CONFIGURATION
from tests.support.shop import PATIENCE, Market, Shop, await_seen


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path)


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """What hangs goes on when this is set, at the end of a test at the latest."""
    event = threading.Event()
    yield event
    event.set()


def status_of(engine: Engine) -> dict[str, Any]:
    """Return the status, asked for on another thread, or fail: it does not answer."""
    answers: list[dict[str, Any]] = []
    service = ControlService(engine)

    def ask() -> None:
        answers.append(service.unary["Status"]({}))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert answers, "no answer"
    return answers[0]


class Uncountable(IndexedMemory):
    """A target whose count, once it `hangs`, waits for `free`."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__()
        self.hangs = False
        self.counting = 0
        self._free = free

    def row_count(self, table: str) -> int | None:
        self.counting += 1
        if self.hangs:
            self._free.wait()
        return super().row_count(table)


def test_a_target_whose_count_hangs_is_shown_with_its_last_count_and_the_age(
    market: Market, free: threading.Event
) -> None:
    target = Uncountable(free)
    lame, sound = market.pipeline(target, name="lame"), market.pipeline(memory(), name="sound")
    with market.engine(lame, sound) as engine:
        assert engine.await_ready(PATIENCE)
        before = status_of(engine)["pipelines"][0]["tables"][0]
        assert (before["rows"], before["rows_age_seconds"]) == (10, 0)
        target.hangs = True
        status_of(engine)
        counting = target.counting
        first, second = status_of(engine)["pipelines"]
        assert first["tables"][0]["rows"] == first["rows"] == 10
        assert first["tables"][0]["rows_age_seconds"] > 0
        assert (second["rows"], second["tables"][0]["rows_age_seconds"]) == (10, 0)
        assert target.counting == counting, "a thread for each status"
        free.set()
        assert await_seen(
            lambda: engine.pipeline_info("lame").tables[0].rows_age == 0, timeout=PATIENCE
        )


def test_targets_are_waited_for_together_however_many_counts_hang(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waited = [0.0], list[float]()

    class Hanging(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waited.append(timeout)
            now[0] += timeout
            return False

    names = [f"p{number}" for number in range(20)]
    with market.engine(*(market.pipeline(memory(), name=name) for name in names)) as engine:
        assert engine.await_ready(PATIENCE)
        monkeypatch.setattr(
            status, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time)
        )
        monkeypatch.setattr(RowCounts, "start", lambda counts, tables: Hanging())
        assert len(status_of(engine)["pipelines"]) == 20
    assert len(waited) >= 20
    assert sum(waited) < 0.5, "an answer takes no longer than a second"


def test_a_target_whose_count_raises_has_no_count(market: Market) -> None:
    class Raising(ScriptedTarget):
        def row_count(self, table: str) -> int | None:
            raise ConnectionError("away")

    with market.engine(market.pipeline(Raising())) as engine:
        assert engine.await_ready(PATIENCE)
        assert status_of(engine)["pipelines"][0]["rows"] is None


class FrozenSpark:
    """Spark that does not answer once `frozen`."""

    def __init__(self, free: threading.Event) -> None:
        self.frozen = False
        self.asked = threading.Event()
        self._free = free

    @property
    def alive(self) -> bool:
        if self.frozen:
            self.asked.set()
            self._free.wait()
        return True

    def revive(self) -> bool:
        return True


def test_a_spark_that_does_not_answer_is_not_waited_for_and_not_ready(
    market: Market, free: threading.Event
) -> None:
    spark, now = FrozenSpark(free), [0.0]
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        watchdog = engine._state.watchdog = SparkWatchdog(
            spark, engine._state.notify, lambda: now[0]
        )
        assert status_of(engine)["ready"]
        spark.frozen = True
        assert spark.asked.wait(PATIENCE)
        assert status_of(engine)["ready"], "a short pause is none of anybody's business"
        now[0] += FROZEN_SECONDS
        answer = status_of(engine)
        assert not answer["ready"]
        assert "does not answer" in answer["pipelines"][0]["reason"]
        assert answer["spark_down_seconds"] >= FROZEN_SECONDS
        told = [remark.what for remark in remarks(answer)]
        assert any(
            each.startswith("Spark is not running, or does not answer, since ") for each in told
        )
        # Neither are the source's reports held up by it.
        market.put("orders", 11)
        assert market.recorded(engine)
        spark.frozen = False
        free.set()
        assert await_seen(lambda: bool(status_of(engine)["ready"]))
        assert status_of(engine)["spark_down_seconds"] is None
        watchdog.stop()


class Unopenable(ScriptedTarget):
    """A target whose open hangs until somebody sets `free`."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__()
        self.free = free

    def open(self, *args: Any) -> None:
        self.free.wait()
        super().open(*args)


def test_a_target_whose_open_hangs_is_the_reason_that_is_shown(
    market: Market, free: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_OPEN_SECONDS", 0.05)
    with market.engine(market.pipeline(Unopenable(free), name="orders")) as engine:
        reason = "its target is being opened, for "
        # Until the source is connected, that is the reason.
        assert await_seen(lambda: status_of(engine)["pipelines"][0]["reason"].startswith(reason))
        (pipeline,) = status_of(engine)["pipelines"]
        assert not pipeline["ready"]
        assert pipeline["opening_seconds"] is not None
        free.set()
        assert engine.await_ready(PATIENCE)
        (pipeline,) = status_of(engine)["pipelines"]
        assert (pipeline["reason"], pipeline["opening_seconds"]) == ("", None)


def test_a_disk_that_hangs_while_a_dead_letter_is_stored_is_not_waited_for(
    market: Market, free: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.pipeline.definition import DeadLetters
    from tests.support.arrow_runner import ArrowRunner

    hanging = threading.Event()

    def link(disk: RealDisk, old: str, new: str) -> None:
        if "dead-letters" in new:
            hanging.set()
            free.wait()
        before(disk, old, new)

    before = RealDisk.link
    monkeypatch.setattr(RealDisk, "link", link)
    runner = ArrowRunner(fails=lambda pipeline, row: "bad" if row["id"] == 11 else None)
    lame = market.pipeline(memory(), name="lame", on_error=DeadLetters())
    with market.engine(lame, runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert hanging.wait(PATIENCE)
        assert status_of(engine)["pipelines"][0]["dead_letters"] == 0
        free.set()
        assert await_seen(lambda: status_of(engine)["pipelines"][0]["dead_letters"] == 1)


def test_ready_is_said_of_rows_that_were_counted_after_it(
    market: Market, free: threading.Event
) -> None:
    """Whatever is not counted by then is no part of the sum, and the line says so."""
    target = Uncountable(free)
    lame, sound = market.pipeline(target, name="lame"), market.pipeline(memory(), name="sound")
    with market.engine(lame, sound) as engine:
        assert engine.await_ready(PATIENCE)
        assert rows_text(status_of(engine)) == "ready: 2 pipelines, 20 rows"
        target.hangs = True
        market.put("orders", 11)
        assert await_seen(lambda: engine.pipeline_info("sound").rows == 11)
        answer = status_of(engine)
        assert not all_counted(answer)
        assert rows_text(answer) == "ready: 2 pipelines, at least 21 rows"
        free.set()


def test_an_engine_that_becomes_ready_meanwhile_is_not_ready_with_what_was_there_before(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()
        collected = engine.pipelines

        def pipelines(*, count: bool) -> Any:
            found = collected(count=count)
            engine.resume()
            assert engine.await_ready(PATIENCE)
            return found

        monkeypatch.setattr(engine, "pipelines", pipelines)
        assert engine.is_ready() is False
        assert not status_of(engine)["ready"]
        assert engine.is_ready()


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """The data directory of an engine whose process is suspended: the kernel still connects."""
    data = tmp_path / "data"
    (data / "run").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/engine.sock")
        listening.listen()
        announced = {"format": 1, "pid": os.getpid(), "socket": f"{folder}/engine.sock"}
        (data / "run" / "engine.json").write_text(json.dumps(announced))
        yield data


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["status", "--wait", "10ms"],
        ["top", "--once"],
        ["watch", "orders"],
        ["health"],
        ["metrics"],
    ],
)
def test_an_engine_that_is_suspended_is_named_and_not_waited_for(
    frozen: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert client.STATUS_SECONDS <= 5
    monkeypatch.setattr(client, "STATUS_SECONDS", 0.05)
    assert exit_code([*command, "--data", str(frozen)]) == 4
    told = capsys.readouterr().err
    assert f"process {os.getpid()}, did not answer" in told
    assert "control.no_answer" in told


def test_an_engine_that_is_suspended_is_not_taken_for_none_however_often_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "STATUS_SECONDS", 0.02)
    (tmp_path / "run").mkdir()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/engine.sock")
        listening.listen(1)  # more connections than this are not taken by the kernel
        announced = {"format": 1, "pid": os.getpid(), "socket": f"{folder}/engine.sock"}
        (tmp_path / "run" / "engine.json").write_text(json.dumps(announced))
        for _ in range(3):
            assert exit_code(["status", "--data", str(tmp_path)]) == 4
            assert "control.no_answer" in capsys.readouterr().err


def test_counts_of_dead_letters_wait_once_however_many_writes_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()

    class Held:
        def acquire(self, timeout: float) -> bool:
            waited.append(timeout)
            return False

    monkeypatch.setattr(DeadLetterStore, "_hung_at", -math.inf)
    files = Files(RealDisk(), str(tmp_path))
    for number in range(50):
        store = DeadLetterStore.open(files, f"p{number}", time.time)
        monkeypatch.setattr(store, "_lock", Held())
        assert store.count == 0
    assert sum(waited) < 1
    monkeypatch.setattr(DeadLetterStore, "_hung_at", -math.inf)


def test_doctor_does_not_take_an_engine_that_hangs_for_none(
    frozen: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(frozen.parent)
    monkeypatch.setattr(client, "STATUS_SECONDS", 0.05)
    shop = Shop(frozen.parent)
    (frozen.parent / "headrace.conf").write_text(CONFIGURATION)

    def checked() -> dict[str, str]:
        exit_code(["doctor", "--json"])
        found = json.loads(capsys.readouterr().out)["results"]
        [engine] = [each for each in found if each["part"] == "engine"]
        return dict(engine)

    engine = checked()
    assert (engine["kind"], engine["code"]) == ("wrong", "control.no_answer")
    # The same without a socket: its process has the lock.
    (frozen / "run" / "engine.json").unlink()
    lock = Lease(frozen, lambda: 0.0)
    engine = checked()
    lock.release()
    shop.close()
    assert (engine["kind"], f"Process {os.getpid()}" in engine["says"]) == ("note", True)
