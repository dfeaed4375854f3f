"""
The engine of a round, in a process that can be killed.

Answers commands: `streaming` with `done` once the recorder reads, or after a while; `settle LSN`
with `settled` once both targets have come that far, nothing is being loaded and all is well;
`reload T`, `pause P` and `resume P` with `done`; `rows` with the rows in memory as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from headrace.capture.baselines import Order, copy_parts
from headrace.capture.postgres.definition import postgres
from headrace.changelog.entries import File
from headrace.changelog.schema import TableName
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.runtime.model import TableState
from headrace.targets.memory import memory
from tests.rounds.child import main
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileLoading, FileTarget
from tests.support.patience import patience, slowness
from tests.support.shop import await_that

SETTLE_SECONDS = patience(120)
STREAM_SECONDS = 20.0 * slowness()
FILE, MEMORY = "file", "memory"
"""The two pipelines."""


class CopyingRunner(ArrowRunner):
    """Also copies the parts of baselines, as Spark's tasks would."""

    def copy(self, order: Order, numbers: range) -> list[File]:
        return list(copy_parts(order, numbers))


class QuickTarget(FileTarget):
    """Takes each part of a baseline in one transaction: a thousand would be a thousand syncs."""

    def load(self, table: TableName, baseline: int) -> FileLoading:
        loading = QuickLoading(self, table)
        loading.discard()
        return loading


class QuickLoading(FileLoading):
    """The same of a baseline under way."""

    def write(self, rows: pa.Table) -> None:
        with self._target._sql as sql:
            sql.execute("begin immediate")
            super().write(rows)


class EngineProcess:
    """The engine, its targets, and the answers to commands."""

    def __init__(self, folder: Path, dsn: str, tables: Sequence[str], shared: bool) -> None:
        self._tables = tuple(tables)
        self._memory = memory()
        source = postgres(dsn, name="shop")
        self.engine = Engine(
            Pipeline(source, tables=tables, target=QuickTarget(folder / "target.db"), name=FILE),
            Pipeline(source, tables=tables, target=self._memory, name=MEMORY),
            data=folder / "data",
            runner=CopyingRunner() if shared else ArrowRunner(),
        )

    def settled(self, lsn: int) -> bool:
        """Wait until all is at the targets and at rest."""
        engine = self.engine
        there = await_that(engine, lambda: self._at_rest(lsn), SETTLE_SECONDS)
        return there and engine.await_ready(SETTLE_SECONDS)

    def _streaming(self) -> bool:
        return self.engine.source_info("shop").state == "streaming"

    def _at_rest(self, lsn: int) -> bool:
        return all(
            pipeline.position.commit >= lsn
            and all(table.state == TableState.LIVE for table in pipeline.tables)
            for pipeline in self.engine.pipelines()
        )

    def rows(self) -> str:
        found = {
            name: [dict(row) for row in self._memory.table(name).all()] for name in self._tables
        }
        return json.dumps(found)

    def answer(self, command: str, arguments: Sequence[str]) -> str:
        engine = self.engine
        match command, *arguments:
            case ["streaming"]:
                # Not ready: a pipeline may be paused.
                await_that(engine, self._streaming, STREAM_SECONDS)
            case ["settle", lsn]:
                return "settled" if self.settled(int(lsn)) else f"error {self.told()}"
            case ["reload", table]:
                engine.reload("shop", table)
            case ["pause", pipeline]:
                engine.pause(pipeline)
            case ["resume", pipeline]:
                engine.resume(pipeline)
            case ["rows"]:
                return f"rows {self.rows()}"
        return "done"

    def told(self) -> str:
        states = [
            (each.name, each.state, str(each.position), str(each.error), each.tables)
            for each in self.engine.pipelines()
        ]
        return f"{states} {self.engine.sources()}"


if __name__ == "__main__":
    sys.exit(main(EngineProcess))
