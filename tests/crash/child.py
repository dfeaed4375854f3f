"""
The engine of a round, in a process that can be killed.

Says `started` and `ready`, then answers commands: `settle N` with `settled POSITION RESTARTS`
once the target has come to commit N, nothing is being reloaded and all is well; `reload T`
with `reloading T N` once it is stored that T is owed a baseline newer than number N; `rows`
with the target's rows and effects as JSON; `stop` with `stopped`. It ends with whoever
started it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.capture.sqlite.source import sqlite
from headrace.changelog.position import ORIGIN, Position
from headrace.engine.engine import Engine
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.foreach import foreach_batch
from headrace.pipeline.steps import Transform, derive, drop, equals
from headrace.runtime.model import TableState
from headrace.targets.memory import IndexedMemory
from headrace.targets.target import Target
from tests.crash.frames import FrameWriter
from tests.crash.model import BAD_CUSTOMER
from tests.crash.place import BAD_ROW, PIPELINE
from tests.crash.queue_target import QueueTarget
from tests.rounds.child import serve
from tests.support.arrow_runner import ArrowRunner, Row
from tests.support.file_target import FileTarget
from tests.support.patience import patience
from tests.support.shop import await_that
from tests.support.watched_target import WatchedTarget

READY_SECONDS = patience(90)
SETTLE_SECONDS = patience()

MANY = DeadLetters(max_per_batch=100_000, max_keys=100_000)
"""The application has no mercy: a whole table may turn bad at once."""


class EngineProcess:
    """The engine, its target, and the answers to commands."""

    def __init__(self, place: Path, kind: str, tables: Sequence[str], *, spark: bool, fails: bool):
        self.memory = IndexedMemory()
        # Held from before the start on: what it is told are this engine's effects.
        self._changes = self.memory.changes()
        self._tables = tuple(tables)
        self._watched: WatchedTarget | None = None
        target = self._target(place, kind)
        transforms: list[Transform] = [drop("card")]
        if spark and fails:
            transforms.append(derive(share=f"100 div (customer_id - {BAD_CUSTOMER})"))
        self.engine = Engine(
            Pipeline(
                sqlite(place / "shop.db"),
                tables=tables,
                target=target,
                name=PIPELINE,
                filters=[equals("status", "paid")],
                transforms=transforms,
                on_error=MANY if fails else "stop",
            ),
            data=place / "data",
            runner=None if spark else ArrowRunner(fails=_bad if fails else _good),
        )

    def _target(self, place: Path, kind: str) -> Target:
        match kind:
            case "frames":
                return foreach_batch(FrameWriter(place / "frames"))
            case "memory":
                inner: Target = self.memory
            case "queue":
                inner = QueueTarget(place / "queue.jsonl")
            case _:
                inner = FileTarget(place / "target.db")
        self._watched = WatchedTarget(inner)
        return self._watched

    def settle(self, commit: int) -> str:
        """Wait until all is at the target and at rest."""
        engine = self.engine
        seen = ORIGIN
        while not (there := self._comes_to(commit)) and self._at() != seen:
            seen = self._at()  # it is slow, and goes on
        there = there and await_that(engine, self._nothing_reloads, SETTLE_SECONDS)
        if not (there and engine.await_ready(SETTLE_SECONDS)):
            return f"error {self.told()}"
        return f"settled {commit} {engine.sources()[0].restarts}"

    def _comes_to(self, commit: int) -> bool:
        if self._watched is not None:
            return self._watched.wait(commit, SETTLE_SECONDS)
        return await_that(self.engine, lambda: self._at().commit >= commit, SETTLE_SECONDS)

    def _at(self) -> Position:
        if self._watched is not None:
            return self._watched.reached
        return self.engine.pipelines()[0].position

    def reload(self, table: str) -> str:
        """Ask for a new baseline of a table, and return when that cannot be forgotten any more."""
        number = self._baselines()[table]
        self.engine.reload("shop", table)
        # It may be over before anybody looked.
        stored = await_that(
            self.engine,
            lambda: not self._nothing_reloads() or self._baselines()[table] > number,
            SETTLE_SECONDS,
        )
        return f"reloading {table} {number}" if stored else f"error {self.told()}"

    def ready(self) -> str:
        return "ready" if self.engine.await_ready(READY_SECONDS) else f"error {self.told()}"

    def answer(self, command: str, arguments: Sequence[str]) -> str:
        match command, *arguments:
            case ["settle", number]:
                return self.settle(int(number))
            case ["reload", table]:
                return self.reload(table)
            case ["rows"]:
                return self.rows()
            case _:
                return f"error {command} is no command"

    def rows(self) -> str:
        """Return the rows in memory, and what was told of them."""
        effects = [next(self._changes) for _ in range(self._changes.lag)]
        found = {
            "rows": [dict(row) for row in self.memory.all()],
            "effects": [[list(effect.key), str(effect.position)] for effect in effects],
        }
        return f"rows {json.dumps(found)}"

    def told(self) -> str:
        return f"{self.engine.pipelines()} {self.engine.sources()}"

    def _nothing_reloads(self) -> bool:
        states = [table.state for table in self.engine.pipelines()[0].tables]
        return TableState.RELOADING not in states

    def _baselines(self) -> dict[str, int]:
        return {table.table: table.baseline for table in self.engine.pipelines()[0].tables}


def _bad(pipeline: Pipeline, image: Row) -> str | None:
    return BAD_ROW if image["customer_id"] == BAD_CUSTOMER else None


def _good(pipeline: Pipeline, image: Row) -> str | None:
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--target", default="file")
    parser.add_argument("--tables", nargs="+", default=["orders"])
    parser.add_argument("--fails", action="store_true")
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    process = EngineProcess(
        given.place, given.target, given.tables, spark=given.spark, fails=given.fails
    )
    return serve(process, process.ready)


if __name__ == "__main__":
    sys.exit(main())
