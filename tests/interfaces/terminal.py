"""A terminal in memory, for looking at what a command draws."""

from __future__ import annotations

import os
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pyte

from tests.support.patience import patience

ROOT = Path(__file__).parent.parent.parent


class Terminal:
    """A child on a terminal of a given size, and what its screen shows."""

    def __init__(
        self,
        arguments: list[str],
        cwd: Path,
        columns: int,
        lines: int = 24,
        no_color: str = "",
        program: str = sys.executable,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=2_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.left_behind: list[Any] = []
        """The terminal's settings after the child's end."""

        self.child = pexpect.spawn(
            program,
            arguments,
            dimensions=(lines, columns),
            cwd=str(cwd),
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                "TERM": "xterm-256color",
                "NO_COLOR": no_color,
            },
        )

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    @property
    def all_text(self) -> str:
        """What scrolled away, and the screen."""
        top = [
            "".join(line[column].data for column in range(self.screen.columns))
            for line in self.screen.history.top
        ]
        return "\n".join([*top, *self.screen.display])

    def until(self, seen: Callable[[str], bool], seconds: float = 60) -> None:
        """Read until the screen satisfies `seen`."""
        end = time.monotonic() + patience(seconds)
        while not seen(self.text):
            ended = not self._read()
            assert seen(self.text) or (not ended and time.monotonic() < end), self.all_text

    def to_the_end(self, seconds: float = 60) -> int:
        """Read until the child ends; return its exit code."""
        end = time.monotonic() + patience(seconds)
        while self._read():
            assert time.monotonic() < end, self.all_text
        self.left_behind = termios.tcgetattr(self.child.fileno())
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -1)

    def _read(self) -> bool:
        try:
            data = self.child.read_nonblocking(65_536, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True
