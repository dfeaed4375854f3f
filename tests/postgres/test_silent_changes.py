"""
What changes at a server without a message: noticed while reading, and after a time without.

The list of all of it is docs/internals/silent-changes.md, which names these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.capture.messages import BaselineProgress, Failed, TakeBaseline, Warned
from headrace.capture.postgres import source
from headrace.capture.postgres.server import ddl_watch
from headrace.capture.postgres.server.catalog import find, look_up
from headrace.capture.postgres.stream.stream import ReplicationStream
from headrace.engine.engine import Engine
from tests.postgres.followed import FollowedOrders
from tests.postgres.recording import PATIENCE, Recording
from tests.postgres.servers import Database, wait_until

pytestmark = pytest.mark.meets("R23b")


@pytest.fixture
def noticing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what the stream does not tell of looked for with every read."""
    monkeypatch.setattr("headrace.capture.postgres.server.ddl_watch.WATCH_SECONDS", 0.0)
    monkeypatch.setattr("headrace.capture.table_selection.LOOK_SECONDS", 0.1)


# Made before the first look, which decides when the next one is due.
NOTICING = pytest.mark.usefixtures("noticing")


@pytest.fixture
def shop(database: Database, recording: Recording) -> Recording:
    database.execute("create table orders (id bigint primary key, note text)")
    database.execute("create table clients (id bigint primary key, note text)")
    database.execute("insert into orders values (1, 'o'); insert into clients values (1, 'c')")
    return recording


def follow(shop: Recording, **options: object) -> None:
    """Copy both tables, and take note of them."""
    shop.follow("orders", "clients", **options)
    shop.until(lambda: {"standing/orders", "standing/clients"} <= notes(shop).keys())


def notes(shop: Recording) -> dict[str, str]:
    log = shop.recorder._log
    return {} if log is None else dict(log.notes)


@contextmanager
def absent(shop: Recording, stopped: bool, **options: object) -> Iterator[None]:
    """Have what is done inside happen while nothing reads, or between two looks."""
    if stopped:
        shop.die()
    yield
    if stopped:
        shop.live("orders", "clients", **options)


def owed(shop: Recording, *tables: str) -> None:
    """Wait until exactly these tables have to be copied again, and copy them."""
    shop.until(lambda: all(shop.log.rebaseline_required(name) is not None for name in tables))
    shop.streaming()
    for name in {"orders", "clients"}:
        assert (shop.baseline(name) is None) == (name in tables), name
    assert not [report for report in shop.reports if isinstance(report, Failed)]
    for name in tables:
        shop.copy(name)


def kept(shop: Recording) -> None:
    """Wait for the next change, by when everything must have been noticed; nothing was."""
    before = shop.log.counts().rows
    shop.database.execute("update orders set note = note || '.' where id = 1")
    shop.until(lambda: shop.log.counts().rows > before)
    shop.streaming()
    assert shop.baseline("orders") is not None
    assert shop.baseline("clients") is not None


def failure(shop: Recording) -> Failed:
    shop.until(lambda: any(isinstance(each, Failed) and each.stops for each in shop.reports))
    [found] = [each for each in shop.reports if isinstance(each, Failed) and each.stops]
    return found


def reported_lost(shop: Recording, table: str) -> None:
    """Wait until one table is reported as lost, and the source as reading again."""

    def told() -> bool:
        warned = [each.problem for each in shop.reports if isinstance(each, Warned)]
        return any(each.code == "capture.table_lost" for each in warned if table in each.message)

    shop.until(told)
    shop.streaming()


def lost(shop: Recording) -> str:
    """Wait until the orders are lost, alone and with a notice; return the code of the cause."""

    def named() -> list[Failed]:
        warned = [each.problem for each in shop.reports if isinstance(each, Warned)]
        return [each for each in warned if each.code == "capture.table_lost"]

    shop.until(named)
    [found] = named()
    assert found.facts["table"] == "orders"
    shop.streaming()
    shop.database.execute("update clients set note = 'still recorded' where id = 1")
    shop.until(
        lambda: any(row["after"]["note"] == "still recorded" for row in shop.changes("clients"))
    )
    assert not [report for report in shop.reports if isinstance(report, Failed)]
    return found.facts["cause"]


WHEN = pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "running"])


# --- a table's identity ---------------------------------------------------------------------------

SWAP = (
    "alter table orders rename to third",
    "alter table clients rename to orders",
    "alter table third rename to clients",
)


