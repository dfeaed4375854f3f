"""A server looked at by `headrace init` and `headrace doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.capture.postgres.definition import postgres
from headrace.capture.registry import findings
from headrace.cli.main import exit_code
from tests.postgres.servers import Database


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Database) -> Path:
    monkeypatch.chdir(tmp_path)
    database.execute("create schema sales")
    database.execute("create table orders (id bigint primary key, total numeric(12,2))")
    database.execute("create table sales.visits (id bigint primary key, at timestamptz)")
    database.execute("create unlogged table scratch (id bigint primary key)")
    return tmp_path


def test_a_server_becomes_a_configuration_without_its_password(
    folder: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    port = database.server.port
    url = f"postgresql://postgres:s3cr%40t@127.0.0.1:{port}/{database.name}"
    assert exit_code(["init", url]) == 0
    told = capsys.readouterr()
    text = (folder / "headrace.conf").read_text()
    assert "s3cr" not in text + told.out + told.err
    variable = f"{database.name.upper()}_PASSWORD"
    assert f'password_ref = "env:{variable}"' in text
    assert f"export {variable}=" in told.err
    assert "tables = [orders]" in text
    assert 'tables = ["sales.visits"]' in text
    assert "scratch" not in text
    assert database.rows(
        "select count(*) from pg_replication_slots where database = current_database()"
    ) == [(0,)]
    assert database.rows("select count(*) from pg_publication") == [(0,)]


def test_a_server_that_is_not_there_is_not_reachable(folder: Path) -> None:
    assert exit_code(["init", "postgresql://me@127.0.0.1:1/none?connect_timeout=2"]) == 4
    assert not (folder / "headrace.conf").exists()


def test_what_an_engine_left_behind_is_found_and_named(
    folder: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"headrace_gone_{database.name}"
    database.execute(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    database.execute("create publication left_pub for table orders")
    database.execute("comment on publication left_pub is 'headrace: gone, slot headrace_gone_x'")
    try:
        found = findings(postgres(database.dsn, name="shop"), ["orders"], "shop@here")
        named = {each.about: each for each in found}
        assert "pg_drop_replication_slot" in named[name].remedy
        assert 'drop publication "left_pub"' in named["left_pub"].remedy
        assert named["max_slot_wal_keep_size"].says
        exit_code(["init", database.dsn])
        capsys.readouterr()
        assert exit_code(["doctor", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["results"]
        assert any(name in each["says"] for each in told)
    finally:
        database.execute(f"select pg_drop_replication_slot('{name}')")
