"""What wakes a capture, and that it goes on through locks, kills and lost logs."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.capture.sqlite import (
    Batch,
    Capture,
    Combined,
    External,
    FileWatch,
    Interval,
    capture_log,
    triggers,
)
from headrace.capture.sqlite.library import run as module
from headrace.capture.sqlite.watch import Waiter
from headrace.errors import SourceRefused, SourceUnreachable
from tests.capture.library import Heard, Running, ops, running

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _tables(app: sqlite3.Connection, path: Path) -> None:
    app.execute("create table t (id integer primary key, v)")
    Capture(path, ["t"], print).setup()


@pytest.mark.parametrize(
    "wake",
    [
        FileWatch,
        lambda: Interval(0.01),
        lambda: Combined(FileWatch(), Interval(0.05)),
        lambda: Combined(External(), Combined(Interval(0.02))),
    ],
)
def test_a_commit_is_noticed(
    path: Path, app: sqlite3.Connection, wake: Callable[[], Combined]
) -> None:
    with running(path, ["t"], wake=wake()) as heard:
        for number in range(5):
            app.execute("insert into t values (?, 0)", (number,))
            heard.count(number + 1)


def test_only_a_notice_from_outside_wakes_it(path: Path, app: sqlite3.Connection) -> None:
    external = External()
    app.execute("insert into t values (1, 0)")
    with running(path, ["t"], wake=external) as heard:
        heard.count(1)  # what is there at the beginning needs no notice
        app.execute("insert into t values (2, 0)")
        external.notify()
        heard.count(2)
        external.notify()
    external.notify()  # nobody listens any more


@pytest.mark.parametrize("wakes", [(External(),), (Interval(60.0),), (FileWatch(), External())])
def test_without_a_reason_nothing_is_due_and_a_ring_ends_the_wait(
    path: Path, wakes: tuple[External, ...]
) -> None:
    waiting = Waiter(Combined(*wakes), str(path), lambda: 1)
    assert waiting.due()
    while waiting.due():  # a file watch looks once more at what it sees first
        pass
    assert not waiting.due()
    waiting.again()
    assert waiting.due()
    ring = threading.Timer(0.01, waiting.ring)
    ring.start()
    waiting.wait(1000.0)
    ring.join()
    waiting.close()


def test_wakes_that_never_come_are_refused() -> None:
    with pytest.raises(SourceRefused):
        Interval(0)
    with pytest.raises(SourceRefused):
        Combined()


@pytest.mark.meets("R42")
def test_a_long_transaction_of_the_application_delays_only_the_acknowledgement(
    path: Path, app: sqlite3.Connection
) -> None:
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(10)])
    app.execute("begin immediate")
    with running(path, ["t"], batch_size=2) as heard:
        heard.count(10)  # all of them, though none could be acknowledged
        app.execute("commit")
    with running(path, ["t"]) as heard:
        app.execute("insert into t values (100, 0)")
        assert ops(heard.count(1)) == [("t", "INSERT", 100)]


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_it_works_in_either_journal_mode_and_changes_none(
    path: Path, app: sqlite3.Connection, mode: str
) -> None:
    app.execute(f"pragma journal_mode = {mode}")
    app.execute("pragma busy_timeout = 20000")
    with running(path, ["t"], "bootstrap_and_cdc", batch_size=3) as heard:
        for number in range(30):
            app.execute("insert into t values (?, 0)", (number,))
        keys = {("t", "INSERT", number) for number in range(30)}
        heard.until(lambda records: keys <= set(ops(records)))
    assert app.execute("pragma journal_mode").fetchone() == (mode,)


def _store_and_prune_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # With its pauses, a writer that never rests can keep both from their turn for seconds.
    for name in ("OTHERS_SECONDS", "LATER_SECONDS", "STORE_SECONDS"):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(capture_log, "STEP_SECONDS", 0)
    monkeypatch.setattr(capture_log, "REST_SECONDS", 0)


def test_what_was_acknowledged_is_removed_and_the_last_row_stays(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store_and_prune_at_once(monkeypatch)
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(2000)])
    with running(path, ["t"], batch_size=100) as heard:
        heard.count(2000)
        number = 2000
        while app.execute(f"select count(*) from {triggers.LOG}").fetchone()[0] > 1:
            app.execute("insert into t values (?, 0)", (number,))
            number += 1
            heard.count(number)
    assert [id for _, _, id in ops(heard.records)] == list(range(number))


def test_a_reader_that_only_sees_other_tables_holds_nothing_back(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store_and_prune_at_once(monkeypatch)
    app.execute("create table u (id integer primary key, v)")
    Capture(path, ["u"], print, reader="two").setup()
    with running(path, ["t"]), running(path, ["u"], reader="two") as two:
        number = 0
        while number < 3 or app.execute(f"select count(*) from {triggers.LOG}").fetchone()[0] > 2:
            app.execute("insert into u values (?, 0)", (number,))
            number += 1
            two.count(number)


CHILD = """
import sys
from headrace.capture.sqlite import Capture

