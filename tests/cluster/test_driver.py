"""Drivers that die and come back, `spark-submit`, and clusters that are refused (S12)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import headrace as hr
from headrace.errors import BadCluster, HeadraceError
from headrace.pipeline.steps import function
from headrace.storage.killpoints import BASELINE_LOADED, JOB_DONE, TARGET_WRITTEN
from tests.cluster.cluster import WORKERS, Cluster, bare_python, kept, may_hide
from tests.cluster.shop import PATIENCE, WAITING, Shop, folded, held
from tests.cluster.tables import merged, notes, plain, staged
from tests.pipeline.lake.jars import need_delta
from tests.support.shop import await_seen

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def all_workers(cluster: Cluster) -> None:
    cluster.await_workers(WORKERS)


@pytest.fixture
def shop(cluster: Cluster, tmp_path: Path) -> Shop:
    (tmp_path / "passed").mkdir()
    return Shop(tmp_path, cluster.conf)


@contextmanager
def driver(command: list[str], **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver until the block ends; it, and all it started, is gone then."""
    places = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = kept(
        command, env=os.environ | {"PYTHONPATH": places} | environ, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()


def is_ready(process: subprocess.Popen[bytes]) -> bool:
    out: IO[bytes] | None = process.stdout
    assert out is not None
    return any(line.strip() == b"ready" for line in iter(out.readline, b""))


def effects(folder: Path) -> dict[object, dict[str, Any]]:
    """Return the rows in the files, without what tells where they were computed."""
    return plain(folded(folder / "out"))


def expected(shop: Shop) -> dict[object, dict[str, Any]]:
    return shop.truth(passed=lambda row: row["id"], double=lambda row: row["qty"] * 2)


@pytest.mark.meets("S12")
def test_a_driver_killed_in_mid_job_goes_on_when_it_is_started_again(
    shop: Shop, cluster: Cluster, archive: Path, tmp_path: Path
) -> None:
    given = {"folder": str(tmp_path), "conf": cluster.conf_with(archive)}
    command = [sys.executable, "-m", "tests.cluster.driver", json.dumps(given)]
    hold = tmp_path / "hold"
    with driver(command) as first:
        assert is_ready(first)
        assert effects(tmp_path) == expected(shop)
        hold.touch()
        shop.change()
        # A task of the job that writes has begun, and has no end.
        assert await_seen((tmp_path / "passed" / WAITING).exists, PATIENCE)
    hold.unlink()
    assert effects(tmp_path) != expected(shop)
    shop.change()
    with driver(command) as second:
        assert is_ready(second)
        assert await_seen(lambda: effects(tmp_path) == expected(shop), PATIENCE)
        shop.change()
        assert await_seen(lambda: effects(tmp_path) == expected(shop), PATIENCE)


@pytest.mark.meets("R24", "S12")
def test_a_driver_killed_between_staging_and_commit_writes_its_table_once(
    shop: Shop, cluster: Cluster, archive: Path, tmp_path: Path
) -> None:
    need_delta()
    table, token = tmp_path / "lake", tmp_path / "token"
    given = {"folder": str(tmp_path), "conf": cluster.conf_with(archive), "table": str(table)}
    command = [sys.executable, "-m", "tests.cluster.driver", json.dumps(given)]

    def is_right() -> bool:
        return plain(merged(table)) == shop.truth(double=lambda row: row["qty"] * 2)

    def killed_at(point: str) -> None:
        """Run it until it has come by a point, with changes to bring it there."""
        token.touch()
        armed = {"HEADRACE_KILL_POINT": point, "HEADRACE_KILL_ONCE": str(token)}
        with driver(command, **armed) as process:
            if point != BASELINE_LOADED:
                assert is_ready(process)
                assert await_seen(is_right, PATIENCE)
                shop.change_at_once()
            process.wait(2 * PATIENCE)
        assert not token.exists(), "the point was not reached"

    killed_at(BASELINE_LOADED)
    assert staged(shop.data)
    assert not table.exists()
    killed_at(JOB_DONE)
    # Loaded, by what was staged anew; and the parts of a batch that no commit has.
    parts, shown = staged(shop.data), merged(table)
    assert len(parts) == WORKERS
    assert len(notes(table)) == 1
    killed_at(f"{TARGET_WRITTEN}:2")
    assert staged(shop.data) == []
    assert is_right()
    # The batch that was only staged, and then the one whose commit nobody has noted.
    assert [note.loads for note in notes(table)] == [True, False, False]
    assert merged(table) != shown
    with driver(command) as last:
        assert is_ready(last)
        shop.change_at_once()
        assert await_seen(is_right, PATIENCE)
        assert len(notes(table)) == 4


@pytest.mark.meets("S12", "S7")
def test_an_engine_runs_on_the_session_of_spark_submit_in_client_mode(
    shop: Shop, cluster: Cluster, archive: Path, tmp_path: Path
) -> None:
    conf = cluster.conf_with(archive) | {"spark.pyspark.driver.python": sys.executable}
    words = [f"--conf={name}={value}" for name, value in conf.items() if name != "spark.archives"]
    command = [str(cluster.spark_home / "bin" / "spark-submit"), "--deploy-mode", "client"]
    command += ["--archives", conf["spark.archives"], *words, str(ROOT / "tests/cluster/driver.py")]
    command.append(json.dumps({"folder": str(tmp_path), "conf": None}))
    with driver(command, **cluster.submitting()) as submitted:
        assert is_ready(submitted)
        shop.change()
        assert await_seen(lambda: effects(tmp_path) == expected(shop), PATIENCE)


# -- refused at the start -----------------------------------------------------------------


def refusal(shop: Shop) -> BadCluster:
    """Return what an engine is refused with; nothing of it is left, and no row was read."""
    target = hr.memory()
    with pytest.raises(BadCluster) as refused, shop.engine(target):
        pass
    return refused.value


@pytest.mark.meets("S12")
def test_a_log_that_one_worker_cannot_read_is_refused_by_the_name_of_its_host(
    cluster: Cluster, archive: Path, tmp_path: Path
) -> None:
    if not may_hide():
        pytest.skip("a folder cannot be hidden from a process here")
    cluster.kill(cluster.workers[0])
    blind = cluster.start_worker(blind_to=tmp_path)
    try:
        cluster.await_workers(WORKERS)
        error = refusal(Shop(tmp_path, cluster.conf_with(archive)))
    finally:
        cluster.kill(blind)
        cluster.start_worker()
    assert error.message == f"Executors cannot read the data directory on {os.uname().nodename}"
    assert error.facts["why"] == "No such file or directory"
    assert Path(str(error.facts["folder"])).is_relative_to(blind.folder)
    assert "under the same path" in error.remedy


@pytest.mark.meets("S12")
def test_executors_with_another_headrace_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "python")
    packages = next(python.parents[1].glob("lib/*/site-packages"))
    (packages / "headrace").mkdir()
    (packages / "headrace" / "__init__.py").touch()
    metadata = packages / "headrace_core-0.0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: headrace-core\nVersion: 0.0.1\n"
    )
    error = refusal(Shop(tmp_path, cluster.conf | {"spark.pyspark.python": str(python)}))
    assert "another version of headrace than the driver: 0.0.1 on" in error.message
    assert "headrace cluster pack" in error.remedy


