"""
Capture from SQLite by triggers that write into one log table beside the data.

`Capture` is the library: a handler, batches of records, no Spark and no JVM. The engine reads the
same log through `source`.
"""

from headrace.capture.sqlite.library.capture import Capture, TornDown
from headrace.capture.sqlite.library.records import CaptureBatch as Batch
from headrace.capture.sqlite.library.records import Record
from headrace.capture.sqlite.watch import Combined, External, FileWatch
from headrace.capture.sqlite.watch import PollInterval as Interval

__all__ = [
    "Batch",
    "Capture",
    "Combined",
    "External",
    "FileWatch",
    "Interval",
    "Record",
    "TornDown",
]
