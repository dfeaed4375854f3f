"""The contract of a disk's steps, for the real one and the simulated one."""

from __future__ import annotations

import stat
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.storage.disk import Disk, RealDisk
from headrace.storage.simulation import SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else SimulatedDisk()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    root = str(tmp_path / "data")
    disk.make_folder(root)
    return root


@pytest.mark.parametrize("data", [b"", b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_a_file_reads_back_as_written(
    disk: Disk, root: str, data: bytes | bytearray | memoryview
) -> None:
    disk.write(f"{root}/a", data)
    assert disk.read(f"{root}/a") == bytes(data)
    assert disk.size(f"{root}/a") == len(bytes(data))


def test_a_buffer_of_arrow_is_written_as_its_bytes(disk: Disk, root: str) -> None:
    disk.write(f"{root}/a", pa.array([1, 2], pa.int32()).buffers()[1].slice(0, 8))
    assert disk.read(f"{root}/a") == b"\1\0\0\0\2\0\0\0"


def test_writing_again_replaces_all(disk: Disk, root: str) -> None:
    disk.write(f"{root}/a", b"a long text")
    disk.write(f"{root}/a", b"short")
    assert disk.read(f"{root}/a") == b"short"


def test_a_rename_replaces_what_had_the_name(disk: Disk, root: str) -> None:
    disk.write(f"{root}/old", b"old")
    disk.write(f"{root}/new", b"new")
    disk.rename(f"{root}/new", f"{root}/old")
    assert disk.read(f"{root}/old") == b"new"
    assert disk.list(root) == ["old"]


def test_a_link_is_refused_where_the_name_is_taken(disk: Disk, root: str) -> None:
    disk.write(f"{root}/a", b"a")
    disk.write(f"{root}/b", b"b")
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/a", f"{root}/b")
    assert disk.read(f"{root}/b") == b"b"


def test_a_linked_file_outlives_its_first_name(disk: Disk, root: str) -> None:
    disk.write(f"{root}/a", b"a")
    disk.link(f"{root}/a", f"{root}/b")
    disk.remove(f"{root}/a")
    assert disk.read(f"{root}/b") == b"a"
    assert disk.list(root) == ["b"]


def test_syncing_changes_nothing_to_see(disk: Disk, root: str) -> None:
    disk.write(f"{root}/a", b"a")
    disk.sync(f"{root}/a")
    disk.sync_folder(root)
    assert disk.read(f"{root}/a") == b"a"


@pytest.mark.parametrize("step", ["read", "size", "remove", "sync"])
def test_a_missing_file_is_said_to_be_missing(disk: Disk, root: str, step: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(disk, step)(f"{root}/none")


@pytest.mark.parametrize("step", ["rename", "link"])
def test_a_missing_file_gets_no_other_name(disk: Disk, root: str, step: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(disk, step)(f"{root}/none", f"{root}/other")


def test_a_folder_that_is_missing_lists_nothing_and_takes_nothing(disk: Disk, root: str) -> None:
    assert disk.list(f"{root}/none") == []
    with pytest.raises(FileNotFoundError):
        disk.write(f"{root}/none/a", b"a")


def test_names_are_listed_sorted_with_folders(disk: Disk, root: str) -> None:
    disk.make_folder(f"{root}/c/deep/down")
    disk.make_folder(f"{root}/c/deep")
    for name in ("b", "a"):
        disk.write(f"{root}/{name}", b"")
    assert disk.list(root) == ["a", "b", "c"]
    assert disk.list(f"{root}/c") == ["deep"]


def test_nobody_is_given_the_same_word_twice(disk: Disk) -> None:
    other = RealDisk() if isinstance(disk, RealDisk) else disk
    words = [disk.unique(), disk.unique(), other.unique()]
    assert len(set(words)) == 3


def test_what_is_made_belongs_to_this_user_alone(tmp_path: Path) -> None:
    disk = RealDisk()
    folder = tmp_path / "deep" / "data"
    disk.make_folder(str(folder))
    disk.write(str(folder / "a"), b"a")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o600
