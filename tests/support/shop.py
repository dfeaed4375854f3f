"""A small shop in SQLite, an engine that follows it without a JVM, and ways to wait."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from headrace.capture.sqlite.setup import LOG, READERS
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.changelog.log import LogReader
from headrace.control.engine import Engine
from headrace.pipeline.definition import Pipeline, drop, equals
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.target import Target
from tests.support.arrow_runner import ArrowRunner

PATIENCE = 30.0
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


def await_that(engine: Engine, what: Callable[[], bool], timeout: float = PATIENCE) -> bool:
    """Wait until something observed about `engine` is true; False on time-out."""
    with engine._changed:
        return engine._changed.wait_for(what, timeout)


def await_seen(what: Callable[[], bool], timeout: float = PATIENCE) -> bool:
    """Look again and again: for what a database or a folder shows, and nobody announces."""
    until = time.monotonic() + timeout
    pause = threading.Event()
    while not what():
        if time.monotonic() > until:
            return False
        pause.wait(0.01)
    return True
