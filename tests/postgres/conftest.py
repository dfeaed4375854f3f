"""A PostgreSQL server for all tests here, a database for each, or a server of a test's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.capture.postgres.stream import stream
from headrace.embedded.postgres import PostgresServer
from tests.postgres.recording import Recording
from tests.postgres.servers import Database, fresh_database, make_server

SERVERS = {"server", "database", "own_server"}


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark what needs a server: such tests take long, and are left out by FAST=1."""
    for item in items:
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)


@pytest.fixture(autouse=True)
def prompt(request: pytest.FixtureRequest) -> Iterator[None]:
    """
    Have the server hear from streams often.

    A server may sleep over a commit that comes just as it falls asleep (18 does), until the next
    commit or a word of ours: ten seconds, and tests with few commits met many of them.
    """
    with pytest.MonkeyPatch.context() as patch:
        if SERVERS & set(request.fixturenames):
            patch.setattr(stream, "SILENT_SECONDS", 0.5)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """The server that tests share: not to be stopped, and not to be set up differently."""
    with make_server() as running:
        yield running


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    """A new, empty database."""
    with fresh_database(server) as made:
        yield made


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """
    A running server for one test alone, which may stop, kill and reload it.

    `@pytest.mark.parametrize("own_server", [{"wal_level": "replica"}], indirect=True)` gives it
    settings; a database on it is made by `fresh_database`.
    """
    with make_server(getattr(request, "param", None)) as running:
        yield running


@pytest.fixture
def recording(database: Database, tmp_path: Path) -> Iterator[Recording]:
    """Recorders of the database; the last one ends with the test."""
    made = Recording(database, tmp_path / "data")
    yield made
    made.die()
