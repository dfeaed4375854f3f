"""Pipelines on executors that are not the driver, have no Headrace, and can be killed (S12)."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import HeadraceError
from headrace.interfaces.cli.demo import goods
from headrace.interfaces.cli.demo import sqlite_shop as demo
from headrace.pipeline.foreach import FrameBatch, foreach_batch
from headrace.pipeline.session import Spark
from headrace.pipeline.steps import Filter, Transform, derive, drop, function, where
from headrace.targets.memory import IndexedMemory
from headrace.targets.target import Target
from tests.cluster.cluster import WORKERS, Cluster
from tests.support.shop import await_seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.cluster

PATIENCE = 60.0
"""Six JVMs share the machine's cores."""

ORDERS = 300
CHANGES = 200
COLUMNS = "id, customer_id, product, qty, price_cents, status, placed_at"
FILTERS: list[Filter] = [where("status <> 'cancelled'")]
TRANSFORMS: list[Transform] = [derive(total_cents="qty * price_cents"), drop("card_number")]
"""The demo's own, as are the shop and its changes."""

Rows = dict[object, dict[str, Any]]


class Shop:
    """The demo's shop, an engine over it on the cluster, and what its table should hold."""

    def __init__(self, folder: Path, conf: dict[str, str]) -> None:
        self.path = folder / "shop.db"
        self.data = folder / "data"
        self._conf = conf
        self._chance = random.Random(1)
        demo.make(self.path, orders=ORDERS)

    @contextmanager
    def engine(self, target: Target, *more: Transform) -> Iterator[hr.Engine]:
        pipeline = hr.Pipeline(
            hr.sqlite(str(self.path), name="shop"),
            "orders",
            target,
            filters=FILTERS,
            transforms=[*TRANSFORMS, *more],
        )
        with hr.Engine(pipeline, data=self.data, spark_conf=self._conf) as engine:
            yield engine

    def change(self, count: int = CHANGES) -> None:
        with demo.connected(self.path) as database:
            for _ in range(count):
                with database.transaction():
                    goods.change(database, self._chance)

    def truth(self) -> Rows:
        total = "qty * price_cents as total_cents"
        with demo.connected(self.path) as database:
            found = database.execute(
                f"select {COLUMNS}, {total} from orders where status <> 'cancelled'"
            )
            names = [column[0] for column in found.description]
            return {row[0]: dict(zip(names, row, strict=True)) for row in found}


@pytest.fixture
def shop(cluster: Cluster, remote: Spark, tmp_path: Path) -> Shop:
    assert len(cluster.workers) == WORKERS
    return Shop(tmp_path, cluster.conf)


def held(target: IndexedMemory) -> Rows:
    return {row["id"]: dict(row) for row in target.all()}


def counted(spark: Spark, what: str) -> dict[str, int]:
    """Return a number that Spark keeps of each living executor, the driver among them."""
    found = spark.session.sparkContext._jsc.sc().statusStore().executorList(True)
    each = [found.apply(at) for at in range(found.size())]
    return {str(one.id()): int(getattr(one, what)()) for one in each}


def at_work(spark: Spark, *, besides: str = "") -> str | None:
    """Return an executor that has a task now."""
    busy = (name for name, tasks in counted(spark, "activeTasks").items() if tasks)
    return next((name for name in busy if name not in ("driver", besides)), None)


@pytest.mark.meets("S12", "S16")
def test_the_demos_pipeline_runs_on_executors_and_the_table_equals_the_source(
    shop: Shop, remote: Spark
) -> None:
    assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
    before = counted(remote, "totalTasks")
    target = hr.memory(indexes={"by_customer": ["customer_id"]})
    with shop.engine(target) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        assert held(target) == shop.truth()
        shop.change()
        assert await_seen(lambda: held(target) == shop.truth(), PATIENCE)
        (told,) = engine.pipelines()
        assert (told.state, told.dead_letters, told.error) == ("live", 0, None)
    after = counted(remote, "totalTasks")
    assert after.pop("driver") == before.pop("driver") == 0
    assert len(after) == WORKERS
    assert sum(after.values()) - sum(before.values()) >= told.jobs > 0


