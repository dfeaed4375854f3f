from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from headrace.changelog import writer as writer_module
from headrace.changelog.change import Changes, TableChanges, as_segment
from headrace.changelog.entries import Flush
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogWriter
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import (
    BadPosition,
    BadSchema,
    ChangeLogError,
    LostLog,
    OtherSource,
    StorageError,
    StorageFull,
)
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from tests.changelog.log_making import (
    LINEAGE,
    ORDERS,
    ORIGIN_TEXT,
    ROOT,
    SOURCE,
    At,
    begun,
    changes,
    commits,
    files_on,
    insert,
    logged,
    opened,
    reading,
    segments,
    table,
    update,
)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def files(disk: SimulatedDisk) -> Files:
    return files_on(disk)


def flushed(log: LogWriter, found: Changes) -> Flush:
    log.append(found)
    flush = log.flush()
    assert flush is not None
    return flush


def test_a_new_log_stands_before_everything(files: Files) -> None:
    log = opened(files)
    assert (log.epoch, log.lineage, log.origin, log.end) == (0, None, "", ORIGIN)
    assert log.source_position is None
    assert log.last_entry == 0


@pytest.mark.meets("R1")
def test_the_first_beginning_opens_the_first_epoch(files: Files) -> None:
    log = opened(files)
    gap = log.begin(At(40), "gap", ORIGIN_TEXT)
    assert (gap.reason, gap.epoch, gap.lineage, gap.origin) == ("start", 1, LINEAGE, ORIGIN_TEXT)
    assert log.end == Position(1, 40)
    assert log.source_position == str(At(40))
    assert log.origin == ORIGIN_TEXT


@pytest.mark.meets("R1")
@pytest.mark.parametrize(
    ("at", "asked", "epoch", "reason"),
    [
        (At(90), "gap", 1, "gap"),
        (At(90), "start", 1, "gap"),
        (At(90), "lineage", 2, "lineage"),
        (At(90, "sqlite/other"), "gap", 2, "lineage"),
        (At(3, "sqlite/other"), "lineage", 2, "lineage"),
        (At(3), "gap", 2, "lineage"),
    ],
)
def test_an_epoch_is_opened_for_another_lineage_or_a_rewritten_history(
    files: Files, at: At, asked: str, epoch: int, reason: str
) -> None:
    log = begun(files)
    flushed(log, commits(50))
    gap = log.begin(at, asked, ORIGIN_TEXT)
    assert (gap.epoch, gap.reason) == (epoch, reason)
    assert log.end == Position(epoch, at.commit)
    flush = flushed(log, changes([insert(at.commit + 1)], upto=At(at.commit + 1, at.lineage)))
    assert flush.first == str(Position(epoch, at.commit + 1))


@pytest.mark.meets("R10")
def test_a_flush_is_visible_whole_and_durable(files: Files) -> None:
    log = begun(files)
    log.append(commits(1, 2))
    log.append(commits(3))
    assert (log.pending_rows, log.pending_complete) == (3, True)
    assert log.pending_bytes > 0
    assert logged(reading(files)) == []
    flush = log.flush()
    assert flush is not None
    assert (log.pending_rows, log.pending_bytes) == (0, 0)
    assert flush.span == (Position(1, 1), Position(1, 3))
    assert flush.source == log.source_position == str(At(3))
    assert log.end == Position(1, 3)
    assert logged(reading(files)) == [1, 2, 3]
    assert log.flush() is None


def test_a_flush_goes_as_far_as_the_source_was_read(files: Files) -> None:
    log = begun(files)
    flush = flushed(log, changes([insert(5)], upto=At(9)))
    assert flush.span == (Position(1, 5), Position(1, 9))
    with pytest.raises(BadPosition):
        log.append(commits(9))


