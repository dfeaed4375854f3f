"""
A Delta table: every commit has our number and our note.

The number is Delta's own application transaction: a commit whose number is used already has no
effect, and two commits at the same time cannot both get one number (R24). Number and note are
settings of the session, so only this writer uses the session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pyspark.errors import AnalysisException

from headrace.errors import BadTable
from headrace.lake.history import (
    APPLICATION,
    CommitNote,
    TableCommit,
    TableHistory,
    TableLocation,
    looked_at,
    read,
    settled,
    written,
)
from headrace.lake.sql import VIEW
from headrace.pipeline.sql import quoted
from headrace.spark_session.jvm import delta_transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
_LAST = "spark.databricks.delta.lastCommitVersionInSession"
"""Set by Delta: the version of the session's last commit."""

_ADAPTIVE = "spark.sql.adaptive.enabled"

_SETTINGS = {
    # Also in `formats`; here for a session that the user started.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Our rows are the same each time they are read, as they are in Arrow or in files.
    "spark.databricks.delta.merge.materializeSource": "none",
    # A row group without any of the keys is not read.
    "spark.sql.parquet.filterPushdown": "true",
    # Only a statement of ours adds columns, never the columns of a frame.
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # Compacted files are still small enough for a MERGE to rewrite.
    "spark.databricks.delta.optimize.maxFileSize": str(128 * 1024 * 1024),
    "spark.databricks.delta.optimize.minFileSize": str(32 * 1024 * 1024),
}

_KEEP_ROWS = frozenset(
    {
        "OPTIMIZE",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "UPGRADE PROTOCOL",
        "COMPUTE STATS",
        "CLUSTER BY",
        "ADD CONSTRAINT",
        "DROP CONSTRAINT",
        "REORG",
    }
)
"""Commits of other writers that do not change any row."""

_FEW = 20
"""How many commits are read first: ours is mostly one of the last."""


