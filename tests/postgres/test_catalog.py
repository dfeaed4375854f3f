"""What is read of the catalogue, on a real server."""

from __future__ import annotations

import pytest

from headrace.capture.postgres.server.catalog import (
    CatalogColumn,
    CatalogTable,
    find,
    fingerprint,
    look_up,
    schema_of,
)
from headrace.errors import NoIdentity, SchemaChanged, TableRefused
from tests.postgres.servers import Database

INT4, VARCHAR, NUMERIC, TEXT = 23, 1043, 1700, 25


def table_of(database: Database, name: str) -> CatalogTable:
    return look_up(database.connect(), [name])[name]


def column_of(table: CatalogTable, name: str) -> CatalogColumn:
    return next(column for column in table.columns if column.name == name)


@pytest.mark.meets("PG-02")
def test_a_table_is_found_by_the_name_given_and_keeps_it(database: Database) -> None:
    database.execute("create schema shop; create table shop.orders (id int primary key)")
    database.execute("create table orders (id int primary key)")
    found = look_up(database.connect(), ["orders", "shop.orders"])
    assert [(table.name, table.namespace) for table in found.values()] == [
        ("orders", "public"),
        ("shop.orders", "shop"),
    ]


def test_names_with_capitals_quotes_and_dots_are_found(database: Database) -> None:
    database.execute('create schema "Odd.Place"')
    database.execute('create table "Odd.Place"."say ""hi"".%s" ("Id %" int primary key, "a.b" int)')
    name = '"Odd.Place"."say ""hi"".%s"'
    table = table_of(database, name)
    assert (table.namespace, table.table) == ("Odd.Place", 'say "hi".%s')
    assert schema_of(table).names == ("Id %", "a.b")
    assert table.key == ("Id %",)


def test_a_name_cannot_carry_a_statement(database: Database) -> None:
    database.execute("create table kept (id int)")
    with pytest.raises(TableRefused):
        look_up(database.connect(), ['"x\'; drop table kept; --"'])
    assert database.value("select count(*) from kept") == 0


@pytest.mark.meets("PG-02")
def test_a_missing_table_is_refused_with_what_may_have_been_meant(database: Database) -> None:
    database.execute('create schema shop; create table shop."Orders" (id int)')
    tables, problems = find(database.connect(), ["orders", "nothing", "not a name"])
    assert tables == {}
    assert [problem.facts["table"] for problem in problems] == ["not a name", "orders", "nothing"]
    assert problems[1].remedy == 'Did you mean shop."Orders"?'


def test_two_names_of_one_table_are_refused(database: Database) -> None:
    database.execute("create table orders (id int)")
    with pytest.raises(TableRefused, match="two names"):
        look_up(database.connect(), ["orders", "public.orders"])


def test_columns_keep_their_numbers_when_others_are_dropped(database: Database) -> None:
    database.execute("create table t (a int, b int, c text not null)")
    database.execute("alter table t drop column b")
    schema = schema_of(table_of(database, "t"))
    assert [(column.name, column.field) for column in schema.columns] == [("a", 1), ("c", 3)]
    assert [column.nullable for column in schema.columns] == [True, False]


def test_a_domain_over_domains_is_its_base_type_with_the_innermost_modifier(
    database: Database,
) -> None:
    database.execute("create domain price as numeric(10,2)")
    database.execute("create domain net as price check (value >= 0)")
    database.execute("create domain final as net not null")
    database.execute("create domain short as varchar(5)")
    database.execute("create table t (a final, b short, c varchar(7), d int, e final[])")
    table = table_of(database, "t")
    facts = {column.name: (column.type, column.modifier) for column in table.columns}
    assert facts["a"] == (NUMERIC, (10 << 16 | 2) + 4)
    assert facts["b"] == (VARCHAR, 5 + 4)
    assert facts["c"] == (VARCHAR, 7 + 4)
    assert facts["d"] == (INT4, -1)
    schema = schema_of(table)
    assert str(schema.column("a").type) == "decimal(10,2)"
    assert str(schema.column("e").type) == "text"


def test_types_are_declared_as_people_write_them(database: Database) -> None:
    database.execute("create domain price as numeric(10,2)")
    database.execute("create table t (a price, b varchar(7), c timestamp(3), d int[])")
    connection = database.connect(options="-c search_path=pg_catalog")
    schema = schema_of(look_up(connection, ["t"])["t"])
    assert [column.declared for column in schema.columns] == [
        "public.price",
        "character varying(7)",
        "timestamp(3) without time zone",
        "integer[]",
    ]


def test_only_values_that_can_be_stored_elsewhere_may_stay_unsent(database: Database) -> None:
    database.execute("create table t (a text, b int, c numeric, d jsonb, e text, f name)")
    database.execute("alter table t alter e set storage plain")
    toastable = [column.name for column in table_of(database, "t").columns if column.toastable]
    assert toastable == ["a", "c", "d"]


