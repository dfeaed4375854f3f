"""
Headrace: every committed change of a database, brought to whoever needs it, on Spark.

```
 source ──capture──▶ change log ──pipeline (a Spark job a batch)──▶ target
   ▲                 (Parquet)                                        │
   └──── acknowledge ◀──── control: engine, progress ◀────────────────┘ durable up to
```

`capture` takes changes from a source and appends them to the change log; a `Pipeline`
reads the log in batches, filters and transforms each with one Spark job, and hands the
rows to a target; the `Engine` starts, supervises and stops all of it.

    import headrace as hr

    orders = hr.memory(indexes={"by_customer": ["customer_id"]})
    with hr.Engine(hr.Pipeline(hr.sqlite("shop.db"), "orders", orders)) as engine:
        engine.await_ready(timeout=60)
        print(orders.lookup_all("by_customer", 7))

Names are loaded when they are first used: `import headrace` imports neither Spark nor
Arrow, so that a command that needs neither starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.capture.sqlite.source import sqlite
    from headrace.changelog.position import Position
    from headrace.control.engine import Engine
    from headrace.control.info import PipelineInfo, SourceInfo
    from headrace.errors import HeadraceError
    from headrace.pipeline.definition import Pipeline, derive, drop, equals, rename, where
    from headrace.pipeline.session import spark
    from headrace.targets.memory import TableChange, memory

__all__ = [
    "Engine",
    "HeadraceError",
    "Pipeline",
    "PipelineInfo",
    "Position",
    "SourceInfo",
    "TableChange",
    "derive",
    "drop",
    "equals",
    "memory",
    "rename",
    "spark",
    "sqlite",
    "where",
]

_HOMES = {
    "Engine": "headrace.control.engine",
    "HeadraceError": "headrace.errors",
    "Pipeline": "headrace.pipeline.definition",
    "PipelineInfo": "headrace.control.info",
    "Position": "headrace.changelog.position",
    "SourceInfo": "headrace.control.info",
    "TableChange": "headrace.targets.memory",
    "derive": "headrace.pipeline.definition",
    "drop": "headrace.pipeline.definition",
    "equals": "headrace.pipeline.definition",
    "memory": "headrace.targets.memory",
    "rename": "headrace.pipeline.definition",
    "spark": "headrace.pipeline.session",
    "sqlite": "headrace.capture.sqlite.source",
    "where": "headrace.pipeline.definition",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    # Kept, so that the next use is an ordinary attribute.
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
