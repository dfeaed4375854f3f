"""One round: writers write, an engine follows, and both it and the server suffer."""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from pathlib import Path
from random import Random

from headrace.embedded.postgres import PostgresServer
from headrace.storage import killpoints
from tests.postgres.rounds.check import (
    Watch,
    different,
    effects_wrong,
    keyed,
    log_wrong,
    of_file,
    too_early,
    truth,
)
from tests.postgres.rounds.nemesis import Nemesis
from tests.postgres.rounds.plan import ENGINE_POINTS, Act, Blow, Life, Plan
from tests.postgres.rounds.workload import SCHEMA, resolve, writing
from tests.rounds.killing import end_all, nobody_left
from tests.rounds.line import END_SECONDS, Line
from tests.rounds.outcome import Outcome, RoundFailed, judge
from tests.rounds.play import played
from tests.rounds.source import connected, journal_end
from tests.support.patience import slowness

SETTINGS = {
    "max_prepared_transactions": "20",
    "logical_decoding_work_mem": "64kB",
    "wal_sender_timeout": "3s",
    "deadlock_timeout": "200ms",
    "log_min_messages": "warning",
}

STRIKE_SECONDS = 20.0 * slowness()
"""How long a named point is waited for; then it counts as missed, and the round goes on."""

MARKS = (
    "insert into orders values ({0}, 'mark', 0, '')",
    "insert into lines values ({0}, 0, 0, '')",
    "insert into docs values ({0}, '', 0)",
    "insert into events values (0, {0}, '')",
    "insert into late values ({0}, '')",
)
"""A row in every table, written last: who has it has everything."""


class Round:
    """A plan at work."""

    def __init__(
        self, plan: Plan, server: PostgresServer, folder: Path, *, strike_seconds: float
    ) -> None:
        self.outcome = Outcome(plan.seed)
        self._plan = plan
        self._strike_seconds = strike_seconds
        self._server = server
        self._folder = folder
        self._nemesis = Nemesis(server, folder.name)
        self._dice = Random(f"round {plan.seed}")
        self._line: Line | None = None
        self._watch = Watch(folder / "target.db")

    def run(self) -> None:
        try:
            with connected(self._server.dsn) as connection:
                for statement in SCHEMA:
                    connection.execute(statement.encode())
            with writing(self._plan.seed, self._server.dsn) as writers:
                for life in self._plan.lives:
                    self._live(life)
            for writer in writers:
                self.outcome.writes += writer.done
            judge([writer.failure for writer in writers if writer.failure])
            self._settle(self._plan.lives[-1])
            self._stop()
        finally:
            end_all(self._line, self._folder.name)
            self._watch.stop()
        judge(self._watch.wrong)
        judge(effects_wrong(self._folder / "target.db"))
        judge(log_wrong(self._folder))

    # --- lives ----------------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        line = self._start(life)
        line.expect("started")
        if life.waits:
            self._await_streaming(line, life)
        last = life is self._plan.lives[-1]
        for blow in life.blows:
            time.sleep(blow.after)  # a pace, not a wait: the blow is to fall at any moment
            if self._dead(line, life):
                break
            self._suffer(line, blow)
        if life.armed is not None:
            self._await_strike(line, life)
        if self._dead(line, life):
            self._line = None
        elif not last or self._dice.random() < 0.5:
            self._end(line, life.end)
        if self._line is None and not self._plan.loses_slot:
            nobody_left(self._folder.name)
            with connected(self._server.dsn) as connection:
                judge(too_early(self._folder, connection))
        if life.loses_slot:
            nobody_left(self._folder.name)
            self._nemesis.act(Act.SLOT_DROPPED)
            self.outcome.hits[Act.SLOT_DROPPED] += 1

    def _start(self, life: Life, *, armed: bool = True) -> Line:
        point = f"{life.armed}:{life.nth}" if armed and life.armed else None
        self._line = Line(
            "tests.postgres.rounds.child",
            self._folder,
            [self._server.dsn, "--tables", *life.tables, *["--shared"] * life.shared],
            armed=point,
        )
        return self._line

    def _await_streaming(self, line: Line, life: Life) -> None:
        try:
            line.ask("streaming", "done")
        except RoundFailed:
            if not self._dead(line, life):
                raise

    def _suffer(self, line: Line, blow: Blow) -> None:
        match blow.act:
            case Act.RELOAD:
                done = line.tell(f"reload {blow.table}")
            case Act.PAUSE:
                done = line.tell(f"pause {blow.pipeline}")
            case Act.RESUME:
                done = line.tell(f"resume {blow.pipeline}")
            case Act.HOLDER_ENDED | Act.HOLDER_KILLED:
                line.tell(f"reload {blow.table}")
                done = self._nemesis.act(blow.act)
            case _:
                done = self._nemesis.act(blow.act)
        self.outcome.count(blow.act, hit=done)

    def _await_strike(self, line: Line, life: Life) -> None:
        """Wait until somebody has come by the armed point, and give reason to."""
        assert life.armed is not None
        until = time.monotonic() + self._strike_seconds
        line.tell("resume file")
        line.tell("resume memory")
        asked = 0.0
        while not line.struck and time.monotonic() < until and not line.ended:
            if time.monotonic() - asked > 2:
                table = "events" if life.armed == killpoints.COPY_PLANNED else life.tables[-1]
                line.tell(f"reload {table}")
                asked = time.monotonic()
            time.sleep(0.01)
        struck = line.struck
        self.outcome.count(life.armed, hit=struck)
        if not struck:
            # From now on it is nobody's point.
            line.token.unlink(missing_ok=True)
        elif life.armed in ENGINE_POINTS:
            line.process.wait(END_SECONDS)

    def _dead(self, line: Line, life: Life) -> bool:
        """Whether the engine died at the point it was armed for; any other death is wrong."""
        if not line.ended:
            return False
        if life.armed in ENGINE_POINTS and line.struck and line.close() == -signal.SIGKILL:
            return True
        raise RoundFailed(f"engine ended by itself, exit code {line.close()}")

    def _end(self, line: Line, how: Act) -> None:
        if how == Act.ENGINE:
            line.kill()
            self._line = None
        else:
            self._stop()
        self.outcome.hits[how] += 1

    def _stop(self) -> None:
        assert self._line is not None
        self._line.stop()
        self._line = None
        nobody_left(self._folder.name)

    # --- the check ------------------------------------------------------------------------

    def _settle(self, life: Life) -> None:
        """Let everything come to rest, and look at it."""
        line = self._line or self._start(life, armed=False)
        with connected(self._server.dsn) as connection:
            resolve(connection, self._dice)
            with connection.transaction():
                for statement in MARKS:
                    connection.execute(statement.format(-self._plan.seed - 1).encode())
                # Within it: what was there before may be the end of the commit before, which
                # the targets have already, and its own end is beyond.
                lsn = journal_end(connection)
            line.tell("resume file")
            line.tell("resume memory")
            line.ask(f"settle {lsn}", "settled")
            in_memory = json.loads(line.ask("rows", "rows"))
            found = []
            for table in life.tables:
                wanted = truth(connection, table)
                there = of_file(self._folder / "target.db", table)
                found.append(different(table, "file", wanted, there))
                found.append(different(table, "memory", wanted, keyed(table, in_memory[table])))
        judge([what for what in found if what])


def play(plan: Plan, strike_seconds: float = STRIKE_SECONDS) -> Outcome:
    """Play one round and return what came of it."""
    return played("headrace-rounds", SETTINGS, partial(Round, plan, strike_seconds=strike_seconds))
