"""Pipelines on executors that are not the driver, and have nothing but what was packed (S12)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from headrace.pipeline.foreach import FrameBatch, foreach_batch
from headrace.pipeline.steps import function
from headrace.spark_session.pack import FOLDER
from headrace.spark_session.session import Spark
from tests.cluster.cluster import WORKERS, Cluster
from tests.cluster.shop import PATIENCE, Rows, Shop, counted, folded, held, write_parquet
from tests.support.shop import await_seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.fixture
def shop(cluster: Cluster, remote: Spark, tmp_path: Path) -> Shop:
    assert len(cluster.workers) == WORKERS
    return Shop(tmp_path, cluster.conf)


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
        (status,) = engine.pipelines()
        assert (status.state, status.dead_letters, status.error) == ("live", 0, None)
    after = counted(remote, "totalTasks")
    assert after.pop("driver") == before.pop("driver") == 0
    assert len(after) == WORKERS
    assert sum(after.values()) - sum(before.values()) >= status.jobs > 0


@pytest.mark.meets("S12", "S17")
def test_a_function_writes_each_batch_from_executors_and_again_under_the_same_id(
    shop: Shop, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given: list[FrameBatch] = []
    to_files = write_parquet(out)

    def write(frame: DataFrame, batch: FrameBatch) -> None:
        to_files(frame, batch)
        again = any(batch.id == before.id for before in given)
        given.append(batch)
        if batch.baseline is None and not again:
            # Written, but the engine cannot know: it must give the same batch once more.
            raise ConnectionError

    with shop.engine(foreach_batch(write)) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        assert folded(out) == shop.truth()
        shop.change()
        # Whole only once the second time is over, too: meanwhile it is being replaced.
        assert await_seen(
            lambda: (
                len({batch.id for batch in given}) < len(given)
                and engine.pipelines()[0].state == "live"
            ),
            PATIENCE,
        )
        assert await_seen(lambda: folded(out) == shop.truth(), PATIENCE)
        assert engine.dead_letters() == ()


@pytest.mark.meets("S10", "S12")
def test_a_function_of_the_projects_runs_in_what_was_packed(shop: Shop, cluster: Cluster) -> None:
    columns = {"double": "bigint", "python": "string", "headrace": "string"}
    target = hr.memory()
    rule = function("shop_rules:with_double", columns=columns, reads=["qty"])
    with shop.engine(target, rule) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        shop.change(20)

        def computed() -> Rows:
            apart = ("python", "headrace")
            return {
                key: {name: value for name, value in row.items() if name not in apart}
                for key, row in held(target).items()
            }

        assert await_seen(
            lambda: computed() == shop.truth(double=lambda row: row["qty"] * 2), PATIENCE
        )
        for row in held(target).values():
            # Each executor has unpacked its own beneath the folder of its worker.
            assert any(Path(row["python"]).is_relative_to(each.folder) for each in cluster.workers)
            assert f"/{FOLDER}/lib/" in row["headrace"]
        assert engine.dead_letters() == ()


@pytest.mark.meets("S10", "S12")
def test_a_function_that_executors_do_not_have_is_refused_at_the_start(shop: Shop) -> None:
    named = function("shop_rules_not_packed:with_double", columns={"x": "string"})
    with pytest.raises(HeadraceError) as refused, shop.engine(hr.memory(), named):
        pass
    assert "cannot be loaded on an executor" in str(refused.value)
