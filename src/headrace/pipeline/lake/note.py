"""
What a commit of ours says about itself, in the table's own history.

It is the one place that tells how far the table is: read back at every start, and after every
commit whose outcome is not known.
"""

from __future__ import annotations

import msgspec

from headrace.changelog.position import Position
from headrace.errors import BadPosition

APPLICATION = "headrace"
"""
Whose transactions the numbers count.

The same for every pipeline: a writer that was taken over from, by whomever, asks for a number
that is given out already, and its commit has no effect (R24).
"""

FORMAT = 1

LOAD = "baseline-"
"""What the batch of a commit is called that loads the table."""


class Note(msgspec.Struct, frozen=True, omit_defaults=False):
    """One commit of ours."""

    headrace: int
    """The format of this note."""

    owner: str
    """The pipeline, of one data directory: nobody else writes to the table."""

    writer: str
    """The life of the engine that committed."""

    number: int
    """Counted by the table's commits of ours, from 1."""

    position: str
    """Everything up to here is in the table."""

    lineage: str
    baseline: int
    """The number of the baseline that the rows began with; 0: none."""

    batch: str
    table: str = ""
    """The source's table; empty in notes of before there was this field."""

    mode: str = ""
    """What the table shows of it; likewise."""

    @property
    def loads(self) -> bool:
        """Whether it begins anew with a baseline, whatever was there before."""
        return self.batch.startswith(LOAD)

    @property
    def at(self) -> Position:
        """The position, as one."""
        return Position.parse(self.position)


def written(note: Note) -> str:
    """Return the note as text for a commit."""
    return msgspec.json.encode(note).decode()


def read(text: str | None) -> Note | None:
    """Return the note in a commit's text; None where it is none of ours."""
    if not text:
        return None
    try:
        note = msgspec.json.decode(text, type=Note)
        note.at  # noqa: B018  # Raises where it is no position.
    except (msgspec.MsgspecError, BadPosition):
        return None
    return note if note.headrace == FORMAT else None
