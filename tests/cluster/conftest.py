"""One cluster for all tests here, an archive for its executors, and a Spark of ours on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.spark_session.session import Spark, start_session
from tests.cluster.cluster import SILENT_SECONDS, Cluster, given_up_after, packed, running_cluster

RULES = Path(__file__).with_name("shop_rules.py")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors are given: this environment, and a module of the project."""
    return packed(tmp_path_factory.mktemp("archive") / "headrace-env.tar.gz", RULES)


@pytest.fixture(scope="module")
def silent_seconds() -> float:
    """How long an executor may be silent; a module that waits for its end has another."""
    return SILENT_SECONDS


@pytest.fixture(scope="module")
def remote(
    cluster: Cluster,
    archive: Path,
    silent_seconds: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Spark]:
    """
    The Spark that every engine of a module shares; held, so that it starts once.

    Not for longer: it has all cores of the cluster.
    """
    conf = cluster.conf_with(archive) | given_up_after(silent_seconds)
    started = start_session(tmp_path_factory.mktemp("spark"), conf=conf)
    assert started.info().master == cluster.url, "another Spark runs in this process"
    yield started
    started.stop()
