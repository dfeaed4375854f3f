"""
Rows of a baseline on their way into a table, as Parquet files that nobody else reads.

What was changed since is staged beside them, each batch with a number; the last change of a key
takes the place of its row when all are read together. Columns are named by place.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.changelog.position import Position
from headrace.pipeline.lake.parts import Staged
from headrace.pipeline.lake.shape import Shape
from headrace.pipeline.lake.statements import GONE, value
from headrace.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NUMBER = "number"


class Staging:
    """One load of one table. For the thread that writes."""

    def __init__(self, folder: Workspace, shape: Shape) -> None:
        self.folder = folder
        self._shape = shape
        self.began: Position | None = None
        """Where the first change is that stays a row of its own; None: there is none."""
        self._counted = 0
        self._files: dict[str, list[str]] = {"rows": [], "changes": [], "told": []}
        self._pieces: dict[int, Staged] = {}
        self._written = 0

    def rows(self, rows: pa.Table) -> None:
        """Take rows of the baseline, by place."""
        self._put("rows", rows)

    def piece(self, number: int, staged: Staged) -> None:
        """Take a piece of the baseline that executors wrote; again, it takes its own place."""
        self._pieces[number] = staged

    def changes(self, rows: pa.Table) -> None:
        """Take the net changes of a batch, as `merge_rows` would."""
        number = pa.array(np.full(rows.num_rows, self._written, np.int64))
        self._put("changes", rows.append_column(_NUMBER, number))

    def told(self, rows: pa.Table) -> None:
        """Take changes that stay rows of their own."""
        self._put("told", rows)

    def forget(self) -> None:
        """Let go of all that was staged: the table was emptied."""
        self.folder.clear()
        self._files = {kind: [] for kind in self._files}
        self._pieces = {}
        self._counted = 0

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as they are after all changes, by place."""
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

    def told_frame(self, session: SparkSession) -> DataFrame:
        """Return the changes that stay rows of their own, by place."""
        return self._read(session, "told", [value(at) for at in range(len(self._shape.columns))])

    @property
    def row_count(self) -> int:
        """Rows staged, those included that a change takes the place of."""
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

        from headrace.pipeline.shapes import spark_type

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
    """Return the rows of all frames, by place."""
    return reduce(lambda frame, other: frame.unionAll(other), frames)
