"""
A table of Iceberg: every commit a snapshot with our note among its properties.

Iceberg has no number that only one writer can get. In its place (R24) a commit is made beside the
table first, on a branch that this attempt alone has, and then becomes what readers see:

```
 main ─▶ … ─▶ H ──────────────────────────────▶ S   fast_forward: main is S
              └─ branch of this attempt ─▶ S, with the note
```

`fast_forward` moves main to S only if main is still S's ancestor, in one commit of the table's
metadata, which Iceberg makes only if nobody committed since it looked. S is H's child (looked at
before: a branch that somebody removed meanwhile would be begun anew at main, wherever that is by
then), and H's last note has the number before ours. So of all that ask for a number, one gets it,
and a writer that was taken over from comes too late, however late it comes. That costs three small
commits of metadata a batch. Anything else that moves main, such as somebody's compaction, makes an
attempt fail as well: it comes again.

The branch of the last commit stays until the next one: so a snapshot with a note is there even
where a compaction came after it and older snapshots were expired. Where what lies between is
expired as well, nobody can say what it did, and the table is loaded anew.

Versions are sequence numbers, which every snapshot gets, also on branches. So a commit whose number
is the one after the last that is known has nothing of anybody else's below it, and where it is
higher, the history is walked. A rollback makes no snapshot: it is found by the number of our note.

A baseline with the columns that the table has is such a commit, too. One with others cannot be: a
table has its columns for all branches. It replaces the table in one commit, so that readers see
either; the number is looked at right before its job begins, and not again. Where it comes late
nevertheless, its number and its version may be just those that are expected. So each replacement
gives the table a mark of its own, which is compared with the remembered one at every commit and
when it is read back: the table is found to be another.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

from headrace.errors import BadTable
from headrace.pipeline.lake.branches import (
    PROPERTY,
    Head,
    create_branch,
    drop_branch,
    fast_forward,
    fresh_branch,
    in_folder,
    made_with,
    own_catalog,
    rewrite,
)
from headrace.pipeline.lake.commits import Found
from headrace.pipeline.lake.naming import Where
from headrace.pipeline.lake.note import Note, written
from headrace.pipeline.lake.snapshots import look
from headrace.pipeline.lake.statements import ADDED, VIEW, key, replace_from, value
from headrace.pipeline.literals import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

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

    def __init__(self, session: SparkSession, where: Where, *, persistent: bool) -> None:
        self._session = session
        self._where = where
        self._catalog, self._parts = self._catalog_of()
        # With its catalog, for procedures as well: they take a schema for a catalog of that name.
        self._main = ".".join(quoted(part) for part in (self._catalog, *self._parts))
        self._branch = fresh_branch()
        self.table = f"{self._main}.{quoted(f'branch_{self._branch}')}"
        """What a MERGE is made into: the branch."""

    def found(self, since: int | None = None) -> Found | None:
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

    def merge(self, statement: str, frame: DataFrame, note: Note) -> bool:
        """Run a MERGE over a frame; return whether this commit is in the table now."""
        frame.createOrReplaceTempView(VIEW)
        try:
            return self._commit(note, lambda: self._session.sql(statement).collect())
        finally:
            self._session.catalog.dropTempView(VIEW)

    def replace(self, frame: DataFrame, note: Note) -> bool:
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

    def empty(self, frame: DataFrame, note: Note) -> bool:
        """Put a frame's rows in place of all there is; columns stay."""
        from pyspark.sql import functions as F

        return self._commit(note, lambda: frame.writeTo(self.table).overwrite(F.lit(True)))

    def append(self, frame: DataFrame, note: Note) -> bool:
        """Add a frame's rows."""
        return self._commit(note, lambda: frame.writeTo(self.table).append())

    def append_from(self, frame: DataFrame, column: str, least: str, note: Note) -> bool:
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

    def _commit(self, note: Note, write: Callable[[], object]) -> bool:
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

    def _create(self, frame: DataFrame, note: Note) -> bool:
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

    def _is_last(self, note: Note) -> bool:
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
    def _noted(self, note: Note) -> Iterator[None]:
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
