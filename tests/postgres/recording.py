"""Recorders of one source, stepped by hand: each has a life of its own, on one log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.capture import recorder as recorders
from headrace.capture.messages import FlushNow, Report, Setup, TakeBaseline
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.process import log_opener
from headrace.capture.recorder import Recorder
from headrace.capture.registry import build
from headrace.changelog.position import ORIGIN
from headrace.changelog.reader import LogReader
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.postgres.servers import Database, wait_until
from tests.support.patience import patience

PATIENCE = patience()


class Recording:
    """Recorders of one source, each with a life of its own, on one log."""

    def __init__(self, database: Database, data: Path) -> None:
        self.database = database
        self.data = data
        self.source: PostgresSource
        self.recorder: Recorder
        self.reports: list[Report] = []
        self.term = 0

    def live(self, *tables: str, **options: object) -> None:
        """Begin a new life; the last one is over as if it had been killed."""
        self.die()
        spec = postgres(self.database.dsn, name="shop", **options).spec  # type: ignore[arg-type]
        source = build(spec, f"shop@{self.data}")
        assert isinstance(source, PostgresSource)
        self.source = source
        self.term += 1
        setup = Setup(
            kind="postgres",
            name="shop",
            options=dict(spec.options),
            tables=tables,
            storage=str(self.data),
            writer=f"w{self.term}",
            term=self.term,
            reader=f"shop@{self.data}",
        )
        self.recorder = Recorder(source, log_opener(setup, source), tables, time.monotonic)

    def die(self) -> None:
        if hasattr(self, "source"):
            self.source.close()

    def until(self, condition: Callable[[], object], *, idle: bool = True) -> None:
        """Step until something is true; for an engine that is `idle`, changes do not gather."""

        def stepped() -> object:
            self.reports += self.recorder.step([FlushNow()] if idle else [], 0.05)
            return condition()

        wait_until(stepped, PATIENCE)

    def gather(self, patch: pytest.MonkeyPatch) -> None:
        """Read a change and leave it pending: no time writes it, but only who needs it written."""
        patch.setattr(recorders, "SOON_SECONDS", 3600.0)
        patch.setattr(recorders, "LATE_SECONDS", 3600.0)
        self.until(lambda: self.recorder._first_pending is not None, idle=False)

    def copy(self, table: str) -> None:
        before = self.baseline(table)
        self.reports += self.recorder.step([TakeBaseline(table)], 0.05)
        self.until(lambda: self.baseline(table) != before)

    def streaming(self) -> None:
        self.until(lambda: self.recorder._connected)
        self.until(lambda: not self.source.notices())

    def follow(self, *tables: str, **options: object) -> None:
        """Begin a new life, and copy the tables that were not copied yet."""
        self.live(*tables, **options)
        self.streaming()
        for table in tables:
            if self.baseline(table) is None:
                self.copy(table)

    def changes(self, table: str) -> list[dict[str, Any]]:
        """Return the changes of a table, in their order, as the segments have them."""
        log = self.log
        batch = log.next_batch(table, ORIGIN, 1_000_000)
        found = [row for file in batch.files for row in log.rows(file).to_pylist()] if batch else []
        return sorted(found, key=lambda row: (row["_commit"], row["_ordinal"]))

    @property
    def log(self) -> LogReader:
        return LogReader.open(Files(RealDisk(), str(self.data)), "shop")

    def baseline(self, table: str) -> int | None:
        found = self.log.usable_baseline(table)
        return None if found is None else found.baseline
