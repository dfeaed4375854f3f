"""One server for all tests here, and a place of its own for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from headrace.storage.s3 import s3_bucket
from tests.s3.server import Server, running_server

BUCKET = "headrace-logs"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("s3")) as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture
def place(storage: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty place on the server, which this process and its children can reach."""
    for name, value in storage.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    s3_bucket.cache_clear()
    yield f"s3://{BUCKET}/test-{next(_numbers)}"
    s3_bucket.cache_clear()
