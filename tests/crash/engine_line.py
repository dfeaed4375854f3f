"""The engine's process of a round, as seen from outside: a line to ask it, and its end."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from tests.crash import processes
from tests.crash.place import Place
from tests.support.patience import patience

ROOT = Path(__file__).parent.parent.parent

ANSWER_SECONDS = patience(240)
ANSWER_SECONDS_SPARK = patience(480)
"""More than the engine itself waits for before it says what is wrong."""

END_SECONDS = patience()


class RoundFailed(Exception):
    """Something is wrong; the message says what."""


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
        arguments += ["--spark"] * plan.spark + ["--fails"] * plan.fails
        arguments += ["--target", plan.target, "--tables", *plan.tables]
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
        self.owed: dict[str, int] = {}
        """Tables that are owed a baseline newer than this number, as the engine told."""
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout,))
        self._listener.start()
        self._ready = False
        if plan.reload:
            # It will be read when the engine is ready; nobody waits for that here.
            self.tell(f"reload {plan.tables[0]}")
        self._patience = ANSWER_SECONDS_SPARK if plan.spark else ANSWER_SECONDS

    def _listen(self, out: TextIO) -> None:
        for line in out:
            match line.split():
                case ["reloading", table, number]:
                    self.owed[table] = int(number)
                case _:
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
        self.tell(command)
        return self.expect(answer)

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RoundFailed(f"engine ended before {command}") from None

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
