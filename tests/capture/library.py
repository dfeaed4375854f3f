"""What tests of the SQLite library share: a handler that remembers, and runs on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.capture.sqlite import Batch, Capture, Record
from tests.support.patience import patience

SECONDS = patience()


class Heard:
    """A handler that keeps every batch, and can be waited on."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.records: list[Record] = []
        self._changed = threading.Condition()
        self._given_up = False
        self.error: BaseException | None = None

    def __call__(self, batch: Batch) -> None:
        with self._changed:
            self.batches.append(batch)
            self.records += batch
            self._changed.notify_all()

    def until(self, done: Callable[[list[Record]], object]) -> list[Record]:
        """Wait until `done` says so of all records; return them."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self._given_up or done(self.records), timeout=SECONDS
            )
            assert reached and not self._given_up, f"{len(self.records)} records, {self.error}"
            return self.records

    def count(self, number: int) -> list[Record]:
        return self.until(lambda records: len(records) >= number)

    def give_up(self, error: BaseException) -> None:
        with self._changed:
            self.error = error
            self._given_up = True
            self._changed.notify_all()


class Running:
    """A run on a thread of its own, and what it raised."""

    def __init__(
        self, capture: Capture, method: str, heard: Heard | None = None, **how: bool
    ) -> None:
        self.capture = capture
        self.error: BaseException | None = None
        self._heard = heard
        self._thread = threading.Thread(target=self._run, args=(method, how))
        self._thread.start()

    def _run(self, method: str, how: dict[str, bool]) -> None:
        try:
            getattr(self.capture, method)(**how)
        except BaseException as error:  # noqa: BLE001 - kept for the test
            self.error = error
            if self._heard is not None:
                self._heard.give_up(error)

    def join(self) -> None:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


@contextmanager
def running(
    path: Path, tables: list[str] | None, method: str = "cdc", **options: Any
) -> Iterator[Heard]:
    """Run a capture until the block is left; whatever it raised is raised there."""
    heard = Heard()
    how = {"resume": options.pop("resume")} if "resume" in options else {}
    run = Running(Capture(path, tables, heard, **options), method, heard, **how)
    try:
        yield heard
    finally:
        run.capture.close()
        run.join()
    if run.error is not None:
        raise run.error


def ops(records: list[Record]) -> list[tuple[str, str, object]]:
    """Return (table, operation, id) of each."""
    return [
        (record.table, record.operation, (record.after or record.before or {}).get("id"))
        for record in records
    ]
