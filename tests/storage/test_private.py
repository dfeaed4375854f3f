"""Files beside the log, and files that were asked for: for their owner alone, and never lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import AlreadyStored, StorageError
from headrace.storage.permissions import create_output, make_private_folder, open_private


@pytest.fixture(autouse=True)
def open_mask() -> object:
    """A mask that lets everything through: what is closed, we closed."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_every_folder_that_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b" / "c")
    make_private_folder(tmp_path / "a" / "b" / "c")
    for made in ("a", "a/b", "a/b/c"):
        assert mode(tmp_path / made) == 0o700


@pytest.mark.parametrize("append", [True, False])
def test_a_file_is_its_owners_alone_also_one_that_was_there(tmp_path: Path, append: bool) -> None:
    for name in ("new", "old"):
        path = tmp_path / name
        if name == "old":
            path.write_bytes(b"before ")
        with open_private(path, append=append) as file:
            assert mode(path) == 0o600
            file.write(b"after")
    assert (tmp_path / "old").read_bytes() == (b"before after" if append else b"after")


def test_an_output_replaces_nothing_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with create_output(path) as file:
        file.write(b"first")
    assert mode(path) == 0o600
    with pytest.raises(AlreadyStored):
        create_output(path)
    assert path.read_bytes() == b"first"
    with create_output(path, replace=True) as file:
        file.write(b"2nd")
    assert path.read_bytes() == b"2nd"


def test_what_is_no_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    with create_output(Path(os.devnull)) as file:
        file.write(b"x")
    with pytest.raises(StorageError) as caught:
        create_output(tmp_path / "gone" / "out")
    assert caught.value.facts["why"] == "No such file or directory"
    with pytest.raises(StorageError):
        create_output(tmp_path, replace=True)
