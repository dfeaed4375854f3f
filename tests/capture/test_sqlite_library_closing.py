"""Closing a capture from signal handlers, and from threads that its handler waits for."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headrace.capture.sqlite import Batch, Capture
from headrace.capture.sqlite.library.handlers import Post
from headrace.capture.sqlite.library.records import Interrupted
from headrace.errors import RunTwice
from tests.capture.library import Running
from tests.support.patience import patience

LINES = sorted({line for *_, line in Capture._only_run.__code__.co_lines() if line})


@pytest.fixture(autouse=True)
def _table(app: sqlite3.Connection, path: Path) -> None:
    app.execute("create table t (id integer primary key, v)")
    app.execute("insert into t values (1, 0)")
    Capture(path, ["t"], print).setup()


@contextmanager
def on_signal(do: Any) -> Iterator[None]:
    """Let SIGUSR1 call `do`."""
    before = signal.signal(signal.SIGUSR1, lambda *_: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def signal_at(line: int) -> Iterator[None]:
    """Raise SIGUSR1 before a line of a capture's run, once."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not Capture._only_run.__code__:
            return None
        if event == "line" and frame.f_lineno == line:
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"line {line - LINES[0]}")
def test_a_signal_may_close_a_capture_at_any_line_of_its_run(path: Path, line: int) -> None:
    capture = Capture(path, ["t"], print)
    # Before the run has begun, none does. A close that waits here would wait for ever.
    with on_signal(capture.close), signal_at(line), contextlib.suppress(RunTwice):
        capture.bootstrap()
    assert capture.close(timeout=0), "the run has ended"


def test_a_signal_may_close_while_the_same_thread_waits_for_the_end(path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(batch: Batch) -> None:
        entered.set()
        assert leave.wait(patience())

    capture = Capture(path, ["t"], slow)
    run = Running(capture, "bootstrap")
    assert entered.wait(patience())

    def closes() -> None:
        leave.set()
        assert capture.close()

    main = threading.get_ident()
    with on_signal(closes):
        raiser = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
        raiser.start()
        assert capture.close()
        raiser.join()
    run.join()


def test_whom_the_handler_waits_for_may_ask_without_waiting(path: Path) -> None:
    answers: list[bool] = []

    def handle(batch: Batch) -> None:
        asks = threading.Thread(target=lambda: answers.append(capture.close(timeout=0)))
        asks.start()
        asks.join(patience())

    capture = Capture(path, ["t"], handle)
    capture.bootstrap_and_cdc()
    assert answers == [False]
    assert capture.close()
    assert capture.close(timeout=0)


def test_a_close_that_waits_no_longer_says_that_the_run_goes_on(path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(batch: Batch) -> None:
        entered.set()
        assert leave.wait(patience())

    run = Running(Capture(path, ["t"], slow), "bootstrap")
    assert entered.wait(patience())
    assert not run.capture.close(timeout=0.01)
    leave.set()
    assert run.capture.close()
    run.join()
    assert Capture(path, ["t"], print).close(), "there is no run to wait for"


def test_a_signal_ends_the_rest_of_a_handler_on_its_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    post = Post("http://localhost:1", None, retry_seconds=60)  # type: ignore[arg-type]
    monkeypatch.setattr("time.sleep", lambda seconds: signal.raise_signal(signal.SIGUSR1))
    with on_signal(post.stop), pytest.raises(Interrupted):
        post._rest(1000.0)