def test_a_flush_has_one_file_for_each_table_in_position_order(files: Files) -> None:
    log = begun(files)
    items = table("items")
    log.append(changes([insert(3, ordinal=1), insert(3, ordinal=0)], upto=At(3)))
    log.append(
        Changes(
            [
                TableChanges(items, as_segment(items, [insert(4, ordinal=2)])),
                TableChanges(ORDERS, as_segment(ORDERS, [insert(4, ordinal=1)])),
                TableChanges(table("none"), as_segment(table("none"), [])),
            ],
            At(4),
        )
    )
    log.append(changes([insert(2)], upto=At(4)))
    flush = log.flush()
    assert flush is not None
    assert [file.table for file in flush.files] == ["orders", "items"]
    assert flush.span == (Position(1, 2), Position(1, 4, 2))
    read = reading(files).rows(flush.files[0])
    assert read["_commit"].to_pylist() == [2, 3, 3, 4]
    assert read["_ordinal"].to_pylist() == [0, 0, 1, 1]


def test_two_schemas_of_a_table_are_two_files_and_the_last_one_stands(files: Files) -> None:
    log = begun(files)
    wider = table(id="int64", name="text", more="variant")
    log.append(changes([insert(1)]))
    log.append(changes([insert(2)], wider))
    log.append(changes([insert(3)]))
    flush = log.flush()
    assert flush is not None
    assert [file.schema for file in flush.files] == [1, 2, 3]
    assert len({file.name for file in flush.files}) == 3
    reader = reading(files)
    assert reader.schema("orders") == ORDERS
    assert reader.schema("orders", 2) == wider
    assert [reader.rows(file)["_commit"].to_pylist() for file in flush.files] == [[1], [2], [3]]


def test_a_schema_is_recorded_once_also_across_writers(files: Files) -> None:
    log = begun(files)
    assert flushed(log, commits(1)).entry == 3
    assert flushed(log, commits(2)).entry == 4
    again = opened(files, term=2)
    assert flushed(again, commits(3)).files[0].schema == 1


def test_names_of_segments_are_hex_digits_and_ids(files: Files) -> None:
    log = begun(files)
    flush = flushed(log, commits(1))
    assert flush.files[0].name == f"{flush.entry:012x}-1-1.parquet"
    assert segments(files) == [flush.files[0].name]


@pytest.mark.meets("R9")
def test_a_commit_in_parts_is_visible_with_its_last(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "LIMIT_BYTES", 1)
    log = begun(files)
    for ordinal in range(3):
        log.append(changes([insert(7, ordinal, ordinal)], upto=At(7), ends=False))
        assert not log.pending_complete
        assert log.pending_bytes == 0, "parts go to disk as they come"
        with pytest.raises(ChangeLogError):
            log.flush()
        assert log.heartbeat(At(9)) is None
    log.append(changes([insert(7, 3, 3)], upto=At(7)))
    flush = log.flush()
    assert flush is not None
    assert len({file.name for file in flush.files}) == 4
    assert flush.span == (Position(1, 7, 0), Position(1, 7, 3))
    assert logged(reading(files)) == [7, 7, 7, 7]