@NOTICING
@WHEN
@pytest.mark.parametrize("written", [True, False], ids=["with changes", "without a change"])
def test_tables_that_are_renamed_into_each_other_are_copied_again(
    shop: Recording, stopped: bool, written: bool
) -> None:
    follow(shop)
    run = shop.database.execute
    with absent(shop, stopped):
        if written:
            run("insert into orders values (2, 'o'); insert into clients values (3, 'c')")
        run("; ".join(SWAP))
        if written:
            run("insert into orders values (4, 'c'); insert into clients values (5, 'o')")
    owed(shop, "orders", "clients")
    before = shop.log.counts().rows
    run("insert into orders values (6, 'c')")
    shop.until(lambda: shop.log.counts().rows == before + 1)
    notes = [row["after"]["note"] for row in shop.changes("orders") if row["after"]["id"] > 5]
    assert notes == ["c"]


@pytest.mark.parametrize("lost", [False, True], ids=["read", "read by the next process"])
def test_no_change_of_another_table_is_taken_for_one_of_the_table_that_has_its_name(
    shop: Recording, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    follow(shop)
    shop.die()
    run = shop.database.execute
    run("insert into orders values (2, 'o'); insert into clients values (3, 'c')")
    run("; ".join(SWAP))
    run("insert into orders values (4, 'c'); insert into clients values (5, 'o')")
    shop.live("orders", "clients")
    if lost:
        with monkeypatch.context() as unread:
            unread.setattr(ReplicationStream, "receive", lambda *_: None)
            shop.until(lambda: shop.log.rebaseline_required("clients") is not None)
            shop.until(lambda: not shop.source.notices())
        shop.die()
        shop.live("orders", "clients")
    shop.until(lambda: shop.log.counts().rows == 2)
    assert [row["after"] for row in shop.changes("orders")] == [{"id": 4, "note": "c"}]
    assert [row["after"] for row in shop.changes("clients")] == [{"id": 5, "note": "o"}]


def test_a_table_that_has_replaced_another_one_may_have_another_name_for_a_while(
    shop: Recording,
) -> None:
    follow(shop)
    shop.die()
    run = shop.database.execute
    run("; ".join(SWAP))
    shop.live("orders", "clients")
    owed(shop, "orders", "clients")
    run("alter table orders rename to o")
    run("insert into o values (2, 'away')")
    run("alter table o rename to orders")
    shop.until(lambda: shop.log.counts().rows == 1)
    assert [row["after"]["note"] for row in shop.changes("orders")] == ["away"]


@NOTICING
@WHEN
@pytest.mark.parametrize(
    "away",
    [
        (
            "alter table orders set schema apart",
            "alter table apart.orders set schema public",
        ),
        ("alter table orders rename to o", "alter table o rename to orders"),
    ],
    ids=["another schema", "another name"],
)
def test_a_table_that_was_away_and_is_back_is_followed(
    shop: Recording, stopped: bool, away: tuple[str, str]
) -> None:
    follow(shop)
    run = shop.database.execute
    run("create schema apart")
    with absent(shop, stopped):
        run(away[0])
        run(f"insert into {'apart.orders' if 'schema' in away[0] else 'o'} values (2, 'away')")
        run(away[1])
    run("insert into orders values (3, 'back')")
    shop.until(lambda: shop.log.counts().rows == 2)
    assert [row["after"]["note"] for row in shop.changes("orders")] == ["away", "back"]
    assert shop.baseline("orders") is not None


@pytest.mark.parametrize("looks", ["ddl_watch.look_up", "find"], ids=["a look", "a change"])
def test_a_table_that_is_away_just_when_it_is_looked_for_is_followed(
    shop: Recording, monkeypatch: pytest.MonkeyPatch, looks: str
) -> None:
    follow(shop)
    run = shop.database.execute
    found = look_up if "." in looks else find
    module = ddl_watch if "." in looks else source

    def away(*arguments: Any) -> Any:
        monkeypatch.undo()
        run("alter table orders rename to o")
        try:
            return found(*arguments)
        finally:
            run("alter table o rename to orders")

    monkeypatch.setattr(module, found.__name__, away)
    if "." in looks:
        assert shop.source._watch is not None
        shop.source._watch.due = shop.recorder._maintain_at = 0.0
    else:
        run("alter table orders rename to o")
        run("insert into o values (2, 'away')")
        run("alter table o rename to orders")
        monkeypatch.setattr(ddl_watch, "WATCH_SECONDS", 3600.0)
    kept(shop)
    assert not [report for report in shop.reports if isinstance(report, Failed)]


@NOTICING
def test_a_table_that_keeps_another_name_is_lost_until_it_has_its_own_again(
    shop: Recording,
) -> None:
    follow(shop)
    shop.database.execute("alter table orders rename to o")
    shop.database.execute("insert into o values (2, 'away')")
    assert lost(shop) == "capture.unsupported_table"
    shop.database.execute("alter table o rename to orders")
    owed(shop, "orders")


@NOTICING
def test_a_table_is_lost_while_a_child_inherits_from_it(shop: Recording) -> None:
    follow(shop)
    shop.database.execute("create table old_orders (id bigint primary key, note text)")
    shop.database.execute("alter table old_orders inherit orders")
    assert lost(shop) == "capture.unsupported_table"
    shop.database.execute("alter table old_orders no inherit orders")
    owed(shop, "orders")


@NOTICING
def test_a_table_is_lost_while_it_is_not_in_the_wal(shop: Recording) -> None:
    shop.database.execute("create publication everything for all tables")
    follow(shop, publication="everything", create_publication=False)
    shop.database.execute("alter table orders set unlogged")
    assert lost(shop) == "capture.unsupported_table"
    shop.database.execute("alter table orders set logged")
    owed(shop, "orders")


@NOTICING
@WHEN
def test_a_table_that_was_unlogged_for_a_while_is_copied_again(
    shop: Recording, stopped: bool
) -> None:
    shop.database.execute("create publication everything for all tables")
    options = {"publication": "everything", "create_publication": False}
    follow(shop, **options)
    with absent(shop, stopped, **options):
        # At once, so that no look is between them.
        run = "alter table orders set unlogged; insert into orders values (2, 'unlogged')"
        shop.database.execute(f"{run}; alter table orders set logged")
    owed(shop, "orders")
    assert shop.log.usable_baseline("orders").rows == 2  # type: ignore[union-attr]


# --- types ----------------------------------------------------------------------------------------

TYPES = """
create type state as enum ('new', 'paid');
create type size as (width int, height int);
create domain mood as state;
create type span as range (subtype = size);
create table other (id int primary key);
create type label;
create function label_in(cstring) returns label language internal strict immutable as 'textin';
create function label_out(label) returns cstring language internal strict immutable as 'textout';
create type label (input = label_in, output = label_out, like = text);
alter extension plpgsql add type label
"""

RENAMED = "alter type state rename value 'new' to 'fresh'"
GROWN = "alter type size add attribute depth int"
ALTERED = {
    "enum": ("state default 'new'", RENAMED),
    "array": ("state[] default '{new}'", RENAMED),
    "domain": ("mood default 'new'", RENAMED),
    "composite": ("size default '(1,2)'", GROWN),
    "range": ("span default span('(1,2)', '(3,4)')", GROWN),
    "row": ("other default '(1)'", "alter table other add more int"),
    "name": ("regclass default 'other'", "alter table other rename to others"),
    "extension": ("label default 'x'", "update pg_extension set extversion = '2'"),
}


@NOTICING
@WHEN
@pytest.mark.parametrize("column, statement", ALTERED.values(), ids=ALTERED)
def test_a_type_that_prints_old_values_differently_has_its_table_copied_again(
    shop: Recording, stopped: bool, column: str, statement: str
) -> None:
    shop.database.execute(TYPES)
    shop.database.execute(f"alter table orders add typed {column}")
    follow(shop)
    with absent(shop, stopped):
        shop.database.execute(statement)
    owed(shop, "orders")


@NOTICING
@WHEN
@pytest.mark.parametrize(
    "statement",
    [
        "alter type state add value 'late' before 'new'",
        "alter type size rename attribute width to breadth",
        "alter domain mood add check (value <> 'paid')",
        "create table another (id int primary key)",
        "create temporary table fleeting (id int)",
    ],
)
def test_a_type_that_prints_old_values_as_before_costs_no_copy(
    shop: Recording, stopped: bool, statement: str
) -> None:
    shop.database.execute(TYPES)
    typed = ", ".join(f"add c{n} {column}" for n, (column, _) in enumerate(ALTERED.values()))
    shop.database.execute(f"alter table orders {typed}")
    follow(shop)
    with absent(shop, stopped):
        shop.database.execute(statement)
    kept(shop)


@NOTICING
@pytest.mark.parametrize("renamed", [False, True], ids=["created", "renamed"])
def test_a_table_that_is_created_earlier_and_seen_later_costs_no_copy(
    shop: Recording, renamed: bool
) -> None:
    shop.database.execute("alter table orders add typed regclass")
    follow(shop)
    slow = shop.database.connect(autocommit=False)
    slow.execute("create table first (id int)")
    before = notes(shop)["standing/orders"]
    shop.database.execute("create table second (id int)")
    shop.until(lambda: notes(shop)["standing/orders"] != before)
    before = notes(shop)["standing/orders"]
    slow.commit()
    shop.until(lambda: notes(shop)["standing/orders"] != before)
    kept(shop)
    if renamed:
        shop.database.execute("alter table first rename to third")
        owed(shop, "orders")


@NOTICING
def test_a_copy_waits_for_those_who_wrote_before_a_value_was_renamed(shop: Recording) -> None:
    shop.database.execute(TYPES)
    shop.database.execute("alter table orders add state state default 'new'")
    follow(shop)
    writer = shop.database.connect(autocommit=False)
    writer.execute("update orders set note = 'late'")
    shop.database.execute(RENAMED)
    shop.until(lambda: shop.log.rebaseline_required("orders") is not None)
    shop.reports += shop.recorder.step([TakeBaseline("orders")], 0.05)
    shop.until(lambda: any(isinstance(r, BaselineProgress) and r.waits for r in shop.reports))
    writer.commit()
    shop.until(lambda: shop.baseline("orders") is not None)
    [change] = shop.changes("orders")
    assert change["after"] == {"id": 1, "note": "late", "state": "new"}
    # The change has the old text, so it must not be applied to the rows of the copy.
    first, _ = shop.log.usable_baseline("orders").window  # type: ignore[union-attr]
    assert change["_commit"] <= first.commit


# --- publications ---------------------------------------------------------------------------------

OURS = "the_publication"
ALTERATIONS = {
    "table": (
        "alter publication {p} drop table orders",
        "alter publication {p} add table only orders",
        ("orders",),
    ),
    "operations": (
        "alter publication {p} set (publish = 'insert')",
        "alter publication {p} set (publish = 'insert, update, delete, truncate')",
        ("orders", "clients"),
    ),
    "row filter": (
        "alter publication {p} set table orders where (id > 1), clients",
        "alter publication {p} set table orders, clients",
        ("orders",),
    ),
    "column list": (
        "alter publication {p} set table orders (id), clients",
        "alter publication {p} set table orders, clients",
        ("orders",),
    ),
    "root": (
        "alter publication {p} set (publish_via_partition_root = false)",
        "alter publication {p} set (publish_via_partition_root = true)",
        ("orders", "clients"),
    ),
}


@NOTICING
@WHEN
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "the user's"])
@pytest.mark.parametrize("there, back, tables", ALTERATIONS.values(), ids=ALTERATIONS)
def test_a_publication_that_was_altered_for_a_moment_has_its_tables_copied_again(
    shop: Recording, stopped: bool, ours: bool, there: str, back: str, tables: tuple[str, ...]
) -> None:
    if shop.database.connect().info.server_version < 150000 and "set table" in there:
        pytest.skip("row filters and column lists came with PostgreSQL 15")
    run = shop.database.execute
    if not ours:
        run(f"create publication {OURS} for table orders, clients")
        run(f"alter publication {OURS} set (publish_via_partition_root = true)")
    options = {"publication": OURS, "create_publication": ours}
    follow(shop, **options)
    with absent(shop, stopped, **options):
        run(there.format(p=OURS))
        run("update orders set note = 'meanwhile' where id = 1")
        run(back.format(p=OURS))
    owed(shop, *tables)
    assert shop.log.usable_baseline("orders").rows == 1  # type: ignore[union-attr]


