"""Small shops, in SQLite and in memory, engines that follow them without a JVM, ways to wait."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headrace.capture.sqlite import watch
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.capture.sqlite.triggers import LOG, READERS
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.engine.engine import Engine
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import drop, equals
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.target import Target
from headrace.testing.source import MemorySource
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

if watch.inotify is not None:
    # At its first use it starts `ldconfig`: not within a test that is to start no process.
    watch.inotify.INotify().close()

PATIENCE = patience()
"""Seconds until a test gives up: far more than anything takes on a machine that is not stuck."""


class Shop:
    """The application: a database with a table `orders`, and a data directory beside it."""

    def __init__(self, folder: Path, *, name: str = "shop.db", rows: int = 10) -> None:
        self.path = folder / name
        self.data = folder / "data"
        self.app = sqlite3.connect(self.path, isolation_level=None, timeout=PATIENCE)
        self.app.execute("pragma journal_mode = wal")
        self.app.execute("pragma synchronous = off")
        self.app.execute(
            "create table orders "
            "(id integer primary key, customer_id integer, status text, card text)"
        )
        self.insert(range(1, rows + 1))

    def insert(self, keys: range, status: str = "paid") -> None:
        self.app.execute("begin")
        self.app.executemany(
            "insert into orders values (?, ?, ?, 'x')", [(key, key % 7, status) for key in keys]
        )
        self.app.execute("commit")

    def source(self, name: str = "shop") -> SQLiteSource:
        return sqlite(self.path, name=name)

    def pipeline(self, target: Target, name: str | None = None) -> Pipeline:
        return self.pipeline_from(self.source(), target, name)

    @staticmethod
    def pipeline_from(source: SQLiteSource, target: Target, name: str | None = None) -> Pipeline:
        return Pipeline(
            source,
            "orders",
            target,
            filters=[equals("status", "paid")],
            transforms=[drop("card")],
            name=name,
        )

    def engine(
        self, *pipelines: Pipeline, recorder: Literal["process", "thread"] = "thread"
    ) -> Engine:
        return Engine(*pipelines, data=self.data, runner=ArrowRunner(), recorder=recorder)

    def truth(self) -> dict[int, dict[str, object]]:
        """Return what a target of `pipeline` should hold."""
        found = self.app.execute("select id, customer_id, status from orders where status = 'paid'")
        return {k: {"id": k, "customer_id": c, "status": s} for k, c, s in found}

    def captured(self) -> int:
        """Return the number of the newest captured change."""
        return int(self.app.execute(f"select max(seq) from {LOG}").fetchone()[0])

    def cursor(self) -> int:
        """Return how far the database was told that it may forget."""
        return int(self.app.execute(f"select min(cursor) from {READERS}").fetchone()[0])

    def log(self, source: str = "shop") -> LogReader:
        return LogReader.open(Files(RealDisk(), str(self.data)), source)

    def close(self) -> None:
        self.app.close()


class Market:
    """The same in memory, with tables that differ in name only, and a column for the version."""

    def __init__(
        self, folder: Path, tables: Sequence[str] = ("orders",), *, rows: int = 10
    ) -> None:
        self.data = folder / "data"
        self.source = MemorySource("shop")
        self.source.set_supports_resume(True)
        for table in tables:
            self.source.set_schema(
                table, {"id": "int64", "status": "text", "version": "int64"}, key=["id"]
            )
            for key in range(1, rows + 1):
                self.source.add_row(table, {"id": key, "status": "paid", "version": 0})

    def put(self, table: str, key: int, status: str = "paid", version: int = 0) -> None:
        """Insert a row, or give it new values."""
        row = {"id": key, "status": status, "version": version}
        if (key,) in self.source.rows(table):
            self.source.emit_update(table, row)
        else:
            self.source.emit_insert(table, row)

    def pipeline(
        self, target: Target, *tables: str, name: str | None = None, **options: Any
    ) -> Pipeline:
        return Pipeline(
            self.source, target=target, tables=tables or ["orders"], name=name, **options
        )

    def engine(self, *pipelines: Pipeline, runner: Runner | None = None) -> Engine:
        return Engine(*pipelines, data=self.data, runner=runner or ArrowRunner(), recorder="thread")

    def truth(self, table: str = "orders") -> dict[int, dict[str, object]]:
        return {int(str(key)): row for (key,), row in self.source.rows(table).items()}

    def recorded(self, engine: Engine) -> bool:
        """Wait until the engine has all that was emitted so far in its log."""
        wanted = self.source.position.commit
        return await_that(engine, lambda: engine.source_info("shop").end.commit >= wanted)

    def log(self) -> LogReader:
        return LogReader.open(Files(RealDisk(), str(self.data)), "shop")


class FileEffect(NamedTuple):
    """Something a `FileTarget` did."""

    key: tuple[object, ...]
    position: Position


def file_rows_at(
    path: Path, table: str = "orders"
) -> tuple[dict[object, dict[str, object]], list[FileEffect]]:
    """Return what a `FileTarget` holds of a table, and all it ever did to it."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("select key, body from rows where name = ?", (table,)).fetchall()
        effects = connection.execute(
            "select key, position from effects where name = ?", (table,)
        ).fetchall()
    connection.close()
    return (
        {json.loads(key)[0]: json.loads(body) for key, body in rows},
        [FileEffect(tuple(json.loads(key)), Position.parse(at)) for key, at in effects],
    )


def await_that(engine: Engine, what: Callable[[], bool], timeout: float = PATIENCE) -> bool:
    """Wait until something observed about `engine` is true; False on time-out."""
    return engine._state.readiness.wait_for(what, timeout)


def await_seen(what: Callable[[], bool], timeout: float = PATIENCE) -> bool:
    """Look again and again: for what a database or a folder shows, and nobody announces."""
    until = time.monotonic() + timeout
    pause = threading.Event()
    while not what():
        if time.monotonic() > until:
            return False
        pause.wait(0.01)
    return True
