"""What cannot be captured exactly is refused by name, with what to do about it."""

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.capture.sqlite import database
from headrace.capture.sqlite.source import sqlite
from headrace.errors import BadName, HeadraceError, SourceRefused, SourceUnreachable, TableRefused

REFUSED = {
    "BEFORE trigger": [
        "create table t (id integer primary key, v)",
        "create trigger mine before insert on t begin delete from t where v = new.v; end",
    ],
    "BEFORE trigger by another table": [
        "create table t (id integer primary key, v)",
        "create table s (id integer primary key, t references t on delete cascade)",
        "create trigger mine before insert on t begin insert or replace into S values (1, 2); end",
        "create trigger other after insert on s begin update T set v = 1; end",
    ],
    "INTEGER PRIMARY KEY": [
        "create table t (id integer primary key, v)",
        "create unique index i on t (v, id % 10)",
    ],
    "INTEGER PRIMARY KEY by generated columns": [
        "create table t (id integer primary key, v as (w || 'v') unique, w as (ID % 10))"
    ],
    "view": ["create table s (id integer primary key)", "create view t as select * from s"],
    "virtual": ["create virtual table t using fts4(body)"],
    "not found": [],
    "all names of the rowid": ["create table t (rowid, _rowid_, oid)"],
    "names of the rowid, with an index": [
        "create table t (id text primary key, rowid, _rowid_, oid, v unique)"
    ],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_table_that_cannot_be_captured_exactly_is_refused(
    reason: str, path: Path, app: sqlite3.Connection
) -> None:
    for sql in REFUSED[reason]:
        app.execute(sql)
    (problem,) = sqlite(path).check(["t"])
    assert isinstance(problem, TableRefused)
    reason = reason.partition(" by ")[0].partition(", with")[0]
    assert reason.lower() in problem.message.lower()
    assert problem.facts["table"] == "t"
    with pytest.raises(TableRefused):
        sqlite(path).describe(["t"])
    # Nothing of ours was left behind by looking.
    assert not app.execute(
        "select 1 from sqlite_master where name like '\\_\\_%' escape '\\'"
    ).fetchall()


@pytest.mark.parametrize(
    "sql",
    [
        "create table t (id integer primary key, v) strict".replace(", v", ", v any"),
        "create table t (a text, b int, v, primary key (b, a)) without rowid",
        "create table t (a blob primary key, v)",
        "create table t (a text, b real, v, primary key (a desc, b))",
        "create table t (id integer primary key, p references t (id) on delete cascade)",
        "create table t (id integer primary key, p references t (id) on update cascade)",
        "create table t (id int, v)",
        "create table t (id integer primary key, v unique)",
        "create table t (id integer primary key, v, w as (v + 1))",
        "create table t (id text collate nocase primary key, v)",
        "create table t (id integer primary key, v as (id + 1), w, unique (w, id), unique (w))",
        "create table t (id int primary key, v, w as (v || 'id' || 'w') unique)",
    ],
)
def test_ordinary_tables_are_taken(sql: str, path: Path, app: sqlite3.Connection) -> None:
    app.execute(sql)
    assert sqlite(path).check(["t"]) == []


def test_several_problems_are_told_together(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create view a as select 1")
    problems = sqlite(path).check(["a", "b"])
    assert [problem.facts["table"] for problem in problems] == ["a", "b"]


def test_a_table_in_another_case_is_refused_with_the_right_name(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table Orders (id integer primary key)")
    (problem,) = sqlite(path).check(["orders"])
    assert "Did you mean Orders?" in problem.remedy


def test_our_own_tables_are_refused(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create table t (id integer primary key)")
    source = sqlite(path)
    source.describe(["t"])
    source.open(None)
    (problem,) = source.check(["__headrace_log"])
    assert isinstance(problem, TableRefused)
    source.close()


def test_a_missing_database_is_refused_and_not_created(path: Path) -> None:
    (problem,) = sqlite(path).check(["t"])
    assert isinstance(problem, SourceRefused)
    assert problem.facts == {"path": str(path)}
    assert not path.exists()


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 100)
    (problem,) = sqlite(path).check(["t"])
    assert isinstance(problem, SourceRefused)
    assert "Not a SQLite database" in problem.message


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (problem,) = sqlite(tmp_path).check(["t"])
    assert isinstance(problem, SourceRefused)


def test_a_read_only_database_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        app = sqlite3.connect(path)
        app.execute("create table t (id integer primary key)")
        app.close()
        path.chmod(0o444)
        Path(folder).chmod(0o755)
        with as_somebody_else():
            (problem,) = sqlite(path).check(["t"])
    assert isinstance(problem, SourceRefused)
    assert "read-only" in problem.message


@contextlib.contextmanager
def as_somebody_else() -> Iterator[None]:
    """Root may write everywhere, so it becomes nobody for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_write_to_a_read_only_database_is_told_apart(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create table t (id integer primary key)")
    frozen = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    with pytest.raises(SourceRefused, match="read-only"), database.speaking(str(path)):
        frozen.execute("insert into t values (1)")
    frozen.close()


def test_a_locked_database_is_unreachable_not_refused(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.execute("create table t (id integer primary key)")
    app.execute("begin immediate")
    monkeypatch.setattr(database.connect, "__defaults__", (0.01,))
    (problem,) = sqlite(path).check(["t"])
    assert isinstance(problem, SourceUnreachable)
    app.execute("rollback")


def test_a_type_for_a_column_that_is_not_there_is_refused(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table t (id integer primary key, at datetime)")
    (problem,) = sqlite(path, columns={"when": "text"}).check(["t"])
    assert problem.facts["column"] == "when"


def test_a_type_that_does_not_exist_is_refused_at_once(path: Path) -> None:
    with pytest.raises(SourceRefused) as caught:
        sqlite(path, columns={"at": "timestamp"})
    assert "text" in caught.value.remedy


def test_naming_a_source_does_not_touch_its_database(path: Path) -> None:
    source = sqlite(path)
    assert source.name == "shop"
    assert source.origin == f"sqlite:{path}"
    assert not path.exists()


@pytest.mark.parametrize(
    ("file", "name"),
    [("Shop 2.db", "shop_2"), (".hidden", "hidden"), ("Ä.db", "sqlite"), ("x" * 99, "x" * 64)],
)
def test_a_name_is_made_from_the_files(file: str, name: str, tmp_path: Path) -> None:
    assert sqlite(tmp_path / file).name == name


def test_a_name_that_does_not_fit_is_refused(path: Path) -> None:
    with pytest.raises(BadName):
        sqlite(path, name="My Shop")


def test_errors_never_hold_values(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create table t (id integer primary key)")
    with pytest.raises(HeadraceError) as caught, database.speaking(str(path)):
        app.execute("select 'secret' from nowhere")
    assert "secret" not in str(caught.value)
