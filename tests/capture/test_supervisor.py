"""Recorders as real processes: killed, orphaned, stopped."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.capture import process
from headrace.capture.messages import (
    ENDLESS,
    BaselineProgress,
    Failed,
    Flushed,
    FlushNow,
    Report,
    Retries,
    Started,
    StateReport,
    TakeBaseline,
)
from headrace.capture.process import RunningRecorder, start_recorder
from headrace.capture.source import Recordable, SourceSpec
from headrace.capture.sqlite.source import sqlite
from headrace.changelog.position import ORIGIN
from headrace.changelog.reader import LogReader
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.testing.source import MemorySource
from tests.rounds.processes import await_end
from tests.support.patience import patience
from tests.support.shop import await_seen

LONG = patience()
IN_A_PROCESS = pytest.param("process", marks=pytest.mark.process)


class Heard:
    """Reports as they come, and waits for some of them."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._came = threading.Condition()

    def __call__(self, report: Report) -> None:
        with self._came:
            self.reports.append(report)
            self._came.notify_all()

    def wait(self, wanted: Callable[[Report], bool], times: int = 1) -> None:
        with self._came:
            assert self._came.wait_for(lambda: sum(map(wanted, self.reports)) >= times, LONG), (
                self.reports
            )


def streaming(report: Report) -> bool:
    return isinstance(report, StateReport) and report.state == "streaming"


def flushed(report: Report) -> bool:
    return isinstance(report, Flushed)


def copied(report: Report) -> bool:
    return isinstance(report, BaselineProgress) and report.done


@pytest.fixture(autouse=True)
def _table(app: sqlite3.Connection) -> None:
    app.execute("create table t (id integer primary key, v)")


@pytest.fixture
def heard() -> Heard:
    return Heard()


def started(
    folder: Path,
    source: Recordable,
    heard: Heard,
    how: str = "process",
    *,
    spec: SourceSpec | None = None,
    term: int = 1,
    reconnect: Retries = ENDLESS,
) -> RunningRecorder:
    """Start to record the table `t` of a source."""
    return start_recorder(
        source,
        spec or source.spec,
        ["t"],
        data=str(folder / "data"),
        writer="w",
        term=term,
        on_report=heard,
        how=how,
        reconnect=reconnect,
    )


@pytest.fixture(params=[IN_A_PROCESS, "thread"])
def running(
    request: pytest.FixtureRequest, path: Path, tmp_path: Path, heard: Heard
) -> Iterator[RunningRecorder]:
    made = started(tmp_path, sqlite(path), heard, request.param)
    yield made
    made.stop()
    assert not made.alive


only_process = pytest.mark.parametrize("running", [IN_A_PROCESS], indirect=True)


def commits(tmp_path: Path) -> list[int]:
    log = LogReader.open(Files(RealDisk(), str(tmp_path / "data")), "shop")
    found: list[int] = []
    at = ORIGIN
    while (batch := log.next_batch("t", at, 10**6)) is not None:
        for file in batch.files:
            found += log.rows(file)["_commit"].to_pylist()
        at = batch.last
    return found


def until(count: int, running: RunningRecorder, heard: Heard, tmp_path: Path) -> None:
    """Wait until so many changes are in the log."""
    while True:
        known = sum(map(flushed, heard.reports))
        if len(commits(tmp_path)) >= count:
            return
        running.send(FlushNow())
        heard.wait(flushed, known + 1)


def test_changes_and_a_baseline_reach_the_log(
    running: RunningRecorder, heard: Heard, app: sqlite3.Connection, tmp_path: Path
) -> None:
    heard.wait(streaming)
    assert isinstance(heard.reports[0], Started)
    assert heard.reports[0].pid == running.pid
    app.execute("insert into t values (1, 'x')")
    running.send(TakeBaseline("t"))
    heard.wait(copied)
    app.execute("insert into t values (2, 'y')")
    until(2, running, heard, tmp_path)
    running.stop()
    assert commits(tmp_path) == [2, 3]
    assert heard.reports[-1] == StateReport("closed")
    assert running.pid is None


@pytest.mark.meets("R31")
@only_process
def test_a_killed_recorder_goes_on_without_loss_or_repetition(
    running: RunningRecorder, heard: Heard, app: sqlite3.Connection, tmp_path: Path
) -> None:
    heard.wait(streaming)
    for life in range(1, 4):
        app.executemany("insert into t (v) values (?)", [("x",)] * 10)
        if life % 2:
            running.send(FlushNow())
        pid = running.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        heard.wait(lambda report: isinstance(report, Started), life + 1)
        heard.wait(streaming, life + 1)
    app.execute("insert into t (v) values ('last')")
    until(31, running, heard, tmp_path)
    running.stop()
    assert commits(tmp_path) == list(range(2, 33))
    assert running.restarts == 3