def write(batch):
    sys.stdout.write("".join(f"{record.position} {record.after['id']}\\n" for record in batch))
    sys.stdout.flush()

Capture(sys.argv[1], ["t"], write, batch_size=16).cdc()
"""


@pytest.mark.crash
def test_killed_again_and_again_it_loses_nothing_and_repeats_little(
    path: Path, app: sqlite3.Connection
) -> None:
    count = 4000
    app.execute("begin")
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(count)])
    app.execute("commit")
    got: list[tuple[str, int]] = []
    kills = 0
    while not got or got[-1][1] != count - 1:
        got += one_life(path, stop_after=700, last=count - 1)
        kills += 1
    assert kills > 1
    assert sorted({number for _, number in got}) == list(range(count))
    assert len({position for position, _ in got}) == count, "a change has one position"
    # A batch that was written and not yet acknowledged; there is one of these at a time.
    assert len(got) - count <= kills * 16


def one_life(path: Path, stop_after: int, last: int) -> list[tuple[str, int]]:
    """Run a child, kill it in the middle, and return all that it handed out whole."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            if len(lines) >= stop_after or line.endswith(f" {last}\n"):
                break
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(position, int(number)) for position, number in whole]


@pytest.mark.meets("R40")
@pytest.mark.parametrize("again", [0, 50])
def test_a_log_that_somebody_emptied_is_noticed_and_mended_by_a_bootstrap(
    path: Path, app: sqlite3.Connection, again: int
) -> None:
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(20)])
    with running(path, ["t"]) as heard:
        heard.count(20)
    old = triggers.capture_id(app)
    app.execute(f"delete from {triggers.LOG}")
    app.executemany("insert into t values (?, 0)", [(number + 20,) for number in range(again)])
    with pytest.raises(SourceRefused, match="emptied") as caught:
        Capture(path, ["t"], Heard()).cdc()
    assert "bootstrap" in caught.value.remedy
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        heard.count(21 + again)
        app.execute("delete from t where id = 0")
        records = heard.count(22 + again)
    assert ops(records[-1:]) == [("t", "DELETE", 0)]
    assert {str(record.position).partition("/")[0] for record in records} != {old}


def test_a_file_that_was_replaced_is_noticed(path: Path, app: sqlite3.Connection) -> None:
    heard = Heard()
    run = Running(Capture(path, ["t"], heard), "cdc")
    app.execute("insert into t values (1, 0)")
    heard.count(1)
    path.rename(path.with_suffix(".old"))
    run.join()
    assert isinstance(run.error, SourceUnreachable)


def test_a_file_that_is_replaced_while_its_rows_are_copied_is_noticed(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table u (id integer primary key, v)")
    Capture(path, ["u"], print).setup()
    app.execute("pragma wal_checkpoint(truncate)")

    def replaces(batch: Batch) -> None:
        heard(batch)
        if len(heard.batches) == 1:
            shutil.copy(path, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        assert len(heard.batches) < 10, "copies the file that is gone again and again"

    heard = Heard()
    with pytest.raises(SourceUnreachable, match="replaced"):
        Capture(path, ["t", "u"], replaces).bootstrap_and_cdc()
    assert [record.table for record in heard.records] == ["t"]
