"""
A JVM that dies is noticed, reported and replaced, in the same process.

It runs in a process of its own, because a death takes with it what everybody else in the
process holds of Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark_session.java import find_java
from tests.spark_session import jvm_options
from tests.support.patience import patience
from tests.support.strict import STRICT

pytestmark = [pytest.mark.ci, pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
DIES_THREE_TIMES = """
import os, signal, sys, threading, time
from pathlib import Path
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType
from headrace.errors import HeadraceError, SparkGone
from headrace.spark_session import jvm
from headrace.spark_session.errors import running
from headrace.spark_session.session import start_session

data = sys.argv[1]
NUMBERS = StructType([StructField("n", IntegerType())])
ENDLESS = "(b, y) -> b + aggregate(sequence(1, n), 0L, (a, x) -> a + x)"

def asleep(batches):
    for batch in batches:
        time.sleep(36000)
        yield batch

def error_of(work):
    try:
        with running():
            work()
    except HeadraceError as error:
        return type(error)

def killed():
    os.kill(jvm.running.machine.process.pid, signal.SIGKILL)

def killed_under_way():
    "Dies while threads wait for jobs, each in another call, and one for a direct batch."
    found, begun = [], threading.Event()
    def evaluated():
        frame = spark.direct.source(NUMBERS).selectExpr(f"aggregate(sequence(1, n), 0L, {ENDLESS})")
        evaluator = spark.direct.evaluator(frame, NUMBERS)
        begun.set()
        evaluator.evaluate(pa.table({"n": pa.array([1_000_000], pa.int32())}))
    def tagged():
        with spark.tagged("t"):
            spark.collect(spark.small.range(4).mapInArrow(asleep, "id long"))
    def counted():
        spark.bulk.range(4).mapInArrow(asleep, "id long").count()
    works = [tagged, counted, tagged, evaluated]
    def caught(work):
        found.append(error_of(work))
    threads = [threading.Thread(target=caught, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    begun.wait()
    tracker = spark.session.sparkContext._jsc.sc().statusTracker()
    while len(tracker.getActiveJobIds()) < len(works) - 1:
        time.sleep(0.02)
    killed()
    for thread in threads:
        thread.join()
    assert found == [SparkGone] * len(works), found

def out_of_memory():
    greedy = spark.small.range(1).selectExpr("size(array_repeat(id, 300000000))")
    assert error_of(lambda: spark.collect(greedy)) is SparkGone

spark, columns, threads, path = None, [], [], list(sys.path)
for death in (killed, killed_under_way, out_of_memory):
    began = time.monotonic()
    before, spark = spark, start_session(data, conf={"spark.driver.memory": "512m"})
    print(f"start {time.monotonic() - began:.1f} s")
    assert spark.alive
    if before is not None:
        # What was left of the one before neither works, nor ends this one, nor passes for
        # an object of this one.
        assert not before.alive
        before.stop()
        kept = columns[-1]
        assert error_of(lambda: spark.small.range(3).where(kept).toArrow()) is not None
    assert spark.small.range(5).toArrow().num_rows == 5
    columns.append(F.col("id") > 1)
    threads.append(threading.active_count())
    assert spark.small.range(5).where(columns[-1]).toArrow().num_rows == 3
    folder, process = jvm.running.machine.folder, jvm.running.machine.process
    death()
    while spark.alive:
        time.sleep(0.02)
    assert error_of(lambda: spark.collect(spark.small.range(3))) is SparkGone
    spark.cancel("t")

assert threads[0] == threads[1] == threads[2], threads
last = start_session(data)
assert last.small.range(5).toArrow().num_rows == 5
assert not folder.exists()
spark.stop()
assert last.alive
last.stop()
assert not last.alive
assert sys.path == path
assert not Path("/proc", str(process.pid)).exists()
children = Path("/proc/self/task", str(os.getpid()), "children").read_text()
assert children == "", children
"""

THEIRS_DIES = """
import warnings
from pyspark.sql import SparkSession
from headrace.spark_session.session import Spark, start_session

theirs = SparkSession.builder.master("local[1]").getOrCreate()
brought = start_session()
assert not brought.own and brought.session is not None and brought.alive
assert brought.small.range(5).toArrow().num_rows == 5
process = theirs.sparkContext._gateway.proc
process.kill()
process.wait()
process.stdin.close()
assert not brought.alive
ours = start_session()
assert ours.own and ours.alive and not brought.alive
assert ours.small.range(5).toArrow().num_rows == 5
brought.stop()
assert ours.alive
ours.stop()
"""


def run_alone(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    java = find_java(os.environ)
    return subprocess.run(
        [sys.executable, *STRICT, "-c", program, str(folder / "data")],
        cwd=folder,
        env={
            "HOME": str(folder),
            "JAVA_HOME": java.home,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "LANG": "C.UTF-8",
            **jvm_options(),
        },
        capture_output=True,
        text=True,
        timeout=patience(600),
        check=False,
    )


def test_a_jvm_that_dies_is_told_and_replaced_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_alone(DIES_THREE_TIMES, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.count("start ") == 3


def test_a_users_jvm_that_died_is_no_hindrance(tmp_path: Path) -> None:
    done = run_alone(THEIRS_DIES, tmp_path)
    assert done.returncode == 0, done.stderr
