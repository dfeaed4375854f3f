"""What a SQLite file may keep for readers that do not read: measured, and limited."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from headrace.capture.source import Room
from headrace.capture.sqlite import source as source_module
from headrace.capture.sqlite.source import CAPTURE_BUDGET, SQLiteSource, sqlite
from headrace.engine.engine import Engine
from headrace.errors import SetAside
from headrace.pipeline.definition import Pipeline
from headrace.runtime.wal_pressure import is_full
from headrace.targets.memory import memory
from headrace.testing.contracts import read_all
from headrace.testing.target import ScriptedTarget
from tests.support.arrow_runner import ArrowRunner
from tests.support.clock import Clock
from tests.support.patience import patience
from tests.support.shop import await_seen, await_that

pytestmark = pytest.mark.usefixtures("two_tables")

PATIENCE = patience()


def reader(path: Path, name: str = "one", budget: int = CAPTURE_BUDGET) -> SQLiteSource:
    source = SQLiteSource(sqlite(path, capture_budget=budget).spec, name)
    source.describe(["t"])
    source.open(None)
    return source


def measured(source: SQLiteSource) -> Room:
    room = source.lag().room
    assert room is not None
    return room


def write(app: sqlite3.Connection, rows: int, size: int = 100) -> None:
    app.executemany("insert into t (v) values (?)", [("x" * size,) for _ in range(rows)])


@pytest.mark.meets("R28")
def test_what_is_kept_is_measured_by_the_size_of_its_rows(
    path: Path, app: sqlite3.Connection
) -> None:
    source = reader(path)
    write(app, 1_000, size=500)
    room = measured(source)

    assert 500_000 < room.used < 600_000
    assert room.unacknowledged == pytest.approx(room.used, rel=0.01)
    assert (room.limit, room.ours) == (CAPTURE_BUDGET, 0)
    source.close()


@pytest.mark.meets("R28")
def test_what_was_read_and_not_acknowledged_is_ours(path: Path, app: sqlite3.Connection) -> None:
    source = reader(path)
    write(app, 100)
    [*_, last] = read_all(source)
    write(app, 100)
    assert measured(source).ours == pytest.approx(measured_after(source).used / 2, rel=0.1)
    source.acknowledge(str(last.upto))
    assert measured_after(source).ours == 0
    source.close()


def measured_after(source: SQLiteSource) -> Room:
    """Measure again, without waiting until it is time to."""
    assert source._now is not None
    source._now.meter._due = 0.0
    return measured(source)


def test_it_is_measured_now_and_then(path: Path, app: sqlite3.Connection) -> None:
    source, clock = reader(path), Clock()
    assert source._now is not None
    database, capture = source._now.database, source._now.log.at.capture
    meter = source_module.CaptureMeter(database, str(path), "one", capture, 1, clock)
    assert meter.measure(0, 0) is not None
    assert meter.measure(0, 0) is None
    clock.now += source_module.MEASURE_SECONDS
    assert meter.measure(0, 0) is not None
    source.close()


@pytest.mark.meets("R28")
def test_another_reader_that_holds_more_is_named(path: Path, app: sqlite3.Connection) -> None:
    idle, source = reader(path, "idle"), reader(path)
    write(app, 10)
    [*_, last] = read_all(source)
    source.acknowledge(str(last.upto))
    room = measured(source)

    assert (room.oldest, room.ours) == ("reader idle", 0)
    assert room.used > 0
    idle.close()
    source.close()


@pytest.mark.meets("R28")
def test_a_reader_of_another_capture_holds_nothing_and_is_not_named(
    path: Path, app: sqlite3.Connection
) -> None:
    source = reader(path)
    app.execute("insert into __headrace_readers values ('former', 'another', 0, '{}')")
    write(app, 10)
    [*_, last] = read_all(source)
    source.acknowledge(str(last.upto))
    assert measured(source).oldest == ""
    source.close()


@pytest.mark.meets("R42")
def test_what_runs_regularly_never_reads_the_whole_log(path: Path, app: sqlite3.Connection) -> None:
    source, run = reader(path), set[str]()
    assert source._now is not None
    source._now.database.set_trace_callback(run.add)
    for _ in range(2):
        write(app, 20)
        [*_, last] = read_all(source)
        write(app, 20)
        measured_after(source)
        source.acknowledge(str(last.upto))
        source._now.pruning._due = 0.0
        assert read_all(source)
    queries = [each for each in run if each.startswith(("select", "delete", "update"))]
    assert any(each.startswith("delete from __headrace_log") for each in queries)
    scans = [
        query
        for query in queries
        for *_, step in app.execute(f"explain query plan {query}")
        if "SCAN __headrace_log" in step
    ]
    assert scans == []
    source.close()


@pytest.mark.meets("R28")
def test_a_full_disk_is_a_limit_and_none_is_no_limit(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "free_bytes", lambda path: 100 << 20)
    source = reader(path)
    write(app, 10)
    room = measured(source)
    assert room.limit == room.used + (100 << 20)
    source.close()

    unlimited = reader(path, budget=0)
    assert measured(unlimited).limit is None
    unlimited.close()


@pytest.mark.meets("R28")
def test_a_disk_that_others_filled_is_no_reason_to_release_for_a_few_bytes(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "free_bytes", lambda path: 0)
    source = reader(path)
    write(app, 10)
    read_all(source)
    room = measured(source)
    assert room.ours > 0
    assert not is_full(room)
    source.close()

    small = reader(path, budget=100)
    assert is_full(measured(small))
    small.close()


@pytest.mark.meets("R28")
def test_a_paused_pipeline_does_not_fill_the_application_s_disk(
    path: Path, app: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "MEASURE_SECONDS", 0.05)
    kept, shown = ScriptedTarget(), memory()
    source = sqlite(path, name="shop", capture_budget=100_000)
    engine = Engine(
        Pipeline(source, "t", kept, name="kept"),
        Pipeline(source, "t", shown, name="shown"),
        data=tmp_path / "data",
        runner=ArrowRunner(),
        recorder="thread",
    )

    def is_released() -> bool:
        return engine.pipeline_info("kept").set_aside is not None

    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("kept")
        write(app, 500, size=180)
        assert await_that(engine, is_released)
        assert isinstance(engine.pipeline_info("kept").error, SetAside)
        (log,) = app.execute(
            "select name from sqlite_schema where name like '%headrace_log'"
        ).fetchone()
        assert await_seen(lambda: app.execute(f"select count(*) from {log}").fetchone()[0] < 50)
        assert not engine.is_ready(pipeline="kept")
        engine.resume("kept")
        assert engine.await_ready(PATIENCE)
        truth = {row[0]: row[1] for row in app.execute("select id, v from t")}
        assert await_seen(lambda: {row["id"]: row["v"] for row in kept.rows("t").values()} == truth)
        assert engine.pipeline_info("kept").error is None


def test_a_change_from_the_future_is_of_no_known_age(path: Path, app: sqlite3.Connection) -> None:
    source = reader(path)
    assert source.lag().age == 0
    write(app, 1)
    # As if the clock had been set back afterwards.
    app.execute("update __headrace_log set ts = ts + 3600000 where op = 0")
    lag = source.lag()
    assert (lag.changes, lag.seconds, lag.age) == (1, None, None)
    read_all(source)
    assert source.lag().age == 0
    source.close()