def test_columns_that_were_left_out_for_a_moment_are_there_without_another_change(
    shop: Recording,
) -> None:
    if shop.database.connect().info.server_version < 150000:
        pytest.skip("column lists came with PostgreSQL 15")
    follow(shop, publication=OURS)
    shop.die()
    run = shop.database.execute
    run(f"alter publication {OURS} set table orders (id), clients")
    run("update orders set note = 'meanwhile' where id = 1")
    run(f"alter publication {OURS} set table orders, clients")
    shop.live("orders", "clients", publication=OURS)
    shop.until(lambda: shop.recorder._connected)
    # Asked for before the change with fewer columns is read.
    shop.copy("orders")
    newest = shop.log.columns("orders", 0).schema
    assert shop.log.schema("orders", newest).names == ("id", "note")


@NOTICING
def test_what_we_alter_in_our_publication_ourselves_costs_one_copy(shop: Recording) -> None:
    follow(shop)
    shop.die()
    shop.live("orders", "clients", publish=["insert", "update", "delete"])
    owed(shop, "orders", "clients")
    kept(shop)
    shop.die()
    shop.live("orders", "clients", publish=["insert", "update", "delete"])
    kept(shop)


@NOTICING
def test_a_publication_that_stays_altered_is_put_right(shop: Recording) -> None:
    follow(shop, publication=OURS)
    shop.database.execute(f"alter publication {OURS} set (publish = 'insert')")
    owed(shop, "orders", "clients")
    assert shop.database.value("select pubupdate from pg_publication")
    kept(shop)


