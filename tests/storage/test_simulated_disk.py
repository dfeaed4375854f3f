"""What a simulated disk forgets, refuses and counts."""

from __future__ import annotations

import errno
from random import Random

import pytest

from headrace.storage.simulation import PowerCut, SimulatedDisk


def after_cuts(history: list[tuple[str, ...]], path: str) -> set[bytes | None]:
    """Play `history` under many seeds, cut the power, and return all that is left of `path`."""
    found: set[bytes | None] = set()
    for seed in range(60):
        disk = SimulatedDisk()
        disk.make_folder("/d")
        for step, *values in history:
            if step == "write":
                disk.write(values[0], values[1].encode())
            else:
                getattr(disk, step)(*values)
        disk.power_cut(Random(seed))
        try:
            found.add(disk.read(path))
        except FileNotFoundError:
            found.add(None)
    return found


def test_unsynced_bytes_and_names_may_stay_in_part_or_go() -> None:
    found = after_cuts([("write", "/d/a", "abc")], "/d/a")
    assert found == {None, b"", b"a", b"ab", b"abc"}


def test_synced_bytes_without_a_synced_name_are_whole_or_gone() -> None:
    assert after_cuts([("write", "/d/a", "abc"), ("sync", "/d/a")], "/d/a") == {None, b"abc"}


def test_a_synced_name_without_synced_bytes_keeps_the_name_alone() -> None:
    found = after_cuts([("write", "/d/a", "abc"), ("sync_folder", "/d")], "/d/a")
    assert found == {b"", b"a", b"ab", b"abc"}


def test_what_is_synced_twice_over_stays() -> None:
    history = [("write", "/d/a", "abc"), ("sync", "/d/a"), ("sync_folder", "/d")]
    assert after_cuts(history, "/d/a") == {b"abc"}


def test_a_replaced_content_may_come_back_until_it_is_synced() -> None:
    kept = [("write", "/d/a", "old"), ("sync", "/d/a"), ("sync_folder", "/d")]
    found = after_cuts([*kept, ("write", "/d/a", "new")], "/d/a")
    assert {b"old", b"new"} <= found
    assert found <= {b"old", b"", b"n", b"ne", b"new"}


def test_a_rename_a_link_and_a_removal_may_be_undone_until_the_folder_is_synced() -> None:
    kept = [
        *[("write", "/d/a", "a"), ("sync", "/d/a")],
        *[("write", "/d/b", "b"), ("sync", "/d/b"), ("sync_folder", "/d")],
    ]
    assert after_cuts([*kept, ("rename", "/d/a", "/d/b")], "/d/b") == {b"a", b"b"}
    assert after_cuts([*kept, ("link", "/d/a", "/d/c")], "/d/c") == {b"a", None}
    assert after_cuts([*kept, ("remove", "/d/a")], "/d/a") == {b"a", None}
    assert after_cuts([*kept, ("remove", "/d/a"), ("sync_folder", "/d")], "/d/a") == {None}


def test_a_seed_decides() -> None:
    def left(seed: int) -> list[str]:
        disk = SimulatedDisk()
        disk.make_folder("/d")
        for name in "abcdefgh":
            disk.write(f"/d/{name}", b"x")
        disk.power_cut(Random(seed))
        return disk.list("/d")

    assert left(7) == left(7)
    assert len({tuple(left(seed)) for seed in range(20)}) > 5


@pytest.mark.meets("R36")
def test_after_a_failed_sync_the_next_one_lies() -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        disk.make_folder("/d")
        disk.write("/d/a", b"abc")
        disk.sync_folder("/d")
        disk.fail("sync", errno.EIO)
        with pytest.raises(OSError, match="EIO"):
            disk.sync("/d/a")
        disk.sync("/d/a")
        assert disk.read("/d/a") == b"abc"
        disk.power_cut(Random(seed))
        assert disk.read("/d/a") == b""


def test_the_named_call_fails_and_no_other() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    disk.fail("write", errno.EIO, nth=2, part="index")
    disk.write("/d/index-1", b"")
    disk.write("/d/other", b"")
    with pytest.raises(OSError, match="EIO") as caught:
        disk.write("/d/index-2", b"abcd")
    assert caught.value.errno == errno.EIO
    assert disk.read("/d/index-2") == b"ab", "a write that fails has written a part"
    disk.write("/d/index-3", b"")


def test_a_lost_answer_is_an_error_after_the_effect() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    disk.write("/d/a", b"a")
    disk.fail("link", errno.EIO, done=True)
    with pytest.raises(OSError, match="EIO"):
        disk.link("/d/a", "/d/b")
    assert disk.read("/d/b") == b"a"


def test_a_full_disk_takes_what_fits() -> None:
    disk = SimulatedDisk(capacity=10)
    disk.make_folder("/d")
    disk.write("/d/a", b"123456")
    disk.link("/d/a", "/d/a2")
    with pytest.raises(OSError, match="ENOSPC") as caught:
        disk.write("/d/b", b"123456")
    assert caught.value.errno == errno.ENOSPC
    assert disk.read("/d/b") == b"1234"
    disk.remove("/d/b")
    assert disk.used == 6, "two names of one file count once"
    disk.capacity = None
    disk.write("/d/b", b"1234567890")


def test_the_hook_comes_before_the_effect() -> None:
    steps: list[tuple[str, str]] = []

    def cut(step: str, path: str) -> None:
        steps.append((step, path))
        if step == "sync":
            raise PowerCut

    disk = SimulatedDisk(cut)
    disk.make_folder("/d")
    disk.write("/d/a", b"abc")
    disk.sync_folder("/d")
    with pytest.raises(PowerCut):
        disk.sync("/d/a")
    assert steps == [
        ("make_folder", "/d"),
        ("write", "/d/a"),
        ("sync_folder", "/d"),
        ("sync", "/d/a"),
    ]
