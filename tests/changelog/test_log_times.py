"""The times that rows have in the log: those of the commit, of the capture, and of the copy."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest

from headrace.changelog import compaction as module
from headrace.changelog.compaction import Compaction, Fold, plan_fold
from headrace.changelog.entries import File
from headrace.changelog.position import Position
from headrace.changelog.reader import LogWriter
from headrace.changelog.schema import CAPTURED
from headrace.changelog.segment import read_stored, segment_bytes
from headrace.storage.files import Files
from tests.changelog.log_making import (
    ORDERS,
    ORIGIN_TEXT,
    SOURCE,
    At,
    changes,
    delete,
    insert,
    row_table,
    update,
)

FAR = 2**31 - 1


@pytest.fixture
def log(files: Files, monkeypatch: pytest.MonkeyPatch) -> LogWriter:
    """A log whose clock moves on with every look; small files are worth merging and folding."""
    monkeypatch.setattr(module, "LEAST_BYTES", 1)
    monkeypatch.setattr(module, "SHARE", 1_000_000)
    monkeypatch.setattr(module, "LEAST_FLUSHES", 2)
    seconds = count(1_000.0)
    log = LogWriter.open(
        files,
        source=SOURCE,
        origin=ORIGIN_TEXT,
        writer="one",
        term=1,
        clock=lambda: next(seconds),
    )
    log.begin(At(0), "start", ORIGIN_TEXT)
    return log


def micros(rows: pa.Table, name: str) -> list[int | None]:
    found: list[int | None] = rows[name].cast(pa.int64()).to_pylist()
    return found


def stored(log: LogWriter, *files: File) -> pa.Table:
    return pa.concat_tables([read_stored(log.segments, file, ORDERS) for file in files])


def changed(log: LogWriter) -> pa.Table:
    """Return all changes of the table."""
    files = [file for step in log.history.tables["orders"].files for file in step]
    return stored(log, *files)


@pytest.mark.meets("R23g")
def test_a_change_keeps_the_time_of_its_capture_when_flushes_are_merged(log: LogWriter) -> None:
    for number in range(1, 5):
        log.append(changes([insert(number)]))
        log.flush()
    before = changed(log)
    captured = micros(before, "_captured")
    assert micros(before, "_time") == [1_000, 2_000, 3_000, 4_000]
    assert captured == sorted(captured)  # type: ignore[type-var]
    assert len(set(captured)) == 4
    assert Compaction(log).advance(Position(1, 4, FAR), []) is not None
    (files,) = log.history.tables["orders"].files
    assert len(files) == 1
    assert changed(log).equals(before)


@pytest.mark.meets("R23g")
def test_a_copied_row_has_the_time_of_its_copy_and_a_folded_one_of_its_last_change(
    log: LogWriter,
) -> None:
    writer = log.baseline(ORDERS)
    began = writer.time
    copied: list[dict[str, object]] = [{"id": key, "name": "a"} for key in (1, 2, 3)]
    writer.write(row_table(ORDERS, *copied))
    old = writer.finish(log.end.commit, log.end.commit)
    rows = stored(log, *old.files)
    assert micros(rows, "_time") == [began] * 3
    assert micros(rows, "_captured") == [None] * 3
    log.append(changes([update(5, 2), delete(5, 3, ordinal=1), insert(5, 4, ordinal=2)]))
    log.flush()
    captured = micros(changed(log), "_captured")[0]
    plan = plan_fold(log, Position(1, 5, FAR))
    assert plan is not None
    folding = Fold(log, plan)
    while (new := folding.advance()) is None:
        pass
    rows = stored(log, *new.files)
    found = {
        row["id"]: times
        for row, *times in zip(
            rows["after"].to_pylist(),
            micros(rows, "_time"),
            micros(rows, "_captured"),
            strict=True,
        )
    }
    assert found == {1: [began, None], 2: [5_000, captured], 4: [5_000, captured]}


def test_a_segment_of_an_earlier_version_has_no_time_of_capture(log: LogWriter) -> None:
    log.append(changes([insert(1)]))
    log.flush()
    ((file,),) = log.history.tables["orders"].files
    rows = read_stored(log.segments, file, ORDERS)
    data = segment_bytes(rows.drop_columns([CAPTURED.name]))
    earlier = log.store("000000000009-1-1", ORDERS, file.schema, rows.drop_columns(["_captured"]))
    assert earlier.bytes == data.size
    found = read_stored(log.segments, earlier, ORDERS)
    assert found.schema == ORDERS.stored
    assert micros(found, "_captured") == [None]
    assert found.drop_columns(["_captured"]).equals(rows.drop_columns(["_captured"]))
