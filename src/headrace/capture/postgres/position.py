"""
Positions in a server's write-ahead log.

A commit is numbered by the end of its commit record (R3). These numbers are meaningful
only on one server and in one database, and even there they can be used twice: a server
that was restored from a backup, or a standby that was promoted before it had everything,
goes through them a second time. Each time this is detected, the branch is incremented,
and with it the lineage changes (R1, R2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from headrace.errors import BadPosition

_TEXT = re.compile(
    r"([0-9]{1,20})/([0-9]{1,10})/([0-9]{1,9})/([0-9]{1,10})/([0-9A-F]+)/([0-9A-F]+)"
    r"(?:@([0-9A-F]+/[0-9A-F]+):([0-9]{1,10}):(-?[0-9]{1,19}))?"
)
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


@dataclass(frozen=True, slots=True)
class Mark:
    """Identifies a commit, so that no commit of another history can be mistaken for it."""

    start: int
    """Where its commit record begins: a stream from there starts with it (R3)."""

    xid: int
    """Its top-level transaction, as 32 bits."""

    time: int
    """In microseconds since 1970."""

    def __str__(self) -> str:
        return f"@{lsn_text(self.start)}:{self.xid}:{self.time}"


@dataclass(frozen=True, slots=True)
class LsnPosition:
    """The end of a commit record, or of another record that a keep-alive reported."""

    system: str
    """The server's system identifier."""

    database: int
    """The database's oid."""

    branch: int
    """How often a rewind of this server's history was detected."""

    timeline: int
    lsn: int
    mark: Mark | None = field(default=None, compare=False)
    """The last commit up to here, if there is one."""

    @property
    def lineage(self) -> str:
        """Identifies the history that these numbers belong to."""
        branch = f"/{self.branch}" if self.branch else ""
        return f"pg/{self.system}/{self.database}{branch}"

    @property
    def commit(self) -> int:
        """The position's number; in practice no LSN reaches 2^63."""
        return self.lsn

    def moved_to(self, lsn: int) -> LsnPosition:
        """Return another position in the same history."""
        return replace(self, lsn=lsn)

    def __str__(self) -> str:
        parts = (self.system, self.database, self.branch, self.timeline, lsn_text(self.lsn))
        return "/".join(map(str, parts)) + str(self.mark or "")

    @classmethod
    def parse(cls, text: str) -> LsnPosition:
        """Read back what `str()` wrote; anything else raises `BadPosition`."""
        if (match := _TEXT.fullmatch(text)) is None:
            raise BadPosition("Invalid PostgreSQL position", text=text)
        system, database, branch, timeline, high, low, start, xid, time = match.groups()
        mark = Mark(parse_lsn(start), int(xid), int(time)) if start else None
        lsn = parse_lsn(f"{high}/{low}")
        return cls(system, int(database), int(branch), int(timeline), lsn, mark)


def parse_lsn(text: str) -> int:
    """Read an LSN as PostgreSQL prints it: two halves in hex."""
    if (match := _LSN.fullmatch(text)) is None:
        raise BadPosition("Invalid LSN", text=text)
    return int(match[1], 16) << 32 | int(match[2], 16)


def lsn_text(lsn: int) -> str:
    """Return an LSN as PostgreSQL prints it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
