"""The archive of Spark's classes under a JVM: used, refused, hurt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark_session import jvm
from headrace.spark_session.class_archive import archive_path
from headrace.spark_session.java import TRIED, find_java
from headrace.spark_session.session import Spark
from tests.support.patience import patience
from tests.support.tiers import TIER

ROOT = Path(__file__).parents[2]
SET_UP = Path(sys.prefix) / "headrace-setup"
"""
Is in an environment that `tools/setup` made, which makes the archive too and goes on where it
cannot; other environments have none.
"""

STARTS = """
import sys
from pathlib import Path
from headrace.spark_session import class_archive, jvm
from headrace.spark_session.session import start_session
class_archive.FOLDER = Path(sys.argv[1])
spark = start_session(sys.argv[2])
assert spark.small.range(5).toArrow().num_rows == 5
mapped = Path("/proc", str(jvm.running.machine.process.pid), "maps").read_text()
assert sys.argv[1] not in mapped, mapped
spark.stop()
"""


def made() -> Path:
    """The archive that sessions of this installation use."""
    java = find_java(os.environ)
    archive = archive_path(java, jvm.spark_home())
    if not archive.exists():
        missing = "no archive was made: python -m headrace.spark_session.class_archive"
        if TIER in ("ci", "nightly") and java.version in TRIED and SET_UP.exists():
            pytest.fail(missing)
        pytest.skip(missing)
    return archive


def test_the_jvm_of_a_session_maps_the_archive(spark: Spark) -> None:
    archive = made()
    assert jvm.running is not None
    pid = jvm.running.machine.process.pid
    assert str(archive) in Path("/proc", str(pid), "maps").read_text()


def test_workers_import_the_pyspark_that_is_installed(spark: Spark) -> None:
    from pyspark.sql.functions import udf

    where = udf(lambda _: __import__("pyspark").__file__, "string")
    (row,) = spark.small.range(1).select(where("id")).collect()
    assert row[0] == str(jvm.spark_home() / "__init__.py")


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.ci
@pytest.mark.parametrize("state", ["of another", "hurt"])
def test_spark_starts_in_spite_of_a_broken_archive_and_says_nothing(
    tmp_path: Path, state: str
) -> None:
    original = made()
    archives = tmp_path / "archives"
    archives.mkdir()
    archive = archives / original.name
    if state == "of another":
        archive.write_bytes(os.urandom(2_000_000))
    else:
        shutil.copyfile(original, archive)
    archive.chmod(0o644)
    if state == "hurt":
        with archive.open("r+b") as file:
            file.seek(archive.stat().st_size // 4)
            file.write(b"x" * (archive.stat().st_size // 2))
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(archives), str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(200),
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    printed = (tmp_path / "data" / "logs" / "spark.out").read_text().splitlines()
    assert [line for line in printed if not line.endswith(": jdk.incubator.vector")] == []
    # The one that a JVM dies of is removed, so that it is met once.
    assert archive.exists() is (state != "hurt")
