"""What cannot be run is refused before anything starts, with everything that is wrong."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from headrace.capture.sqlite import database
from headrace.capture.sqlite.source import sqlite
from headrace.errors import BadDataDirectory, InvalidConfiguration, Locked
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import drop, equals
from headrace.targets.memory import memory
from tests.support.mounting import read_only
from tests.support.shop import PATIENCE, Shop, await_that


def refused(shop: Shop, *pipelines: Pipeline) -> list[str]:
    """Return the codes an engine of these pipelines is refused with."""
    engine = shop.engine(*pipelines)
    with pytest.raises(InvalidConfiguration) as caught:
        engine.start()
    assert engine.sources() == ()
    assert not shop.data.exists()
    return [error.code for error in caught.value.errors]


@pytest.mark.meets("P7")
def test_every_error_is_told_at_once(shop: Shop, tmp_path: Path) -> None:
    source, missing = shop.source(), sqlite(tmp_path / "nowhere.db")
    same = memory()
    codes = refused(
        shop,
        Pipeline(source, "orders", memory(), filters=[equals("colour", "red")], name="one"),
        Pipeline(source, "parcels", memory(), name="one"),
        Pipeline(source, "orders", memory(), transforms=[drop("id")], name="Three!"),
        Pipeline(missing, "orders", same, name="four"),
        Pipeline(shop.source(), "orders", same, name="five"),
    )
    assert sorted(codes) == [
        "capture.refused",
        "capture.unsupported_table",
        "control.bad_name",
        "control.bad_name",
        "control.bad_name",
        "control.bad_name",
        "pipeline.bad_transform",
        "pipeline.unknown_column",
    ]


def test_a_missing_database_is_not_made(shop: Shop, tmp_path: Path) -> None:
    codes = refused(shop, Pipeline(sqlite(tmp_path / "nowhere.db"), "orders", memory()))
    assert codes == ["capture.refused"]
    assert not (tmp_path / "nowhere.db").exists()


def test_a_view_is_refused_and_nothing_is_left_running(shop: Shop) -> None:
    shop.app.execute("create view notes as select 1")
    assert refused(shop, Pipeline(shop.source(), "notes", memory())) == [
        "capture.unsupported_table"
    ]
    with shop.engine(shop.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)


def test_a_locked_database_is_not_refused_but_waited_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database.connect, "__defaults__", (0.05,))
    shop.app.execute("begin immediate")
    with shop.engine(shop.pipeline(memory())) as engine:
        assert await_that(engine, lambda: engine.source_info("shop").error_since is not None)
        assert "locked" in engine.source_info("shop").reason
        assert not engine.is_ready()
        shop.app.execute("rollback")
        assert engine.await_ready(PATIENCE)


@pytest.mark.process
def test_a_read_only_database_is_refused_untouched(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "frozen"
    folder.mkdir()
    frozen = Shop(folder)
    frozen.app.execute("pragma journal_mode = delete")
    frozen.close()
    before = hashlib.sha256(frozen.path.read_bytes()).digest()
    with read_only(folder):
        assert refused(shop, Pipeline(frozen.source(), "orders", memory())) == ["capture.refused"]
    assert hashlib.sha256(frozen.path.read_bytes()).digest() == before


@pytest.mark.meets("R31")
def test_a_second_engine_is_told_who_holds_the_directory(shop: Shop) -> None:
    first, second = shop.engine(shop.pipeline(memory())), shop.engine(shop.pipeline(memory()))
    with first:
        assert first.await_ready(PATIENCE)
        with pytest.raises(Locked) as caught:
            second.start()
        assert caught.value.facts["pid"] == os.getpid()
        assert caught.value.facts["host"] == socket.gethostname()
        assert first.is_ready()
    with second:
        assert second.await_ready(PATIENCE)


@pytest.mark.meets("P7")
@pytest.mark.parametrize("name", ["[1]", "a*", "{x}"])
def test_a_directory_that_spark_takes_for_a_pattern_is_refused(shop: Shop, name: str) -> None:
    shop.data = shop.data.parent / name
    with pytest.raises(BadDataDirectory):
        shop.engine(shop.pipeline(memory())).start()
    assert not shop.data.exists()
