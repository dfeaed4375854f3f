"""Retention: what is pruned is said, files go a lease later, and nobody gets fewer rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from headrace.changelog import index as index_module
from headrace.changelog.index import history_of, state_of
from headrace.changelog.position import ORIGIN
from headrace.changelog.reader import LogReader, LogWriter
from headrace.changelog.retention import FileDeletion, prune
from headrace.errors import (
    ChangeLogError,
    CorruptIndex,
    CorruptSegment,
    HeadraceError,
    LostLog,
    PositionExpired,
)
from headrace.storage.files import Files
from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.changelog.log_making import (
    ORIGIN_TEXT,
    SOURCE,
    At,
    at,
    baseline,
    begun,
    changes,
    commits,
    files_on,
    flush,
    insert,
    logged,
    reading,
    row_table,
    segments,
    table,
)
from tests.support.clock import Clock
from tests.support.cuts import counting, cut
from tests.support.tiers import thinned

ITEMS = table("items")


@pytest.mark.meets("R27")
def test_what_is_pruned_is_not_read_and_what_is_kept_is(files: Files) -> None:
    log = begun(files)
    for number in range(1, 6):
        flush(log, number)
    pruned = prune(log, at(2))
    assert pruned is not None
    assert pruned.upto == str(at(2))
    for reader in (reading(files), followed(files, log)):
        assert reader.floor == at(2)
        assert logged(reader) == [3, 4, 5]
        batch = reader.next_batch("orders", at(2), 100)
        assert batch is not None
        assert (batch.rows, batch.last) == (3, at(5))
        for below in (ORIGIN, at(0), at(1)):
            with pytest.raises(PositionExpired, match="does not reach back"):
                reader.next_batch("orders", below, 100)


def followed(files: Files, log: LogWriter) -> LogReader:
    reader = LogReader(files, SOURCE)
    reader.refresh(log.last_entry)
    return reader


def test_a_flush_that_reaches_over_the_pin_stays_whole(files: Files) -> None:
    log = begun(files)
    flush(log, 1, 2)
    flush(log, 3, 4)
    flush(log, 5)
    prune(log, at(3))
    assert logged(reading(files)) == [3, 4, 5]
    assert reading(files).floor == at(2)


def test_the_newest_step_stays_and_nothing_to_do_writes_nothing(files: Files) -> None:
    log = begun(files)
    assert prune(log, at(0)) is None
    flush(log, 1)
    prune(log, at(1))
    last = log.last_entry
    assert prune(log, at(1)) is None
    assert log.last_entry == last
    assert logged(reading(files)) == [1]
    # A writer that takes the log says so at the place where it ends.
    again = LogWriter.open(
        files, source=SOURCE, origin=ORIGIN_TEXT, writer="x", term=2, clock=lambda: 12.5
    )
    prune(again, at(1))
    assert reading(files).source_position_at(at(1)) == str(At(1))
    log = again
    with pytest.raises(ChangeLogError):
        prune(log, at(9))


@pytest.mark.meets("R19", "R27")
def test_a_baseline_without_its_changes_is_of_no_use(files: Files) -> None:
    log = begun(files)
    baseline(log)
    baseline(log, schema=ITEMS)
    flush(log, 1)
    flush(log, 2)
    newer = baseline(log, schema=ITEMS)
    flush(log, 3)
    prune(log, at(2))
    reader = reading(files)
    assert reader.usable_baseline("orders") is None
    found = reader.usable_baseline("items")
    assert found is not None
    assert found.baseline == newer
    assert reading(files).usable_baseline("items") == found


@pytest.mark.meets("R27")
def test_a_baseline_goes_only_where_it_is_named_and_of_no_use(files: Files) -> None:
    log = begun(files)
    first = baseline(log)
    flush(log, 1)
    second = baseline(log)
    prune(log, at(0))
    names = [
        file.name
        for known in log.history.tables["orders"].baselines.values()
        for file in known.files
    ]
    assert len(names) == 2
    heard = log.last_entry
    third = baseline(log)
    flush(log, 2)
    flush(log, 3)
    pruned = prune(log, at(3), {first, second, third}, heard)
    assert pruned is not None
    assert pruned.baselines == (first, second)
    assert reading(files).usable_baseline("orders") == log.history.tables["orders"].baseline
    assert log.history.tables["orders"].baseline is not None
    assert list(log.history.tables["orders"].baselines) == [third]


@pytest.mark.meets("R27")
def test_files_go_a_lease_after_the_index_dropped_them(files: Files) -> None:
    clock = Clock()
    log = LogWriter.open(files, source=SOURCE, origin=ORIGIN_TEXT, writer="w", term=1, clock=clock)
    log.begin(At(0), "start", ORIGIN_TEXT)
    for number in range(1, 4):
        flush(log, number)
    prune(log, at(2))
    before = segments(files)
    deleting = FileDeletion(log)
    assert not deleting.delete(60)
    clock.now += 59
    deleting.delete(60)
    assert segments(files) == before
    # Whoever opens the log next keeps to the lease as well.
    again = LogWriter.open(
        files, source=SOURCE, origin=ORIGIN_TEXT, writer="x", term=2, clock=clock
    )
    assert segments(files) == before
    clock.now += 2
    FileDeletion(again).delete(60)
    assert len(segments(files)) == len(before) - 2
    assert logged(reading(files)) == [3]


@pytest.mark.meets("P7", "R27")
def test_a_file_that_went_is_told_apart_from_one_that_is_missing(files: Files) -> None:
    log = begun(files)
    for number in range(1, 6):
        flush(log, number)
    reader = reading(files)
    pieces = [each[0] for each in reader._history.tables["orders"].files]
    prune(log, at(2))
    FileDeletion(log).delete(-1)
    files.remove(f"log/{SOURCE}/segments/{pieces[3].name}")
    for call in (reader.rows, reader.verify):
        with pytest.raises(PositionExpired):
            call(pieces[0])
        with pytest.raises(CorruptSegment):
            call(pieces[3])
        call(pieces[4])


@pytest.mark.meets("R1", "R27")
def test_a_gap_that_was_pruned_is_still_known(files: Files) -> None:
    log = begun(files)
    flush(log, 1)
    gap = log.begin(At(5), "gap", ORIGIN_TEXT)
    flush(log, 6)
    flush(log, 7)
    prune(log, at(6))
    reader = reading(files)
    assert reader.gap == gap
    assert reader.gap_after(at(1)) == gap
    assert reader.gap_after(at(5)) is None
    assert reader.gap_after(at(6)) is None


# --- states of the index -------------------------------------------------------------------------


def varied(files: Files) -> LogWriter:
    """Return a log with something of everything."""
    log = begun(files)
    baseline(log)
    log.note("a note", "orders")
    flush(log, 1)
    log.heartbeat(At(2), markers=("m",))
    log.append(changes([insert(3)], ITEMS))
    log.flush()
    baseline(log, schema=ITEMS)
    log.require_baseline("orders", "columns")
    log.append(changes([insert(4)], table(id="int64", name="text", more="text")))
    log.flush()
    log.begin(At(7), "gap", ORIGIN_TEXT)
    flush(log, 8)
    writer = log.baseline(ITEMS)
    writer.write(row_table(ITEMS, {"id": 1, "name": "a"}))
    writer.finish(8, 9, "3:5:4")
    flush(log, 9)
    return log


def told(history: object) -> dict[str, object]:
    return {name: value for name, value in vars(history).items() if name != "gap_count"}


@pytest.mark.parametrize("pruned", [False, True])
def test_a_state_holds_all_that_a_history_does(files: Files, pruned: bool) -> None:
    log = varied(files)
    if pruned:
        prune(log, at(4))
    head = {"entry": log.last_entry, "writer": "", "term": 0, "epoch": 0}
    assert told(history_of(state_of(log.history, head))) == told(log.history)


@pytest.mark.usefixtures("few")
def test_opening_begins_with_the_newest_state(files: Files) -> None:
    read: list[str] = []
    disk = SimulatedDisk(lambda step, path: read.append(path) if step == "read" else None)
    files = files_on(disk)
    log = begun(files)
    for number in range(1, 50):
        flush(log, number)
        prune(log, at(max(0, number - 3)))
    read.clear()
    reader = reading(files)
    assert logged(reader) == [47, 48, 49]
    index = [path for path in read if "/index/" in path]
    assert len(index) <= 6
    assert ".state.json" in index[0]


@pytest.mark.usefixtures("few")
def test_old_entries_go_and_a_damaged_state_costs_only_reads(files: Files) -> None:
    log = begun(files)
    deleting = FileDeletion(log)
    for number in range(1, 50):
        flush(log, number)
        prune(log, at(max(0, number - 3)))
        while deleting.delete(-1):
            pass
    folder = f"log/{SOURCE}/index"
    names = files.list(folder)
    assert len(names) < 20
    states = [name for name in names if "state" in name]
    assert len(states) == 2
    data = bytearray(files.read(f"{folder}/{states[-1]}"))
    data[len(data) // 2] ^= 1
    files.put(f"{folder}/{states[-1]}", data)
    assert logged(reading(files)) == [47, 48, 49]
    files.put(f"{folder}/{states[0]}", b"nonsense")
    with pytest.raises(CorruptIndex):
        reading(files)


@pytest.mark.usefixtures("few")
def test_a_reader_that_looks_too_seldom_begins_anew_and_is_told_what_it_missed(
    files: Files,
) -> None:
    log = begun(files)
    reader, empty = reading(files), LogReader(files, SOURCE)
    index = index_module.LogIndex(files.within(f"log/{SOURCE}/index"))
    assert len(list(index.load())) == 1
    deleting = FileDeletion(log)
    for number in range(1, 50):
        flush(log, number)
        prune(log, at(max(0, number - 3)))
        deleting.delete(-1)
    with pytest.raises(PositionExpired, match="does not reach back"):
        list(index.refresh())
    for stale in (reader, empty):
        stale.refresh(log.last_entry - 1)
        stale.refresh()
        assert logged(stale) == [47, 48, 49]
        assert stale.last_entry == log.last_entry
        with pytest.raises(PositionExpired):
            stale.next_batch("orders", at(0), 10)


@pytest.mark.meets("R31")
@pytest.mark.usefixtures("few")
def test_a_writer_from_long_ago_does_not_take_a_number_that_was_freed(files: Files) -> None:
    old = begun(files)
    flush(old, 1)
    log = LogWriter.open(
        files, source=SOURCE, origin=ORIGIN_TEXT, writer="new", term=2, clock=lambda: 12.5
    )
    deleting = FileDeletion(log)
    for number in range(2, 50):
        flush(log, number)
        deleting.delete(-1)
    old.append(commits(2))
    with pytest.raises(LostLog):
        old.flush()
    assert logged(reading(files)) == [*range(1, 50)]


# --- power cuts ----------------------------------------------------------------------------------


def record(files: Files, term: int, promised: list[int], floors: list[int]) -> None:
    """Record, prune and delete; note what was promised."""
    log = LogWriter.open(
        files, source=SOURCE, origin=ORIGIN_TEXT, writer=f"w{term}", term=term, clock=lambda: 12.5
    )
    if log.epoch == 0:
        log.begin(At(0), "start", ORIGIN_TEXT)
    deleting = FileDeletion(log)
    while (number := log.end.commit) < 14:
        flush(log, number + 1)
        promised.append(number + 1)
        if number % 4 == 2:
            baseline(log)
        if number % 3 == 1:
            # Told before: it may be done although no answer came.
            floors.append(number - 2)
            prune(log, at(max(0, number - 2)), log.history.tables["orders"].baselines)
            deleting.delete(0 if number % 2 else 60)


def check(files: Files, promised: list[int], floors: list[int]) -> None:
    reader = reading(files)
    found = logged(reader)
    lowest = max([0, *floors])
    assert found == [*range(found[0] if found else 1, reader.end.commit + 1)]
    if promised:
        assert reader.end.commit >= max(promised)
        assert found[0] <= lowest + 1
        for known in reader._history.tables.values():
            for each in known.baselines.values():
                for file in each.files:
                    reader.verify(file)


def play(seed: int, *, takeover: bool) -> None:
    dice = Random(seed)
    disk = SimulatedDisk()
    files = files_on(disk)
    promised: list[int] = []
    floors: list[int] = []
    for term in range(1, 5):

        def other(term: int = term) -> None:
            disk.on_step = None
            with suppress(HeadraceError):
                record(files, term + 10, promised, floors)

        then: Callable[[], None] = other if takeover else cut
        disk.on_step = counting(dice.randrange(150), then)
        try:
            record(files, term if not takeover else 2 * term, promised, floors)
        except PowerCut:
            disk.on_step = None
            if dice.random() < 0.7:
                disk.power_cut(dice)
        except HeadraceError:
            assert takeover
        disk.on_step = None
        check(files, promised, floors)
    record(files, 90, promised, floors)
    disk.power_cut(dice)
    check(files, promised, floors)
    assert logged(reading(files))[-1] == 14


@pytest.mark.meets("P2", "R27")
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("batch", range(6))
def test_no_power_cut_or_kill_loses_what_was_not_pruned(batch: int) -> None:
    for seed in thinned(range(batch * 20, batch * 20 + 20), every=5):
        play(seed, takeover=False)


@pytest.mark.meets("P2", "R31")
@pytest.mark.usefixtures("few")
@pytest.mark.slow
def test_a_takeover_at_any_step_of_pruning_leaves_one_history() -> None:
    for seed in thinned(range(60), every=5):
        play(seed, takeover=True)