@pytest.mark.meets("R23b")
def test_a_column_added_with_a_default_tells_what_older_rows_have(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("insert into t values (1)")
    database.execute(
        "alter table t add a text default 'x,{\"', add b int, add c int[] default '{1}'"
    )
    columns = table_of(database, "t").columns
    assert [column.missing for column in columns] == [None, 'x,{"', None, "{1}"]


def test_generated_columns_are_left_out_unless_they_are_published(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, a int, b int generated always as (a * 2) stored)"
    )
    table = table_of(database, "t")
    assert column_of(table, "b").generated
    assert schema_of(table).names == ("id", "a")
    assert schema_of(table, ["b", "id"]).names == ("id", "b")


def test_a_virtual_column_is_known_as_such(database: Database) -> None:
    if database.connect().info.server_version < 180000:
        pytest.skip("virtual columns came with PostgreSQL 18")
    database.execute("create table t (a int, b int generated always as (a * 2) virtual)")
    assert column_of(table_of(database, "t"), "b").virtual


@pytest.mark.meets("R23")
@pytest.mark.parametrize(
    ("identity", "key", "sent"),
    [
        ("default", ("b", "a"), {"a", "b"}),
        ("using index other", ("c",), {"c"}),
        ("full", ("b", "a"), {"a", "b", "c", "d"}),
        ("nothing", (), set()),
    ],
)
def test_the_key_follows_from_the_identity(
    database: Database, identity: str, key: tuple[str, ...], sent: set[str]
) -> None:
    database.execute("create table t (a int, b int, c int not null, d int, primary key (b, a))")
    database.execute("create unique index other on t (c) include (d)")
    database.execute(f"alter table t replica identity {identity}")
    table = table_of(database, "t")
    assert table.identity == {"using index other": "i"}.get(identity, identity[0])
    assert table.primary_key == ("b", "a")
    assert table.key == key
    assert {column.name for column in table.columns if column.identity_key} == sent
    assert schema_of(table).key == key


@pytest.mark.meets("R23")
def test_an_identity_whose_index_is_gone_or_may_be_late_is_none(database: Database) -> None:
    database.execute("create table late (id int primary key deferrable)")
    database.execute("create table gone (id int primary key, a int not null)")
    database.execute("create unique index chosen on gone (a)")
    database.execute("alter table gone replica identity using index chosen; drop index chosen")
    assert table_of(database, "late").key == ()
    assert table_of(database, "gone").key == ()


@pytest.mark.meets("R23c")
def test_the_leaves_of_a_partition_tree_are_found_at_every_level(database: Database) -> None:
    database.execute("create table p (a int, b int, primary key (a, b)) partition by list (a)")
    database.execute("create table p1 partition of p for values in (1)")
    database.execute("create table p2 partition of p for values in (2) partition by list (b)")
    database.execute("create table p2_1 partition of p2 for values in (1)")
    database.execute("create table p3 partition of p for values in (3)")
    database.execute("alter table p detach partition p3")
    database.execute("insert into p select 1, x from generate_series(1, 2000) x; analyze p1")
    table = table_of(database, "p")
    assert (table.kind, [leaf.table for leaf in table.leaves]) == ("p", ["p1", "p2_1"])
    assert len(table.tree) == 3
    first = table.leaves[0]
    assert first.filenode == database.value("select pg_relation_filenode('p1')")
    assert first.pages == database.value("select relpages from pg_class where relname = 'p1'") > 0
    assert first.identity_columns == first.primary_key == ("a", "b")
    assert table_of(database, "p1").partition


def test_a_table_without_partitions_is_its_own_leaf(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("create table child () inherits (t)")
    table = table_of(database, "t")
    assert [leaf.oid for leaf in table.leaves] == [table.oid]
    assert len(table.tree) == 1
    assert not table.partition


@pytest.mark.meets("R16")
def test_the_fingerprint_changes_with_the_columns_and_with_nothing_else(database: Database) -> None:
    database.execute("create table t (id int primary key, a varchar(5))")
    before = fingerprint(table_of(database, "t"))
    database.execute("insert into t values (1, 'x')")
    database.execute("create index on t (a)")
    database.execute("vacuum full t")
    database.execute("alter table t alter a set not null")
    assert fingerprint(table_of(database, "t")) == before
    seen = {before}
    for change in ("alter a type varchar(6)", "rename a to b", "add c int", "drop c, add c int"):
        database.execute(f"alter table t {change}")
        seen.add(fingerprint(table_of(database, "t")))
    assert len(seen) == 5


def test_looking_does_not_wait_for_somebody_who_alters_a_table(database: Database) -> None:
    database.execute("create table p (a int primary key) partition by list (a)")
    database.execute("create table p1 partition of p for values in (1)")
    other = database.connect(autocommit=False)
    other.execute("lock table p, p1 in access exclusive mode")
    connection = database.connect(options="-c lock_timeout=1")
    assert len(look_up(connection, ["p"])["p"].leaves) == 1


def test_looking_works_inside_a_transaction_and_leaves_it_open(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    connection = database.connect(autocommit=False)
    connection.execute("select 1")
    look_up(connection, ["t"])
    assert connection.info.transaction_status == connection.info.transaction_status.INTRANS


def test_a_published_column_that_is_gone_and_a_key_left_out_are_refused(database: Database) -> None:
    database.execute("create table t (id int primary key, a int)")
    table = table_of(database, "t")
    with pytest.raises(SchemaChanged):
        schema_of(table, ["id", "b"])
    with pytest.raises(NoIdentity):
        schema_of(table, ["a"])
