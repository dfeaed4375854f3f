"""
The engine of a round, which writes down what its status says, all the time.

Each line of `status.jsonl` is one look: the time before it, what was said, then the newest beat
that readers of each target see, and what they see of the tables that only faults change. Answers
commands: `settle LSN` with `settled`, `rows` with the rows in memory as JSON; `pause P`, `resume
P` and `reload T`. While `hang` or `refuse` is in the folder, the durable target does so.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from headrace.api.messages import pipeline_fields
from headrace.capture.postgres.definition import postgres
from headrace.capture.sqlite.source import sqlite
from headrace.changelog.position import Position
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError, TargetError
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.runtime import source_run
from headrace.runtime.info import PipelineInfo, SourceInfo
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from tests.postgres.catalog_sequences import PUBLICATION
from tests.postgres.rounds.child import CopyingRunner, EngineProcess, QuickTarget
from tests.postgres.witness.testimony import ASIDE, FILE, MEMORY, PROMISE_SECONDS, STILL, digests
from tests.rounds.child import main
from tests.support.arrow_runner import ArrowRunner

LOOK_SECONDS = 0.05
CONTENTS_SECONDS = 0.3
"""Rows are compared less often than states: it costs more."""


class FaultyTarget(QuickTarget):
    """Hangs, or refuses what it is given, while a file says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "target.db")
        self._folder = folder

    def row_count(self, table: str) -> int | None:
        # On any thread, while another writes: a connection of SQLite is not made for that.
        with closing(sqlite3.connect(self._path, timeout=5)) as database:
            count = "select count(*) from rows where name = ?"
            return int(database.execute(count, (table,)).fetchone()[0])

    def write(self, batch: Batch) -> Position:
        while (self._folder / "hang").exists():
            time.sleep(0.02)
        if (self._folder / "refuse").exists():
            raise TargetError("Refused")
        return super().write(batch)


class WatchedEngine(EngineProcess):
    """The engine of the other rounds, with somebody who looks at its status."""

    def __init__(self, folder: Path, dsn: str, tables: Sequence[str], shared: bool) -> None:
        self._tables = tuple(tables)
        self._folder = folder
        self._memory, self._aside = memory(), memory()
        ours = not (folder / "published").exists()
        shop = postgres(dsn, name="shop", publication=PUBLICATION, create_publication=ours)
        aside = sqlite(folder / "aside.db", name="aside")
        self.engine = Engine(
            Pipeline(shop, tables=self._tables, target=FaultyTarget(folder), name=FILE),
            Pipeline(shop, tables=self._tables, target=self._memory, name=MEMORY),
            Pipeline(aside, "marks", self._aside, name=ASIDE),
            data=folder / "data",
            runner=_runner(folder, shared=shared),
        )
        threading.Thread(target=self._look, name="witness", daemon=True).start()

    def _at_rest(self, lsn: int) -> bool:
        infos = self.engine.pipelines()
        return all(
            (info.name == ASIDE or info.position.commit >= lsn)
            and all(table.state == "live" for table in info.tables)
            for info in infos
        )

    def _look(self) -> None:
        last = 0.0
        with (self._folder / "status.jsonl").open("a") as kept:
            while True:
                at = time.time()
                said = self._said()
                deep = at - last >= CONTENTS_SECONDS
                last = at if deep else last
                for name, pipeline in said["pipelines"].items():
                    pipeline.update(self._seen(name, deep=deep))
                kept.write(json.dumps({"at": at, "pid": os.getpid(), **said}) + "\n")
                kept.flush()
                time.sleep(LOOK_SECONDS)

    def _said(self) -> dict[str, Any]:
        engine = self.engine
        # First whether it is ready: what is seen afterwards can only be newer.
        ready = {name: engine.is_ready(pipeline=name) for name in (FILE, MEMORY, ASIDE)}
        sources = {source.name: source for source in engine.sources()}
        return {
            "pipelines": {
                info.name: _of_pipeline(info, sources.get(info.source), ready=ready[info.name])
                for info in engine.pipelines()
            },
            "sources": {name: _of_source(source) for name, source in sources.items()},
        }

    def _seen(self, name: str, *, deep: bool) -> dict[str, Any]:
        """Return the beat that readers of a pipeline's target see, and what they see besides."""
        look = {FILE: self._in_file, MEMORY: self._in_memory, ASIDE: self._in_aside}[name]
        try:
            beat, rows = look()
            still = STILL if deep and name != ASIDE else ()
            return {"beat": beat, "contents": {each: digests(rows(each)) for each in still}}
        except (HeadraceError, sqlite3.OperationalError):
            return {"beat": 0, "contents": {}}  # not set up yet

    def _in_memory(self) -> tuple[int, Callable[[str], Iterable[Mapping[str, object]]]]:
        row = self._memory.table("beats").get(1)
        return 0 if row is None else int(str(row["n"])), lambda name: self._memory.table(name).all()

    def _in_aside(self) -> tuple[int, Callable[[str], Iterable[Mapping[str, object]]]]:
        row = self._aside.get(1)
        return 0 if row is None else int(str(row["n"])), lambda name: ()

    def _in_file(self) -> tuple[int, Callable[[str], Iterable[Mapping[str, object]]]]:
        found = self._bodies("beats")
        return int(found[0]["n"]) if found else 0, self._bodies

    def _bodies(self, name: str) -> list[dict[str, Any]]:
        path = f"file:{self._folder / 'target.db'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True, timeout=5)) as database:
            query = "select body from rows where name = ?"
            return [json.loads(body) for (body,) in database.execute(query, [name])]


def _runner(folder: Path, *, shared: bool) -> Runner | None:
    """Return who computes batches; None: Spark, which the engine starts."""
    if (folder / "spark").exists():
        return None
    return CopyingRunner() if shared else ArrowRunner()


def _of_pipeline(info: PipelineInfo, source: SourceInfo | None, *, ready: bool) -> dict[str, Any]:
    fields = pipeline_fields(info, source, ready=ready, rate=None)
    kept = ("state", "reason", "ready", "lag_seconds", "position")
    return {**{name: fields[name] for name in kept}, "own_state": info.state}


def _of_source(source: SourceInfo) -> dict[str, Any]:
    return {
        "state": source.state,
        "reason": source.reason,
        "error": "" if source.error is None else str(source.error),
        "lag_seconds": source.lag_seconds,
        "lag_bytes": source.lag_bytes,
        "current_seconds": source.current_seconds,
        "end": str(source.end),
    }


if __name__ == "__main__":
    source_run.SILENT_SECONDS = PROMISE_SECONDS
    sys.exit(main(WatchedEngine))
