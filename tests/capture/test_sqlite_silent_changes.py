"""
Changes without a message at a SQLite source: a target has what the source has, or says why.

The list of all of it is docs/internals/silent-changes.md, which names these tests.
"""

from __future__ import annotations

import ctypes
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from headrace.capture import recorder, table_selection
from headrace.capture.sqlite import database
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError, SourceUnreachable
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from headrace.testing.contracts import read_all
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, await_that

Statements = Sequence[str]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_selection, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(database, "LOOK_SECONDS", 0.05)


class Copy:
    """An engine that follows tables of a file in memory."""

    def __init__(self, path: Path, tables: Sequence[str]) -> None:
        self._path = path
        self._data = path.parent / "data"
        self._tables = tables
        self.start()

    def start(self) -> None:
        source = sqlite(self._path, name="shop")
        self._targets = {table: memory() for table in self._tables}
        self.engine = Engine(
            *(Pipeline(source, name, each, name=name) for name, each in self._targets.items()),
            data=self._data,
            runner=ArrowRunner(),
            recorder="thread",
        )
        self.engine.start()

    def ready(self) -> bool:
        return self.engine.await_ready(PATIENCE)

    def exact(self) -> bool:
        """Wait until it is ready, and the targets have exactly the rows of the source."""
        return await_that(self.engine, lambda: self.engine.is_ready() and self.differing() == [])

    def has(self, table: str, key: object) -> bool:
        return self._targets[table].get(key) is not None

    def lost(self, table: str = "t") -> HeadraceError:
        """Wait until a table is lost; return why."""
        info = partial(self.engine.pipeline_info, table)
        assert await_that(self.engine, lambda: info().state == "failed")
        error = info().error
        assert error is not None
        return error

    def differing(self) -> list[str]:
        with closing(sqlite3.connect(self._path)) as database:
            database.row_factory = sqlite3.Row
            return [
                table
                for table, target in self._targets.items()
                if sorted(map(repr, map(dict, database.execute(f"select * from {table}"))))
                != sorted(map(repr, map(dict, target.all())))
            ]

    @property
    def copies(self) -> int:
        """How often tables were copied again."""
        codes = ("capture.history_lost", "capture.copied_again")
        notices = self.engine.source_info("shop").notices
        return sum(each.problem.code in codes for each in notices)


Follow = Callable[..., Copy]


@pytest.fixture
def follow(path: Path) -> Iterator[Follow]:
    made: list[Copy] = []

    def follow(*tables: str) -> Copy:
        made.append(Copy(path, tables))
        assert made[-1].ready()
        return made[-1]

    yield follow
    for each in made:
        each.engine.stop()


def run(app: sqlite3.Connection, statements: Statements) -> None:
    for statement in statements:
        app.execute(statement)


def triggers(app: sqlite3.Connection) -> tuple[list[str], list[str]]:
    """Return statements that drop the triggers of `t`, and that create them as they are."""
    query = "select name, sql from sqlite_master where type = 'trigger' and tbl_name = 't'"
    found = app.execute(query).fetchall()
    return [f"drop trigger {name}" for name, _ in found], [sql for _, sql in found]


PLAIN = ["create table t (id integer primary key, v)"]
TEXT = ["create table t (id text primary key, v)"]
NO_ROWID = ["create table t (id text primary key, v) without rowid"]
ROWS = ["insert into t values (1, 'a'), (2, 'b'), (3, 'c')"]
NUMBERS = [
    "create table t (id primary key, v)",
    "insert into t values (1, 'a'), (0.0, 'b'), (9007199254740993, 'c'), (9007199254740992, 'd')",
]
FAMILY = [
    *PLAIN,
    "create table u (id integer primary key, t references t on delete cascade on update cascade)",
    "pragma foreign_keys = on",
    *ROWS,
    "insert into u values (1, 1), (2, 2), (3, 2)",
]
REPLACE = [
    "insert or replace into t values (2, 'x')",
    "update or replace t set id = 1 where id = 3",
]


# --- what triggers see, although it may not look like it ------------------------------------------


