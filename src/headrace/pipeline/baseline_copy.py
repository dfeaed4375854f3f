"""
A baseline copied by Spark's tasks: numbers of parts go to the executors, receipts come back.

A module of its own, because a task imports it: what else a runner needs, Spark's session and the
plans of pipelines, would be imported by every Python worker that copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.capture.baselines import Order
from headrace.capture.baselines import copy_parts as copied
from headrace.changelog.entries import File

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

_RECEIPT = "receipt string"
_FILES = msgspec.json.Decoder(File)


def copy_parts(spark: Spark, order: Order, numbers: range) -> list[File]:
    """
    Copy these parts of a baseline and return what was written.

    There are as many tasks as run at the same time, each with some parts one after the other:
    between two tasks a core waits for as long as a tenth of a part takes.
    """
    order = replace(order, at_once=_at_once(spark, len(numbers)))
    frame = spark.bulk.range(numbers.start, numbers.stop, 1, order.at_once)
    receipts = spark.collect(frame.mapInArrow(partial(_copy, order), _RECEIPT))
    return [_FILES.decode(text) for text in receipts.column("receipt").to_pylist()]


def _at_once(spark: Spark, count: int) -> int:
    """Return how many of so many tasks may run at the same time: rather too many than too few."""
    # Spark Connect has none, and a cluster may get more executors at any time.
    context = getattr(spark.session, "sparkContext", None)
    if context is None or not context.master.startswith("local["):
        return count
    return min(count, int(context.defaultParallelism))


def _copy(order: Order, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in a task: numbers of parts come, receipts go."""
    for batch in batches:
        for file in copied(order, batch.column(0).to_pylist()):
            receipt = msgspec.json.encode(file).decode()
            yield pa.RecordBatch.from_pydict(
                {"receipt": [receipt]}, schema=pa.schema([("receipt", pa.string())])
            )
