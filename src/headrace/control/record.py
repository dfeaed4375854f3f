"""Recording without a pipeline: the change log alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.control.engine import Engine

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


def record(
    source: Recordable,
    tables: str | Sequence[str],
    *,
    data: str | os.PathLike[str] = "./headrace-data",
) -> Engine:
    """
    Record tables of a source into the change log, and nothing else; return the engine.

    It is started, and runs until its `stop`, or the end of the process. What is recorded
    is there for pipelines and readers of the log to come. Spark is not needed.
    """
    names = [tables] if isinstance(tables, str) else list(tables)
    engine = Engine(data=data, records=[(source, names)])
    engine.start()
    return engine
