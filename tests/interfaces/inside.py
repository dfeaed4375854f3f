"""
Long commands on a thread of this process, for tests to which a process is not the point.

The command line is the real one. Engines run on Arrow, their recorders in a thread, and the end is
asked for by a call where a process is sent a signal.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main, run, signals
from headrace.cli.demo import command as flow
from headrace.engine.from_config import EngineConfig
from tests.interfaces.demo_engine import ArrowEngine
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import await_seen


class Asked(signals.EndOnRequest):
    """An end that a test asks for: no signal, no terminal."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.keys = ""

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def asked(self) -> bool:  # type: ignore[override]
        return self.event.is_set()

    def wait(self, seconds: float) -> bool:
        return self.event.wait(seconds)

    def pressed(self, key: str) -> bool:
        with_it, self.keys = key in self.keys, ""
        return with_it


class Inside:
    """A command of this process, on a thread, and what it said."""

    def __init__(self, arguments: list[str], end: Asked) -> None:
        self.out = io.StringIO()
        self.err = io.StringIO()
        self._arguments = arguments
        self._end = end
        self._code: int | None = None
        self.thread = threading.Thread(target=self._run, name="headrace")

    def _run(self) -> None:
        self._code = main.exit_code(self._arguments)

    def until(self, seen: Callable[[], object]) -> None:
        """Wait until something is seen, and no longer than the command lasts."""

        def is_seen() -> bool:
            found = bool(seen())
            assert found or self.thread.is_alive(), self.told()
            return found

        assert await_seen(is_seen, patience()), self.told()

    def ready(self, data: Path | str = "data") -> None:
        """Wait until the engine is ready."""
        self.until(lambda: main.exit_code(["status", "--ready", "--data", str(data)]) == 0)

    def said(self, text: str) -> None:
        """Wait until it has said this, to people or to programs."""
        self.until(lambda: text in self.told())

    def told(self) -> str:
        """Return all it said so far."""
        return self.err.getvalue() + self.out.getvalue()

    def ended(self) -> tuple[int, str, str]:
        """Ask it to end; return its exit code, and all it said."""
        self._end.event.set()
        return self.over()

    def over(self) -> tuple[int, str, str]:
        """Wait for its own end."""
        self.thread.join(patience())
        assert self._code is not None, self.told()
        return self._code, self.out.getvalue(), self.err.getvalue()


class _Stream(io.TextIOBase):
    """What a command writes is its own; what others write goes where it went before."""

    def __init__(self, command: threading.Thread, own: io.StringIO, others: Any) -> None:
        self._command, self._own, self._others = command, own, others

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        mine = threading.current_thread() is self._command
        return int((self._own if mine else self._others).write(text))

    def flush(self) -> None:
        self._others.flush()


@contextmanager
def _begun(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Iterator[Inside]:
    of_spark = EngineConfig.engine
    end = Asked()

    def of_arrow(self: EngineConfig, **overrides: Any) -> Any:
        return of_spark(self, **{"runner": ArrowRunner(), "recorder": "thread", **overrides})

    command = Inside(list(arguments), end)
    with monkeypatch.context() as patched:
        patched.setattr(EngineConfig, "engine", of_arrow)
        patched.setattr(flow, "build", ArrowEngine)
        patched.setattr(signals, "EndOnRequest", lambda **_: end)
        patched.setattr(run, "STARTING_SECONDS", 0.02)
        patched.setattr(run, "RUNNING_SECONDS", 0.05)
        patched.setattr(sys, "stdout", _Stream(command.thread, command.out, sys.stdout))
        patched.setattr(sys, "stderr", _Stream(command.thread, command.err, sys.stderr))
        command.thread.start()
        try:
            yield command
        finally:
            end.event.set()
            command.thread.join(patience())
        # Not in `finally`: what a test failed with is not to be hidden by it.
        assert not command.thread.is_alive(), command.told()


Begin = Callable[..., AbstractContextManager[Inside]]


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begin a command; a context that gives an `Inside`, and ends it if the test has not."""
    return lambda *arguments: _begun(monkeypatch, *arguments)
