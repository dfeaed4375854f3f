"""Files are absent or whole, and errors are ours."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from headrace.errors import AlreadyStored, StorageError, StorageFull
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.support.tiers import sweep

ROOT = "/data"
WRITING = ("write", "sync", "rename", "link", "sync_folder")


def files_on(disk: SimulatedDisk) -> Files:
    files = Files(disk, ROOT)
    files.make_folder("log")
    return files


def test_what_is_put_is_read_back_and_replaces(tmp_path: Path) -> None:
    files = Files(RealDisk(), str(tmp_path))
    files.put("a", b"one")
    files.put("a", b"two")
    assert files.read("a") == b"two"
    assert files.size("a") == 3
    assert files.list("") == ["a"]


def test_what_is_created_is_never_replaced(tmp_path: Path) -> None:
    files = Files(RealDisk(), str(tmp_path))
    files.create("a", b"one")
    with pytest.raises(AlreadyStored) as caught:
        files.create("a", b"two")
    assert caught.value.facts["file"] == str(tmp_path / "a")
    assert files.read("a") == b"one"
    assert files.list("") == ["a"], "the loser's temporary file is gone"


def test_a_part_of_the_storage_is_storage_too(tmp_path: Path) -> None:
    files = Files(RealDisk(), str(tmp_path))
    files.make_folder("log/shop")
    inner = files.within("log").within("shop")
    inner.create("a", b"a")
    assert files.read("log/shop/a") == b"a"
    assert inner.path("a") == str(tmp_path / "log" / "shop" / "a")
    assert inner.path("") == str(tmp_path / "log" / "shop")


def test_a_missing_file_passes_as_such(tmp_path: Path) -> None:
    files = Files(RealDisk(), str(tmp_path))
    for step in (files.read, files.size, files.remove):
        with pytest.raises(FileNotFoundError):
            step("none")


def test_a_missing_folder_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Files(RealDisk(), str(tmp_path)).put("none/a", b"")


@pytest.mark.meets("S15")
def test_a_temporary_name_lies_beside_its_file_and_is_visible_to_spark() -> None:
    seen: list[str] = []
    disk = SimulatedDisk(lambda step, path: seen.append(path) if step == "write" else None)
    files = files_on(disk)
    files.put("log/a", b"")
    files.create("log/b", b"")
    for path in seen:
        folder, _, name = path.rpartition("/")
        assert folder == f"{ROOT}/log"
        assert not name.startswith(("_", "."))
        assert name.endswith(".tmp")
    assert len(set(seen)) == 2


def test_sweeping_removes_what_interrupted_writes_left() -> None:
    disk = SimulatedDisk()
    files = files_on(disk)
    files.put("log/a", b"a")
    disk.write(f"{ROOT}/log/b.json.1-1.tmp", b"half")
    assert files.sweep("log") == 1
    assert files.list("log") == ["a"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_left_has_a_code_of_its_own(number: int) -> None:
    disk = SimulatedDisk()
    files = files_on(disk)
    disk.fail("write", number)
    with pytest.raises(StorageFull) as caught:
        files.put("log/a", b"abc")
    assert caught.value.facts["file"] == f"{ROOT}/log/a"
    assert files.list("log") == []


@pytest.mark.parametrize("step", ["write", "sync", "rename", "sync_folder"])
def test_a_failed_put_leaves_the_old_file_or_the_new_one(step: str) -> None:
    disk = SimulatedDisk()
    files = files_on(disk)
    files.put("log/a", b"old")
    disk.fail(step, errno.EIO)
    with pytest.raises(StorageError) as caught:
        files.put("log/a", b"new")
    assert caught.value.facts == {"file": f"{ROOT}/log/a", "reason": "EIO"}
    assert files.read("log/a") == (b"new" if step == "sync_folder" else b"old")
    assert files.list("log") == ["a"]


@pytest.mark.meets("R36")
def test_a_failed_sync_is_not_tried_again_on_the_same_file() -> None:
    steps: list[tuple[str, str]] = []
    disk = SimulatedDisk(lambda step, path: steps.append((step, path)))
    files = files_on(disk)
    disk.fail("sync", errno.EIO)
    with pytest.raises(StorageError):
        files.create("log/a", b"abc")
    files.create("log/a", b"abc")
    synced = [path for step, path in steps if step == "sync"]
    assert len(synced) == len(set(synced)) == 2
    disk.power_cut(Random(1))
    assert files.read("log/a") == b"abc"


@pytest.mark.meets("P2")
@pytest.mark.parametrize("seed", sweep(range(150), every=5))
def test_at_a_power_cut_a_file_is_absent_or_whole_and_stays_once_stored(seed: int) -> None:
    """Invariant 5, at every step: before the cut, what was stored; of the one under way, either."""
    dice = Random(seed)
    left = dice.randrange(12)

    def cut(step: str, _: str) -> None:
        nonlocal left
        left -= step in WRITING
        if left < 0:
            raise PowerCut

    disk = SimulatedDisk()
    files = files_on(disk)
    files.put("log/replaced", b"old")
    disk.on_step = cut
    stored = 0
    try:
        files.create("log/created", b"created")
        stored = 1
        files.put("log/replaced", b"new")
        stored = 2
        left = -1
        files.list("log")
    except PowerCut:
        pass
    disk.on_step = None
    disk.power_cut(dice)
    names = files.list("log")
    if stored or "created" in names:
        assert files.read("log/created") == b"created"
    assert files.read("log/replaced") in ((b"new",) if stored == 2 else (b"old", b"new"))
    files.sweep("log")
    assert set(files.list("log")) <= {"created", "replaced"}
