"""
The format in sessions that nobody prepared: plain ones, classic and Connect.

Each has a process of its own, as a user's program has.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.changelog.log_making import delete, insert, update
from tests.pipeline.reading.made_log import MadeLog
from tests.pipeline.reading.plain import environment
from tests.support.patience import patience

# In CI the programs of the guide run in such a session.
pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.timeout(3600)]

PLAIN = """
import json, sys, warnings
from pyspark.sql import SparkSession

builder = SparkSession.builder.config("spark.ui.enabled", "false")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if sys.argv[3] == "connect":
        builder = builder.remote("local[1]")
        builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
    else:
        builder = builder.master("local[1]")
    spark = builder.getOrCreate()

def asked(reading):
    return reading.format("headrace").option("log", sys.argv[1]).option("table", "orders").load()

rows = asked(spark.read).orderBy("_position").collect()
print(json.dumps([[row.id, row._change_type] for row in rows]))
query = (
    asked(spark.readStream).writeStream.format("json").option("path", sys.argv[2])
    .option("checkpointLocation", sys.argv[2] + "-checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
print(spark.read.json(sys.argv[2]).count())
spark.stop()
"""


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_any_session_knows_the_format_without_being_told(tmp_path: Path, kind: str) -> None:
    log = MadeLog(tmp_path)
    log.flush(insert(1), insert(2))
    log.flush(update(3, 1), delete(4, 2))
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(log.data), str(tmp_path / "out"), kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(600),
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n")[:2]
    assert json.loads(first) == [
        [1, "insert"],
        [2, "insert"],
        [1, "update_postimage"],
        [2, "delete"],
    ]
    assert second == "4"
