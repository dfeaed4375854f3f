"""Publications on a real server: made, kept in step, verified, never taken from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.options import PostgresOptions, TableOptions
from headrace.capture.postgres.server import publication
from headrace.capture.postgres.server.catalog import CatalogTable, look_up
from headrace.capture.postgres.server.publication import PublicationResult, PublishedColumns
from headrace.errors import (
    HeadraceError,
    NotPermitted,
    PublicationRefused,
    ServerRefused,
    SourceUnreachable,
)
from tests.postgres.servers import Database

NAME = "headrace_shop"


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("create table orders (id int primary key, state text, total int)")
    database.execute("create table clients (id int primary key, name text)")
    database.execute("create schema stock; create table stock.items (id int primary key)")
    return database


def asking(
    database: Database,
    details: Mapping[str, TableOptions] | None = None,
    publish: Sequence[str] = ("insert", "update", "delete", "truncate"),
    create: bool = True,
) -> PostgresOptions:
    return PostgresOptions(
        name="shop",
        connection=database.dsn,
        slot="headrace_shop_1",
        publication=NAME,
        create_publication=create,
        tables=details or {},
        publish=tuple(publish),
    )


def tables_of(database: Database, *names: str) -> list[CatalogTable]:
    return list(look_up(database.connect(), names).values())


def ensure(database: Database, *names: str, **asked: Any) -> PublicationResult:
    return publication.ensure(
        database.connect(), asking(database, **asked), tables_of(database, *names)
    )


def sent(database: Database) -> dict[str, PublishedColumns]:
    """What is published, by the table's name."""
    found = publication.published(database.connect(), NAME)
    return {database.value("select %s::oid::regclass::text", oid): it for oid, it in found.items()}


def filters(database: Database) -> None:
    if database.connect().info.server_version < 150000:
        pytest.skip("row filters and column lists came with PostgreSQL 15")


def test_a_publication_is_made_marked_and_then_left_as_it_is(shop: Database) -> None:
    made = ensure(shop, "orders", "stock.items")
    assert made == PublicationResult(created=True, added=("orders", "stock.items"))
    assert made.baselines == ("orders", "stock.items")
    assert set(sent(shop)) == {"orders", "stock.items"}
    assert shop.rows(
        "select pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot from pg_publication"
    ) == [(True,) * 5]
    comment = shop.value("select obj_description(oid, 'pg_publication') from pg_publication")
    assert comment.startswith("headrace: shop, slot headrace_shop_1;")

    before = shop.value("select pg_current_xact_id()::text::int8")
    assert ensure(shop, "orders", "stock.items") == PublicationResult()
    assert shop.value("select pg_current_xact_id()::text::int8") == before + 1  # nothing written


@pytest.mark.meets("PG-09")
def test_tables_are_added_and_removed_as_asked_for(shop: Database) -> None:
    ensure(shop, "orders", "clients")
    assert ensure(shop, "clients", "stock.items") == PublicationResult(
        added=("stock.items",), removed=("orders",)
    )
    assert set(sent(shop)) == {"clients", "stock.items"}


@pytest.mark.meets("PG-09")
def test_other_operations_change_what_is_sent_of_every_table(shop: Database) -> None:
    ensure(shop, "orders", "clients")
    changed = ensure(shop, "orders", "clients", publish=["insert", "delete"])
    assert changed == PublicationResult(changed=("orders", "clients"))
    assert shop.rows("select pubinsert, pubupdate, pubdelete, pubtruncate from pg_publication") == [
        (True, False, True, False)
    ]
    assert ensure(shop, "orders", "clients", publish=["delete", "insert"]) == PublicationResult()


def test_names_that_need_quotes_are_published(shop: Database) -> None:
    shop.execute('create table "Odd ""name; -- " ("a ""b" int primary key, c int)')
    names = ['"Odd ""name; -- "']
    assert ensure(shop, *names).created
    assert ensure(shop, *names) == PublicationResult()
    [only] = sent(shop).values()
    assert only == PublishedColumns(('a "b', "c"), "")


def test_a_table_that_inherits_is_not_published_with_its_parent(shop: Database) -> None:
    shop.execute("create table old_orders () inherits (orders)")
    ensure(shop, "orders")
    assert list(sent(shop)) == ["orders"]
    assert ensure(shop, "orders") == PublicationResult()


