"""What comes back, is renamed or is taken out while the library captures it."""

from __future__ import annotations

import shutil
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from headrace.capture.sqlite import Batch, Capture, Record
from headrace.capture.sqlite import triggers as setup
from headrace.capture.sqlite.library import run as run_module
from headrace.capture.sqlite.source import SQLiteSource, findings, sqlite
from headrace.errors import SchemaChanged, SourceRefused, SourceUnreachable, TableRefused
from headrace.testing.contracts import read_all
from tests.capture.library import Heard, Running, ops, running

pytestmark = pytest.mark.usefixtures("two_tables")


def triggers(app: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return which tables have triggers of ours, and for which event."""
    found = app.execute(
        "select name, tbl_name from sqlite_master"
        " where type = 'trigger' and name <> '__headrace_seal'"
    )
    return {(on, name.rpartition("_")[2]) for name, on in found}


def has(change: tuple[str, str, object], records: list[Record]) -> bool:
    return change in ops(records)


def captured(*tables: str) -> set[tuple[str, str]]:
    return {(table, event) for table in tables for event in ("insert", "update", "delete")}


# -- names ---------------------------------------------------------------------------------


def test_a_trigger_that_writes_the_tables_name_in_another_case_is_seen(
    path: Path, app: sqlite3.Connection
) -> None:
    rewrite = "create trigger app {} insert on T begin update t set v = 1 where id = new.id; end"
    app.execute(rewrite.format("before"))
    with pytest.raises(TableRefused, match="BEFORE trigger"):
        Capture(path, ["t"], print).setup()
    app.execute("drop trigger app")
    app.execute(rewrite.format("after"))
    Capture(path, ["t"], print).setup()
    app.execute("drop trigger app")
    app.execute(rewrite.format("after"))  # it is newer than ours now, and runs first
    with pytest.raises(SchemaChanged):
        Capture(path, ["t"], print).cdc()


def test_a_table_that_is_named_in_another_case_is_none_that_nobody_takes(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t", "u"], print).setup()
    about = [finding.about for finding in findings(sqlite(path), ["T"], "shop")]
    assert "t" not in about
    assert "u" in about


@pytest.mark.meets("R39")
@pytest.mark.parametrize("method", ["setup", "bootstrap_and_cdc"])
def test_a_table_in_the_place_of_one_that_was_renamed_is_captured(
    path: Path, app: sqlite3.Connection, method: str
) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("alter table t rename to old")
    app.execute("create table t (id integer primary key, v)")
    app.execute("insert into t values (1, 0)")
    if method == "setup":
        Capture(path, ["t"], print).setup()
        assert triggers(app) == captured("t")
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        heard.count(2)
        app.execute("insert into old values (7, 0)")  # nobody's any more
        app.execute("insert into t values (2, 0)")
        assert ops(heard.count(3)) == [
            ("t", "BOOTSTRAP", None),
            ("t", "INSERT", 1),
            ("t", "INSERT", 2),
        ]
    assert triggers(app) == captured("t")


@pytest.mark.meets("R39")
def test_triggers_that_were_away_have_another_number_which_an_engine_notices(
    path: Path, app: sqlite3.Connection
) -> None:
    source = SQLiteSource(sqlite(path).spec, "shop")
    source.describe(["t"])
    source.open(None)
    for event in ("insert", "update", "delete"):
        app.execute(f"drop trigger __headrace_1_{event}")
    app.execute("insert into t values (1, 0)")  # seen by nobody
    Capture(path, ["t"], print).setup()
    assert set(setup.plans(app)) == {1, 2}
    with pytest.raises(SourceUnreachable, match="set up again"):
        read_all(source)
    source.close()


@pytest.mark.parametrize("named", [None, ["t"], ["renamed"], ["RENAMED"], ["T"]])
def test_a_renamed_table_is_taken_out_by_either_name_in_any_case(
    path: Path, app: sqlite3.Connection, named: list[str] | None
) -> None:
    Capture(path, ["t", "u"], print).setup()
    app.execute("alter table t rename to renamed")
    app.execute("insert into renamed values (1, 0)")
    assert Capture(path, named, print).teardown().unread == 1
    assert triggers(app) == (captured() if named is None else captured("u"))
    app.execute("insert into renamed values (2, 0)")


@pytest.mark.parametrize("complete", [True, False])
def test_a_table_that_is_not_there_cannot_be_taken_out(
    path: Path, app: sqlite3.Connection, complete: bool
) -> None:
    if complete:
        Capture(path, ["t"], print).setup()
    with pytest.raises(TableRefused, match="not found") as caught:
        Capture(path, ["x"], print).teardown()
    assert "t, u" in caught.value.remedy
    with pytest.raises(TableRefused, match="not found"):
        sqlite(path).teardown(["x"])
    assert triggers(app) == (captured("t") if complete else set())


@pytest.mark.meets("R42")
@pytest.mark.parametrize("named", [None, ["t", "u"]])
def test_triggers_without_their_log_are_taken_out(
    path: Path, app: sqlite3.Connection, named: list[str] | None
) -> None:
    Capture(path, ["t", "u"], print).setup()
    app.execute("drop table __headrace_log")
    Capture(path, named, print).teardown()
    assert app.execute("select count(*) from sqlite_master").fetchone() == (2,)
    app.execute("insert into t values (1, 0)")


# -- readers -------------------------------------------------------------------------------


@pytest.mark.meets("R40")
def test_a_restored_file_is_noticed_and_its_positions_do_not_come_again(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("pragma wal_checkpoint(truncate)")
    shutil.copy(path, path.with_suffix(".bak"))
    app.execute("insert into t values (1, 'before')")
    with running(path, ["t"]) as heard:
        known = {record.position for record in heard.count(1)}
    app.execute("pragma wal_checkpoint(truncate)")
    app.close()
    path.with_suffix(".bak").rename(path)
    after = sqlite3.connect(path, isolation_level=None)
    after.execute("insert into t values (2, 'after')")
    rows = Heard()
    with pytest.raises(SourceRefused, match="restored") as caught:
        Capture(path, ["t"], rows).cdc()
    assert "bootstrap_and_cdc" in caught.value.remedy
    Capture(path, ["t"], rows).bootstrap()
    assert {record.position for record in rows.records} == {None}
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        heard.count(2)
        after.execute("insert into t values (3, 'later')")
        positions = {record.position for record in heard.count(3)}
    assert not {str(at).partition("/")[0] for at in known & positions}
    assert {str(at)[:32] for at in known}.isdisjoint(str(at)[:32] for at in positions)
    with running(path, ["t"]) as heard:
        after.execute("insert into t values (4, 'last')")
        assert ops(heard.count(1)) == [("t", "INSERT", 4)]
    after.close()


def test_a_copy_of_a_database_is_set_up_for_a_new_reader_under_a_new_epoch(
    path: Path, app: sqlite3.Connection, tmp_path: Path
) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("pragma wal_checkpoint(truncate)")
    other = tmp_path / "other.db"
    shutil.copy(path, other)
    Capture(other, ["t"], print, reader="two").setup()
    writer = sqlite3.connect(other, isolation_level=None)
    writer.execute("insert into t values (1, 0)")
    with running(other, ["t"], reader="two") as heard:
        (record,) = heard.count(1)
    assert str(record.position)[:32] != setup.capture_id(app)
    with pytest.raises(SourceRefused, match="emptied"):
        Capture(other, ["t"], print).cdc()
    writer.close()


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_the_file_is_known_whatever_its_path_and_its_encoding(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "Ä ?%.db"
    app = sqlite3.connect(path, isolation_level=None)
    app.execute(f"pragma encoding = '{encoding}'")
    app.execute("create table t (id integer primary key, v)")
    Capture(path, ["t"], print).setup()
    (known,) = app.execute("select value from __headrace_meta where name = 'file'").fetchone()
    assert known.endswith(f"/{path.stat().st_ino}")
    app.close()


def test_a_log_that_does_not_say_its_file_is_told_by_a_bootstrap(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("delete from __headrace_meta where name = 'file'")
    epoch = setup.capture_id(app)
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        heard.count(1)
    assert app.execute("select 1 from __headrace_meta where name = 'file'").fetchone()
    assert setup.capture_id(app) == epoch


@pytest.mark.meets("R39")
@pytest.mark.parametrize("others", [False, True])
def test_who_was_taken_out_and_comes_back_must_copy_first(
    path: Path, app: sqlite3.Connection, others: bool
) -> None:
    Capture(path, ["t", "u"], print).setup()
    if others:
        Capture(path, ["t"], print, reader="two").setup()
    Capture(path, ["t"], print).teardown()
    app.execute("insert into t values (1, 'while it was out')")
    Capture(path, ["t"], print).setup()
    Capture(path, ["t"], print, reader="new").setup()
    app.execute("insert into t values (2, 'later')")
    for tables in (["t"], None):
        with pytest.raises(SchemaChanged) as caught:
            Capture(path, tables, print).cdc()
        assert caught.value.facts["table"] == "t"
    with running(path, ["t"], reader="new") as heard:
        assert ops(heard.count(1)) == [("t", "INSERT", 2)]  # who never read has missed nothing
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        assert ops(heard.count(3))[1:] == [("t", "INSERT", 1), ("t", "INSERT", 2)]
    with running(path, None) as heard:
        app.execute("insert into t values (3, 0)")
        assert ops(heard.count(1)) == [("t", "INSERT", 3)]


def rebuild(app: sqlite3.Connection, table: str) -> None:
    app.executescript(
        "begin; create table n (id integer primary key, v);"
        f"insert into n select * from {table}; drop table {table};"
        f"alter table n rename to {table}; commit"
    )


@pytest.mark.parametrize("engine", [False, True])
def test_what_another_reader_has_not_read_outlives_the_last_trigger(
    path: Path, app: sqlite3.Connection, engine: bool
) -> None:
    Capture(path, ["t"], print, reader="one").setup()
    Capture(path, ["u"], print, reader="two").setup()
    app.execute("insert into u values (1, 'unread')")
    rebuild(app, "u")
    if engine:
        sqlite(path).teardown(["t"])
    Capture(path, ["t"], print, reader="one").teardown()
    assert triggers(app) == set()
    Capture(path, ["u"], print, reader="two").setup()
    heard = Heard()
    with pytest.raises(SchemaChanged):
        Capture(path, ["u"], heard, reader="two").cdc()
    assert ops(heard.records) == [("u", "INSERT", 1)]
    Capture(path, ["u"], print, reader="two").teardown()
    assert app.execute("select count(*) from sqlite_master").fetchone() == (2,)


@pytest.mark.parametrize("method", ["cdc", "bootstrap_and_cdc"])
@pytest.mark.parametrize("others", [False, True])
def test_what_is_taken_out_during_a_run_stays_out(
    path: Path,
    app: sqlite3.Connection,
    method: str,
    others: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "STORE_SECONDS", 0.0)  # it is noticed with the next position
    Capture(path, ["t", "u"], print).setup()
    if others:
        Capture(path, ["u"], print, reader="two").setup()
    heard = Heard()
    run = Running(Capture(path, None, heard), method, heard)
    app.execute("insert into u values (1, 0)")
    heard.until(partial(has, ("u", "INSERT", 1)))
    Capture(path, ["u"], print).teardown()
    for number in (1, 2):
        app.execute("insert into t values (?, 0)", (number,))
        heard.until(partial(has, ("t", "INSERT", number)))
    app.execute("insert into u values (2, 0)")
    app.execute("insert into t values (3, 0)")
    heard.until(partial(has, ("t", "INSERT", 3)))
    assert ("u", "INSERT", 2) not in ops(heard.records)
    assert triggers(app) == (captured("t", "u") if others else captured("t"))
    Capture(path, ["t"], print).teardown()
    run.join()
    assert isinstance(run.error, SourceRefused)
    assert triggers(app) == (captured("u") if others else set())


def test_what_is_taken_out_while_its_rows_are_copied_stays_out(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("insert into t values (1, 0)")
    Capture(path, ["t", "u"], print).setup()

    def takes_out(batch: Batch) -> None:
        if batch[0].table == "t":
            Capture(path, ["t"], print).teardown()

    run = Running(Capture(path, ["t"], takes_out), "bootstrap_and_cdc")
    run.join()
    assert isinstance(run.error, SourceRefused)
    assert triggers(app) == captured("u")
