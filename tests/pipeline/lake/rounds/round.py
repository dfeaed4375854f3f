"""One round: writers write, an engine follows into Delta, and is killed with all it has."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

from headrace.embedded.postgres import PostgresServer
from headrace.storage import killpoints
from tests.pipeline.lake.rounds.check import different, unsure, wrong
from tests.pipeline.lake.rounds.child import LAKE, SETTLE_SECONDS
from tests.pipeline.lake.rounds.nemesis import Nemesis
from tests.pipeline.lake.rounds.plan import OF_LOADING, Blow, Life, Plan, When, Who
from tests.pipeline.lake.rounds.versions import versions
from tests.pipeline.lake.rounds.workload import SCHEMA, TABLES, Diary, Writer, writing
from tests.rounds.killing import end_all, nobody_left
from tests.rounds.line import END_SECONDS, Line
from tests.rounds.outcome import Outcome, RoundFailed, judge
from tests.rounds.play import played
from tests.rounds.source import connected, rows_of
from tests.support.patience import slowness

SETTINGS = {
    "logical_decoding_work_mem": "64kB",
    "log_min_messages": "warning",
    # It would write beside the commits of the round, whose places are looked at.
    "autovacuum": "off",
}
POINT_SECONDS = 120 * slowness()
"""How long a named point is waited for; then it counts as missed, and the round goes on."""

RELOAD_SECONDS = 10.0
LOOKS = 2
"""Versions of each table that Spark reads as well."""

MARKS = (
    "update accounts set owner = 'mark' where id = (select min(id) from accounts)",
    "insert into entries (tx, n, size, revision, note) values (-1, 1, 1, 0, 'mark')",
)
"""A change in every table, made last: who has it has everything."""


class Round:
    """A plan at work."""

    def __init__(self, plan: Plan, server: PostgresServer, folder: Path) -> None:
        self.outcome = Outcome(plan.seed)
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
            judge([writer.failure for writer in self._writers if writer.failure])
            self._settle(diary)
        finally:
            diary.close()
            end_all(self._line, self._folder.name)

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
        nobody_left(self._folder.name)

    def _start(self, life: Life | None) -> Line:
        armed = None if life is None else life.armed.when
        shared = life is not None and life.staged
        self._line = Line(
            "tests.pipeline.lake.rounds.child",
            self._folder,
            [self._server.dsn, "--tables", *TABLES, *["--shared"] * shared],
            armed=armed,
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
                elif blow.when == killpoints.COLUMNS_ADDED:
                    self._writers[0].alters.set()
            time.sleep(0.01)
        if token.exists():
            token.unlink(missing_ok=True)  # from now on it is nobody's point
            return False
        if blow.who == Who.ENGINE:
            line.process.wait(END_SECONDS)
        return True

    def _count(self, blow: Blow, hit: bool) -> None:
        judge([writer.failure for writer in self._writers if writer.failure])
        self.outcome.count(str(blow), hit=hit)

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
                source = rows_of(connection, table)
                there = json.loads(line.ask(f"look {table}", "rows"))
                if what := different(table, source, there) or different(table, there, source):
                    found.append(f"{table} is not the source in the end: {what}")
                if set(source[0]) != set(last.columns):
                    found.append(f"{table} has columns {last.columns}, not {list(source[0])}")
                for version in self._dice.sample(every, min(LOOKS, len(every))):
                    rows = json.loads(line.ask(f"look {table} {version.number}", "rows"))
                    if what := different(table, version.rows, rows):
                        found.append(f"{table} version {version.number} by Spark: {what}")
        judge(found)
        line.stop()
        self._line = None


def play(plan: Plan) -> Outcome:
    """Play one round and return what came of it."""
    return played("headrace-lake-rounds", SETTINGS, partial(Round, plan))