@pytest.mark.meets("PG-24")
def test_a_partitioned_table_is_sent_as_one_table(shop: Database) -> None:
    shop.execute("create table events (id int primary key) partition by range (id)")
    shop.execute("create table events_1 partition of events for values from (0) to (100)")
    ensure(shop, "orders", "events")
    assert set(sent(shop)) == {"orders", "events"}

    # Somebody turned it off: what is sent of every table may be another thing now.
    shop.execute(f"alter publication {NAME} set (publish_via_partition_root = false)")
    assert set(sent(shop)) == {"orders", "events_1"}
    assert ensure(shop, "orders", "events").changed == ("orders", "events")
    assert set(sent(shop)) == {"orders", "events"}


@pytest.mark.meets("R18")
def test_filters_and_columns_are_published_and_read_back(shop: Database) -> None:
    filters(shop)
    details = {
        "orders": TableOptions(("id", "state"), "id > 10 -- the new ones"),
        "clients": TableOptions(),
    }
    ensure(shop, "orders", "clients", details=details)
    assert sent(shop) == {
        "orders": PublishedColumns(("id", "state"), "(id > 10)"),
        "clients": PublishedColumns(("id", "name"), ""),
    }
    orders, clients = tables_of(shop, "orders", "clients")
    connection = shop.connect()
    assert publication.published_columns(connection, NAME, orders) == ("id", "state")
    [items] = tables_of(shop, "stock.items")
    with pytest.raises(PublicationRefused):
        publication.published_columns(connection, NAME, items)
    assert clients.oid in publication.published(connection, NAME)


@pytest.mark.parametrize(
    "asked",
    [
        TableOptions(where="ID>10"),
        TableOptions(where="(id > (10))"),
        TableOptions(columns=("state", "id"), where="id > 10"),
        TableOptions(where="id in (1, 2) and total between 3 and 4 or state is null"),
        TableOptions(where="state like 'a%' and state <> 'it''s'"),
    ],
)
def test_a_filter_in_other_words_is_not_another_filter(shop: Database, asked: TableOptions) -> None:
    filters(shop)
    shop.execute("alter table orders replica identity full")
    ensure(shop, "orders", details={"orders": asked})
    assert ensure(shop, "orders", details={"orders": asked}) == PublicationResult()
    assert shop.rows("select relname from pg_class where relname = 'headrace_row_filter'") == []


@pytest.mark.meets("PG-09")
@pytest.mark.parametrize(
    "asked",
    [TableOptions(), TableOptions(("id",), "id > 10"), TableOptions(("id", "state"), "id > 11")],
)
def test_another_filter_or_other_columns_are_a_change_of_that_table_alone(
    shop: Database, asked: TableOptions
) -> None:
    filters(shop)
    before = {"orders": TableOptions(("id", "state"), "id > 10")}
    ensure(shop, "orders", "clients", details=before)
    assert ensure(shop, "orders", "clients", details={"orders": asked}) == PublicationResult(
        changed=("orders",)
    )
    found = sent(shop)["orders"]
    assert found.columns == (asked.columns or ("id", "state", "total"))
    assert found.where == (f"({asked.where})" if asked.where else "")


@pytest.mark.parametrize(
    "asked",
    [
        TableOptions(where="nothing > 1"),
        TableOptions(where="id >"),
        TableOptions(where="id = 'a secret'"),
        TableOptions(where="random() > id"),
        TableOptions(columns=("id", "nothing")),
    ],
)
def test_what_the_server_does_not_understand_is_refused_without_its_words(
    shop: Database, asked: TableOptions
) -> None:
    filters(shop)
    ensure(shop, "clients")
    with pytest.raises(PublicationRefused) as caught:
        ensure(shop, "clients", "orders", details={"orders": asked})
    assert "secret" not in str(caught.value) + caught.value.remedy
    assert list(sent(shop)) == ["clients"]


def test_filters_on_a_server_before_15_are_refused(shop: Database) -> None:
    if shop.connect().info.server_version >= 150000:
        pytest.skip("this server has them")
    with pytest.raises(ServerRefused):
        ensure(shop, "orders", details={"orders": TableOptions(where="id > 1")})


def test_nothing_to_publish_is_refused(shop: Database) -> None:
    with pytest.raises(PublicationRefused):
        ensure(shop)


