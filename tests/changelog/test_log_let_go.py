"""What was let go of stays gone: old baselines, old writers, wrong clocks and damaged states."""

from __future__ import annotations

import pytest

from headrace.changelog import compaction
from headrace.changelog.compaction import CannotFold, Fold, plan_fold
from headrace.changelog.reader import LogReader, LogWriter, overtaken
from headrace.changelog.retention import FileDeletion, prune
from headrace.errors import LostLog, PositionExpired, UnknownFormat
from headrace.storage import files as storing
from headrace.storage.files import Files
from tests.changelog.log_making import (
    ORDERS,
    ORIGIN_TEXT,
    SOURCE,
    at,
    begun,
    changes,
    commits,
    fill,
    insert,
    logged,
    opened,
    reading,
    row_table,
)

HOUR = 3600 * 1_000_000
INDEX = f"log/{SOURCE}/index"


# --- baselines -----------------------------------------------------------------------------------


@pytest.mark.meets("R19", "R27")
def test_a_baseline_is_refused_if_changes_since_it_was_begun_were_pruned(files: Files) -> None:
    log = begun(files)
    fill(log, 1, 7)
    writer = log.baseline(ORDERS)
    writer.write(row_table(ORDERS, {"id": 1, "name": "a"}))
    prune(log, at(5))
    with pytest.raises(PositionExpired, match="were pruned"):
        writer.finish(1, 6)
    writer.discard()
    # Nothing is in doubt: the log goes on, and the next copy is as good as any.
    again = log.baseline(ORDERS)
    again.finish(5, 7)
    usable = reading(files).usable_baseline("orders")
    assert usable is not None
    assert usable.window[0].commit == 5


@pytest.mark.meets("R19")
def test_a_baseline_from_before_the_floor_is_not_usable(files: Files) -> None:
    log = begun(files)
    fill(log, 1, 7)
    writer = log.baseline(ORDERS)
    prune(log, at(5))
    entry = log.finish(ORDERS, writer.number, (1, 6), 0, [], log.history.gap_count)
    for reader in (reading(files), LogReader(files, SOURCE)):
        reader.refresh()
        assert reader.usable_baseline("orders") is None
        assert reader.superseded() == {entry.baseline}


