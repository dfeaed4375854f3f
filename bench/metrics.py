"""
What a scrape costs: all metrics of an engine with a hundred tables, as text for Prometheus.

The engine is idle and runs without Spark, on a source in memory: what is measured is our own work
on the status. The floor is the status itself, which a scrape reads: states, counts, lag and rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Result, Rounds, at_most
from headrace.engine.engine import Engine
from headrace.observe.metrics import prometheus_text
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from headrace.testing.source import MemorySource
from tests.support.arrow_runner import ArrowRunner

TABLES = 100
PATIENCE = 120.0


def run(*, quick: bool) -> list[Result]:
    """Measure a hundred tables in ten pipelines, and in a hundred."""
    return [
        *_measure(10, "", quick=quick),
        *_measure(TABLES, ".100_pipelines", quick=quick),
    ]


def _measure(pipelines: int, which: str, *, quick: bool) -> list[Result]:
    source = MemorySource("shop")
    tables = [f"t{number}" for number in range(TABLES)]
    for table in tables:
        source.set_schema(table, {"id": "int64", "status": "text"}, key=["id"])
        source.add_row(table, {"id": 1, "status": "paid"})
    share = TABLES // pipelines
    wall, cpu = Rounds(), Rounds()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Engine(
            *(
                Pipeline(
                    source,
                    target=memory(),
                    tables=tables[at * share : (at + 1) * share],
                    name=f"p{at}",
                )
                for at in range(pipelines)
            ),
            data=Path(folder) / "data",
            runner=ArrowRunner(),
            recorder="thread",
        ) as engine,
    ):
        assert engine.await_ready(PATIENCE)

        def scrape() -> None:
            text = prometheus_text(engine.metrics())
            assert text.count("headrace_pipeline_rows{") == TABLES, "a table is missing"

        scrape()
        for _ in range(10 if quick else 50):
            for call, times, work in (
                (lambda: (engine.sources(), engine.pipelines()), wall.floor, cpu.floor),
                (scrape, wall.ours, cpu.ours),
            ):
                took, worked = _milliseconds(call)
                times.append(took)
                work.append(worked)
    floor = "engine.sources() and engine.pipelines()"
    return [
        wall.result(f"metrics.scrape_ms{which}", "ms", at_most(20) if not which else None, floor),
        cpu.result(f"metrics.scrape_cpu_ms{which}", "ms", None, floor),
    ]


def _milliseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return how long a call took, by the clock and by the CPU of all threads."""
    began, before = time.perf_counter(), time.process_time()
    call()
    return 1_000 * (time.perf_counter() - began), 1_000 * (time.process_time() - before)
