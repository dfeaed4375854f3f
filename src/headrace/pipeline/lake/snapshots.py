"""
What a table of Iceberg says of itself: one look at its metadata, without a job of Spark.

Its tables of metadata tell no sequence numbers, and each look at one is a job; Iceberg's own
object of the table has all of it at hand, and a history is mostly settled by its last snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from headrace.pipeline.jvm import iceberg_table
from headrace.pipeline.lake.branches import (
    MAIN,
    PREFIX,
    PROPERTY,
    Head,
    Snapshot,
    ancestry,
    found_in,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISSING = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")


class Look:
    """A table as it was at one moment: nothing that was committed since is in it."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._refs = {name: int(ref.snapshotId()) for name, ref in table.refs().items()}

    @property
    def format_version(self) -> int:
        """Return the version of Iceberg's format that it is kept in."""
        return int(self._table.operations().current().formatVersion())

    def own(self, name: str) -> str:
        """Return a property of the table; empty where it is not set."""
        return self._table.properties().get(name) or ""

    def parent(self, branch: str) -> int | None:
        """Return the snapshot that a branch's last one was made on; None: there is neither."""
        at = self._refs.get(branch)
        one = None if at is None else self._snapshot(at)
        return None if one is None else one.parent

    def head(self, since: int | None) -> Head:
        """Return what readers see, and what led there since a version."""
        at = self._refs.get(MAIN)
        found = found_in(ancestry(self._snapshot, at, since), since, self._snapshots)
        return Head(at, found, tuple(name for name in self._refs if name.startswith(PREFIX)))

    def committed(self) -> int:
        """Return the version of the last commit of ours that readers see; -1: there is none."""
        commits = ancestry(self._snapshot, self._refs.get(MAIN), None)
        return next((each.version for each in commits if each.note is not None), -1)

    def _snapshot(self, id: int) -> Snapshot | None:
        found = self._table.snapshot(id)
        return None if found is None else _read(found)

    def _snapshots(self) -> Iterator[Snapshot]:
        return map(_read, self._table.snapshots())


def look(session: SparkSession, name: str) -> Look | None:
    """Return what is there now; None where there is no such table."""
    try:
        return Look(iceberg_table(session, name))
    except AnalysisException as error:
        if error.getCondition() in _MISSING:
            return None
        raise


def _read(snapshot: Any) -> Snapshot:
    return Snapshot(
        snapshot.snapshotId(),
        snapshot.parentId(),
        snapshot.sequenceNumber(),
        snapshot.operation() or "",
        snapshot.summary().get(PROPERTY),
    )
