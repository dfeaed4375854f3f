"""A database of the application's, and its own connection to it."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def app(path: Path) -> Iterator[sqlite3.Connection]:
    """The application's connection, in WAL mode."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = off")
    yield connection
    connection.close()


@pytest.fixture
def two_tables(app: sqlite3.Connection) -> None:
    """The tables `t` and `u`, empty."""
    app.execute("create table t (id integer primary key, v)")
    app.execute("create table u (id integer primary key, v)")
