"""
The example of a Declarative Pipeline: AUTO CDC keeps a table equal to the source's.

AUTO CDC wants a table with row-level MERGE. Spark's own tests have a catalog of such tables, in
the memory of the JVM; so one JVM stays, as a server of Spark Connect, and `spark-pipelines run`
comes to it twice.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

import headrace as hr
from examples.auto_cdc.shop import opened, trade
from headrace.capture.sqlite.triggers import LOG
from tests.support import maven
from tests.support.children import python
from tests.support.patience import patience
from tests.support.shop import await_that

ROOT = Path(__file__).parents[2]
CATALOG = "org.apache.spark:spark-catalyst_2.13:4.2.0:jar:tests"
"""Of the newest Spark that is on Maven Central; it also fits 4.3."""

SERVER = """
import sys
import headrace as hr

spark = hr.spark(sys.argv[1], **{
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": sys.argv[3],
    "spark.driver.extraClassPath": sys.argv[2],
    "spark.sql.shuffle.partitions": "2",
})
print("listening", flush=True)
sys.stdin.read()
"""

RUN = """
import json, sys
from pathlib import Path
import yaml
from pyspark.pipelines import cli
from pyspark.sql import SparkSession

spec, rows = sys.argv[1:]
settings = yaml.safe_load(Path(spec).read_text())["configuration"]

def session():
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()

if not Path(rows).exists():
    # The schema lasts as long as this session, until there is a table in it.
    session().sql("create namespace lake.shop")
sys.argv = ["spark-pipelines", "run", "--spec", spec]
cli.main()
found = session().table("lake.shop.orders").orderBy("id").collect()
names = ("id", "customer", "status", "price")
Path(rows).write_text(json.dumps([[row[name] for name in names] for row in found]))
"""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.spark,
    pytest.mark.skipif(
        tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2),
        reason="AUTO CDC came with Spark 4.2",
    ),
]


@contextmanager
def served(folder: Path, jar: Path) -> Iterator[dict[str, str]]:
    """Run a server of Spark Connect with this jar; yield the environment of its clients."""
    environ = {
        **{name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ},
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with (folder / "server.log").open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder / "spark"), str(jar), port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environ,
            cwd=folder,
            text=True,
        )
    with server:  # its standard input ends, and it with it
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said == "listening\n", (folder / "server.log").read_text()[-3000:]
        yield {**environ, "SPARK_REMOTE": f"sc://127.0.0.1:{port}"}


def run(spec: Path, environ: dict[str, str]) -> list[list[object]]:
    """Run the pipeline as `spark-pipelines run` does; return what is in the table."""
    rows = spec.with_name("rows.json")
    done = python("-c", RUN, str(spec), str(rows), cwd=spec.parent, env=environ, seconds=600)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found: list[list[object]] = json.loads(rows.read_text())
    return found


@pytest.fixture
def jar() -> Path:
    if (found := maven.jar(CATALOG, "spark")) is None:
        pytest.skip("the catalog of Spark's tests cannot be fetched: is there mvn?")
    return found


@pytest.mark.meets("S11", "S16")
def test_auto_cdc_makes_a_table_equal_to_the_source_run_after_run(
    jar: Path, tmp_path: Path
) -> None:
    project = tmp_path / "auto_cdc"
    shutil.copytree(ROOT / "examples" / "auto_cdc", project, ignore=shutil.ignore_patterns("__*"))
    spec = project / "spark-pipeline.yml"
    written = spec.read_text()
    spec.write_text(written.replace("file:///tmp/headrace-auto-cdc", f"file://{tmp_path}/kept"))
    assert spec.read_text() != written

    shop = opened(project / "shop.db")
    engine = hr.record(
        hr.sqlite(project / "shop.db", name="shop"), "orders", data=project / "headrace-data"
    )
    chance = random.Random(7)

    def rows_after(transactions: int) -> list[list[object]]:
        """Trade, wait until all is in the log, and return what is in the source."""
        for _ in range(transactions):
            trade(shop, chance)
        [[end]] = shop.execute(f"select max(seq) from {LOG}").fetchall()
        assert await_that(engine, lambda: engine.source_info("shop").end.commit >= end)
        found = shop.execute("select id, customer, status, price from orders order by id")
        return [list(row) for row in found]

    try:
        assert engine.await_ready(patience())
        with served(tmp_path, jar) as environ:
            first = rows_after(20)
            assert run(spec, environ) == first
            second = rows_after(60)
            # Rows came, changed and went.
            assert {row[0] for row in second} - {row[0] for row in first}
            assert {row[0] for row in first} - {row[0] for row in second}
            assert run(spec, environ) == second
    finally:
        engine.stop()
        shop.close()
