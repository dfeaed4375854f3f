"""Set-up, resets, several readers, pruning and schema changes of the SQLite capture."""

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.capture.source import SourcePosition
from headrace.capture.sqlite import capture_log, database, triggers, watch
from headrace.capture.sqlite import copy as baseline
from headrace.capture.sqlite.database import CapturePosition
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.capture.sqlite.trigger_sql import NOW
from headrace.errors import BadPosition, SourceUnreachable
from headrace.testing.contracts import read_all
from tests.support.patience import patience
from tests.support.shop import await_seen

pytestmark = pytest.mark.usefixtures("two_tables")


def opened(path: Path, *tables: str, after: object = None, reader: str = "one") -> SQLiteSource:
    source = SQLiteSource(sqlite(path).spec, reader)
    source.describe(tables or ["t"])
    source.open(None if after is None else str(after))
    return source


def place(source: SQLiteSource, *tables: str, after: object = None) -> SourcePosition:
    source.describe(tables or ["t"])
    return source.open(None if after is None else str(after))


def seqs(source: SQLiteSource) -> list[int]:
    return [
        seq
        for changes in read_all(source)
        for table in changes.tables
        for seq in table.rows["_commit"].to_pylist()
    ]


def missing(source: SQLiteSource) -> list[str]:
    """Return the tables that are to be copied again because changes are missing."""
    return [notice.table for notice in source.notices() if notice.missing]


@contextmanager
def held(path: Path) -> Iterator[threading.Event]:
    """Hold the database's write lock; should somebody wait for it, give up at last, and say so."""
    gave_up = threading.Event()
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("begin immediate")

    def give_up() -> None:
        gave_up.set()
        blocker.rollback()

    ends = threading.Timer(patience(), give_up)
    ends.start()
    try:
        yield gave_up
    finally:
        ends.cancel()
        ends.join()
        blocker.rollback()
        blocker.close()


def newest(app: sqlite3.Connection) -> int:
    """Return the time of the newest captured change, in milliseconds."""
    return int(app.execute("select max(ts) from __headrace_log").fetchone()[0])


def await_later(app: sqlite3.Connection, last: int) -> None:
    """Wait until changes get another time: by that a row is known again, and a new one told."""
    assert await_seen(lambda: bool(app.execute(f"select {NOW} > ?", (last,)).fetchone()[0]))


def test_setting_up_twice_changes_nothing(path: Path, app: sqlite3.Connection) -> None:
    first = opened(path)
    first.close()
    before = app.execute("select * from sqlite_master").fetchall()
    version = app.execute("pragma data_version").fetchone()
    opened(path).close()
    assert app.execute("select * from sqlite_master").fetchall() == before
    assert app.execute("pragma data_version").fetchone() == version


def test_the_journal_mode_is_left_alone(path: Path, app: sqlite3.Connection) -> None:
    app.execute("pragma journal_mode = delete")
    source = opened(path)
    app.execute("insert into t values (1, 2)")
    assert seqs(source)
    assert app.execute("pragma journal_mode").fetchone() == ("delete",)
    source.close()


@pytest.mark.meets("R42")
def test_teardown_leaves_nothing_and_writes_go_on(path: Path, app: sqlite3.Connection) -> None:
    before = app.execute("select name from sqlite_master").fetchall()
    source = opened(path, "t", "u")
    source.teardown(["t"])
    app.execute("insert into t values (1, 1)")
    app.execute("insert into u values (1, 1)")
    source.close()
    source.teardown()
    app.execute("insert into u values (2, 1)")
    assert app.execute("select name from sqlite_master").fetchall() == before


def test_a_wider_table_widens_the_log(path: Path, app: sqlite3.Connection) -> None:
    opened(path).close()
    columns = ", ".join(f"c{number}" for number in range(300))
    app.execute(f"create table wide (id integer primary key, {columns})")
    source = opened(path, "t", "wide")
    app.execute("insert into wide (id, c0, c299) values (1, 'first', 'last')")
    app.execute("insert into t values (1, 'other')")
    (changes,) = read_all(source)
    found = {table.schema.table: table.rows["after"][0].as_py() for table in changes.tables}
    assert found["wide"]["c299"]["t"] == "last"
    assert found["wide"]["c150"] is None
    assert found["t"]["v"]["t"] == "other"
    source.close()


def test_a_text_that_is_no_place_is_refused() -> None:
    made = CapturePosition("0" * 32, 5, "1.2.3")
    assert CapturePosition.parse(str(made)) == made
    for text in ("", "x/1/", "0" * 32 + "/-1/", "0" * 32 + "/1"):
        with pytest.raises(BadPosition):
            CapturePosition.parse(text)


