"""
The log in a bucket whose answers get lost, by seeds (P2).

One seed plays a source whose changes are numbered and writers that are killed, or give up,
somewhere; afterwards the log holds every change it promised, once, in order.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from random import Random

import pytest

from headrace.changelog import compaction, index, retention
from headrace.changelog.compaction import Compaction
from headrace.changelog.retention import FileDeletion
from headrace.errors import HeadraceError, LostLog
from headrace.storage.disk import Buffer
from headrace.storage.objects import Objects, Unanswered
from headrace.storage.simulation import SimulatedBucket
from tests.changelog.log_making import (
    begun,
    commits,
    fill,
    logged,
    opened,
    reading,
)
from tests.changelog.test_log_power_cut import check, record
from tests.support.patience import patience
from tests.support.tiers import sweep


class Killed(BaseException):
    """The process is gone; what it asked for may still be done."""


class Deadly(SimulatedBucket):
    """A bucket that outlives whoever asks for its so many-th store."""

    left = -1

    def store(self, key: str, data: Buffer, *, new: bool) -> None:
        self.left -= 1
        if self.left != 0:
            super().store(key, data, new=new)
            return
        if self._dice.random() < 0.5:
            with suppress(Unanswered, FileExistsError):
                super().store(key, data, new=new)
        raise Killed


@pytest.mark.meets("P2", "R31")
@pytest.mark.parametrize("seed", sweep(range(100), every=5))
def test_the_log_is_whole_whatever_answers_get_lost(seed: int) -> None:
    dice = Random(seed)
    bucket = Deadly(dice, late=True)
    files = Objects(bucket, "bucket", "shop")
    promised: list[int] = []
    for term in range(1, 5):
        bucket.left = dice.randrange(1, 40)
        bucket.trouble = dice.choice((0.1, 0.4, 0.7))
        with suppress(Killed, HeadraceError):
            record(files, term, promised)
        bucket.trouble, bucket.left = 0.2, -1
        check(files, promised, whole=False)
    for term in (9, 10, 11):
        # What somebody gave up on may come as late as this, and cost a try.
        with suppress(LostLog):
            record(files, term, promised)
            break
    check(files, promised, whole=True)


@pytest.mark.meets("R31")
@pytest.mark.parametrize("seed", sweep(range(40), every=5))
def test_of_two_writers_one_loses_and_nothing_is_there_twice(seed: int) -> None:
    dice = Random(seed)
    files = Objects(SimulatedBucket(dice, 0.3, late=True), "bucket", "shop")
    begun(files)
    writers = [opened(files, writer=name, term=2) for name in ("one", "two")]
    at = 0
    while len(writers) == 2:
        log = dice.choice(writers)
        try:
            log.append(commits(log.end.commit + 1))
            log.flush()
            at += 1
        except LostLog:
            writers.remove(log)
        assert logged(reading(files)) == list(range(1, at + 1))
    (left,) = writers
    left.append(commits(left.end.commit + 1))
    left.flush()
    assert logged(reading(files)) == list(range(1, at + 2))


def test_an_index_is_opened_by_reading_many_entries_at_once() -> None:
    files = Objects(SimulatedBucket(), "bucket", "shop")
    log = begun(files)
    fill(log, 1, 59)
    assert logged(reading(files)) == list(range(1, 60))


class Meeting(SimulatedBucket):
    """A bucket that reads and removes no object alone, once it is told to."""

    meeting: threading.Barrier | None = None

    def remove(self, key: str) -> None:
        self._meet()
        super().remove(key)

    def read(self, key: str) -> bytes:
        self._meet()
        return super().read(key)

    def _meet(self) -> None:
        if self.meeting is not None:
            # Broken, and the test with it, where one waits for the one before.
            self.meeting.wait(patience())


def test_merging_reads_and_deleting_removes_several_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "LEAST_FLUSHES", 3)
    bucket = Meeting()
    files = Objects(bucket, "bucket", "shop")
    log = begun(files)
    fill(log, 1, 8)
    bucket.meeting = threading.Barrier(2)
    assert Compaction(log).advance(log.end, ()) is not None
    FileDeletion(log).delete(-1)
    bucket.meeting = None
    assert logged(reading(files)) == list(range(1, 9))
    assert len(log.segments.list("")) == 1


def test_in_a_bucket_less_is_deleted_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_OBJECTS", 5)
    bucket = SimulatedBucket()
    log = begun(Objects(bucket, "bucket", "shop"))
    fill(log, 1, 19)
    retention.prune(log, log.end)
    deleting = FileDeletion(log)
    removed, more = [], True
    while more:
        before = len(bucket.steps)
        more = deleting.delete(-1)
        removed.append(sum(step == "remove" for step, _ in bucket.steps[before:]))
    assert removed == [5, 5, 5, 3]


@pytest.mark.meets("R31")
def test_entries_go_one_behind_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(index, "STATE_SHARE", 100)
    bucket = SimulatedBucket()
    log = begun(Objects(bucket, "bucket", "shop"))
    deleting = FileDeletion(log)
    fill(log, 1, 79)
    largest, more = 0, True
    while more:
        before = len(bucket.steps)
        more = deleting.delete(-1)
        gone = [key for step, key in bucket.steps[before:] if step == "remove"]
        entries = [key for key in gone if re.fullmatch(r".*/[0-9a-f]{12}\.json", key)]
        assert entries == sorted(entries)
        largest = max(largest, len(entries))
    assert largest == retention.MOST_ENTRIES
