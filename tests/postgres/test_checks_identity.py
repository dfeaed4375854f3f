"""Nothing we set up may make a statement of the application fail: compared with the server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.options import PostgresOptions, TableOptions, listed
from headrace.capture.postgres.server.catalog import look_up
from headrace.capture.postgres.server.preflight import (
    PublicationScope,
    check,
    filter_problems,
    list_problems,
)
from headrace.errors import HeadraceError, NoIdentity, ServerRefused
from tests.postgres.servers import Database

ALL = ("insert", "update", "delete", "truncate")


@dataclass(frozen=True)
class Case:
    made: tuple[str, ...]
    options: TableOptions = field(default_factory=TableOptions)
    publish: tuple[str, ...] = ALL
    since: int = 14
    insert: str = "insert into t (id, a) values (1, 1), (11, 11)"


def case(*made: str, where: str = "", columns: tuple[str, ...] = (), **facts: Any) -> Case:
    return Case(made, TableOptions(columns, where), **facts)


KEYED = "create table t (id int primary key, a int)"
KEYLESS = "create table t (id int not null, a int)"
FULL = "alter table t replica identity full"
PARTITIONED = (
    "create table t (id int primary key, a int) partition by range (id)",
    "create table t1 partition of t for values from (0) to (10)",
    "create table t2 partition of t for values from (10) to (20)",
)
LIST: dict[str, Any] = {"columns": ("id",), "since": 15}
STORED = "create table t (id int primary key, a int, b int generated always as (a * 2) stored)"
VIRTUAL = "create table t (id int primary key, a int, b int generated always as (a * 2) virtual)"

CASES = {
    "a primary key": case(KEYED),
    "no key": case(KEYLESS),
    "no key, inserts only": case(KEYLESS, publish=("insert",)),
    "no key, inserts and truncates": case(KEYLESS, publish=("insert", "truncate")),
    "no key, updates": case(KEYLESS, publish=("insert", "update")),
    "no key, deletes": case(KEYLESS, publish=("delete",)),
    "nothing": case(KEYED, "alter table t replica identity nothing"),
    "full": case(KEYED, FULL),
    "a deferrable key": case("create table t (id int primary key deferrable, a int)"),
    "a deferrable key, full": case("create table t (id int primary key deferrable, a int)", FULL),
    "an index": case(
        KEYLESS, "create unique index i on t (id)", "alter table t replica identity using index i"
    ),
    "an index that is gone": case(
        KEYED,
        "alter table t alter a set not null",
        "create unique index i on t (a)",
        "alter table t replica identity using index i",
        "drop index i",
    ),
    "a list with the key": case(KEYED, **LIST),
    "a list without the key": case(KEYED, columns=("a",), since=15),
    "a list under full": case(KEYED, FULL, columns=("id", "a"), since=15),
    "a list under full, inserts only": case(KEYED, FULL, publish=("insert",), **LIST),
    "a filter on the key": case(KEYED, where="id > 3 and t.id < 7", since=15),
    "a filter on another column": case(KEYED, where="a > 3", since=15),
    "a filter on another column, inserts only": case(
        KEYED, where="a > 3", publish=("insert",), since=15
    ),
    "a filter on another column under full": case(KEYED, FULL, where="a > 3", since=15),
    "a filter on an index's column": case(
        "create table t (id int primary key, a int not null, b text)",
        "create unique index i on t (a)",
        "alter table t replica identity using index i",
        where="a > 3",
        since=15,
    ),
    "a stored column": case(STORED),
    "a stored column under full": case(STORED, FULL),
    "a virtual column": case(VIRTUAL, since=18),
    "a virtual column under full": case(VIRTUAL, FULL, since=18),
    "a virtual column under full, inserts only": case(VIRTUAL, FULL, publish=("insert",), since=18),
    "a stored column in the key": case(
        "create table t (a int, id int generated always as (a * 2) stored primary key)",
        since=18,
        insert="insert into t (a) values (1)",
    ),
    "partitions": case(*PARTITIONED),
    "a partition with nothing": case(*PARTITIONED, "alter table t1 replica identity nothing"),
    "a partition with full": case(*PARTITIONED, "alter table t1 replica identity full"),
    "full for all partitions": case(
        *PARTITIONED, FULL, *(f"alter table t{n} replica identity full" for n in (1, 2))
    ),
    "a partition with full, and a list": case(
        *PARTITIONED, "alter table t1 replica identity full", **LIST
    ),
    "a partition with full, and a filter on another column": case(
        *PARTITIONED, "alter table t1 replica identity full", where="a > 3", since=15
    ),
    "partitions, and a filter on the key": case(*PARTITIONED, where="id > 3", since=15),
}


def found(database: Database, case: Case) -> list[HeadraceError]:
    options = PostgresOptions(
        name="shop",
        connection=database.dsn,
        slot=f"slot_{database.name}",
        publication="ours",
        publish=case.publish,
        tables={"t": case.options},
    )
    return check(database.connect(), options, ["t"])


def publish(database: Database, case: Case) -> None:
    columns = f" ({listed(case.options.columns)})" if case.options.columns else ""
    where = f" where ({case.options.where})" if case.options.where else ""
    database.execute(
        f"create publication ours for table t{columns}{where}"
        f" with (publish = '{', '.join(case.publish)}', publish_via_partition_root = true)"
    )


def application_fails(database: Database, case: Case) -> bool:
    """Do what an application does, and tell whether the server refused it."""
    database.execute(case.insert)
    try:
        database.execute("update t set a = a + 100")
        database.execute("delete from t")
    except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InvalidColumnReference):
        return True
    return False


@pytest.mark.meets("R23a")
@pytest.mark.parametrize("name", CASES)
def test_the_checks_refuse_what_the_server_would_refuse_the_application_and_mend_it(
    database: Database, name: str
) -> None:
    case = CASES[name]
    if database.connect().info.server_version // 10000 < case.since:
        pytest.skip(f"needs PostgreSQL {case.since}")
    for statement in case.made:
        database.execute(statement)
    problems = found(database, case)
    assert {type(problem) for problem in problems} <= {NoIdentity}
    publish(database, case)
    assert bool(problems) == application_fails(database, case), problems

    for problem in problems:
        _, ran, statements = problem.remedy.rpartition("run: ")
        if ran or statements.startswith("ALTER"):
            database.execute(statements.replace("(…)", "(id)"))
    left = found(database, case)
    # The others ask for something else to be published.
    assert all(
        re.search("column list leaves|row filter|The key has", str(each)) for each in left
    ), left
    database.execute("drop publication ours; truncate t")
    publish(database, case)
    assert bool(left) == application_fails(database, case), left


@pytest.mark.meets("R23")
def test_full_without_a_primary_key_is_refused_because_rows_cannot_be_told_apart(
    database: Database,
) -> None:
    database.execute(KEYLESS)
    database.execute(FULL)
    [problem] = found(database, case())
    assert isinstance(problem, NoIdentity)
    assert problem.remedy == 'ALTER TABLE "public"."t" ADD PRIMARY KEY (…);'
    database.execute("create unique index i on t (id)")
    [problem] = found(database, case())
    assert problem.remedy == 'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "i";'


@pytest.mark.meets("R23a")
def test_full_on_the_root_alone_is_refused_because_old_rows_would_have_false_nulls(
    database: Database,
) -> None:
    for statement in (*PARTITIONED, FULL):
        database.execute(statement)
    [problem] = found(database, case())
    assert isinstance(problem, NoIdentity)
    assert problem.facts == {"table": "t", "partitions": 2}
    assert problem.remedy == (
        'ALTER TABLE "public"."t1" REPLICA IDENTITY FULL;'
        ' ALTER TABLE "public"."t2" REPLICA IDENTITY FULL;'
    )


@pytest.mark.meets("R23")
def test_a_partition_whose_deletes_carry_another_key_is_refused(database: Database) -> None:
    for statement in (
        *PARTITIONED,
        "alter table t2 alter a set not null",
        "create unique index i on t2 (a)",
        "alter table t2 replica identity using index i",
    ):
        database.execute(statement)
    [problem] = found(database, case())
    assert isinstance(problem, NoIdentity)
    assert problem.remedy == 'ALTER TABLE "public"."t2" REPLICA IDENTITY DEFAULT;'


def test_a_generated_column_in_the_key_is_refused_on_every_version(database: Database) -> None:
    database.execute(
        "create table t (a int, id int generated always as (a * 2) stored primary key)"
    )
    assert [type(problem) for problem in found(database, case())] == [NoIdentity]


@pytest.mark.meets("R23a")
def test_a_stored_column_under_full_is_taken_where_it_is_published(database: Database) -> None:
    connection = database.connect()
    if connection.info.server_version < 180000:
        pytest.skip("generated columns are published from PostgreSQL 18 on")
    for statement in (STORED, FULL):
        database.execute(statement)
    options = PostgresOptions(
        "shop", database.dsn, slot=f"slot_{database.name}", publication="ours"
    )
    assert check(connection, options, ["t"], generated=True) == []
    database.execute(
        "create publication ours for table t with (publish_generated_columns = stored)"
    )
    assert not application_fails(database, case())


def test_lists_and_filters_are_refused_on_a_server_that_has_none(database: Database) -> None:
    database.execute(KEYED)
    connection = database.connect()
    [table] = look_up(connection, ["t"]).values()
    asked = PublicationScope(TableOptions(("id",), "id > 3"), ALL, version=140024)
    problems = [*list_problems(table, asked), *filter_problems(connection, table, asked)]
    assert [type(problem) for problem in problems] == [ServerRefused, ServerRefused]
