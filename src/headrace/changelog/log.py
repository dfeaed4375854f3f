"""
The log of one source: `LogWriter` for its recorder, `LogReader` for everybody else.

Both are rooted at the data directory and find the log under `log/<source>/`: an index of
numbered entries, and the segments they name.
"""

from __future__ import annotations

from headrace.changelog.baseline import BaselineWriter
from headrace.changelog.history import Counts
from headrace.changelog.reader import LogBatch, LogReader, segment_path
from headrace.changelog.writer import LIMIT_BYTES, LIMIT_ROWS, LogWriter

__all__ = [
    "LIMIT_BYTES",
    "LIMIT_ROWS",
    "BaselineWriter",
    "Counts",
    "LogBatch",
    "LogReader",
    "LogWriter",
    "segment_path",
]
