"""Row filters and lists of columns, before anything is published."""

from __future__ import annotations

import pytest

from headrace.capture.postgres.options import PostgresOptions, TableOptions
from headrace.capture.postgres.server.preflight import check
from headrace.errors import HeadraceError, NoIdentity, SourceUnreachable, TableRefused
from tests.postgres.servers import Database


@pytest.fixture(autouse=True)
def table(database: Database) -> None:
    if database.connect().info.server_version < 150000:
        pytest.skip("filters and lists came with PostgreSQL 15")
    database.execute('create table "T.x" (id int, "B c" text, a int, primary key (id, "B c"))')
    database.execute("create table kept (id int primary key)")


def found(
    database: Database, where: str = "", columns: tuple[str, ...] = ()
) -> list[HeadraceError]:
    options = PostgresOptions(
        name="shop",
        connection=database.dsn,
        slot=f"slot_{database.name}",
        publication="ours",
        tables={'"T.x"': TableOptions(columns, where)},
    )
    connection = database.connect()
    problems = check(connection, options, ['"T.x"'])
    assert connection.info.transaction_status == connection.info.transaction_status.IDLE
    return problems


@pytest.mark.parametrize(
    "where",
    [
        "id > 3",
        "id > 3 -- as a comment",
        '"B c" = \'a ) b\' or ("T.x".id in (1, 2))',
        'id is not null and length("B c") > 2',
        "case when id > 1 then true else \"B c\" = '%s {} $1' end",
    ],
)
def test_a_filter_over_the_identity_is_taken(database: Database, where: str) -> None:
    assert found(database, where) == []


@pytest.mark.meets("R23a")
@pytest.mark.parametrize("where", ["a > 1", 'id > 1 or "T.x".a = 2', "coalesce(a, id) = 1"])
def test_a_filter_beyond_the_identity_is_refused(database: Database, where: str) -> None:
    [problem] = found(database, where)
    assert isinstance(problem, NoIdentity)
    assert problem.facts["identity"] == '"id", "B c"'


@pytest.mark.parametrize(
    "where",
    [
        "nothing = 1",
        "id",
        "id >",
        "id = $1",
        "true) or (true",
        "true); drop table kept; --",
        "true), table kept where (true",
        "true /*",
        "select true",
        "true then 1 when false",
        "id = 1 limit 1",
        "sum(id) > 1",
    ],
)
def test_what_is_no_condition_is_refused_and_nothing_runs(database: Database, where: str) -> None:
    [problem] = found(database, where)
    assert isinstance(problem, TableRefused)
    assert not isinstance(problem, NoIdentity)
    assert database.value("select count(*) from kept") == 0


def test_a_filter_is_never_run(database: Database) -> None:
    assert found(database, "1 / 0 = id") == []


def test_a_locked_table_does_not_make_the_checks_wait_for_ever(database: Database) -> None:
    other = database.connect(autocommit=False)
    other.execute('lock table "T.x" in access exclusive mode')
    [problem] = found(database, "id > 3")
    assert isinstance(problem, SourceUnreachable)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("id", "B c", "b c"), "no such columns"),
        (("id", "B c", "a", "a"), "listed more than once"),
        (("id", "a"), "leaves out columns of the replica identity"),
    ],
)
def test_a_list_of_columns_must_fit(
    database: Database, columns: tuple[str, ...], message: str
) -> None:
    [problem] = found(database, columns=columns)
    assert message in problem.message


def test_a_generated_column_in_a_list_needs_a_server_that_publishes_it(database: Database) -> None:
    database.execute('alter table "T.x" add g int generated always as (a * 2) stored')
    problems = found(database, columns=("id", "B c", "g"))
    expected = 0 if database.connect().info.server_version >= 180000 else 1
    assert len(problems) == expected
