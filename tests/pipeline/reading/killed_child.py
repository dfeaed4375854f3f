"""
A user's own streaming query, in a process that is killed: `python -m … LOG FOLDER [now]`.

Its function writes each batch to a file of its own, under the batch's number, in one step; a
batch that comes again takes the place of the one before. It tells what it does on stdout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from headrace.pipeline.reading.readers import HAS_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    log, folder, now = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] == ["now"]
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )

    def take(frame: DataFrame, number: int) -> None:
        say(f"begin {number}")
        rows = [
            [row["id"], row["status"], row["_change_type"], row["_position"]]
            for row in frame.collect()
        ]
        beside = folder / f"{number}.tmp"
        beside.write_text(json.dumps(rows))
        say(f"ready {number}")
        beside.replace(folder / f"{number}.json")
        say(f"written {number}")

    changes = (
        spark.readStream.format("headrace")
        .option("log", log)
        .option("table", "orders")
        .option("startingPosition", "baseline")
        .option("reader", "killed")
        .options(**({"maxRowsPerBatch": "20"} if HAS_LIMITS else {}))
        .load()
    )
    writing = changes.writeStream.foreachBatch(take)
    writing = writing.option("checkpointLocation", str(folder / "checkpoint"))
    query = (writing.trigger(availableNow=True) if now else writing).start()
    say("started")
    query.awaitTermination()
    say("ended")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