@pytest.mark.meets("S12", "S17")
def test_a_function_writes_each_batch_from_executors_and_again_under_the_same_id(
    shop: Shop, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given: list[FrameBatch] = []
    writing = threading.Lock()

    def write(frame: DataFrame, batch: FrameBatch) -> None:
        with writing:
            frame.write.mode("overwrite").parquet(str(out / batch.id))
        again = any(batch.id == before.id for before in given)
        given.append(batch)
        if batch.baseline is None and not again:
            # Written, but the engine cannot know: it must give the same batch once more.
            raise ConnectionError

    def folded() -> Rows:
        """Return the rows that the files amount to, played in order."""
        with writing:
            written = [pq.read_table(out / name) for name in {batch.id for batch in given}]
        changes = [row for table in written for row in table.to_pylist()]
        rows: Rows = {}
        for change in sorted(
            changes, key=lambda change: (change["_position"] or "", change["_op"])
        ):
            row = {name: value for name, value in change.items() if not name.startswith("_")}
            if change["_op"] == "delete":
                del rows[row["id"]]
            else:
                rows[row["id"]] = row
        return rows

    with shop.engine(foreach_batch(write)) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        assert folded() == shop.truth()
        shop.change()
        assert await_seen(lambda: folded() == shop.truth(), PATIENCE)
        assert await_seen(lambda: len({batch.id for batch in given}) < len(given), PATIENCE)
        assert folded() == shop.truth()
        assert engine.dead_letters() == ()


@pytest.mark.meets("S10", "S12")
def test_a_function_runs_in_a_python_that_has_no_headrace(shop: Shop, cluster: Cluster) -> None:
    def where_it_runs(row: dict[str, Any]) -> dict[str, Any]:
        import importlib.util
        import sys

        found = importlib.util.find_spec("headrace") is not None
        return {"headrace": found, "python": sys.executable, "double": row["qty"] * 2}

    columns = {"headrace": "boolean", "python": "string", "double": "bigint"}
    target = hr.memory()
    with shop.engine(target, function(where_it_runs, columns=columns, reads=["qty"])) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        shop.change(20)

        def expected() -> Rows:
            more = {"headrace": False, "python": str(cluster.python)}
            return {
                key: row | more | {"double": row["qty"] * 2} for key, row in shop.truth().items()
            }

        assert await_seen(lambda: held(target) == expected(), PATIENCE)
        assert engine.dead_letters() == ()


@pytest.mark.meets("S10", "S12")
def test_a_function_that_executors_do_not_have_is_refused_at_the_start(shop: Shop) -> None:
    named = function("headrace.changelog.position:Position", columns={"x": "string"})
    with pytest.raises(HeadraceError) as refused, shop.engine(hr.memory(), named):
        pass
    assert "cannot be had on an executor" in str(refused.value)


@pytest.mark.meets("S2", "S12")
def test_a_worker_killed_in_mid_job_is_blamed_on_no_row_and_the_table_goes_on(
    shop: Shop, cluster: Cluster, remote: Spark, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"

    def wait_at_the_gate(row: dict[str, Any]) -> dict[str, Any]:
        import time

        while hold.exists():
            time.sleep(0.01)
        return {"passed": row["id"]}

    target = hr.memory()
    slow = function(wait_at_the_gate, columns={"passed": "bigint"}, reads=["id"])

    def expected() -> Rows:
        return {key: row | {"passed": key} for key, row in shop.truth().items()}

    with shop.engine(target, slow) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        hold.touch()
        shop.change()
        assert await_seen(lambda: at_work(remote) is not None, PATIENCE)
        lost = at_work(remote)
        assert lost is not None
        cluster.kill(cluster.worker_of(lost))
        try:
            assert await_seen(lambda: at_work(remote, besides=lost) is not None, PATIENCE)
            assert held(target) != expected()
            hold.unlink()
            assert await_seen(lambda: held(target) == expected(), PATIENCE)
            shop.change()
            assert await_seen(lambda: held(target) == expected(), PATIENCE)
        finally:
            hold.unlink(missing_ok=True)
            cluster.start_worker()
        (told,) = engine.pipelines()
        assert (told.state, told.dead_letters, told.error) == ("live", 0, None)
        assert engine.dead_letters() == ()
        # A worker that joins gets an executor, and the application has as many as before.
        cluster.await_workers(WORKERS)
        assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
    assert lost not in counted(remote, "totalTasks")
