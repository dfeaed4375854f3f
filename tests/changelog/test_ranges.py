"""Reading a part of the log: all of it, or an error that says what is not there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import Change
from headrace.changelog.entries import Gap
from headrace.changelog.position import MAX_COMMIT, MAX_ORDINAL, Position
from headrace.changelog.ranges import (
    ChangeSlice,
    Moment,
    Span,
    after,
    before,
    beginning,
    changes,
    missing,
    span,
)
from headrace.changelog.reader import LogReader
from headrace.errors import BadPosition, CorruptSegment, PositionExpired, UnknownTable
from headrace.storage.files import Files
from tests.changelog.log_making import (
    ORIGIN_TEXT,
    At,
    at,
    begun,
    files_on,
    insert,
    reading,
    table,
)
from tests.changelog.log_making import changes as made
from tests.support.tiers import examples

ITEMS = table("items")


def when(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def recorded(files: Files, *flushes: list[Change]) -> LogReader:
    log = begun(files)
    for flush in flushes:
        log.append(made(flush))
        log.flush()
    return reading(files)


def read(log: LogReader, start: Moment | None = None, end: Moment | None = None) -> list[Position]:
    part = span(log, ["orders"], start, end)
    found = []
    for piece in changes(log, "orders", part):
        assert isinstance(piece, ChangeSlice)
        found += [piece.position(row) for row in range(piece.rows.num_rows)]
    return found


@given(
    epoch=st.integers(1, 3),
    commit=st.integers(0, 2) | st.integers(MAX_COMMIT - 1, MAX_COMMIT),
    ordinal=st.integers(0, 2) | st.integers(MAX_ORDINAL - 1, MAX_ORDINAL),
)
def test_there_is_nothing_between_a_position_and_the_next(
    epoch: int, commit: int, ordinal: int
) -> None:
    here = Position(epoch, commit, ordinal)
    assert before(here) < here < after(here)
    assert before(after(here)) == here == after(before(here))


@examples(60)
@given(data=st.data())
def test_a_part_is_exactly_the_changes_between_its_ends(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=4))
    flushes, all_of_them, commit = [], [], 0
    for flush in sizes:
        rows = []
        for count in flush:
            commit += 1
            rows += [insert(commit, ordinal=ordinal) for ordinal in range(count)]
        flushes.append(rows)
        all_of_them += [at(row.commit, row.ordinal) for row in rows]
    log = recorded(files_on(), *flushes)
    places = st.none() | st.builds(at, st.integers(1, commit + 1), st.integers(0, 4))
    start, end = data.draw(places), data.draw(places)
    if not all_of_them:
        return
    wanted = [
        each
        for each in all_of_them
        if (start is None or each >= start) and (end is None or each <= end)
    ]
    assert read(log, start, end) == wanted


def test_a_time_stands_for_the_first_change_then_or_later_and_the_last_then_or_before() -> None:
    log = recorded(
        files_on(),
        [insert(1, time=100), insert(2, time=200)],
        [insert(3, time=300)],
        [insert(4, time=400), insert(5, time=500)],
    )
    assert read(log, when(200), when(400)) == [at(2), at(3), at(4)]
    assert read(log, when(201), when(399)) == [at(3)]
    assert read(log, when(0), when(99)) == []
    assert read(log, when(501)) == []
    assert read(log, None, when(10_000)) == [at(number) for number in range(1, 6)]
    assert read(log, at(2), when(300)) == [at(2), at(3)]


@pytest.mark.meets("R37")
def test_where_a_clock_ran_backwards_a_part_has_more_and_never_less() -> None:
    log = recorded(
        files_on(),
        [insert(1, time=100), insert(2, time=500), insert(3, time=200)],
        [insert(4, time=900), insert(5, time=250), insert(6, time=700)],
    )
    assert read(log, when(200), when(300)) == [at(2), at(3), at(4), at(5)]


def test_a_time_without_an_offset_is_refused() -> None:
    log = recorded(files_on(), [insert(1)])
    with pytest.raises(BadPosition, match="offset"):
        span(log, ["orders"], datetime(2026, 1, 1), None)


def test_a_time_is_one_place_for_all_tables_that_are_asked_for() -> None:
    files = files_on()
    log = begun(files)
    log.append(made([insert(1, time=100)]))
    log.append(made([insert(2, time=200)], ITEMS))
    log.flush()
    log.append(made([insert(3, time=300)], ITEMS))
    log.append(made([insert(4, time=400)]))
    log.flush()
    both = span(reading(files), ["orders", "items"], when(200), when(300))
    assert both == Span(at(2), at(3))
    assert span(reading(files), ["orders"], when(200), when(400)) == Span(at(4), at(4))


def test_reading_before_the_log_begins_is_an_error_and_behind_its_end_is_nothing() -> None:
    files = files_on()
    log = begun(files, at=7)
    log.append(made([insert(8)]))
    log.flush()
    found = reading(files)
    first = beginning(found)
    assert first is not None
    with pytest.raises(PositionExpired) as caught:
        span(found, ["orders"], before(first), None)
    assert caught.value.facts == {"asked": str(before(first)), "begins": str(first)}
    assert read(found, first) == [at(8)]
    assert read(found, at(9)) == []
    assert read(found, at(9), at(8)) == []


def test_a_table_that_the_log_does_not_know_is_an_error() -> None:
    with pytest.raises(UnknownTable):
        span(recorded(files_on(), [insert(1)]), ["nothing"], None, None)


def test_a_log_that_has_not_begun_has_no_part() -> None:
    files = files_on()
    assert beginning(reading(files)) is None
    assert span(reading(files), [], None, None).after >= span(reading(files), [], None, None).last


@pytest.mark.meets("R1")
def test_a_gap_is_handed_over_between_the_changes_around_it() -> None:
    files = files_on()
    log = begun(files)
    log.append(made([insert(1), insert(2)]))
    log.flush()
    log.begin(At(5, "sqlite/other"), "lineage", ORIGIN_TEXT)
    log.append(made([insert(6)], upto=At(6, "sqlite/other")))
    log.flush()
    found = reading(files)
    whole = list(changes(found, "orders", span(found, ["orders"], None, None)))
    kinds = [type(each) for each in whole]
    assert kinds == [ChangeSlice, Gap, ChangeSlice]
    gap = whole[1]
    assert isinstance(gap, Gap)
    assert gap.reason == "lineage"
    assert [each.epoch for each in whole if isinstance(each, ChangeSlice)] == [1, 2]
    upto = Span(at(1), at(2))
    assert [type(each) for each in changes(found, "orders", upto)] == [ChangeSlice]
    assert not missing(found, "orders", upto)


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_segment_is_named_with_its_place_after_all_before_it(harm: str) -> None:
    files = files_on()
    log = recorded(files, [insert(1), insert(2)], [insert(3), insert(4)], [insert(5)])
    segments = files.within("log/shop/segments")
    name = sorted(segments.list(""))[1]
    data = segments.read(name)
    if harm == "remove":
        segments.remove(name)
    else:
        segments.put(name, data[:-1] if harm == "cut" else bytes([data[0] ^ 1]) + data[1:])
    seen = []
    with pytest.raises(CorruptSegment) as caught:
        for piece in changes(log, "orders", Span(at(2), at(5))):
            assert isinstance(piece, ChangeSlice)
            seen += [piece.position(row) for row in range(piece.rows.num_rows)]
    assert seen == [at(2)]
    assert caught.value.facts["file"] == segments.path(name)
    assert caught.value.facts["position"] == str(at(3))
    # It is nothing to who does not come there, and no time leads around it.
    assert read(log, None, at(2)) == [at(1), at(2)]
    assert read(log, at(5)) == [at(5)]
    with pytest.raises(CorruptSegment):
        read(log, when(3_000), when(4_000))
    with pytest.raises(CorruptSegment):
        read(log, when(2_000), when(4_500))


@pytest.mark.meets("R27")
def test_a_time_before_what_was_pruned_is_an_error_and_never_fewer_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = recorded(files_on(), [insert(1, time=100)], [insert(2, time=200)], [insert(3, time=300)])
    monkeypatch.setattr(LogReader, "floor", at(1), raising=False)
    assert beginning(log) == after(at(1))
    assert read(log) == [at(2), at(3)]
    assert read(log, when(200)) == [at(2), at(3)]
    assert read(log, at(2), at(2)) == [at(2)]
    for start in (when(100), when(199), at(1)):
        with pytest.raises(PositionExpired):
            read(log, start)
