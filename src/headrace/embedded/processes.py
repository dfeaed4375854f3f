"""Processes that are not our own children, as Linux lists them under /proc."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_LOOK_SECONDS = 0.005


def children_of(parent: int) -> list[int]:
    """Return the ids of the processes that `parent` started and that still run."""
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (facts := _facts(int(folder.name))) is not None:
            state, its_parent = facts
            if its_parent == parent and state != "Z":
                found.append(int(folder.name))
    return found


def until_gone(pids: Iterable[int], seconds: float = 30.0) -> bool:
    """Wait until none of `pids` runs any more; return whether that came true in time."""
    until = time.monotonic() + seconds
    left = list(pids)
    while left := [pid for pid in left if (facts := _facts(pid)) is not None and facts[0] != "Z"]:
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _facts(pid: int) -> tuple[str, int] | None:
    """Return state and parent of a process; None where it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name comes in brackets and may hold anything, brackets and blanks too.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)