@pytest.mark.meets("R40")
def test_an_emptied_log_begins_a_new_lineage(path: Path, app: sqlite3.Connection) -> None:
    source = opened(path)
    app.executemany("insert into t values (?, 1)", [(number,) for number in range(5)])
    (changes,) = read_all(source)[-1:]
    last = newest(app)
    app.execute("delete from __headrace_log")
    await_later(app, last)
    # More rows than before: numbers alone would look as if nothing had happened.
    app.executemany("insert into t values (?, 1)", [(number,) for number in range(10, 30)])
    with pytest.raises(SourceUnreachable):
        source.read(10, 0)
    at = place(source, after=changes.upto)
    assert at.lineage != changes.upto.lineage
    assert seqs(source) == []
    source.close()


@pytest.mark.meets("R40")
def test_a_restored_database_begins_a_new_lineage(
    path: Path, app: sqlite3.Connection, tmp_path: Path
) -> None:
    source = opened(path)
    app.execute("insert into t values (1, 1)")
    app.execute("pragma wal_checkpoint(truncate)")
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    app.executemany("insert into t values (?, 1)", [(number,) for number in range(10, 20)])
    (changes,) = read_all(source)[-1:]
    last = newest(app)
    source.close()
    app.close()
    copy.replace(path)
    for extra in ("-wal", "-shm"):
        Path(f"{path}{extra}").unlink(missing_ok=True)
    again = sqlite3.connect(path, isolation_level=None)
    await_later(again, last)
    again.executemany("insert into t values (?, 2)", [(number,) for number in range(50, 80)])
    at = place(source, after=changes.upto)
    assert at.lineage != changes.upto.lineage
    source.close()
    again.close()


def test_a_replaced_file_is_noticed_while_reading(
    path: Path, app: sqlite3.Connection, tmp_path: Path
) -> None:
    source = opened(path)
    read_all(source)
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    other.replace(path)
    with pytest.raises(SourceUnreachable):
        source.read(10, 1)
    source.close()
    path.unlink()
    with pytest.raises(SourceUnreachable):
        source.open(None)


def test_capture_made_anew_is_a_new_lineage(path: Path, app: sqlite3.Connection) -> None:
    source = opened(path)
    first = source.lineage()
    source.close()
    source.teardown()
    assert source.lineage() is None
    opened(path).close()
    assert source.lineage() != first


@pytest.mark.meets("R1")
def test_what_was_pruned_before_it_was_read_is_a_gap(path: Path, app: sqlite3.Connection) -> None:
    source = opened(path)
    early = source.open(None)
    app.executemany("insert into t values (?, 1)", [(number,) for number in range(5)])
    app.execute("delete from __headrace_log where seq < 4")
    at = place(source, after=early)
    assert at.lineage == early.lineage
    assert at.commit == 6
    source.close()


@pytest.mark.meets("R40", "R42")
def test_two_readers_never_lose_what_the_slower_one_needs(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_log, "STEP_SECONDS", 0)
    monkeypatch.setattr(capture_log, "REST_SECONDS", 0)
    monkeypatch.setattr(capture_log, "HELD_SECONDS", 60)
    fast, slow = opened(path, reader="fast"), opened(path, reader="slow")
    app.executemany("insert into t values (?, 1)", [(number,) for number in range(50)])
    (changes,) = read_all(fast)[-1:]
    fast.acknowledge(str(changes.upto))
    fast.read(10, 0)
    assert app.execute("select count(*) from __headrace_log").fetchone() == (51,)
    assert len(seqs(slow)) == 50
    slow.acknowledge(str(changes.upto))
    slow.read(10, 0)
    # The newest row stays, or its number would be given again.
    assert app.execute("select min(seq), max(seq) from __headrace_log").fetchone() == (51, 51)
    app.execute("insert into t values (100, 1)")
    assert seqs(fast) == seqs(slow) == [52]
    fast.close()
    slow.close()


@pytest.mark.meets("R42")
def test_pruning_goes_in_small_steps_and_gives_way(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_log, "STEP_SECONDS", 0)
    monkeypatch.setattr(capture_log, "REST_SECONDS", 0)
    monkeypatch.setattr(capture_log, "HELD_SECONDS", 60)
    monkeypatch.setattr(capture_log, "STEP_ROWS", 10)
    monkeypatch.setattr(capture_log, "MOST_STEP_ROWS", 10)
    monkeypatch.setattr("headrace.capture.sqlite.source._BUSY_SECONDS", 10 * patience())
    source = opened(path)
    app.executemany("insert into t values (?, 1)", [(number,) for number in range(25)])
    (changes,) = read_all(source)[-1:]
    with held(path) as gave_up:
        source.acknowledge(str(changes.upto))
        source.read(10, 0)
        assert not gave_up.is_set(), "waited for the lock"
    counts = []
    for _ in range(4):
        source.read(10, 0)
        counts += app.execute("select count(*) from __headrace_log").fetchone()
    assert counts == [16, 6, 1, 1]
    source.close()


