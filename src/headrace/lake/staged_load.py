"""
The load of a baseline: rows staged in files, and the one commit that makes them the table.

Rows of a baseline are staged as Parquet files that no other process reads. The changes since are
staged in other files, each batch with a number; when all are read together, the last change of a
key replaces its row. Columns are named by index.

The load ends in one commit, in every mode. With `merge`, the table is replaced. With `append`, the
table first gets a truncate row, if it has any rows, and then every row as an insert: a reader that
applies its changes in order has the right rows. If changes after the baseline are appended one by
one, they replace those that the table had for the same time, because some of them are in the
baseline's rows. With `history`, the table gets the difference: rows that the source no longer has
end, and rows that the table lacks begin.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.changelog.position import Position
from headrace.lake.parts import StagedParts
from headrace.lake.rows import CHANGE, VALID, LakeShape, begins, emptied_row
from headrace.lake.sql import ADDED, GONE, key, merge_history, value
from headrace.pipeline.failed_rows import Workspace
from headrace.pipeline.sql import quoted
from headrace.targets.target import BaselineId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.lake.history import CommitNote, Commits
    from headrace.lake.table import LakeTable


# --- staged files ---------------------------------------------------------------------------------

_NUMBER = "number"
_APPENDED = "told"
"""Kind, and prefix of its files: changes that stay rows of their own."""


class StagedLoad:
    """One load of one table. For the thread that writes."""

    def __init__(self, folder: Workspace, shape: LakeShape) -> None:
        self.folder = folder
        self._shape = shape
        self.began: Position | None = None
        """The position of the first change that stays a row of its own; None if there is none."""
        self._counted = 0
        self._files: dict[str, list[str]] = {"rows": [], "changes": [], _APPENDED: []}
        self._pieces: dict[int, StagedParts] = {}
        self._written = 0

    def rows(self, rows: pa.Table) -> None:
        """Stage rows of the baseline, with columns named by index."""
        self._put("rows", rows)

    def piece(self, number: int, staged: StagedParts) -> None:
        """Add a piece of the baseline that executors wrote; a repeated piece replaces itself."""
        self._pieces[number] = staged

    def changes(self, rows: pa.Table) -> None:
        """Stage the net changes of a batch, as `merge_rows` takes them."""
        number = pa.array(np.full(rows.num_rows, self._written, np.int64))
        self._put("changes", rows.append_column(_NUMBER, number))

    def append(self, rows: pa.Table) -> None:
        """Stage changes that stay rows of their own."""
        self._put(_APPENDED, rows)

    def forget(self) -> None:
        """Remove everything that was staged: the table was truncated, or the load is over."""
        self.folder.clear()
        self._files = {kind: [] for kind in self._files}
        self._pieces = {}
        self._counted = 0

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows after all changes, with columns named by index."""
        from pyspark.sql import functions as F

        own = [value(at) for at in range(len(self._shape.schema.columns))]
        rows = self._read(session, "rows", own)
        if not self._files["changes"]:
            return rows
        keys = [value(self._shape.schema.names.index(name)) for name in self._shape.key]
        changes = self._read(session, "changes", [*own, GONE, _NUMBER])
        every = F.struct(*(F.col(name) for name in (*own, GONE)))
        last = changes.groupBy(*keys).agg(F.max_by(every, _NUMBER).alias("last"))
        upserts = last.where("NOT last.gone").select(*(F.col(f"last.{each}") for each in own))
        return (
            rows.join(changes.select(*keys).distinct(), keys, "left_anti")
            .select(*own)
            .unionAll(upserts)
        )

    def appended_frame(self, session: SparkSession) -> DataFrame:
        """Return the changes that stay rows of their own, with columns named by index."""
        return self._read(session, _APPENDED, [value(at) for at in range(len(self._shape.columns))])

    @property
    def row_count(self) -> int:
        """Number of staged rows, including those that a change replaces."""
        return self._counted + sum(staged.row_count for staged in self._pieces.values())

    def _put(self, kind: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._written += 1
        name = f"{kind}-{self._written:06d}.parquet"
        self.folder.write(name, rows)
        self._files[kind].append(self.folder.path(name))
        self._counted += rows.num_rows

    def _read(self, session: SparkSession, kind: str, names: list[str]) -> DataFrame:
        from pyspark.sql.types import BooleanType, LongType, StructField, StructType

        from headrace.pipeline.plan.types import spark_type

        types = {value(at): spark_type(type) for at, (_, type) in enumerate(self._shape.columns)}
        types |= {GONE: BooleanType(), _NUMBER: LongType()}
        schema = StructType([StructField(name, types[name]) for name in names])
        paths = [*self._files[kind]]
        if kind == "rows":
            paths += [path for staged in self._pieces.values() for path in staged.paths]
        if not paths:
            return session.createDataFrame([], schema)
        return session.read.schema(schema).parquet(*paths)


def joined(frames: list[DataFrame]) -> DataFrame:
    """Return the rows of all frames, matching columns by index."""
    return reduce(lambda frame, other: frame.unionAll(other), frames)


# --- the commit -----------------------------------------------------------------------------------

FILE_ROWS = 250_000
"""Rows in a file: a MERGE finds files by key, and rewrites every file that it touches."""

_POSITION = CHANGE[-1][0]
Commit = Callable[["Commits", "CommitNote"], bool]


def staged_commit(
    table: LakeTable,
    staging: StagedLoad,
    at: Position,
    baseline: BaselineId,
    now: datetime,
    session: SparkSession,
) -> Commit:
    """Return the commit that makes the staged rows the table."""
    shape = table.shape
    if shape.mode == "merge":
        frame = _by_key(staging.frame(session), shape, staging.row_count)
        return _replacing(frame.toDF(*shape.names))
    if table.ours:
        table.check_fit()
    if shape.mode == "append" and not baseline:
        return _appending_changes(table, staging, session)
    if shape.mode == "append":
        return _appending(table, staging, at, session, now)
    frame = staging.frame(session)
    if not table.ours:
        return _replacing(_begun(frame, at).toDF(*shape.names))
    return partial(_difference, frame, shape, at, now)


def _replacing(frame: DataFrame) -> Commit:
    return lambda table, note: table.replace(frame, note)


def _appending(
    table: LakeTable, staging: StagedLoad, at: Position, session: SparkSession, now: datetime
) -> Commit:
    from pyspark.sql import functions as F

    shape = table.shape
    emptied, at = begins(staging.began, at)
    frames = []
    if table.ours:
        frames.append(table.frame_of(emptied_row(shape, emptied, now)))
    rows = staging.frame(session).select(
        "*",
        F.lit("insert"),
        F.lit(at.commit).cast("bigint"),
        F.lit(now).cast("timestamp"),
        F.lit(str(at)),
    )
    frames += [rows, staging.appended_frame(session)]
    frame = joined(frames).toDF(*shape.names)
    if not table.ours:
        return _replacing(frame)
    return partial(_append_from, frame, emptied)


def _appending_changes(table: LakeTable, staging: StagedLoad, session: SparkSession) -> Commit:
    """Return the commit without a baseline: the changes that the table does not have yet."""
    from pyspark.sql import functions as F

    frame = staging.appended_frame(session).toDF(*table.shape.names)
    if not table.ours:
        return _replacing(frame)
    if table.lost is None or staging.began is None:
        new = frame.where(F.col(quoted(_POSITION)) > F.lit(str(table.position)))
        return lambda found, note: found.append(new, note)
    return partial(_append_from, frame, staging.began)


def _append_from(frame: DataFrame, first: Position, table: Commits, note: CommitNote) -> bool:
    """Add rows from `first` on, and remove those that the table already has from there on."""
    from pyspark.sql import functions as F

    if table.rows().where(F.col(quoted(_POSITION)) >= F.lit(str(first))).isEmpty():
        # A reader that follows the table then sees an append, and no commit that removes rows.
        return table.append(frame, note)
    return table.append_from(frame, _POSITION, str(first), note)


def _begun(frame: DataFrame, at: Position) -> DataFrame:
    """Return rows as the first of a history: it is not known since when they are valid."""
    from pyspark.sql import functions as F

    never = F.lit(None).cast("timestamp")
    return frame.select("*", never, never, F.lit(str(at)), F.lit(None).cast("string"))


def _difference(
    frame: DataFrame,
    shape: LakeShape,
    at: Position,
    now: datetime,
    table: Commits,
    note: CommitNote,
) -> bool:
    """End rows that the source no longer has, and add those that the history lacks."""
    from pyspark.sql import functions as F

    own = [value(index) for index in range(len(shape.schema.columns))]
    keys = [value(shape.schema.names.index(name)) for name in shape.key]
    current = table.rows().where(F.col(quoted(VALID[1][0])).isNull())
    current = current.select(*(F.col(quoted(name)) for name in shape.schema.names)).toDF(*own)
    ended = current.exceptAll(frame).select(*keys).distinct()
    # All current rows of such a key end. Another program may have written several, of which one
    # is right: that one begins again.
    gone = [f"gone{index}" for index in range(len(keys))]
    same = [F.col(name).eqNullSafe(F.col(other)) for name, other in zip(keys, gone, strict=True)]
    again = frame.join(ended.toDF(*gone), reduce(and_, same), "left_semi")
    begun = frame.exceptAll(current).union(again).dropDuplicates(keys)
    moment, where = F.lit(now).cast("timestamp"), F.lit(str(at))
    no_time, no_text = F.lit(None).cast("timestamp"), F.lit(None).cast("string")
    types = {field.name: field.dataType for field in frame.schema}
    nothing = [F.lit(None).cast(types[name]).alias(name) for name in own]
    no_key = [F.lit(None).cast(types[name]) for name in keys]
    rows = joined(
        [
            ended.select(*nothing, no_time, moment, no_text, where, *keys, F.lit(False)),
            begun.select(*own, moment, no_time, where, no_text, *no_key, F.lit(True)),
        ]
    ).toDF(
        *(value(index) for index in range(len(shape.columns))),
        *(key(index) for index in range(len(keys))),
        ADDED,
    )
    ends = (VALID[1][0], VALID[3][0])
    return table.merge(merge_history(table.table, shape.names, shape.key, ends), rows, note)


def _by_key(frame: DataFrame, shape: LakeShape, row_count: int) -> DataFrame:
    """Return the rows partitioned so that each file has its own range of keys."""
    keys = [value(shape.schema.names.index(name)) for name in shape.key]
    files = max(1, -(-row_count // FILE_ROWS))
    frame = frame.repartitionByRange(files, *keys) if files > 1 else frame.coalesce(1)
    return frame.sortWithinPartitions(*keys)
