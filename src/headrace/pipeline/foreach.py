"""
The user's own function as a target: `hr.foreach_batch(fn)` (S17).

    def fn(df: DataFrame, batch: FrameBatch) -> None:
        df.write.mode("overwrite").parquet(f"/data/orders/{batch.id}")

    hr.Pipeline(source, "orders", hr.foreach_batch(fn))

The function gets each batch of each table as a DataFrame: the row's columns, then `_op`
("insert", "update", "delete", "truncate"), `_position` (text that sorts in the log's order),
`_commit`, `_ordinal` and `_time`. `df.orderBy("_position", "_op")` is the order of the changes. A
delete has only its key, a truncate no values. A key change is a delete of the old key and the row
with the new one, at one position.

A function refuses rows that it will never take, before it has any effect: they become dead
letters, and it is called again with the same `batch.id`, without them.

    bad = df.where("qty < 0").select("_position", *batch.key)
    if rows := bad.collect():
        raise hr.RowsRefused.in_frame(rows, "NEGATIVE_QUANTITY")

A batch whose outcome is unknown is sent again, with the same rows and the same `batch.id` (R25). A
function that skips an id it has finished, or that writes each id to a separate folder, has the
effect of exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from headrace.changelog.position import Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import (
    BadTransform,
    FunctionFailed,
    HeadraceError,
    RowRefused,
    TargetError,
)
from headrace.targets.target import (
    BaselineId,
    Batch,
    FrameBatch,
    Loading,
    SchemaAnswer,
    TargetTraits,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


__all__ = ["OURS", "ForeachBatch", "FrameBatch", "Function", "foreach_batch"]

OURS = ("_op", "_position", "_commit", "_ordinal", "_time")
"""The columns of a frame after the row's own columns."""


Function: TypeAlias = "Callable[[DataFrame, FrameBatch], object]"


class ForeachBatch:
    """Calls a function with each batch of a pipeline."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__name__)

    @property
    def traits(self) -> TargetTraits:
        return TargetTraits(
            "foreach-batch", durable=True, keyed=False, transactional=False, columns_in_turn=True
        )

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        for table, schema in tables.items():
            if taken := [name for name in OURS if name in schema.names]:
                raise BadTransform(
                    f"The column name {taken[0]} is used by Headrace itself",
                    remedy=f'Rename the column: transforms=[hr.rename({taken[0]}="…")].',
                    table=table,
                )

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        """Do nothing: the function itself prepares what it writes to."""

    def add(self, table: TableName, schema: TableSchema, at: Position) -> None:
        self.check({table: schema})

    def write_frame(self, frame: DataFrame, batch: FrameBatch) -> None:
        # Imported here, so that a configuration with this target does not load Spark.
        from py4j.protocol import Py4JError
        from pyspark.errors import AnalysisException, PySparkException, PythonException

        from headrace.spark_session.errors import bad_function, of_job
        from headrace.spark_session.jvm import quietly

        try:
            with quietly():
                self._function(frame, batch)
        except RowRefused as error:
            # It does not name a row, so it refuses none.
            raise self._failed(error, batch) from None
        except HeadraceError:
            raise
        except (AnalysisException, PythonException) as error:
            # Expressions analysed here are the function's own; a Python function may be ours.
            raise bad_function(error) or self._failed(error, batch) from None
        except (PySparkException, Py4JError) as error:
            raise of_job(error, pipeline=batch.pipeline, batch=batch.id) from None
        except Exception as error:  # noqa: BLE001  # user code may raise anything
            raise self._failed(error, batch) from None

    def load(self, table: TableName, baseline: BaselineId) -> Loading:
        self._frames_only()

    def write(self, batch: Batch) -> Position:
        self._frames_only()

    def schema_changed(self, table: TableName, old: TableSchema, new: TableSchema) -> SchemaAnswer:
        return "continue"  # each frame has its own columns

    def row_count(self, table: TableName) -> int | None:
        return None

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _failed(self, error: Exception, batch: FrameBatch) -> FunctionFailed:
        # Only the class of its error: the text may contain row values.
        return FunctionFailed(
            f"The function {self._name} raised an exception",
            error=type(error).__name__,
            pipeline=batch.pipeline,
            batch=batch.id,
        )

    def _frames_only(self) -> NoReturn:
        raise TargetError("A foreach_batch target takes only DataFrames", function=self._name)


def foreach_batch(function: Function) -> ForeachBatch:
    """
    Call `function(df, batch)` with each batch: a DataFrame and its description.

    The return value is ignored. When the function returns, the batch is done. If it raises
    `hr.RowsRefused`, the rows that this names become dead letters, and it is called again without
    them. If it raises anything else, the pipeline stops or tries again, always with the same rows
    and the same `batch.id`.
    """
    return ForeachBatch(function)
