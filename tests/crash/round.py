"""One round: an engine that is killed as its plan says, while the application goes on."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TextIO

from headrace.errors import HeadraceError
from tests.crash import processes
from tests.crash.check import file_rows_at, look, memory_rows, too_early, wrong
from tests.crash.place import Place
from tests.crash.plan import RECORDER, Kill, Plan

ROOT = Path(__file__).parent.parent.parent

STRIKE_SECONDS = 15.0
STRIKE_SECONDS_SPARK = 60.0
"""How long a named point is waited for; then it counts as missed, and the round goes on."""

ANSWER_SECONDS = 60.0
ANSWER_SECONDS_SPARK = 150.0
END_SECONDS = 15.0


class RoundFailed(Exception):
    """Something is wrong; the message says what."""


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


class Child:
    """The engine's process, with a line to it."""

    def __init__(self, place: Place, mark: str, armed: str | None) -> None:
        plan = place.plan
        self.plan = plan
        environment = {
            **os.environ,
            processes.MARK: mark,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        if armed is not None:
            place.token.touch()
            environment["HEADRACE_KILL_POINT"] = armed
            environment["HEADRACE_KILL_ONCE"] = str(place.token)
        arguments = [sys.executable, "-m", "tests.crash.child", str(place.folder)]
        arguments += ["--memory"] * plan.memory + ["--spark"] * plan.spark
        self._errors = (place.folder / "child.err").open("a")
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=place.folder,
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        assert self.process.stdout is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout,))
        self._listener.start()
        self._ready = False
        self._patience = ANSWER_SECONDS_SPARK if plan.spark else ANSWER_SECONDS

    def _listen(self, out: TextIO) -> None:
        for line in out:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def expect(self, word: str) -> str:
        """Wait for an answer and return what follows its first word."""
        until = time.monotonic() + self._patience
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise RoundFailed(f"no {word} within {self._patience} s") from None
            if line is None:
                raise RoundFailed(f"engine ended by itself, exit code {self.process.wait()}")
            said, _, rest = line.partition(" ")
            if said == word:
                return rest
            if said == "error":
                raise RoundFailed(f"engine said: {rest}")

    def await_ready(self) -> None:
        if not self._ready:
            self.expect("ready")
            self._ready = True

    def ask(self, command: str, answer: str) -> str:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RoundFailed(f"engine ended before {command}") from None
        return self.expect(answer)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> int:
        """Wait for the end, let go of everything, and return the exit code."""
        code = self.process.wait(END_SECONDS)
        self._listener.join(END_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # a command nobody will read
        self._errors.close()
        return code


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
        except (sqlite3.Error, HeadraceError, subprocess.TimeoutExpired) as failure:
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
        child = self._child = self._child or Child(self._place, self._mark, kill.armed)
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
        if self._dice.random() < 0.5:
            # Now nobody is left who could catch up with what was promised too early.
            self._nobody_left()
            self._judge(too_early(self._place))
        self._place.write(self._dice.randrange(4))

    def _struck(self, child: Child, kill: Kill) -> bool:
        """Write until the kill has happened; False if it did not come to that."""
        began = time.monotonic()
        patience = STRIKE_SECONDS_SPARK if self._plan.spark else STRIKE_SECONDS
        while not self._strikes(child, kill, time.monotonic() - began):
            if child.ended and self._place.token.exists():
                raise RoundFailed(f"engine ended by itself, exit code {child.close()}")
            if time.monotonic() - began > patience:
                return kill.armed is not None and not self._disarmed()
            self._place.write()
            # A pace, not a wait: an application that leaves nobody a moment is another test.
            time.sleep(self._dice.uniform(0, 0.02))
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
        return any(_killed(pid) for pid in found)

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
        child = self._child = self._child or Child(place, self._mark, None)
        place.write(self._dice.randrange(6))
        child.await_ready()
        place.write(self._dice.randrange(1, 6))
        child.ask(f"settle {place.captured()}", "settled")
        if self._plan.memory:
            rows, effects = memory_rows(child.ask("rows", "rows"))
        else:
            rows, effects = file_rows_at(place.folder / "target.db")
        self._judge(wrong(look(place, rows, effects)))

    def _judge(self, found: list[str]) -> None:
        if found:
            more = f" and {len(found) - 10} more" if len(found) > 10 else ""
            raise RoundFailed("; ".join(found[:10]) + more)

    def _stop(self) -> None:
        if self._child is None:
            return
        child = self._child
        child.ask("stop", "stopped")
        code = child.close()
        self._child = None
        if code != 0:
            raise RoundFailed(f"engine stopped with exit code {code}")
        self._nobody_left()

    def _nobody_left(self) -> None:
        if left := processes.gone(self._mark, END_SECONDS):
            raise RoundFailed(f"processes are left: {left}")

    def _clean_up(self) -> None:
        if self._child is not None:
            self._child.kill()
        for pid in processes.marked(self._mark):
            _killed(pid)
        self._place.close()
        if self.outcome.error is None:
            shutil.rmtree(self._folder)
        else:
            self.outcome.folder = str(self._folder)


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def play(plan: Plan) -> Outcome:
    """Play one round and return what came of it."""
    return Round(plan).run()
