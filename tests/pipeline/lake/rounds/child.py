"""
The engine of a round, in a process that can be killed, with its Spark.

Answers commands: `ready` with `done` once all is loaded, or after a while; `arm WHO TOKEN POINT:N`
with `done`: whoever it is dies there, if the token is still there; `settle LSN` with `settled` once
the tables have come that far, and all is well; `reload T` with `done`; `look T [VERSION]` with the
rows that Spark reads, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import headrace as hr
from headrace.runtime.model import PipelineState, TableState
from headrace.spark_session import jvm
from headrace.storage import killpoints
from tests.pipeline.lake.rounds.plan import Who
from tests.rounds.child import main
from tests.support.patience import patience
from tests.support.shop import await_that

SETTLE_SECONDS = patience(300)
READY_SECONDS = patience(90)
COMPACT_EVERY = 3
LAKE = "lake"
_die = killpoints.die


class EngineProcess:
    """The engine, and the answers to commands."""

    def __init__(self, folder: Path, dsn: str, tables: Sequence[str], staged: bool) -> None:
        target = hr.table(
            f"{LAKE}.{{table}}",
            format="delta",
            mode="merge",
            compact_every=COMPACT_EVERY,
            staged_from=1 if staged else 100_000,
        )
        source = hr.postgres(dsn, name="bank")
        self.engine = hr.Engine(
            hr.Pipeline(source, tables=tables, target=target, name=LAKE), data=folder / "data"
        )

    def answer(self, command: str, arguments: Sequence[str]) -> str:
        match command, *arguments:
            case ["ready"]:
                self.engine.await_ready(READY_SECONDS)
            case ["arm", who, token, point]:
                arm(Who[who], token, point)
            case ["settle", lsn]:
                await_that(self.engine, lambda: self._ends(int(lsn)), SETTLE_SECONDS)
                return "settled" if self._at_rest(int(lsn)) else f"error {self.told()}"
            case ["reload", table]:
                self.engine.reload("bank", table)
            case ["look", table, *version]:
                return f"rows {self._look(table, version)}"
        return "done"

    def _ends(self, lsn: int) -> bool:
        (pipeline,) = self.engine.pipelines()
        return pipeline.state == PipelineState.FAILED or self._at_rest(lsn)

    def _at_rest(self, lsn: int) -> bool:
        (pipeline,) = self.engine.pipelines()
        return pipeline.position.commit >= lsn and all(
            table.state == TableState.LIVE for table in pipeline.tables
        )

    def _look(self, table: str, version: Sequence[str]) -> str:
        asked = f" version as of {version[0]}" if version else ""
        rows = hr.spark().sql(f"select * from {LAKE}.{table}{asked}").collect()
        return json.dumps([row.asDict() for row in rows])

    def told(self) -> str:
        (pipeline,) = self.engine.pipelines()
        return f"{pipeline} {self.engine.sources()}"


def arm(who: Who, token: str, point: str) -> None:
    """Arm a point of this process, in place of any other."""
    name, _, nth = point.partition(":")
    killpoints._left, killpoints._token = int(nth), token
    killpoints.die = _kill_jvm if who == Who.JVM else _die
    killpoints._armed = name


def _kill_jvm() -> None:
    if jvm.running is not None:
        process = jvm.running.machine.process
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main(EngineProcess))
