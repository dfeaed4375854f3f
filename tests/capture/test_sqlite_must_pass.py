"""
What a capture of SQLite must do, one test for each clause of the list it was designed by.

Clauses whose tests are elsewhere:

* random REPLACE and UPSERT statements make the table: `test_sqlite_random`, `test_sqlite_fuzz`;
* two readers never lose: `test_two_readers_never_lose_what_the_slower_one_needs`;
* a kill before and after the handler, and before its position is stored:
  `test_two_readers_have_every_change_whoever_was_killed`,
  `test_killed_again_and_again_it_loses_nothing_and_repeats_little`;
* a record that a handler refuses holds up no other:
  `test_what_is_refused_is_stored_and_later_changes_of_its_key_wait`;
* a log that an operator emptied is detected:
  `test_a_log_that_somebody_emptied_is_noticed_and_mended_by_a_bootstrap`;
* replay by position and by time: `test_a_reader_goes_back_to_a_position_and_on_from_there`,
  `test_a_reader_goes_back_to_a_time`; what is older than the log:
  `test_what_is_older_than_the_log_is_refused_with_the_earliest_position`;
* a secret is never printed: `test_errors_never_hold_values`,
  `test_what_is_never_taken_ends_the_run_and_is_not_acknowledged`.
"""

from __future__ import annotations

import math
import random
import sqlite3
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.capture.sqlite import Capture, Record, alter, triggers
from headrace.capture.sqlite.capture_log import CaptureLog
from headrace.capture.sqlite.database import CapturePosition, opened, reading
from headrace.capture.sqlite.tables import inspect
from headrace.errors import SourceRefused, TableRefused
from tests.capture.current_writer import Statement
from tests.capture.current_writer import run as run_currently
from tests.capture.library import Heard, running

Write = Callable[[Sequence[Statement]], list[str]]


@pytest.fixture(params=["this", pytest.param("current", marks=pytest.mark.process)])
def write(request: pytest.FixtureRequest, path: Path, app: sqlite3.Connection) -> Write:
    """Writes with the library of this Python, and with a current one; returns the errors."""

    def here(statements: Sequence[Statement]) -> list[str]:
        errors = []
        for sql, values in statements:
            try:
                app.execute(sql, tuple(values))
                errors.append("")
            except sqlite3.Error as error:
                errors.append(str(error))
        return errors

    if request.param == "this":
        return here
    return lambda statements: run_currently([(str(path), statements)])[0]


def logged(path: Path, app: sqlite3.Connection) -> list[Record]:
    """Return all changes since `setup`."""
    (count,) = app.execute("select count(*) from __headrace_log where op < 3").fetchone()
    with running(path, None) as heard:
        return heard.count(count)


def captured(path: Path, app: sqlite3.Connection, *statements: str) -> None:
    for statement in statements:
        app.execute(statement)
    Capture(path, None, print).setup()


def bits(value: object) -> object:
    return struct.pack("d", value) if isinstance(value, float) else value


EXACT: list[object] = [
    0.1 + 0.2,
    1.7976931348623157e308,
    5e-324,
    math.inf,
    -math.inf,
    -0.0,
    2**63 - 1,
    -(2**63),
    2**53 + 1,
    float(2**53),
    "a\0b",
    "",
    b"",
    None,
    b"\x01",
    bytes(range(256)),
]


def test_values_are_exact_whatever_library_writes_them(
    path: Path, app: sqlite3.Connection, write: Write
) -> None:
    captured(path, app, "create table t (id integer primary key, v)")
    rows = list(enumerate(EXACT))
    assert set(write([("insert into t values (?, ?)", row) for row in rows])) == {""}
    assert set(write([("update t set id = id + 100", ()), ("delete from t", ())])) == {""}
    records = logged(path, app)
    inserted = [record.after for record in records if record.operation == "INSERT"]
    assert [bits((each or {})["v"]) for each in inserted] == [bits(value) for value in EXACT]
    deleted = {
        int(str(record.before["id"])) - 100: record.before["v"]
        for record in records
        if record.operation == "DELETE" and record.before
    }
    assert [bits(deleted[number]) for number, _ in rows] == [bits(value) for value in EXACT]