@pytest.mark.parametrize(
    ("tables", "before", "statements"),
    [
        pytest.param("t", PLAIN + ROWS, REPLACE, id="replaced"),
        pytest.param("t", TEXT + ROWS, REPLACE, id="replaced, text"),
        pytest.param("t", NO_ROWID + ROWS, REPLACE, id="replaced, without rowid"),
        pytest.param(
            "t", PLAIN + ROWS, ["pragma recursive_triggers = on", *REPLACE], id="with triggers"
        ),
        pytest.param(
            "t",
            NUMBERS,
            [
                "insert or replace into t values (1.0, 'x')",
                "insert or replace into t values (-0.0, 'x')",
                "insert or replace into t values (9007199254740992.0, 'x')",
            ],
            id="replaced by a number that is equal",
        ),
        pytest.param("tu", FAMILY, ["delete from t where id = 2"], id="cascade of a delete"),
        pytest.param("tu", FAMILY, REPLACE, id="cascade of a replacement"),
        pytest.param("t", PLAIN + ROWS, ["delete from t"], id="all rows"),
        pytest.param(
            "t",
            PLAIN + ROWS,
            [
                "begin",
                "alter table t rename to s",
                "update s set v = 'x'",
                "alter table s rename to t",
                "commit",
            ],
            id="renamed and back",
        ),
        pytest.param(
            "t",
            PLAIN + ROWS,
            [
                *("begin", "update t set v = 'x'", "rollback"),
                *("begin", "insert into t values (4, 'd')", "savepoint s"),
                *("update t set v = 'x'", "rollback to s", "insert into t values (5, 'e')"),
                *("commit", "insert or ignore into t values (5, 'x'), (6, 'f')"),
            ],
            id="rolled back",
        ),
        pytest.param(
            "t",
            PLAIN + ROWS,
            ["pragma trusted_schema = off", "insert into t values (9, 9)"],
            id="trusted_schema",
        ),
        pytest.param(
            "t",
            TEXT + ROWS,
            ["delete from t where id = 1", "vacuum", "insert into t values (9, 9)"],
            id="vacuum",
        ),
        pytest.param(
            "t",
            ["pragma journal_mode = delete", *PLAIN, *ROWS],
            ["pragma journal_mode = wal", "insert into t values (9, 9)"],
            id="journal mode",
        ),
    ],
)
def test_what_triggers_see_reaches_the_target_without_a_copy(
    app: sqlite3.Connection,
    follow: Follow,
    tables: str,
    before: Statements,
    statements: Statements,
) -> None:
    run(app, before)
    copy = follow(*tables)
    run(app, statements)
    assert copy.exact()
    assert copy.copies == 0


