"""The demo's shop with an engine on a cluster, what its table should hold, and effects in files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import headrace as hr
from headrace.cli.demo import goods
from headrace.cli.demo import sqlite_shop as demo
from headrace.pipeline.foreach import FrameBatch
from headrace.pipeline.steps import Filter, Transform, derive, drop, where
from headrace.spark_session.session import Spark
from headrace.targets.memory import IndexedMemory
from headrace.targets.target import Target
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE = patience(120)
"""Six JVMs share the machine's cores, and a commit of Delta is several jobs."""

ORDERS = 300
CHANGES = 200
COLUMNS = "id, customer_id, product, qty, price_cents, status, placed_at"
FILTERS: list[Filter] = [where("status <> 'cancelled'")]
TRANSFORMS: list[Transform] = [derive(total_cents="qty * price_cents"), drop("card_number")]
"""The demo's own, as are the shop and its changes."""

RULE_COLUMNS = {"double": "bigint", "python": "string", "headrace": "string"}
"""What `shop_rules:with_double` gives."""

WAITING = "waiting"
"""The file that `gate` leaves when it waits, with the name of an executor that does."""

Rows = dict[object, dict[str, Any]]


class Shop:
    """The shop, an engine over it on the cluster, and what its table should hold."""

    def __init__(
        self, folder: Path, conf: dict[str, str], *, make: bool = True, orders: int = ORDERS
    ) -> None:
        self.path = folder / "shop.db"
        self.data = folder / "data"
        self._conf = conf
        self._chance = random.Random(1)
        if make:
            demo.make(self.path, orders=orders)

    @contextmanager
    def engine(
        self, target: Target, *more: Transform, spark: SparkSession | None = None
    ) -> Iterator[hr.Engine]:
        pipeline = hr.Pipeline(
            hr.sqlite(str(self.path), name="shop"),
            "orders",
            target,
            filters=FILTERS,
            transforms=[*TRANSFORMS, *more],
        )
        with hr.Engine(pipeline, data=self.data, spark=spark, spark_conf=self._conf) as engine:
            yield engine

    def change(self, count: int = CHANGES) -> None:
        with demo.connected(self.path) as database:
            for _ in range(count):
                with database.transaction():
                    goods.change(database, self._chance)

    def change_at_once(self) -> None:
        """Make many changes in one transaction: they come in one batch."""
        with demo.connected(self.path) as database, database.transaction():
            for _ in range(CHANGES):
                goods.change(database, self._chance)

    def truth(self, **more: Callable[[dict[str, Any]], object]) -> Rows:
        """Return the rows that a table should hold, with columns that are computed of each."""
        total = "qty * price_cents as total_cents"
        with demo.connected(self.path) as database:
            found = database.execute(
                f"select {COLUMNS}, {total} from orders where status <> 'cancelled'"
            )
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found]
        return {row["id"]: row | {name: made(row) for name, made in more.items()} for row in rows}


def held(target: IndexedMemory) -> Rows:
    return {row["id"]: dict(row) for row in target.all()}


def write_parquet(out: Path) -> Callable[[DataFrame, FrameBatch], None]:
    """Return a function that writes each batch from executors, to a folder named by its id."""

    def write(frame: DataFrame, batch: FrameBatch) -> None:
        frame.write.mode("overwrite").parquet(str(out / batch.id))

    return write


def folded(out: Path) -> Rows:
    """Return the rows that the files amount to, played in order."""
    # Without the mark, a folder is being written, or never came to its end. Not by `rglob`: it
    # raises where a folder goes while it looks.
    whole = [folder for folder, _, names in os.walk(out) if "_SUCCESS" in names]
    changes = [row for folder in whole for row in pq.read_table(folder).to_pylist()]
    rows: Rows = {}
    for change in sorted(changes, key=lambda change: (change["_position"] or "", change["_op"])):
        row = {name: value for name, value in change.items() if not name.startswith("_")}
        if change["_op"] == "delete":
            del rows[row["id"]]
        else:
            rows[row["id"]] = row
    return rows


def files(out: Path) -> dict[str, bytes]:
    """
    Return every file that counts with its bytes: not what a task has not committed.

    Nor the mark of a whole job, which Spark puts there after its rows can be read.
    """
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for folder, _, names in os.walk(out)
        for path in (Path(folder) / name for name in names)
        if "_temporary" not in path.parts and "_SUCCESS" not in path.name
    }


def gate(
    hold: Path, passed: Path, out: Path | None = None
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """
    Return a function that waits while `hold` is there, and leaves its process's id in `passed`.

    With `out`, it only waits in a job that writes there: the same batch is looked at before.
    """

    def wait_at_the_gate(row: dict[str, Any]) -> dict[str, Any]:
        import os
        import time

        def writes() -> bool:
            return out is None or any("_temporary" in inner for _, inner, _ in os.walk(out))

        while hold.exists() and writes():
            if not (passed / WAITING).exists():
                # An executor's working directory has its name.
                note = hold.with_name(f"waiting-{os.getpid()}")
                note.write_text(hold.cwd().name)
                note.rename(passed / WAITING)
            time.sleep(0.01)
        (passed / str(os.getpid())).touch()
        return {"passed": row["id"]}

    return wait_at_the_gate


def counted(spark: Spark, what: str) -> dict[str, int]:
    """Return a number that Spark keeps of each living executor, the driver among them."""
    found = spark.session.sparkContext._jsc.sc().statusStore().executorList(True)
    each = [found.apply(at) for at in range(found.size())]
    return {str(one.id()): int(getattr(one, what)()) for one in each}


def at_work(spark: Spark) -> set[str]:
    """Return the executors that have a task now: by the scheduler, the pages come later."""
    scheduler = spark.session.sparkContext._jsc.sc().taskScheduler()
    each = scheduler.runningTasksByExecutors().iterator()
    found = set()
    while each.hasNext():
        executor = each.next()
        if executor._2():
            found.add(str(executor._1()))
    return found