@pytest.mark.parametrize("declared", ["blob(16)", "varbinary", "", "int", "text", "real", "any"])
def test_a_blob_in_a_column_of_any_type_is_the_same_blob(
    path: Path, app: sqlite3.Connection, declared: str
) -> None:
    captured(path, app, f"create table t (id integer primary key, v {declared})")
    blobs = [b"", b"\x01", b"1", b'{"a": 1}', b"\xff" * 32, b"a\0b"]
    app.executemany("insert into t (v) values (?)", [(blob,) for blob in blobs])
    app.execute("update t set v = null")
    records = logged(path, app)
    assert [(each.after or {})["v"] for each in records] == [*blobs, *(None for _ in blobs)]
    assert [(each.before or {})["v"] for each in records[len(blobs) :]] == blobs


@pytest.mark.meets("R42")
def test_no_statement_fails_because_of_capture_whatever_library_runs_it(
    path: Path, app: sqlite3.Connection, write: Write
) -> None:
    captured(
        path,
        app,
        "create table t (id integer primary key, u text unique, w int)",
        "create unique index i on t (lower(u), w) where w > 0",
    )
    statements: list[Statement] = [
        ("insert into t values (1, 'a', 1), (2, 'b', 2)", ()),
        ("insert or replace into t values (3, 'a', 3)", ()),
        ("update or replace t set u = 'b' where id = 3", ()),
        ("insert into t values (4, 'B', 2) on conflict do update set w = 9", ()),
        ("pragma trusted_schema = off", ()),
        ("delete from t", ()),
        ("insert into t values (5, 'c', x'00'), (6, x'ff', 'text'), (7, null, null)", ()),
        ("insert into t values (5, 'c', 0) on conflict do nothing", ()),
    ]
    assert set(write(statements)) == {""}
    [first, *_] = write([("insert into t values (5, 'd', 0)", ())])
    assert "UNIQUE constraint failed: t.id" in first
    state: dict[object, object] = {}
    for record in logged(path, app):
        if record.before:
            state.pop(record.before["id"])
        if record.after:
            state[record.after["id"]] = tuple(record.after.values())
    assert list(state.values()) == app.execute("select * from t").fetchall()


@pytest.mark.parametrize("recursive", ["on", "off"])
def test_a_row_that_replace_removes_by_another_key_is_deleted(
    path: Path, app: sqlite3.Connection, recursive: str
) -> None:
    captured(path, app, "create table users (id integer primary key, email text unique)")
    app.execute(f"pragma recursive_triggers = {recursive}")
    app.execute("insert into users values (1, 'a'), (2, 'b')")
    app.execute("insert or replace into users values (3, 'b')")
    app.execute("update or replace users set email = 'a' where id = 3")
    found = [(each.operation, each.before, each.after) for each in logged(path, app)][2:]
    assert found == [
        ("DELETE", {"id": 2, "email": "b"}, None),
        ("INSERT", None, {"id": 3, "email": "b"}),
        ("DELETE", {"id": 1, "email": "a"}, None),
        ("UPDATE", {"id": 3, "email": "b"}, {"id": 3, "email": "a"}),
    ]


@pytest.mark.parametrize("recursive", ["on", "off"])
def test_a_row_that_replace_removes_is_deleted_once_although_its_foreign_keys_delete_others(
    path: Path, app: sqlite3.Connection, recursive: str
) -> None:
    captured(
        path,
        app,
        "create table t (id integer primary key, u text unique,"
        " up int references t on delete cascade)",
    )
    app.execute("pragma foreign_keys = on")
    app.execute(f"pragma recursive_triggers = {recursive}")
    app.execute("insert into t values (1, 'a', null), (2, 'b', 1), (3, 'c', 2)")
    app.execute("insert or replace into t values (4, 'a', null)")
    # Not by a reader: if all of it happens in one millisecond, it returns fewer changes.
    found = app.execute("select b0 from __headrace_log where op = 2").fetchall()
    assert sorted(found) == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    "index",
    [
        "(u) where n = '1'",
        "(case n when '1' then u end)",
        "(g)",
        "(u, g) where g > '0'",
    ],
)
def test_an_index_that_compares_a_number_with_text_is_understood_as_sqlite_does(
    path: Path, app: sqlite3.Connection, write: Write, index: str
) -> None:
    captured(
        path,
        app,
        "create table t (id integer primary key, u text, n int,"
        " g as (case when n in ('1') then u end))",
        f"create unique index i on t {index}",
    )
    write(
        [
            ("insert into t (id, u, n) values (1, 'a', 1), (2, 'b', 1)", ()),
            ("insert or replace into t (id, u, n) values (3, 'a', 1)", ()),
            ("update or replace t set u = 'b' where id = 3", ()),
        ]
    )
    assert app.execute("select id, u from t").fetchall() == [(3, "b")]
    found = [
        (each.operation, (each.before or each.after or {})["id"]) for each in logged(path, app)
    ]
    assert found[2:] == [("DELETE", 1), ("INSERT", 3), ("DELETE", 2), ("UPDATE", 3)]


