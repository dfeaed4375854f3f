"""
A baseline copied by Spark tasks: the executors get part numbers and return receipts.

This is a separate module because tasks import it. Otherwise every Python worker that copies would
import the Spark session and the plans of pipelines, too.
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
    Copy these parts of a baseline and return the files that were written.

    There are only as many tasks as can run at the same time. Each copies several parts one
    after the other, because between two tasks a core idles for a tenth of the time of a part.
    """
    order = replace(order, at_once=_at_once(spark, len(numbers)))
    frame = spark.bulk.range(numbers.start, numbers.stop, 1, order.at_once)
    receipts = spark.collect(frame.mapInArrow(partial(_copy, order), _RECEIPT))
    return [_FILES.decode(text) for text in receipts.column("receipt").to_pylist()]


def _at_once(spark: Spark, count: int) -> int:
    """Return how many of `count` tasks can run at once; too many is better than too few."""
    # Spark Connect has no context, and a cluster may get more executors at any time.
    context = getattr(spark.session, "sparkContext", None)
    if context is None or not context.master.startswith("local["):
        return count
    return min(count, int(context.defaultParallelism))


def _copy(order: Order, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in a task: read part numbers, yield receipts."""
    for batch in batches:
        for file in copied(order, batch.column(0).to_pylist()):
            receipt = msgspec.json.encode(file).decode()
            yield pa.RecordBatch.from_pydict(
                {"receipt": [receipt]}, schema=pa.schema([("receipt", pa.string())])
            )
