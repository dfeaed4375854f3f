"""
Tables of Iceberg: every commit a snapshot with our note among its properties.

Iceberg has no number that only one writer can get. In its place (R24) a commit is made beside the
table first, on a branch that this attempt alone has, and then becomes what readers see:

```
 main ─▶ … ─▶ H ──────────────────────────────▶ S   fast_forward: main is S
              └─ branch of this attempt ─▶ S, with the note
```

`fast_forward` moves main to S only if main is still S's ancestor, in one commit of the table's
metadata, which Iceberg makes only if no other commit was made since it looked. S is H's child (this
is checked before: a branch that was removed meanwhile would be created again at main, wherever that
is by then), and H's last note has the number before ours. So of all attempts at a number, one gets
it, and a writer that was taken over from comes too late, however late it comes. That costs three
small commits of metadata a batch. Anything else that moves main, such as a compaction by another
program, makes an attempt fail as well: it is made again.

The branch of the last commit stays until the next one: so a snapshot with a note exists even where
a compaction came after it and older snapshots were expired. Where what lies between is expired as
well, what it did cannot be known, and the table is loaded again.

Versions are sequence numbers, which every snapshot gets, also on branches. So a commit whose number
is the one after the last that is known has no commit of another writer below it, and where it is
higher, the history is walked. A rollback makes no snapshot: it is found by the number of our note.

A baseline with the columns that the table has is such a commit, too. One with others cannot be: a
table has its columns for all branches. It replaces the table in one commit, so that readers see
either; the number is looked at right before its job begins, and not again. Where it comes late
nevertheless, its number and its version may be just those that are expected. So each replacement
gives the table a mark of its own, which is compared with the remembered one at every commit and
when it is read back: the table is found to be another.

A `Look` reads a table's metadata once, without a Spark job. Iceberg's metadata tables have no
sequence numbers, and each query of one is a job; Iceberg's own object of the table has all of it at
hand, and a history is mostly settled by its last snapshot. The functions for branches, before it,
make SQL texts and values alone: they run nothing.
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
"""Of a snapshot: the note of the commit that made it."""

MAIN = "main"
PREFIX = "headrace_"
"""What branches of ours begin with; nobody else's do."""

_KEEPS_ROWS = frozenset({"replace"})
"""What Iceberg calls a snapshot that has the rows of the one before, in other files."""

_SWAP = frozenset({"hive", "rest", "jdbc", "glue", "nessie"})
"""Types of catalogs that hold which file of metadata is a table's, and swap it for the next."""


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
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

    found: TableHistory
    branches: tuple[str, ...] = ()
    """Those of ours."""

    def is_before(self, note: CommitNote) -> bool:
        """Whether the note's number is the next one, of a table that has this history."""
        if self.found.note is None:
            # Numbers that were given out may be expired: whoever has a higher one knows of them.
            return note.number > self.found.number
        return note.number == self.found.number + 1


def fresh_branch() -> str:
    """Return the name of a branch that nobody else has, and no other attempt."""
    return f"{PREFIX}{uuid.uuid4().hex}"


def ancestry(
    look: Callable[[int], IcebergSnapshot | None], head: int | None, since: int | None
) -> list[TableCommit]:
    """Return the commits that led to a head, the newest first, as far as is needed and known."""
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


# --- one look at a table's metadata ---------------------------------------------------------------

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

    def _snapshot(self, id: int) -> IcebergSnapshot | None:
        found = self._table.snapshot(id)
        return None if found is None else _read(found)

    def _snapshots(self) -> Iterator[IcebergSnapshot]:
        return map(_read, self._table.snapshots())


def look(session: SparkSession, name: str) -> Look | None:
    """Return what is there now; None where there is no such table."""
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
"""The least: snapshots of the first have no sequence numbers, and its files no deletes."""

_MIB = 1024 * 1024
_FILES = {
    "target-file-size-bytes": str(128 * _MIB),
    "min-file-size-bytes": str(32 * _MIB),
    "max-file-size-bytes": str(256 * _MIB),
    "remove-dangling-deletes": "true",
}


