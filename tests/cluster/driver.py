"""
An engine in a process of its own, which can be killed; or as a program for `spark-submit`.

Takes one word of JSON: the shop's folder, where effects go, and settings of Spark, or none
where Spark comes from `spark-submit`. Effects are files, or a Delta table that executors prepare,
where `table` names one. Says "ready", and goes on until it is killed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import headrace as hr
from headrace.pipeline.foreach import foreach_batch
from headrace.pipeline.steps import Transform, function
from headrace.targets.target import Target
from tests.cluster.shop import PATIENCE, RULE_COLUMNS, Shop, gate, write_parquet


def main() -> None:
    given = json.loads(sys.argv[1])
    folder, conf = Path(given["folder"]), given["conf"]
    session = None
    if conf is None:
        from pyspark.sql import SparkSession

        session = SparkSession.builder.getOrCreate()
    wait = gate(folder / "hold", folder / "passed", folder / "out")
    step = function(wait, columns={"passed": "bigint"}, reads=["id"])
    rule = function("shop_rules:with_double", columns=RULE_COLUMNS, reads=["qty"])
    shop = Shop(folder, conf or {}, make=False)
    target: Target = foreach_batch(write_parquet(folder / "out"))
    steps: list[Transform] = [step, rule]
    if "table" in given:
        target, steps = hr.table(path=given["table"], staged_from=1, compact_every=0), [rule]
    with shop.engine(target, *steps, spark=session) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
