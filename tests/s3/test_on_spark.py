"""A log on S3 that Spark reads: engines that are killed, their targets, and other readers."""

from __future__ import annotations

import subprocess
from ast import literal_eval
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.pipeline.lake.engine_stories import Bank
from tests.pipeline.lake.jars import need_delta
from tests.s3.conftest import BUCKET
from tests.s3.server import Server
from tests.support.children import talking
from tests.support.patience import patience

pytestmark = [pytest.mark.s3, pytest.mark.spark, pytest.mark.timeout(3600)]

LIFE_SECONDS = patience(400)


def child(folder: Path, place: str, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return talking(folder, "-m", "tests.s3.on_spark_child", str(folder), place, *more)


def heard(process: subprocess.Popen[str], folder: Path) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip() or (folder / "stderr").read_text()[-3000:]


def asked(process: subprocess.Popen[str], folder: Path, line: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return heard(process, folder)


@pytest.mark.meets("S12", "R24")
def test_targets_and_readers_equal_the_source_through_a_log_on_s3(
    tmp_path: Path, place: str, storage: Server
) -> None:
    need_delta()
    bank = Bank(tmp_path).made()
    with child(tmp_path, place) as process:
        assert heard(process, tmp_path) == "ready"
        assert asked(process, tmp_path, "spare") == "right"
        bank.work(10)
        assert asked(process, tmp_path, "check") == "right"
        bank.work(5)
    bank.work(10)  # while none runs
    with child(tmp_path, place) as process:
        assert heard(process, tmp_path) == "ready"
        bank.work(10)
        for line in ("check", "read", "stream"):
            assert asked(process, tmp_path, line) == "right"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIFE_SECONDS) == 0
    bank.app.close()
    prefix = f"{place.removeprefix(f's3://{BUCKET}/')}/"
    folders = {key.removeprefix(prefix).split("/")[0] for key in storage.keys(BUCKET)}
    # What was for a moment only is gone.
    assert {"log", "tables"} <= folders
    assert not {"scratch", "probe", "staging"} & folders
    assert not any("/staging/" in key for key in storage.keys(BUCKET))
    assert not (bank.data / "log").exists()


def test_a_spark_without_the_connector_is_refused_with_the_settings_it_lacks(
    tmp_path: Path, place: str
) -> None:
    Bank(tmp_path).made().app.close()
    with child(tmp_path, place, "without") as process:
        code, message, remedy = literal_eval(heard(process, tmp_path))
        assert process.wait(LIFE_SECONDS) == 0
    assert code == "pipeline.spark_failed"
    assert "without the settings that a log on S3 needs" in message
    assert "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0," in remedy
    assert "spark.jars.excludes=software.amazon.awssdk:bundle," in remedy
