"""CPU seconds of all our processes, with those of the database server apart."""

from __future__ import annotations

import os

from bench.processes import cpu_seconds, family


class Ours:
    """Counts from `begin` on: this process and all it started, but for the server's."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._before: dict[int, float] = {}

    def begin(self) -> None:
        """Take down what each process has used before."""
        self._before = {pid: cpu_seconds([pid]) for pid in family(os.getpid())}

    def used(self) -> tuple[float, float]:
        """Return the seconds used since by us, and by the server."""
        theirs = set(family(self._server))
        ours = server = 0.0
        for pid in family(os.getpid()):
            grown = cpu_seconds([pid]) - self._before.get(pid, 0.0)
            if pid in theirs:
                server += grown
            else:
                ours += grown
        return ours, server
