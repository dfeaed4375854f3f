"""
Iceberg tables: every commit is a snapshot with our note in its properties.

Iceberg has no number that only one writer can get. Instead (R24), a commit is first made on a
branch that only this attempt has, and then becomes what readers see:

```
 main ─▶ … ─▶ H ──────────────────────────────▶ S   fast_forward: main is S
              └─ branch of this attempt ─▶ S, with the note
```

`fast_forward` moves main to S only if main is still S's ancestor. It is one commit of the table's
metadata, which Iceberg makes only if no other commit was made since it read the metadata. S is H's
child, and H's last note has the number before ours. (That S is H's child is checked before: a
branch that was removed meanwhile would be created again at main, wherever main is by then.) So only
one of all attempts at a number gets it, and a superseded writer is always too late. This costs
three small metadata commits for each batch. Anything else that moves main, such as a compaction by
another program, also makes an attempt fail, and it is repeated.

The branch of the last commit stays until the next one. So a snapshot with a note exists even if a
compaction came after it and older snapshots were expired. If the snapshots in between are expired,
too, it is not known what they did, and the table is loaded again.

Versions are sequence numbers, which every snapshot gets, also on branches. So if a commit's number
follows the last known one, no commit of another writer lies between; if it is higher, the history
is walked. A rollback makes no snapshot: it is detected by the number of our note.

A baseline with the same columns as the table is such a commit, too. One with other columns cannot
be, because all branches share the table's columns. It replaces the table in one commit, so that
readers see either the old or the new table. The number is checked right before its job begins, and
not again. If it is too late nevertheless, its number and version may be just the expected ones. So
each replacement gives the table a new id, which is compared with the stored one at every commit and
whenever the table is read back. This shows that the table was replaced.

A `Look` reads a table's metadata once, without a Spark job. Iceberg's metadata tables have no
sequence numbers, and each query of one is a job. Iceberg's own table object has everything, and the
last snapshot is mostly enough. The functions for branches, before it, only build SQL and values,
and run nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

from headrace.errors import BadTable
from headrace.lake.history import (
    CommitNote,
    TableCommit,
    TableHistory,
    TableLocation,
    looked_at,
    read,
    settled,
    written,
)
from headrace.lake.sql import ADDED, VIEW, key, replace_from, value
from headrace.pipeline.sql import quoted
from headrace.spark_session.jvm import iceberg_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


# --- branches: SQL, and how a history is read -----------------------------------------------------

PROPERTY = "headrace"
"""The snapshot property with the note of its commit."""

MAIN = "main"
PREFIX = "headrace_"
"""Prefix of our branches, which no other program uses."""

_KEEPS_ROWS = frozenset({"replace"})
"""Operations of snapshots that have the same rows as the one before, in other files."""

_SWAP = frozenset({"hive", "rest", "jdbc", "glue", "nessie"})
"""Types of catalogs that store which metadata file is current, and swap it for the next."""


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """One of a table's snapshots, on any branch."""

    id: int
    parent: int | None
    version: int
    """
    Its sequence number: each is higher than all earlier ones, on every branch.

    Expiring snapshots does not lower it, unlike the length of a history, and no two snapshots
    have the same, unlike timestamps. Tables of format version 1 have none, see `IcebergTable`.
    """

    operation: str
    text: str | None
    """The value of `PROPERTY`."""


@dataclass(frozen=True, slots=True)
class Head:
    """What readers of a table see now, and what led there."""

    snapshot: int | None
    """None if it has no rows, and never had any."""

    found: TableHistory
    branches: tuple[str, ...] = ()
    """Our branches."""

    def is_before(self, note: CommitNote) -> bool:
        """Whether the note's number is the next one for a table with this history."""
        if self.found.note is None:
            # Snapshots with used numbers may be expired; a writer with a higher one knows them.
            return note.number > self.found.number
        return note.number == self.found.number + 1


def fresh_branch() -> str:
    """Return the name of a branch that no other writer or attempt has."""
    return f"{PREFIX}{uuid.uuid4().hex}"