@NOTICING
@pytest.mark.parametrize(
    "statement",
    [
        f"alter publication {OURS} set (publish = 'insert')",
        f"drop publication {OURS}",
    ],
)
def test_a_publication_of_the_users_that_stays_altered_is_reported(
    shop: Recording, statement: str
) -> None:
    shop.database.execute(f"create publication {OURS} for table orders, clients")
    follow(shop, publication=OURS, create_publication=False)
    shop.database.execute(statement)
    assert failure(shop).code == "capture.publication"


@NOTICING
def test_a_table_is_lost_while_a_publication_of_the_users_lacks_it(shop: Recording) -> None:
    shop.database.execute(f"create publication {OURS} for table orders, clients")
    follow(shop, publication=OURS, create_publication=False)
    shop.database.execute(f"alter publication {OURS} drop table orders")
    assert lost(shop) == "capture.publication"
    shop.database.execute(f"alter publication {OURS} add table only orders")
    owed(shop, "orders")


@NOTICING
@WHEN
def test_a_table_that_was_in_an_unpublished_schema_is_copied_again(
    shop: Recording, stopped: bool
) -> None:
    run = shop.database.execute
    if shop.database.connect().info.server_version < 150000:
        pytest.skip("publications of schemas came with PostgreSQL 15")
    run(f"create schema elsewhere; create publication {OURS} for tables in schema public")
    options = {"publication": OURS, "create_publication": False}
    follow(shop, **options)
    with absent(shop, stopped, **options):
        run("alter table orders set schema elsewhere")
        run("update elsewhere.orders set note = 'meanwhile'")
        run("alter table elsewhere.orders set schema public")
    owed(shop, "orders")


