"""A table of orders, and engines that follow it into memory."""

from __future__ import annotations

from pathlib import Path

from headrace.capture.postgres.definition import postgres
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import Database
from tests.support.arrow_runner import ArrowRunner


class FollowedOrders:
    """Orders of an id and a note, and the memory of the last engine."""

    def __init__(self, database: Database, data: Path, rows: int = 30) -> None:
        self.database = database
        self.data = data
        self.orders: IndexedMemory = memory()
        database.execute("create table orders (id bigint primary key, note text)")
        database.execute(f"insert into orders select n, 'x' from generate_series(1, {rows}) n")

    def engine(
        self, how: str = "thread", shutdown_timeout: float = 30.0, **options: object
    ) -> Engine:
        self.orders = memory()
        source = postgres(self.database.dsn, name="shop", **options)  # type: ignore[arg-type]
        return Engine(
            Pipeline(source, "orders", self.orders, name="orders"),
            data=self.data,
            runner=ArrowRunner(),
            recorder=how,  # type: ignore[arg-type]
            shutdown_timeout=shutdown_timeout,
        )

    def equal(self) -> bool:
        truth = dict(self.database.rows("select id, note from orders"))
        return {row["id"]: row["note"] for row in self.orders.all()} == truth

    def slots(self) -> list[str]:
        found = self.database.rows(
            "select slot_name::text from pg_replication_slots where database = current_database()"
        )
        return [name for (name,) in found]
