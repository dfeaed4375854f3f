"""
What capture does to the application, and what it cannot see: the lists in docs/guides/sqlite.md.

The rest of these lists is tested elsewhere: limits in `test_sqlite_budget.py`, DROP COLUMN in
`test_sqlite_must_pass.py`, most of what cannot be seen in `test_sqlite_silent_changes.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.capture.sqlite import Capture, Record, capture_log, triggers
from headrace.capture.sqlite.capture_log import CaptureLog, end_of
from headrace.capture.sqlite.database import opened, reading
from tests.capture.library import running

ROWS = "insert into t values (1, 'a'), (2, 'b'), (3, 'c')"


@pytest.fixture
def reader(path: Path, app: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A connection of Headrace to a file in which the table `t` is captured."""
    app.execute("create table t (id integer primary key, v)")
    Capture(path, ["t"], print).setup()
    with opened(str(path)) as database:
        yield database


def count(app: sqlite3.Connection, table: str = "__headrace_log") -> int:
    return int(app.execute(f"select count(*) from {table}").fetchone()[0])


def pruner(database: sqlite3.Connection) -> capture_log.CursorPruner:
    """Return what removes all rows that are in the log now."""
    capture = str(triggers.capture_id(database))
    made = capture_log.CursorPruner(database, "capture/default/t", capture)
    made.allow(end_of(database, capture).seq)
    return made


