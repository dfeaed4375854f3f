"""
What a target stores about its tables between two runs: our last commit to each.

The table itself has its position. But a table that was restored to an earlier version, or created
again, also has one. Only the stored number of our last commit shows the difference (R1).
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
    """The number of our last commit."""

    identity: str
    """The format's own id of the table."""

    version: int | None = None
    """The version up to which the history was checked, with commits of other writers."""

    lost: str | None = None
    """Why it must be loaded again, if the table itself does not show it at the next start."""


class _Kept(msgspec.Struct):
    format: int
    owner: str
    tables: dict[str, _Table]


class Memory:
    """What one pipeline stores about its tables. For the thread that writes."""

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
            raise UnknownFormat("The file cannot be parsed", file=self._name) from error
        if self._kept.format != FORMAT:
            raise UnknownFormat(
                f"The file has format {self._kept.format}, and this version of Headrace reads"
                f" format {FORMAT}",
                file=self._name,
            )

    @property
    def owner(self) -> str:
        """The id of this pipeline in every table it writes to."""
        return self._kept.owner

    def last(self, table: str) -> int:
        """Return the number of our last commit to a table; 0 if there was none."""
        known = self._kept.tables.get(table)
        return 0 if known is None else known.number

    def identity(self, table: str) -> str | None:
        """Return the identity of the table at our last commit; None if there was none."""
        known = self._kept.tables.get(table)
        return None if known is None else known.identity

    def version(self, table: str) -> int | None:
        """Return the version up to which its history was checked; None if not known."""
        known = self._kept.tables.get(table)
        return None if known is None else known.version

    def lost(self, table: str) -> str | None:
        """Return why a table must be loaded again; None if it need not."""
        known = self._kept.tables.get(table)
        return None if known is None else known.lost

    def give_up(self, table: str, why: str) -> None:
        """Store that a table must be loaded again; the next commit clears it."""
        if (known := self._kept.tables.get(table)) is not None:
            known.lost = why
            self._put()

    def remember(self, table: str, number: int, identity: str, version: int | None) -> None:
        """Store the number of our commit, and the version up to which the table is checked."""
        self._kept.tables[table] = _Table(number, identity, version)
        self._put()

    def _put(self) -> None:
        self._files.put(self._name, msgspec.json.encode(self._kept))