def test_changes_of_other_tables_only_move_the_position(
    path: Path, app: sqlite3.Connection
) -> None:
    opened(path, "t", "u", reader="both").close()
    source = opened(path, "t")
    app.execute("insert into u values (1, 1)")
    changes = source.read(10, 0)
    assert changes is not None
    assert changes.tables == []
    assert changes.ends
    source.close()


@pytest.mark.meets("R39")
@pytest.mark.parametrize(
    "sql",
    [
        ["alter table t add column w"],
        ["alter table t rename column v to w"],
        ["drop trigger __headrace_1_update"],
        ["alter table t rename to t2"],
        [
            "create table t2 (id integer primary key, v)",
            "drop table t",
            "alter table t2 rename to t",
        ],
    ],
    ids=["column added", "column renamed", "trigger dropped", "table renamed", "table rebuilt"],
)
def test_ddl_does_not_pass_silently(path: Path, app: sqlite3.Connection, sql: list[str]) -> None:
    source = opened(path)
    for statement in sql:
        app.execute(statement)
    with pytest.raises(SourceUnreachable) as caught:
        source.read(10, 0)
    assert caught.value.facts["table"] == "t"
    source.close()


@pytest.mark.meets("R39", "R42")
@pytest.mark.parametrize("captured", [False, True], ids=["new", "captured before"])
@pytest.mark.parametrize(
    "sql", ["alter table t add column w", "alter table t rename column v to w"]
)
def test_columns_that_change_between_describe_and_open_are_described_again(
    path: Path, app: sqlite3.Connection, captured: bool, sql: str
) -> None:
    if captured:
        opened(path).close()
    source = SQLiteSource(sqlite(path).spec, "one")
    source.describe(["t"])
    app.execute(sql)
    with pytest.raises(SourceUnreachable, match="columns") as caught:
        source.open(None)
    assert caught.value.facts["table"] == "t"
    app.execute("insert into t (id) values (1)")  # no trigger is in its way
    place(source)
    app.execute("insert into t (id, w) values (2, 'new')")
    (changes,) = read_all(source)
    assert changes.tables[0].rows["after"][0].as_py()["w"]["t"] == "new"
    source.close()


@pytest.mark.meets("R39")
def test_ddl_elsewhere_is_none_of_our_business(path: Path, app: sqlite3.Connection) -> None:
    source = opened(path)
    app.execute("alter table u add column w")
    app.execute("create index i on t (v)")
    app.execute("insert into t values (1, 1)")
    assert seqs(source)
    source.close()


@pytest.mark.meets("R39", "R1")
def test_a_new_plan_is_a_gap_for_every_reader(path: Path, app: sqlite3.Connection) -> None:
    one, two = opened(path, reader="one"), opened(path, reader="two")
    app.execute("insert into t values (1, 1)")
    (first,) = read_all(one)
    one.close()
    app.execute("drop trigger __headrace_1_update")
    app.execute("update t set v = 'unseen'")
    assert place(one, after=first.upto) == first.upto
    assert missing(one) == ["t"]
    assert seqs(one) == []
    with pytest.raises(SourceUnreachable):
        seqs(two)
    assert place(two, after=first.upto) == first.upto
    assert missing(two) == ["t"]
    assert missing(two) == []
    one.close()
    two.close()


@pytest.mark.meets("R39")
def test_a_column_that_was_added_gets_a_field_of_its_own(
    path: Path, app: sqlite3.Connection
) -> None:
    source = opened(path)
    app.execute("alter table t add column w")
    app.execute("drop trigger __headrace_1_insert")
    app.execute("drop trigger __headrace_1_update")
    app.execute("drop trigger __headrace_1_delete")
    app.execute("alter table t drop column v")
    place(source, after=None)
    app.execute("insert into t values (1, 'new')")
    (changes,) = read_all(source)
    (table,) = changes.tables
    assert [(column.name, column.field) for column in table.schema.columns] == [("id", 1), ("w", 3)]
    assert table.rows["after"][0].as_py()["w"]["t"] == "new"
    source.close()


def test_a_table_that_was_left_out_for_a_while_is_a_gap(
    path: Path, app: sqlite3.Connection
) -> None:
    source = opened(path, "t", "u")
    at = source.open(None)
    same = place(source, "t", after=at)
    assert str(same) == str(at)
    assert str(place(source, "t", "u", after=same)) == str(at)
    assert missing(source) == ["u"]
    place(source, "t", "u", after=same)
    assert missing(source) == []
    source.close()