def ancestry(
    look: Callable[[int], IcebergSnapshot | None], head: int | None, since: int | None
) -> list[TableCommit]:
    """Return the commits that led to a head, newest first, as far as needed and known."""
    commits: list[TableCommit] = []
    at = head
    while at is not None and not settled(commits[-1:], since) and (one := look(at)) is not None:
        commits.append(TableCommit(one.version, one.operation, read(one.text)))
        at = one.parent
    return commits


def found_in(
    commits: Sequence[TableCommit],
    since: int | None,
    everything: Callable[[], Iterable[IcebergSnapshot]],
) -> TableHistory:
    """
    Return what these commits say since a version; see `looked_at`.

    If they have no note of ours, the numbers of all remaining snapshots count, also those of
    branches: none of them may be used again.
    """
    found = looked_at(commits, since, _KEEPS_ROWS)
    if found.note is not None:
        return found
    notes = [read(each.text) for each in everything()]
    return replace(found, number=max((note.number for note in notes if note), default=0))


def in_folder(path: str) -> tuple[str, tuple[str, ...]]:
    """
    Return the folder of the catalog that a table's folder is in, and the table's name there.

    The name has a schema if there is a folder above: without one, a table named `history` would
    be read as the history of another.
    """
    start, scheme, rest = path.rpartition("://")
    root, _, inside = rest.partition("/") if scheme else ("", "", rest.lstrip("/"))
    *above, schema, table = ["", *inside.rstrip("/").split("/")]
    folder = f"{start}{scheme}{root}/{'/'.join(above[1:])}"
    return folder, (schema, table) if schema else (table,)


def own_catalog(folder: str) -> tuple[str, dict[str, str]]:
    """Return the name of our catalog for the tables in a folder, and its settings."""
    name = f"headrace_{hashlib.sha256(folder.encode()).hexdigest()[:16]}"
    start = f"spark.sql.catalog.{name}"
    return name, {
        start: "org.apache.iceberg.spark.SparkCatalog",
        f"{start}.type": "hadoop",
        f"{start}.warehouse": folder,
    }


def made_with(catalog_type: str | None) -> dict[str, str]:
    """Return the properties of a new table in a catalog of this type; None if not known."""
    properties = {
        # A MERGE only writes the rows that it changes, instead of rewriting their files.
        "write.merge.mode": "merge-on-read",
        # Expiring snapshots leaves the history back to our last commit, even after some
        # compactions and a long time without writes.
        "history.expire.min-snapshots-to-keep": "10",
    }
    if (catalog_type or "").lower() in _SWAP:
        # Each commit leaves some metadata files; the last hundred are kept. Not in a folder:
        # there, the existing file is what prevents a late writer from creating it.
        properties["write.metadata.delete-after-commit.enabled"] = "true"
    return properties


def create_branch(table: str, branch: str, snapshot: int) -> str:
    """Return the statement that creates a branch at a snapshot; it fails if the branch exists."""
    return f"ALTER TABLE {table} CREATE BRANCH {quoted(branch)} AS OF VERSION {snapshot}"


def drop_branch(table: str, branch: str) -> str:
    """Return the statement that drops a branch, if it exists."""
    return f"ALTER TABLE {table} DROP BRANCH IF EXISTS {quoted(branch)}"


def fast_forward(catalog: str, table: str, branch: str) -> str:
    """Return the call that makes a branch what readers see, if it descends from main."""
    return (
        f"CALL {quoted(catalog)}.system.fast_forward("
        f"table => {_text(table)}, branch => '{MAIN}', to => {_text(branch)})"
    )


def rewrite(catalog: str, procedure: str, table: str, options: Mapping[str, str]) -> str:
    """Return a call that rewrites small files as larger ones."""
    listed = ", ".join(f"{_text(key)}, {_text(value)}" for key, value in options.items())
    return (
        f"CALL {quoted(catalog)}.system.{procedure}("
        f"table => {_text(table)}, options => map({listed}))"
    )