@pytest.mark.meets("S12")
def test_executors_without_their_python_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    nowhere = {"spark.pyspark.python": "./environment/bin/python"}
    error = refusal(Shop(tmp_path, cluster.conf | nowhere))
    assert error.message == "Executors cannot start ./environment/bin/python"
    assert error.facts["host"] == "127.0.0.1"


@pytest.mark.meets("S10", "S12")
def test_a_function_runs_in_a_python_that_has_no_headrace(shop: Shop, cluster: Cluster) -> None:
    def where_it_runs(row: dict[str, Any]) -> dict[str, Any]:
        import importlib.util

        found = importlib.util.find_spec("headrace") is not None
        return {"headrace": found, "python": sys.executable, "double": row["qty"] * 2}

    columns = {"headrace": "boolean", "python": "string", "double": "bigint"}
    target = hr.memory()
    with shop.engine(target, function(where_it_runs, columns=columns, reads=["qty"])) as engine:
        assert engine.await_ready(PATIENCE), engine.pipelines()
        shop.change(20)

        def computed() -> dict[object, dict[str, Any]]:
            python = str(cluster.python)
            return shop.truth(
                headrace=lambda _: False,
                python=lambda _: python,
                double=lambda row: row["qty"] * 2,
            )

        assert await_seen(lambda: held(target) == computed(), PATIENCE)
        assert engine.dead_letters() == ()


@pytest.mark.meets("R24", "S12")
def test_a_table_says_that_executors_cannot_prepare_it_without_headrace(shop: Shop) -> None:
    need_delta()
    target = hr.table(path=str(shop.data.parent / "lake"), staged_from=1)
    with shop.engine(target) as engine:

        def error() -> HeadraceError | None:
            (status,) = engine.pipelines()
            return status.error

        assert await_seen(lambda: error() is not None, PATIENCE)
        found = error()
    assert isinstance(found, BadCluster), found
    assert "Headrace is not installed on the executors" in found.message
    assert "headrace cluster pack" in found.remedy
