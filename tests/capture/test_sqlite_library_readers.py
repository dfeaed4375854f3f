"""Readers of one log: one run each, limits, readers that leave nothing, and the way back."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.capture.sqlite import Batch, Capture, External, Retention
from headrace.capture.sqlite.library import leases, retention
from headrace.capture.sqlite.library import run as module
from headrace.capture.sqlite.library.leases import RunLock
from headrace.errors import (
    BadPosition,
    CaptureExpired,
    LeaseLost,
    LeaseTaken,
    SchemaChanged,
    SourceRefused,
)
from tests.capture.library import Heard, Running, ops, running
from tests.support.patience import patience

pytestmark = pytest.mark.usefixtures("two_tables")

ROOT = Path(__file__).parents[2]


def insert(app: sqlite3.Connection, *numbers: int, table: str = "t") -> None:
    for number in numbers:
        app.execute(f"insert into {table} values (?, 0)", (number,))


def read(path: Path, count: int, method: str = "cdc", **options: object) -> list[object]:
    """Run a capture until it has delivered so many records; return their ids."""
    start = {name: options.pop(name) for name in ("from_position", "from_time") if name in options}
    heard = Heard()

    def handle(batch: Batch) -> None:
        heard(batch)
        if len(heard.records) >= count:
            capture.close()

    tables = options.pop("tables", ["t"])
    capture = Capture(path, tables, handle, **options)  # type: ignore[arg-type]
    getattr(capture, method)(**start)
    return [id for _, _, id in ops(heard.records)]


def our_tables(app: sqlite3.Connection) -> list[str]:
    return [
        name
        for (name,) in app.execute(
            "select name from sqlite_master where name like '\\_\\_%' escape '\\'"
        )
    ]


def lock_files(path: Path) -> list[Path]:
    return list(path.parent.glob("*.lock"))


# -- leases --------------------------------------------------------------------------------


def test_a_second_run_of_a_reader_is_refused(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t", "u"], print).setup()
    Capture(path, ["t"], print, reader="other").setup()
    insert(app, 1)
    with running(path, ["t"]) as heard:
        heard.count(1)
        with pytest.raises(LeaseTaken) as caught:
            Capture(path, None, print).cdc()
        assert caught.value.facts["tables"] == "t"
        # Another table, and another reader, are nobody's yet.
        insert(app, 1, table="u")
        assert read(path, 1, tables=["u"]) == [1]
        assert read(path, 1, reader="other") == [1]
    assert lock_files(path) == []


def test_one_in_standby_waits_for_the_end_of_the_other(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STANDBY_SECONDS", 0.001)
    tried = threading.Semaphore(0)
    look = leases.Leases.look

    def counted(self: leases.Leases) -> dict[str, str]:
        try:
            return look(self)
        except LeaseTaken:
            tried.release()
            raise

    monkeypatch.setattr(leases.Leases, "look", counted)
    Capture(path, ["t"], print).setup()
    insert(app, 1)
    second = Heard()
    with running(path, ["t"]) as heard:
        heard.count(1)
        run = Running(Capture(path, ["t"], second, standby=True), "cdc", second)
        assert tried.acquire(timeout=patience()) and tried.acquire(timeout=patience())
        closed = Running(Capture(path, ["t"], print, standby=True), "cdc")
        assert tried.acquire(timeout=patience())
        assert closed.capture.close()
        closed.join()
        assert closed.error is None
    insert(app, 2)
    assert ops(second.count(1)) == [("t", "INSERT", 2)]
    run.capture.close()
    run.join()
    assert run.error is None


def test_a_run_that_lost_its_lease_stores_nothing_more(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print).setup()
    heard, wake = Heard(), External()
    insert(app, 1)
    run = Running(Capture(path, ["t"], heard, wake=wake), "cdc", heard)
    heard.count(1)
    for file in lock_files(path):
        file.unlink()  # by hand: now the run counts as ended
    with running(path, ["t"]) as second:
        insert(app, 2)
        second.until(lambda all: ("t", "INSERT", 2) in ops(all))
        wake.notify()
        run.join()
        assert isinstance(run.error, LeaseLost)


KILLED = """
import os, signal, sys
from headrace.capture.sqlite import Capture
def handle(batch):
    print(batch[-1].position, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
options = {"ephemeral": True} if sys.argv[2] == "ephemeral" else {}
getattr(Capture(sys.argv[1], ["t"], handle, **options), sys.argv[3])()
"""


def kill_in_handler(path: Path, kind: str, method: str, then: Callable[[], object]) -> None:
    """Run a capture in a process that is killed in its first batch, after `then`."""
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), kind, method],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert child.stdout is not None
    assert child.stdout.readline()
    then()
    child.communicate("\n", timeout=patience())
    assert child.returncode == -9


@pytest.mark.process
def test_the_lease_of_a_process_that_was_killed_is_taken_over(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print).setup()
    insert(app, 1)

    def refused() -> None:
        with pytest.raises(LeaseTaken):
            Capture(path, ["t"], print).cdc()

    kill_in_handler(path, "lasting", "cdc", refused)
    assert len(lock_files(path)) == 1
    assert read(path, 1) == [1]
    assert lock_files(path) == []
    (text,) = app.execute("select value from __headrace_meta where name like 'lease/%'").fetchone()
    assert str(text).startswith("2/")


def test_whether_a_run_has_ended_is_seen_by_its_file(path: Path) -> None:
    one, two = RunLock(str(path)), RunLock(str(path))
    one.take()
    two.take()
    run = one.run
    assert two.alive(run) and one.alive(two.run) and one.alive(run)
    assert not two.alive("0123456789abcdef")
    assert not two.alive("")
    two.sweep()
    assert two.alive(run)
    one.release()
    assert not two.alive(run)
    two.release()
    assert lock_files(path) == []


def test_a_folder_that_takes_no_lock_file_is_an_error(
    path: Path, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    Capture(path, ["t"], print).setup()

    def refuses(name: str, *how: int) -> int:
        raise PermissionError(errno.EACCES, "not here", name)

    monkeypatch.setattr("headrace.capture.sqlite.library.leases.os.open", refuses)
    with pytest.raises(SourceRefused) as caught:
        Capture(path, ["t"], print).cdc()
    assert caught.value.facts["error"] == "EACCES"


# -- what is kept --------------------------------------------------------------------------


def seqs(app: sqlite3.Connection) -> list[int]:
    return [seq for (seq,) in app.execute("select seq from __headrace_log order by seq")]


@pytest.mark.meets("R28")
def test_a_reader_that_never_comes_back_does_not_keep_the_log(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print).setup()
    Capture(path, ["t"], print, reader="lost", retention=Retention(bytes=2_000)).setup()
    app.executemany("insert into t values (?, ?)", [(at, "x" * 100) for at in range(40)])
    lost = next(each for each in Capture(path, None, print).readers() if each.reader == "lost")
    assert lost.bytes > 2_000 == lost.limit_bytes
    assert (lost.unread, lost.expired, lost.running) == (40, False, False)
    assert len(read(path, 40)) == 40  # it looks at the others, too
    Capture(path, None, print).prune()
    assert {each.reader for each in Capture(path, None, print).readers() if each.expired} == {
        "lost"
    }
    assert len(seqs(app)) < 3
    with pytest.raises(CaptureExpired) as caught:
        Capture(path, ["t"], print, reader="lost").cdc()
    assert caught.value.facts == {"reader": "lost", "tables": "t"}
    # It is asked for: all rows again, and it goes on.
    with running(path, ["t"], reader="lost", on_expired="copy") as heard:
        insert(app, 100)
        records = heard.count(42)
    assert records[0].operation == "BOOTSTRAP"
    assert {(each.after or {}).get("id") for each in records[1:]} == {*range(40), 100}
    with running(path, ["t"], reader="lost") as heard:
        insert(app, 101)
        heard.count(1)


@pytest.mark.meets("R28")
def test_a_reader_expires_by_the_age_of_its_changes(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print, retention=Retention(seconds=3600)).setup()
    insert(app, 1, 2)
    Capture(path, None, print).prune()
    app.execute("update __headrace_log set ts = ts - 4000000")
    Capture(path, ["u"], print, reader="other").setup()  # it looks, too
    with pytest.raises(CaptureExpired):
        Capture(path, ["t"], print).cdc()
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        heard.count(3)


@pytest.mark.meets("R28")
@pytest.mark.parametrize("policy", ["fail", "copy"])
def test_a_run_that_is_too_slow_expires_as_well(
    path: Path, app: sqlite3.Connection, policy: str
) -> None:
    Capture(path, ["t"], print, retention=Retention(bytes=2_000)).setup()
    heard, released, begun = Heard(), threading.Event(), threading.Event()

    def slow(batch: Batch) -> None:
        begun.set()
        assert released.wait(patience())
        heard(batch)

    capture = Capture(path, ["t"], slow, batch_size=1, on_expired=policy)  # type: ignore[arg-type]
    run = Running(capture, "cdc", heard)
    insert(app, 1)
    assert begun.wait(patience())
    app.executemany("insert into t values (?, ?)", [(at, "x" * 100) for at in range(2, 40)])
    assert Capture(path, None, print).prune() > 30
    released.set()
    if policy == "fail":
        run.join()
        assert isinstance(run.error, CaptureExpired)
    else:
        records = heard.until(lambda all: sum(each.operation == "BOOTSTRAP" for each in all))
        heard.until(lambda all: {(each.after or {}).get("id") for each in all} >= {*range(1, 40)})
        assert records[0].operation == "INSERT"
        capture.close()
        run.join()
        assert run.error is None


def test_a_copy_during_which_too_much_is_written_says_so(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print, retention=Retention(bytes=2_000)).setup()
    insert(app, 1, 2)

    def writes(batch: Batch) -> None:
        if batch[0].operation == "BOOTSTRAP":
            app.executemany("insert into t values (?, ?)", [(at, "x" * 100) for at in range(9, 50)])
            Capture(path, None, print).prune()

    with pytest.raises(CaptureExpired):
        Capture(path, ["t"], writes).bootstrap_and_cdc()


@pytest.mark.parametrize("limits", [{"bytes": -1}, {"seconds": -0.5}, {"history_seconds": -1}])
def test_a_limit_below_zero_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(SourceRefused):
        Retention(**limits)  # type: ignore[arg-type]


def test_limits_are_kept_until_others_are_set(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print, retention=Retention(bytes=7)).setup()
    Capture(path, ["t"], print).setup()
    assert [each.limit_bytes for each in Capture(path, None, print).readers()] == [7]
    Capture(path, ["t"], print).teardown()
    Capture(path, ["t"], print).setup()
    assert [each.limit_bytes for each in Capture(path, None, print).readers()] == [retention.BYTES]


# -- the way back --------------------------------------------------------------------------


def epoch(path: Path) -> str:
    (status,) = Capture(path, None, print).readers()
    return status.position.partition("/")[0]


def test_a_reader_goes_back_to_a_position_and_on_from_there(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print, retention=Retention(history_seconds=3600)).setup()
    insert(app, *range(1, 9))
    heard = Heard()

    def handle(batch: Batch) -> None:
        heard(batch)
        if len(heard.records) == 8:
            capture.close()

    capture = Capture(path, ["t"], handle, batch_size=2)
    capture.cdc()
    third = heard.records[2].position
    assert Capture(path, None, print).prune() == 0
    assert read(path, 5, from_position=third) == [4, 5, 6, 7, 8]
    # A run that is cut short goes on where it was.
    assert read(path, 2, from_position=third, batch_size=2) == [4, 5]
    assert read(path, 3) == [6, 7, 8]
    assert read(path, 8, from_position="earliest") == list(range(1, 9))
    assert read(path, 1, from_position=heard.records[-2].position) == [8]


def test_a_reader_goes_back_to_a_time(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print).setup()
    Capture(path, ["t"], print, reader="keeps").setup()
    insert(app, 1, 2, 3, 4)
    # The first row, the marker of the log's beginning, is the one that both have read.
    app.execute("update __headrace_log set ts = ts + 60000 * (seq - 1) where seq > 1")
    (ms,) = app.execute("select ts from __headrace_log where seq = 4").fetchone()
    assert read(path, 4) == [1, 2, 3, 4]
    at = datetime.fromtimestamp(ms / 1000, UTC)
    assert read(path, 2, from_time=at) == [3, 4]
    assert read(path, 2, from_time=at - timedelta(seconds=30)) == [3, 4]
    with pytest.raises(CaptureExpired) as caught:
        read(path, 1, from_time=at - timedelta(days=1))
    assert caught.value.facts["earliest"] == f"{str(caught.value.facts['earliest'])[:32]}/1"
    with pytest.raises(BadPosition):
        read(path, 1, from_time=datetime(2026, 1, 1))


def test_what_is_older_than_the_log_is_refused_with_the_earliest_position(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print).setup()
    insert(app, *range(10))
    assert len(read(path, 10)) == 10
    Capture(path, None, print).prune()
    here = epoch(path)
    (first, *_) = seqs(app)
    with pytest.raises(CaptureExpired) as caught:
        read(path, 1, from_position=f"{here}/2")
    assert caught.value.facts["earliest"] == f"{here}/{first}"
    with pytest.raises(CaptureExpired):
        read(path, 1, from_position=f"{'0' * 32}/{first}")
    for wrong in (f"{here}/99999", "nonsense", f"{here}/-1"):
        with pytest.raises(BadPosition):
            read(path, 1, from_position=wrong)
    with pytest.raises(SourceRefused):
        read(path, 1, from_position="earliest", from_time=datetime.now(UTC))


def test_a_history_ends_where_it_is_old_or_large(path: Path, app: sqlite3.Connection) -> None:
    capture = Capture(path, ["t"], print, retention=Retention(history_seconds=3600))
    capture.setup()
    insert(app, *range(10))
    assert len(read(path, 10)) == 10
    assert Capture(path, None, print).prune() == 0
    app.execute("update __headrace_log set ts = ts - 4000000 where seq < 6")
    insert(app, 11)
    assert read(path, 1) == [11]
    Capture(path, None, print).prune()
    assert seqs(app)[0] == 5
    capture = Capture(path, ["t"], print, retention=Retention(bytes=0, history_seconds=3600))
    capture.setup()
    insert(app, 12)
    with running(path, ["t"], "bootstrap_and_cdc"):
        pass
    Capture(path, ["t"], print).teardown()
    assert our_tables(app) == []


# -- readers that leave nothing ------------------------------------------------------------


def test_an_ephemeral_reader_leaves_nothing_behind(path: Path, app: sqlite3.Connection) -> None:
    insert(app, 1)
    with running(path, ["t"], ephemeral=True) as heard:
        # From the moment on at which it was set up.
        while not our_tables(app):
            pass
        insert(app, 2)
        assert ops(heard.count(1)) == [("t", "INSERT", 2)]
    assert our_tables(app) == []
    assert lock_files(path) == []
    with running(path, None, "bootstrap_and_cdc", ephemeral=True) as heard:
        heard.count(4)
        insert(app, 3, table="u")
        assert ops(heard.count(5))[4:] == [("u", "INSERT", 3)]
    assert our_tables(app) == []


def test_an_ephemeral_reader_leaves_a_lasting_one_as_it_was(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print).setup()
    before = app.execute("select * from __headrace_meta").fetchall()
    insert(app, 1)
    with running(path, ["t"], "bootstrap_and_cdc", ephemeral=True) as heard:
        heard.count(2)
    assert app.execute("select * from __headrace_meta").fetchall() == before
    assert read(path, 1) == [1]
    with pytest.raises(SourceRefused):
        Capture(path, ["t"], print, reader="default", ephemeral=True).cdc()
    with pytest.raises(SourceRefused):
        Capture(path, ["t"], print, ephemeral=True).setup()


@pytest.mark.process
def test_what_a_killed_ephemeral_reader_left_is_removed_by_the_next_run(
    path: Path, app: sqlite3.Connection
) -> None:
    insert(app, 1)
    kill_in_handler(path, "ephemeral", "bootstrap_and_cdc", lambda: None)
    assert our_tables(app) != []
    assert len(lock_files(path)) == 1
    with running(path, ["u"], ephemeral=True):
        pass
    assert our_tables(app) == []
    assert lock_files(path) == []


# -- a bootstrap that continues ------------------------------------------------------------


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 4)
    monkeypatch.setattr(module, "COPY_POINT_SECONDS", 0.0)


class Cut(Exception):
    """The end of a run, in its handler."""


def cut(path: Path, table: str, batches: int, **options: object) -> list[object]:
    """Run a bootstrap whose handler fails with this batch; return the ids of the others."""
    heard = Heard()

    def handle(batch: Batch) -> None:
        if len(heard.batches) == batches:
            raise Cut
        heard(batch)

    with pytest.raises(Cut):
        Capture(path, [table], handle, batch_size=3).bootstrap_and_cdc(**options)  # type: ignore[arg-type]
    return [id for _, _, id in ops(heard.records)]


@pytest.mark.meets("R43")
@pytest.mark.usefixtures("small_steps")
def test_a_bootstrap_that_was_cut_short_continues_where_it_stopped(
    path: Path, app: sqlite3.Connection
) -> None:
    insert(app, *range(10, 30))
    Capture(path, ["t"], print).setup()
    first = cut(path, "t", 3)
    assert first == [None, *range(10, 18)][: len(first)]
    # Before the point and after it: all of it is in the log.
    app.execute("update t set v = 1 where id = 10")
    app.execute("delete from t where id = 29")
    insert(app, 1, 40)
    heard = Heard()
    capture = Capture(path, ["t"], heard, batch_size=3)
    run = Running(capture, "bootstrap_and_cdc", heard, resume=True)
    insert(app, 50)
    app.execute("delete from t where id = 50")
    records = heard.until(lambda all: ("t", "DELETE", 50) in ops(all[-1:]))
    capture.close()
    run.join()
    assert run.error is None
    assert "BOOTSTRAP" not in {each.operation for each in records}
    assert next(id for _, _, id in ops(records)) == first[-1] + 1  # type: ignore[operator]
    state: dict[object, object] = dict.fromkeys(first[1:], 0)
    for each in records:
        if each.before is not None:
            state.pop(each.before["id"], None)
        if each.after is not None:
            state[each.after["id"]] = each.after["v"]
    assert state == dict(app.execute("select id, v from t"))
    # Now all rows are delivered, and only changes follow.
    insert(app, 60)
    with running(path, ["t"], "bootstrap_and_cdc", resume=True) as heard:
        assert ops(heard.count(1)) == [("t", "INSERT", 60)]
    # Without it, all of them again.
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        assert heard.count(23)[0].operation == "BOOTSTRAP"


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    "statement",
    [
        "alter table t add column more",
        "drop trigger __headrace_1_update",
        "delete from __headrace_log",
    ],
)
def test_a_bootstrap_that_cannot_continue_begins_again(
    path: Path, app: sqlite3.Connection, statement: str
) -> None:
    insert(app, *range(20))
    Capture(path, ["t"], print).setup()
    cut(path, "t", 3)
    app.execute(statement)
    with running(path, ["t"], "bootstrap_and_cdc", resume=True) as heard:
        records = heard.count(21)
    assert records[0].operation == "BOOTSTRAP"
    assert len(ops(records)) == 21


@pytest.mark.usefixtures("small_steps")
def test_a_key_of_several_columns_and_any_value_continues(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table k (v, a, id, primary key (a, id)) without rowid")
    values = [1, 0.1 + 0.2, float("inf"), "é", b"\x00"]
    rows = [(0, value, number) for value in values for number in range(4)]
    app.executemany("insert into k values (?, ?, ?)", rows)
    app.execute("insert into k values (0, cast(x'ff41' as text), 9)")
    Capture(path, ["k"], print).setup()
    seen = len(cut(path, "k", 2)) - 1
    while seen < 15:
        seen += len(cut(path, "k", 1, resume=True))
    with running(path, ["k"], "bootstrap_and_cdc", resume=True) as heard:
        heard.count(21 - seen)
    assert len(heard.records) == 21 - seen


def test_a_reader_that_was_removed_cannot_continue(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print, reader="other").setup()
    Capture(path, ["t"], print).setup()
    insert(app, 1)
    with running(path, ["t"], "bootstrap_and_cdc") as heard:
        heard.count(2)
    Capture(path, ["t"], print).teardown()
    Capture(path, ["t"], print).setup()
    with pytest.raises(SchemaChanged):
        Capture(path, ["t"], print).cdc()
    with running(path, ["t"], "bootstrap_and_cdc", resume=True) as heard:
        assert heard.count(2)[0].operation == "BOOTSTRAP"


# -- the envelope --------------------------------------------------------------------------


def test_an_envelope_has_position_key_group_schema_and_source(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("create table k (v, a text, id blob, primary key (id, a))")
    app.execute("insert into k values (1, 'x', x'00ff')")
    Capture(path, ["k"], print).setup()
    with running(path, ["k"], "bootstrap_and_cdc") as heard:
        heard.count(2)
        app.execute("begin")
        app.execute("update k set v = 2")
        app.execute("delete from k")
        app.execute("commit")
        heard.count(4)
    lines = [
        json.loads(line)
        for batch in heard.batches
        for line in batch.json_lines(blobs=True, envelope=True).splitlines()
    ]
    assert [line["operation"] for line in lines] == [
        *("BOOTSTRAP", "INSERT", "BOOTSTRAP_END", "UPDATE", "DELETE")
    ]
    begin, row, end, update, delete = lines
    here = begin["position"].partition("/")[0]
    assert {line["schema"] for line in lines} == {1}
    assert {line["source"]["reader"] for line in lines} == {"default"}
    assert [line["bootstrap"] for line in lines] == [True, True, True, False, False]
    assert (begin["key"], begin["after"]) == (None, None)
    assert row["key"] == update["key"] == delete["key"] == {"id": "00FF", "a": "x"}
    assert end["position"] == begin["position"]
    assert update["group"] == delete["group"] == delete["position"]
    assert (update["group_ends"], delete["group_ends"]) == (False, True)
    assert delete["source"] == {
        "connector": "sqlite",
        "database": str(path),
        "log_table": "__headrace_log",
        "reader": "default",
    }
    assert delete["position"].startswith(f"{here}/")
    # The five fields have no end, which would be a record that nobody knows.
    plain = b"".join(batch.json_lines() for batch in heard.batches).splitlines()
    assert len(plain) == 4
    assert [batch.ends for batch in heard.batches] == [True, False]


@pytest.mark.parametrize("rows", [0, 3, 4, 5, 8])
def test_every_bootstrap_has_one_end_whatever_its_size(
    path: Path, app: sqlite3.Connection, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 4)
    insert(app, *range(rows))
    heard = Heard()
    Capture(path, ["t"], heard, batch_size=4).bootstrap()
    lines = [
        json.loads(line)
        for batch in heard.batches
        for line in batch.json_lines(envelope=True).splitlines()
    ]
    assert [line["operation"] for line in lines] == [
        *("BOOTSTRAP", *["INSERT"] * rows, "BOOTSTRAP_END")
    ]
    assert {line["position"] for line in lines} == {None}
    assert {line["schema"] for line in lines} == {None}
    assert [batch.ends for batch in heard.batches][:-1] == [False] * (len(heard.batches) - 1)
