"""
One Spark for all tests: a restart of an engine is not a restart of the JVM.

A test that wants an engine of its own passes `spark.session`, as a user would who brings
one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    from headrace.spark_session.session import start_session

    started = start_session(tmp_path_factory.mktemp("spark"))
    yield started
    started.stop()


def jvm_options() -> dict[str, str]:
    """
    Return how this run starts JVMs, for a child with an environment of its own.

    Spark's own launcher reads these, ours and that of a plain PySpark alike.
    """
    names = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
    return {name: os.environ[name] for name in names if name in os.environ}
