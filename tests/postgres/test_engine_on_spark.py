"""PostgreSQL through Spark: tables copied by its tasks, and rows that cross a filter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.capture.messages import CopyPlanned
from headrace.runtime import copy_on_spark
from tests.postgres.servers import Database, wait_until
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark

PATIENCE = patience(90)
ROWS = 300_000


@pytest.mark.meets("R16", "R20", "S4", "H1")
def test_spark_copies_a_large_table_in_parts(
    database: Database, tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table orders (id bigint primary key, status text, pad text)")
    database.execute(
        "insert into orders select n, 'paid', repeat('x', 200) from generate_series(1, %s) n", ROWS
    )
    asked: list[int] = []
    copy = copy_on_spark.SparkCopies._copied

    def noted(self: copy_on_spark.SparkCopies, planned: CopyPlanned) -> object:
        asked.append(len(planned.parts))
        return copy(self, planned)

    monkeypatch.setattr(copy_on_spark.SparkCopies, "_copied", noted)
    orders = hr.memory()
    source = hr.postgres(database.dsn, name="shop")
    pipeline = hr.Pipeline(source, "orders", orders)
    with hr.Engine(pipeline, data=tmp_path / "data", spark=spark.session) as engine:
        database.execute("delete from orders where id %% 1000 = 0 and %s", True)
        assert engine.await_ready(PATIENCE)
        wait_until(lambda: orders.count() == ROWS - ROWS // 1000, PATIENCE)
        assert asked[0] > 1
        assert len(asked) == 1
        assert engine.pipeline_info("orders").tables[0].baseline == 1
        row = orders.get(77)
        assert row is not None
        assert dict(row) == {"id": 77, "status": "paid", "pad": "x" * 200}


@pytest.mark.meets("R22", "PG-13")
@pytest.mark.parametrize("identity", ["default", "full"])
@pytest.mark.parametrize("how", ["text", "function"])
def test_rows_enter_and_leave_a_filter_also_without_their_image_before(
    database: Database, tmp_path: Path, spark: Spark, identity: str, how: str
) -> None:
    database.execute("create table orders (id bigint primary key, status text)")
    database.execute(f"alter table orders replica identity {identity}")
    database.execute("insert into orders values (1, 'paid'), (2, 'paid'), (3, 'new'), (4, 'paid')")
    test = (
        hr.equals("status", "paid")
        if how == "text"
        else hr.function(lambda row: row["status"] == "paid")
    )
    orders = hr.memory()
    pipeline = hr.Pipeline(hr.postgres(database.dsn, name="shop"), "orders", orders, filters=[test])
    with hr.Engine(pipeline, data=tmp_path / "data", spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
        assert {row["id"] for row in orders.all()} == {1, 2, 4}
        database.execute("delete from orders where id = 1")
        database.execute("update orders set status = 'sent' where id = 2")
        database.execute("update orders set status = 'paid' where id = 3")
        database.execute("update orders set id = 40 where id = 4")
        database.execute("insert into orders values (5, 'new'), (6, 'paid')")
        wait_until(lambda: {row["id"] for row in orders.all()} == {3, 6, 40}, PATIENCE)


@pytest.mark.meets("R23b")
def test_a_table_that_is_altered_while_it_is_followed_stays_equal_to_its_source(
    database: Database, tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table orders (id bigint primary key, status text, qty int)")
    database.execute("insert into orders select n, 'paid', n from generate_series(1, 100) n")
    orders = hr.memory()
    pipeline = hr.Pipeline(hr.postgres(database.dsn, name="shop"), "orders", orders)

    def equal() -> bool:
        (truth,) = database.rows("select json_agg(o order by id) from orders o")[0]
        found = sorted((dict(row) for row in orders.all()), key=lambda row: str(row["id"]).zfill(9))
        return [dict(row) for row in truth] == found

    with hr.Engine(pipeline, data=tmp_path / "data", spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
        for statement in (
            "alter table orders add state text default 'new'",
            "insert into orders values (101, 'new', 5, 'x')",
            "alter table orders rename qty to quantity",
            "update orders set quantity = 0 where id <= 10",
            "alter table orders drop status",
            "delete from orders where id = 50",
        ):
            database.execute(statement)
        wait_until(equal, PATIENCE)
        assert engine.pipeline_info("orders").tables[0].baseline == 1
        database.execute("alter table orders add drawn int default (random() * 100)::int")
        database.execute("update orders set state = 'y' where id = 3")
        wait_until(equal, PATIENCE)
        assert engine.await_ready(PATIENCE)
        assert engine.pipeline_info("orders").tables[0].baseline == 2


@pytest.mark.meets("R23b")
def test_changes_from_before_a_column_was_dropped_come_with_its_values(
    database: Database, tmp_path: Path, spark: Spark
) -> None:
    database.execute("create table orders (id bigint primary key, status text)")
    database.execute("insert into orders values (1, 'first')")
    source = hr.postgres(database.dsn, name="shop")
    given: list[tuple[int, str | None]] = []

    def take(frame: DataFrame, batch: hr.FrameBatch) -> None:
        has_it = "status" in frame.columns
        given.extend((row["id"], row["status"] if has_it else None) for row in frame.collect())

    folder = tmp_path / "changes"
    pipelines = [
        hr.Pipeline(source, "orders", hr.table(path=folder, format="parquet", mode="append")),
        hr.Pipeline(source, "orders", hr.foreach_batch(take), name="given"),
    ]
    with hr.Engine(*pipelines, data=tmp_path / "data", spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
    database.execute("insert into orders values (2, 'second')")
    database.execute("alter table orders drop status")
    database.execute("insert into orders values (3)")

    def kept() -> list[tuple[int, str | None]]:
        frame = spark.session.read.option("mergeSchema", "true").parquet(str(folder))
        return sorted((row["id"], row["status"]) for row in frame.collect())

    with hr.Engine(*pipelines, data=tmp_path / "data", spark=spark.session) as engine:
        wait_until(lambda: kept() == [(1, "first"), (2, "second"), (3, None)], PATIENCE)
        wait_until(lambda: (3, None) in given, PATIENCE)
        assert engine.await_ready(PATIENCE)
    assert given[:3] == [(1, "first"), (2, "second"), (3, None)]