@pytest.mark.meets("R43", "R44")
def test_a_baseline_follows_keys_of_any_kind(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "CHUNK_ROWS", 2)
    app.execute("create table k (a, rowid text, v, primary key (a, rowid))")
    keys: list[object] = [None, None, -1, 2**62, 1.5, "", "z", b"", b"\xff", "\N{ROCKET}"]
    app.executemany("insert into k values (?, 'x', 1)", [(key,) for key in keys])
    app.execute("insert into k values (cast(x'ff' as text), 'x', 1)")
    app.execute("insert into k values (cast(x'ff41' as text), 'x', 1)")
    app.execute("insert into k values (cast(x'ff42' as text), 'x', 1)")
    source = opened(path, "k")
    chunks = list(source.baseline("k"))
    assert sum(chunk.num_rows for chunk in chunks) == len(keys) + 3
    assert len(chunks) > 5
    source.close()


def test_a_baseline_of_the_key_is_read_by_its_index(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create table k (a text, b int, v, primary key (a, b))")
    app.execute("create table w (a text, b int, v, primary key (a, b)) without rowid")
    source = opened(path, "t", "k", "w")
    for table, key in (("t", [1]), ("k", ["a", 1]), ("w", ["a", 1])):
        sql, values = source.baseline(table).pages.following(key)
        plan = " ".join(row[3] for row in app.execute(f"explain query plan {sql}", values))
        assert "SEARCH" in plan
        assert plan.count("?") == len(key)
        assert "TEMP B-TREE" not in plan
    source.close()


@pytest.mark.meets("R43")
def test_a_key_that_compares_otherwise_than_its_column_is_read_whole(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "CHUNK_ROWS", 1)
    app.execute("create table k (a text collate nocase, v, primary key (a collate binary))")
    app.executemany("insert into k values (?, 1)", [("a",), ("A",), ("b",), ("B",)])
    source = opened(path, "k")
    assert sum(chunk.num_rows for chunk in source.baseline("k")) == 4
    source.close()


@pytest.mark.meets("R44")
def test_a_read_transaction_ends_by_time_as_well(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "CHUNK_SECONDS", 0)
    app.executemany("insert into t values (?, 1)", [(number,) for number in range(1000)])
    source = opened(path)
    chunks = list(source.baseline("t"))
    assert [chunk.num_rows for chunk in chunks] == [256, 256, 256, 232]
    source.close()


def test_a_writer_that_holds_the_database_makes_a_reader_wait_not_fail(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.source.PATIENCE_SECONDS", patience())
    app.execute("pragma journal_mode = delete")
    source = opened(path)
    read_all(source)
    app.execute("begin exclusive")
    app.execute("insert into t values (1, 1)")
    assert source.read(10, 0.15) is None
    app.execute("commit")
    assert seqs(source)
    source.close()


def test_a_database_that_stays_locked_is_unreachable(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.source.PATIENCE_SECONDS", 0.0)
    app.execute("pragma journal_mode = delete")
    source = opened(path)
    read_all(source)
    app.execute("begin exclusive")
    app.execute("insert into t values (1, 1)")
    with pytest.raises(SourceUnreachable, match="locked"):
        source.read(10, 5)
    app.execute("rollback")
    source.close()


@pytest.mark.meets("R42")
def test_capture_in_an_unknown_format_is_refused(path: Path, app: sqlite3.Connection) -> None:
    opened(path).close()
    app.execute("update __headrace_meta set value = 99 where name = 'format'")
    (problem,) = sqlite(path).check(["t"])
    assert "format" in problem.facts


def test_a_capture_log_dropped_by_hand_is_made_anew(path: Path, app: sqlite3.Connection) -> None:
    source = opened(path)
    first = source.open(None)
    app.execute("drop table __headrace_log")
    with pytest.raises(SourceUnreachable):
        source.read(10, 0)
    assert place(source, after=first).lineage != first.lineage
    app.execute("select * from sqlite_master")  # lets this connection see the new table
    app.execute("insert into t values (1, 1)")
    assert seqs(source)
    source.close()


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """Return a list that grows with every call of a method."""
    calls: list[str] = []
    method = getattr(owner, name)

    def called(*arguments: object) -> object:
        calls.append(name)
        return method(*arguments)

    monkeypatch.setattr(owner, name, called)
    return calls


def test_an_idle_reader_looks_seldom_and_asks_the_database_next_to_never(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened(path)
    app.execute("insert into t values (1, 1)")
    read_all(source)
    source.read(10, 0.1)
    looks = counted(monkeypatch, source._opened().watch, "moved")
    asked = counted(monkeypatch, source._opened().watch, "_version")
    seconds = 0.15
    assert source.read(10, seconds) is None
    # A busy machine looks less often, and never more.
    alert = watch.ALERT_SECONDS / watch.FAST_SECONDS
    assert 1 <= len(looks) <= seconds / watch.SLOW_SECONDS + alert + 2
    assert len(asked) <= alert + 2
    source.close()


def test_names_are_quoted() -> None:
    assert database.quoted('a"b') == '"a""b"'
    assert triggers.LOG == "__headrace_log"
