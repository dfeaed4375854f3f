"""Delta tables whose batches and baselines executors prepare, and what can be lost (R24, S12)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.lake.formats import DELTA, needs
from headrace.pipeline.steps import Function, function
from headrace.spark_session.session import Spark, start_session
from tests.cluster.cluster import WORKERS, Cluster
from tests.cluster.shop import PATIENCE, RULE_COLUMNS, Rows, Shop, counted
from tests.cluster.tables import READ, PartsGate, merged, notes, plain, rows_in, staged
from tests.pipeline.lake.jars import need_delta
from tests.support.shop import await_seen

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

MANY_ORDERS = 12_000
"""More than go through the session for small batches."""


@pytest.fixture(scope="module")
def remote(
    cluster: Cluster, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Spark]:
    """The Spark of this module, with what Delta needs: executors have its jars from the driver."""
    need_delta()
    conf = cluster.conf_with(archive) | needs(DELTA)
    started = start_session(tmp_path_factory.mktemp("spark"), conf=conf)
    assert started.info().master == cluster.url, "another Spark runs in this process"
    yield started
    started.stop()


@pytest.fixture
def shop(cluster: Cluster, remote: Spark, tmp_path: Path) -> Shop:
    assert len(cluster.workers) == WORKERS
    # A test may have lost one.
    assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
    return Shop(tmp_path, cluster.conf)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartsGate:
    return PartsGate(tmp_path / "gate", monkeypatch)


def rule() -> Function:
    return function("shop_rules:with_double", columns=RULE_COLUMNS, reads=["qty"])


def expected(shop: Shop) -> Rows:
    return shop.truth(double=lambda row: row["qty"] * 2)


def is_well(engine: hr.Engine) -> bool:
    (status,) = engine.pipelines()
    found = (status.state, status.dead_letters, status.error)
    return found == ("live", 0, None) and engine.dead_letters() == ()


@pytest.mark.meets("R24", "S4", "S10", "S12")
def test_a_table_that_two_workers_prepare_equals_the_source_with_a_function_of_the_projects(
    cluster: Cluster, remote: Spark, gate: PartsGate, tmp_path: Path
) -> None:
    assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
    shop = Shop(tmp_path, cluster.conf, orders=MANY_ORDERS)
    table = tmp_path / "lake"
    with shop.engine(hr.table(path=str(table), staged_from=1), rule()) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        assert plain(merged(table)) == expected(shop)
        assert gate.wrote(), "the driver wrote the baseline"
        for _ in range(2):
            shop.change_at_once()
            assert await_seen(lambda: plain(merged(table)) == expected(shop), PATIENCE)
        assert is_well(engine)
        # As Spark itself reads it.
        read = remote.bulk.read.format("delta").load(str(table)).count()
        assert read == len(expected(shop))
    ran = [
        [folder.is_relative_to(worker.folder) for folder in gate.wrote()]
        for worker in cluster.workers
    ]
    assert all(any(each) for each in ran), "a worker wrote nothing"
    assert all(any(each) for each in zip(*ran, strict=True)), "somebody else wrote a part"
    for row in rows_in(table):
        assert any(Path(row["python"]).is_relative_to(each.folder) for each in cluster.workers)
    assert counted(remote, "totalTasks")["driver"] == 0
    assert notes(table)[0].loads
    assert staged(shop.data) == []


@pytest.mark.meets("R24", "S2", "S4", "S12")
@pytest.mark.parametrize(
    ("what", "mode", "tasks"),
    [
        ("worker", "merge", 2),
        pytest.param("executor", "append", 1, marks=pytest.mark.nightly),
    ],
)
def test_one_killed_with_its_part_written_and_its_receipt_not_handed_in_counts_for_nothing(
    what: str, mode: str, tasks: int, shop: Shop, cluster: Cluster, remote: Spark, gate: PartsGate
) -> None:
    table, read = shop.data.parent / "lake", READ[mode]
    target = hr.table(path=str(table), mode=mode, staged_from=1)
    with shop.engine(target, rule()) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        before, commits = read(table), len(notes(table))
        with gate.shut("after"):
            shop.change_at_once()
            assert await_seen(lambda: len(gate.waiting()) == tasks, PATIENCE)
            orphans = set(staged(shop.data))
            assert len(orphans) == tasks
            lost = gate.waiting()[0].name
            if what == "worker":
                cluster.kill(cluster.worker_of(lost))
                cluster.start_worker()
            else:
                cluster.kill_executor(lost)
            # The same rows are written once more, beside what is there of them.
            assert await_seen(lambda: len(gate.waiting()) > tasks, PATIENCE)
            assert orphans < set(staged(shop.data))
            assert read(table) == before
        assert await_seen(lambda: plain(read(table)) == expected(shop), PATIENCE)
        shop.change()
        assert await_seen(lambda: plain(read(table)) == expected(shop), PATIENCE)
        assert is_well(engine)
        assert len(notes(table)) > commits
        assert await_seen(lambda: staged(shop.data) == [], PATIENCE)
        # A worker that joins gets an executor, and the application has as many as before.
        cluster.await_workers(WORKERS)
        assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
    assert lost not in counted(remote, "totalTasks")


@pytest.mark.meets("R24", "S4", "S12")
def test_a_part_that_comes_after_its_batch_was_committed_is_read_by_nobody_and_swept(
    shop: Shop, cluster: Cluster, remote: Spark, gate: PartsGate
) -> None:
    table = shop.data.parent / "lake"
    # Every change is a row there: one that came late would be one more.
    target = hr.table(path=str(table), mode="append", staged_from=1)

    def shown() -> Rows:
        return plain(READ["append"](table))

    with shop.engine(target, rule()) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        with gate.shut("before"):
            shop.change_at_once()
            assert await_seen(lambda: len(gate.waiting()) == 1, PATIENCE)
            lost = gate.waiting()[0].name
            with cluster.worker_of(lost).suspended() as go_on:
                # The others go on; this one does not see that it may.
                gate.open()
                # Silent for longer than Spark waits: it is given up, and its task runs elsewhere.
                assert await_seen(lambda: lost not in counted(remote, "totalTasks"), PATIENCE)
                assert await_seen(lambda: shown() == expected(shop), PATIENCE)
                assert await_seen(lambda: staged(shop.data) == [], PATIENCE)
                in_time, committed = len(gate.wrote()), files_of(table)
                # It goes on where it stood: the part is written now, of a batch that is long done.
                go_on()
                assert await_seen(lambda: len(gate.wrote()) > in_time, PATIENCE)
        assert len(staged(shop.data)) == 1
        # And then it is gone, and another executor has its place.
        assert await_seen(lambda: len(counted(remote, "totalTasks")) == 1 + WORKERS, PATIENCE)
        assert files_of(table) == committed
        shop.change()
        assert await_seen(lambda: shown() == expected(shop), PATIENCE)
        assert await_seen(lambda: staged(shop.data) == [], PATIENCE)
        assert {name: data for name, data in files_of(table).items() if name in committed} == (
            committed
        )
        assert is_well(engine)
        assert notes(table)
    assert lost not in counted(remote, "totalTasks")


def files_of(table: Path) -> dict[str, bytes]:
    """Return every file of a table with its bytes."""
    return {
        path.relative_to(table).as_posix(): path.read_bytes()
        for path in table.rglob("*")
        if path.is_file()
    }
