"""
Foreign loggers, kept off the user's terminal.

PySpark prints every error it raises, with the row's values in it, through loggers of its
own; py4j warns through Python's last resort. Both would spoil a terminal, and the first
would put values into logs. Errors of a user's own session are left to print as ever.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

_NOISY = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class _Quiet(logging.Filter):
    """Drops what PySpark would print about errors in our own calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.ours, "depth", 0)


_quiet = _Quiet()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Run calls into Spark whose errors are ours to tell, and not PySpark's to print."""
    _quiet.ours.depth = getattr(_quiet.ours, "depth", 0) + 1
    try:
        yield
    finally:
        _quiet.ours.depth -= 1


def hush() -> None:
    """Load PySpark, and keep its loggers off the terminal."""
    # All of it, for it takes a while: this is called while a JVM starts.
    import pyspark.sql  # noqa: F401
    from py4j import java_gateway
    from pyspark.logger import PySparkLogger

    for name in _NOISY:
        PySparkLogger.getLogger(name).addFilter(_quiet)
    logger = logging.getLogger("py4j")
    # Without a handler of its own, Python prints its warnings to standard error.
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    # A lost connection goes to the root logger, by a function that also sets up logging for
    # the whole process. py4j's own logger has methods of the same names.
    java_gateway.logging = logger
