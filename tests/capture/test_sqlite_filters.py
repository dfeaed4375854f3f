"""Rows of a SQLite table that are captured by a condition: `Capture(where=)`."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.capture.sqlite import Capture, Record, alter
from headrace.errors import HeadraceError, SchemaChanged, SourceRefused, TableRefused
from tests.capture.current_writer import run as run_currently
from tests.capture.library import running
from tests.capture.sqlite_fuzz import FINE, Fuzz, Run, failure

LOG = "open_orders"
OPEN = {"orders": "status = 'open' and cents >= 100"}


@pytest.fixture(autouse=True)
def _orders(app: sqlite3.Connection) -> None:
    app.execute("create table orders (id integer primary key, status text, cents int, note text)")


def make(path: Path, where: dict[str, str] | None = OPEN, **options: Any) -> Capture:
    options = {"log_table": LOG} | options
    return Capture(path, ["orders"], print, where=where, **options)


def told(records: list[Record]) -> list[tuple[str, object, object]]:
    return [
        (each.operation, (each.before or {}).get("cents"), (each.after or {}).get("cents"))
        for each in records
    ]


def test_a_row_that_enters_is_inserted_and_one_that_leaves_is_deleted(
    path: Path, app: sqlite3.Connection
) -> None:
    make(path).setup()
    for statement in (
        "insert into orders values (1, 'new', 500, ''), (2, 'open', 99, ''), (3, 'open', 300, '')",
        "update orders set cents = cents + 1",  # 2 enters, 3 is updated, 1 is neither
        "update orders set note = 'x' where id = 1",
        "update orders set status = 'paid' where id = 2",
        "update orders set id = 4 where id = 3",
        "insert or replace into orders values (4, 'paid', 0, '')",  # which removes the one that is
        "insert or replace into orders values (1, 'open', 700, '')",
        "delete from orders",
    ):
        app.execute(statement)
    assert app.execute(f"select count(*) from {LOG} where op < 3").fetchone() == (8,)
    with running(path, ["orders"], log_table=LOG, where=OPEN) as heard:
        found = told(heard.count(8))
    assert found == [
        ("INSERT", None, 300),
        ("INSERT", None, 100),
        ("UPDATE", 300, 301),
        ("DELETE", 100, None),
        ("UPDATE", 301, 301),
        ("DELETE", 301, None),
        ("INSERT", None, 700),
        ("DELETE", 700, None),
    ]


@pytest.mark.meets("R43")
@pytest.mark.parametrize("size", [1, 256])
def test_a_copy_has_the_rows_that_are_captured_and_changes_follow(
    path: Path, app: sqlite3.Connection, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 3)
    app.executemany(
        "insert into orders values (?, ?, ?, '')",
        [(number, "open" if number % 9 == 5 else "paid", 100 + number) for number in range(20)],
    )
    make(path).setup()
    options: dict[str, Any] = {"log_table": LOG, "where": OPEN, "batch_size": size}
    with running(path, ["orders"], "bootstrap_and_cdc", **options) as heard:
        assert told(heard.count(3))[1:] == [("INSERT", None, 105), ("INSERT", None, 114)]
        app.execute("update orders set status = 'open' where id in (1, 2) or id = 5")
        app.execute("update orders set status = 'paid' where id = 14")
        assert told(heard.count(6))[3:] == [
            ("INSERT", None, 101),
            ("INSERT", None, 102),
            ("DELETE", 114, None),
        ]
    with running(path, ["orders"], "bootstrap", where=OPEN, log_table="another") as heard:
        assert len(heard.count(4)) == 4


@pytest.mark.meets("R41", "R42")
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 20])
def test_filtered_changes_of_random_statements_make_the_filtered_table(first: int) -> None:
    for seed in range(first, first + 20):
        said = failure(seed, filtered=True)
        assert said in FINE, said


@pytest.mark.meets("R41", "R42")
@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("first", [40, 80])
def test_filtered_changes_of_more_random_statements_make_the_filtered_table(first: int) -> None:
    for seed in range(first, first + 40):
        said = failure(seed, filtered=True)
        assert said in FINE, said


@pytest.mark.process
@pytest.mark.meets("R42")
def test_a_current_library_filters_in_the_same_way(tmp_path: Path) -> None:
    made = [
        Run(Fuzz(seed), tmp_path / f"{seed}.db", tmp_path / f"{seed}.plain", where=seed)
        for seed in range(18)
    ]
    runs = [run for run in made if run.set_up()]
    outcomes = run_currently([job for run in runs for job in run.jobs()])
    for run, captured, plain in zip(runs, outcomes[::2], outcomes[1::2], strict=True):
        assert captured == plain
        run.finish()


@pytest.mark.parametrize(
    "where",
    [
        "random() > 0",
        "cents > abs(random())",
        "date(note) < '2026-01-01'",
        "lower(note) = 'a'",
        "note like 'a%'",
        "note glob 'a*'",
        "cents in (select 1)",
        "exists (select 1)",
        "cents > ?",
        "cents > :limit",
        "cents > 1 -- more",
        "cents /* more */ > 1",
        "cents > 1) or (1 = 1",
        "(cents > 1",
        "cents > 1; drop table orders",
        "price > 1",
        '"open" = status',
        "note ->> 'a' = 1",
        "cents - 1 > 2",
        "cents * 2 > 2",
        "note = 'a",
        "note collate unknown = 'a'",
        "cents > > 1",
        "1 = 1",
        " or ".join(["cents > 1"] * 102),
        "",
        " ",
    ],
)
def test_what_not_every_sqlite_evaluates_alike_is_refused(
    path: Path, app: sqlite3.Connection, where: str
) -> None:
    with pytest.raises(HeadraceError, match="filter") as refused:
        make(path, {"orders": where}).setup()
    assert refused.value.remedy
    assert app.execute("select name from sqlite_master").fetchall() == [("orders",)]


def test_a_value_is_compared_as_it_is_stored(path: Path, app: sqlite3.Connection) -> None:
    where = {"orders": "cents = '100' or note collate nocase = 'YES'"}
    app.execute("insert into orders values (1, '', 100, ''), (2, '', 1, 'yes')")
    with running(path, ["orders"], "bootstrap", log_table=LOG, where=where) as heard:
        assert told(heard.count(2))[1:] == [("INSERT", None, 1)]
    make(path, where).setup()
    app.execute("update orders set cents = cents + 0, status = 'x'")
    with running(path, ["orders"], log_table=LOG, where=where) as heard:
        assert told(heard.count(1)) == [("UPDATE", 1, 1)]


def test_a_table_whose_changes_need_all_rows_is_refused(
    path: Path, app: sqlite3.Connection
) -> None:
    for action in ("update cascade", "delete set null", "delete set default"):
        app.execute("drop table if exists t")
        app.execute(f"create table t (id integer primary key, up references t on {action})")
        with pytest.raises(TableRefused, match="cannot be filtered"):
            Capture(path, ["t"], print, log_table=LOG, where={"t": "id > 1"}).setup()
    columns = ", ".join(f"c{number}" for number in range(999))
    app.execute(f"create table wide ({columns}, primary key (c0))")
    with pytest.raises(TableRefused, match="more than 998 columns"):
        Capture(path, ["wide"], print, log_table=LOG, where={"wide": "c1 > 1"}).setup()


@pytest.mark.usefixtures("app")
def test_a_filter_needs_a_log_and_a_table_of_its_own(path: Path) -> None:
    with pytest.raises(SourceRefused, match="a capture log of its own"):
        make(path, log_table="__headrace_log")
    with pytest.raises(SourceRefused, match="not captured"):
        Capture(path, ["orders"], print, log_table=LOG, where={"Orders": "cents > 1"})
    with pytest.raises(SourceRefused, match="not captured"):
        Capture(path, None, print, log_table=LOG, where={"items": "cents > 1"}).setup()


def test_all_readers_of_a_log_have_the_same_filter_until_it_is_removed(
    path: Path, app: sqlite3.Connection
) -> None:
    make(path).setup()
    make(path, reader="second").setup()
    for where in ({}, None, {"orders": "cents > 1"}):
        for method in ("setup", "cdc", "bootstrap_and_cdc"):
            with pytest.raises(SourceRefused, match="another filter"):
                getattr(make(path, where), method)()
    with pytest.raises(SourceRefused, match="another filter"):
        make(path, {}, ephemeral=True).cdc()
    # An engine and other logs are not concerned.
    Capture(path, ["orders"], print).setup()
    make(path).teardown()
    with pytest.raises(SourceRefused, match="another filter"):
        make(path, {}).setup()
    make(path, reader="second").teardown()
    make(path, {"orders": "cents > 1"}).setup()
    app.execute("insert into orders values (1, 'paid', 2, '')")
    assert app.execute(f"select count(*) from {LOG} where op < 3").fetchone() == (1,)


def test_a_filter_is_kept_while_a_table_without_triggers_has_a_reader(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table items (id integer primary key)")
    where = OPEN | {"items": "id > 1"}
    options: dict[str, Any] = {"log_table": LOG, "where": where}
    Capture(path, ["orders", "items"], print, **options).setup()
    app.execute("insert into orders values (1, 'open', 5, ''), (2, 'open', 100, '')")
    app.execute("create table rebuilt as select * from orders")
    app.execute("drop table orders")
    app.execute("alter table rebuilt rename to orders")
    Capture(path, ["items"], print, log_table=LOG).teardown()
    options["where"] = OPEN
    with running(path, ["orders"], "bootstrap_and_cdc", **options) as heard:
        assert told(heard.count(2))[1:] == [("INSERT", None, 100)]


def test_a_filter_is_kept_when_columns_are_altered(path: Path, app: sqlite3.Connection) -> None:
    make(path).setup()
    alter(path, "ALTER TABLE orders RENAME COLUMN note TO text", "ALTER TABLE orders ADD COLUMN v")
    app.execute("select * from orders").fetchall()  # which reads the new schema
    app.execute("insert into orders values (1, 'open', 5, '', 0), (2, 'open', 100, '', 0)")
    with running(path, ["orders"], log_table=LOG, where=OPEN) as heard:
        assert told(heard.count(1)) == [("INSERT", None, 100)]
    for statement in ("DROP COLUMN cents", "RENAME COLUMN status TO state"):
        with pytest.raises(TableRefused, match="neither a column"):
            alter(path, f"ALTER TABLE orders {statement}")
    app.execute("select * from orders").fetchall()
    app.execute("insert into orders values (3, 'open', 300, '', 0)")
    with running(path, ["orders"], log_table=LOG, where=OPEN) as heard:
        assert told(heard.count(1)) == [("INSERT", None, 300)]


@pytest.mark.meets("R39")
def test_a_filtered_table_that_was_altered_is_copied_again_with_its_filter(
    path: Path, app: sqlite3.Connection
) -> None:
    make(path).setup()
    app.execute("insert into orders values (1, 'open', 5, ''), (2, 'open', 100, '')")
    options: dict[str, Any] = {"log_table": LOG, "where": OPEN}
    with running(path, ["orders"], "bootstrap_and_cdc", **options) as heard:
        heard.count(2)
        app.execute("alter table orders add column v")
        assert told(heard.count(4))[2:] == [("BOOTSTRAP", None, None), ("INSERT", None, 100)]
        app.execute("update orders set cents = cents + 95")
        assert sorted(told(heard.count(6))[4:]) == [("INSERT", None, 100), ("UPDATE", 100, 195)]
    app.execute("drop trigger __headrace_open_orders_2_insert")
    with pytest.raises(SchemaChanged):
        make(path).cdc()


def test_writes_succeed_after_a_column_of_the_filter_was_renamed(
    path: Path, app: sqlite3.Connection
) -> None:
    make(path).setup()
    app.execute("alter table orders rename column status to state")
    app.execute("insert into orders values (1, 'open', 100, '')")
    with pytest.raises(TableRefused, match="neither a column"):
        make(path).bootstrap_and_cdc()


def test_an_ephemeral_capture_can_have_a_filter(path: Path, app: sqlite3.Connection) -> None:
    app.execute("insert into orders values (1, 'open', 5, ''), (2, 'open', 100, '')")
    options: dict[str, Any] = {"log_table": LOG, "where": OPEN, "ephemeral": True}
    with running(path, ["orders"], "bootstrap_and_cdc", **options) as heard:
        assert told(heard.count(2))[1:] == [("INSERT", None, 100)]
        app.execute("update orders set cents = 100 where id = 1")
        assert told(heard.count(3))[2:] == [("INSERT", None, 100)]
    assert app.execute("select name from sqlite_master").fetchall() == [("orders",)]
