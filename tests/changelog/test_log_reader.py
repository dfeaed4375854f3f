from __future__ import annotations

import pytest

from headrace.changelog.entries import Gap
from headrace.changelog.history import History
from headrace.changelog.position import MAX_ORDINAL, ORIGIN, Position
from headrace.changelog.reader import segment_path
from headrace.errors import CorruptIndex, UnknownTable
from headrace.storage.files import Files
from tests.changelog.log_making import (
    LINEAGE,
    ORDERS,
    ORIGIN_TEXT,
    ROOT,
    SOURCE,
    At,
    begun,
    changes,
    delete,
    flush,
    insert,
    logged,
    reading,
    row_table,
    truncate,
    update,
)

MANY = 1_000_000


def test_an_empty_log_answers_with_nothing(files: Files) -> None:
    reader = reading(files)
    assert (reader.last_entry, reader.end, reader.epoch, reader.lineage) == (0, ORIGIN, 0, None)
    assert reader.gap is None
    assert reader.next_batch("orders", ORIGIN, MANY) is None
    assert reader.usable_baseline("orders") is None
    assert reader.source_position_at(Position(9, 9)) is None
    assert reader.gap_after(ORIGIN) is None
    assert not reader.changed_between("orders", ORIGIN, Position(9, 9))
    assert reader.counts() == (0, 0, 0)
    assert reader.refresh() == 0


def test_a_reader_follows_a_log_that_begins_after_it(files: Files) -> None:
    reader = reading(files)
    log = begun(files, at=4)
    done = flush(log, 5)
    assert reader.refresh() == 3
    assert (reader.last_entry, reader.end) == (done.entry, Position(1, 5))
    assert (reader.epoch, reader.lineage, reader.origin) == (1, LINEAGE, ORIGIN_TEXT)
    assert reader.tables() == ("orders",)
    assert reader.schema("orders") == ORDERS


def test_a_batch_is_a_run_of_whole_flushes(files: Files) -> None:
    log = begun(files)
    flushes = [flush(log, 1, 2), flush(log, 3), flush(log, 4, 5)]
    batch = reading(files).next_batch("orders", ORIGIN, MANY)
    assert batch is not None
    assert (batch.first, batch.last) == (Position(1, 1), Position(1, 5))
    assert (batch.rows, batch.epoch, batch.tables) == (5, 1, ("orders",))
    assert batch.files == tuple(file for each in flushes for file in each.files)
    assert batch.entries == (flushes[0].entry, flushes[-1].entry)
    assert batch.time == 5_000


def test_a_batch_begins_after_the_position_and_none_follows_the_end(files: Files) -> None:
    log = begun(files)
    flush(log, 1, 2)
    flush(log, 3, 4)
    reader = reading(files)
    batch = reader.next_batch("orders", Position(1, 2), MANY)
    assert batch is not None
    assert batch.first == Position(1, 3)
    whole = reader.next_batch("orders", Position(1, 3), MANY)
    assert whole is not None
    assert whole.files == batch.files, "a flush is taken whole, also by who stands within it"
    assert reader.next_batch("orders", Position(1, 4), MANY) is None


@pytest.mark.meets("R10")
@pytest.mark.parametrize(("most", "taken"), [(1, 2), (2, 2), (3, 2), (4, 4), (5, 4), (6, 6)])
def test_a_batch_ends_before_the_limit_of_rows(files: Files, most: int, taken: int) -> None:
    log = begun(files)
    for commit in (1, 3, 5):
        flush(log, commit, commit + 1)
    batch = reading(files).next_batch("orders", ORIGIN, most)
    assert batch is not None
    assert batch.rows == taken
    assert batch.last == Position(1, taken)


def test_a_batch_ends_before_the_limit_of_files(files: Files) -> None:
    log = begun(files)
    for commit in range(1, 8):
        flush(log, commit)
    batch = reading(files).next_batch("orders", ORIGIN, MANY, most_files=3)
    assert batch is not None
    assert len(batch.files) == 3
    assert batch.last == Position(1, 3)


def test_a_batch_ends_where_it_is_told_to(files: Files) -> None:
    log = begun(files)
    for commit in (2, 4, 6):
        flush(log, commit)
    reader = reading(files)
    batch = reader.next_batch("orders", ORIGIN, MANY, upto=Position(1, 5))
    assert batch is not None
    assert batch.last == Position(1, 4)
    assert reader.next_batch("orders", Position(1, 4), MANY, upto=Position(1, 5)) is None


