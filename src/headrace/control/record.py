"""Recording without a pipeline: the change log alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.control.engine import Engine
from headrace.control.keeping import LogOptions

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


def record(
    source: Recordable,
    tables: str | Sequence[str],
    *,
    data: str | os.PathLike[str] = "./headrace-data",
    log: LogOptions | None = None,
) -> Engine:
    """
    Record tables of a source into the change log, and nothing else; return the engine.

    It is started, and runs until its `stop`, or the end of the process. What is recorded
    is there for pipelines and readers of the log to come. Spark is not needed. `log` is as for
    `Engine`: how long it is kept, and where it lies.
    """
    names = [tables] if isinstance(tables, str) else list(tables)
    engine = Engine(data=data, records=[(source, names)], log=log)
    engine.start()
    return engine
