"""Workers and executors that are killed or fall silent in mid-job: the pipeline goes on (S12)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.pipeline.foreach import foreach_batch
from headrace.pipeline.steps import Transform, function
from headrace.spark_session.session import Spark
from tests.cluster.cluster import WORKERS, Cluster
from tests.cluster.shop import (
    PATIENCE,
    WAITING,
    Shop,
    at_work,
    counted,
    files,
    folded,
    gate,
    held,
    write_parquet,
)
from tests.support.shop import await_seen

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


class Gate:
    """A step of a pipeline that holds its tasks up, while it is shut."""

    def __init__(self, folder: Path, out: Path | None = None) -> None:
        self._hold, self._passed = folder / "hold", folder / "passed"
        self._passed.mkdir()
        wait = gate(self._hold, self._passed, out)
        self.step: Transform = function(wait, columns={"passed": "bigint"}, reads=["id"])

    @contextmanager
    def shut(self) -> Iterator[None]:
        self._hold.touch()
        try:
            yield
        finally:
            self.open()

    def open(self) -> None:
        self._hold.unlink(missing_ok=True)

    def forget(self) -> None:
        for each in self._passed.iterdir():
            each.unlink()

    def passed(self) -> set[str]:
        """Return the processes that went through since `forget`."""
        return {each.name for each in self._passed.iterdir()} - {WAITING}

    def busy(self) -> str:
        """Wait for a task that stands at the gate, and return its executor."""
        assert await_seen((self._passed / WAITING).exists, PATIENCE)
        return (self._passed / WAITING).read_text()


@pytest.fixture(scope="module")
def silent_seconds() -> float:
    """Few: tests here wait until one that is silent is given up."""
    return 8


@pytest.fixture
def shop(cluster: Cluster, remote: Spark, tmp_path: Path) -> Shop:
    assert len(cluster.workers) == WORKERS
    # Each test has lost one.
    assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
    return Shop(tmp_path, cluster.conf)


def passed(row: dict[str, Any]) -> object:
    return row["id"]


@pytest.mark.meets("S2", "S12")
@pytest.mark.nightly
@pytest.mark.parametrize("what", ["worker", "executor"])
def test_one_killed_in_mid_job_is_blamed_on_no_row_and_the_table_goes_on(
    what: str, shop: Shop, cluster: Cluster, remote: Spark, tmp_path: Path
) -> None:
    slow, target = Gate(tmp_path), hr.memory()
    with shop.engine(target, slow.step) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        with slow.shut():
            shop.change()
            lost = slow.busy()
            if what == "worker":
                cluster.kill(cluster.worker_of(lost))
                cluster.start_worker()
            else:
                cluster.kill_executor(lost)
            assert await_seen(lambda: bool(at_work(remote) - {lost}), PATIENCE)
            assert held(target) != shop.truth(passed=passed)
        assert await_seen(lambda: held(target) == shop.truth(passed=passed), PATIENCE)
        shop.change()
        assert await_seen(lambda: held(target) == shop.truth(passed=passed), PATIENCE)
        (status,) = engine.pipelines()
        assert (status.state, status.dead_letters, status.error) == ("live", 0, None)
        assert engine.dead_letters() == ()
        # A worker that joins gets an executor, and the application has as many as before.
        cluster.await_workers(WORKERS)
        assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
    assert lost not in counted(remote, "totalTasks")


@pytest.mark.meets("S4", "S12")
@pytest.mark.nightly
def test_a_task_that_comes_back_after_its_retry_has_no_effect(
    shop: Shop, cluster: Cluster, remote: Spark, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    slow = Gate(tmp_path, out)
    with shop.engine(foreach_batch(write_parquet(out)), slow.step) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        assert folded(out) == shop.truth(passed=passed)
        with slow.shut():
            shop.change()
            lost = slow.busy()
            with cluster.worker_of(lost).suspended():
                slow.forget()
                # Silent for longer than Spark waits: it is given up, and its task runs elsewhere.
                assert await_seen(lambda: lost not in counted(remote, "totalTasks"), PATIENCE)
                assert await_seen(lambda: bool(at_work(remote) - {lost}), PATIENCE)
                slow.open()
                assert await_seen(lambda: folded(out) == shop.truth(passed=passed), PATIENCE)
                in_time, written = slow.passed(), files(out)
            # It goes on where it stood: its function ends now, with a batch that is long done.
            assert await_seen(lambda: slow.passed() > in_time, PATIENCE)
        # And then it is gone, and another executor has its place.
        assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
        assert files(out) == written
        shop.change()
        assert await_seen(lambda: folded(out) == shop.truth(passed=passed), PATIENCE)
        assert {name: data for name, data in files(out).items() if name in written} == written
        (status,) = engine.pipelines()
        assert (status.state, status.dead_letters, status.error) == ("live", 0, None)
    assert lost not in counted(remote, "totalTasks")
