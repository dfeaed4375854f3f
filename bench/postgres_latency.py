"""
From a commit in PostgreSQL to a reader: sparse commits, and a hundred a second.

The floor is the spine's: one Spark job of the same shape. Latency starts at the time that
the writer stamped into the row, before its commit, and ends in a reader's callback.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from bench.harness import Result, Rounds, floor_plus, ratio_at_most
from bench.postgres_recorder import source_of
from bench.postgres_table import Server
from bench.postgres_writer import TABLE
from bench.spine import OneJob
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import derive, drop, where
from headrace.spark_session.session import Spark
from headrace.targets.memory import IndexedMemory, memory

SPARSE = 2.0
BUSY = 100.0
PATIENCE = 60.0


class Shop:
    """A table of orders with stamps, an engine on it, and a writer."""

    def __init__(self, server: Server, spark: Spark, data: Path) -> None:
        self._server = server
        server.execute(f"drop table if exists {TABLE}")
        server.execute(
            f"create table {TABLE} (id int8 primary key, customer_id int8, product text, qty int4,"
            " price_cents int4, status text, card_number text, stamp float8)"
        )
        self.target: IndexedMemory = memory(indexes={"by_customer": ["customer_id"]})
        self.engine = Engine(
            Pipeline(
                source_of(server.dsn),
                TABLE,
                self.target,
                filters=[where("status <> 'cancelled'")],
                transforms=[drop("card_number"), derive(total_cents="qty * price_cents")],
            ),
            data=data,
            spark=spark.session,
        )

    def measure(self, rate: float, seconds: float) -> list[float]:
        """Write at `rate` commits a second; return commit to reader in milliseconds, sorted."""
        expected = max(2, int(rate * seconds))
        late: list[float] = []
        there = threading.Event()

        def heard(old: object, new: object) -> None:
            late.append((time.time() - new["stamp"]) * 1_000)  # type: ignore[index]
            if len(late) >= expected:
                there.set()

        stop = self.target.listen(heard)
        try:
            subprocess.run(
                [
                    *(sys.executable, "-m", "bench.postgres_writer"),
                    *(self._server.dsn, str(rate), str(expected)),
                ],
                check=True,
                cwd=Path(__file__).parents[1],
            )
            assert there.wait(PATIENCE), f"{len(late)} of {expected} rows became visible"
        finally:
            stop()
        # The first fifth warms the path; it is not judged.
        return sorted(late[expected // 5 :])

    def check(self) -> None:
        """Compare what readers see with what SQL says."""
        query = f"select row(count(*), sum(id), sum(qty * price_cents))::text from {TABLE}"
        count = ids = total = 0
        for row in self.target.all():
            count += 1
            ids += row.get_int("id")
            total += row.get_int("total_cents")
        found = f"({count},{ids},{total})"
        truth = self._server.value(query)
        assert found == truth, f"memory has {found}, SQL {truth}"


def run(
    server: Server, spark: Spark, folder: Path, floor: OneJob, *, rounds: int, seconds: float
) -> list[Result]:
    """Measure both rates `rounds` times, for `seconds` each."""
    shop = Shop(server, spark, folder / "latency")
    sparse, busy, tail = Rounds(), Rounds(), Rounds()
    with shop.engine as engine:
        assert engine.await_ready(PATIENCE)
        shop.measure(BUSY, 2 * seconds)  # warm
        for _ in range(rounds):
            sparse.floor.append(floor.milliseconds())
            sparse.ours.append(statistics.median(shop.measure(SPARSE, seconds)))
            one_job = floor.milliseconds()
            late = shop.measure(BUSY, seconds)
            busy.ours.append(statistics.median(late))
            tail.ours.append(late[int(0.99 * len(late))])
            busy.floor.append(one_job)
            tail.floor.append(one_job)
        shop.check()
        info = engine.pipelines()[0]
        assert info.jobs >= info.batches
        assert info.changes == engine.sources()[0].captured, "rows scanned = rows captured"
        hops = ", ".join(f"{name} {hop.p50_ms:.0f}" for name, hop in info.hops.items())
    one = "one Spark job of the same shape"
    median = busy.result("pg.latency.100ps.p50", "ms", ratio_at_most(2.5), one)
    return [
        sparse.result("pg.latency.sparse.p50", "ms", floor_plus(20), one),
        replace(median, note=f"{server.transport}; p50 ms by hop at the end: {hops}"),
        tail.result("pg.latency.100ps.p99", "ms", ratio_at_most(5), one),
    ]
