"""Compaction: the same changes at the same places, in fewer files, whatever is cut or killed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from headrace.changelog import compaction as module
from headrace.changelog.compaction import Compaction
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogReader, LogWriter
from headrace.changelog.retention import FileDeletion
from headrace.errors import CorruptSegment, HeadraceError
from headrace.storage.files import Files
from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.changelog.log_making import (
    ORIGIN_TEXT,
    SOURCE,
    At,
    begun,
    changes,
    commits,
    delete,
    files_on,
    fill,
    insert,
    opened,
    reading,
    table,
    truncate,
    update,
)
from tests.support.cuts import (
    STEPS,
    Step,
    assert_every_kind,
    counting,
    cut,
    places,
    steps_of,
)
from tests.support.tiers import thinned

ITEMS = table("items")
WIDE = table(id="int64", name="text", more="text")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_FLUSHES", 3)


def write(log: LogWriter, number: int) -> None:
    """Write the commit of a number: which changes it has depends on the number alone."""
    match number % 6:
        case 0:
            log.append(commits(number))
        case 1:
            log.append(changes([insert(number), update(number, 3, old=2, ordinal=1)]))
        case 2:
            log.append(changes([insert(number, ordinal=1)], ITEMS))
            log.append(changes([truncate(number + 0)], upto=At(number)))
        case 3:
            log.append(changes([delete(number, 1)], ITEMS))
        case 4:
            log.append(changes([insert(number)], WIDE))
        case 5:
            log.heartbeat(At(number))
            return
    log.flush()


def told(reader: LogReader) -> dict[str, list[object]]:
    """Return every change of each table, in order, with its schema."""
    found: dict[str, list[object]] = {}
    for name in reader.tables():
        rows = found[name] = []
        for files in reader._history.tables[name].files:
            for file in files:
                rows += [(file.schema, row) for row in reader.rows(file).to_pylist()]
    return found


def compacted(log: LogWriter, upto: int, *fences: Position) -> int:
    """Merge all there is to merge, and return how many times."""
    compaction, count = Compaction(log), 0
    while compaction.advance(Position(1, upto), [str(each) for each in sorted(fences)]):
        count += 1
    return count


@pytest.mark.meets("R27")
def test_merged_flushes_hold_the_same_changes_at_the_same_places(files: Files) -> None:
    log = begun(files)
    for number in range(1, 31):
        write(log, number)
    follower = reading(files)
    before, files_before = told(follower), follower.extent().segments
    end, counts = log.end, follower.counts()
    assert compacted(log, 25) >= 1
    follower.refresh(log.last_entry)
    for reader in (reading(files), follower, LogReader(files, SOURCE)):
        reader.refresh(log.last_entry)
        assert told(reader) == before
        assert (reader.end, reader.counts()) == (end, counts)
        assert reader.extent().segments < files_before
        assert reader.size == sum(
            file.bytes
            for known in reader._history.tables.values()
            for each in known.files
            for file in each
        )
        batch = reader.next_batch(["orders", "items"], ORIGIN, 1_000_000, most_files=1_000)
        assert batch is not None
        assert batch.rows == sum(len(rows) for rows in before.values())


def test_nothing_reaches_over_a_place_where_somebody_may_begin(files: Files) -> None:
    log = begun(files)
    fill(log, 1, 20)
    fences = [Position(1, 4), Position(1, 11, 2**31 - 1)]
    assert compacted(log, 17, *fences) == 3
    reader = reading(files)
    assert reader._history.lasts == [
        str(Position(1, commit)) for commit in (0, 4, 11, 17, 18, 19, 20)
    ]
    for fence, first in zip(fences, (5, 12), strict=True):
        batch = reader.next_batch("orders", fence, 1)
        assert batch is not None
        assert batch.first == Position(1, first)


def test_gaps_and_owed_baselines_stay_where_they_are(files: Files) -> None:
    log = begun(files)
    fill(log, 1, 4)
    log.require_baseline("orders", "columns")
    fill(log, 5, 8)
    gap = log.begin(At(9), "gap", ORIGIN_TEXT)
    fill(log, 10, 13)
    assert compacted(log, 13) == 3
    reader = reading(files)
    assert reader.gap == gap
    assert len(reader._history.steps) == 1 + 1 + 1 + 1 + 1 + 1
    batch = reader.next_batch("orders", Position(1, 0), 1_000)
    assert batch is not None
    assert batch.last < Position.parse(gap.at)


@pytest.mark.slow
def test_what_was_merged_waits_for_its_like(files: Files) -> None:
    log = begun(files)
    number = 0
    merges = 0
    for _ in range(40):
        for _ in range(4):
            number += 1
            log.append(commits(number))
            log.flush()
        merges += compacted(log, number)
    files_now = reading(files)._history.tables["orders"].files
    written = sum(file.rows for each in files_now for file in each)
    assert written == number
    assert len(reading(files)._history.steps) < 20
    assert merges < 80


@pytest.mark.meets("P7")
def test_a_damaged_segment_is_named_and_left_alone(files: Files) -> None:
    log = begun(files)
    fill(log, 1, 8)
    bad = log.history.tables["orders"].files[3][0]
    path = f"log/{SOURCE}/segments/{bad.name}"
    files.put(path, files.read(path)[:-1] + b"x")
    before = files.list(f"log/{SOURCE}/segments")
    compaction = Compaction(log)
    with pytest.raises(CorruptSegment):
        compaction.advance(Position(1, 8), [])
    assert files.list(f"log/{SOURCE}/segments") == before
    assert compaction.advance(Position(1, 8), []) is None
    log.append(commits(9))
    assert log.flush() is not None
    with pytest.raises(CorruptSegment):
        told(reading(files))


def record(files: Files, term: int, promised: list[int]) -> None:
    log = opened(files, writer=f"w{term}", term=term)
    if log.epoch == 0:
        log.begin(At(0), "start", ORIGIN_TEXT)
    deleting = FileDeletion(log)
    while (number := log.end.commit) < 24:
        write(log, number + 1)
        promised.append(number + 1)
        if number % 7 == 6:
            compacted(log, number - 1)
            deleting.delete(0)


def expected() -> dict[str, list[object]]:
    files = files_on()
    log = begun(files)
    for number in range(1, 25):
        write(log, number)
    return told(reading(files))


@pytest.mark.meets("P2", "R27")
@pytest.mark.parametrize("batch", range(6))
@pytest.mark.slow
def test_no_power_cut_or_kill_in_a_compaction_changes_what_is_read(batch: int) -> None:
    truth = expected()
    for seed in thinned(range(batch * 8, batch * 8 + 8), every=4):
        dice = Random(seed)
        disk = SimulatedDisk()
        files = files_on(disk)
        promised: list[int] = []
        for term in range(1, 5):
            disk.on_step = counting(dice.randrange(260), cut)
            try:
                record(files, term, promised)
            except PowerCut:
                disk.on_step = None
                if dice.random() < 0.7:
                    disk.power_cut(dice)
            disk.on_step = None
            found = told(reading(files))
            for name, rows in found.items():
                assert rows == truth[name][: len(rows)]
            assert reading(files).end.commit >= max([0, *promised])
        record(files, 9, promised)
        disk.power_cut(dice)
        assert told(reading(files)) == truth


def cuts() -> tuple[list[Step], Sequence[int]]:
    """Return all steps, and at which of them somebody takes over."""
    steps = steps_of(lambda disk: record(files_on(disk), 1, []), STEPS)
    return steps, places(steps)


def test_a_compaction_is_taken_over_at_every_kind_of_step_and_where_it_counts() -> None:
    steps, walked = cuts()
    assert_every_kind(steps, walked)
    links = [n for n, (step, _) in enumerate(steps) if step == "link"]
    merged = next(n for n in links if steps[n][1].endswith("-c.parquet"))
    entry = next(n for n in links if n > merged and steps[n][1].endswith(".json"))
    assert {merged, entry} <= {*walked}


@pytest.mark.meets("P2", "R31")
@pytest.mark.slow
def test_a_takeover_at_any_step_of_a_compaction_leaves_one_history() -> None:
    truth = expected()
    for step in cuts()[1]:
        disk = SimulatedDisk()
        files = files_on(disk)
        promised: list[int] = []

        def other(disk: SimulatedDisk = disk, files: Files = files) -> None:
            disk.on_step = None
            record(files, 2, [])

        disk.on_step = counting(step, other)
        with suppress(HeadraceError):
            record(files, 1, promised)
        disk.on_step = None
        record(files, 3, promised)
        assert told(reading(files)) == truth
