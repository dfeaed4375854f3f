"""
A commit to a table of Iceberg by way of a branch: its SQL, and how a history is read.

Texts and values alone, nothing is run here.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.pipeline.lake.commits import Found
from headrace.pipeline.lake.looking import Commit, looked_at, settled
from headrace.pipeline.lake.note import Note, read
from headrace.pipeline.literals import quoted

PROPERTY = "headrace"
"""Of a snapshot: the note of the commit that made it."""

MAIN = "main"
PREFIX = "headrace_"
"""What branches of ours begin with; nobody else's do."""

_KEEPS_ROWS = frozenset({"replace"})
"""What Iceberg calls a snapshot that has the rows of the one before, in other files."""

_SWAP = frozenset({"hive", "rest", "jdbc", "glue", "nessie"})
"""Types of catalogs that hold which file of metadata is a table's, and swap it for the next."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One of a table's snapshots, of whatever branch."""

    id: int
    parent: int | None
    version: int
    """
    Its sequence number: each is higher than all that were given out before, on every branch.

    Neither does expiring lower it, as it does the length of a history, nor can two have the same,
    as two moments may be. Tables of format version 1 have none, see `IcebergTable`.
    """

    operation: str
    text: str | None
    """What stands in it under `PROPERTY`."""


@dataclass(frozen=True, slots=True)
class Head:
    """What readers of a table see now, and what led there."""

    snapshot: int | None
    """None: it has no rows, and never had any."""

    found: Found
    branches: tuple[str, ...] = ()
    """Those of ours."""

    def is_before(self, note: Note) -> bool:
        """Whether the note's number is the next one, of a table that has this history."""
        if self.found.note is None:
            # Numbers that were given out may be expired: whoever has a higher one knows of them.
            return note.number > self.found.number
        return note.number == self.found.number + 1


def fresh_branch() -> str:
    """Return the name of a branch that nobody else has, and no other attempt."""
    return f"{PREFIX}{uuid.uuid4().hex}"


def ancestry(
    look: Callable[[int], Snapshot | None], head: int | None, since: int | None
) -> list[Commit]:
    """Return the commits that led to a head, the newest first, as far as is needed and known."""
    commits: list[Commit] = []
    at = head
    while at is not None and not settled(commits[-1:], since) and (one := look(at)) is not None:
        commits.append(Commit(one.version, one.operation, read(one.text)))
        at = one.parent
    return commits


def found_in(
    commits: Sequence[Commit], since: int | None, everything: Callable[[], Iterable[Snapshot]]
) -> Found:
    """
    Return what these say since a version; see `looked_at`.

    Where no note of ours is among them, the numbers count of all snapshots that are left, also of
    branches: none of them may be given out again.
    """
    found = looked_at(commits, since, _KEEPS_ROWS)
    if found.note is not None:
        return found
    notes = [read(each.text) for each in everything()]
    return replace(found, number=max((note.number for note in notes if note), default=0))


def in_folder(path: str) -> tuple[str, tuple[str, ...]]:
    """
    Return the folder of the catalog that a table's folder is in, and the table's name there.

    It has a schema wherever there is a folder above: without one, a table `history` would be
    taken for the history of another.
    """
    start, scheme, rest = path.rpartition("://")
    root, _, inside = rest.partition("/") if scheme else ("", "", rest.lstrip("/"))
    *above, schema, table = ["", *inside.rstrip("/").split("/")]
    folder = f"{start}{scheme}{root}/{'/'.join(above[1:])}"
    return folder, (schema, table) if schema else (table,)


def own_catalog(folder: str) -> tuple[str, dict[str, str]]:
    """Return the name of a catalog of the tables in a folder, and its settings."""
    name = f"headrace_{hashlib.sha256(folder.encode()).hexdigest()[:16]}"
    start = f"spark.sql.catalog.{name}"
    return name, {
        start: "org.apache.iceberg.spark.SparkCatalog",
        f"{start}.type": "hadoop",
        f"{start}.warehouse": folder,
    }


def made_with(catalog_type: str | None) -> dict[str, str]:
    """Return the properties of a table that is made in a catalog of a type; None: not known."""
    properties = {
        # A MERGE writes the rows that it changes, and not every file anew that has one of them.
        "write.merge.mode": "merge-on-read",
        # A history that leads back to our last commit is left also by who expires snapshots, where
        # some compactions came since and the table was not written to for long.
        "history.expire.min-snapshots-to-keep": "10",
    }
    if (catalog_type or "").lower() in _SWAP:
        # Each commit leaves some files of metadata behind; the last hundred are kept. Not in a
        # folder: there the file that exists is what keeps a late writer from making it.
        properties["write.metadata.delete-after-commit.enabled"] = "true"
    return properties


def create_branch(table: str, branch: str, snapshot: int) -> str:
    """Return the statement that begins a branch at a snapshot; it fails where there is one."""
    return f"ALTER TABLE {table} CREATE BRANCH {quoted(branch)} AS OF VERSION {snapshot}"


def drop_branch(table: str, branch: str) -> str:
    """Return the statement that ends a branch, if it is there."""
    return f"ALTER TABLE {table} DROP BRANCH IF EXISTS {quoted(branch)}"


def fast_forward(catalog: str, table: str, branch: str) -> str:
    """Return the call that makes a branch what readers see, if it goes on from what they see."""
    return (
        f"CALL {quoted(catalog)}.system.fast_forward("
        f"table => {_text(table)}, branch => '{MAIN}', to => {_text(branch)})"
    )


def rewrite(catalog: str, procedure: str, table: str, options: Mapping[str, str]) -> str:
    """Return a call that writes small files anew as larger ones."""
    listed = ", ".join(f"{_text(key)}, {_text(value)}" for key, value in options.items())
    return (
        f"CALL {quoted(catalog)}.system.{procedure}("
        f"table => {_text(table)}, options => map({listed}))"
    )


def _text(value: str) -> str:
    """Return a text as SQL takes it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
