"""One cluster for all tests here, and one Spark of ours that has it as its master."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.pipeline.session import Spark, start_session
from tests.cluster.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def remote(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """The Spark that every engine of this process shares; held, so that it starts once."""
    started = start_session(tmp_path_factory.mktemp("spark"), conf=cluster.conf)
    assert started.info().master == cluster.url, "another Spark runs in this process"
    yield started
    started.stop()