def test_a_beginning_flushes_whole_commits_and_forgets_a_torn_one(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(files)
    log.append(commits(1))
    log.begin(At(5, "sqlite/other"), "lineage", ORIGIN_TEXT)
    assert logged(reading(files)) == [1]
    monkeypatch.setattr(writer_module, "LIMIT_BYTES", 1)
    torn = changes([insert(6)], upto=At(6, "sqlite/other"), ends=False)
    log.append(torn)
    log.begin(At(9, "sqlite/other"), "gap", ORIGIN_TEXT)
    assert (log.pending_rows, log.pending_complete) == (0, True)
    assert logged(reading(files)) == [1]
    assert len(segments(files)) == 1


def test_a_thousand_updates_of_one_row_are_a_thousand_changes(files: Files) -> None:
    log = begun(files)
    flush = flushed(log, changes([update(commit, 1) for commit in range(1, 1_001)]))
    assert flush.files[0].updates == flush.files[0].rows == 1_000
    names = reading(files).rows(flush.files[0])["after"].combine_chunks().field("name").to_pylist()
    assert names == [f"n{commit}" for commit in range(1, 1_001)]


@pytest.mark.meets("R37")
def test_the_running_maximum_of_commit_times_never_falls(files: Files) -> None:
    log = begun(files)
    first = flushed(log, changes([insert(1, time=900), insert(2, time=100)]))
    second = flushed(log, changes([insert(3, time=500)]))
    assert (first.time, first.high_time) == (900, 900)
    assert (second.time, second.high_time) == (500, 900)
    again = opened(files, term=2)
    assert flushed(again, changes([insert(4, time=600)])).high_time == 900
    assert reading(files).extent().newest == 900


def test_changes_without_a_time_take_the_clock(files: Files) -> None:
    log = begun(files)
    rows = as_segment(ORDERS, [insert(1)])
    at = rows.schema.get_field_index("_time")
    rows = rows.set_column(at, "_time", pa.nulls(1, rows.schema.field(at).type))
    assert flushed(log, Changes([TableChanges(ORDERS, rows)], At(1))).time == 12_500_000


@pytest.mark.meets("R34")
def test_a_heartbeat_moves_the_end_and_is_written_once(files: Files) -> None:
    log = begun(files)
    flushed(log, changes([insert(4, ordinal=2)]))
    assert log.heartbeat(At(4)) is None
    beat = log.heartbeat(At(9))
    assert beat is not None
    assert beat.last == str(Position(1, 9)) == str(log.end)
    assert log.source_position == str(At(9))
    assert log.heartbeat(At(9)) is None
    assert log.heartbeat(At(8)) is None
    log.append(commits(10))
    assert log.heartbeat(At(11)) is None, "a change before it is not in the log"


def test_positions_of_another_lineage_are_refused(files: Files) -> None:
    log = begun(files)
    with pytest.raises(BadPosition):
        log.append(changes([insert(1)], upto=At(1, "sqlite/other")))
    with pytest.raises(BadPosition):
        log.heartbeat(At(1, "sqlite/other"))
    with pytest.raises(BadPosition):
        opened(files_on()).append(commits(1))


@pytest.mark.parametrize("commit", [3, 5])
def test_a_commit_the_log_has_is_refused_and_spoils_nothing(files: Files, commit: int) -> None:
    log = begun(files)
    flushed(log, commits(5))
    with pytest.raises(BadPosition) as caught:
        log.append(commits(commit, 6))
    assert caught.value.facts["commit"] == commit
    flushed(log, commits(6))
    assert logged(reading(files)) == [5, 6]


def test_columns_that_share_a_field_id_are_refused(files: Files) -> None:
    columns = (Column("a", ValueType("int64"), 1), Column("b", ValueType("int64"), 1))
    with pytest.raises(BadSchema):
        begun(files).baseline(TableSchema("t", columns))


# --- one writer -------------------------------------------------------------------------------


def test_a_log_opened_again_goes_on_where_it_was(files: Files) -> None:
    flushed(begun(files), commits(1, 2))
    log = opened(files, term=2)
    assert (log.epoch, log.lineage, log.origin) == (1, LINEAGE, ORIGIN_TEXT)
    assert (log.end, log.source_position) == (Position(1, 2), str(At(2)))
    flushed(log, commits(3))
    assert logged(reading(files)) == [1, 2, 3]


@pytest.mark.meets("R31")
def test_a_writer_that_lost_its_number_stops_for_good(files: Files) -> None:
    old = begun(files)
    old.append(commits(1))
    new = opened(files, writer="two", term=2)
    with pytest.raises(LostLog) as caught:
        old.flush()
    for attempt in (old.flush, lambda: old.append(commits(2)), lambda: old.heartbeat(At(7))):
        with pytest.raises(LostLog) as again:
            attempt()
        assert again.value is caught.value
    flushed(new, commits(1, 2))
    assert logged(reading(files)) == [1, 2]


@pytest.mark.meets("R31")
def test_an_old_writer_never_names_a_file_that_a_new_one_swept(
    disk: SimulatedDisk, files: Files
) -> None:
    old = begun(files)
    flushed(old, commits(1))
    old.append(commits(2))

    def taken_over(step: str, path: str) -> None:
        # Between the old writer's segment and its entry, a new one opens and sweeps.
        if step == "link" and "/index/" in path:
            disk.on_step = None
            opened(files, writer="two", term=2)

    disk.on_step = taken_over
    # Its number is taken, and its temporary file swept: whichever it meets first.
    with pytest.raises((LostLog, StorageError)):
        old.flush()
    assert logged(reading(files)) == [1]


@pytest.mark.meets("R31")
def test_an_old_writer_never_replaces_a_new_ones_segment(files: Files) -> None:
    old = begun(files)
    flushed(old, commits(1))
    new = opened(files, writer="two", term=2)
    number = new.last_entry + 1
    files.create(f"log/{SOURCE}/segments/{number:012x}-1-1.parquet", b"written by the old one")
    flush = flushed(new, commits(2))
    assert flush.files[0].name == f"{number:012x}-1-1-2.parquet"
    assert logged(reading(files)) == [1, 2]


@pytest.mark.meets("R31")
def test_a_writer_of_an_older_term_is_refused(files: Files) -> None:
    begun(files)
    opened(files, writer="two", term=5)
    with pytest.raises(LostLog) as caught:
        opened(files, writer="one", term=4)
    assert caught.value.facts["later"] == 5


@pytest.mark.meets("P7")
def test_the_log_of_another_kind_of_source_is_refused(files: Files) -> None:
    begun(files)
    with pytest.raises(OtherSource) as caught:
        opened(files, term=2, origin="pg:postgresql://host/db")
    assert caught.value.facts == {
        "folder": f"{ROOT}/log/{SOURCE}",
        "recorded": "sqlite",
        "given": "pg",
    }
    opened(files, term=2, origin="sqlite:/moved/shop.db")


def test_opening_sweeps_what_no_entry_names(files: Files) -> None:
    log = begun(files)
    flush = flushed(log, commits(1))
    files.put(f"log/{SOURCE}/segments/00000000000f-1-1.parquet", b"nobody named me")
    files.put(f"log/{SOURCE}/segments/a.1-1.tmp", b"half")
    files.put(f"log/{SOURCE}/index/a.1-1.tmp", b"half")
    opened(files, term=2)
    assert segments(files) == [flush.files[0].name]
    assert not [name for name in files.list(f"log/{SOURCE}/index") if "tmp" in name]


# --- failures ---------------------------------------------------------------------------------


@pytest.mark.meets("R36", "P7")
@pytest.mark.parametrize("step", ["write", "sync", "link", "sync_folder"])
@pytest.mark.parametrize("part", ["/segments", "/index"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_write_the_writer_is_done_and_nothing_is_lost(
    disk: SimulatedDisk, files: Files, step: str, part: str, number: int
) -> None:
    log = begun(files)
    flushed(log, commits(1))
    log.append(commits(2))
    disk.fail(step, number, part=part)
    kind = StorageFull if number == errno.ENOSPC else StorageError
    with pytest.raises(kind) as caught:
        log.flush()
    assert part in str(caught.value.facts["file"])
    with pytest.raises(kind) as again:
        log.append(commits(3))
    assert again.value is caught.value
    # What the index holds is the truth: it went in whole, or it is read from the source again.
    reopened = opened(files, term=2)
    if reopened.end == Position(1, 1):
        flushed(reopened, commits(2))
    flushed(reopened, commits(3))
    assert logged(reading(files)) == [1, 2, 3]


@pytest.mark.meets("P7")
def test_a_full_disk_stops_the_writer_and_room_lets_the_next_go_on(
    disk: SimulatedDisk, files: Files
) -> None:
    log = begun(files)
    flushed(log, commits(1))
    disk.capacity = disk.used + 100
    log.append(commits(2))
    with pytest.raises(StorageFull) as caught:
        log.flush()
    assert caught.value.code == "storage.full"
    assert logged(reading(files)) == [1]
    with pytest.raises(StorageFull):
        opened(files, term=2)
    disk.capacity = None
    again = opened(files, term=2)
    assert again.end == Position(1, 1)
    flushed(again, commits(2))
    assert logged(reading(files)) == [1, 2]


def test_a_failed_checkpoint_stops_the_writer_and_is_made_good(
    disk: SimulatedDisk, files: Files
) -> None:
    log = begun(files)
    for commit in range(1, 999):
        log.heartbeat(At(commit))
    disk.fail("write", errno.EIO, part="state")
    with pytest.raises(StorageError):
        log.heartbeat(At(2_000))
    again = opened(files, term=2)
    assert again.end == Position(1, 2_000)
    names = files.list(f"log/{SOURCE}/index")
    assert "0000000003e8.checkpoint.parquet" in names