@NOTICING
@WHEN
@pytest.mark.ci
def test_a_schema_that_was_not_published_for_a_moment_has_its_tables_copied_again(
    shop: Recording, stopped: bool
) -> None:
    run = shop.database.execute
    if shop.database.connect().info.server_version < 150000:
        pytest.skip("publications of schemas came with PostgreSQL 15")
    run(f"create publication {OURS} for tables in schema public")
    options = {"publication": OURS, "create_publication": False}
    follow(shop, **options)
    with absent(shop, stopped, **options):
        run(
            f"alter publication {OURS} drop tables in schema public;"
            f" alter publication {OURS} add tables in schema public"
        )
    owed(shop, "orders", "clients")


@NOTICING
@WHEN
def test_a_publication_of_the_users_that_was_dropped_for_a_moment_has_its_tables_copied_again(
    shop: Recording, stopped: bool
) -> None:
    run = shop.database.execute
    run(f"create publication {OURS} for table orders, clients")
    options = {"publication": OURS, "create_publication": False}
    follow(shop, **options)
    with absent(shop, stopped, **options):
        run(f"drop publication {OURS}")
        run("update orders set note = 'meanwhile' where id = 1")
        run(f"create publication {OURS} for table orders, clients")
    shop.until(lambda: shop.baseline("orders") is None and shop.baseline("clients") is None)
    for name in ("orders", "clients"):
        shop.copy(name)
    kept(shop)


@NOTICING
@pytest.mark.ci
@pytest.mark.parametrize(
    "setting",
    [
        "set session_replication_role = replica",
        "select pg_replication_origin_create('{name}');"
        " select pg_replication_origin_session_setup('{name}')",
    ],
    ids=["role", "origin"],
)
def test_changes_of_every_origin_are_recorded(shop: Recording, setting: str) -> None:
    follow(shop)
    name = f"of_{shop.database.name}"
    with shop.database.connect() as writer:
        writer.execute(setting.format(name=name).encode())
        writer.execute("insert into orders values (2, 'from elsewhere')")
    shop.until(lambda: shop.log.counts().rows == 1)
    if "origin" in setting:
        shop.database.execute("select pg_replication_origin_drop(%s)", name)


