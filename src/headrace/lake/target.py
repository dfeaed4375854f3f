"""
A lake table as a target: `hr.table("lake.orders", format="delta", mode="merge")`.

`merge`: the table has the same rows as the source's. `append`: every change is a row, with
`_change_type`, `_commit_version`, `_commit_timestamp` and `_position`. `history`: all versions of
each row, with `_valid_from`, `_valid_to` and their positions; a current row has no `_valid_to`.

Delta and Iceberg keep our position in their own commits, one for each batch: nothing is applied
twice, and no version of the table shows half a transaction. Of several tables, each has its own
commits. Plain Parquet only has `append`, with one file for each batch.

A `TableLoading` loads a baseline into a table; see `staged_load`.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import BadTable, UnknownTable
from headrace.lake.formats import Format, check_location, chosen, needs
from headrace.lake.history import check_name, locations
from headrace.lake.memory import Memory
from headrace.lake.parquet import ParquetLoading, ParquetTable, check_plain
from headrace.lake.rows import (
    LakeShape,
    Mode,
    answer,
    appended_rows,
    first_of,
    fresh,
    net,
    net_rows,
    own_columns,
    shaped,
    since_emptied,
)
from headrace.lake.sql import value
from headrace.pipeline.failed_rows import Workspace
from headrace.targets.target import (
    BaselineId,
    Batch,
    Loading,
    SchemaAnswer,
    TargetContext,
    TargetTraits,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.lake.parts import StagedParts
    from headrace.lake.table import LakeTable, Sessions


# --- the load of a baseline -----------------------------------------------------------------------


class TableLoading:
    """Rows staged in files, until one commit makes them the table."""

    def __init__(self, table: LakeTable, baseline: BaselineId) -> None:
        from headrace.lake.staged_load import StagedLoad

        self._table = table
        self._baseline = baseline
        self._shape = table.shape
        self._staging = StagedLoad(table.staging_folder.within(uuid.uuid4().hex), table.shape)
        # In mode append, changes stay rows of their own if there is no baseline, or no key to
        # match them with the baseline's rows.
        self._appends = self._shape.mode == "append" and not (baseline and self._shape.key)
        self._reached = ORIGIN

    def write(self, rows: pa.Table) -> None:
        columns = own_columns(rows, self._shape, start=0)
        self._staging.rows(pa.table(columns, names=[value(at) for at in range(len(columns))]))

    def stage(self, frame: DataFrame, piece: int) -> None:
        self._staging.piece(piece, self._table.stage_rows(frame, self._staging.folder))

    def catch_up(self, batch: Batch) -> None:
        # Earlier changes were taken already, and batches may begin before them.
        rows = fresh(batch.tables[self._shape.schema.table], batch.epoch, self._reached)
        emptied = batch.truncates.get(self._shape.schema.table)
        if emptied is not None and emptied <= self._reached:
            emptied = None
        self._reached = max(self._reached, batch.last)
        if self._appends:
            self._staging.began = self._staging.began or first_of(batch, rows, emptied)
            now = self._table.time()
            self._staging.append(appended_rows(rows, self._shape, batch.epoch, emptied, now))
            return
        if emptied is not None:
            self._staging.forget()
            rows = since_emptied(rows)
        if rows.num_rows:
            found = net(rows, self._shape.schema, self._shape.key)
            self._staging.changes(net_rows(found, self._shape))

    def switch(self, at: Position) -> None:
        self._table.switch(self._staging, at, self._baseline)
        self._staging.forget()

    def discard(self) -> None:
        self._staging.forget()


# --- the target -----------------------------------------------------------------------------------

COMPACT_EVERY = 50
"""Commits between two compactions: each commit leaves a few small files."""

STAGED_FROM = 100_000
"""Rows of a batch from which executors prepare it faster than the driver."""


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """The options of `table()`, checked."""

    name: str | None
    path: str | None
    format: Format
    mode: Mode
    key: tuple[str, ...] | None
    adopt: bool
    compact_every: int
    staged_from: int


class TableTarget:
    """The target that `table()` returns; see `Target` for the contract with the engine."""

    def __init__(self, options: LakeOptions) -> None:
        self._options = options
        self._context: TargetContext | None = None
        self._sessions: Sessions | None = None
        self._memory: Memory | None = None
        self._tables: dict[TableName, LakeTable | ParquetTable] = {}

    @property
    def traits(self) -> TargetTraits:
        options = self._options
        return TargetTraits(
            "table",
            durable=True,
            keyed=options.mode != "append",
            transactional=options.format.transactional,
            every_change=options.mode != "merge",
            columns_in_turn=options.mode != "merge",
        )

    def spark_needs(self) -> Mapping[str, str]:
        return needs(self._options.format)

    def use(self, context: TargetContext) -> None:
        self._context = context
        self._sessions = None

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        options = self._options
        locations(options.name, options.path, [*{**self._tables, **tables}])
        for schema in tables.values():
            self._shape(schema)
        if options.format.transactional and self._context is not None:
            self._session()

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        context = self._given()
        self._memory = Memory(context.files, context.pipeline)
        self._tables = {}
        # Remove what an earlier run left of loads, also of tables that are no longer ours.
        Workspace(context.files.path(f"tables/staging/{context.pipeline}")).clear()
        for table, schema in tables.items():
            self.add(table, schema, at.get(table, ORIGIN))

    def add(self, table: TableName, schema: TableSchema, at: Position) -> None:
        options, context = self._options, self._given()
        shape = self._shape(schema)
        where = locations(options.name, options.path, [*{**self._tables, table: None}])[table]
        assert self._memory is not None, "open comes first"
        made: LakeTable | ParquetTable
        if options.format.transactional:
            from headrace.lake.table import LakeTable

            made = LakeTable(
                shape,
                where,
                context,
                self._memory,
                self._session(),
                adopt=options.adopt,
                compact_every=options.compact_every,
            )
            # An earlier one may have left rows of a load.
            made.staging_folder.clear()
            made.open(at)
        else:
            if where.path is None and not context.files.local:
                raise BadTable(
                    "The table needs path: without it, its folder would be in the data directory,"
                    " and this one is in object storage",
                    remedy="Set path to a folder on this machine, or use format delta.",
                    table=table,
                )
            folder = where.path or context.files.path(
                f"spark-warehouse/{where.schema}/{where.parts[-1]}"
            )
            owner = self._memory.owner
            made = ParquetTable(shape, Path(folder).absolute(), context, owner)
            made.open(at)
        self._tables[table] = made

    def lost(self, table: TableName) -> str | None:
        return self._found(table).lost

    def load(self, table: TableName, baseline: BaselineId) -> Loading:

        found = self._found(table)
        if isinstance(found, ParquetTable):
            return ParquetLoading(found, baseline)
        return TableLoading(found, baseline)

    def write(self, batch: Batch) -> Position:
        reached = []
        for table, rows in batch.tables.items():
            found = self._found(table)
            if isinstance(found, ParquetTable):
                reached.append(found.write(batch, rows))
            else:
                staged = cast("StagedParts | None", batch.staged.get(table))
                reached.append(found.write(batch, rows, staged))
        return min(reached, default=batch.last)

    @property
    def staged_from(self) -> int:
        # Plain Parquet has one file for each batch, written by one writer.
        options = self._options
        return options.staged_from if options.format.transactional else sys.maxsize

    def stage(
        self, table: TableName, frame: DataFrame, epoch: int, emptied: Position | None
    ) -> object:
        found = self._found(table)
        assert not isinstance(found, ParquetTable)
        return found.stage(frame, epoch, emptied)

    def schema_changed(self, table: TableName, old: TableSchema, new: TableSchema) -> SchemaAnswer:
        options, found = self._options, self._found(table)
        said = answer(options.mode, old, new)
        if said == "continue" and isinstance(found, ParquetTable):
            found.shape = found.shape.with_schema(new)
        elif said == "continue" and not found.add_columns(new):  # type: ignore[union-attr]
            said = "reload"
        if said == "reload":
            found.shape = self._shape(new)
        return said

    def row_count(self, table: TableName) -> int | None:
        return None

    def close(self) -> None:
        self._sessions, self._tables = None, {}

    def _shape(self, schema: TableSchema) -> LakeShape:
        options = self._options
        shape = shaped(options.mode, schema, options.key)
        if (why := options.format.refuses(shape)) is not None:
            raise BadTable(
                f"Format {options.format.name} cannot hold this table: {why}",
                remedy="Rename or drop the column: transforms=[hr.rename(…)] or [hr.drop(…)].",
                table=schema.table,
            )
        return shape

    def _found(self, table: TableName) -> LakeTable | ParquetTable:
        if (found := self._tables.get(table)) is None:
            raise UnknownTable(
                f"The target has no table {table}", table=table, tables=sorted(self._tables)
            )
        return found

    def _given(self) -> TargetContext:
        if self._context is None:
            raise BadTable(
                "A lake table can only be written by an engine with Spark",
                remedy="Use it in a pipeline of an engine; a replay can write to parquet:DIR.",
            )
        return self._context

    def _session(self) -> Sessions:
        if self._sessions is None:
            from headrace.lake.table import Sessions

            self._sessions = Sessions(self._given().spark, self._options.format)
            self._sessions.session()
        return self._sessions


def table(
    name: str | None = None,
    *,
    format: str = "delta",
    mode: str = "merge",
    path: str | os.PathLike[str] | None = None,
    key: Sequence[str] | None = None,
    adopt: bool = False,
    compact_every: int = COMPACT_EVERY,
    staged_from: int = STAGED_FROM,
) -> TableTarget:
    """
    Write a lake table: `merge` every change into it, `append` the changes, or keep a `history`.

    `name` is `table`, `schema.table` or `catalog.schema.table`. `path` is a folder, instead of the
    name or in addition. In Spark's own catalog, which is lost when its process ends, a name without
    `path` is a folder in `spark-warehouse` in the data directory, and is registered at every start.
    `{table}` and `{schema}` are replaced by the source's, so that one target can have several
    tables, each with its own commits. `key` is the expected key of the source's table; another key,
    or none, is refused. An existing table that this pipeline did not write for this source table is
    refused, unless `adopt` is set: then its rows are replaced. Small files are compacted after each
    `compact_every` commits; 0 turns this off. Executors prepare batches and baselines of
    `staged_from` rows or more, which then do not pass through the driver.
    """
    found, kept = chosen(format, mode)
    folder = None if path is None else os.fspath(path)
    check_name(name, folder)
    if not found.transactional:
        check_plain(folder, adopt=adopt)
    check_location(found, name, folder)
    if compact_every < 0:
        raise BadTable(
            "compact_every must be a number of commits, or 0",
            remedy="Use 0 to turn compaction off.",
            compact_every=compact_every,
        )
    return TableTarget(
        LakeOptions(
            name,
            folder,
            found,
            kept,
            tuple(key) if key else None,
            adopt,
            compact_every,
            max(staged_from, 1),
        )
    )
