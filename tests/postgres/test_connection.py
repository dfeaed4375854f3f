"""Connections have our settings, keep their secrets, and fail with an error that says why."""

from __future__ import annotations

import socket
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres import connection as connections
from headrace.capture.postgres.connection import LATER_SETTINGS, connect, speaking, translated
from headrace.capture.postgres.options import PostgresOptions
from headrace.embedded.postgres import PostgresServer
from headrace.errors import (
    CaptureError,
    HeadraceError,
    NoRoom,
    NotPermitted,
    SchemaChanged,
    ServerRefused,
    SlotBusy,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)
from tests.postgres.servers import Database, wait_until

SECRET = "open-sesame-4711"


@pytest.fixture
def options(database: Database) -> PostgresOptions:
    return PostgresOptions(name="shop", connection=database.dsn)


@pytest.fixture
def guarded(server: PostgresServer, database: Database) -> Iterator[PostgresOptions]:
    """A server that asks one role for its password."""
    role = database.role(f"login password '{SECRET}'")
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
    server.reload()
    options = PostgresOptions(name="shop", connection=database.dsn_as(role))
    try:
        wait_until(lambda: is_asked_for_a_password(options))
        yield options
    finally:
        rules.write_text(before)
        server.reload()


def is_asked_for_a_password(options: PostgresOptions) -> bool:
    try:
        connect(options).close()
    except SourceRefused:
        return True
    return False


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., object]], str]:
    """Make a function importable; return how `before_connect` names it."""

    def importable(function: Callable[..., object]) -> str:
        module = types.ModuleType("tokens_of_a_test")
        module.__dict__["token"] = function
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return f"{module.__name__}:token"

    return importable


def all_text(error: BaseException) -> str:
    """Return everything that is ever printed of an error."""
    facts = getattr(error, "facts", {})
    return f"{error!r}{facts}{''.join(traceback.format_exception(error))}"


@pytest.mark.meets("R18", "R14")
@pytest.mark.parametrize("replication", [False, True], ids=["plain", "replication"])
def test_every_session_has_our_settings_whatever_the_role_says(
    database: Database, replication: bool
) -> None:
    role = database.role("login replication")
    for setting in (
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'iso_8601'",
        "timezone = 'Asia/Tokyo'",
        "extra_float_digits = 0",
        "bytea_output = 'escape'",
        "search_path = 'public'",
        "statement_timeout = 1000",
        "idle_in_transaction_session_timeout = 1000",
        "idle_session_timeout = 1000",
    ):
        database.execute(f"alter role {role} set {setting}")
    options = PostgresOptions(name="shop", connection=database.dsn_as(role))
    expected = {
        "client_encoding": "UTF8",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "extra_float_digits": "3",
        "bytea_output": "hex",
        "lc_monetary": "C",
        "search_path": "pg_catalog",
        "row_security": "off",
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "idle_session_timeout": "0",
        "application_name": "headrace",
    }
    with connect(options, replication=replication) as connection:
        version = connection.info.server_version
        for name in LATER_SETTINGS:
            if version >= LATER_SETTINGS[name]:
                expected[name] = "0"
        rows = connection.execute("select name, setting from pg_settings").fetchall()
        found: dict[str, str] = dict(rows)
        assert {name: found[name] for name in expected} == expected
        assert found["DateStyle"].startswith("ISO")


def test_the_users_own_settings_are_kept_where_they_do_not_matter_to_texts(
    database: Database,
) -> None:
    string = f"{database.dsn} connect_timeout=3 options='-c work_mem=7MB -c timezone=Asia/Tokyo'"
    with connect(PostgresOptions(name="shop", connection=string)) as connection:
        shown = connection.execute(
            "select current_setting('work_mem'), current_setting('TimeZone')"
        )
        assert shown.fetchone() == ("7MB", "UTC")
        assert connection.info.get_parameters()["connect_timeout"] == "3"


def test_an_application_name_always_begins_with_ours(options: PostgresOptions) -> None:
    for asked, given in (("headrace shop", "headrace shop"), ("holder", "headrace holder")):
        with connect(options, application=asked) as connection:
            shown = connection.execute("select current_setting('application_name')").fetchone()
            assert shown == (given,)


