"""
Where reading stands in the capture log.

The log table has no AUTOINCREMENT, so a log that somebody empties begins again at 1. A
number alone would then point into another history without anybody noticing. So a place
also carries a witness, facts about the row it names, and reading on begins with a look
whether that row is still there and the same (R40). This finds a wiped log as well as a
database that was restored from a copy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.errors import BadPosition

_TEXT = re.compile(r"([0-9a-f]{32})/(0|[1-9][0-9]{0,18})/(-?[0-9]+\.[0-9]+\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Place:
    """A row of the capture log: the last one read."""

    capture: str
    """The capture's uuid, made at set-up: what its numbers mean is known only within it."""

    seq: int
    witness: str = ""
    """Time, table and kind of that row: `ts.tbl.op`."""

    @property
    def lineage(self) -> str:
        """Numbers of two captures do not compare."""
        return f"sqlite/{self.capture}"

    @property
    def commit(self) -> int:
        """Each logged change is a commit: positions do not depend on who reads (R41)."""
        return self.seq

    def __str__(self) -> str:
        return f"{self.capture}/{self.seq}/{self.witness}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read back what `str()` wrote; anything else raises `BadPosition`."""
        if (match := _TEXT.fullmatch(text)) is None:
            raise BadPosition("Text is not a place in a SQLite capture", text=text)
        return cls(match[1], int(match[2]), match[3] or "")


def witness(ts: object, tbl: object, op: object) -> str:
    """Return what is remembered of a row."""
    return f"{ts}.{tbl}.{op}"
