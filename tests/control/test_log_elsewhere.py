"""Engines whose log lies in a bucket: what goes there, what stays, and a store that was lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest

import headrace as hr
from headrace.changelog.ranges import inventory
from headrace.changelog.reader import LogReader
from headrace.cli.main import exit_code
from headrace.config.load import load
from headrace.engine.engine import Engine
from headrace.engine.from_config import configured
from headrace.engine.replay import replay_log
from headrace.errors import InvalidConfiguration, UnsafeStorage, WrongValue
from headrace.storage import s3
from headrace.storage.s3 import opened
from headrace.storage.simulation import SimulatedBucket
from headrace.targets.memory import IndexedMemory, memory
from tests.support.elsewhere import runner_elsewhere
from tests.support.shop import PATIENCE, Shop, await_that

PLACE = "s3://logs/shop"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> SimulatedBucket:
    """The bucket that every place on S3 is; some of its answers get lost."""
    made = SimulatedBucket(Random(7), 0.05)
    monkeypatch.setattr(s3, "s3_bucket", lambda name: made)
    return made


def engine_of(shop: Shop, target: IndexedMemory, place: str | None = PLACE) -> Engine:
    return Engine(
        shop.pipeline(target, "paid"),
        data=shop.data,
        log=hr.log(storage=place),
        runner=runner_elsewhere(),
        recorder="thread",
    )


def followed(shop: Shop, keys: range, place: str | None = PLACE) -> None:
    """Run an engine until its target has what the database has, also what is inserted now."""
    target = memory()
    with engine_of(shop, target, place) as engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(keys)
        assert await_that(engine, lambda: rows(target) == shop.truth())


def rows(target: IndexedMemory) -> dict[int, dict[str, object]]:
    return {int(str(row["id"])): dict(row) for row in target.table("orders").all()}


def test_baseline_changes_and_a_restart_with_the_log_in_a_bucket(
    shop: Shop, bucket: SimulatedBucket
) -> None:
    followed(shop, range(100, 120))
    followed(shop, range(200, 220))
    assert any("/segments/" in key for key in bucket.objects)
    assert {key.partition("/")[0] for key in bucket.objects} == {"shop"}
    assert not (shop.data / "log").exists()
    assert (shop.data / "control.sqlite").exists()
    assert (shop.data / "storage").read_text() == "s3a://logs/shop\n"


@pytest.mark.meets("R31")
def test_an_engine_that_lost_its_store_outranks_whoever_wrote_the_log(
    shop: Shop, bucket: SimulatedBucket
) -> None:
    for life in range(3):
        followed(shop, range(100 * life + 100, 100 * life + 110))
    shutil.rmtree(shop.data)
    followed(shop, range(900, 910))


def test_a_storage_that_keeps_no_writers_apart_stops_the_start(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "s3_bucket", lambda name: SimulatedBucket(conditions=False))
    with pytest.raises(UnsafeStorage), engine_of(shop, memory()):
        pass
    assert not (shop.data / "storage").exists()


def test_the_log_is_read_from_the_command_line_by_directory_and_by_place(
    shop: Shop, bucket: SimulatedBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    followed(shop, range(100, 110))

    def told(*words: str) -> list[dict[str, object]]:
        capsys.readouterr()
        assert exit_code(["log", *words]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    (by_folder,) = told("--json", "--data", str(shop.data))
    (by_place,) = told("--json", "--storage", PLACE)
    assert by_folder["source"] == by_place["source"] == "shop"
    assert by_folder["bytes_on_disk"] == by_place["bytes_on_disk"]
    assert by_folder["progress"]
    assert (by_place["progress"], by_place["kept"]) == ([], None)
    assert len(told("read", "shop", "orders", "--json", "--storage", PLACE)) == 10
    assert exit_code(["log", "--source", "none", "--storage", PLACE]) != 0
    assert exit_code(["log", "--storage", PLACE, "--data", str(shop.data)]) == 2


def test_a_replay_finds_the_log_through_the_data_directory(
    shop: Shop, bucket: SimulatedBucket
) -> None:
    followed(shop, range(100, 110))
    target = memory()
    replay_log(shop.data, "paid", shop.pipeline(memory(), "paid"), target, runner_elsewhere())
    assert rows(target) == shop.truth()


def test_a_log_is_moved_by_copying_its_files(shop: Shop, bucket: SimulatedBucket) -> None:
    followed(shop, range(100, 110), None)
    for path in (shop.data / "log").rglob("*"):
        if path.is_file():
            bucket.objects[f"shop/{path.relative_to(shop.data)}"] = path.read_bytes()
    shutil.rmtree(shop.data / "log")
    followed(shop, range(200, 210))
    log = LogReader.open(opened(PLACE), "shop")
    assert inventory(log, "shop").gaps == (), "history goes on"
    (table,) = inventory(log, "shop").tables
    assert table.inserts == 20


def test_a_log_elsewhere_is_not_left_by_an_engine_that_does_not_say_so(
    shop: Shop, bucket: SimulatedBucket
) -> None:
    followed(shop, range(100, 110))
    with pytest.raises(WrongValue, match="is in another storage"), engine_of(shop, memory(), None):
        pass
    assert not (shop.data / "log").exists()
    followed(shop, range(200, 210))


@pytest.mark.parametrize("place", ["/srv/logs", "gs://logs", "s3://key:secret@logs"])
def test_a_log_is_given_no_other_place(place: str) -> None:
    with pytest.raises(WrongValue) as caught:
        hr.log(storage=place)
    assert "secret" not in str(caught.value)


def test_what_else_lies_in_the_bucket_is_left_alone(shop: Shop, bucket: SimulatedBucket) -> None:
    bucket.objects["shop-2/log/shop/index/x"] = b"another's"
    followed(shop, range(100, 110))
    assert bucket.objects["shop-2/log/shop/index/x"] == b"another's"
    assert opened(PLACE).list("log") == ["shop"]


CONFIGURATION = """
sources.shop { type = sqlite, path = shop.db }
pipelines.orders { source = shop, tables = [orders], target { type = indexed-memory } }
"""


def test_a_configuration_names_the_place_and_a_wrong_one_is_told_with_its_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "headrace.conf"
    file.write_text(f'{CONFIGURATION}log.storage = "s3://logs/shop"\n')
    assert (
        configured(load(file, environment={})).engine()._state.options.log.storage
        == "s3://logs/shop"
    )
    file.write_text(f'{CONFIGURATION}log.storage = "gs://logs/shop"\n')
    with pytest.raises(InvalidConfiguration) as caught:
        configured(load(file, environment={}))
    (error,) = caught.value.errors
    assert isinstance(error, WrongValue)
    assert "headrace.conf:4" in error.message
    assert "s3://bucket/prefix" in error.remedy


def test_doctor_tries_the_storage(
    shop: Shop,
    tmp_path: Path,
    bucket: SimulatedBucket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "headrace.conf"
    file.write_text(f'{CONFIGURATION}log.storage = "s3://logs/shop"\n')
    monkeypatch.chdir(tmp_path)

    def told() -> dict[str, str]:
        capsys.readouterr()
        exit_code(["doctor", "--json"])
        found = json.loads(capsys.readouterr().out)["results"]
        (storage,) = (each for each in found if each["part"] == "storage")
        return {name: str(storage[name]) for name in ("kind", "code")}

    assert told()["kind"] == "well"
    assert bucket.objects == {}
    monkeypatch.setattr(s3, "s3_bucket", lambda name: SimulatedBucket(conditions=False))
    assert told() == {"kind": "wrong", "code": "storage.unsafe"}