@pytest.mark.meets("R42")
@pytest.mark.parametrize(
    ("declared", "index"),
    [
        ("default w", "(u)"),
        ('default "w"', "(u)"),
        ("default `w`", "(u)"),
        ("default 'w'", '(coalesce(u, "x"))'),
        ("default 'w'", "(g)"),
        ("default 'w'", '(u) where "x" <> u'),
    ],
)
def test_a_text_of_a_definition_may_be_written_as_a_name(
    path: Path, app: sqlite3.Connection, write: Write, declared: str, index: str
) -> None:
    captured(
        path,
        app,
        f"create table t (id integer primary key, w text, u text not null {declared},"
        ' g as (u || "x"))',
        f"create unique index i on t {index}",
    )
    errors = write(
        [
            ("insert into t (id, w) values (1, 'a'), (2, 'b') on conflict do nothing", ()),
            ("insert or replace into t (id, w, u) values (3, 'a', null)", ()),
        ]
    )
    assert errors == ["", ""]
    assert app.execute("select id, u from t").fetchall() == [(3, "w")]
    found = [
        (each.operation, (each.before or each.after or {})["id"]) for each in logged(path, app)
    ]
    assert found == [("INSERT", 1), ("DELETE", 1), ("INSERT", 3)]


def test_an_update_that_foreign_keys_overtake_has_its_table_copied_again(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(
        path,
        app,
        "create table t (k text primary key, u text unique,"
        " up text references t on delete set null on update set null)",
    )
    app.execute("pragma foreign_keys = on")
    app.execute("insert into t values ('a', 'x', null), ('b', 'y', 'a')")
    # It removes `a`, which changes `up` of `b`, and then writes `b` as it was before that.
    app.execute("update or replace t set rowid = 1 where k = 'b'")
    assert app.execute("select * from t").fetchall() == [("b", "y", "a")]
    with opened(str(path)) as database, reading(database):
        start = CapturePosition(str(triggers.capture_id(database)), 3)
        log = CaptureLog(database, start)
        log.read(100, 3, triggers.plans(database))
        assert log.unclear == {1}


@pytest.mark.parametrize(
    ("columns", "index", "update", "runs"),
    [
        ("id integer primary key, u text, n int", "(u)", "n = 2", False),
        ("id integer primary key, u text, n int", "(u)", "u = 'b'", True),
        ("k text primary key, u text, n int", "(u)", "n = 2", True),  # REPLACE by the rowid
        ("id integer primary key, u text, n int", "(u) where n > 1", "n = 2", True),
        ("id integer primary key, u text, n int, g as (n % 5)", "(g)", "n = 2", True),
    ],
)
def test_an_update_that_sets_no_column_of_a_unique_index_runs_one_trigger(
    path: Path, app: sqlite3.Connection, columns: str, index: str, update: str, runs: bool
) -> None:
    captured(path, app, f"create table t ({columns})", f"create unique index i on t {index}")
    app.execute("select * from t").fetchall()  # which reads the schema with the triggers
    program = str(app.execute(f"explain update t set {update}").fetchall())
    ran = [f"TRIGGER __headrace_1_{each}" in program for each in ("before_update", "update")]
    assert ran == [runs, True]


def test_a_table_with_one_key_has_three_triggers_and_no_table_more(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(
        path,
        app,
        "create table a (id integer primary key, v)",
        "create table b (k text primary key, id int, unique (k, id)) without rowid",
        "create table c (id integer primary key, boss references c on delete set null)",
    )
    query = "select count(*) from sqlite_master where type = ? and name like '\\_\\_%' escape '\\'"
    assert app.execute(query, ("trigger",)).fetchone() == (3 * 3 + 1,)
    assert app.execute(query, ("table",)).fetchone() == (4,)


@pytest.mark.parametrize(
    "index",
    [
        "(u)",
        "(u collate nocase)",
        "(lower(u), w)",
        "(w) where u is not null",
        "(w, u desc) where w > 3",
    ],
)
def test_whether_a_row_collides_is_looked_up_in_the_index(
    path: Path, app: sqlite3.Connection, index: str
) -> None:
    captured(
        path,
        app,
        "create table t (id int primary key, u text, w int)",
        f"create unique index i on t {index}",
    )
    same = inspect(app, "t").collisions[-1].same
    plan = app.execute(
        f'explain query plan select (select 1 from "t" where {same})'
        " from (select 1 as id, 'a' as u, 4 as w) as NEW"
    ).fetchall()
    assert any("SEARCH" in step[3] and "INDEX i" in step[3] for step in plan), plan


def test_changes_of_nested_triggers_are_in_the_order_of_what_happened(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(
        path,
        app,
        "create table t (id integer primary key, v int, up int)",
        "create trigger a after insert on t begin"
        " update t set up = new.v % 7 where id = new.id; end",
        "create trigger b after update of v on t begin"
        " update t set up = up + 1 where id = new.id; end",
        "create trigger c after update of up on t when new.up % 5 = 0 begin"
        " delete from t where id = new.id; end",
    )
    app.execute("pragma recursive_triggers = on")
    draw = random.Random(1)
    for _ in range(200):
        key, value = draw.randrange(6), draw.randrange(40)
        app.execute("begin")
        app.execute("insert or ignore into t values (?, ?, 0)", (key, value))
        app.execute("update t set v = v + 1 where id <= ?", (draw.randrange(6),))
        app.execute("commit")
    state: dict[object, object] = {}
    for record in logged(path, app):
        if record.before is not None:
            assert state.pop(record.before["id"]) == record.before
        if record.after is not None:
            state[record.after["id"]] = record.after
    rows = app.execute("select id, v, up from t").fetchall()
    assert {tuple(dict(each).values()) for each in state.values()} == set(rows)  # type: ignore[call-overload]


def test_a_row_that_refers_to_itself_has_its_last_values(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(
        path,
        app,
        "create table t (id integer primary key, v, p references t on update cascade)",
    )
    app.execute("pragma foreign_keys = on")
    app.execute("insert into t values (1, 'a', 1)")
    app.execute("update t set id = 2, v = 'b'")
    with running(path, None) as heard:
        records = heard.until(lambda all: all and (all[-1].after or {}).get("p") == 2)
    state: dict[object, object] = {}
    for record in records:
        if record.before is not None:
            state.pop(record.before["id"], None)
        if record.after is not None:
            state[record.after["id"]] = dict(record.after)
    assert state == {2: {"id": 2, "v": "b", "p": 2}}


@pytest.mark.parametrize("columns", [65, 998, 999, 1500])
def test_a_null_in_any_column_of_a_wide_table_is_there(
    path: Path, app: sqlite3.Connection, columns: int
) -> None:
    names = [f"c{number}" for number in range(columns)]
    captured(
        path,
        app,
        f"create table t ({names[0]} integer primary key, {', '.join(names[1:])})",
        "create table u (id integer primary key, v)",
    )
    one = [1, *(None if number % 2 else number for number in range(1, columns))]
    for row in range(0, columns, 500):
        changed = ", ".join(f"{name} = ?" for name in names[row : row + 500])
        if row == 0:
            app.execute(
                f"insert into t ({', '.join(names[:500])}) values "
                f"({', '.join('?' * len(names[:500]))})",
                one[:500],
            )
        else:
            app.execute(f"update t set {changed}", one[row : row + 500])
        app.execute("insert into u (v) values (?)", (row,))
    app.execute("update t set c0 = 7")
    app.execute("delete from t")
    with running(path, None, batch_size=1) as heard:
        records = heard.until(lambda all: all and all[-1].operation == "DELETE")
    full = dict(zip(names, one, strict=True))
    *_, updated, deleted = [record for record in records if record.table == "t"]
    assert updated.before == full
    assert updated.after == deleted.before == {**full, "c0": 7}
    assert sum(record.table == "u" for record in records) == len(range(0, columns, 500))


def test_a_table_that_is_too_wide_is_refused_and_its_rows_can_still_be_read(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute(f"create table t ({', '.join(f'c{number}' for number in range(1997))})")
    app.execute("insert into t (c1996) values (5)")
    with pytest.raises(TableRefused, match="1996"):
        Capture(path, ["t"], print).setup()
    heard = Heard()
    Capture(path, ["t"], heard).bootstrap()
    assert (heard.records[1].after or {})["c1996"] == 5


def test_a_blob_column_may_be_the_last_one_and_null_is_not_empty(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(path, app, "create table t (id integer primary key, v text, b blob)")
    app.execute("insert into t values (1, x'01', null), (2, 'x', x''), (3, 'y', x'00')")
    with running(path, None) as heard:
        heard.count(3)
        lines = heard.batches[0].json_lines(blobs=True).decode().splitlines()
        plain = heard.batches[0].json_lines().decode().splitlines()
    assert [line.partition('"b":')[2] for line in lines] == ["null}}", '""}}', '"00"}}']
    assert '"b"' not in plain[0]
    assert '"v":"01"' in plain[0]
    assert [(each.after or {})["b"] for each in heard.records] == [None, b"", b"\0"]


def test_names_may_be_keywords_and_have_quotes(path: Path, app: sqlite3.Connection) -> None:
    captured(
        path,
        app,
        'create table "it\'s a ""select""" '
        '("order" int, "a\'b" text, "x y" unique, primary key ("a\'b", "order"))',
        'create unique index "i\'1" on "it\'s a ""select""" (lower("a\'b")) where "order" > 1',
    )
    app.execute('insert into "it\'s a ""select""" values (1, \'a\', 1), (2, \'A\', 2)')
    app.execute('insert or replace into "it\'s a ""select""" values (3, \'a\', 1)')
    records = logged(path, app)
    assert [
        (record.operation, dict(record.after or record.before or {})) for record in records
    ] == [
        ("INSERT", {"order": 1, "a'b": "a", "x y": 1}),
        ("INSERT", {"order": 2, "a'b": "A", "x y": 2}),
        ("DELETE", {"order": 2, "a'b": "A", "x y": 2}),
        ("DELETE", {"order": 1, "a'b": "a", "x y": 1}),
        ("INSERT", {"order": 3, "a'b": "a", "x y": 1}),
    ]


def test_generated_columns_are_values_like_others(path: Path, app: sqlite3.Connection) -> None:
    captured(
        path,
        app,
        "create table t (id integer primary key, v int, g as (v + 1), h as (g * 2) stored unique)",
    )
    app.execute("insert into t (id, v) values (1, 1), (2, 2)")
    app.execute("insert or replace into t (id, v) values (3, 1)")
    app.execute("update or replace t set v = 2 where id = 3")
    found = [
        (each.operation, tuple((each.after or each.before or {}).values()))
        for each in logged(path, app)
    ]
    assert found == [
        ("INSERT", (1, 1, 2, 4)),
        ("INSERT", (2, 2, 3, 6)),
        ("DELETE", (1, 1, 2, 4)),
        ("INSERT", (3, 1, 2, 4)),
        ("DELETE", (2, 2, 3, 6)),
        ("UPDATE", (3, 2, 3, 6)),
    ]


def test_a_table_without_a_key_is_captured_by_its_rowid(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(path, app, "create table t (v)", "create table u (rowid, oid)")
    app.execute("insert into t values ('a'), ('a')")
    app.execute("delete from t where rowid = 1")
    app.execute("insert into u values (8, 9)")
    found = [(each.operation, each.after or each.before) for each in logged(path, app)]
    assert found == [
        ("INSERT", {"rowid": 1, "v": "a"}),
        ("INSERT", {"rowid": 2, "v": "a"}),
        ("DELETE", {"rowid": 1, "v": "a"}),
        ("INSERT", {"_rowid_": 1, "rowid": 8, "oid": 9}),
    ]


def test_rows_that_vacuum_has_numbered_anew_are_read_again(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(path, app, "create table t (v)", "create table u (id integer primary key)")
    app.execute("insert into t values ('a'), ('b'), ('c')")
    with running(path, None, "bootstrap_and_cdc") as heard:
        heard.until(lambda all: sum(each.table == "t" for each in all) == 4)
        app.execute("delete from t where v = 'a'")
        app.execute("vacuum")
        app.execute("insert into u values (1)")
        heard.until(
            lambda all: (
                [(r.operation, r.after) for r in all if r.table == "t"][-3:]
                == [
                    ("BOOTSTRAP", None),
                    ("INSERT", {"rowid": 1, "v": "b"}),
                    ("INSERT", {"rowid": 2, "v": "c"}),
                ]
            )
        )
        app.execute("create table other (id integer)")  # no reason to read it again
        app.execute("update t set v = 'd' where v = 'b'")
        records = heard.until(lambda all: (all[-1].after or {}).get("v") == "d")
    assert records[-1].before == {"rowid": 1, "v": "b"}
    assert [r.operation for r in records if r.table == "u"].count("BOOTSTRAP") == 1


def test_keys_that_differ_only_for_a_program_are_several_keys_here(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(path, app, "create table t (k text collate nocase primary key, v) without rowid")
    app.execute("insert into t values ('a', 1)")
    app.execute("insert or replace into t values ('A', 2)")
    app.execute("update t set k = 'a'")
    found = [(each.operation, each.before, each.after) for each in logged(path, app)][1:]
    assert found == [
        ("DELETE", {"k": "a", "v": 1}, None),
        ("INSERT", None, {"k": "A", "v": 2}),
        ("UPDATE", {"k": "A", "v": 2}, {"k": "a", "v": 2}),
    ]


def test_a_collation_of_the_applications_needs_no_reader_that_has_it(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 2)

    def compare(one: str, other: str) -> int:
        return (one.lower() > other.lower()) - (one.lower() < other.lower())

    app.create_collation("mine", compare)
    captured(path, app, "create table t (k text collate mine primary key, v)")
    app.execute("insert into t values ('a', 1), ('b', 2), ('c', 3)")
    app.execute("insert or replace into t values ('A', 2)")
    assert [each.operation for each in logged(path, app)][3:] == ["DELETE", "INSERT"]
    heard = Heard()
    Capture(path, None, heard).bootstrap()
    assert {(each.after or {}).get("k") for each in heard.records[1:]} == {"A", "b", "c"}
    app.execute("create table u (k text collate mine primary key) without rowid")
    with pytest.raises(TableRefused, match="collation"):
        Capture(path, ["u"], print).setup()


def test_an_update_that_changes_nothing_is_not_logged(path: Path, app: sqlite3.Connection) -> None:
    captured(path, app, "create table t (id integer primary key, u text collate nocase, v)")
    app.execute("insert into t values (1, 'a', 1), (2, 'b', 0.0)")
    for statement in (
        "update t set u = u, v = v where id = 1",
        "update t set u = 'A' where id = 1",
        "update t set v = 1.0 where id = 1",
        "update t set v = '1.0' where id = 1",
        "update t set v = -0.0 where id = 2",
        "update t set v = null",
        "update t set v = null",
    ):
        app.execute(statement)
    found = [tuple((each.after or {}).values()) for each in logged(path, app)][2:]
    assert [tuple(map(repr, each)) for each in found] == [
        tuple(map(repr, each))
        for each in [
            (1, "A", 1),
            (1, "A", 1.0),
            (1, "A", "1.0"),
            (2, "b", -0.0),
            (1, "A", None),
            (2, "b", None),
        ]
    ]


# --- columns that change while a table is captured ------------------------------------------------


def test_columns_are_added_dropped_and_renamed_while_a_table_is_read(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(
        path,
        app,
        "create table t (id integer primary key, v, w unique)",
        "create table u (id integer primary key)",
    )
    with running(path, None) as heard:
        app.execute("insert into t values (1, 'a', 1)")
        heard.count(1)
        # SQLite itself refuses this while a trigger names the column.
        with pytest.raises(sqlite3.OperationalError, match="after drop column"):
            app.execute("alter table t drop column v")
        app.execute("insert into t values (2, 'b', 2)")
        alter(
            path,
            "alter table t drop column v",
            "alter table t rename column w to x",
            "ALTER TABLE main.T add y default 7;",
        )
        app.execute("insert or replace into t values (3, 2, 8)")
        records = heard.count(4)
    assert [(each.operation, each.after or each.before) for each in records] == [
        ("INSERT", {"id": 1, "v": "a", "w": 1}),
        ("INSERT", {"id": 2, "v": "b", "w": 2}),
        ("DELETE", {"id": 2, "x": 2, "y": 7}),
        ("INSERT", {"id": 3, "x": 2, "y": 8}),
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "alter table t rename to s",
        "alter table t rename v",
        "alter table t drop",
        "update t set v = 1",
        "alter table t drop column v; delete from t",
        "drop table t",
        "alter table t drop column nothing",
        "",
    ],
)
def test_what_else_would_change_rows_is_not_run_without_triggers(
    path: Path, app: sqlite3.Connection, sql: str
) -> None:
    captured(path, app, "create table t (id integer primary key, v)")
    before = app.execute("select * from sqlite_master").fetchall()
    with pytest.raises(SourceRefused):
        alter(path, "alter table t add w", sql)
    assert app.execute("select * from sqlite_master").fetchall() == before


def test_a_gap_from_before_is_still_noticed_after_columns_were_altered(
    path: Path, app: sqlite3.Connection
) -> None:
    captured(path, app, "create table t (id integer primary key, v)")
    app.execute("drop trigger __headrace_1_update")
    app.execute("update t set v = 1")
    alter(path, "alter table t drop column v")
    with pytest.raises(Exception, match="changes may be missing"):
        Capture(path, None, print).cdc()


# --- format 1 -------------------------------------------------------------------------------------


def test_a_log_of_format_1_is_upgraded_without_a_copy(path: Path, app: sqlite3.Connection) -> None:
    app.executescript(Path(__file__).with_name("sqlite_format_1.sql").read_text())
    app.execute("pragma journal_mode = wal")
    with running(path, None) as heard:
        assert [each.operation for each in heard.count(5)] == [
            "INSERT",
            "INSERT",
            "UPDATE",
            "INSERT",
            "DELETE",
        ]
        assert app.execute(
            "select value from __headrace_meta where name = 'format'"
        ).fetchone() == (2,)
        app.execute("update t set v = v")
        app.execute("insert into k values ('y', 2, 'new')")
        assert (heard.count(6)[5].after or {})["v"] == "new"
    Capture(path, ["t"], print).teardown()
    Capture(path, ["k"], print).teardown()
    Capture(path, ["t"], print, reader="other").teardown()
    assert app.execute("select count(*) from sqlite_master").fetchone() == (2,)


def test_a_gap_in_a_log_of_format_1_is_still_noticed(path: Path, app: sqlite3.Connection) -> None:
    app.executescript(Path(__file__).with_name("sqlite_format_1.sql").read_text())
    app.execute("alter table t add column w")
    app.execute("insert into t values (9, 9, 9)")
    heard = Heard()
    with pytest.raises(Exception, match="changes may be missing"):
        Capture(path, ["t"], heard).cdc()
    with running(path, ["k"]) as other:
        other.count(1)


# --- tables that are refused ----------------------------------------------------------------------


def test_setup_without_names_takes_what_can_be_captured_and_says_what_cannot(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table a (id integer primary key)")
    app.execute("create table b (id integer primary key)")
    app.execute("create trigger mine before insert on b begin delete from b; end")
    app.execute("create virtual table f using fts4(body)")
    done = Capture(path, None, print).setup()
    assert done.tables == ("a",)
    assert {table: why.facts["table"] for table, why in done.refused.items()} == {
        "b": "b",
        "f": "f",
    }
    heard = Heard()
    app.execute("drop trigger mine")
    app.execute("insert into b values (1)")
    Capture(path, ["b"], heard).bootstrap()
    assert [each.operation for each in heard.records] == ["BOOTSTRAP", "INSERT"]


def test_every_row_of_a_table_whose_key_is_not_first_is_read_one_by_one(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table t (v, b int, a text, primary key (a, b)) without rowid")
    rows = [(None, number % 100, str(number // 100)) for number in range(2_000)]
    app.executemany("insert into t values (?, ?, ?)", rows)
    heard = Heard()
    Capture(path, ["t"], heard, batch_size=1).bootstrap()
    assert len(heard.records) == 2_001
    assert {tuple((each.after or {}).values()) for each in heard.records[1:]} == set(rows)


@pytest.mark.ci
@pytest.mark.slow
def test_every_row_of_a_large_table_is_read_one_by_one(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create table t (v, b int, a text, primary key (a, b)) without rowid")
    rows = [(None, number % 100, str(number // 100)) for number in range(10_000)]
    app.executemany("insert into t values (?, ?, ?)", rows)
    heard = Heard()
    Capture(path, ["t"], heard, batch_size=1).bootstrap()
    assert len(heard.records) == 10_001
