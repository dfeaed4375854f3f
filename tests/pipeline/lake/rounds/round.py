"""One round: writers write, an engine follows into Delta, and is killed with all it has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg

from headrace.embedded.postgres import PostgresServer
from headrace.errors import HeadraceError
from headrace.storage import points
from tests.crash import processes
from tests.crash.engine_line import RoundFailed
from tests.pipeline.lake.rounds.check import different, unsure, wrong
from tests.pipeline.lake.rounds.child import LAKE, SETTLE_SECONDS
from tests.pipeline.lake.rounds.nemesis import Nemesis
from tests.pipeline.lake.rounds.plan import OF_LOADING, Blow, Life, Plan, When, Who
from tests.pipeline.lake.rounds.versions import versions
from tests.pipeline.lake.rounds.workload import SCHEMA, TABLES, Diary, Writer, truth, writing
from tests.postgres.rounds.line import END_SECONDS, Line
from tests.postgres.rounds.workload import connected
from tests.postgres.servers import make_server

SETTINGS = {
    "logical_decoding_work_mem": "64kB",
    "log_min_messages": "warning",
    # It would write beside the commits of the round, whose places are looked at.
    "autovacuum": "off",
}
POINT_SECONDS = 120.0
"""How long a named point is waited for; then it counts as missed, and the round goes on."""

RELOAD_SECONDS = 10.0
LOOKS = 2
"""Versions of each table that Spark reads as well."""

MARKS = (
    "update accounts set owner = 'mark' where id = (select min(id) from accounts)",
    "insert into entries (tx, n, size, revision, note) values (-1, 1, 1, 0, 'mark')",
)
"""A change in every table, made last: who has it has everything."""


@dataclass(slots=True)
class Outcome:
    """What a round came to."""

    plan: Plan
    hits: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    """Of all tables, by the operation that made them."""

    unsure: int = 0
    """Versions whose position lies beside a commit, so that two states would do."""

    error: str | None = None
    folder: str | None = None
    """Kept only where something was wrong."""

    seconds: float = 0.0


class Round:
    """A plan at work."""

    def __init__(self, plan: Plan, server: PostgresServer, folder: Path) -> None:
        self.outcome = Outcome(plan)
        self._plan = plan
        self._server = server
        self._folder = folder
        self._lake = folder / "data" / "spark-warehouse" / LAKE
        self._nemesis = Nemesis(folder, self._lake)
        self._dice = Random(f"round {plan.seed}")
        self._line: Line | None = None
        self._writers: Sequence[Writer] = ()

    def run(self) -> None:
        with connected(self._server.dsn) as connection:
            for statement in SCHEMA:
                connection.execute(statement.encode())
        diary = Diary(self._server.dsn)
        try:
            with writing(self._plan.seed, self._server.dsn, diary) as self._writers:
                for life in self._plan.lives:
                    self._live(life)
            for writer in self._writers:
                self.outcome.writes += writer.done
            self._judge([writer.failure for writer in self._writers if writer.failure])
            self._settle(diary)
        finally:
            diary.close()
            if self._line is not None:
                self._line.kill()
            for pid in processes.marked(self._folder.name):
                subprocess.run(["kill", "-KILL", str(pid)], check=False, stderr=subprocess.DEVNULL)

    # --- lives ----------------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        line = self._start(life)
        line.expect("started")
        if life.waits:
            line.ask("ready", "done")
        self._count(life.armed, self._await_token(line, line.token, life.armed))
        self._count(life.blow, self._struck(line, life.blow, life.nth))
        if line.ended:
            raise RoundFailed(f"engine ended by itself, exit code {line.close()}")
        self._count(life.end, self._struck(line, life.end, life.nth))
        if not line.ended:
            line.kill()  # its point was not reached
        elif (code := line.close()) != -signal.SIGKILL:
            raise RoundFailed(f"engine ended by itself, exit code {code}")
        self._line = None
        if left := processes.gone(self._folder.name, END_SECONDS):
            raise RoundFailed(f"processes are left: {left}")

    def _start(self, life: Life | None) -> Line:
        armed = None if life is None else life.armed.when
        self._line = Line(
            self._folder,
            self._server.dsn,
            TABLES,
            shared=life is not None and life.staged,
            armed=armed,
            module="tests.pipeline.lake.rounds.child",
            patience=SETTLE_SECONDS + 60,
        )
        return self._line

    def _struck(self, line: Line, blow: Blow, nth: int) -> bool:
        """Let somebody die, and say whether that was so."""
        match blow.when:
            case When.ANY:
                time.sleep(self._dice.uniform(0, 4))  # a pace, not a wait
            case When.DATA | When.COMMIT:
                if not self._nemesis.await_instant(blow.when, lambda: line.ended):
                    return False
            case point:
                token = self._folder / "token-of-engine"
                token.touch()
                line.tell(f"arm {blow.who.name} {token} {point}:{nth}")
                return self._await_token(line, token, blow)
        if blow.who == Who.ENGINE:
            os.kill(line.process.pid, signal.SIGKILL)
            line.process.wait(END_SECONDS)
            return True
        return self._nemesis.strike(blow.who)

    def _await_token(self, line: Line, token: Path, blow: Blow) -> bool:
        """Wait until somebody has come by an armed point, and give reason to."""
        until, again = time.monotonic() + POINT_SECONDS, 0.0
        while token.exists() and time.monotonic() < until and not line.ended:
            if time.monotonic() > again:
                again = time.monotonic() + RELOAD_SECONDS
                if blow.when in OF_LOADING:
                    line.tell(f"reload {self._dice.choice(TABLES)}")
                elif blow.when == points.COLUMNS_ADDED:
                    self._writers[0].alters.set()
            time.sleep(0.01)
        if token.exists():
            token.unlink(missing_ok=True)  # from now on it is nobody's point
            return False
        if blow.who == Who.ENGINE:
            line.process.wait(END_SECONDS)
        return True

    def _count(self, blow: Blow, hit: bool) -> None:
        self._judge([writer.failure for writer in self._writers if writer.failure])
        (self.outcome.hits if hit else self.outcome.missed)[str(blow)] += 1

    # --- the check ------------------------------------------------------------------------

    def _settle(self, diary: Diary) -> None:
        """Let everything come to rest, and look at every version there ever was."""
        line = self._start(None)
        with connected(self._server.dsn) as connection, diary.turn:
            connection.execute("begin")
            for statement in MARKS:
                connection.execute(statement.encode())
            diary.commit(connection)
            line.ask(f"settle {diary.states[-1].begun + 1}", "settled")
            found: list[str] = []
            for table in TABLES:
                every = list(versions(self._lake / table))
                self.outcome.versions.update(version.operation for version in every)
                self.outcome.unsure += unsure(table, every, diary)
                found += wrong(table, every, diary)
                last = every[-1]
                source = truth(connection, table)
                there = json.loads(line.ask(f"look {table}", "rows"))
                if what := different(table, source, there) or different(table, there, source):
                    found.append(f"{table} is not the source in the end: {what}")
                if set(source[0]) != set(last.columns):
                    found.append(f"{table} has columns {last.columns}, not {list(source[0])}")
                for version in self._dice.sample(every, min(LOOKS, len(every))):
                    rows = json.loads(line.ask(f"look {table} {version.number}", "rows"))
                    if what := different(table, version.rows, rows):
                        found.append(f"{table} version {version.number} by Spark: {what}")
        self._judge(found)
        line.ask("stop", "stopped")
        code = line.close()
        self._line = None
        self._judge([f"engine stopped with exit code {code}"] if code else [])

    def _judge(self, found: Sequence[str]) -> None:
        if found:
            more = f" and {len(found) - 10} more" if len(found) > 10 else ""
            raise RoundFailed("; ".join(found[:10]) + more)


def play(plan: Plan) -> Outcome:
    """Play one round and return what came of it."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="headrace-lake-rounds-"))
    with make_server(SETTINGS) as server:
        played = Round(plan, server, folder)
        outcome = played.outcome
        try:
            played.run()
        except (
            RoundFailed,
            HeadraceError,
            psycopg.Error,
            subprocess.TimeoutExpired,
            AssertionError,
        ) as failure:
            outcome.error = f"{type(failure).__name__}: {failure}"
            (folder / "server.log").write_text(server.log)
    if outcome.error is None:
        shutil.rmtree(folder)
    else:
        outcome.folder = str(folder)
    outcome.seconds = time.monotonic() - began
    return outcome