@pytest.mark.meets("R19", "S15")
def test_a_single_flush_beyond_what_a_fold_may_hold_is_not_folded(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LEAST_BYTES", 1)
    monkeypatch.setattr(compaction, "SHARE", 1_000_000)
    monkeypatch.setattr(compaction, "FOLD_MOST_ROWS", 10)
    log = begun(files)
    log.baseline(ORDERS).finish(0, 0)
    log.append(changes([insert(5, key, key) for key in range(11)]))
    log.flush()
    plan = plan_fold(log, log.end)
    assert plan is not None
    with pytest.raises(CannotFold, match="more changes than a fold may hold"):
        Fold(log, plan).advance()
    monkeypatch.setattr(compaction, "FOLD_MOST_ROWS", 11)
    fold = Fold(log, plan)
    while (folded := fold.advance()) is None:
        pass
    assert folded.rows == 11


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.meets("R27", "R37")
def test_a_commit_from_the_future_keeps_nothing_longer_than_it_is_kept_itself(
    files: Files,
) -> None:
    now = [1_800_000_000.0]
    begun(files)
    log = LogWriter.open(
        files, source=SOURCE, origin=ORIGIN_TEXT, writer="w", term=2, clock=lambda: now[0]
    )
    for number in range(1, 11):
        ahead = 365 * 24 * HOUR if number == 2 else 0
        log.append(changes([insert(number, time=int(now[0] * 1_000_000) + ahead)]))
        log.flush()
        now[0] += 3600
    reader = reading(files)
    assert reader.older_than(int(now[0] * 1_000_000) - 5 * HOUR - 1) == at(5)
    assert reader.older_than(int(now[0] * 1_000_000)) == at(10)


# --- the index -----------------------------------------------------------------------------------


def with_states(files: Files) -> tuple[LogWriter, list[str]]:
    log = begun(files)
    deleting = FileDeletion(log)
    for number in range(1, 50):
        fill(log, number, number)
        prune(log, at(max(0, number - 3)))
        while deleting.delete(-1):
            pass
    return log, [name for name in files.list(INDEX) if "state" in name]


@pytest.mark.meets("P7")
@pytest.mark.usefixtures("few")
def test_a_state_whose_format_is_unknown_costs_nothing_while_an_older_one_is_good(
    files: Files,
) -> None:
    _, (older, newer) = with_states(files)

    def spoil(name: str) -> None:
        data = files.read(f"{INDEX}/{name}")
        assert b'"format":1' in data
        files.put(f"{INDEX}/{name}", data.replace(b'"format":1', b'"format":3'))

    spoil(newer)
    assert logged(reading(files)) == [47, 48, 49]
    fill(opened(files, term=2), 50, 60)
    assert logged(reading(files))[-1] == 60
    # With no other way to know what is in it, it is said why.
    for name in (older, *(name for name in files.list(INDEX) if "state" in name)):
        if b'"format":1' in files.read(f"{INDEX}/{name}"):
            spoil(name)
    with pytest.raises(UnknownFormat):
        reading(files)


def far_ahead(files: Files) -> tuple[LogWriter, LogReader, LogWriter]:
    """Return a writer from long ago, a reader who knows as much, and the writer of today."""
    old = begun(files)
    fill(old, 1, 1)
    reader = reading(files)
    log = opened(files, writer="new", term=2)
    fill(log, 2, 49)
    return old, reader, log


def forget(log: LogWriter) -> None:
    deleting = FileDeletion(log)
    while deleting.delete(-1):
        pass


@pytest.mark.meets("R31")
@pytest.mark.usefixtures("few")
def test_a_writer_from_long_ago_leaves_no_entry_behind(files: Files) -> None:
    old, reader, log = far_ahead(files)
    forget(log)
    before = files.list(INDEX)
    old.append(commits(2))
    with pytest.raises(LostLog):
        old.flush()
    assert files.list(INDEX) == before
    reader.refresh(log.last_entry)
    assert logged(reader) == [*range(1, 50)]


@pytest.mark.meets("R31")
@pytest.mark.usefixtures("few")
def test_whoever_was_away_for_long_learns_that_the_log_was_taken(files: Files) -> None:
    old, _, log = far_ahead(files)
    for _ in range(2):
        assert overtaken(files, SOURCE, old.last_entry, 1)
        assert not overtaken(files, SOURCE, old.last_entry, 2)
        assert not overtaken(files, SOURCE, log.last_entry, 2)
        forget(log)
    assert f"{old.last_entry + 1:012x}.json" not in files.list(INDEX)


@pytest.mark.meets("R31")
@pytest.mark.usefixtures("few")
def test_nor_where_its_number_is_freed_while_it_writes(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, reader, log = far_ahead(files)
    old.append(commits(2))
    create = storing.Files.create

    def freed_first(self: Files, name: str, *args: object, **more: object) -> None:
        if name.endswith(".json"):
            forget(log)
        create(self, name, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(storing.Files, "create", freed_first)
    with pytest.raises(LostLog, match="far ahead"):
        old.flush()
    assert f"{old.last_entry + 1:012x}.json" not in files.list(INDEX)
    reader.refresh(log.last_entry)
    assert logged(reader) == [*range(1, 50)]


@pytest.mark.meets("R31")
@pytest.mark.usefixtures("few")
def test_a_reader_who_took_such_an_entry_finds_back_to_the_log(files: Files) -> None:
    _, reader, log = far_ahead(files)
    number = reader.last_entry + 1
    name = f"{INDEX}/{number:012x}.json"
    stale = files.read(name)
    forget(log)
    # Its writer was killed before it could take it away again.
    files.put(name, stale)
    reader.refresh()
    assert reader.last_entry == number
    reader.refresh(log.last_entry)
    assert reader.last_entry == log.last_entry
    assert logged(reader) == [*range(1, 50)]
