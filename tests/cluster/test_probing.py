"""What is asked of executors, and which answers are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import cloudpickle

from headrace.errors import BadCluster, HeadraceError, JobFailed, SparkGone, StorageError
from headrace.spark_session import executor_probe
from headrace.spark_session.cluster_probe import ProbeReport, check, failed_probe
from headrace.storage import s3
from headrace.storage.simulation import SimulatedBucket
from tests.cluster.cluster import bare_python

HERE = ProbeReport("driver", "/work", "3.11", "0.1.0", "abcd", "26.0.1", None)


@pytest.mark.meets("S12")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"unread": "Permission denied"}, "Executors cannot read the data directory on h2"),
        (
            {"python": "3.12"},
            "Executors have another version of python than the driver: 3.12 on h2, 3.11",
        ),
        ({"pyarrow": None}, "another version of pyarrow than the driver: none on h2, 26.0.1 here"),
        (
            {"headrace": "0.2.0"},
            "another version of headrace than the driver: 0.2.0 on h2, 0.1.0 here",
        ),
        ({"code": "ef01"}, "Headrace on h2 has other code than on the driver"),
    ],
)
def test_a_difference_is_refused_by_the_name_of_its_host(
    wrong: dict[str, str | None], said: str
) -> None:
    there = [replace(HERE, host="h1"), replace(HERE, host="h2", **wrong)]  # type: ignore[arg-type]
    with pytest.raises(BadCluster) as refused:
        check(HERE, there)
    assert said in refused.value.message
    assert refused.value.remedy


def test_executors_like_the_driver_pass_and_so_does_one_without_headrace() -> None:
    check(HERE, [replace(HERE, host="h1"), replace(HERE, host="h2", headrace=None, code=None)])


def test_an_executor_reads_a_bucket_by_its_own_way_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = SimulatedBucket()
    bucket.objects["shop/probe/1.txt"] = b"token"
    monkeypatch.setattr(s3, "s3_bucket", lambda name: bucket)

    def probed(path: str) -> ProbeReport:
        return ProbeReport(**json.loads(executor_probe.look(path, "token", 0.0, "token")))

    assert probed("s3a://logs/shop/probe/1.txt").unreached is None
    assert probed("s3a://logs/shop/probe/2.txt").unreached == "FileNotFoundError"
    bucket.objects["shop/probe/1.txt"] = b"another"
    assert probed("s3a://logs/shop/probe/1.txt").unreached == "other contents"

    def without(name: str) -> SimulatedBucket:
        raise StorageError("A log on S3 needs boto3, which is not installed")

    monkeypatch.setattr(s3, "s3_bucket", without)
    found = probed("s3a://logs/shop/probe/1.txt")
    assert found.unread is None
    with pytest.raises(BadCluster) as refused:
        check(HERE, [replace(HERE, host="h1", unreached=found.unreached)])
    assert "h1" in refused.value.message
    assert "needs boto3" in str(refused.value)
    assert "spark.executorEnv" in refused.value.remedy


@pytest.mark.process
def test_an_executor_tells_without_headrace_and_without_arrow(tmp_path: Path) -> None:
    file = tmp_path / "probe.txt"
    file.write_text("token")
    cloudpickle.register_pickle_by_value(executor_probe)  # type: ignore[no-untyped-call]
    sent = cloudpickle.dumps(executor_probe.look)  # type: ignore[no-untyped-call]
    program = (
        "import pickle, sys; look = pickle.loads(sys.stdin.buffer.read())\n"
        f"print(look({str(file)!r}, 'token', 0.0)); print(look('/nowhere', 'token', 0.0))"
    )
    python = bare_python(tmp_path / "python")
    done = subprocess.run(
        [str(python), "-c", program], input=sent, cwd=tmp_path, env={}, capture_output=True
    )
    first, second = [ProbeReport(**json.loads(line)) for line in done.stdout.splitlines()]
    ours = ProbeReport(**json.loads(executor_probe.look(str(file), "token", 0.0)))
    assert first == replace(ours, headrace=None, code=None, folder=str(tmp_path))
    assert second.unread == os.strerror(2)
    file.write_text("another")
    assert executor_probe.unread(str(file), "token") == "other contents"


def test_a_version_that_stays_does_not_hide_code_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "thing_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    before = executor_probe.fingerprint(package.name)
    (package / "more.py").write_text("x = 1\n")
    assert before is not None
    assert executor_probe.fingerprint(package.name) not in (None, before)
    assert executor_probe.fingerprint("no_such_package_here") is None
    assert executor_probe.version("no_such_package_here") is None
    assert sys.version.startswith(ProbeReport(**json.loads(executor_probe.look("", "", 0))).python)


_LOST = "Lost task 1.3 in stage 0.0 (TID 9) (10.0.0.7 executor 2): "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            _LOST + "org.apache.spark.api.python.PythonException: [PYTHON_VERSION_MISMATCH] Python"
            " in worker has different version: 3.10 than that in driver: 3.11, PySpark cannot run",
            "Executors have another version of python than the driver: 3.10 there, 3.11 here",
        ),
        (
            _LOST + 'java.io.IOException: Cannot run program "./environment/bin/python": error=2',
            "Executors cannot start ./environment/bin/python",
        ),
        (
            _LOST + "org.apache.spark.SparkException:\nError from python worker:\n"
            "ModuleNotFoundError: No module named 'pyspark'\n",
            "The first job failed on the executors",
        ),
    ],
)
def test_a_probe_that_fails_says_where_and_what_to_do(text: str, message: str) -> None:
    found = failed_probe(text, JobFailed("A Spark job failed"))
    assert isinstance(found, BadCluster)
    assert found.message == message
    assert (found.facts["host"], found.facts["executor"]) == ("10.0.0.7", "2")
    if "ModuleNotFound" in text:
        assert found.facts["why"] == "ModuleNotFoundError: No module named 'pyspark'"


def test_a_jvm_that_is_gone_is_no_bad_cluster() -> None:
    gone: HeadraceError = SparkGone("Spark's JVM does not answer")
    assert failed_probe("", gone) is gone