@NOTICING
def test_notes_of_an_earlier_release_cost_no_copy(shop: Recording) -> None:
    follow(shop)
    oid, _, file, stamps, *_ = notes(shop)["standing/orders"].split(" ")
    log = shop.recorder._log
    assert log is not None
    log.note(f"{oid} 0 {file} {stamps}", "standing/orders")
    shop.live("orders", "clients")
    kept(shop)


# --- rights ---------------------------------------------------------------------------------------


@NOTICING
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("revoke select on orders from {role}", id="select"),
        pytest.param(
            "alter table orders enable row level security",
            id="row security",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_a_right_that_is_lost_fails_the_next_copy_and_no_change(
    shop: Recording, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    role = shop.database.role("login replication")
    run = shop.database.execute
    run(f"grant select on orders, clients to {role}")
    run(f"create publication {OURS} for table orders, clients")
    dsn = shop.database.dsn_as(role)
    monkeypatch.setattr(Database, "dsn", property(lambda _: dsn))
    follow(shop, publication=OURS, create_publication=False)
    run(statement.format(role=role))
    kept(shop)
    shop.reports += shop.recorder.step([TakeBaseline("orders")], 0.05)
    reported_lost(shop, "orders")


# --- replica identities ---------------------------------------------------------------------------


def followed(shop: FollowedOrders, engine: Engine) -> bool:
    info = engine.pipeline_info("orders")
    assert info.error is None
    if info.state != "live":
        return False
    truth = set(shop.database.rows("select id, note, n from orders"))
    return {(row["id"], row["note"], row["n"]) for row in shop.orders.all()} == truth


@pytest.mark.meets("R21")
def test_an_update_of_a_row_that_was_never_sent_has_its_table_copied_again_before_a_look(
    database: Database, tmp_path: Path
) -> None:
    # Looks come every 10 s, and until then the store seems to have every large value.
    shop = FollowedOrders(database, tmp_path / "data")
    run = database.execute
    run("alter table orders add n int not null default 0")
    run(f"create publication {OURS} for table orders")
    run(f"alter publication {OURS} set (publish_via_partition_root = true)")
    engine = shop.engine(publication=OURS, create_publication=False)
    engine.start()
    try:
        assert engine.await_ready(PATIENCE)
        wait_until(partial(followed, shop, engine), PATIENCE)
        run(f"alter publication {OURS} set (publish = 'update')")
        large = "(select string_agg(md5(k::text), '') from generate_series(1, 150) k)"
        run(f"insert into orders (id, note) values (100, {large})")
        run(f"alter publication {OURS} set (publish = 'insert, update, delete, truncate')")
        run("update orders set n = n + 1")
        wait_until(partial(followed, shop, engine), PATIENCE)
        told = [each.problem.message for each in engine.source_info("shop").notices]
        assert any("large values that the server did not send are not known" in x for x in told)
    finally:
        engine.stop()


@WHEN
@pytest.mark.meets("R21")
def test_large_values_are_there_whatever_becomes_of_the_replica_identity(
    database: Database, tmp_path: Path, stopped: bool
) -> None:
    shop = FollowedOrders(database, tmp_path / "data")
    run = database.execute
    run("alter table orders add other bigint not null default 0, add n int not null default 0")
    large = "(select string_agg(md5(id::text || k), '') from generate_series(1, 150) k)"
    run(f"update orders set other = id, note = {large}")
    run("create unique index orders_other on orders (other)")
    run("alter table orders replica identity full")
    engine = shop.engine()
    engine.start()
    try:
        assert engine.await_ready(PATIENCE)
        for identity in ("default", "using index orders_other", "full", "default"):
            if stopped:
                engine.stop()
            run(f"alter table orders replica identity {identity}")
            run("update orders set n = n + 1 where id < 10")
            if stopped:
                engine = shop.engine()
                engine.start()

            wait_until(partial(followed, shop, engine), PATIENCE)
    finally:
        engine.stop()


@NOTICING
@WHEN
def test_updates_work_again_soon_after_a_replica_identity_was_taken_away(
    shop: Recording, stopped: bool
) -> None:
    follow(shop)
    with absent(shop, stopped):
        shop.database.execute("alter table orders replica identity nothing")
    reported_lost(shop, "orders")
    # PostgreSQL refuses updates of published tables without an identity.
    of_orders = "select 1 from pg_publication_tables where tablename = 'orders'"
    shop.until(lambda: not shop.database.rows(of_orders))
    shop.database.execute("update orders set note = 'x'")
