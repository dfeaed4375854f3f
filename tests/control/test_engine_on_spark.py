"""The engine on real Spark: rows that fail, jobs that are cancelled, a JVM that dies."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.changelog.position import Position
from headrace.errors import RowFailed
from tests.support.children import python
from tests.support.shop import PATIENCE, Shop, await_seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark

MANY = 10_000


def refusing(row: dict[str, object]) -> dict[str, object]:
    """A function of a user's that cannot take one row."""
    if row["status"] == "odd":
        raise ValueError("odd")
    return {"letters": len(str(row["status"]))}


NUMBER = hr.derive(number="cast(case when status = 'odd' then 'x' else '1' end as int)")
LETTERS = hr.function(refusing, columns={"letters": "bigint"}, reads=["status"])


@pytest.mark.meets("S2", "R30")
@pytest.mark.parametrize(
    ("step", "code"), [(NUMBER, "CAST_INVALID_INPUT"), (LETTERS, "FUNCTION_FAILED")]
)
def test_one_row_of_ten_thousand_that_fails_becomes_a_letter_and_the_others_arrive(
    tmp_path: Path, spark: Spark, step: object, code: str
) -> None:
    shop = Shop(tmp_path)
    target = hr.memory()
    pipeline = hr.Pipeline(shop.source(), "orders", target, transforms=[step])  # type: ignore[list-item]
    with hr.Engine(pipeline, data=shop.data, spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("begin")
        shop.app.executemany(
            "insert into orders values (?, 1, ?, 'x')",
            [(key, "odd" if key == 5_000 else "paid") for key in range(100, 100 + MANY)],
        )
        shop.app.execute("commit")
        assert await_seen(lambda: target.count() == 10 + MANY - 1)
        assert target.get(5_000) is None
        # What follows the letter waits behind it; what does not, does not.
        shop.app.execute("update orders set card = 'late' where id in (5000, 5001)")
        assert await_seen(lambda: target.get(5_001)["card"] == "late")  # type: ignore[index]
        failed, behind = engine.dead_letters()
        info = engine.pipeline_info("orders")
        assert (info.dead_letters, info.error, engine.is_ready()) == (2, None, True)
    assert (failed.kind, failed.code, failed.key, failed.op) == ("failed", code, (5_000,), "insert")
    assert failed.after == {"id": 5_000, "customer_id": 1, "status": "odd", "card": "x"}
    assert (behind.kind, behind.key, behind.after["card"]) == ("behind", (5_000,), "late")  # type: ignore[index]
    assert failed.position < behind.position


@pytest.mark.meets("S2")
def test_a_pipeline_that_is_to_stop_at_a_failing_row_stops_before_it(
    tmp_path: Path, spark: Spark
) -> None:
    shop = Shop(tmp_path)
    target = hr.memory()
    pipeline = hr.Pipeline(shop.source(), "orders", target, transforms=[NUMBER], on_error="stop")
    with hr.Engine(pipeline, data=shop.data, spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
        before = target.position
        shop.insert(range(50, 51), status="odd")
        assert await_seen(lambda: engine.pipeline_info("orders").state == "failed")
        assert isinstance(engine.pipeline_info("orders").error, RowFailed)
        assert target.position == before
        assert engine.dead_letters() == ()


@pytest.mark.meets("S8")
def test_a_pause_cancels_the_job_that_runs_and_does_not_wait_for_its_end(
    tmp_path: Path, spark: Spark
) -> None:
    shop = Shop(tmp_path)
    target = hr.memory()
    over, waited = tmp_path / "over", tmp_path / "waited"
    looks = range(int(PATIENCE / 0.1))

    def slow(row: dict[str, object]) -> dict[str, object]:
        """Lasts until it is told to end, or for far longer than a pause may take."""
        if row["status"] == "slow":
            for _ in looks:
                if over.exists():
                    break
                time.sleep(0.1)
            else:
                waited.touch()
        return {"seen": True}

    pipeline = hr.Pipeline(
        shop.source(),
        "orders",
        target,
        transforms=[hr.function(slow, columns={"seen": "boolean"})],
    )
    with hr.Engine(pipeline, data=shop.data, spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(60, 61), status="slow")
        assert await_seen(lambda: _running(spark) > 0)
        engine.pause("orders")
        assert not waited.exists(), "the pause came after the job's own end"
        assert engine.pipeline_info("orders").state == "paused"
        assert await_seen(lambda: _running(spark) == 0)
        assert not waited.exists()
        shop.app.execute("update orders set status = 'paid' where id = 60")
        assert target.get(60) is None
        over.touch()


def _running(spark: Spark) -> int:
    return len(spark.session.sparkContext.statusTracker().getActiveJobsIds())


@pytest.mark.meets("S3", "S17", "R25")
def test_a_function_for_batches_gets_the_table_and_then_every_change(
    tmp_path: Path, spark: Spark
) -> None:
    shop = Shop(tmp_path)
    seen: list[tuple[hr.FrameBatch, list[dict[str, object]]]] = []

    def take(frame: DataFrame, batch: hr.FrameBatch) -> None:
        rows = frame.orderBy("_position", "_op").toArrow().to_pylist()
        seen.append((batch, rows))

    pipeline = hr.Pipeline(shop.source(), "orders", hr.foreach_batch(take), name="given")
    with hr.Engine(pipeline, data=shop.data, spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("update orders set status = 'sent' where id = 3")
        shop.app.execute("delete from orders where id = 4")
        assert await_seen(lambda: sum(len(rows) for _, rows in seen) == 12)
    (first, rows), *later = seen
    assert (first.id, first.baseline, len(rows)) == ("given/orders/baseline-1/1", 1, 10)
    changes = [row for _, some in later for row in some]
    assert [(row["_op"], row["id"]) for row in changes] == [("update", 3), ("delete", 4)]
    assert changes[0]["_position"] == str(Position(1, int(str(changes[0]["_commit"])), 0))
    assert [batch.id for batch, _ in later] == [
        f"given/orders/1/{batch.first}/{batch.last}" for batch, _ in later
    ]


@pytest.mark.meets("S7")
def test_plans_need_no_setting_of_the_session_that_was_brought(
    tmp_path: Path, spark: Spark
) -> None:
    theirs = spark.session.newSession()
    settings = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.caseSensitive": "false",
    }
    for name, value in settings.items():
        theirs.conf.set(name, value)
    shop = Shop(tmp_path)
    target = hr.memory()
    pipeline = hr.Pipeline(shop.source(), "orders", target, transforms=[NUMBER])
    with hr.Engine(pipeline, data=shop.data, spark=theirs) as engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(70, 71), status="odd")
        # With their ANSI mode it would be a null that nobody hears of.
        assert await_seen(lambda: len(engine.dead_letters()) == 1)
    assert {name: theirs.conf.get(name) for name in settings} == settings
    assert theirs.range(3).count() == 3


DEATH = """
import json, os, signal, sys, time
from pathlib import Path
import headrace as hr
from bench.processes import family
from headrace.api.handlers import ControlService
from headrace.runtime import spark
from tests.support.shop import PATIENCE, Shop, await_seen

def is_java(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except FileNotFoundError:
        return False  # gone since it was listed

def java():
    return [pid for pid in family(os.getpid()) if is_java(pid)]

shop = Shop(Path(sys.argv[1]))
target = hr.memory()
told = {}
engine = hr.Engine(hr.Pipeline(shop.source(), "orders", target), data=shop.data)
with engine:
    assert engine.await_ready(2 * PATIENCE)
    (pid,) = java()
    os.kill(pid, signal.SIGSTOP)
    spark.FROZEN_SECONDS = 1.0
    shop.insert(range(50, 51))
    assert await_seen(lambda: engine.spark_down_seconds() is not None)
    answer = ControlService(engine).unary["Status"]({})
    (pipeline,) = answer["pipelines"]
    told["frozen"] = (answer["ready"], "does not answer" in pipeline["reason"], target.count())
    os.kill(pid, signal.SIGCONT)
    spark.FROZEN_SECONDS = 10.0
    assert await_seen(lambda: target.count() == 11)
    assert engine.await_ready(PATIENCE)
    os.kill(pid, signal.SIGKILL)
    shop.insert(range(100, 110))
    assert await_seen(lambda: engine.pipeline_info("orders").error is not None)
    told["red"] = (not engine.is_ready(), engine.pipeline_info("orders").error.code)
    told["stopped_at"] = target.count()
    assert engine.await_ready(2 * PATIENCE), engine.pipelines()
    assert await_seen(lambda: target.count() == 21)
    told["rows"] = {row["id"]: row["status"] for row in target.all()} == {
        k: v["status"] for k, v in shop.truth().items()
    }
    (new,) = java()
    told["another"] = new != pid
    told["error_after"] = engine.pipeline_info("orders").error
told["left"] = java()
print(json.dumps(told))
"""


@pytest.mark.ci
@pytest.mark.process
def test_with_the_jvm_frozen_or_killed_delivery_stops_status_is_red_and_all_heals(
    tmp_path: Path,
) -> None:
    told = _in_a_process(DEATH, tmp_path)
    assert told == {
        "frozen": [False, True, 10],
        "red": [True, "pipeline.spark_gone"],
        "stopped_at": 11,
        "rows": True,
        "another": True,
        "error_after": None,
        "left": [],
    }


def _in_a_process(program: str, folder: Path) -> dict[str, object]:
    """Run a program that needs a JVM of its own; return what it prints."""
    done = python("-c", program, str(folder), cwd=Path(__file__).parents[2], seconds=300)
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found
