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
    meter = source_module.CaptureMeter(source._now.database, str(path), "one", 1, clock)
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
def test_a_full_disk_is_a_limit_and_none_is_no_limit(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "free_bytes", lambda path: 1_000)
    source = reader(path)
    write(app, 10)
    room = measured(source)
    assert room.limit == room.used + 1_000
    source.close()

    unlimited = reader(path, budget=0)
    assert measured(unlimited).limit is None
    unlimited.close()


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
