"""
A user's own streaming query, in a process that is killed: `python -m … LOG FOLDER KIND [now]`.

Of kind `files`, its function writes each batch to a file of its own, under the batch's number, in
one step; a batch that comes again takes the place of the one before. Of kind `delta`, it merges
each batch into a table, with the batch's number as Delta's own transaction. It tells what it does
on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.lake.formats import DELTA, needs
from headrace.spark_source.source import HAS_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Take = Callable[[DataFrame, int], None]

APPLICATION = "killed"
"""Whose transactions the batches are, in Delta's log."""

TABLE = "table"


def into_files(folder: Path) -> Take:
    """Return what writes a batch to a file."""

    def take(frame: DataFrame, number: int) -> None:
        say(f"begin {number}")
        rows = [
            [row["id"], row["status"], row["_change_type"], row["_position"]]
            for row in frame.collect()
        ]
        temporary = folder / f"{number}.tmp"
        temporary.write_text(json.dumps(rows))
        say(f"ready {number}")
        temporary.replace(folder / f"{number}.json")
        say(f"written {number}")

    return take


def into_delta(folder: Path) -> Take:
    """Return what merges a batch into a table, once."""
    table = f"delta.`{folder / TABLE}`"

    def take(frame: DataFrame, number: int) -> None:
        say(f"begin {number}")
        session = frame.sparkSession
        session.sql(f"create table if not exists {table} (id bigint, status string) using delta")
        # Of each key the last change; of two at one position the delete comes first.
        last = frame.groupBy("id").agg(
            F.max_by(
                F.struct("status", "_change_type"),
                F.struct("_position", F.col("_change_type") != "delete"),
            ).alias("last")
        )
        last.select("id", "last.*").createOrReplaceTempView("changes")
        session.conf.set("spark.databricks.delta.write.txnAppId", APPLICATION)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(number))
        say(f"ready {number}")
        session.sql(
            f"merge into {table} t using changes c on t.id = c.id"
            " when matched and c._change_type = 'delete' then delete"
            " when matched then update set status = c.status"
            " when not matched and c._change_type <> 'delete'"
            " then insert (id, status) values (c.id, c.status)"
        )
        say(f"written {number}")

    return take


KINDS = {"files": into_files, "delta": into_delta}


def main() -> None:
    log, folder, kind, now = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:] == ["now"]
    settings = needs(DELTA) if kind == "delta" else {}
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.memory", "512m")
        .config(map=dict(settings))
        .getOrCreate()
    )
    changes = (
        spark.readStream.format("headrace")
        .option("log", log)
        .option("table", "orders")
        .option("startingPosition", "baseline")
        .option("reader", "killed")
        .options(**({"maxRowsPerBatch": "20"} if HAS_LIMITS else {}))
        .load()
    )
    writing = changes.writeStream.foreachBatch(KINDS[kind](folder))
    writing = writing.option("checkpointLocation", str(folder / "checkpoint"))
    query = (writing.trigger(availableNow=True) if now else writing).start()
    say("started")
    query.awaitTermination()
    say("ended")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
