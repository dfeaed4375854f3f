"""Engines with their log on a real server of S3, without a JVM: recorders that die, two at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

import headrace as hr
from headrace.engine.engine import Engine
from headrace.errors import LostLog
from headrace.storage.killpoints import BEFORE_ACKNOWLEDGE, ENTRY_LINKED, SEGMENT_WRITTEN
from headrace.storage.s3 import opened, s3_bucket
from headrace.targets.memory import IndexedMemory, memory
from tests.s3.server import running_server
from tests.support.elsewhere import runner_elsewhere
from tests.support.shop import PATIENCE, Shop, await_that

pytestmark = pytest.mark.s3


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.close()


def engine_of(
    shop: Shop,
    target: IndexedMemory,
    place: str,
    *,
    data: Path | None = None,
    recorder: Literal["process", "thread"] = "process",
) -> Engine:
    return Engine(
        shop.pipeline(target, "paid"),
        data=data or shop.data,
        log=hr.log(storage=place),
        runner=runner_elsewhere(),
        recorder=recorder,
    )


def rows(target: IndexedMemory) -> dict[int, dict[str, object]]:
    return {int(str(row["id"])): dict(row) for row in target.all()}


def changes(place: str) -> list[str]:
    """Return the changes in the log, as another process reads them."""
    words = ["log", "read", "shop", "orders", "--json", "--storage", place]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.meets("R31", "P2")
@pytest.mark.parametrize("point", [SEGMENT_WRITTEN, ENTRY_LINKED, BEFORE_ACKNOWLEDGE])
def test_a_recorder_that_is_killed_loses_nothing_and_records_nothing_twice(
    point: str, shop: Shop, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, token = memory(), tmp_path / "token"
    with engine_of(shop, target, place) as engine:
        assert engine.await_ready(PATIENCE)
    monkeypatch.setenv("HEADRACE_KILL_POINT", point)
    monkeypatch.setenv("HEADRACE_KILL_ONCE", str(token))
    token.touch()
    target = memory()
    with engine_of(shop, target, place) as engine:
        assert engine.await_ready(PATIENCE)
        for key in range(100, 103):
            shop.insert(range(key * 10, key * 10 + 5))
        assert await_that(engine, lambda: rows(target) == shop.truth())
    assert not token.exists(), "the point was hit"
    told = [line.partition('"position":')[2] for line in changes(place)]
    assert len(told) == len(set(told)) == 15


@pytest.mark.meets("R31")
def test_a_second_engine_on_the_bucket_takes_the_log_and_the_first_one_stops(
    shop: Shop, place: str, tmp_path: Path
) -> None:
    first, second = memory(), memory()
    with engine_of(shop, first, place) as before:
        assert before.await_ready(PATIENCE)
        with engine_of(shop, second, place, data=tmp_path / "other") as after:
            assert after.await_ready(PATIENCE)
            shop.insert(range(100, 110))
            assert await_that(after, lambda: rows(second) == shop.truth())
            assert await_that(before, lambda: isinstance(before.source_info("shop").error, LostLog))


def test_a_server_that_is_gone_for_a_while_costs_no_change(
    shop: Shop, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, folder = memory(), tmp_path / "s3"
    with ExitStack() as stack:
        with running_server(folder) as first:
            first.make_bucket("own")
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", first.endpoint)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", first.secret)
            s3_bucket.cache_clear()
            engine = stack.enter_context(engine_of(shop, target, "s3://own/log"))
            assert engine.await_ready(PATIENCE)
        shop.insert(range(100, 110))
        stack.enter_context(running_server(folder, first))
        shop.insert(range(200, 210))
        assert await_that(engine, lambda: rows(target) == shop.truth(), 2 * PATIENCE)
        stack.callback(engine.stop)


@pytest.mark.meets("R31")
def test_a_machine_that_is_lost_is_replaced_by_another(shop: Shop, place: str) -> None:
    def live(keys: range) -> None:
        target = memory()
        with engine_of(shop, target, place) as engine:
            assert engine.await_ready(PATIENCE)
            shop.insert(keys)
            assert await_that(engine, lambda: rows(target) == shop.truth())

    live(range(100, 110))
    # What is only recorded goes on with the same log.
    recorded = hr.record(shop.source(), "orders", data=shop.data, log=hr.log(storage=place))
    assert recorded.await_ready(PATIENCE)
    recorded.stop()
    # Of all that an engine had, the bucket alone is left.
    shutil.rmtree(shop.data)
    live(range(200, 210))
    assert opened(place).list("log") == ["shop"]
