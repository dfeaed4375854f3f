"""A label or an object that was added, used and renamed, before it was seen for the first time."""

from __future__ import annotations

import math
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.copy.snapshot import HeldSnapshot, Snapshots
from headrace.capture.postgres.server import ddl_watch, slot
from headrace.capture.postgres.server.ddl_watch import _elements
from headrace.capture.source import NotYet
from tests.postgres.recording import Recording
from tests.postgres.servers import Database

pytestmark = pytest.mark.meets("R23b")

ADDED = "alter type state add value 'late'"
RENAMED = "alter type state rename value 'late' to 'later'"


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("{}", []),
        ("{new,paid}", ["new", "paid"]),
        ('{{new,NULL},{"NULL","to be, paid"}}', ["new", "NULL", "to be, paid"]),
        ('[0:1]={"say \\"no\\"",back\\\\slash}', ['say "no"', "back\\\\slash"]),
        ('{"back\\\\slash"}', ["back\\slash"]),
    ],
)
def test_the_elements_of_an_array_are_read_from_its_text(text: str, elements: list[str]) -> None:
    assert list(_elements(text)) == elements


@pytest.fixture
def shop(database: Database, recording: Recording) -> Recording:
    database.execute("create type state as enum ('new')")
    database.execute("create domain mood as state")
    database.execute("create type pair as (state state, n int)")
    return recording


def follow(shop: Recording, column: str) -> None:
    shop.database.execute(f"create table orders (id int primary key, typed {column})")
    shop.follow("orders")
    shop.until(lambda: "standing/orders" in notes(shop))


def notes(shop: Recording) -> dict[str, str]:
    log = shop.recorder._log
    return {} if log is None else dict(log.notes)


def look(shop: Recording) -> None:
    """Look at the catalog once more, after all that was read."""
    shop.streaming()
    watch = shop.source._watch
    assert watch is not None
    watch.due, shop.recorder._maintain_at = 0.0, 0.0
    shop.until(lambda: watch.due > 0)
    shop.streaming()


def insert(shop: Recording, number: int, value: str) -> None:
    shop.database.execute(f"insert into orders values ({number}, '{value}')")


def read(shop: Recording, number: int) -> None:
    shop.until(lambda: [row["after"]["id"] for row in shop.changes("orders")][-1:] == [number])


KINDS: dict[str, Any] = {
    "enum": ("state", ADDED, "late", RENAMED),
    "domain": pytest.param("mood", ADDED, "late", RENAMED, marks=pytest.mark.ci),
    "array": ("state[]", ADDED, "{new,late}", RENAMED),
    "name": (
        "regclass",
        "create table others (id int)",
        "others",
        "alter table others rename to more",
    ),
    "names": pytest.param(
        "regclass[]",
        "create table others (id int)",
        "{pg_class,others}",
        "alter table others rename to more",
        marks=pytest.mark.ci,
    ),
}


@pytest.mark.server
@pytest.mark.parametrize(("column", "added", "value", "renamed"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("when", ["stopped", "between", "running"])
def test_a_name_that_was_used_before_it_was_seen_has_its_table_copied_again(
    shop: Recording, when: str, column: str, added: str, value: str, renamed: str
) -> None:
    follow(shop, column)
    if when == "stopped":
        shop.die()
    shop.database.execute(added)
    insert(shop, 1, value)
    if when != "stopped":
        read(shop, 1)
    if when == "between":
        shop.die()
    shop.database.execute(renamed)
    if when != "running":
        shop.live("orders")
    read(shop, 1)
    look(shop)
    assert shop.baseline("orders") is None
    shop.copy("orders")
    # Once: the name that is gone is in older changes.
    insert(shop, 2, value.replace("late", "later").replace("others", "more"))
    read(shop, 2)
    look(shop)
    assert shop.baseline("orders") is not None


@pytest.mark.server
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize(("column", "added", "value", "renamed"), KINDS.values(), ids=KINDS)
def test_a_name_that_is_new_and_stays_costs_no_copy(
    shop: Recording, stopped: bool, column: str, added: str, value: str, renamed: str
) -> None:
    follow(shop, column)
    if stopped:
        shop.die()
    shop.database.execute(added)
    insert(shop, 1, value)
    if stopped:
        shop.live("orders")
    read(shop, 1)
    look(shop)
    assert shop.baseline("orders") is not None


@pytest.mark.server
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("regclass", ("-", "4000000000", "pg_class", "information_schema.tables")),
        ("regtype", ("integer", "xml[]", "information_schema.sql_identifier")),
        pytest.param("regnamespace", ("pg_catalog", "pg_toast", "public"), marks=pytest.mark.ci),
        pytest.param("regproc", ("now", "-"), marks=pytest.mark.ci),
        pytest.param("regoperator", ("=(integer,integer)", "0"), marks=pytest.mark.ci),
        pytest.param("regcollation", ('"C"', "-"), marks=pytest.mark.ci),
        pytest.param("regrole", ("postgres", "pg_monitor"), marks=pytest.mark.ci),
    ],
)
def test_what_names_no_object_or_one_of_the_server_costs_no_copy(
    shop: Recording, column: str, values: tuple[str, ...]
) -> None:
    follow(shop, column)
    for number, value in enumerate(values):
        insert(shop, number, value)
    read(shop, len(values) - 1)
    look(shop)
    assert shop.baseline("orders") is not None


