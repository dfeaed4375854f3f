"""
A short run of a session, for the classes that it loads (see `class_archive`).

It does a little of everything that pipelines do: it reads files without and with generated code,
converts rows to Arrow, joins and sums, runs Python functions and a streaming query. Classes that
it does not use are loaded from the jars later, as usual.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark_session import jvm
from headrace.spark_session.session import Spark, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def train(folder: Path, command_file: Path) -> None:
    """Start, use and stop Spark, with its files in `folder`; write its JVM's command to a file."""
    spark = start_session(folder / "data")
    try:
        assert jvm.running is not None
        command = jvm.running.machine.process.args
        assert isinstance(command, list)
        command_file.write_bytes(b"".join(os.fsencode(word) + b"\0" for word in command))
        _use(spark, folder)
    finally:
        spark.stop()


def _use(spark: Spark, folder: Path) -> None:
    from pyspark.sql import functions as F

    rows = str(folder / "rows")
    made = spark.bulk.range(0, 2000, 1, 2).selectExpr(
        "id",
        "named_struct('n', id, 't', cast(id as string), 'd', cast(id as decimal(12, 2)),"
        " 'at', timestamp_micros(id), 'ok', id % 2 = 0, 'f', cast(id as double)) AS image",
    )
    made.write.parquet(rows)
    plus_one = F.udf(lambda value: value + 1, "long")
    for session in (spark.small, spark.bulk):
        frame = session.read.schema(made.schema).parquet(rows).filter("image.ok AND id > 3")
        chosen = spark.prepared(["id", "image.*", "concat(image.t, '!') AS said"])
        spark.collect(spark.select(frame, chosen))
        few = frame.groupBy(F.expr("id % 7").alias("part")).agg(F.sum("image.f"), F.count("*"))
        frame.join(few, F.expr("id % 7 = part"), "left").orderBy("id").limit(20).toArrow()
        frame.select(plus_one("id")).toArrow()
        frame.mapInArrow(lambda batches: batches, frame.schema).toArrow()
        frame.createOrReplaceTempView("seen")
        session.sql("SELECT max(id) OVER (PARTITION BY image.ok) FROM seen LIMIT 3").collect()
        session.createDataFrame([(1, "a")], "id long, name string").collect()
    stream = spark.bulk.readStream.schema(made.schema).parquet(rows)
    query = (
        stream.writeStream.foreachBatch(_count)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.awaitTermination()
    spark.info()


def _count(batch: DataFrame, _number: int) -> None:
    batch.count()


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]))