class DeltaTable:
    """A Delta table; see `Commits`."""

    SETTINGS: ClassVar[Mapping[str, str]] = _SETTINGS

    def __init__(self, session: SparkSession, where: TableLocation, *, persistent: bool) -> None:
        self._session = session
        self._where = where
        by_name = where.path is None and persistent
        self._name = where.name if by_name else None
        self._path = None if by_name else self._folder()
        self.table = self._name or f"delta.{quoted(str(self._path))}"
        """Its name in SQL."""

    def found(self, since: int | None = None) -> TableHistory | None:
        """Return the table's history as it is now; None if there is no such table."""
        commits = self._history(_FEW)
        if commits is None:
            return None
        if len(commits) == _FEW and not settled(commits, since):
            commits = self._history() or []
        found = looked_at(commits, since, _KEEP_ROWS)
        return found if found.note is not None else replace(found, number=self._given_out())

    def committed(self) -> int:
        """Return the version of this session's last commit."""
        if (version := self._made()) is not None:
            return version
        commits = self._history(1)
        return commits[0].version if commits else -1

    def identity(self) -> str:
        """Return Delta's id of the table, which differs from that of a table that replaced it."""
        return str(self._session.sql(f"DESCRIBE DETAIL {self.table}").collect()[0].id)

    def is_still(self, identity: str) -> bool:
        """Return True: a table that replaces it begins with another version."""
        return True

    def schema(self) -> StructType:
        """Return the table's columns."""
        return self._session.table(self.table).schema

    def rows(self) -> DataFrame:
        """Return the rows that readers see."""
        return self._session.table(self.table)

    def merge(self, statement: str, frame: DataFrame, note: CommitNote) -> bool:
        """Run a MERGE with a frame; return whether the commit is in the table."""
        frame.createOrReplaceTempView(VIEW)
        try:
            with self._claimed(note):
                # A skipped commit returns no row; one without any changes returns a row of zeros.
                return bool(self._session.sql(statement).collect())
        finally:
            self._session.catalog.dropTempView(VIEW)

    def replace(self, frame: DataFrame, note: CommitNote) -> bool:
        """Replace all rows and columns by those of a frame."""
        return self._write(frame, note, "overwrite", overwriteSchema="true")

    def empty(self, frame: DataFrame, note: CommitNote) -> bool:
        """Replace all rows by those of a frame; the columns stay."""
        return self._write(frame, note, "overwrite")

    def append(self, frame: DataFrame, note: CommitNote) -> bool:
        """Add a frame's rows."""
        return self._write(frame, note, "append")

    def append_from(self, frame: DataFrame, column: str, least: str, note: CommitNote) -> bool:
        """Add a frame's rows, and remove existing rows with `least` or more in a column."""
        condition = f"{quoted(column)} >= '{least}'"
        return self._write(frame, note, "overwrite", replaceWhere=condition)

    def add_columns(self, fields: Sequence[StructField]) -> None:
        """Add columns at the end; existing rows have null in them."""
        columns = ", ".join(
            f"{quoted(each.name)} {each.dataType.simpleString()}" for each in fields
        )
        self._session.sql(f"ALTER TABLE {self.table} ADD COLUMNS ({columns})")

    def compact(self) -> None:
        """Compact small files; no row changes."""
        self._session.sql(f"OPTIMIZE {self.table}").collect()

    def register(self) -> None:
        """Register the name of a table that is located by its folder, in this Spark."""
        if self._path is None or not self._where.parts:
            return
        session, where = self._session, self._where
        if where.in_session_catalog:
            session.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(where.schema)}")
        location = self._path.replace("\\", "\\\\").replace("'", "\\'")
        session.sql(f"CREATE TABLE IF NOT EXISTS {where.name} USING delta LOCATION '{location}'")
        self.check_name()

    def check_name(self) -> None:
        """Raise `BadTable` if the name belongs to another table than the one in the folder."""
        if self._path is None or not self._where.parts:
            return
        known, own = self._detail(self._where.name), self._detail(self.table)
        if known is None or (own is not None and known.id == own.id and known.id):
            return
        raise BadTable(
            "The name belongs to a table in another folder",
            remedy="Use another name, or drop that table if it is not needed. A catalog in memory"
            " forgets its names when Spark's process ends.",
            table=self._where.shown,
            folder=known.location,
        )

    @staticmethod
    def kept(type: DataType) -> DataType:
        """Return the same type."""
        return type

    def _write(self, frame: DataFrame, note: CommitNote, mode: str, **options: str) -> bool:
        writer = frame.write.format("delta").mode(mode).options(**options)
        self._session.conf.unset(_LAST)
        # The rows of a batch are written as they are. Then only Delta's read of its own log could
        # be adapted, and it is small: three jobs instead of one.
        with self._claimed(note, adaptive=mode != "append" or note.loads):
            if self._name is None:
                writer.save(self._path)
            else:
                writer.saveAsTable(self._name)
        if self._made() is not None:
            return True
        # Skipped, as its number is used already; or this version of Delta does not report it.
        found = self.found()
        return found is not None and found.note == note

    def _made(self) -> int | None:
        """Return the version that Delta reports for this session's commit; None if it does not."""
        # No text as the default: Spark would parse it as a number, too.
        version = self._session.conf.get(_LAST, None)
        return None if version is None else int(version)

    def _given_out(self) -> int:
        """Return our highest number: Delta keeps it even when it removes old history."""
        return delta_transaction(self._session, APPLICATION, self._path, self._name)

    def _history(self, most: int | None = None) -> list[TableCommit] | None:
        """Return the last commits with our notes, newest first; None if there is no table."""
        limit = "" if most is None else f" LIMIT {most}"
        try:
            rows = self._session.sql(f"DESCRIBE HISTORY {self.table}{limit}").collect()
        except AnalysisException as error:
            if self._is_missing(error):
                return None
            raise
        return [TableCommit(row.version, row.operation, read(row.userMetadata)) for row in rows]

    def _is_missing(self, error: AnalysisException) -> bool:
        condition = error.getCondition() or ""
        if condition == "DELTA_TABLE_ONLY_OPERATION" and self._name is not None:
            raise BadTable(
                "A table with this name exists, and it is not a Delta table",
                remedy="Use another name, or drop that table if it is not needed.",
                table=self._where.shown,
            ) from None
        return condition in (
            "DELTA_TABLE_ONLY_OPERATION",
            "DELTA_MISSING_DELTA_TABLE",
            "DELTA_TABLE_NOT_FOUND",
            "DELTA_PATH_DOES_NOT_EXIST",
            "TABLE_OR_VIEW_NOT_FOUND",
            "SCHEMA_NOT_FOUND",
        )

    @contextlib.contextmanager
    def _claimed(self, note: CommitNote, *, adaptive: bool = True) -> Iterator[None]:
        """Give the commit made inside this context the note and its number."""
        conf = self._session.conf
        before = conf.get(_ADAPTIVE, "true")
        if not adaptive:
            conf.set(_ADAPTIVE, "false")
        conf.set(_APP, APPLICATION)
        conf.set(_VERSION, str(note.number))
        conf.set(_NOTE, written(note))
        try:
            yield
        finally:
            for name in (_APP, _VERSION, _NOTE):
                conf.unset(name)
            conf.set(_ADAPTIVE, before or "true")

    def _detail(self, name: str) -> Row | None:
        """Return a table's details; None if there is no table, or its folder is gone."""
        try:
            return self._session.sql(f"DESCRIBE DETAIL {name}").collect()[0]
        except AnalysisException:
            return None

    def _folder(self) -> str:
        """Return the folder of a table that is not in a persistent catalog."""
        where = self._where
        if where.path is not None:
            return where.path if "://" in where.path else str(Path(where.path).absolute())
        warehouse = str(self._session.conf.get("spark.sql.warehouse.dir")).removeprefix("file:")
        return f"{warehouse}/{where.schema}/{where.parts[-1]}"