@pytest.mark.meets("R31")
@pytest.mark.process
def test_a_recorder_ends_with_an_engine_that_was_killed(path: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from headrace.capture.sqlite.source import sqlite\n"
        "from headrace.capture.process import start_recorder\n"
        "from headrace.capture.messages import StateReport\n"
        f"source = sqlite({str(path)!r})\n"
        "def told(report):\n"
        "    if report == StateReport('streaming'):\n"
        "        print(recorder.pid, flush=True)\n"
        "import threading\n"
        "recorder = None\n"
        "recorder = start_recorder(source, source.spec, ['t'], data=sys.argv[1],\n"
        "    writer='w', term=1, on_report=told)\n"
        "threading.Event().wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data")], stdout=subprocess.PIPE
    ) as engine:
        assert engine.stdout is not None
        recorder = int(engine.stdout.readline())
        engine.kill()
    assert await_end(recorder, LONG)


@only_process
def test_ctrl_c_does_not_reach_a_recorder_and_sigterm_stops_it_in_order(
    running: RunningRecorder, heard: Heard, app: sqlite3.Connection, tmp_path: Path
) -> None:
    heard.wait(streaming)
    pid = running.pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    app.execute("insert into t values (1, 'x')")
    running.send(FlushNow())
    heard.wait(flushed, 2)
    app.execute("insert into t values (2, 'x')")
    os.kill(pid, signal.SIGTERM)
    assert await_end(pid, LONG)
    assert StateReport("closed") in heard.reports


def test_what_stops_a_recorder_for_good_is_not_tried_again(
    running: RunningRecorder, heard: Heard, app: sqlite3.Connection
) -> None:
    heard.wait(streaming)
    app.execute("update __headrace_meta set value = 99 where name = 'format'")
    app.execute("alter table t add column w")  # so that the capture is looked at
    heard.wait(lambda report: isinstance(report, Failed) and report.stops)
    (failed,) = [report for report in heard.reports if isinstance(report, Failed)]
    assert failed.code == "capture.refused"
    assert failed.facts["format"] == "99"
    running.stop()
    assert running.restarts == 0


def test_a_database_of_another_place_is_refused_untouched(
    running: RunningRecorder, heard: Heard, tmp_path: Path
) -> None:
    heard.wait(streaming)
    running.stop()
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("create table t (id integer primary key, v)")
    source = sqlite(other, name="shop")
    second = Heard()
    again = started(tmp_path, source, second, "thread", term=2)
    second.wait(lambda report: isinstance(report, Failed))
    again.stop()
    codes = [report.code for report in second.reports if isinstance(report, Failed)]
    assert codes == ["capture.other_database"]
    assert connection.execute("select count(*) from sqlite_master").fetchone() == (1,)
    connection.close()


@pytest.mark.process
@pytest.mark.meets("TYP-13", "ACC-14")
def test_recorders_that_exit_again_and_again_are_an_end_once_retries_are_exhausted(
    tmp_path: Path, path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_environment", lambda: {"PYTHONPATH": str(tmp_path)})
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace" / "__init__.py").write_text("raise SystemExit(7)")
    recorder = started(tmp_path, sqlite(path), heard, reconnect=Retries(2))
    heard.wait(lambda report: isinstance(report, Failed))
    (failed,) = [report for report in heard.reports if isinstance(report, Failed)]
    assert failed.stops
    assert failed.facts == {"times": "2", "exit_code": "7"}
    assert recorder.restarts == 1
    recorder.stop()
    assert not recorder.alive


@pytest.mark.process
def test_a_recorder_writes_to_its_log_file_and_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()
    made = started(tmp_path, MemorySource(), heard, spec=SourceSpec("no such kind", "x", {}))
    heard.wait(lambda report: isinstance(report, Failed) and report.stops)
    made.stop()
    log = tmp_path / "data" / "logs" / "recorder-x.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700
    assert capfd.readouterr() == ("", "")


@pytest.mark.process
def test_a_stuck_recorder_is_ended(tmp_path: Path, path: Path) -> None:
    heard = Heard()
    made = started(tmp_path, sqlite(path), heard)
    heard.wait(streaming)
    pid = made.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    made.stop(timeout=0.2)
    assert await_end(pid, LONG)
    assert await_seen(lambda: not made.alive)


def test_a_memory_source_is_recorded_on_a_thread(tmp_path: Path) -> None:
    heard = Heard()
    source = MemorySource("mem")
    source.set_schema("t", {"id": "int64"}, key=["id"])
    made = started(tmp_path, source, heard, "thread")
    heard.wait(streaming)
    made.send(FlushNow())
    source.emit_insert("t", {"id": 1}, wait=True)
    heard.wait(flushed, 2)
    made.stop()
    assert not made.alive
