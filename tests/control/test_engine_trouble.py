"""Foreign databases, damaged files, full disks: told by name, and nothing is lost."""

from __future__ import annotations

import errno
import hashlib
import shutil
from pathlib import Path

import pytest

from headrace.capture import process
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError
from headrace.storage.disk import Buffer, RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import memory
from tests.support.file_target import FileTarget
from tests.support.mounting import small_disk
from tests.support.shop import PATIENCE, Shop, await_that, file_rows_at
from tests.support.watched_target import WatchedTarget


def source_error(engine: Engine) -> HeadraceError | None:
    return engine.sources()[0].error


@pytest.mark.meets("R1", "P7")
def test_a_log_is_not_continued_from_another_database(shop: Shop, tmp_path: Path) -> None:
    with shop.engine(shop.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
    other = Shop(tmp_path, name="other.db", rows=3)
    other.app.execute("pragma wal_checkpoint(truncate)")
    before = hashlib.sha256(other.path.read_bytes()).digest()
    end = shop.log().last_entry
    with shop.engine(other.pipeline(memory())) as engine:
        assert await_that(engine, lambda: source_error(engine) is not None)
        error = source_error(engine)
        assert error is not None
        assert error.code == "capture.other_database"
        assert not engine.is_ready()
        assert engine.sources()[0].state == "failed"
    assert hashlib.sha256(other.path.read_bytes()).digest() == before
    other.close()
    # Only the number that a writer claims when it opens.
    assert shop.log().last_entry <= end + 1
    with shop.engine(shop.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)


def test_a_log_that_was_taken_away_with_the_capture_means_a_new_copy(shop: Shop) -> None:
    target = WatchedTarget(FileTarget(shop.data.parent / "target.db"))
    with shop.engine(shop.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(20, 120))
        assert target.wait(shop.captured(), PATIENCE)
    # The numbers of the new capture are lower than what the target has reached.
    shutil.rmtree(shop.data / "log")
    shop.source().teardown()
    shop.app.execute("delete from orders where id > 3")
    with shop.engine(shop.pipeline(target)) as engine:
        assert await_that(engine, lambda: engine.is_ready() and target.row_count("orders") == 3)
    assert file_rows_at(shop.data.parent / "target.db")[0] == shop.truth()


@pytest.mark.meets("P7")
def test_a_damaged_segment_stops_its_pipeline_by_name_and_no_other(shop: Shop) -> None:
    source = shop.source()
    orders = memory()
    kept = WatchedTarget(FileTarget(shop.data.parent / "target.db"))
    engine = shop.engine(
        shop.pipeline_from(source, orders, "memory"), shop.pipeline_from(source, kept, "file")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
    baseline = shop.log().usable_baseline("orders")
    assert baseline is not None
    damaged = shop.data / "log" / "shop" / "segments" / baseline.files[0].name
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with engine:
        assert await_that(engine, lambda: engine.pipeline_info("memory").state == "failed")
        error = engine.pipeline_info("memory").error
        assert error is not None
        assert error.code == "changelog.corrupt_segment"
        assert damaged.name in str(error)
        assert not engine.is_ready()
        # The rest goes on: the file has its rows already.
        shop.insert(range(20, 25))
        assert kept.wait(shop.captured(), PATIENCE)
        assert await_that(engine, lambda: engine.is_ready(pipeline="file"))
    damaged.write_bytes(whole)
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: orders.count() == 15)


class FullDisk(RealDisk):
    """A disk that refuses on command."""

    full = False

    def write(self, path: str, data: Buffer) -> None:
        if FullDisk.full:
            raise OSError(errno.ENOSPC, "no room", path)
        super().write(path, data)


@pytest.mark.meets("R36", "P7")
def test_a_full_disk_is_told_and_healed_without_loss(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The recorder's storage alone: the engine goes on.
    monkeypatch.setattr(process, "opened", lambda location: Files(FullDisk(), location))
    target = WatchedTarget(FileTarget(shop.data.parent / "target.db"))
    with shop.engine(shop.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        monkeypatch.setattr(FullDisk, "full", True)
        shop.insert(range(20, 40))
        assert await_that(engine, lambda: source_error(engine) is not None)
        error = source_error(engine)
        assert error is not None
        assert error.code == "storage.full"
        assert not engine.is_ready()
        # The disk is named, by a folder on it.
        assert f"No space left on the disk of {shop.data}/log/" in engine.source_info("shop").reason
        assert shop.cursor() < shop.captured()
        monkeypatch.setattr(FullDisk, "full", False)
        assert target.wait(shop.captured(), PATIENCE)
        assert engine.await_ready(PATIENCE)
    rows, effects = file_rows_at(shop.data.parent / "target.db")
    assert rows == shop.truth()
    assert len(effects) == 20


@pytest.mark.meets("P7")
@pytest.mark.process
def test_a_disk_that_is_really_full_is_told_and_healed_without_loss(
    shop: Shop, tmp_path: Path
) -> None:
    target = WatchedTarget(FileTarget(tmp_path / "target.db"))
    with small_disk(tmp_path / "small", "1m"):
        shop.data = tmp_path / "small" / "data"
        with shop.engine(shop.pipeline(target), recorder="process") as engine:
            assert engine.await_ready(PATIENCE)
            ballast = tmp_path / "small" / "ballast"
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError):
                while True:
                    file.write(bytes(4096))
            shop.insert(range(20, 40))
            assert await_that(engine, lambda: source_error(engine) is not None)
            error = source_error(engine)
            assert error is not None
            assert error.code == "storage.full"
            ballast.unlink()
            assert target.wait(shop.captured(), PATIENCE)
            assert engine.await_ready(PATIENCE)
    rows, effects = file_rows_at(tmp_path / "target.db")
    assert rows == shop.truth()
    assert len(effects) == 20
