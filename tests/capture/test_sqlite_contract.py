"""SQLite as a source, in both journal modes, against the contract of all sources."""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.testing.contracts import TABLE, SourceContract, State, Step

SQL = {
    "insert": "insert into things (name, id) values (?2, ?1)",
    "update": "update things set name = ?2 where id = ?1",
    "delete": "delete from things where id = ?1 and ?2 is null",
}


class SQLiteHarness:
    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        # The contract commits from a timer's thread as well.
        self.app = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.app.execute(f"pragma journal_mode = {mode}")
        self.app.execute("create table things (id integer primary key, name text)")

    def make(self) -> SQLiteSource:
        return sqlite(self.path)

    def commit(self, steps: Sequence[Step]) -> None:
        self.app.execute("begin")
        for op, key, name in steps:
            self.app.execute(SQL[op], (key, name))
        self.app.execute("commit")

    def all_read(self, upto: int) -> bool:
        return True

    def truth(self) -> State:
        return dict(self.app.execute(f"select id, name from {TABLE}").fetchall())


class TestSQLite(SourceContract):
    @pytest.fixture(autouse=True, params=["wal", "delete"])
    def _made(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
        harness = SQLiteHarness(tmp_path / "things.db", request.param)
        self.harness = harness
        yield
        harness.app.close()
