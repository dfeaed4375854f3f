"""
Headrace: stream every committed database change, through Spark, to tables and services.

```
 source ──capture──▶ change log ──pipeline (a Spark job a batch)──▶ target
   ▲                 (Parquet)                                        │
   └──── acknowledge ◀──── control: engine, progress ◀────────────────┘ durable up to
```

`capture` reads changes from a source and appends them to the change log. A `Pipeline` reads the log
in batches, filters and transforms each batch with one Spark job, and passes the rows to a target.
The `Engine` starts, supervises and stops everything.

    import headrace as hr

    orders = hr.memory(indexes={"by_customer": ["customer_id"]})
    with hr.Engine(hr.Pipeline(hr.sqlite("shop.db"), "orders", orders)) as engine:
        engine.await_ready(timeout=60)
        print(orders.lookup_all("by_customer", 7))

Names are loaded when they are first used: `import headrace` imports neither Spark nor Arrow, so
that a command that needs neither starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.capture.messages import Retries
    from headrace.capture.postgres.definition import postgres
    from headrace.capture.sqlite.source import sqlite
    from headrace.changelog.position import Position
    from headrace.deadletters.letter import DeadLetter
    from headrace.engine.engine import Engine, record
    from headrace.engine.health import Health
    from headrace.engine.replay import Replayed, ReplayProgress
    from headrace.errors import HeadraceError, RefusedRow, RowRefused, RowsRefused
    from headrace.lake.target import table
    from headrace.observe.metrics import Metric
    from headrace.pipeline.definition import TTL, DeadLetters, LagLimit, Pipeline
    from headrace.pipeline.foreach import foreach_batch
    from headrace.pipeline.steps import (
        derive,
        drop,
        equals,
        frame,
        function,
        mask,
        prefix,
        regex,
        rename,
        timestamp,
        where,
    )
    from headrace.runtime.info import LogInfo, PipelineInfo, SourceInfo, TableInfo, log
    from headrace.server.network import serve
    from headrace.spark_session.session import spark
    from headrace.tables.columns import Row
    from headrace.targets.memory import TableChange, memory
    from headrace.targets.row_target import RowTarget
    from headrace.targets.target import FrameBatch

__all__ = [  # noqa: RUF022 - by the alphabet, TTL too
    "DeadLetter",
    "DeadLetters",
    "Engine",
    "FrameBatch",
    "HeadraceError",
    "Health",
    "LagLimit",
    "LogInfo",
    "Metric",
    "Pipeline",
    "PipelineInfo",
    "Position",
    "RefusedRow",
    "ReplayProgress",
    "Replayed",
    "Retries",
    "Row",
    "RowRefused",
    "RowTarget",
    "RowsRefused",
    "SourceInfo",
    "TTL",
    "TableChange",
    "TableInfo",
    "derive",
    "drop",
    "equals",
    "foreach_batch",
    "frame",
    "function",
    "log",
    "mask",
    "memory",
    "postgres",
    "prefix",
    "record",
    "regex",
    "rename",
    "serve",
    "spark",
    "sqlite",
    "table",
    "timestamp",
    "where",
]


_MODULES = {
    "DeadLetter": "headrace.deadletters.letter",
    "DeadLetters": "headrace.pipeline.definition",
    "Engine": "headrace.engine.engine",
    "FrameBatch": "headrace.targets.target",
    "HeadraceError": "headrace.errors",
    "Health": "headrace.engine.health",
    "LagLimit": "headrace.pipeline.definition",
    "LogInfo": "headrace.runtime.info",
    "Metric": "headrace.observe.metrics",
    "Pipeline": "headrace.pipeline.definition",
    "PipelineInfo": "headrace.runtime.info",
    "Position": "headrace.changelog.position",
    "RefusedRow": "headrace.errors",
    "ReplayProgress": "headrace.engine.replay",
    "Replayed": "headrace.engine.replay",
    "Retries": "headrace.capture.messages",
    "Row": "headrace.tables.columns",
    "RowRefused": "headrace.errors",
    "RowTarget": "headrace.targets.row_target",
    "RowsRefused": "headrace.errors",
    "SourceInfo": "headrace.runtime.info",
    "TTL": "headrace.pipeline.definition",
    "TableChange": "headrace.targets.memory",
    "TableInfo": "headrace.runtime.info",
    "derive": "headrace.pipeline.steps",
    "drop": "headrace.pipeline.steps",
    "equals": "headrace.pipeline.steps",
    "foreach_batch": "headrace.pipeline.foreach",
    "frame": "headrace.pipeline.steps",
    "function": "headrace.pipeline.steps",
    "log": "headrace.runtime.info",
    "mask": "headrace.pipeline.steps",
    "memory": "headrace.targets.memory",
    "postgres": "headrace.capture.postgres.definition",
    "prefix": "headrace.pipeline.steps",
    "record": "headrace.engine.engine",
    "regex": "headrace.pipeline.steps",
    "rename": "headrace.pipeline.steps",
    "serve": "headrace.server.network",
    "spark": "headrace.spark_session.session",
    "sqlite": "headrace.capture.sqlite.source",
    "table": "headrace.lake.target",
    "timestamp": "headrace.pipeline.steps",
    "where": "headrace.pipeline.steps",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(module), name)
    # Stored, so that the next use is an ordinary attribute.
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