@pytest.mark.server
def test_names_of_temporary_and_toast_tables_cost_no_copy(shop: Recording) -> None:
    follow(shop, "regclass")
    with shop.database.connect() as connection:
        connection.execute("create temporary table fleeting (id int)")
        connection.execute("insert into orders values (1, 'fleeting')")
        connection.execute(
            "insert into orders select 2, reltoastrelid from pg_class where relname = 'pg_proc'"
        )
        connection.execute('create table "Quoted Name" (id int, note text)')
        connection.execute("""insert into orders values (3, '"Quoted Name"')""")
        connection.execute(
            "insert into orders select 4, reltoastrelid from pg_class where relname = 'Quoted Name'"
        )
        read(shop, 4)
        look(shop)
    assert shop.baseline("orders") is not None


@pytest.mark.server
def test_each_time_a_name_is_used_and_gone_the_table_is_copied_again(shop: Recording) -> None:
    follow(shop, "regclass")
    for number in range(2):
        shop.database.execute("create table staging (id int)")
        insert(shop, number, "staging")
        read(shop, number)
        shop.database.execute("drop table staging")
        look(shop)
        assert shop.baseline("orders") is None
        shop.copy("orders")


@pytest.mark.server
@pytest.mark.parametrize(
    ("before", "value", "after", "using"),
    [
        ("oid", "4000000000", "regclass", ""),
        pytest.param("numeric", "1", "state", "using 'new'::state", marks=pytest.mark.ci),
        pytest.param("text", "of no enum", "state", "using 'new'::state", marks=pytest.mark.ci),
    ],
)
def test_values_from_before_a_column_was_given_a_type_with_names_are_not_compared(
    shop: Recording, before: str, value: str, after: str, using: str
) -> None:
    follow(shop, before)
    shop.die()
    insert(shop, 1, value)
    shop.database.execute(f"alter table orders alter typed type {after} {using}")
    insert(shop, 2, "-" if after == "regclass" else "new")
    shop.live("orders")
    read(shop, 2)
    shop.streaming()
    assert not [key for key in notes(shop) if key.startswith("names/")]
    shop.copy("orders")
    look(shop)
    assert shop.baseline("orders") is not None


@pytest.mark.server
def test_a_new_label_within_another_type_has_the_table_copied_again(shop: Recording) -> None:
    """Whether it was used and renamed cannot be read from the text of a row."""
    follow(shop, "pair")
    shop.die()
    shop.database.execute(ADDED)
    shop.live("orders")
    shop.streaming()
    assert shop.baseline("orders") is None


@pytest.mark.server
def test_a_copy_has_no_name_that_is_newer_than_the_last_look(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes from before the copy are not compared: the copy has the names, too."""
    monkeypatch.setattr(ddl_watch, "WATCH_SECONDS", 3600.0)
    follow(shop, "state")
    written = slot.written

    def after_the_look(connection: psycopg.Connection[Any]) -> int:
        monkeypatch.undo()
        monkeypatch.setattr(ddl_watch, "WATCH_SECONDS", 3600.0)
        shop.database.execute(ADDED)
        insert(shop, 1, "late")
        return written(connection)

    monkeypatch.setattr(slot, "written", after_the_look)
    shop.database.execute("alter type state rename value 'new' to 'fresh'")
    look(shop)
    assert shop.baseline("orders") is None
    shop.copy("orders")
    assert shop.baseline("orders") is not None
    shop.database.execute(RENAMED)
    look(shop)
    assert shop.baseline("orders") is None


@pytest.mark.server
def test_a_copy_looks_again_only_at_tables_with_the_same_names(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.database.execute("create table clients (id int primary key, typed state)")
    shop.database.execute("create table plain (id int primary key, note text)")
    shop.database.execute("create table orders (id int primary key, typed state)")
    shop.follow("orders", "clients", "plain")
    shop.live("orders", "clients", "plain")  # without the slot's own snapshot
    shop.streaming()
    watch = shop.source._watch
    assert watch is not None
    watch.due = math.inf
    looked_at: list[list[str]] = []
    look = ddl_watch.IdentityCheck.look

    def observed(self: Any, connection: Any, tables: Any, ours: Any, **more: Any) -> set[str]:
        looked_at.append(sorted(tables))
        return look(self, connection, tables, ours, **more)

    monkeypatch.setattr(ddl_watch.IdentityCheck, "look", observed)
    shop.copy("plain")
    assert looked_at == []
    shop.copy("orders")
    assert looked_at
    assert all(tables == ["clients", "orders"] for tables in looked_at)


@pytest.mark.server
def test_a_copy_does_not_begin_if_a_value_was_renamed_right_after_its_snapshot(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(shop, "state")
    shop.live("orders")
    shop.copy("orders")  # the stream has been read far enough for another one
    another = Snapshots.another
    taken: list[HeldSnapshot] = []

    def renamed(self: Any, *values: Any) -> HeldSnapshot:
        taken.append(another(self, *values))
        shop.database.execute("alter type state rename value 'new' to 'fresh'")
        return taken[0]

    monkeypatch.setattr(Snapshots, "another", renamed)
    with pytest.raises(NotYet):
        shop.source._copy("orders")
    assert len(taken) == 1
