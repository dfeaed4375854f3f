"""The CPU seconds of a test with everything it started: children, servers, JVMs."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MARK = "TESTS_WORKER"
"""Set in the environment of a worker, and so of every process that comes from it."""

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(slots=True)
class _Process:
    """A process, as it was last seen."""

    parent: int
    seconds: float
    begun: int
    """When it began; with its number that names it, for numbers are given again within a run."""


@dataclass(slots=True)
class Meter:
    """
    Adds up the CPU time of this process and of all that came from it.

    A daemon's parent is not this process, so it is known by its environment; a server that writes
    its title over that, as PostgreSQL does, is known by its parent. Where the system has no /proc,
    only this process and its ended children are counted.
    """

    mark: str = field(default_factory=lambda: os.environ.get(MARK, ""))
    _others: dict[int, int] = field(default_factory=dict)
    """Processes that are not of this worker: their numbers, and when they began."""
    _alive: dict[int, _Process] = field(default_factory=dict)
    _excluded: set[int] = field(default_factory=set)
    _gone: float = 0.0
    _ended: float = 0.0
    """What children had used that had ended at the last look."""
    _total: float = 0.0

    def restart(self, mark: str) -> None:
        """Begin at nothing, in a process that was forked."""
        self.__init__(mark)  # type: ignore[misc]

    def exclude(self, pids: Iterable[int]) -> None:
        """Do not count these children, nor what they start."""
        self._excluded |= {*pids}

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
        total = own + self._gone + sum(each.seconds for each in self._alive.values())
        # Killed together with its parent, a process hands its time to nobody. It was used.
        self._gone += max(0.0, self._total - total)
        self._total = max(self._total, total)
        return self._total

    def _look(self) -> None:
        try:
            numbers = sorted(int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
        except OSError:
            return
        before, self._alive = self._alive, {}
        others, self._others = self._others, {}
        present = {pid: seen for pid in numbers if (seen := _read(pid)) is not None}
        for pid in (os.getpid(), *self._excluded):
            present.pop(pid, None)
        # Parents before their children, whose numbers may be lower.
        for pid, seen in sorted(present.items(), key=lambda each: each[1].begun):
            known = before.get(pid)
            was_ours = known is not None and known.begun == seen.begun
            was_not = others.get(pid) == seen.begun
            if was_ours or (not was_not and self._is_ours(pid, seen)):
                self._alive[pid] = seen
            else:
                self._others[pid] = seen.begun
        for pid, last in before.items():
            now = self._alive.get(pid)
            # A child's time is handed to its parent; nobody of ours is given that of a daemon.
            if last.parent == 1 and (now is None or now.begun != last.begun):
                self._gone += last.seconds

    def _is_ours(self, pid: int, seen: _Process) -> bool:
        if seen.parent in self._excluded:
            return False  # its environment may be ours, if it was forked only
        by_parent = seen.parent == os.getpid() or seen.parent in self._alive
        return by_parent or _is_marked(pid, self.mark)


def _is_marked(pid: int, mark: str) -> bool:
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
    used = sum(map(int, fields[11:15])) / _TICK
    return _Process(int(fields[1]), used, int(fields[19]))
