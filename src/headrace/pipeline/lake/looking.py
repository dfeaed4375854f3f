"""
What a table's own history says, commit by commit: how far it is, and who else was there.

Everything up to a version that was looked at before is known. Behind it there may be commits of
ours, and of others such that leave every row as it is. Anything else means that the rows are not
those that were left there (R1), and a commit of ours on top of it does not make them so; a load
does, which begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headrace.pipeline.lake.commits import Found
from headrace.pipeline.lake.note import Note

CUT_OFF = "its history does not reach back to what was left there"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of whomever."""

    version: int
    operation: str
    note: Note | None
    """What it says where it is one of ours."""


def settled(commits: Sequence[Commit], since: int | None) -> bool:
    """Whether these, the newest first, are enough to say what happened since a version."""
    for commit in commits:
        if commit.note is not None and (
            since is None or commit.version <= since or commit.note.loads
        ):
            return True
    return False


def looked_at(
    commits: Sequence[Commit], since: int | None, keeping: Collection[str], number: int = 0
) -> Found:
    """
    Return what commits, the newest first, say since a version; None: since the last of ours.

    `keeping` are the operations that leave every row as it is, `number` the highest one that was
    given out where no commit tells.
    """
    note = next((commit.note for commit in commits if commit.note is not None), None)
    newest = commits[0].version if commits else -1
    if note is None:
        return Found(None, None, newest, number)
    others: str | None = None
    for commit in commits:
        if since is not None and commit.version <= since:
            return Found(note, others, newest, note.number)
        if commit.note is not None and commit.note.owner == note.owner:
            if since is None or commit.note.loads:
                return Found(note, others, newest, note.number)
        elif commit.note is not None or commit.operation not in keeping:
            others = commit.operation
    reaches = since is not None and bool(commits) and commits[-1].version <= since + 1
    return Found(note, others if reaches else others or CUT_OFF, newest, note.number)
