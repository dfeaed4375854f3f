"""The CPU seconds of a test with everything it started: children, servers, JVMs."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from pathlib import Path

MARK = "TESTS_WORKER"
"""Set in the environment of a worker, and so of every process that comes from it."""

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(slots=True)
class _Process:
    """A process of this worker, as it was last seen."""

    parent: int
    seconds: float


@dataclass(slots=True)
class Meter:
    """
    Adds up the CPU time of this process and of all that came from it.

    Servers are daemons: their parent is not this process, so they are known by their environment.
    Where the system has no /proc, only this process and its ended children are counted.
    """

    mark: str = field(default_factory=lambda: os.environ.get(MARK, ""))
    _ours: dict[int, bool] = field(default_factory=dict)
    _alive: dict[int, _Process] = field(default_factory=dict)
    _gone: float = 0.0
    _ended: float = 0.0
    """What children had used that had ended at the last look."""

    def seconds(self, with_others: bool = True) -> float:
        """Return the CPU seconds so far; `with_others` looks for processes that still run."""
        here = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = children.ru_utime + children.ru_stime
        # A child that has ended since is counted there, and must not be as one that runs.
        if self.mark and (with_others or ended != self._ended):
            self._look()
            self._ended = ended
        own = here.ru_utime + here.ru_stime + ended
        return own + self._gone + sum(each.seconds for each in self._alive.values())

    def _look(self) -> None:
        try:
            present = {int(path.name) for path in _PROC.iterdir() if path.name.isdigit()}
        except OSError:
            return
        for pid in self._ours.keys() - present:
            del self._ours[pid]
            last = self._alive.pop(pid, None)
            # A child's time is handed to its parent; nobody of ours is given that of a daemon.
            if last is not None and last.parent == 1:
                self._gone += last.seconds
        for pid in present - {os.getpid()}:
            if pid not in self._ours:
                self._ours[pid] = _is_ours(pid, self.mark)
            if self._ours[pid] and (seen := _read(pid)) is not None:
                self._alive[pid] = seen


def _is_ours(pid: int, mark: str) -> bool:
    wanted = f"{MARK}={mark}".encode()
    try:
        return wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _read(pid: int) -> _Process | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    # state, parent, ...: user and system time, its own and that of its ended children.
    return _Process(int(fields[1]), sum(map(int, fields[11:15])) / _TICK)