class Clock:
    """A clock that moves on by itself each time it is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: float = 0.0) -> None:
        self.now = 0.0
        self._step = step
        monkeypatch.setattr(capture_log, "time", SimpleNamespace(monotonic=self))

    def __call__(self) -> float:
        self.now += self._step
        return self.now


# --- on the application ---------------------------------------------------------------------------


@pytest.mark.usefixtures("reader")
def test_if_the_disk_is_full_a_write_and_its_change_both_fail(app: sqlite3.Connection) -> None:
    (pages,) = app.execute("pragma page_count").fetchone()
    # Enough for the row, and not for the row and its change.
    app.execute(f"pragma max_page_count = {pages + 14}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        app.execute("insert into t values (1, zeroblob(40000))")
    assert (count(app, "t"), count(app)) == (0, 1)
    app.execute(f"pragma max_page_count = {pages + 24}")
    app.execute("insert into t values (1, zeroblob(40000))")
    assert (count(app, "t"), count(app)) == (1, 2)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("index", ["", "create unique index i on t (v)"])
def test_only_total_changes_counts_the_rows_of_the_log(
    path: Path, app: sqlite3.Connection, index: str
) -> None:
    app.execute(index)
    Capture(path, ["t"], print).setup()
    app.execute("insert into t values (7, 'a')")
    before = app.total_changes
    done = app.execute("insert or replace into t values (8, 'b'), (9, 'a')")
    said = app.execute("select changes(), last_insert_rowid()").fetchone()
    assert (done.rowcount, *said) == (2, 2, 9)
    assert app.total_changes - before >= 4


@pytest.mark.meets("R42")
def test_a_writer_that_retries_once_gets_through_between_two_steps(
    app: sqlite3.Connection, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, locked, removed = Clock(monkeypatch), [0], []
    app.execute("pragma busy_timeout = 0")
    app.executemany("insert into t (v) values (?)", [(number,) for number in range(1_700)])
    pruning = pruner(reader)

    def during(statement: str) -> None:
        if statement.startswith("delete from __headrace_log"):
            try:
                app.execute("insert into t (v) values (0)")
            except sqlite3.OperationalError as error:
                locked[0] += "locked" in str(error)

    reader.set_trace_callback(during)
    for _ in range(3):
        clock.now += capture_log.STEP_SECONDS
        locked[0] = 0
        before = count(app)
        pruning.step()
        removed.append(before - count(app))
        assert locked[0] > 0
        pruning.step()  # it is not due yet, so the writer has the file to itself
        app.execute("insert into t (v) values (0)")
    assert removed == [500, 1_000, 200]


class Disk:
    """A connection that deletes rows and commits, each at a speed."""

    def __init__(self, clock: Clock, database: sqlite3.Connection, row: float) -> None:
        self._clock, self._database = clock, database
        self.row = row
        self.commit = 0.0
        self.held = 0.0
        """How long the last transaction has taken."""

    def execute(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        done = self._database.execute(sql, values)
        if sql.startswith("begin"):
            self.held = -self._clock.now
        if sql.startswith("delete"):
            self._clock.now += done.rowcount * self.row
        if sql == "commit":
            self._clock.now += self.commit
            self.held += self._clock.now
        return done

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)


def remove(removal: capture_log.RowRemoval) -> int:
    with removal.step():
        removal.remove(1 << 40)
    return removal.removed


@pytest.mark.meets("R42")
def test_a_step_removes_twice_as_many_rows_while_steps_are_fast(
    app: sqlite3.Connection, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.execute("begin")
    app.executemany("insert into t (v) values (?)", [(number,) for number in range(20_000)])
    app.execute("commit")
    disk = Disk(Clock(monkeypatch), reader, row=0.0000002)
    removal = capture_log.RowRemoval(disk)  # type: ignore[arg-type]
    assert [remove(removal) for _ in range(4)] == [500, 1_000, 2_000, 4_000]
    # 4,000 take 0.8 ms, and 8,000 take 1.6: more would not fit into the 2 ms of a step.
    assert [remove(removal), remove(removal)] == [8_000, 4_500]


@pytest.mark.meets("R42")
@pytest.mark.parametrize("row", [0.000_000_5, 0.000_002, 0.000_03, 0.000_4])
def test_a_step_ends_in_time_at_any_speed_and_when_rows_become_slower(
    app: sqlite3.Connection, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, row: float
) -> None:
    app.execute("begin")
    app.executemany("insert into t (v) values (?)", [(number,) for number in range(12_000)])
    app.execute("commit")
    disk = Disk(Clock(monkeypatch), reader, row)
    removal = capture_log.RowRemoval(disk)  # type: ignore[arg-type]
    for _ in range(3):
        assert remove(removal) > 0
        assert disk.held <= capture_log.HELD_SECONDS
    disk.row *= 4
    for _ in range(3):
        assert remove(removal) > 0
        assert disk.held <= capture_log.HELD_SECONDS


@pytest.mark.meets("R42")
def test_a_step_after_a_slow_commit_removes_fewer_rows(
    app: sqlite3.Connection, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.executemany("insert into t (v) values (?)", [(number,) for number in range(1_000)])
    disk = Disk(Clock(monkeypatch), reader, row=0.0)
    disk.commit = 4 * capture_log.HELD_SECONDS
    removal = capture_log.RowRemoval(disk)  # type: ignore[arg-type]
    assert [remove(removal), remove(removal)] == [500, 125]
    disk.commit = 0.0
    assert [remove(removal), remove(removal)] == [31, 62]


@pytest.mark.meets("R42")
def test_a_step_over_large_rows_ends_by_time(
    app: sqlite3.Connection, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.executemany("insert into t (v) values (?)", [(number,) for number in range(30)])
    clock, removed = Clock(monkeypatch, step=0.0009), []
    pruning = pruner(reader)
    for _ in range(2):
        clock.now += capture_log.STEP_SECONDS
        before = count(app)
        pruning.step()
        removed.append(before - count(app))
    assert removed == [2, 1]


def test_without_a_wal_a_read_makes_a_writer_without_a_timeout_fail(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("pragma journal_mode = delete")
    app.execute("pragma busy_timeout = 0")
    app.execute("create table t (id integer primary key, v)")
    Capture(path, ["t"], print).setup()
    with opened(str(path)) as database:
        log = CaptureLog(database, end_of(database, str(triggers.capture_id(database))))
        with reading(database):
            assert log.goes_on()
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                app.execute(ROWS)
        app.execute(ROWS)


def test_a_transaction_that_begins_with_a_read_fails_if_rows_were_removed_meanwhile(
    app: sqlite3.Connection, reader: sqlite3.Connection
) -> None:
    app.execute("pragma busy_timeout = 600000")
    app.execute(ROWS)
    app.execute("begin")
    app.execute("select * from t").fetchall()
    pruner(reader).step()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        app.execute("delete from t")
    app.execute("rollback")
    app.execute("begin immediate")
    pruner(reader).step()
    app.execute("delete from t")
    app.execute("commit")


def test_without_its_log_every_write_fails_until_teardown(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table t (id integer primary key, v)")
    Capture(path, ["t"], print).setup()
    app.execute("drop table __headrace_log")
    for statement in (ROWS, "insert into t values (4, 'd')"):
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            app.execute(statement)
    Capture(path, None, print).teardown()
    # SQLite reads the schema again only now: a write would still fail on this connection.
    app.execute("select count(*) from t").fetchone()
    app.execute(ROWS)


@pytest.mark.parametrize("captured", [False, True])
def test_an_update_may_visit_rows_in_another_order(
    path: Path, app: sqlite3.Connection, captured: bool
) -> None:
    app.execute("create table t (id integer primary key, u unique, w int)")
    app.execute("create index j on t (w desc)")
    app.execute("insert into t values (1, 3, 1), (2, 1, 3), (3, 2, 2)")
    if captured:
        Capture(path, ["t"], print).setup()
    app.execute("update or ignore t set u = 9 where w > 0")
    changed = app.execute("select id from t where u = 9").fetchall()
    # One row gets the value, and which one depends on the order.
    assert changed == ([(1,)] if captured else [(2,)])


# --- what cannot be seen --------------------------------------------------------------------------

TEXT_KEY = "create table t (id text primary key, v)"
WITHOUT_TRIGGERS = (
    "pragma writable_schema = on",
    "create temp table kept as"
    " select rowid as number, * from main.sqlite_schema where type = 'trigger'",
    "delete from main.sqlite_schema where type = 'trigger'",
    "pragma writable_schema = reset",
    "update t set v = 'x'",
    "pragma writable_schema = on",
    "insert into main.sqlite_schema (rowid, type, name, tbl_name, rootpage, sql)"
    " select number, type, name, tbl_name, rootpage, sql from kept",
    "pragma writable_schema = reset",
)


@pytest.mark.parametrize(
    ("table", "statements"),
    [
        pytest.param(
            TEXT_KEY, ["insert or replace into t (rowid, id) values (1, '9')"], id="insert a rowid"
        ),
        pytest.param(
            TEXT_KEY, ["update or replace t set rowid = 1 where id = '2'"], id="update a rowid"
        ),
        pytest.param(
            "",
            [
                "create unique index i on t (v)",
                "insert or replace into t values (9, 'a')",
                "drop index i",
            ],
            id="an index that was there for a moment",
        ),
        pytest.param(
            "",
            [
                "create trigger mine after insert on t"
                " begin update t set v = 'x' where id = new.id; end",
                "insert into t values (9, 'd')",
                "drop trigger mine",
            ],
            id="a trigger that was there for a moment",
        ),
        pytest.param("", WITHOUT_TRIGGERS, id="the schema edited by hand"),
    ],
)
def test_what_leaves_no_trace_in_the_schema_is_a_stated_limit(
    path: Path, app: sqlite3.Connection, table: str, statements: list[str]
) -> None:
    app.execute(table or "create table t (id integer primary key, v)")
    Capture(path, ["t"], print).setup()
    for statement in (ROWS, *statements, "insert into t values (100, 'last')"):
        app.execute(statement)
    with running(path, ["t"]) as heard:
        records = heard.until(lambda all: all and (all[-1].after or {}).get("v") == "last")
    # If this fails, the limit is gone: then take it out of the guide.
    assert rows_of(records) != set(app.execute("select * from t"))


def rows_of(records: list[Record]) -> set[tuple[object, ...]]:
    """Return the rows that the changes lead to."""
    made: dict[object, tuple[object, ...]] = {}
    for record in records:
        if record.before is not None:
            made.pop(record.before["id"], None)
        if record.after is not None:
            made[record.after["id"]] = tuple(record.after.values())
    return set(made.values())
