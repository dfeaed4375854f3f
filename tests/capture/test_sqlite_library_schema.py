"""Tables whose columns or triggers change while they are captured by the library."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from headrace.capture.sqlite import Batch, Capture
from headrace.capture.sqlite.database import CapturePosition
from headrace.capture.sqlite.library.run import CaptureRun
from headrace.capture.sqlite.tables import SourceTable
from headrace.errors import SchemaChanged, TableRefused
from tests.capture.library import Heard, Running, ops, running

pytestmark = pytest.mark.meets("R39")


@pytest.fixture(autouse=True)
def _tables(app: sqlite3.Connection, path: Path) -> None:
    app.execute("create table t (id integer primary key, v)")
    app.execute("create table u (id integer primary key, v)")
    Capture(path, ["t", "u"], print).setup()


def rebuild(app: sqlite3.Connection) -> None:
    """Do what migrations do: the triggers go with the old table."""
    app.executescript(
        "begin; create table n (id integer primary key, v);"
        "insert into n select * from t; drop table t; alter table n rename to t; commit"
    )


def add_column(app: sqlite3.Connection) -> None:
    app.execute("alter table t add column w default 7")


@pytest.mark.parametrize("change", [rebuild, add_column])
def test_cdc_hands_out_what_was_logged_and_then_stops(
    path: Path, app: sqlite3.Connection, change: object
) -> None:
    heard = Heard()
    run = Running(Capture(path, ["t", "u"], heard), "cdc")
    app.execute("insert into t values (1, 0)")
    heard.count(1)
    app.execute("begin")
    app.execute("insert into u values (2, 0)")
    app.execute("commit")
    change(app)  # type: ignore[operator]
    run.join()
    assert isinstance(run.error, SchemaChanged)
    assert run.error.facts["table"] == "t"
    assert ops(heard.records) == [("t", "INSERT", 1), ("u", "INSERT", 2)]


def test_all_that_was_logged_before_comes_first_however_much_it_is(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.library.run.READ_ROWS", 3)
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(20)])
    add_column(app)
    heard = Heard()
    with pytest.raises(SchemaChanged):
        Capture(path, ["t"], heard, batch_size=2).cdc()
    assert [id for _, _, id in ops(heard.records)] == list(range(20))


def test_after_a_new_set_up_it_stops_at_the_same_place_until_the_table_is_copied(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("insert into t values (1, 0)")
    rebuild(app)
    app.execute("insert into t values (2, 0)")  # seen by nobody
    Capture(path, ["t"], print).setup()
    app.execute("insert into t values (3, 0)")
    for expected in ([("t", "INSERT", 1)], []):
        heard = Heard()
        with pytest.raises(SchemaChanged):
            Capture(path, ["t"], heard).cdc()
        assert ops(heard.records) == expected
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        records = heard.count(4)
        assert ops(records) == [
            ("t", "BOOTSTRAP", None),
            *(("t", "INSERT", at) for at in (1, 2, 3)),
        ]
    with running(path, ["t"]) as heard:
        app.execute("delete from t where id = 2")
        assert ops(heard.count(1)) == [("t", "DELETE", 2)]


@pytest.mark.parametrize("change", [rebuild, add_column])
def test_with_a_bootstrap_the_rows_of_that_table_come_again_and_it_goes_on(
    path: Path, app: sqlite3.Connection, change: object
) -> None:
    app.execute("insert into t values (1, 0)")
    with running(path, None, "bootstrap_and_cdc") as heard:
        heard.count(3)
        change(app)  # type: ignore[operator]
        app.execute("update t set v = 5")
        app.execute("insert into u values (9, 9)")
        records = heard.until(
            lambda all: (
                [r.operation for r in all if r.table == "t"].count("BOOTSTRAP") == 2
                and ("u", "INSERT", 9) in ops(all)
                and all[-1].operation != "BOOTSTRAP"
            )
        )
        assert [r.operation for r in records if r.table == "u"].count("BOOTSTRAP") == 1
        app.execute("update t set v = 6")
        last = heard.until(lambda all: (all[-1].after or {}).get("v") == 6)[-1]
        assert dict(last.after or {}) == dict(
            zip(
                (column[1] for column in app.execute("pragma table_info(t)")),
                app.execute("select * from t").fetchone(),
                strict=True,
            )
        )


def test_columns_that_change_during_a_bootstrap_end_it(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 2)
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(10)])

    def alters(batch: Batch) -> None:
        heard(batch)
        if len(heard.batches) == 1:
            add_column(app)

    heard = Heard()
    with pytest.raises(SchemaChanged):
        Capture(path, ["t"], alters, batch_size=3).bootstrap()


def test_columns_that_change_before_the_first_row_is_read_end_it_too(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = CaptureRun._changes_after

    def alters(run: CaptureRun, table: SourceTable) -> CapturePosition | None:
        add_column(app)
        return begin(run, table)

    monkeypatch.setattr(CaptureRun, "_changes_after", alters)
    heard = Heard()
    with pytest.raises(SchemaChanged):
        Capture(path, ["t"], heard).bootstrap()
    assert heard.records == []


def test_columns_that_change_during_a_bootstrap_make_its_rows_come_again(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 2)
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(10)])

    def alters(batch: Batch) -> None:
        if not heard.batches:
            writer = sqlite3.connect(path, isolation_level=None)
            add_column(writer)
            writer.close()
        heard(batch)

    heard = Heard()
    run = Running(Capture(path, ["t"], alters, batch_size=3), "bootstrap_and_cdc", heard)
    records = heard.until(lambda all: len([r for r in all if r.after and "w" in r.after]) == 10)
    run.capture.close()
    run.join()
    assert [record.operation for record in records].count("BOOTSTRAP") == 2


def test_a_table_that_is_dropped_ends_either_run(path: Path, app: sqlite3.Connection) -> None:
    heard = Heard()
    run = Running(Capture(path, ["t"], heard), "cdc")
    app.execute("insert into t values (1, 0)")
    heard.count(1)
    app.execute("drop table t")
    run.join()
    assert isinstance(run.error, TableRefused)
    with pytest.raises(TableRefused):
        Capture(path, ["t"], heard).bootstrap_and_cdc()
    assert Capture(path, ["t"], print).teardown().unread == 0
    with running(path, ["u"]) as others:
        app.execute("insert into u values (2, 0)")
        others.count(1)


def test_triggers_that_were_created_again_as_they_were_end_a_run(
    path: Path, app: sqlite3.Connection
) -> None:
    heard = Heard()
    Capture(path, ["t"], heard).setup()
    query = "select name, sql from sqlite_master where type = 'trigger' and tbl_name = 't'"
    found = app.execute(query).fetchall()
    for name, sql in found:
        app.execute(f"drop trigger {name}")
        app.execute(sql)
    with pytest.raises(SchemaChanged):
        Capture(path, ["t"], heard).cdc()