class IcebergTable:
    """A table of Iceberg; see `Commits`. One commit each: the branch is this one's."""

    # The catalog's own settings are put there by name, see `_catalog_of`.
    SETTINGS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, session: SparkSession, where: TableLocation, *, persistent: bool) -> None:
        self._session = session
        self._where = where
        self._catalog, self._parts = self._catalog_of()
        # With its catalog, for procedures as well: they take a schema for a catalog of that name.
        self._main = ".".join(quoted(part) for part in (self._catalog, *self._parts))
        self._branch = fresh_branch()
        self.table = f"{self._main}.{quoted(f'branch_{self._branch}')}"
        """What a MERGE is made into: the branch."""

    def found(self, since: int | None = None) -> TableHistory | None:
        """Return what is there now; None where there is no such table."""
        head = self._head(since)
        return None if head is None else head.found

    def committed(self) -> int:
        """Return the version that the last commit by this session made."""
        there = look(self._session, self._main)
        return -1 if there is None else there.committed()

    def identity(self) -> str:
        """Return the mark that a table of ours was made with; empty where it has none."""
        there = look(self._session, self._main)
        return "" if there is None else there.own(_IDENTITY)

    def is_still(self, identity: str) -> bool:
        """Whether nobody has replaced it since: two replacements may have the same version."""
        return self.identity() == identity

    def schema(self) -> StructType:
        """Return the columns that it has."""
        return self._session.table(self._main).schema

    def rows(self) -> DataFrame:
        """Return what readers see."""
        return self._session.table(self._main)

    def merge(self, statement: str, frame: DataFrame, note: CommitNote) -> bool:
        """Run a MERGE over a frame; return whether this commit is in the table now."""
        frame.createOrReplaceTempView(VIEW)
        try:
            return self._commit(note, lambda: self._session.sql(statement).collect())
        finally:
            self._session.catalog.dropTempView(VIEW)

    def replace(self, frame: DataFrame, note: CommitNote) -> bool:
        """Put a frame's rows and columns in place of all there is."""
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
        """Put a frame's rows in place of all there is; columns stay."""
        from pyspark.sql import functions as F

        return self._commit(note, lambda: frame.writeTo(self.table).overwrite(F.lit(True)))

    def append(self, frame: DataFrame, note: CommitNote) -> bool:
        """Add a frame's rows."""
        return self._commit(note, lambda: frame.writeTo(self.table).append())

    def append_from(self, frame: DataFrame, column: str, least: str, note: CommitNote) -> bool:
        """Add a frame's rows, in place of those that are there from `least` on by a column."""
        from pyspark.sql import functions as F

        # Iceberg's own overwrite by a condition refuses files of which some rows fulfil it.
        gone = self.rows().where(F.col(quoted(column)) >= F.lit(least))
        gone = gone.select(F.col(quoted(column)).alias(key(0)), F.lit(False).alias(ADDED))
        added = frame.toDF(*map(value, range(len(frame.columns)))).withColumn(ADDED, F.lit(True))
        both = added.unionByName(gone.distinct(), allowMissingColumns=True)
        return self.merge(replace_from(self.table, frame.columns, column, least), both, note)

    def add_columns(self, fields: Sequence[StructField]) -> None:
        """Add columns at the end; rows that are there have null in them."""
        columns = ", ".join(
            f"{quoted(each.name)} {each.dataType.simpleString()}" for each in fields
        )
        self._session.sql(f"ALTER TABLE {self._main} ADD COLUMNS ({columns})")

    def compact(self) -> None:
        """Make few files of many small ones, of rows and of deletes; no row changes."""
        for procedure, options in (
            ("rewrite_data_files", _FILES),
            ("rewrite_position_delete_files", {"min-input-files": "2"}),
        ):
            self._session.sql(rewrite(self._catalog, procedure, self._main, options)).collect()

    def check_name(self) -> None:
        """Do nothing: it has a name or a folder."""

    def register(self) -> None:
        """Do nothing: its catalog knows it, or it is found by its folder."""

    @staticmethod
    def kept(type: DataType) -> DataType:
        """Return what a column of this type has in it: there are no whole numbers below int."""
        from pyspark.sql.types import ByteType, IntegerType, ShortType

        return IntegerType() if isinstance(type, (ByteType, ShortType)) else type

    # -- inside ---------------------------------------------------------------------------

    def _commit(self, note: CommitNote, write: Callable[[], object]) -> bool:
        """Write to the branch, and make it what readers see; return whether it is."""
        head = self._head()
        if head is None or head.snapshot is None or not head.is_before(note):
            return False
        self._session.sql(create_branch(self._main, self._branch, head.snapshot))
        try:
            with self._noted(note):
                write()
            done = self._goes_on_from(head.snapshot) and self._forwarded()
        except BaseException:
            self._drop([self._branch])
            raise
        self._drop(head.branches if done else [self._branch])
        return done

    def _goes_on_from(self, snapshot: int) -> bool:
        """Whether the branch is one commit ahead of this snapshot."""
        there = look(self._session, self._main)
        return there is not None and there.parent(self._branch) == snapshot

    def _forwarded(self) -> bool:
        call = fast_forward(self._catalog, self._main, self._branch)
        try:
            self._session.sql(call).collect()
        except IllegalArgumentException as error:
            # The second: whoever committed meanwhile has removed the branch.
            if any(text in str(error) for text in ("not an ancestor", "Ref does not exist")):
                return False
            raise
        return True

    def _drop(self, branches: Sequence[str]) -> None:
        """Remove branches; one that stays is in nobody's way, and is removed by a later commit."""
        for branch in branches:
            # Of what Iceberg raises, PySpark knows some alone; the rest comes as py4j has it.
            with contextlib.suppress(PySparkException, Py4JError):
                self._session.sql(drop_branch(self._main, branch))

    def _create(self, frame: DataFrame, note: CommitNote) -> bool:
        """Make the table; of two that do so at once, one has made it."""
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
        """Return what makes the table of a frame, each time another one by its mark."""
        there = look(self._session, self._main)
        version = max(_FORMAT_VERSION, there.format_version if there else 0)
        kind = self._session.conf.get(f"spark.sql.catalog.{self._catalog}.type", None)
        writer = frame.writeTo(self._main).using("iceberg")
        properties = {_IDENTITY: uuid.uuid4().hex, "format-version": str(version)}
        for name, said in (properties | made_with(kind)).items():
            writer = writer.tableProperty(name, said)
        return writer

    def _mark(self) -> None:
        """Let a table that somebody else made be told from others, and number its commits."""
        there = look(self._session, self._main)
        if there is None or there.own(_IDENTITY):
            return
        properties = {_IDENTITY: uuid.uuid4().hex}
        if there.format_version < _FORMAT_VERSION:
            properties["format-version"] = str(_FORMAT_VERSION)
        listed = ", ".join(f"'{name}' = '{said}'" for name, said in properties.items())
        self._session.sql(f"ALTER TABLE {self._main} SET TBLPROPERTIES ({listed})")

    def _is_last(self, note: CommitNote) -> bool:
        found = self.found()
        return found is not None and found.note == note

    def _has_columns_of(self, frame: DataFrame) -> bool:
        have = [(each.name, each.dataType) for each in self.schema()]
        return have == [(each.name, self.kept(each.dataType)) for each in frame.schema]

    def _head(self, since: int | None = None) -> Head | None:
        """Return what readers see, and what led there; None where there is no such table."""
        there = look(self._session, self._main)
        return None if there is None else there.head(since)

    @contextlib.contextmanager
    def _noted(self, note: CommitNote) -> Iterator[None]:
        """Let the snapshot that is made meanwhile have the note."""
        self._session.conf.set(_NOTE, written(note))
        try:
            yield
        finally:
            self._session.conf.unset(_NOTE)

    def _catalog_of(self) -> tuple[str, tuple[str, ...]]:
        """Return the catalog that the table is in, ready to be used, and its name there."""
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
                    f"This Spark has no catalog of Iceberg named {catalog}",
                    remedy=f"Start it with spark.sql.catalog.{catalog}="
                    "org.apache.iceberg.spark.SparkCatalog and what says where its tables are.",
                    table=where.shown,
                )
        # Otherwise this session would not see what others commit, for half a minute.
        conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")
        return catalog, parts
