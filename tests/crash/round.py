"""One round: an engine that is killed as its plan says, while the application goes on."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from headrace.errors import HeadraceError
from tests.crash import looking
from tests.crash.again import Again
from tests.crash.check import wrong
from tests.crash.engine_line import Child
from tests.crash.place import Place
from tests.crash.plan import RECORDER, Kill, Plan
from tests.rounds import processes
from tests.rounds.killing import end_all, nobody_left
from tests.rounds.killing import kill as kill_process
from tests.rounds.outcome import RoundFailed, judge
from tests.support.patience import slowness

STRIKE_SECONDS = 15.0
STRIKE_SECONDS_SPARK = 60.0
"""
How long a named point is waited for on a quiet machine; then it counts as missed, and the round
goes on.
"""

PACE = 0.02
PACE_SPARK = 0.1
"""Seconds between two transactions, at most: while a JVM starts, much would gather."""


@dataclass(slots=True)
class Outcome:
    """What a round came to."""

    plan: Plan
    hits: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    error: str | None = None
    folder: str | None = None
    """Kept only where something was wrong."""

    seconds: float = 0.0


class Round:
    """A plan at work."""

    def __init__(self, plan: Plan) -> None:
        self.outcome = Outcome(plan)
        self._plan = plan
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-crash-"))
        self._mark = self._folder.name
        self._dice = Random(f"round {plan.seed}")
        self._child: Child | None = None
        self._place = Place(self._folder, plan)
        self._owed: dict[str, int] = {}
        self._again = Again(self._place)

    def run(self) -> Outcome:
        began = time.monotonic()
        try:
            for kill in self._plan.kills:
                self._suffer(kill)
                if kill.settles:
                    self._settle()
            self._stop()
        except RoundFailed as failure:
            self.outcome.error = str(failure)
        except (
            sqlite3.Error,
            HeadraceError,
            subprocess.TimeoutExpired,
            AssertionError,
        ) as failure:
            # A write of the application that failed, a log that cannot be read, no end.
            self.outcome.error = f"{type(failure).__name__}: {failure}"
        finally:
            self._clean_up()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # --- kills ----------------------------------------------------------------------------

    def _suffer(self, kill: Kill) -> None:
        """Start an engine, or go on with the one there is, and kill it or its recorder."""
        if self._child is not None and kill.armed is not None:
            # Only a new process can be armed.
            self._stop()
        child = self._child = self._child or Child(self._place, kill.armed)
        if not self._struck(child, kill):
            self.outcome.missed[kill.strike] += 1
            return
        self.outcome.hits[kill.strike] += 1
        if not kill.ends_engine:
            return
        code = child.close()
        self._child = None
        if code != -signal.SIGKILL:
            raise RoundFailed(f"engine ended with {code} instead of being killed")
        self._owed.update(child.owed)
        judge(self._again.killed(kill.strike))
        if self._dice.random() < 0.5:
            # Now nobody is left who could catch up with what was promised too early.
            nobody_left(self._mark)
            judge(looking.too_early(self._place))
        self._place.write(self._dice.randrange(4))

    def _struck(self, child: Child, kill: Kill) -> bool:
        """Write until the kill has happened; False if it did not come to that."""
        began = time.monotonic()
        most = (STRIKE_SECONDS_SPARK if self._plan.spark else STRIKE_SECONDS) * slowness()
        while not self._strikes(child, kill, time.monotonic() - began):
            if child.ended and self._place.token.exists():
                raise RoundFailed(f"engine ended by itself, exit code {child.close()}")
            if time.monotonic() - began > most:
                return kill.armed is not None and not self._disarmed()
            self._place.write()
            # A pace, not a wait: an application that leaves nobody a moment is another test.
            time.sleep(self._dice.uniform(0, PACE_SPARK if self._plan.spark else PACE))
        return True

    def _strikes(self, child: Child, kill: Kill, seconds: float) -> bool:
        """Kill, if it is time and somebody is there; for named points, see whether it was done."""
        if kill.armed is not None:
            return not self._place.token.exists()
        if seconds < kill.after:
            return False
        found = [child.process.pid]
        if kill.strike == RECORDER:
            found = processes.recorders(self._mark)[:1]
        return any(kill_process(pid) for pid in found)

    def _disarmed(self) -> bool:
        try:
            self._place.token.unlink()
        except FileNotFoundError:
            return False  # hit at the last moment
        return True

    # --- the check ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let everything come to rest, and look at it."""
        place = self._place
        child = self._child = self._child or Child(place, None)
        place.write(self._dice.randrange(6))
        child.await_ready()
        place.write(self._dice.randrange(1, 6))
        child.ask(f"settle {place.captured()}", "settled")
        held = self._held(child)
        judge(held.wrong)
        judge(wrong(looking.look(place, held)))
        judge(self._again.settled())
        self._owed.update(child.owed)
        numbers = looking.baseline_numbers(place)
        judge(
            [
                f"{table} was to be loaded anew, and is from baseline {numbers[table]}"
                for table, number in self._owed.items()
                if numbers[table] <= number
            ]
        )

    def _held(self, child: Child) -> looking.Held:
        folder = self._place.folder
        match self._plan.target:
            case "memory":
                return looking.of_memory(child.ask("rows", "rows"))
            case "queue":
                return looking.of_queue(folder / "queue.jsonl")
            case "frames":
                return looking.of_frames(folder / "frames")
            case _:
                return looking.of_file(folder / "target.db")

    def _stop(self) -> None:
        if self._child is None:
            return
        self._child.stop()
        self._child = None
        nobody_left(self._mark)

    def _clean_up(self) -> None:
        end_all(self._child, self._mark)
        self._place.close()
        if self.outcome.error is None:
            shutil.rmtree(self._folder)
        else:
            self.outcome.folder = str(self._folder)


def play(plan: Plan) -> Outcome:
    """Play one round and return what came of it."""
    return Round(plan).run()
