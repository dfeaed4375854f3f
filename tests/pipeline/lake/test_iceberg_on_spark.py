"""The stories of Iceberg tables, all run in one process; there is an Iceberg for Spark 4.1."""

from __future__ import annotations

import pytest

from tests.pipeline.lake.jars import need_format
from tests.pipeline.lake.stories import run_stories, stories_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    need_format("iceberg")
    return run_stories("iceberg", tmp_path_factory.mktemp("stories"))


@pytest.mark.meets("R24", "S16")
@pytest.mark.parametrize("name", sorted(stories_of("iceberg")))
def test_iceberg(results: dict[str, str], name: str) -> None:
    assert results.get(name, "not run: the process ended before") == ""
