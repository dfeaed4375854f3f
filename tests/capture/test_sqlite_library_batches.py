"""Batches of the library, locks that keep it waiting, and handlers that raise."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from headrace.capture.sqlite import Batch, Capture, External
from headrace.capture.sqlite.database import ReadLimits, fetch
from headrace.capture.sqlite.library import run as module
from headrace.errors import SchemaChanged, SourceUnreachable
from tests.capture.library import Heard, Running, ops, running
from tests.support.patience import patience

pytestmark = pytest.mark.usefixtures("two_tables")


# -- batches -------------------------------------------------------------------------------


def test_two_copies_share_no_batch_id(path: Path, app: sqlite3.Connection) -> None:
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(10)])
    Capture(path, ["t"], print).setup()
    seen = []
    for size in (3, 4, 4):
        heard = Heard()
        Capture(path, ["t"], heard, batch_size=size).bootstrap()
        ids = [batch.id for batch in heard.batches]
        assert None not in ids
        assert len(set(ids)) == len(ids)
        seen += ids
    assert len(set(seen)) == len(seen)


def test_rows_of_a_table_without_triggers_have_neither_id_nor_position(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("insert into u values (1, 0)")
    heard = Heard()
    Capture(path, ["u"], heard).bootstrap()
    assert {batch.id for batch in heard.batches} == {None}
    assert {record.position for record in heard.records} == {None}


def test_large_rows_are_fetched_by_their_size(path: Path, app: sqlite3.Connection) -> None:
    app.executemany("insert into t values (?, zeroblob(1000))", [(at,) for at in range(300)])

    def fetched(least: int, seconds: float) -> tuple[int, bool]:
        limits = ReadLimits(1000, least, time.monotonic() + seconds)
        rows, done = fetch(app, "select * from t order by id limit 1000", (), limits)
        assert [row[0] for row in rows] == list(range(len(rows)))
        return len(rows), done

    assert fetched(4 * 1008, patience()) == (4, False)
    assert fetched(1, patience()) == (1, False)
    assert fetched(1 << 30, patience()) == (300, True)
    assert fetched(1 << 30, -60) == (256, False)  # one that is late from the first row on


# -- locks and handlers --------------------------------------------------------------------


@pytest.mark.meets("R42")
def test_a_lock_that_is_held_for_long_ends_no_copy(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COPY_BUSY_SECONDS", 0.001)
    tried = threading.Semaphore(0)
    pause = module.CaptureRun._locked

    def counted(run: module.CaptureRun) -> None:
        tried.release()
        pause(run)

    monkeypatch.setattr(module.CaptureRun, "_locked", counted)
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(10)])
    Capture(path, ["t"], print).setup()
    app.execute("delete from __headrace_meta where name = 'file'")  # so that the start writes, too
    app.execute("begin immediate")
    heard = Heard()
    locked, released = threading.Event(), threading.Event()

    def locks(batch: Batch) -> None:
        heard(batch)
        if len(heard.batches) == 1:
            locked.set()
            assert released.wait(patience())

    run = Running(Capture(path, ["t"], locks), "bootstrap_and_cdc", heard)
    assert tried.acquire(timeout=patience()) and tried.acquire(timeout=patience())
    app.execute("commit")
    assert locked.wait(patience())
    while tried.acquire(blocking=False):
        pass
    app.execute("begin immediate")
    app.execute("update t set v = 1 where id = 3")
    released.set()
    assert tried.acquire(timeout=patience()) and tried.acquire(timeout=patience())
    app.execute("commit")
    records = heard.count(12)
    assert ops(records[-1:]) == [("t", "UPDATE", 3)]
    run.capture.close()
    run.join()
    assert run.error is None


@pytest.mark.meets("R42")
@pytest.mark.parametrize("method", ["bootstrap", "bootstrap_and_cdc"])
def test_a_capture_that_waits_for_a_lock_can_be_closed(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 2)
    monkeypatch.setattr(module, "COPY_BUSY_SECONDS", 0.01)
    app.execute("pragma journal_mode = delete")
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(10)])
    Capture(path, ["t"], print).setup()
    waits = threading.Event()
    pause = module.CaptureRun._locked

    def noted(run: module.CaptureRun) -> None:
        waits.set()
        pause(run)

    monkeypatch.setattr(module.CaptureRun, "_locked", noted)
    blocker = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=patience()
    )
    run = Running(
        Capture(
            path,
            ["t"],
            lambda batch: blocker.in_transaction or blocker.execute("begin exclusive"),
            batch_size=2,
        ),
        method,
    )
    assert waits.wait(patience())
    assert run.capture.close()
    run.join()
    assert run.error is None
    blocker.close()


def test_an_external_wake_is_for_everybody_who_has_it(path: Path, app: sqlite3.Connection) -> None:
    for reader in ("one", "two"):
        Capture(path, ["t"], print, reader=reader).setup()
    wake = External()
    with running(path, ["t"], reader="one", wake=wake) as one:
        with running(path, ["t"], reader="two", wake=wake) as two:
            for number in range(5):
                app.execute("insert into t values (?, 0)", (number,))
                wake.notify()
                one.count(number + 1)
                two.count(number + 1)
        app.execute("insert into t values (9, 0)")
        wake.notify()
        one.count(6)


@pytest.mark.parametrize("method", ["bootstrap", "bootstrap_and_cdc"])
@pytest.mark.parametrize("error", [SchemaChanged, SourceUnreachable, sqlite3.OperationalError])
def test_whatever_a_handler_raises_ends_the_run(
    path: Path, app: sqlite3.Connection, method: str, error: type[Exception]
) -> None:
    Capture(path, ["t"], print).setup()
    raised = error("the handler's own")
    calls = []

    def fails(batch: Batch) -> None:
        calls.append(batch)
        raise raised

    with pytest.raises(error) as caught:
        getattr(Capture(path, ["t"], fails), method)()
    assert caught.value is raised
    assert len(calls) == 1
