"""A password that is replaced at the server before it is replaced where the source reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.capture.postgres.definition import postgres
from headrace.embedded.postgres import PostgresServer
from headrace.engine.engine import Engine
from headrace.errors import CredentialsRefused
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()


@pytest.fixture
def role(server: PostgresServer, database: Database) -> Iterator[str]:
    """A role that is asked for its password, which is `old`."""
    name = database.role("login superuser password 'old'")
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{before}")
    server.reload()
    yield name
    rules.write_text(before)
    server.reload()


@pytest.mark.parametrize("missing", [False, True], ids=["old", "missing"])
def test_a_source_goes_on_once_the_file_has_the_new_password(
    database: Database, role: str, tmp_path: Path, missing: bool
) -> None:
    database.execute("create table orders (id bigint primary key, value text)")
    file = tmp_path / "password"
    file.write_text("old")
    orders = memory()
    source = postgres(database.dsn_as(role), name="shop", password_ref=f"file:{file}")
    pipeline = Pipeline(source, "orders", orders, name="orders")
    with Engine(
        pipeline, data=tmp_path / "data", runner=ArrowRunner(), recorder="thread"
    ) as engine:
        assert engine.await_ready(PATIENCE)
        database.execute(f"alter role {role} password 'new'")
        if missing:
            file.unlink()
        database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", role
        )
        database.execute("insert into orders values (1, 'meanwhile')")
        wait_until(lambda: engine.source_info("shop").state == "failed", PATIENCE)
        error = engine.source_info("shop").error
        assert isinstance(error, CredentialsRefused)
        assert not engine.is_ready()
        file.write_text("new")
        wait_until(lambda: orders.get(1), PATIENCE, what="the row")
        assert engine.await_ready(PATIENCE)
        assert engine.source_info("shop").error is None
