"""The stories of Iceberg tables, all told in one process; there is an Iceberg for Spark 4.1."""

from __future__ import annotations

import pytest

from tests.pipeline.lake.jars import need_format
from tests.pipeline.lake.stories import stories_of, told_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    need_format("iceberg")
    return told_of("iceberg", tmp_path_factory.mktemp("stories"))


@pytest.mark.meets("R24", "S16")
@pytest.mark.parametrize("name", sorted(stories_of("iceberg")))
def test_iceberg(told: dict[str, str], name: str) -> None:
    assert told.get(name, "not told: the process ended before") == ""
