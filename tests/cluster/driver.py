"""
An engine in a process of its own, which can be killed; or as a program for `spark-submit`.

Takes one word of JSON: the shop's folder, where effects go, and settings of Spark, or none
where Spark comes from `spark-submit`. Says "ready", and goes on until it is killed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from headrace.pipeline.foreach import foreach_batch
from headrace.pipeline.steps import function
from tests.cluster.shop import PATIENCE, Shop, gate, write_parquet


def main() -> None:
    given = json.loads(sys.argv[1])
    folder, conf = Path(given["folder"]), given["conf"]
    session = None
    if conf is None:
        from pyspark.sql import SparkSession

        session = SparkSession.builder.getOrCreate()
    wait = gate(folder / "hold", folder / "passed", folder / "out")
    step = function(wait, columns={"passed": "bigint"}, reads=["id"])
    rule = function(
        "shop_rules:with_double",
        columns={"double": "bigint", "python": "string", "headrace": "string"},
        reads=["qty"],
    )
    target = foreach_batch(write_parquet(folder / "out"))
    with Shop(folder, conf or {}, make=False).engine(target, step, rule, spark=session) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
