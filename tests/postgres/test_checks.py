"""Everything that keeps a server from being captured, on real servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.server import preflight
from headrace.capture.postgres.server.facts import notes_on, old_publication_cache, read_server
from headrace.capture.postgres.server.preflight import check, examine
from headrace.embedded.postgres import PostgresServer
from headrace.errors import (
    HeadraceError,
    NoRoom,
    NotPermitted,
    PublicationRefused,
    ServerRefused,
    SourceUnreachable,
    TableRefused,
)
from tests.postgres.servers import Database, fresh_database


def options_for(database: Database, **changes: Any) -> PostgresOptions:
    plain = PostgresOptions(
        name="shop", connection=database.dsn, slot=f"slot_{database.name}", publication="ours"
    )
    return replace(plain, **changes)


def found(database: Database, *tables: str, user: str = "postgres", **changes: Any) -> list[Any]:
    return check(database.connect(user), options_for(database, **changes), tables)


def remedies(problems: list[HeadraceError]) -> list[str]:
    return [problem.remedy for problem in problems]


def test_a_server_that_is_set_up_gives_no_problem(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    assert found(database, "t") == []


def test_the_checks_change_nothing(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    connection = database.connect(options="-c default_transaction_read_only=on")
    before = database.value("select pg_current_snapshot()::text")
    assert check(connection, options_for(database), ["t", "missing"])
    assert database.value("select pg_current_snapshot()::text") == before
    assert database.value("select count(*) from pg_publication") == 0


@pytest.mark.meets("PG-02", "PG-24")
def test_all_problems_are_gathered(database: Database) -> None:
    database.execute("create table keyless (id int); create unlogged table u (id int primary key)")
    problems = found(database, "keyless", "u", "missing", "no name", failover=True)
    assert [
        type(problem).__name__ for problem in problems if problem.code != ServerRefused.code
    ] == [
        "TableRefused",
        "TableRefused",
        "NoIdentity",
        "TableRefused",
    ]


def test_a_connection_that_is_lost_is_one_more_problem(database: Database) -> None:
    connection = database.connect()
    database.execute("select pg_terminate_backend(%s)", connection.info.backend_pid)
    [problem] = check(connection, options_for(database), [])
    assert isinstance(problem, SourceUnreachable)


@pytest.mark.parametrize(("oldest", "newest"), [(97, 99), (1, 9)])
def test_another_version_is_refused_without_a_query(
    database: Database, monkeypatch: pytest.MonkeyPatch, oldest: int, newest: int
) -> None:
    monkeypatch.setattr(preflight, "OLDEST", oldest)
    monkeypatch.setattr(preflight, "NEWEST", newest)
    report = examine(database.connect(), options_for(database), ["t"])
    assert [type(problem) for problem in report.problems] == [ServerRefused]
    assert report.server is None


@pytest.mark.parametrize(
    "own_server",
    [{"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"}],
    indirect=True,
)
def test_a_server_without_logical_wal_or_room_is_refused(own_server: PostgresServer) -> None:
    with fresh_database(own_server) as database:
        [level] = found(database)
        assert isinstance(level, ServerRefused)
        assert level.remedy == "ALTER SYSTEM SET wal_level = 'logical'; then restart the server."
        database.execute("select pg_create_physical_replication_slot('other')")
        [_, slots] = found(database)
        assert isinstance(slots, NoRoom)
        assert slots.facts["unread"] == ["other"]
        assert "max_replication_slots = 5; then restart the server" in slots.remedy
        assert [type(each) for each in found(database, slot="other")] == [ServerRefused]
        assert len(found(database, slot="other", slot_mode="ephemeral")) == 2
        with psycopg.connect(database.dsn, replication="yes", autocommit=True):
            [_, _, senders] = found(database)
            assert isinstance(senders, NoRoom)
            assert "max_wal_senders = 5" in senders.remedy
        database.execute("select pg_drop_replication_slot('other')")


def test_a_role_without_rights_is_told_each_statement_it_needs(database: Database) -> None:
    role = database.role("login")
    database.execute('create schema "Odd"; create table "Odd".t (id int primary key)')
    wanted = '"Odd".t'
    problems = found(database, wanted, user=role)
    assert {type(problem) for problem in problems} == {NotPermitted}
    assert remedies(problems) == [
        f'ALTER ROLE "{role}" REPLICATION;',
        f'GRANT CREATE ON DATABASE "{database.name}" TO "{role}";',
        f'GRANT USAGE ON SCHEMA "Odd" TO "{role}";',
        f'GRANT SELECT ON "Odd"."t" TO "{role}";',
        f'GRANT "postgres" TO "{role}"; or let the owner create the publication,'
        " and set publication.create to false (in Python: create_publication=False).",
    ]
    for problem in problems[:-1]:
        database.execute(problem.remedy)
    database.execute(f'alter table "Odd".t owner to {role}')
    assert found(database, wanted, user=role) == []
    database.execute(f"drop owned by {role} cascade")


def test_a_role_that_reads_a_publication_made_for_it_needs_less(database: Database) -> None:
    role = database.role("login replication")
    database.execute("create table t (id int primary key)")
    [missing] = found(database, create_publication=False)
    assert isinstance(missing, PublicationRefused)
    database.execute("create publication ours for table t")
    database.execute(f"grant select on t to {role}")
    assert found(database, "t", user=role, create_publication=False) == []
    [owner] = found(database, "t", user=role)
    assert owner.remedy == f'ALTER PUBLICATION "ours" OWNER TO "{role}";'
    database.execute(f"drop owned by {role}")


def test_a_member_of_the_role_of_a_managed_service_may_replicate(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = database.role("nologin")
    role = database.role(f"login in role {managed}")
    connection = database.connect(role)
    assert not read_server(connection, "", "").replicates
    monkeypatch.setattr("headrace.capture.postgres.server.facts.REPLICATING_ROLES", (managed,))
    assert read_server(connection, "", "").replicates


def test_a_right_on_columns_does_not_do_since_the_copy_goes_by_ctid(database: Database) -> None:
    role = database.role("login replication")
    database.execute("create table t (id int primary key)")
    database.execute("create publication ours for table t")
    database.execute(f"grant select (id) on t to {role}")
    [problem] = found(database, "t", user=role, create_publication=False)
    assert problem.remedy == f'GRANT SELECT ON "public"."t" TO "{role}";'
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.connect(role).execute("select id from t where ctid >= '(0,0)'")
    database.execute(f"drop owned by {role}")


def test_every_partition_must_be_readable_by_itself(database: Database) -> None:
    role = database.role("login replication")
    database.execute("create table t (id int primary key) partition by list (id)")
    database.execute("create table t1 partition of t for values in (1)")
    database.execute("create publication ours for table t")
    database.execute(f"grant select on t to {role}")
    [problem] = found(database, "t", user=role, create_publication=False)
    assert problem.remedy == f'GRANT SELECT ON "public"."t1" TO "{role}";'
    database.execute(f"drop owned by {role}")


def test_row_security_that_would_hide_rows_is_refused(database: Database) -> None:
    role = database.role("login replication")
    database.execute("create table t (id int primary key)")
    database.execute("alter table t enable row level security")
    database.execute("create publication ours for table t")
    database.execute(f"grant select on t to {role}")
    [problem] = found(database, "t", user=role, create_publication=False)
    assert problem.remedy == f'ALTER ROLE "{role}" BYPASSRLS;'
    database.execute(f"alter table t owner to {role}")
    assert found(database, "t", user=role, create_publication=False) == []
    database.execute("alter table t force row level security")
    [problem] = found(database, "t", user=role, create_publication=False)
    assert problem.remedy == 'ALTER TABLE "public"."t" NO FORCE ROW LEVEL SECURITY;'
    database.execute(f"drop owned by {role} cascade")


@pytest.mark.meets("R23a", "R23e")
@pytest.mark.parametrize(
    ("made", "name", "message"),
    [
        ("create view x as select 1 as id", "x", "a view"),
        ("create materialized view x as select 1 as id", "x", "a materialised view"),
        ("create sequence x", "x", "a sequence"),
        ("create type x as (id int)", "x", "a composite type"),
        ("create table y (id int); create index x on y (id)", "x", "an index"),
        ("create unlogged table x (id int primary key)", "x", "unlogged"),
        ("select 1", "pg_catalog.pg_class", "a system table"),
        ("create table x (); alter table x replica identity full", "x", "no columns"),
        ("create table x (id int primary key); create table y () inherits (x)", "x", "inherit"),
        (
            "create foreign data wrapper w; create server s foreign data wrapper w;"
            " create foreign table x (id int) server s",
            "x",
            "a foreign table",
        ),
        (
            "create foreign data wrapper w; create server s foreign data wrapper w;"
            " create table x (id int) partition by list (id);"
            " create foreign table y partition of x for values in (1) server s",
            "x",
            "Partitions are foreign tables",
        ),
        (
            "create table x (id int primary key) partition by list (id);"
            " create unlogged table y partition of x for values in (1)",
            "x",
            "Partitions are unlogged",
        ),
    ],
)
def test_what_is_not_logged_is_refused(
    database: Database, made: str, name: str, message: str
) -> None:
    database.execute(made)
    problems = found(database, name, publish=("insert",))
    assert [type(problem) for problem in problems] == [TableRefused]
    assert message in problems[0].message


def test_a_temporary_table_is_refused(database: Database) -> None:
    connection = database.connect()
    connection.execute("create temporary table x (id int primary key)")
    [(schema,)] = connection.execute(
        "select nspname from pg_namespace where oid = pg_my_temp_schema()"
    ).fetchall()
    [problem] = check(connection, options_for(database), [f"{schema}.x"])
    assert "temporary" in problem.message


def test_an_unlogged_table_is_mended_by_its_remedy(database: Database) -> None:
    database.execute('create unlogged table "X y" (id int primary key)')
    [problem] = found(database, '"X y"')
    database.execute(problem.remedy)
    assert found(database, '"X y"') == []


def test_a_partition_beside_its_root_is_refused_since_it_would_get_nothing(
    database: Database,
) -> None:
    database.execute("create table t (id int primary key) partition by list (id)")
    database.execute("create table t1 partition of t for values in (1)")
    [problem] = found(database, "t", "t1")
    assert (problem.facts["table"], problem.facts["other"]) == ("t1", "t")
    assert found(database, "t1") == []


def test_failover_needs_a_server_that_has_it(database: Database) -> None:
    version = database.connect().info.server_version
    assert len(found(database, failover=True)) == (0 if version >= 170000 else 1)


@pytest.mark.meets("R13")
@pytest.mark.parametrize(
    ("version", "old"),
    [
        (140017, True),
        (140018, False),
        (150012, True),
        (150013, False),
        (160008, True),
        (160009, False),
        (170004, True),
        (170005, False),
        (180000, False),
    ],
)
def test_releases_that_may_forget_a_new_table_are_known(version: int, old: bool) -> None:
    assert old_publication_cache(version) == old


@pytest.mark.meets("R21")
def test_tables_whose_values_may_come_unsent_are_named_where_nobody_keeps_them(
    database: Database,
) -> None:
    database.execute("create table long_ones (id bigint primary key, note text)")
    database.execute("create table whole_ones (id bigint primary key, note text)")
    database.execute("alter table whole_ones replica identity full")
    for store, named in ((True, 0), (False, 1)):
        options = options_for(database, toast_store=store)
        report = examine(database.connect(), options, ["long_ones", "whole_ones"])
        notes = [note for note in report.notes if note.setting == "toast_store"]
        assert len(notes) == named
        assert all("long_ones" in note.message and "note" in note.message for note in notes)


def test_settings_that_matter_are_noted(database: Database) -> None:
    report = examine(database.connect(), options_for(database, publish=("insert",)), [])
    noted = {note.setting: note for note in report.notes}
    assert noted["max_slot_wal_keep_size"].value == "-1"
    assert "publish" in noted
    assert report.server is not None
    changed = replace(
        report.server,
        settings={
            **report.server.settings,
            "wal_sender_timeout": "0",
            "max_slot_wal_keep_size": "100",
            "idle_replication_slot_timeout": "60",
            "statement_timeout": "5000",
        },
    )
    settings = {note.setting for note in notes_on(changed, options_for(database))}
    assert settings >= {"wal_sender_timeout", "idle_replication_slot_timeout", "statement_timeout"}


@pytest.mark.meets("R35")
def test_what_a_failover_needs_is_noted_as_far_as_a_primary_sees_it(database: Database) -> None:
    server = read_server(database.connect(), "", "")
    options = options_for(database, failover=True)

    def noted(standbys: list[str], feedback: list[str], named: str) -> dict[str, str]:
        seen = replace(
            server,
            settings={**server.settings, "synchronized_standby_slots": named},
            standby_slots=standbys,
            feedback_slots=feedback,
        )
        return {note.setting: note.remedy for note in notes_on(seen, options)}

    nothing = noted([], [], "")
    assert {"synchronized_standby_slots", "hot_standby_feedback"} <= set(nothing)
    followed = noted(["one"], ["one"], "")
    assert "synchronized_standby_slots = 'one'" in followed["synchronized_standby_slots"]
    assert "hot_standby_feedback" not in followed
    assert "sync_replication_slots" in followed
    ready = noted(["one"], ["one"], '"one"')
    assert "synchronized_standby_slots" not in ready
    gone = noted(["one"], ["one"], "one, two")
    assert "'one'" in gone["synchronized_standby_slots"]
    # In the order of the setting, in every process.
    names = [f"standby_{number}" for number in range(9, 0, -1)]
    several = noted(names, names, ", ".join([*names, "gone"]))["synchronized_standby_slots"]
    assert f"'{','.join(names)}'" in several


def test_a_standby_is_refused_where_it_cannot_be_read_or_published_from(database: Database) -> None:
    primary = read_server(database.connect(), "", "")

    def problems(version: int, **changes: Any) -> list[HeadraceError]:
        standby = replace(primary, standby=True, version=version)
        return list(preflight._setting_problems(standby, options_for(database, **changes)))

    assert [type(each) for each in problems(150000)] == [ServerRefused]
    [publication] = problems(160000)
    assert "CREATE PUBLICATION" in publication.remedy
    assert problems(160000, create_publication=False) == []