def test_what_is_written_through_another_database_is_captured(
    path: Path, app: sqlite3.Connection, follow: Follow
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    with closing(sqlite3.connect(path.parent / "other.db", isolation_level=None)) as other:
        other.execute("attach ? as shop", (str(path),))
        other.execute("update shop.t set v = 'x'")
    assert copy.exact()
    assert copy.copies == 0


def test_another_journal_mode_while_an_engine_is_stopped_changes_nothing(
    app: sqlite3.Connection, follow: Follow
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    copy.engine.stop()
    assert app.execute("pragma journal_mode = delete").fetchone() == ("delete",)
    run(app, ["update t set v = 'x'"])
    copy.start()
    assert copy.exact()
    assert copy.copies == 0


# --- triggers that were away ----------------------------------------------------------------------


REBUILT = ["create table n (id integer primary key, v)", "insert into n select id, v || '!' from t"]
SWAPPED = ["drop table t", "alter table n rename to t"]


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("how", ["dropped", "rebuilt", "dumped", "all dropped"])
def test_triggers_that_were_away_and_are_back_as_they_were_are_noticed(
    app: sqlite3.Connection, follow: Follow, how: str, stopped: bool
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    drops, creates = triggers(app)
    if stopped:
        copy.engine.stop()
    run(app, ["begin"])
    match how:
        case "dropped":
            run(app, [*drops, "update t set v = 'x'"])
        case "rebuilt":  # as the documentation of SQLite says
            run(app, [*REBUILT, *SWAPPED])
        case "dumped":
            run(app, ["drop table t", *PLAIN, "insert into t values (2, 'x')"])
        case "all dropped":  # and only those of the application's tables are created again
            run(app, [*drops, "drop trigger __headrace_seal", "update t set v = 'x'"])
    run(app, [*creates, "commit"])
    if stopped:
        copy.start()
    assert copy.exact()
    assert copy.copies == 1
    run(app, ["update t set v = 'y'"])
    assert copy.exact()
    assert copy.copies == 1


def test_triggers_that_were_removed_from_the_schema_by_hand_are_noticed(
    path: Path, app: sqlite3.Connection, follow: Follow
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    version = app.execute("pragma schema_version").fetchone()
    run(
        app,
        [
            "pragma writable_schema = on",
            "delete from sqlite_master where type = 'trigger' and tbl_name = 't'",
        ],
    )
    assert app.execute("pragma schema_version").fetchone() == version  # so it shows nothing
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("update t set v = 'x'")
    assert copy.exact()
    assert copy.copies == 1


def test_triggers_that_are_back_stay_noticed_when_another_table_is_set_up(
    path: Path, app: sqlite3.Connection
) -> None:
    run(app, [*PLAIN, "create table u (id integer primary key, v)"])
    source = sqlite(path)
    source.describe(["t", "u"])
    at = source.open(None)
    source.close()
    drops, creates = triggers(app)
    run(app, [*drops, *creates, "drop trigger __headrace_2_insert"])
    other = SQLiteSource(source.spec, "other")
    other.describe(["u"])
    other.open(None)
    other.close()
    source.describe(["t"])
    assert source.open(at) == at
    assert [notice.table for notice in source.notices() if notice.missing] == ["t"]
    source.close()


def test_a_capture_of_an_older_version_without_a_seal_continues_and_gets_one(
    app: sqlite3.Connection, follow: Follow
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    copy.engine.stop()
    run(app, ["drop trigger __headrace_seal", "update t set v = 'x'"])
    run(app, ["delete from __headrace_meta where name = 'sealed'"])
    copy.start()
    assert copy.exact()
    assert copy.copies == 0
    query = "select count(*) from sqlite_master where name = '__headrace_seal'"
    assert app.execute(query).fetchone() == (1,)


def test_rows_that_are_missing_from_the_log_before_they_were_read_are_noticed(
    app: sqlite3.Connection, follow: Follow
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    copy.engine.stop()
    run(app, ["update t set v = 'x'", "insert into t values (9, 'last')"])
    run(app, ["delete from __headrace_log where op = 1 and a0 = 2"])
    copy.start()
    assert copy.exact()
    assert copy.copies == 1
    run(app, ["update t set v = 'y'"])
    assert copy.exact()
    assert copy.copies == 1


# --- another file ---------------------------------------------------------------------------------


def older(path: Path, folder: Path) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute("vacuum into ?", (str(folder / "older.db"),))
    return folder / "older.db"


def other(folder: Path) -> Path:
    """Return another database, with a capture of its own and the same numbers."""
    with closing(sqlite3.connect(folder / "other.db", isolation_level=None)) as database:
        database.execute("pragma journal_mode = wal")
        run(database, [*PLAIN, "insert into t values (7, 'other')"])
        source = sqlite(folder / "other.db")
        source.describe(["t"])
        source.open(None)
        source.close()
        run(database, ["insert into t values (8, 'other')"])
    return folder / "other.db"


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("how", ["older", "same", "other"])
def test_a_file_in_the_place_of_another_gives_the_target_its_rows(
    path: Path, app: sqlite3.Connection, follow: Follow, tmp_path: Path, how: str, stopped: bool
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    run(app, ["update t set v = 'x' where id = 1"])
    assert copy.exact()
    replacement = other(tmp_path) if how == "other" else older(path, tmp_path)
    if how == "older":
        run(app, ["delete from t where id = 2"])
        assert copy.exact()
    if stopped:
        copy.engine.stop()
    app.close()
    for left in ("-wal", "-shm"):  # otherwise SQLite itself would apply the old WAL to the new file
        path.with_name(path.name + left).unlink(missing_ok=True)
    replacement.replace(path)
    if stopped:
        copy.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("insert into t values (20, 'new')")
    assert copy.exact()
    assert copy.copies == (how != "same")


@pytest.mark.parametrize("how", ["older", "other"])
def test_a_backup_that_is_restored_into_the_open_file_gives_the_target_its_rows(
    path: Path, app: sqlite3.Connection, follow: Follow, tmp_path: Path, how: str
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    backup = other(tmp_path) if how == "other" else older(path, tmp_path)
    run(app, ["update t set v = 'x'", "delete from t where id = 2"])
    assert copy.exact()
    with closing(sqlite3.connect(backup)) as source:
        source.backup(app)  # as the shell's .restore does
    assert copy.exact()
    assert copy.copies == 1


def test_a_link_to_another_database_is_refused_by_name(
    path: Path, app: sqlite3.Connection, follow: Follow, tmp_path: Path
) -> None:
    run(app, PLAIN + ROWS)
    app.close()
    path.rename(tmp_path / "first.db")
    path.symlink_to(tmp_path / "first.db")
    copy = follow("t")
    link = tmp_path / "link"
    link.symlink_to(other(tmp_path))
    link.replace(path)
    info = partial(copy.engine.source_info, "shop")
    assert await_that(copy.engine, lambda: info().error is not None)
    error = info().error
    assert error is not None
    assert error.code == "capture.other_database"
    assert not copy.engine.is_ready()


def test_a_link_to_a_copy_of_the_database_is_followed(
    path: Path, app: sqlite3.Connection, follow: Follow, tmp_path: Path
) -> None:
    run(app, PLAIN + ROWS)
    app.close()
    path.rename(tmp_path / "first.db")
    path.symlink_to(tmp_path / "first.db")
    copy = follow("t")
    link = tmp_path / "link"
    link.symlink_to(older(path, tmp_path))
    link.replace(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("insert into t values (20, 'new')")
    assert copy.exact()
    assert copy.copies == 0


@pytest.mark.parametrize("how", ["triggers", "restored", "replaced", "removed"])
def test_a_source_is_not_said_to_be_current_before_a_change_is_noticed(
    path: Path, app: sqlite3.Connection, tmp_path: Path, how: str
) -> None:
    run(app, PLAIN + ROWS)
    source = sqlite(path)
    source.describe(["t"])
    source.open(None)
    backup = older(path, tmp_path)
    run(app, ["update t set v = 'x'"])
    read_all(source)
    assert source.lag().age == 0
    match how:
        case "triggers":
            run(app, ["begin", *triggers(app)[0], "update t set v = 'y'", "commit"])
        case "restored":
            with closing(sqlite3.connect(backup)) as copy:
                copy.backup(app)
        case "replaced":
            backup.replace(path)
        case "removed":
            path.unlink()
    assert source.lag().age is None
    with pytest.raises(SourceUnreachable):
        source.read(1, 0)
    source.close()


def test_a_write_to_a_file_that_was_replaced_is_no_permanent_failure(
    path: Path, app: sqlite3.Connection, tmp_path: Path
) -> None:
    run(app, ["pragma journal_mode = delete", *PLAIN])
    source = sqlite(path)
    source.describe(["t"])
    source.open(None)
    older(path, tmp_path).replace(path)
    assert source._now is not None
    with pytest.raises(SourceUnreachable), database.speaking(str(path)):
        source._now.database.execute("delete from __headrace_readers")
    source.close()


# --- tables that cannot be captured any more ------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "why", "back"),
    [
        pytest.param(
            ["alter table t rename to s", "create view t as select * from s"],
            "A view cannot be captured",
            ["drop view t", "alter table s rename to t"],
            id="view",
        ),
        pytest.param(
            ["drop table t", "create virtual table t using fts5 (id, v)"],
            "A virtual table cannot be captured",
            ["drop table t", *PLAIN],
            id="virtual table",
        ),
        pytest.param(
            ["create trigger mine before delete on t begin delete from t where id = 0; end"],
            "A BEFORE trigger",
            ["drop trigger mine"],
            id="trigger",
        ),
    ],
)
def test_a_table_that_cannot_be_captured_any_more_is_lost_and_copied_when_it_is_back(
    app: sqlite3.Connection, follow: Follow, statements: Statements, why: str, back: Statements
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    run(app, ["begin", *statements, "commit"])
    assert why in copy.lost().message
    assert not copy.engine.is_ready()
    run(app, back)
    run(app, ["insert into t values (20, 'new')"])
    assert copy.exact()


@pytest.mark.meets("R39")
@pytest.mark.parametrize(
    ("statements", "copies"),
    [
        pytest.param(["alter table t add column g as (id + 1)"], 1, id="generated column"),
        pytest.param(
            ["create unique index i on t (v)", "insert or replace into t values (9, 'b')"],
            1,
            id="unique index",
        ),
        pytest.param(
            [
                "create trigger mine after insert on t"
                " begin update t set v = 'x' where id = new.id; end",
                "insert into t values (9, 'd')",
            ],
            1,
            id="trigger that runs first",
        ),
        pytest.param(
            ["create trigger mine after insert on t begin select 1; end"], 0, id="other trigger"
        ),
    ],
)
def test_what_needs_other_triggers_costs_a_copy_of_that_table_only(
    app: sqlite3.Connection, follow: Follow, statements: Statements, copies: int
) -> None:
    run(app, [*PLAIN, *ROWS, "create table u (id integer primary key, v)"])
    copy = follow("t", "u")
    run(app, [*statements, "insert into u values (1, 'x')"])
    assert copy.exact()
    run(app, ["insert or replace into t (id, v) values (30, 'x'), (31, 'x')"])
    assert copy.exact()
    assert copy.copies == copies


# --- what nothing can notice ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "statements"),
    [
        pytest.param(
            TEXT + ROWS,
            ["insert or replace into t (rowid, id, v) values (1, '4', 'x')"],
            id="a rowid that is not the key",
        ),
        pytest.param(
            PLAIN + ROWS,
            [
                "create temp trigger mine after insert on t"
                " begin update t set v = 'x' where id = new.id; end",
                "insert into t values (4, 'd')",
            ],
            id="a temporary trigger of the writer",
        ),
        pytest.param([*PLAIN, "insert into t values (1, x'00')"], [], id="a blob in place"),
    ],
)
def test_what_fires_no_trigger_of_ours_in_time_is_a_stated_limit(
    app: sqlite3.Connection, follow: Follow, before: Statements, statements: Statements
) -> None:
    run(app, before)
    copy = follow("t")
    run(app, statements)
    if not statements:
        with app.blobopen("t", "v", 1) as blob:
            blob.write(b"1")
    run(app, ["drop trigger if exists temp.mine", "insert into t values (9, 'last')"])
    assert await_that(copy.engine, lambda: copy.has("t", 9) or copy.has("t", "9"))
    # If this fails, the limit is gone: then take it out of the guide.
    assert copy.differing() == ["t"]


@pytest.mark.parametrize("how", ["turned off", "all created again", "not in the log any more"])
def test_what_leaves_no_trace_is_a_stated_limit(
    path: Path, app: sqlite3.Connection, follow: Follow, how: str
) -> None:
    run(app, PLAIN + ROWS)
    copy = follow("t")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        match how:
            case "turned off":
                turn_triggers_off(writer)
                run(writer, ["update t set v = 'x'"])
            case "all created again":  # the seal as well, and as the last one
                query = "select name, sql from sqlite_master where type = 'trigger' order by rowid"
                found = writer.execute(query).fetchall()
                drops = [f"drop trigger {name}" for name, _ in found]
                run(writer, ["begin", *drops, "update t set v = 'x'"])
                run(writer, [*(sql for _, sql in found), "commit"])
            case _:  # their numbers are used again
                run(writer, ["begin", "update t set v = 'x'"])
                run(writer, ["delete from __headrace_log where op = 1", "commit"])
    run(app, ["insert into t values (9, 'last')"])
    assert await_that(copy.engine, lambda: copy.has("t", 9))
    # If this fails, the limit is gone: then take it out of the guide.
    assert copy.differing() == ["t"]


def turn_triggers_off(database: sqlite3.Connection) -> None:
    if sys.version_info >= (3, 12):
        database.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        return
    import _sqlite3

    # Before Python 3.12 only the C function does it. The connection's handle is its first field.
    try:
        configure = ctypes.CDLL(_sqlite3.__file__).sqlite3_db_config
    except AttributeError:
        pytest.skip("The functions of this SQLite library are not exported")
    handle = ctypes.c_void_p.from_address(id(database) + object.__basicsize__)
    assert configure(handle, 1003, 0, None) == 0
