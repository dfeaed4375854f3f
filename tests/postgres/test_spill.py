"""Where messages of unfinished transactions wait."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from headrace.capture.postgres.stream.spill import Block, Spill
from headrace.errors import StorageError


def block(*messages: bytes, sub: int = 1) -> Block:
    stops = np.cumsum([len(each) for each in messages]).astype(np.int64)
    sizes = np.array([len(each) for each in messages], np.int64)
    return Block(b"".join(messages), stops - sizes, stops, np.full(len(messages), sub))


def kept(spill: Spill, key: int) -> list[tuple[int, bytes]]:
    found = []
    ends = []
    for each, last in spill.blocks(key):
        ends.append(last)
        for start, stop, sub in zip(each.starts, each.stops, each.subs, strict=True):
            found.append((int(sub), bytes(each.data[start:stop])))
    assert ends == [False] * (len(ends) - 1) + [True]
    return found


@pytest.mark.parametrize("limit", [0, 60, 100, 1 << 20])
@pytest.mark.meets("R9")
def test_messages_come_back_in_their_order_wherever_they_were(tmp_path: Path, limit: int) -> None:
    spill = Spill(tmp_path / "scratch", limit)
    for key in (7, 8):
        spill.open(key)
    for number in range(20):
        spill.append(7, block(b"a%d" % number, b"", b"bc", sub=number))
        spill.append(8, block(b"x%d" % number))
        assert spill.memory_bytes <= limit
    expected = [(n, part) for n in range(20) for part in (b"a%d" % n, b"", b"bc")]
    assert kept(spill, 7) == expected
    assert kept(spill, 7) == expected
    assert kept(spill, 8) == [(1, b"x%d" % number) for number in range(20)]
    total = sum(len(part) for _, part in expected)
    assert spill.memory_bytes + spill.disk_bytes >= total


def test_a_transaction_without_messages_has_one_empty_part() -> None:
    spill = Spill(None)
    spill.open(1)
    [(only, last)] = list(spill.blocks(1))
    assert (len(only.starts), last) == (0, True)


@pytest.mark.meets("R9")
def test_the_largest_transaction_goes_to_disk_first(tmp_path: Path) -> None:
    spill = Spill(tmp_path, 1000)
    spill.open(1)
    spill.open(2)
    spill.append(1, block(b"small"))
    spill.append(2, block(b"l" * 990))
    [path] = tmp_path.iterdir()
    assert path.name.endswith("-2.spill")
    assert spill.memory_bytes == block(b"small").size


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    spill = Spill(folder, 0)
    spill.open(1)
    spill.append(1, block(b"a row"))
    [path] = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.meets("R6")
def test_what_an_earlier_one_left_is_removed_at_the_start(tmp_path: Path) -> None:
    earlier = Spill(tmp_path, 0)
    earlier.open(1)
    earlier.append(1, block(b"left"))
    (tmp_path / "other").write_text("not ours")
    spill = Spill(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    spill.open(1)
    spill.append(1, block(b"new"))
    assert kept(spill, 1) == [(1, b"new")]


def test_discarding_removes_file_and_memory(tmp_path: Path) -> None:
    spill = Spill(tmp_path, 0)
    spill.open(1)
    spill.append(1, block(b"gone"))
    spill.discard(1)
    spill.discard(2)
    assert 1 not in spill
    assert (list(tmp_path.iterdir()), spill.memory_bytes, spill.disk_bytes) == ([], 0, 0)


def test_without_a_folder_everything_stays_in_memory() -> None:
    spill = Spill(None, 0)
    spill.open(1)
    spill.append(1, block(b"stays"))
    assert kept(spill, 1) == [(1, b"stays")]
    assert spill.disk_bytes == 0


@pytest.mark.parametrize("left", [3, 20, 60, 100])
def test_a_file_that_was_cut_is_an_error_and_no_lost_message(tmp_path: Path, left: int) -> None:
    spill = Spill(tmp_path, 0)
    spill.open(1)
    spill.append(1, block(b"first" * 5, b"second" * 5))
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(StorageError):
        kept(spill, 1)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        Spill(tmp_path / "file" / "scratch")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    spill = Spill(tmp_path, 0)
    spill.open(1)
    tmp_path.rmdir()
    with pytest.raises(StorageError):
        spill.append(1, block(b"nowhere"))