def _text(value: str) -> str:
    """Return a text as an SQL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


# --- one look at a table's metadata ---------------------------------------------------------------

_MISSING = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")


class Look:
    """A table's metadata at one moment, without later commits."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._refs = {name: int(ref.snapshotId()) for name, ref in table.refs().items()}

    @property
    def format_version(self) -> int:
        """Return the table's version of the Iceberg format."""
        return int(self._table.operations().current().formatVersion())

    def own(self, name: str) -> str:
        """Return a property of the table; empty if it is not set."""
        return self._table.properties().get(name) or ""

    def parent(self, branch: str) -> int | None:
        """Return the parent of a branch's last snapshot; None if there is no such snapshot."""
        at = self._refs.get(branch)
        one = None if at is None else self._snapshot(at)
        return None if one is None else one.parent

    def head(self, since: int | None) -> Head:
        """Return what readers see, and the history since a version."""
        at = self._refs.get(MAIN)
        found = found_in(ancestry(self._snapshot, at, since), since, self._snapshots)
        return Head(at, found, tuple(name for name in self._refs if name.startswith(PREFIX)))

    def committed(self) -> int:
        """Return the version of our last commit that readers see; -1 if there is none."""
        commits = ancestry(self._snapshot, self._refs.get(MAIN), None)
        return next((each.version for each in commits if each.note is not None), -1)

    def _snapshot(self, id: int) -> IcebergSnapshot | None:
        found = self._table.snapshot(id)
        return None if found is None else _read(found)

    def _snapshots(self) -> Iterator[IcebergSnapshot]:
        return map(_read, self._table.snapshots())


def look(session: SparkSession, name: str) -> Look | None:
    """Return a table's metadata as it is now; None if there is no such table."""
    try:
        return Look(iceberg_table(session, name))
    except AnalysisException as error:
        if error.getCondition() in _MISSING:
            return None
        raise


def _read(snapshot: Any) -> IcebergSnapshot:
    return IcebergSnapshot(
        snapshot.snapshotId(),
        snapshot.parentId(),
        snapshot.sequenceNumber(),
        snapshot.operation() or "",
        snapshot.summary().get(PROPERTY),
    )


# --- the table ------------------------------------------------------------------------------------

_NOTE = f"spark.sql.iceberg.snapshot-property.{PROPERTY}"
_IDENTITY = "headrace.table"
_FORMAT_VERSION = 2
"""The minimum: version 1 has no sequence numbers in snapshots, and no delete files."""

_MIB = 1024 * 1024
_FILES = {
    "target-file-size-bytes": str(128 * _MIB),
    "min-file-size-bytes": str(32 * _MIB),
    "max-file-size-bytes": str(256 * _MIB),
    "remove-dangling-deletes": "true",
}