@pytest.mark.meets("PG-10")
@pytest.mark.parametrize(
    "comment",
    [
        None,
        "made by hand",
        "headrace: other, slot headrace_shop_1; kept",
        "headrace: shop, slot headrace_shop_2; kept",
        "headrace: shop, slot headrace_shop_10",
        "headrace: shopping",
    ],
)
def test_a_publication_that_is_not_ours_is_never_altered(
    shop: Database, comment: str | None
) -> None:
    shop.execute(f"create publication {NAME} for table clients")
    if comment is not None:
        shop.execute(f"comment on publication {NAME} is '{comment}'")
    with pytest.raises(PublicationRefused) as caught:
        ensure(shop, "orders", "clients")
    assert caught.value.facts["tables"] == ["orders"]
    assert list(sent(shop)) == ["clients"]
    assert not publication.drop(shop.connect(), asking(shop))

    run(shop, caught.value)
    assert ensure(shop, "orders", "clients") == PublicationResult()
    assert ensure(shop, "orders") == PublicationResult()  # it may have more


def run(database: Database, error: HeadraceError) -> None:
    """Do what a remedy says: the statements between Run and the last semicolon."""
    statements = error.remedy.removeprefix("Run ").rpartition(";")[0]
    database.execute(statements)


DIFFERENCES = [
    ("for table orders with (publish = 'insert')", TableOptions(), "other operations"),
    ("for table orders (id, state)", TableOptions(), "another column list"),
    ("for table orders", TableOptions(columns=("id", "state")), "another column list"),
    ("for table orders where (id > 1)", TableOptions(), "another row filter"),
    ("for table orders where (id > 1)", TableOptions(where="id > 2"), "another row filter"),
    ("for all tables", TableOptions(where="id > 2"), "another row filter"),
    ("", TableOptions(("id",), "id > 2"), "does not include all tables"),
]


@pytest.mark.parametrize(("there", "asked", "difference"), DIFFERENCES)
def test_each_difference_is_named_with_the_statement_that_mends_it(
    shop: Database, there: str, asked: TableOptions, difference: str
) -> None:
    filters(shop)
    shop.execute(f"create publication {NAME} {there}")
    with pytest.raises(PublicationRefused, match=difference) as caught:
        ensure(shop, "orders", details={"orders": asked})
    if there == "for all tables":
        return  # which cannot be altered into one of single tables
    run(shop, caught.value)
    assert ensure(shop, "orders", details={"orders": asked}) == PublicationResult()


def test_partitions_under_their_own_names_are_a_difference(shop: Database) -> None:
    shop.execute("create table events (id int primary key) partition by range (id)")
    shop.execute("create table events_1 partition of events for values from (0) to (100)")
    shop.execute(f"create publication {NAME} for table events")
    with pytest.raises(PublicationRefused, match="under their own names") as caught:
        ensure(shop, "events")
    run(shop, caught.value)
    assert ensure(shop, "events") == PublicationResult()


@pytest.mark.meets("R23d")
def test_a_publication_without_truncates_is_taken_and_said(shop: Database) -> None:
    shop.execute(
        f"create publication {NAME} for all tables with (publish = 'insert,update,delete')"
    )
    assert ensure(shop, "orders", "stock.items") == PublicationResult(unsent=("truncate",))


def test_a_publication_of_whole_schemas_is_taken(shop: Database) -> None:
    filters(shop)
    shop.execute(f"create publication {NAME} for tables in schema public, stock")
    assert ensure(shop, "orders", "stock.items") == PublicationResult()


def test_one_that_shall_be_there_and_is_not_is_refused_with_its_statement(shop: Database) -> None:
    with pytest.raises(PublicationRefused) as caught:
        ensure(shop, "orders", "clients", create=False)
    run(shop, caught.value)
    assert ensure(shop, "orders", "clients", create=False) == PublicationResult()
    # Ours or not: who does not want it made does not want it altered either.
    shop.execute(f"comment on publication {NAME} is 'headrace: shop, slot headrace_shop_1'")
    with pytest.raises(PublicationRefused):
        ensure(shop, "stock.items", create=False)
    assert set(sent(shop)) == {"clients", "orders"}


