from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.errors import ChangeLogError, StorageError
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from tests.changelog.log_making import (
    ORDERS,
    ORIGIN_TEXT,
    At,
    begun,
    changes,
    commits,
    delete,
    files_on,
    opened,
    reading,
    row_table,
    segments,
    table,
)


@pytest.mark.meets("R43")
def test_a_baseline_has_its_rows_and_its_window(files: Files) -> None:
    log = begun(files)
    writer = log.baseline(ORDERS)
    assert writer.write(row_table(ORDERS, {"id": 1, "name": "a"}, {"id": 2, "name": None})) == 2
    more = row_table(ORDERS, {"id": 3, "name": "c"}).to_batches()[0]
    assert writer.write(more) == 3
    log.append(commits(1))
    log.flush()
    assert reading(files).usable_baseline("orders") is None
    done = writer.finish(4, 9)
    assert done.window == (Position(1, 4, MAX_ORDINAL), Position(1, 9))
    assert done.rows == 3
    reader = reading(files)
    assert reader.usable_baseline("orders") == done
    rows = pa.concat_tables([reader.rows(file) for file in done.files])
    assert rows["after"].to_pylist() == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
        {"id": 3, "name": "c"},
    ]
    assert rows["_op"].to_pylist() == [0, 0, 0]
    assert rows["_commit"].null_count == rows["before"].null_count == 3


@pytest.mark.meets("R23f")
def test_a_baseline_keeps_the_exact_text_of_misfits(files: Files) -> None:
    log = begun(files)
    writer = log.baseline(ORDERS)
    marks = pa.array([[(1, "abc")]], ORDERS.segment.field("_exact").type)
    writer.write(row_table(ORDERS, {"id": None, "name": "a"}), marks)
    done = writer.finish(1, 1)
    assert reading(files).rows(done.files[0])["_exact"].to_pylist() == [[(1, "abc")]]


def test_an_empty_table_has_a_baseline_without_files(files: Files) -> None:
    log = begun(files)
    writer = log.baseline(ORDERS)
    writer.write(row_table(ORDERS))
    done = writer.finish(0, 0)
    assert (done.rows, done.files) == (0, ())
    assert reading(files).usable_baseline("orders") == done


def test_a_large_baseline_has_parts_with_names_of_their_own(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.changelog.writer.PART_BYTES", 1)
    log = begun(files)
    first, second = log.baseline(ORDERS), log.baseline(table("items"))
    for key in range(3):
        first.write(row_table(ORDERS, {"id": key, "name": "x"}))
        second.write(row_table(ORDERS, {"id": key, "name": "x"}))
    done = [first.finish(1, 1), second.finish(1, 1)]
    assert [each.baseline for each in done] == [1, 2]
    names = {file.name for each in done for file in each.files}
    assert len(names) == 6
    assert {name.split("-b")[1] for name in names} == {
        *["1-1-1.parquet", "1-2-1.parquet", "1-3-1.parquet"],
        *["2-1-1.parquet", "2-2-1.parquet", "2-3-1.parquet"],
    }


def test_a_discarded_baseline_leaves_nothing(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.changelog.writer.PART_BYTES", 1)
    log = begun(files)
    writer = log.baseline(ORDERS)
    writer.write(row_table(ORDERS, {"id": 1, "name": "x"}))
    assert len(segments(files)) == 1
    writer.discard()
    assert segments(files) == []


@pytest.mark.meets("R1")
def test_a_baseline_does_not_outlive_the_history_it_began_in(files: Files) -> None:
    log = begun(files)
    writer = log.baseline(ORDERS)
    log.begin(At(9), "gap", ORIGIN_TEXT)
    with pytest.raises(ChangeLogError):
        writer.finish(1, 1)
    log.append(changes([delete(10, 1)]))
    log.flush()
    assert reading(files).usable_baseline("orders") is None


def test_a_baseline_needs_a_log_that_has_begun(files: Files) -> None:
    with pytest.raises(ChangeLogError):
        opened(files).baseline(ORDERS)


@pytest.mark.meets("R36", "P7")
def test_segments_stay_while_the_entry_that_names_them_may_exist() -> None:
    # It was linked, and only the answer was lost: whoever removed them would leave a baseline
    # without its rows.
    disk = SimulatedDisk()
    files = files_on(disk)
    log = begun(files)
    writer = log.baseline(ORDERS)
    writer.write(row_table(ORDERS, {"id": 1, "name": "a"}))
    disk.fail("link", errno.EIO, part="/index", done=True)
    with pytest.raises(StorageError):
        writer.finish(4, 9)
    writer.discard()
    found = reading(files).usable_baseline("orders")
    assert found is not None
    [file] = found.files
    assert reading(files).rows(file).num_rows == 1
