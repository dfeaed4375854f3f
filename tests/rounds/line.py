"""The engine's process of a round, as seen from outside: a line to ask it, and its end."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.rounds import processes
from tests.rounds.outcome import RoundFailed
from tests.support.patience import patience

ROOT = Path(__file__).parent.parent.parent

ANSWER_SECONDS = patience(300)
"""Longer than the process itself waits, so that it can say what it waited for."""

END_SECONDS = patience()


class Line:
    """A running engine. Killed by `token` where a point is armed, or from outside."""

    def __init__(
        self,
        module: str,
        folder: Path,
        arguments: Sequence[str],
        *,
        armed: str | None = None,
        patience: float = ANSWER_SECONDS,
    ) -> None:
        self._patience = patience
        self.token = folder / "token"
        environment = {
            **os.environ,
            processes.MARK: folder.name,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        if armed is not None:
            self.token.touch()
            environment["HEADRACE_KILL_POINT"] = armed
            environment["HEADRACE_KILL_ONCE"] = str(self.token)
        self.armed = armed
        with (folder / "child.err").open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=folder,
                text=True,
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._take(line.rstrip("\n"))
        self._lines.put(None)

    def _take(self, line: str) -> None:
        self._lines.put(line)

    @property
    def struck(self) -> bool:
        """Whether somebody died at the armed point."""
        return self.armed is not None and not self.token.exists()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def tell(self, command: str) -> bool:
        """Send a command nobody waits for; False where the process is gone."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return False
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def ask(self, command: str, answer: str) -> str:
        """Send a command, wait for its answer and return what follows the first word."""
        self.tell(command)
        return self.expect(answer)

    def expect(self, answer: str) -> str:
        """Wait for an answer and return what follows the first word."""
        until = time.monotonic() + self._patience
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise RoundFailed(f"no {answer} within {self._patience} s") from None
            if line is None:
                raise RoundFailed(f"engine ended before {answer}, exit code {self.close()}")
            said, _, rest = line.partition(" ")
            if said == answer:
                return rest
            if said == "error":
                raise RoundFailed(f"engine said: {rest}")

    def stop(self) -> None:
        """Let it stop, and raise where it does not end well."""
        self.ask("stop", "stopped")
        if code := self.close():
            raise RoundFailed(f"engine stopped with exit code {code}")

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> int:
        """Wait for the end, let go of everything, and return the exit code."""
        code = self.process.wait(END_SECONDS)
        self._listener.join(END_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # a command nobody will read
                if pipe is not None:
                    pipe.close()
        return code