def test_a_connection_without_autocommit_begins_outside_a_transaction(
    options: PostgresOptions,
) -> None:
    with connect(options, autocommit=False) as connection:
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_parameters_go_into_statements_on_a_replication_connection(
    options: PostgresOptions,
) -> None:
    with connect(options, replication=True) as connection:
        for number in range(10):
            found = connection.execute("select %s::int, %s", [number, "it's"]).fetchone()
            assert found == (number, "it's")


def test_one_of_several_hosts_can_be_chosen(server: PostgresServer, database: Database) -> None:
    several = database.dsn.replace("host=127.0.0.1", "host=nowhere.invalid,elsewhere.invalid")
    options = PostgresOptions(name="shop", connection=several)
    with connect(options, host="127.0.0.1", port=server.port) as connection:
        assert connection.info.host == "127.0.0.1"


def test_a_password_is_read_at_every_connect(
    guarded: PostgresOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    by_file = replace(guarded, password_ref=f"file:{file}")
    file.write_text("wrong\n")
    with pytest.raises(SourceRefused, match="Authentication failed"):
        connect(by_file)
    file.write_text(f"{SECRET}\n")
    connect(by_file).close()
    monkeypatch.setenv("PASSWORD_OF_SHOP", SECRET)
    connect(replace(guarded, password_ref="env:PASSWORD_OF_SHOP")).close()


def test_a_hook_gives_the_password_of_the_moment(
    guarded: PostgresOptions, hook: Callable[[Callable[..., object]], str]
) -> None:
    asked = []

    def token(parameters: dict[str, str]) -> dict[str, str]:
        asked.append(parameters["user"])
        return {"password": SECRET}

    options = replace(guarded, before_connect=hook(token))
    connect(options).close()
    connect(options, replication=False).close()
    assert len(asked) == 2


def test_what_a_hook_raises_or_returns_is_not_shown(
    options: PostgresOptions, hook: Callable[[Callable[..., object]], str]
) -> None:
    def fails(parameters: object) -> object:
        raise RuntimeError(SECRET)

    with pytest.raises(SourceUnreachable) as failed:
        connect(replace(options, before_connect=hook(fails)))
    with pytest.raises(SourceRefused) as wrong:
        connect(replace(options, before_connect=hook(lambda parameters: SECRET)))
    with pytest.raises(SourceRefused) as missing:
        connect(replace(options, before_connect="not_there_at_all:token"))
    for caught in (failed, wrong, missing):
        assert SECRET not in all_text(caught.value)


@pytest.mark.parametrize("reference", ["env:NOT_SET_AT_ALL", "file:/not/there", SECRET])
def test_a_reference_that_leads_nowhere_is_refused(
    options: PostgresOptions, reference: str
) -> None:
    with pytest.raises(SourceRefused) as caught:
        connect(replace(options, password_ref=reference))
    assert SECRET not in all_text(caught.value)


def test_a_secret_is_in_no_error_and_no_repr(
    guarded: PostgresOptions, server: PostgresServer
) -> None:
    there = f"127.0.0.1:{server.port}"
    strings = {
        f"{guarded.connection} password={SECRET}x": SourceRefused,
        f"{guarded.connection} pasword={SECRET}": SourceRefused,
        f"{guarded.connection} {SECRET}": SourceRefused,
        f"postgresql://postgres:{SECRET}@{there}/{SECRET[:0]}nothing": SourceRefused,
        f"postgresql://postgres:{SECRET}@no-such-host.invalid/shop": SourceUnreachable,
        f"postgresql://postgres:{SECRET}@127.0.0.1:1/shop": SourceUnreachable,
        f"postgresql://postgres:{SECRET}@{there}/postgres?sslmode=verify-full": SourceRefused,
        f"postgresql://postgres:{SECRET}@[::1": SourceRefused,
    }
    for string, kind in strings.items():
        options = replace(guarded, connection=string)
        assert SECRET not in repr(options)
        with pytest.raises(kind) as caught:
            connect(options)
        assert SECRET not in all_text(caught.value), string
        assert string not in all_text(caught.value)


def test_what_is_missing_is_said(database: Database, server: PostgresServer) -> None:
    def failing(string: str, *, replication: bool = False) -> HeadraceError:
        with pytest.raises(CaptureError) as caught:
            connect(PostgresOptions(name="shop", connection=string), replication=replication)
        return caught.value

    plain = database.role("login")
    away = failing(server.dsn.replace("dbname=postgres", "dbname=away"))
    assert "The database does not exist" in str(away)
    assert "The user does not exist" in str(failing(database.dsn_as("nobody_at_all")))
    refused = failing(database.dsn_as(plain), replication=True)
    assert isinstance(refused, NotPermitted)
    assert "REPLICATION" in refused.remedy
    encrypted = failing(f"{database.dsn} sslmode=require")
    assert isinstance(encrypted, SourceRefused)
    assert "encrypted connection" in str(encrypted)


@pytest.mark.slow
def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        string = f"host=127.0.0.1 port={port} user=a dbname=b connect_timeout=2 sslmode=disable"
        with pytest.raises(SourceUnreachable, match="in time"):
            connect(PostgresOptions(name="shop", connection=string))


def test_a_server_that_is_away_may_come_back(own_server: PostgresServer) -> None:
    options = PostgresOptions(name="shop", connection=own_server.dsn)
    own_server.stop()
    with pytest.raises(SourceUnreachable):
        connect(options)
    own_server.start()
    connect(options).close()


def test_a_connection_that_is_ended_is_unreachable(
    options: PostgresOptions, database: Database
) -> None:
    connection = connect(options)
    database.execute("select pg_terminate_backend(%s)", connection.info.backend_pid)
    for _ in range(2):  # told by the server at first, then by the socket
        with pytest.raises(SourceUnreachable), speaking(options):
            connection.execute("select 1")
    connection.close()


def test_a_query_without_an_answer_is_waited_for_once(
    options: PostgresOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.1)
    waits: list[float] = []
    limited = connections._limited

    def counted(gen: Any, until: float, *more: Any) -> Any:
        try:
            return (yield from limited(gen, until, *more))
        except SourceUnreachable:
            waits.append(until)
            raise

    monkeypatch.setattr(connections, "_limited", counted)
    connection = connect(options, timed=True)
    with (
        pytest.raises(SourceUnreachable, match="did not answer"),
        connection.pipeline(),
        connection.transaction(),
    ):
        connection.execute("select pg_sleep(10)").fetchall()
    assert len(waits) == 1
    assert connection.closed


def test_errors_of_statements_are_told_apart_and_show_no_values(
    options: PostgresOptions, database: Database
) -> None:
    database.execute("create table public.people (id int primary key, name text)")
    database.execute("insert into public.people values (4711, 'sesame')")
    role = database.role("login")
    with connect(replace(options, connection=database.dsn_as(role))) as connection:
        for statement, kind in (
            ("select * from public.nothing", TableRefused),
            ("select * from nowhere.people", TableRefused),
            ("select * from public.people", NotPermitted),
        ):
            with pytest.raises(kind), speaking(options):
                connection.execute(statement.encode())
    with connect(options) as connection:
        with pytest.raises(SchemaChanged), speaking(options):
            connection.execute("select nothing from public.people")
        with pytest.raises(CaptureError) as caught, speaking(options):
            connection.execute("insert into public.people values (4711, 'sesame')")
        assert caught.value.facts["sqlstate"] == "23505"
        assert "sesame" not in all_text(caught.value).replace(SECRET, "")
        assert "4711" not in "".join(str(caught.value))


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        (None, SourceUnreachable),
        ("57P01", SourceUnreachable),
        ("08006", SourceUnreachable),
        ("53300", SourceUnreachable),
        ("40P01", SourceUnreachable),
        ("53400", NoRoom),
        ("55006", SlotBusy),
        ("55000", ServerRefused),
        ("28P01", SourceRefused),
        ("3D000", SourceRefused),
        ("22012", CaptureError),
    ],
)
def test_a_sqlstate_has_one_meaning(sqlstate: str | None, kind: type[HeadraceError]) -> None:
    assert type(translated(sqlstate, source="shop")) is kind
