"""Dead letters under power cuts, kills and faults, at any step of every write (P2, R30)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from headrace.deadletters.store import DeadLetterStore, read_letters
from headrace.errors import AlreadyStored, StorageError
from headrace.storage.files import Files
from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.pipeline.letter_making import at, files_on, inserted, opened
from tests.support.cuts import assert_every_kind, counting, cut, steps_of
from tests.support.tiers import thinned

STEPS = ("write", "sync", "rename", "link", "remove", "sync_folder", "make_folder")
KEYS = range(1, 5)
CLEARED = at(2)


def write(letters: DeadLetterStore, promised: list[str]) -> None:
    """Add dead letters one by one, with a truncate in between; note what returned."""
    for number in KEYS:
        letters.add([inserted(number, number)])
        promised.append(f"letter {number}")
        if number == 3:
            letters.clear("orders", CLEARED, "truncate")
            promised.append("cleared")


def check(files: Files, promised: list[str]) -> None:
    """Check that all that was promised is there, as the reader and as the engine see it."""
    everything = read_letters(files, superseded=True)
    numbers = [letter.position.commit for letter in everything]
    assert numbers == list(KEYS)[: len(numbers)]
    for number in KEYS:
        assert number in numbers or f"letter {number}" not in promised
    if "cleared" in promised:
        assert [letter.superseded for letter in everything[:2]] == ["truncate", "truncate"]
    assert opened(files).all(superseded=True) == everything


def places() -> Sequence[int]:
    """Return the steps at which the story is interrupted: a different one in each dead letter."""
    steps = steps_of(lambda disk: write(opened(files_on(disk)), []), STEPS)
    walked = thinned(range(len(steps)), every=5)
    assert_every_kind(steps, walked)
    return walked


@pytest.mark.meets("R30", "P2")
def test_a_letter_is_there_after_a_power_cut_right_after_it_was_added() -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        files = files_on(disk)
        opened(files).add([inserted(1, 1)])
        disk.power_cut(Random(seed))
        assert [letter.position for letter in read_letters(files)] == [at(1)]


@pytest.mark.slow
@pytest.mark.meets("R30", "P2")
@pytest.mark.parametrize("fate", ["cut", "kill"])
def test_no_power_cut_or_kill_at_any_step_loses_a_letter_or_leaves_one_unreadable(
    fate: str,
) -> None:
    for step in places():
        for seed in range(6):
            dice = Random(seed)
            disk = SimulatedDisk(counting(step, cut, STEPS))
            files = files_on(disk)
            promised: list[str] = []
            with pytest.raises(PowerCut):
                write(opened(files), promised)
            disk.on_step = None
            if fate == "cut":
                disk.power_cut(dice)
            check(files, promised)
            # The next run adds the same again, and what counts as stored stays stored.
            write(opened(files), promised)
            disk.power_cut(dice)
            check(files, promised)
            assert len(read_letters(files, superseded=True)) == len(KEYS)


@pytest.mark.meets("R30", "P2")
def test_a_letter_that_is_said_to_be_there_stays_though_who_wrote_it_was_killed() -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        files = files_on(disk)

        def kill(step: str, _: str) -> None:
            if step == "sync_folder":
                raise PowerCut

        disk.on_step = kill
        with pytest.raises(PowerCut):
            opened(files).add([inserted(1, 1)])
        disk.on_step = None
        assert opened(files).add([inserted(1, 1)]) == 0
        disk.power_cut(Random(seed))
        assert [letter.position for letter in read_letters(files)] == [at(1)]


@pytest.mark.slow
@pytest.mark.meets("R30", "R36")
@pytest.mark.parametrize("done", [False, True], ids=["without effect", "with effect"])
def test_after_a_failed_step_the_same_store_takes_the_letters_again(done: bool) -> None:
    for step in STEPS:
        for nth in range(1, 6):
            disk = SimulatedDisk()
            files = files_on(disk)
            letters = opened(files)
            promised: list[str] = []
            disk.fail(step, errno.EIO, nth=nth, done=done)
            with suppress(StorageError):
                write(letters, promised)
            disk.heal()
            check_promised = list(promised)
            write(letters, promised)
            disk.power_cut(Random(nth))
            check(files, [*check_promised, *promised])
            assert len(read_letters(files, superseded=True)) == len(KEYS)


@pytest.mark.meets("R31")
def test_a_takeover_at_any_step_leaves_one_history() -> None:
    for step in places():
        disk = SimulatedDisk()
        files = files_on(disk)
        promised: list[str] = []

        def take_over(disk: SimulatedDisk = disk, files: Files = files) -> None:
            disk.on_step = None
            write(opened(files), [])

        disk.on_step = counting(step, take_over, STEPS)
        with suppress(AlreadyStored, StorageError):
            write(opened(files), promised)
        disk.on_step = None
        disk.power_cut(Random(step))
        check(files, promised)
        assert len(read_letters(files, superseded=True)) == len(KEYS)