def test_flushes_of_other_tables_and_heartbeats_only_move_the_batch(files: Files) -> None:
    log = begun(files)
    flush(log, 1, name="items")
    own = flush(log, 2)
    flush(log, 3, name="items")
    log.heartbeat(At(9))
    reader = reading(files)
    batch = reader.next_batch("orders", ORIGIN, MANY)
    assert batch is not None
    assert batch.files == own.files
    assert (batch.first, batch.last) == (Position(1, 1), Position(1, 9))
    idle = reader.next_batch("orders", Position(1, 2), MANY)
    assert idle is not None
    assert (idle.files, idle.rows, idle.last, idle.time) == ((), 0, Position(1, 9), 0)
    none = reader.next_batch("unheard of", ORIGIN, MANY)
    assert none is not None
    assert (none.files, none.last) == ((), Position(1, 9))


def test_a_batch_that_is_cut_moves_up_to_its_next_file(files: Files) -> None:
    log = begun(files)
    flush(log, 1)
    flush(log, 2, name="items")
    flush(log, 3)
    batch = reading(files).next_batch("orders", ORIGIN, 1)
    assert batch is not None
    assert batch.last == Position(1, 2)


def test_batches_one_after_another_give_every_change_once(files: Files) -> None:
    log = begun(files)
    commit = 0
    for size in (1, 3, 2, 5, 1, 1, 4, 2):
        numbers = range(commit + 1, commit + size + 1)
        flush(log, *numbers, name="items" if size == 2 else "orders")
        commit += size
    reader = reading(files)
    found: list[int] = []
    at = ORIGIN
    while (batch := reader.next_batch("orders", at, 4)) is not None:
        for file in batch.files:
            found += reader.rows(file)["_commit"].to_pylist()
        assert batch.last > at
        at = batch.last
    assert found == logged(reader)
    assert at == reader.end


@pytest.mark.meets("R1")
def test_a_batch_ends_before_a_gap_and_does_not_pass_it(files: Files) -> None:
    log = begun(files)
    flush(log, 1)
    log.begin(At(50), "gap", ORIGIN_TEXT)
    flush(log, 51)
    reader = reading(files)
    batch = reader.next_batch("orders", ORIGIN, MANY)
    assert batch is not None
    assert batch.last == Position(1, 1)
    assert reader.next_batch("orders", batch.last, MANY) is None
    gap = reader.gap_after(batch.last)
    assert isinstance(gap, Gap)
    assert gap == reader.gap
    assert gap.at == str(Position(1, 50))
    after = reader.next_batch("orders", Position(1, 50), MANY)
    assert after is not None
    assert after.last == Position(1, 51)
    assert reader.gap_after(Position(1, 50)) is None


@pytest.mark.meets("R1")
def test_a_new_epoch_is_a_gap_too(files: Files) -> None:
    log = begun(files)
    flush(log, 90)
    log.begin(At(3, "sqlite/other"), "lineage", ORIGIN_TEXT)
    log.append(changes([insert(4)], upto=At(4, "sqlite/other")))
    log.flush()
    reader = reading(files)
    assert reader.next_batch("orders", Position(1, 90), MANY) is None
    batch = reader.next_batch("orders", Position(2, 3), MANY)
    assert batch is not None
    assert (batch.epoch, batch.last) == (2, Position(2, 4))
    assert reader.lineage == "sqlite/other"


@pytest.mark.meets("R1", "R43")
def test_a_baseline_is_usable_until_the_next_gap(files: Files) -> None:
    log = begun(files)
    for value in ("old", "new"):
        writer = log.baseline(ORDERS)
        writer.write(row_table(ORDERS, {"id": 1, "name": value}))
        newest = writer.finish(2, 2)
    reader = reading(files)
    assert reader.usable_baseline("orders") == newest
    assert reader.usable_baseline("items") is None
    log.begin(At(50), "gap", ORIGIN_TEXT)
    reader.refresh()
    assert reader.usable_baseline("orders") is None


def test_who_loaded_a_baseline_goes_on_after_its_first_commit(files: Files) -> None:
    log = begun(files)
    writer = log.baseline(ORDERS)
    log.append(changes([insert(2, 1, 0), insert(2, 2, 1)], upto=At(2)))
    log.flush()
    first, last = writer.finish(2, 2).window
    reader = reading(files)
    assert first == Position(1, 2, MAX_ORDINAL)
    assert reader.next_batch("orders", first, MANY) is None
    assert first >= last, "exact at once: nothing happened while it was read"
    flush(log, 3)
    reader.refresh()
    batch = reader.next_batch("orders", first, MANY)
    assert batch is not None
    assert batch.first == Position(1, 3)