def test_a_user_without_the_right_is_told_what_to_run(shop: Database) -> None:
    role = shop.role("login")
    connection = shop.connect(role)
    with pytest.raises(NotPermitted) as caught:
        publication.ensure(connection, asking(shop), tables_of(shop, "orders"))
    statement = caught.value.remedy.removeprefix("Run as the owner of the tables: ")
    shop.execute(statement)
    assert ensure(shop, "orders") == PublicationResult()

    shop.execute(f"comment on publication {NAME} is 'headrace: shop, slot headrace_shop_1'")
    with pytest.raises(NotPermitted) as caught:
        publication.ensure(connection, asking(shop), tables_of(shop, "orders", "clients"))
    shop.execute(caught.value.remedy.removeprefix("Run as the owner of the tables: "))
    assert ensure(shop, "orders", "clients") == PublicationResult()


def test_ours_is_dropped_and_then_not_there(shop: Database) -> None:
    ensure(shop, "orders")
    connection = shop.connect()
    assert publication.drop(connection, asking(shop))
    assert not publication.drop(connection, asking(shop))
    assert ensure(shop, "orders").created
    assert (
        publication.verify(connection, asking(shop), tables_of(shop, "orders"))
        == PublicationResult()
    )


@pytest.mark.parametrize("mode", ["SHARE UPDATE EXCLUSIVE", "ACCESS EXCLUSIVE"])
def test_a_locked_table_is_tried_a_few_times_and_nobody_queues_behind_us(
    shop: Database, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "LOCK_SECONDS", (0.02, 0.02, 0.02))
    ensure(shop, "clients")
    holder = shop.connect(autocommit=False)
    orders = tables_of(shop, "orders")
    holder.execute(f"lock table orders in {mode} mode".encode())
    pauses: list[int] = []
    with pytest.raises(SourceUnreachable) as caught:
        publication.ensure(
            shop.connect(),
            asking(shop),
            [*tables_of(shop, "clients"), *orders],
            on_wait=lambda: pauses.append(waiting(shop)),
        )
    assert pauses == [0, 0]  # between attempts we stand in nobody's way
    assert caught.value.facts["pids"] == [holder.info.backend_pid]
    assert list(sent(shop)) == ["clients"]
    holder.rollback()
    assert ensure(shop, "clients", "orders").added == ("orders",)


def waiting(database: Database) -> int:
    return int(database.value("select count(*) from pg_locks where not granted"))


def test_a_lock_that_goes_away_in_time_is_waited_out(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "LOCK_SECONDS", (0.02, 0.02))
    ensure(shop, "clients")
    tables = tables_of(shop, "clients", "orders")
    holder = shop.connect(autocommit=False)
    holder.execute("lock table orders in access exclusive mode")
    made = publication.ensure(shop.connect(), asking(shop), tables, on_wait=holder.rollback)
    assert made.added == ("orders",)


def test_writers_do_not_keep_a_table_from_being_published(shop: Database) -> None:
    ensure(shop, "clients")
    writer = shop.connect(autocommit=False)
    writer.execute("insert into orders values (1)")
    assert ensure(shop, "clients", "orders").added == ("orders",)
    writer.commit()


@pytest.mark.meets("R13")
def test_a_server_with_the_defect_is_kept_free_of_writers_while_a_table_is_added(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "LOCK_SECONDS", (0.02, 0.02))
    version = shop.connect().info.server_version
    monkeypatch.setattr(publication, "_REPAIRED", {version // 10000: version + 1})
    made = ensure(shop, "clients")
    assert made.created
    tables = tables_of(shop, "clients", "orders")
    writer = shop.connect(autocommit=False)
    writer.execute("insert into orders values (1)")
    with pytest.raises(SourceUnreachable):
        publication.ensure(shop.connect(), asking(shop), tables)
    added = publication.ensure(shop.connect(), asking(shop), tables, on_wait=writer.commit)
    assert added.added == ("orders",)


def test_two_who_make_it_at_once_make_one(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "LOCK_SECONDS", (0.5, 0.5))
    plan = publication._plan

    def overtaken(connection: psycopg.Connection[Any], options: PostgresOptions, *rest: Any) -> Any:
        made = plan(connection, options, *rest)
        monkeypatch.setattr(publication, "_plan", plan)
        ensure(shop, "orders")
        return made

    monkeypatch.setattr(publication, "_plan", overtaken)
    assert ensure(shop, "orders") == PublicationResult()
