"""
A pipeline on Spark Connect.

It does not start beside classic Spark in one process, so it has one of its own; there its
server runs, too, bound to loopback.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark_session.connect import ConnectSpark, _plan_classes
from headrace.spark_session.java import find_java
from headrace.spark_session.session import Spark
from tests.spark_session import jvm_options
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
ON_CONNECT = """
import sys, threading, warnings
from decimal import Decimal
from pathlib import Path
from pyspark.sql import SparkSession, functions as F

with warnings.catch_warnings():
    # They reach the server, and then the client gets an error that it cannot change them.
    warnings.simplefilter("ignore")
    theirs = (
        SparkSession.builder.remote("local[1]")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )

from headrace.errors import BadExpression, JobCancelled, RowFailed
from headrace.spark_session.connect import ConnectSpark
from headrace.spark_session.errors import running
from headrace.pipeline.runner import SparkRunner
from headrace.spark_session.session import Spark
from headrace.pipeline.steps import derive, rename, where
from tests.pipeline.making import ORDERS, TRAITS, delete, insert, pipeline, run, row_tuples, update

settings = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.caseSensitive": "false",
}
for name, value in settings.items():
    theirs.conf.set(name, value)
spark = Spark.bring(theirs)
assert type(spark) is ConnectSpark and spark.alive and not spark.own
folder = Path(sys.argv[1])
folder.mkdir()

def order(id, qty, status="open"):
    return {"id": id, "status": status, "qty": qty, "price": Decimal("2.50")}

runner = SparkRunner(spark)
what = pipeline(
    filters=[where("qty > 1"), where(F.col("status") != "void")],
    transforms=[
        derive(total="qty * price", at="cast(timestamp '2026-01-01 00:00:00' as string)"),
        rename(status="state"),
    ],
)
changes = [
    insert(1, order(1, 4)),
    insert(2, order(2, 1)),
    update(3, order(1, 4), order(1, 6, "paid")),
    update(4, order(1, 6, "paid"), order(1, 6, "void")),
    insert(5, order(3, 2)),
    delete(6, order(3, 2)),
]
result = run(runner, what, folder, ORDERS, changes)
midnight = "2026-01-01 00:00:00"
assert row_tuples(result, "id", "state", "total", "at") == [
    ("insert", 1, 1, "open", Decimal("10.00"), midnight),
    ("update", 3, 1, "paid", Decimal("15.00"), midnight),
    ("delete", 4, 1, None, None, None),
    ("insert", 5, 3, "open", Decimal("5.00"), midnight),
    ("delete", 6, 3, None, None, None),
], row_tuples(result)

for text in (
    "rand()", "uuid()", "now()", "current_date()", "session_user()", "cast('now' as date)",
    "to_date('today')", "date 'today'", "(select max(x) from values (1) t(x))", "sum(qty)",
    "row_number() over (order by qty)", "explode(array(qty))", "monotonically_increasing_id()",
    "nothing + 1", "1 +",
):
    try:
        runner.prepare(pipeline(transforms=[derive(x=text)]), TRAITS).output(ORDERS)
    except BadExpression:
        continue
    raise AssertionError(text)
for text in ("concat('now', status)", "status like 'open%'", "year(date '2026-01-01')"):
    runner.prepare(pipeline(transforms=[derive(x=text)]), TRAITS).output(ORDERS)

raised = None
try:
    with running():
        spark.collect(spark.small.range(3).selectExpr("1 div (id - 2)"))
except RowFailed as error:
    raised = error.facts["condition"]
assert raised == "DIVIDE_BY_ZERO", raised

try:
    with running(), spark.tagged("t"):
        threading.Timer(1, spark.cancel, ["t"]).start()
        spark.collect(spark.small.range(0, 40_000_000_000_000, 1, 2).where("xxhash64(id) = 1"))
except JobCancelled:
    raised = "cancelled"
assert raised == "cancelled"
with spark.tagged("u"):
    spark.collect(spark.small.range(3))
assert spark.counted("u") == (1, 0, 0)
assert "Range" in spark.explain(spark.small.range(3))
assert spark.tried(F.lit(1)) is None
info = spark.info()
assert info.version == theirs.version and info.jobs > 0 and info.master.startswith("sc://")
assert {name: theirs.conf.get(name) for name in settings} == settings

listening = set()
for line in Path("/proc/net/tcp6").read_text().splitlines()[1:] + (
    Path("/proc/net/tcp").read_text().splitlines()[1:]
):
    fields = line.split()
    if fields[3] == "0A" and fields[1].endswith(f":{15002:04X}"):
        listening.add(fields[1].split(":")[0])
assert listening <= {"0100007F", "0000000000000000FFFF00000100007F"} and listening, listening

spark.stop()
spark.stop()
assert theirs.range(3).count() == 3
theirs.stop()
assert not spark.alive
print("done")
"""


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.meets("S7", "S8", "S16")
def test_a_pipeline_runs_on_spark_connect_and_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    java = find_java(os.environ)
    done = subprocess.run(
        [sys.executable, "-c", ON_CONNECT, str(tmp_path / "segments")],
        cwd=tmp_path,
        env={
            "HOME": str(tmp_path),
            "JAVA_HOME": java.home,
            "PATH": f"{Path(java.executable).parent}:{os.environ['PATH']}",
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
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]


def test_nothing_of_classic_spark_is_inherited() -> None:
    ours = {name for name, _ in inspect.getmembers(ConnectSpark) if not name.startswith("_")}
    inherited = {name for name in ours if name not in vars(ConnectSpark)}
    assert inherited == {"bring", "fit_for", "setting"}
    assert {name for name in vars(Spark) if not name.startswith("_")} <= ours


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Project [rand(-61) AS x#8]", ["Rand"]),
        ("Project [current_date(Some(UTC)) AS x#8]", ["CurrentValue"]),
        ("Project [cast(now as date) AS x#8]", ["Cast", "Literal"]),
        ("Project [cast(now#3 as date) AS x#8]", []),
        ("Project [concat(now, a#1) AS x#8]", []),
        ("Project [to_date(today, None, Some(UTC), true) AS x#8]", ["Cast", "Literal"]),
        ("Aggregate [sum(a#46) AS x#48L]\n+- LocalRelation <empty>, [a#46]", ["Aggregate"]),
        ("Project [x#42]\n:  +- Aggregate [max(a#40)]", ["Aggregate"]),
        ("Project [(operand(a#1) + 1) AS x#4]", []),
    ],
)
def test_what_is_refused_is_found_in_the_text_of_a_plan(text: str, kinds: list[str]) -> None:
    assert [each["class"] for each in _plan_classes(text)] == kinds