def test_facts_of_a_batch_are_those_of_its_files(files: Files) -> None:
    log = begun(files)
    flush(log, 1)
    reader = reading(files)
    batch = reader.next_batch("orders", ORIGIN, MANY)
    assert batch is not None
    assert not (batch.has_updates or batch.has_deletes or batch.has_truncates)
    assert not batch.has_key_changes
    log.append(changes([update(2, 5, old=1), delete(3, 5), truncate(4)]))
    log.flush()
    reader.refresh()
    batch = reader.next_batch("orders", ORIGIN, MANY)
    assert batch is not None
    assert batch.has_updates
    assert batch.has_deletes
    assert batch.has_truncates
    assert batch.has_key_changes


def test_changes_between_two_positions_are_told_by_table(files: Files) -> None:
    log = begun(files)
    flush(log, 2, 3)
    flush(log, 5, name="items")
    reader = reading(files)
    assert reader.changed_between("orders", ORIGIN, Position(1, 9))
    assert reader.changed_between("orders", Position(1, 1), Position(1, 2))
    assert not reader.changed_between("orders", ORIGIN, Position(1, 1))
    assert not reader.changed_between("orders", Position(1, 3), Position(1, 9))
    assert reader.changed_between("items", Position(1, 3), Position(1, 9))
    assert not reader.changed_between("items", Position(1, 3), Position(1, 4))
    assert not reader.changed_between("unheard of", ORIGIN, Position(1, 9))


def test_lag_is_counted_from_the_first_commit_that_a_table_has_not_seen(files: Files) -> None:
    log = begun(files)
    flush(log, 2, 3)
    flush(log, 5, name="items")
    flush(log, 7, 8)
    reader = reading(files)
    batch = reader.next_batch("orders", ORIGIN, MANY)
    assert batch is not None
    assert (batch.begun, batch.time) == (2_000, 8_000)
    assert reader.oldest_after("orders", ORIGIN) == 2_000
    assert reader.oldest_after("orders", Position(1, 3)) == 7_000
    assert reader.oldest_after("orders", Position(1, 8)) is None
    assert reader.oldest_after("unheard of", ORIGIN) is None


def test_the_sources_own_words_are_those_of_the_newest_entry_at_or_before(files: Files) -> None:
    log = begun(files, at=1)
    flush(log, 2, 3)
    log.heartbeat(At(7))
    reader = reading(files)
    assert reader.source_position_at(ORIGIN) is None
    assert reader.source_position_at(Position(1, 1)) == str(At(1))
    assert reader.source_position_at(Position(1, 2)) == str(At(1))
    assert reader.source_position_at(Position(1, 3)) == str(At(3))
    assert reader.source_position_at(Position(1, 6)) == str(At(3))
    assert reader.source_position_at(Position(2, 0)) == str(At(7))


@pytest.mark.meets("R34")
def test_idle_heartbeats_do_not_pile_up_in_memory(files: Files) -> None:
    log = begun(files)
    for commit in range(1, 50):
        log.heartbeat(At(commit))
    reader = reading(files)
    assert len(reader._history.steps) == 2
    assert reader.end == Position(1, 49)


def test_counts_are_of_flushes(files: Files) -> None:
    log = begun(files)
    sizes = [flush(log, 1, 2).files[0].bytes, flush(log, 3).files[0].bytes]
    writer = log.baseline(ORDERS)
    writer.write(row_table(ORDERS, {"id": 1, "name": "a"}))
    writer.finish(3, 3)
    counts = reading(files).counts()
    assert (counts.rows, counts.bytes, counts.flushes) == (3, sum(sizes), 2)


def test_an_unknown_table_or_schema_is_said_to_be_unknown(files: Files) -> None:
    flush(begun(files), 1)
    reader = reading(files)
    with pytest.raises(UnknownTable):
        reader.schema("none")
    with pytest.raises(UnknownTable):
        reader.schema("orders", 2)


def test_paths_of_segments_are_for_spark(files: Files) -> None:
    file = flush(begun(files), 1).files[0]
    path = f"{ROOT}/log/{SOURCE}/segments/{file.name}"
    assert segment_path(files, SOURCE, file) == reading(files).path(file) == path
    reading(files).verify(file)


def test_positions_that_fall_are_corruption() -> None:
    entries = [
        Gap(
            entry=number,
            writer="w",
            term=1,
            epoch=1,
            lineage=LINEAGE,
            source="",
            at=str(Position(1, at)),
            reason="gap",
        )
        for number, at in ((1, 9), (2, 8))
    ]
    history = History()
    history.take(entries[0])
    with pytest.raises(CorruptIndex):
        history.take(entries[1])
