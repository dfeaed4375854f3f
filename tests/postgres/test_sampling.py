"""A few rows of a table are what a copy of it has of them, and the server stays as it was."""

from __future__ import annotations

import pytest

from headrace.capture.postgres.definition import postgres
from headrace.capture.registry import sample
from headrace.engine.preview import take_samples, try_rows
from headrace.errors import NotPermitted, TableRefused
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import drop, equals
from headrace.targets.memory import memory
from tests.postgres.copies import copy_of, sessions, values
from tests.postgres.servers import Database, wait_until
from tests.postgres.test_copying import with_every_type
from tests.support.arrow_runner import ArrowRunner

LEFT = """
select (select count(*) from pg_replication_slots where database = current_database()),
       (select count(*) from pg_publication),
       (select count(*) from pg_class where relnamespace = 'public'::regnamespace),
       (select count(*) from pg_trigger),
       pg_current_xact_id_if_assigned()
"""


@pytest.mark.meets("R18", "R23f")
def test_rows_of_every_type_are_those_of_a_copy(database: Database) -> None:
    with_every_type(database)

    copy = copy_of(database, "t")
    [batch] = list(copy)
    source = postgres(database.dsn)
    taken = sample(source, "t", 20)

    assert taken.schema == source.describe(["t"])["t"]
    assert taken.rows.schema.equals(batch.schema)
    # By their texts: a NaN equals nothing.
    assert repr(values(taken.schema, [taken.rows])) == repr(values(copy.schema, [batch]))
    assert copy.exact is not None
    assert taken.exact is not None
    assert taken.exact.to_pylist() == copy.exact.to_pylist()


def test_only_what_is_published_is_looked_at(database: Database) -> None:
    database.execute("create table t (id int primary key, n int, secret text)")
    database.execute("insert into t select g, g % 2, 'x' from generate_series(1, 100) g")
    asked = {"t": {"columns": ["id", "n"], "where": "n = 1"}}

    taken = sample(postgres(database.dsn, tables=asked), "t", 5)

    assert taken.schema.names == ("id", "n")
    assert taken.rows.to_pylist() == [{"id": at, "n": 1} for at in (1, 3, 5, 7, 9)]


def test_rows_of_partitions_are_the_tables_and_those_that_inherit_are_not(
    database: Database,
) -> None:
    database.execute("create table p (id int primary key, v text) partition by range (id)")
    database.execute("create table p1 (v text, id int not null)")
    database.execute("alter table p attach partition p1 for values from (1) to (9)")
    database.execute("insert into p values (1, 'a')")
    database.execute("create table parent (id int primary key)")
    database.execute("create table child () inherits (parent)")
    database.execute("insert into parent values (1)")
    database.execute("insert into child values (2)")
    source = postgres(database.dsn)

    assert sample(source, "p", 20).rows.to_pylist() == [{"id": 1, "v": "a"}]
    assert sample(source, "parent", 20).rows.to_pylist() == [{"id": 1}]


def test_a_table_without_rows_has_its_columns(database: Database) -> None:
    database.execute("create table t (id int primary key, v text)")

    taken = sample(postgres(database.dsn), "t", 20)

    assert (taken.rows.num_rows, taken.rows.schema) == (0, taken.schema.arrow)


def test_a_pipeline_is_tried_and_the_server_is_as_it_was(database: Database) -> None:
    database.execute("create table orders (id int primary key, status text, card text)")
    database.execute(
        "insert into orders values (1, 'paid', 'x'), (2, 'open', 'y'), (3, 'paid', 'z')"
    )
    before = database.rows(LEFT)
    asked = Pipeline(
        postgres(database.dsn),
        "orders",
        memory(),
        filters=[equals("status", "paid")],
        transforms=[drop("card")],
    )
    runner = ArrowRunner(fails=lambda _, row: "DIVIDE_BY_ZERO" if row["id"] == 3 else None)

    [found] = try_rows(asked, take_samples(asked, 20, "public.orders").tables, runner)

    assert [(row.row_after, row.failed) for row in found.rows] == [
        ({"id": 1, "status": "paid"}, None),
        (None, None),
        (None, "DIVIDE_BY_ZERO"),
    ]
    assert database.rows(LEFT) == before
    wait_until(lambda: sessions(database) == 0, what="sessions to end")


def test_what_keeps_rows_from_being_read_is_told(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    with pytest.raises(TableRefused, match="does not exist"):
        sample(postgres(database.dsn), "nobody", 20)
    with pytest.raises(NotPermitted):
        sample(postgres(database.dsn_as(database.role("login"))), "t", 20)
