"""
The engine of a round, which writes down what its status says, all the time.

Each line of `status.jsonl` is one look: the time before it, what was said, then the newest beat
that readers of each target see, and what they see of the tables that only faults change. Answers
commands: `settle LSN` with `settled`, `rows` with the rows in memory as JSON.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.runtime import source_run
from tests.postgres.rounds import child as rounds_child
from tests.postgres.witness.testimony import PROMISE_SECONDS, STILL, digest
from tests.rounds.child import main

LOOK_SECONDS = 0.05


class WatchedEngine(rounds_child.EngineProcess):
    """The engine of the other rounds, with somebody who looks at its status."""

    def __init__(self, folder: Path, dsn: str, tables: Sequence[str], shared: bool) -> None:
        super().__init__(folder, dsn, tables, shared)
        self._folder = folder
        threading.Thread(target=self._look, name="witness", daemon=True).start()

    def _look(self) -> None:
        with (self._folder / "status.jsonl").open("a") as kept:
            while True:
                at = time.time()
                said = self._said()
                seen = {
                    "memory": self._in_memory(),
                    "file": self._in_file(),
                    "contents": self._contents(),
                }
                kept.write(json.dumps({"at": at, **said, **seen}) + "\n")
                kept.flush()
                time.sleep(LOOK_SECONDS)

    def _said(self) -> dict[str, Any]:
        engine = self.engine
        source = next(iter(engine.sources()), None)
        return {
            "ready": {
                each: engine.is_ready(pipeline=each)
                for each in (rounds_child.MEMORY, rounds_child.FILE)
            },
            "state": "" if source is None else source.state,
            "reason": "" if source is None else source.reason,
            "lag_seconds": None if source is None else source.lag_seconds,
            "lag_bytes": None if source is None else source.lag_bytes,
        }

    def _contents(self) -> dict[str, int]:
        try:
            return {name: digest(self._memory.table(name).all()) for name in STILL}
        except HeadraceError:
            return {}  # not set up yet

    def _in_memory(self) -> int:
        try:
            row = self._memory.table("beats").get(1)
        except HeadraceError:
            return 0  # not set up yet
        return 0 if row is None else int(str(row["n"]))

    def _in_file(self) -> int:
        try:
            with sqlite3.connect(self._folder / "target.db", timeout=5) as database:
                query = "select body from rows where name = 'beats'"
                found = database.execute(query).fetchone()
            database.close()
        except sqlite3.OperationalError:
            return 0  # not set up yet
        return 0 if found is None else int(json.loads(found[0])["n"])


if __name__ == "__main__":
    source_run.SILENT_SECONDS = PROMISE_SECONDS
    sys.exit(main(WatchedEngine))
