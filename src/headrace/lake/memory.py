"""
What a target remembers of its tables between two lives: which commit of ours was the last.

The table says itself how far it is. But a table that somebody put back to an earlier version,
or made anew, says so just as calmly; only what was committed before tells (R1).
"""

from __future__ import annotations

import uuid

import msgspec

from headrace.errors import UnknownFormat
from headrace.storage.files import Files

FOLDER = "tables"
FORMAT = 1


class _Table(msgspec.Struct):
    number: int
    """The last commit of ours."""

    identity: str
    """What the format itself tells tables apart by."""

    version: int | None = None
    """Up to which commit, of whomever, its history was looked at and is right."""

    lost: str | None = None
    """Why it must be loaded anew, where the table itself does not tell at the next start."""


class _Kept(msgspec.Struct):
    format: int
    owner: str
    tables: dict[str, _Table]


class Memory:
    """One pipeline's. For the thread that writes."""

    def __init__(self, files: Files, pipeline: str) -> None:
        self._files = files
        self._name = f"{FOLDER}/{pipeline}.json"
        try:
            self._kept = msgspec.json.decode(files.read(self._name), type=_Kept)
        except FileNotFoundError:
            self._kept = _Kept(FORMAT, f"{pipeline}/{uuid.uuid4().hex}", {})
            files.make_folder(FOLDER)
            self._put()
        except msgspec.MsgspecError as error:
            raise UnknownFormat("A file is not as it was written", file=self._name) from error
        if self._kept.format != FORMAT:
            raise UnknownFormat("A file is in an unknown format", file=self._name)

    @property
    def owner(self) -> str:
        """Who this pipeline is, in every table it writes to."""
        return self._kept.owner

    def last(self, table: str) -> int:
        """Return the number of the last commit to a table; 0: none."""
        known = self._kept.tables.get(table)
        return 0 if known is None else known.number

    def identity(self, table: str) -> str | None:
        """Return which table it was that was last committed to; None: there was none."""
        known = self._kept.tables.get(table)
        return None if known is None else known.identity

    def version(self, table: str) -> int | None:
        """Return up to which commit its history was looked at; None: that is not known."""
        known = self._kept.tables.get(table)
        return None if known is None else known.version

    def lost(self, table: str) -> str | None:
        """Return why a table was given up and not loaded since; None: it was not."""
        known = self._kept.tables.get(table)
        return None if known is None else known.lost

    def give_up(self, table: str, why: str) -> None:
        """Store that a table must be loaded anew, until it is committed to again."""
        if (known := self._kept.tables.get(table)) is not None:
            known.lost = why
            self._put()

    def remember(self, table: str, number: int, identity: str, version: int | None) -> None:
        """Store the number of a commit that was made, and how far the table is known."""
        self._kept.tables[table] = _Table(number, identity, version)
        self._put()

    def _put(self) -> None:
        self._files.put(self._name, msgspec.json.encode(self._kept))
