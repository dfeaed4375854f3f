"""The context that an engine passes to a table target, without an engine."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.spark_session.session import Spark
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.target import TargetContext


def target_context(spark: Spark, data: Path, pipeline: str = "orders") -> TargetContext:
    data.mkdir(parents=True, exist_ok=True)
    return TargetContext(
        spark=lambda: spark,
        pipeline=pipeline,
        files=Files(RealDisk(), str(data)),
        clock=time.time,
        lineage=lambda: "test/1",
    )
