"""Who ends processes of a round, at instants that are seen from outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.pipeline.lake.rounds.plan import When, Who
from tests.rounds import processes
from tests.rounds.killing import kill, until
from tests.support.patience import patience

LOOK_SECONDS = patience()
"""How long somebody is looked for who is to be ended, or an instant is waited for."""

_LINES = {Who.JVM: "org.apache.spark", Who.WORKER: "pyspark", Who.RECORDER: "capture.recorder"}
"""What their command lines have, and no other's."""


class Nemesis:
    """Acts on the processes that bear one mark, and looks at the tables of one folder."""

    def __init__(self, folder: Path, lake: Path) -> None:
        self._mark = folder.name
        self._lake = lake

    def strike(self, who: Who) -> bool:
        """Kill one of them; False where none was there."""
        return until(lambda: self._killed(who), LOOK_SECONDS)

    def await_instant(self, when: str, over: Callable[[], bool]) -> bool:
        """Wait until it is seen; False where it is not, or where there is nothing left to see."""
        before = self._seen(when)
        seen = until(lambda: over() or self._seen(when) - before, LOOK_SECONDS)
        return seen and not over()

    def _seen(self, when: str) -> set[str]:
        pattern = "*/*.parquet" if when == When.DATA else "*/_delta_log/*.json"
        return {str(path) for path in self._lake.glob(pattern) if path.name[0] != "."}

    def _killed(self, who: Who) -> bool:
        found = [pid for pid, line in processes.marked(self._mark).items() if _is(who, line)]
        # The newest: of Python workers the one that is at work, not the one they come from.
        return any(kill(pid) for pid in sorted(found, reverse=True))


def _is(who: Who, line: str) -> bool:
    is_java = "java" in line.split(" ")[0]
    return _LINES[who] in line and is_java == (who == Who.JVM)
