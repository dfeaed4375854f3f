"""
One of the pytest processes that share a run of the tests (a plugin of pytest).

`tools/run_tests.py` starts the first one. It collects the tests and forks the others, because
collecting takes as long as a sixth of the fast tests. Then each claims one file after the other,
and writes a line for every test that it ran. Alone, without the runner, this plugin only looks for
processes that a test starts and does not say so.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import strategies as st

from tests.support.cpu import MARK, Meter
from tests.support.patience import slowness

SHARED = "TESTS_RUN"
"""The folder that the processes of a run share."""

JOBS = "TESTS_JOBS"
"""How many processes share the run."""

FORKED, ENDED = "forked.json", "ended.json"
"""Files in the shared folder: the numbers of the forked processes, and their exit codes."""

COSTS = ("cluster", "s3", "crash", "spark", "server", "process", "slow")
"""What a test needs, the dearest first; one with none of them is fast."""

GUESSED = {
    "cluster": 60.0,
    "s3": 5.0,
    "crash": 40.0,
    "spark": 6.0,
    "server": 0.7,
    "process": 2.0,
    "slow": 0.5,
    "fast": 0.02,
}
"""Seconds of a test where nobody has measured its file yet, as in a new clone."""

STARTS_PROCESSES = {"cluster", "s3", "crash", "spark", "server", "process"}

SHARED_FOLDER = os.environ.pop(SHARED, None)
"""That of this run; taken out of the environment, for a pytest that a test starts is alone."""

_jobs = int(os.environ.pop(JOBS, "1"))

_meter = Meter()
_forked: list[int] = []
"""The processes that this one forked."""
_left_out: list[pytest.Item] = []
_started: list[str] = []


def cost(item: pytest.Item) -> str:
    """Return what is said of a test's cost; `fast` where nothing is."""
    marks = {mark.name for mark in item.iter_markers()}
    return next((each for each in COSTS if each in marks), "fast")


# -- processes that a test starts -----------------------------------------------------------


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"):
        _started.append(f"{event} {arguments[:2]}")


sys.addaudithook(_listen)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Fail a test that starts a process and is not marked for it: it would slow down FAST."""
    _started.clear()
    outcome = yield
    if _started and cost(pyfuncitem) not in STARTS_PROCESSES:
        pytest.fail(f"starts a process, so mark it `process`: {_started[0][:200]}", pytrace=False)
    return outcome


# -- which files this process runs ------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run what this process can claim, instead of everything."""
    if SHARED_FOLDER is None or session.config.option.collectonly:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    _fork_others(session.config, Path(SHARED_FOLDER))
    items = _claimed(session.items, Path(SHARED_FOLDER))
    item = next(items, None)
    while item is not None:
        # Claimed ahead of time: pytest keeps the fixtures that the next test needs.
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _fork_others(config: pytest.Config, shared: Path) -> None:
    """Fork the other processes of the run, each with an output, a ledger and a meter of its own."""
    run = os.environ[MARK].rpartition("-")[0]
    sys.stdout.flush()
    sys.stderr.flush()
    for number in range(1, _jobs):
        with warnings.catch_warnings():
            # Libraries have threads that wait, and take care of a fork themselves.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            _forked.append(pid)
            continue
        _forked.clear()
        os.environ[MARK] = f"{run}-{number}"
        _redirect(config, shared / f"output-{number}.txt")
        _meter.restart(os.environ[MARK])
        ledger: Any = config.pluginmanager.get_plugin("headrace-ledger")
        ledger.restart()
        return
    _meter.exclude(_forked)
    (shared / FORKED).write_text(json.dumps([*_forked]))


def _redirect(config: pytest.Config, output: Path) -> None:
    """Write what this process prints to a file; captures hold what they found when they began."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=False)


def _claimed(items: Sequence[pytest.Item], shared: Path) -> Iterator[pytest.Item]:
    """Yield the tests of the files that no other process has begun, the longest files first."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.path.relative_to(item.config.rootpath).as_posix()
        files.setdefault(name, []).append(item)
    costs = {name: {cost(item) for item in files[name]} for name in files}
    times = json.loads((shared / "times.json").read_text())
    first = os.environ[MARK].endswith("-0")

    def order(name: str) -> tuple[bool, bool, float, str]:
        expected = times.get(name, sum(GUESSED[cost(item)] for item in files[name]))
        # One JVM serves all files on Spark; another process begins one only when idle. One cluster
        # serves all files that need one: whoever has begun it goes on with them.
        return ("spark" in costs[name]) != first, "cluster" not in costs[name], -expected, name

    for name in sorted(files, key=order):
        claimed = "cluster" if "cluster" in costs[name] else name.replace("/", ".")
        if _claim(shared / f"claimed-{claimed}"):
            yield from files[name]


def _claim(path: Path) -> bool:
    """Return whether this process has what a file stands for, and no other."""
    try:
        with path.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return path.read_text() == str(os.getpid())
    return True


# -- what became of them ------------------------------------------------------------------------


class Ledger:
    """Writes a line for every test to the file of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = self._opened()
        self._outcomes: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def _opened(self) -> TextIO:
        return (self._folder / f"worker-{os.getpid()}.jsonl").open("a")

    def restart(self) -> None:
        """Write to another file, in a process that was forked."""
        self._file.close()
        self._file = self._opened()

    def write(self, **line: object) -> None:
        """Append a line, at once visible to others."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        expensive = cost(item) not in ("fast", "slow")
        cpu, began = _meter.seconds(expensive), time.monotonic()
        self._outcomes[item.nodeid] = "passed"
        outcome = yield
        self.write(
            id=item.nodeid,
            outcome=self._outcomes.pop(item.nodeid),
            seconds=round(time.monotonic() - began, 3),
            cpu=round(_meter.seconds(expensive) - cpu, 3),
            cost=cost(item),
            reason=self._reasons.pop(item.nodeid, ""),
        )
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" and self._outcomes.get(report.nodeid) != "failed":
            self._outcomes[report.nodeid] = report.outcome
            if isinstance(report.longrepr, tuple):
                self._reasons[report.nodeid] = report.longrepr[2]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.write(collected=len(session.items), left_out=_reasons())

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write(total_cpu=round(_meter.seconds(), 2), exit=int(exitstatus))
        self._file.close()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    _left_out.extend(items)


def _reasons() -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in _left_out:
        marks = {mark.name for mark in item.iter_markers()}
        reason = next((each for each in ("nightly", "ci") if each in marks), cost(item))
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def pytest_configure(config: pytest.Config) -> None:
    # Now, and not in the first test that needs it: both start processes.
    slowness()
    with contextlib.suppress(ImportError):
        importlib.import_module("inotify_simple").INotify().close()
    if SHARED_FOLDER is not None:
        config.pluginmanager.register(Ledger(Path(SHARED_FOLDER)), "headrace-ledger")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Wait for the processes that were forked, and keep how they ended."""
    if SHARED_FOLDER is None or not _forked:
        return
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in _forked]
    (Path(SHARED_FOLDER) / ENDED).write_text(json.dumps(ended))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Have Hypothesis make its table of characters: a second in a new clone, and no test's own."""
    st.text().validate()