class IcebergTable:
    """An Iceberg table; see `Commits`. Use each instance for one commit, which has its branch."""

    # The catalog's settings have its name in them, see `_catalog_of`.
    SETTINGS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, session: SparkSession, where: TableLocation, *, persistent: bool) -> None:
        self._session = session
        self._where = where
        self._catalog, self._parts = self._catalog_of()
        # With the catalog, for procedures too: they would read a schema as a catalog's name.
        self._main = ".".join(quoted(part) for part in (self._catalog, *self._parts))
        self._branch = fresh_branch()
        self.table = f"{self._main}.{quoted(f'branch_{self._branch}')}"
        """The target of a MERGE: the branch."""

    def found(self, since: int | None = None) -> TableHistory | None:
        """Return the table's history as it is now; None if there is no such table."""
        head = self._head(since)
        return None if head is None else head.found

    def committed(self) -> int:
        """Return the version of this session's last commit."""
        there = look(self._session, self._main)
        return -1 if there is None else there.committed()

    def identity(self) -> str:
        """Return the id that a table of ours was created with; empty if it has none."""
        there = look(self._session, self._main)
        return "" if there is None else there.own(_IDENTITY)

    def is_still(self, identity: str) -> bool:
        """Whether the table was not replaced since: two replacements may have the same version."""
        return self.identity() == identity

    def schema(self) -> StructType:
        """Return the table's columns."""
        return self._session.table(self._main).schema

    def rows(self) -> DataFrame:
        """Return the rows that readers see."""
        return self._session.table(self._main)

    def merge(self, statement: str, frame: DataFrame, note: CommitNote) -> bool:
        """Run a MERGE with a frame; return whether the commit is in the table."""
        frame.createOrReplaceTempView(VIEW)
        try:
            return self._commit(note, lambda: self._session.sql(statement).collect())
        finally:
            self._session.catalog.dropTempView(VIEW)

    def replace(self, frame: DataFrame, note: CommitNote) -> bool:
        """Replace all rows and columns by those of a frame."""
        head = self._head()
        if head is None:
            return note.number == 1 and self._create(frame, note)
        if head.snapshot is not None and self._has_columns_of(frame):
            self._mark()
            return self.empty(frame, note)
        if not head.is_before(note):
            return False
        with self._noted(note):
            self._writing(frame).createOrReplace()
        return self._is_last(note)

    def empty(self, frame: DataFrame, note: CommitNote) -> bool:
        """Replace all rows by those of a frame; the columns stay."""
        from pyspark.sql import functions as F

        return self._commit(note, lambda: frame.writeTo(self.table).overwrite(F.lit(True)))

    def append(self, frame: DataFrame, note: CommitNote) -> bool:
        """Add a frame's rows."""
        return self._commit(note, lambda: frame.writeTo(self.table).append())

    def append_from(self, frame: DataFrame, column: str, least: str, note: CommitNote) -> bool:
        """Add a frame's rows, and remove existing rows with `least` or more in a column."""
        from pyspark.sql import functions as F

        # Iceberg's own overwrite by a condition fails for files in which only some rows match.
        gone = self.rows().where(F.col(quoted(column)) >= F.lit(least))
        gone = gone.select(F.col(quoted(column)).alias(key(0)), F.lit(False).alias(ADDED))
        added = frame.toDF(*map(value, range(len(frame.columns)))).withColumn(ADDED, F.lit(True))
        both = added.unionByName(gone.distinct(), allowMissingColumns=True)
        return self.merge(replace_from(self.table, frame.columns, column, least), both, note)

    def add_columns(self, fields: Sequence[StructField]) -> None:
        """Add columns at the end; existing rows have null in them."""
        columns = ", ".join(
            f"{quoted(each.name)} {each.dataType.simpleString()}" for each in fields
        )
        self._session.sql(f"ALTER TABLE {self._main} ADD COLUMNS ({columns})")

    def compact(self) -> None:
        """Compact small data and delete files; no row changes."""
        for procedure, options in (
            ("rewrite_data_files", _FILES),
            ("rewrite_position_delete_files", {"min-input-files": "2"}),
        ):
            self._session.sql(rewrite(self._catalog, procedure, self._main, options)).collect()

    def check_name(self) -> None:
        """Do nothing: the table has a name or a folder, never both."""

    def register(self) -> None:
        """Do nothing: the table is in its catalog, or is located by its folder."""

    @staticmethod
    def kept(type: DataType) -> DataType:
        """Return the type that Iceberg stores: it has no integers smaller than int."""
        from pyspark.sql.types import ByteType, IntegerType, ShortType

        return IntegerType() if isinstance(type, (ByteType, ShortType)) else type

    # -- inside ---------------------------------------------------------------------------

    def _commit(self, note: CommitNote, write: Callable[[], object]) -> bool:
        """Write to the branch, and make it what readers see; return whether that succeeded."""
        head = self._head()
        if head is None or head.snapshot is None or not head.is_before(note):
            return False
        self._session.sql(create_branch(self._main, self._branch, head.snapshot))
        try:
            with self._noted(note):
                write()
            done = self._is_child_of(head.snapshot) and self._forwarded()
        except BaseException:
            self._drop([self._branch])
            raise
        self._drop(head.branches if done else [self._branch])
        return done

    def _is_child_of(self, snapshot: int) -> bool:
        """Whether the branch is one commit ahead of this snapshot."""
        there = look(self._session, self._main)
        return there is not None and there.parent(self._branch) == snapshot

    def _forwarded(self) -> bool:
        call = fast_forward(self._catalog, self._main, self._branch)
        try:
            self._session.sql(call).collect()
        except IllegalArgumentException as error:
            # The second: another writer committed meanwhile, and has removed the branch.
            if any(text in str(error) for text in ("not an ancestor", "Ref does not exist")):
                return False
            raise
        return True

    def _drop(self, branches: Sequence[str]) -> None:
        """Remove branches; one that remains is harmless, and is removed by a later commit."""
        for branch in branches:
            # PySpark only knows some of Iceberg's exceptions; the others come from py4j.
            with contextlib.suppress(PySparkException, Py4JError):
                self._session.sql(drop_branch(self._main, branch))

    def _create(self, frame: DataFrame, note: CommitNote) -> bool:
        """Create the table; if two writers do so at the same time, only one succeeds."""
        if self._where.path is None:
            schema = ".".join(quoted(part) for part in (self._catalog, *self._parts[:-1]))
            self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS {schema}")
        try:
            with self._noted(note):
                self._writing(frame).create()
        except AnalysisException as error:
            if error.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS":
                return False
            raise
        return self._is_last(note)

    def _writing(self, frame: DataFrame) -> DataFrameWriterV2:
        """Return the writer that creates the table from a frame, each time with a new id."""
        there = look(self._session, self._main)
        version = max(_FORMAT_VERSION, there.format_version if there else 0)
        kind = self._session.conf.get(f"spark.sql.catalog.{self._catalog}.type", None)
        writer = frame.writeTo(self._main).using("iceberg")
        properties = {_IDENTITY: uuid.uuid4().hex, "format-version": str(version)}
        for name, setting in (properties | made_with(kind)).items():
            writer = writer.tableProperty(name, setting)
        return writer

    def _mark(self) -> None:
        """Give a table that another program created an id and, if needed, sequence numbers."""
        there = look(self._session, self._main)
        if there is None or there.own(_IDENTITY):
            return
        properties = {_IDENTITY: uuid.uuid4().hex}
        if there.format_version < _FORMAT_VERSION:
            properties["format-version"] = str(_FORMAT_VERSION)
        listed = ", ".join(f"'{name}' = '{setting}'" for name, setting in properties.items())
        self._session.sql(f"ALTER TABLE {self._main} SET TBLPROPERTIES ({listed})")

    def _is_last(self, note: CommitNote) -> bool:
        found = self.found()
        return found is not None and found.note == note

    def _has_columns_of(self, frame: DataFrame) -> bool:
        have = [(each.name, each.dataType) for each in self.schema()]
        return have == [(each.name, self.kept(each.dataType)) for each in frame.schema]

    def _head(self, since: int | None = None) -> Head | None:
        """Return what readers see, and the history; None if there is no such table."""
        there = look(self._session, self._main)
        return None if there is None else there.head(since)

    @contextlib.contextmanager
    def _noted(self, note: CommitNote) -> Iterator[None]:
        """Give the snapshot made inside this context the note."""
        self._session.conf.set(_NOTE, written(note))
        try:
            yield
        finally:
            self._session.conf.unset(_NOTE)

    def _catalog_of(self) -> tuple[str, tuple[str, ...]]:
        """Set up the table's catalog; return the catalog's name and the table's name in it."""
        where, conf = self._where, self._session.conf
        if where.path is not None:
            path = where.path if "://" in where.path else str(Path(where.path).absolute())
            folder, parts = in_folder(path)
            catalog, settings = own_catalog(folder)
            for name, value in settings.items():
                conf.set(name, value)
        else:
            catalog, *rest = where.parts
            parts = tuple(rest)
            there = conf.get(f"spark.sql.catalog.{catalog}", None) or ""
            if not there.startswith("org.apache.iceberg."):
                raise BadTable(
                    f"Spark has no Iceberg catalog named {catalog}",
                    remedy=f"Start Spark with spark.sql.catalog.{catalog}="
                    "org.apache.iceberg.spark.SparkCatalog and the catalog's type and location.",
                    table=where.shown,
                )
        # Otherwise this session would see commits of other writers half a minute late.
        conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")
        return catalog, parts
