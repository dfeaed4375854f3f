"""The session of Spark that one writer of tables has to itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import SparkGone
from headrace.pipeline.lake.commits import Commits
from headrace.pipeline.lake.delta import DeltaTable
from headrace.pipeline.lake.formats import Format, check_session
from headrace.pipeline.lake.iceberg import IcebergTable
from headrace.pipeline.lake.naming import Where
from headrace.pipeline.shapes import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.session import Spark


_WRITERS: dict[str, type[Commits]] = {"delta": DeltaTable, "iceberg": IcebergTable}
"""By format: who commits to its tables."""


class Sessions:
    """Gives the writer's session, a new one where Spark was started again meanwhile."""

    def __init__(self, spark: Callable[[], Spark], format: Format) -> None:
        self._spark = spark
        self._format = format
        self._writer = _WRITERS[format.name]
        self._on: Spark | None = None
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return it; `SparkGone` where Spark is dead."""
        spark = self._spark()
        if not spark.alive:
            raise SparkGone("Spark's JVM is dead")
        if self._session is None or self._on is not spark:
            check_session(self._format, spark.setting, own=spark.own)
            self._session, self._on = spark.another(self._writer.SETTINGS), spark
        return self._session

    def table(self, where: Where) -> Commits:
        """Return a table, as this session sees it."""
        spark, session = self._spark(), self.session()
        lasts = not where.in_session_catalog or (
            spark.setting("spark.sql.catalogImplementation") == "hive"
        )
        return self._writer(session, where, persistent=lasts)

    def read(self, columns: Sequence[tuple[str, pa.DataType]], paths: Sequence[str]) -> DataFrame:
        """Return the rows of these files, which have these columns."""
        from pyspark.sql.types import StructField, StructType

        schema = StructType([StructField(name, spark_type(type)) for name, type in columns])
        return self.session().read.schema(schema).parquet(*paths)

    def frame(self, rows: pa.Table) -> DataFrame:
        """Return rows of Arrow as a frame."""
        from pyspark.sql.types import StructField, StructType

        schema = StructType([StructField(each.name, spark_type(each.type)) for each in rows.schema])
        return self.session().createDataFrame(rows, schema)
