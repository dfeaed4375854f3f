"""Processes of a round, known by a mark in their environment, which children inherit."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

MARK = "HEADRACE_CRASH_ROUND"


def marked(mark: str) -> dict[int, str]:
    """Return the command lines of all living processes with this mark, by number."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = line.decode(errors="replace").strip()
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found


def recorders(mark: str) -> list[int]:
    """Return the recorders among them, the newest first."""
    found = [pid for pid, line in marked(mark).items() if "headrace.capture.recorder" in line]
    return sorted(found, reverse=True)


def gone(mark: str, timeout: float) -> dict[int, str]:
    """Wait until none is left; return those that are still there after `timeout` seconds."""
    until = time.monotonic() + timeout
    while (left := marked(mark)) and (seconds := until - time.monotonic()) > 0:
        await_end(next(iter(left)), seconds)
    return left


def await_end(pid: int, seconds: float) -> bool:
    """Return whether a process ends in time; also one that nobody collects."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
