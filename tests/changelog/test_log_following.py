from __future__ import annotations

import threading

import pytest

from headrace.changelog import index
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogReader
from headrace.errors import CorruptIndex
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from tests.changelog.log_making import (
    SOURCE,
    begun,
    files_on,
    flush,
    opened,
    reading,
)
from tests.support.patience import patience


def test_a_refresh_reads_no_further_than_it_is_told(files: Files) -> None:
    log = begun(files)
    flush(log, 1)
    reader = reading(files)
    second, third = flush(log, 2), flush(log, 3)
    assert reader.refresh(second.entry) == 1
    assert reader.end == Position(1, 2)
    assert reader.refresh(second.entry) == 0
    assert reader.refresh() == 1
    assert reader.last_entry == third.entry


@pytest.mark.meets("P7")
def test_entries_before_a_damaged_one_are_read_all_the_same(files: Files) -> None:
    log = begun(files)
    flush(log, 1)
    reader = reading(files)
    good, bad = flush(log, 2), flush(log, 3)
    name = f"log/{SOURCE}/index/{bad.entry:012x}.json"
    whole = files.read(name)
    files.put(name, b"nonsense")
    for _ in range(2):
        with pytest.raises(CorruptIndex) as caught:
            reader.refresh()
        assert caught.value.facts["file"] == files.path(name)
        assert (reader.last_entry, reader.end) == (good.entry, Position(1, 2))
    files.put(name, whole)
    assert reader.refresh() == 1
    assert reader.end == Position(1, 3)


def test_a_waiter_is_woken_by_a_new_entry(files: Files) -> None:
    log = begun(files)
    reader = reading(files)
    waiting, answers = waiter(reader, reader.last_entry)
    flush(log, 1)
    assert not answers
    reader.refresh()
    waiting.join(patience())
    assert answers == [True]
    assert reader.wait(0, 0)
    assert not reader.wait(reader.last_entry, 0)


def test_an_interrupt_ends_all_waits_and_not_the_next(files: Files) -> None:
    reader = reading(files)
    both = [waiter(reader, 0) for _ in range(2)]
    reader.interrupt()
    for thread, answers in both:
        thread.join(patience())
        assert answers == [False]
    thread, answers = waiter(reader, 0)
    assert not answers
    reader.interrupt()
    thread.join(patience())


def waiter(reader: LogReader, beyond: int) -> tuple[threading.Thread, list[bool]]:
    """Return a thread that waits already, and where it leaves its answer."""
    answers: list[bool] = []
    ready = threading.Event()

    class Beyond(int):
        def __lt__(self, other: int) -> bool:
            # Asked with the lock held: whoever comes next finds the waiter waiting.
            ready.set()
            return int(self) < other

    thread = threading.Thread(
        target=lambda: answers.append(reader.wait(Beyond(beyond), patience()))
    )
    thread.start()
    assert ready.wait(patience())
    return thread, answers


@pytest.mark.slow
def test_many_threads_read_while_one_writes() -> None:
    files = files_on(SimulatedDisk())
    log = begun(files)
    reader = reading(files)
    failures: list[str] = []
    done = threading.Event()

    def follow() -> None:
        at, rows = ORIGIN, 0
        while rows < 200:
            finished = done.is_set()
            reader.refresh()
            batch = reader.next_batch("orders", at, 7)
            if batch is None:
                if finished:
                    failures.append(f"ended at {at} with {rows}")
                    return
                continue
            if batch.first <= at or batch.rows != sum(file.rows for file in batch.files):
                failures.append(str(batch))
                return
            at, rows = batch.last, rows + batch.rows

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for commit in range(1, 201):
        flush(log, commit)
    done.set()
    for thread in threads:
        thread.join(patience())
    assert failures == []


def test_a_long_log_is_loaded_whole_from_a_checkpoint_and_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index, "CHECKPOINT_EVERY", 100)
    read: list[str] = []
    disk = SimulatedDisk()
    files = files_on(disk)
    log = begun(files)
    for commit in range(1, 251):
        flush(log, commit)
    disk.on_step = lambda step, path: read.append(path) if step == "read" else None
    reader = reading(files)
    assert reader.counts().flushes == 250
    # Never more files than a checkpoint or a state has entries, of the many there are.
    assert reader.last_entry > 250
    assert 0 < len(read) < 100
    for commit in range(0, 250, 2):
        batch = reader.next_batch("orders", Position(1, commit), 1)
        assert batch is not None
        assert batch.first == Position(1, commit + 1)
    read.clear()
    assert opened(files, term=2).end == Position(1, 250)
    assert 0 < len(read) < 100
