"""One table that needs a new baseline, and what a source wants to be told again."""

from __future__ import annotations

import pytest

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogWriter
from headrace.errors import ChangeLogError
from headrace.storage.files import Files
from tests.changelog.log_making import (
    ORDERS,
    ORIGIN_TEXT,
    At,
    baseline,
    begun,
    changes,
    flush,
    insert,
    opened,
    reading,
    table,
)

MANY = 1_000


@pytest.mark.meets("R23b", "R23c")
def test_a_table_that_is_owed_a_baseline_has_none_and_others_keep_theirs(files: Files) -> None:
    log = begun(files)
    baseline(log)
    other = baseline(log, table("items"))
    owed = log.require_baseline("orders", "partitions")
    reader = reading(files)
    assert reader.usable_baseline("orders") is None
    assert reader.rebaseline_required("orders") == owed
    assert reader.rebaseline_required("items") is None
    found = reader.usable_baseline("items")
    assert found is not None
    assert found.baseline == other
    number = baseline(log)
    reader.refresh()
    assert number > owed.baseline
    assert reader.usable_baseline("orders") is not None


def test_the_position_moves_so_that_who_was_there_is_told_apart(files: Files) -> None:
    log = begun(files)
    flush(log, 5)
    before = log.end
    source = log.source_position
    owed = log.require_baseline("orders", "left out", missing=True)
    assert before < Position.parse(owed.at) == log.end
    assert log.source_position == source
    flush(log, 6)
    reader = reading(files)
    batch = reader.next_batch("orders", before, MANY)
    assert batch is not None
    assert (batch.last.commit, len(batch.files)) == (6, 1)
    assert reader.next_batch("orders", ORIGIN, MANY) is not None


def test_numbers_of_baselines_that_were_given_up_are_not_given_again(files: Files) -> None:
    log = begun(files)
    abandoned = log.baseline(ORDERS)
    owed = log.require_baseline("orders", "columns")
    assert owed.baseline == abandoned.number
    assert baseline(opened(files, term=2)) > owed.baseline


def test_no_table_is_owed_a_baseline_in_the_middle_of_a_flush(files: Files) -> None:
    log = begun(files)
    log.append(changes([insert(3)]))
    with pytest.raises(ChangeLogError):
        log.require_baseline("orders", "columns")


def test_a_note_is_kept_over_lives_and_written_once(files: Files) -> None:
    log = opened(files)
    log.note("slot a")
    assert log.epoch == 0
    log.begin(At(2), "start", ORIGIN_TEXT)
    log.note("leaf 1", "orders")
    last = log.last_entry
    log.note("leaf 1", "orders")
    assert log.last_entry == last
    log.note("leaf 2", "orders")
    again = opened(files, term=2)
    assert again.notes == {"": "slot a", "orders": "leaf 2"}
    flush(again, 3)
    assert reading(files).next_batch("orders", ORIGIN, MANY) is not None


def test_a_log_made_anew_gives_no_number_that_somebody_may_remember(files: Files) -> None:
    log = LogWriter.open(
        files,
        source="shop",
        origin=ORIGIN_TEXT,
        writer="w",
        term=1,
        clock=lambda: 0.0,
        baselines=7,
    )
    log.begin(At(2), "start", ORIGIN_TEXT)
    assert baseline(log) == 8
