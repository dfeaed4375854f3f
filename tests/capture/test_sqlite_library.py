"""SQLite capture as a library: its methods, their order, and what a handler is given."""

from __future__ import annotations

import math
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.capture.sqlite import Batch, Capture, Record, triggers
from headrace.capture.sqlite.database import EVENTS
from headrace.changelog.change import Op
from headrace.errors import (
    BadName,
    RunTwice,
    SourceRefused,
    StillRunning,
    TableRefused,
)
from tests.capture.library import Heard, Running, ops, running
from tests.support.children import python
from tests.support.patience import patience

pytestmark = pytest.mark.usefixtures("two_tables")


def ours(app: sqlite3.Connection) -> list[str]:
    return [
        name
        for (name,) in app.execute("select name from sqlite_master order by name")
        if name.startswith("__headrace")
    ]


def test_changes_since_set_up_are_handed_out_in_order(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("insert into t values (1, 'a')")
    app.execute("update t set v = 'b'")
    app.execute("delete from t")
    with running(path, ["t"]) as heard:
        records = heard.count(3)
        assert [(record.operation, record.before, record.after) for record in records] == [
            ("INSERT", None, {"id": 1, "v": "a"}),
            ("UPDATE", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
            ("DELETE", {"id": 1, "v": "b"}, None),
        ]
        assert {record.table for record in records} == {"t"}
        for record in records:
            assert abs(datetime.now(UTC) - record.timestamp) < timedelta(minutes=5)
        app.execute("insert into t values (2, 'c')")
        assert heard.count(4)[3].after == {"id": 2, "v": "c"}


def test_a_position_is_epoch_and_number_and_stays_the_same(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("insert into t values (1, 'a'), (2, 'b')")

    def fails(batch: Batch) -> None:
        seen.extend(batch)
        raise RuntimeError("no")

    seen: list[Record] = []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            Capture(path, ["t"], fails).cdc()
    first, second, again, _ = seen
    epoch = triggers.capture_id(app)
    assert first.position == again.position
    assert [record.position for record in (first, second)] == [f"{epoch}/2", f"{epoch}/3"]


@pytest.mark.parametrize("size", [1, 2, 3, 256])
def test_a_bootstrap_begins_each_table_with_a_record_that_says_so(
    path: Path, app: sqlite3.Connection, size: int
) -> None:
    app.executemany("insert into t values (?, ?)", [(-1, "x"), (0, None), (5, "y")])
    heard = Heard()
    Capture(path, ["t", "u"], heard, batch_size=size).bootstrap()
    assert ops(heard.records) == [
        ("t", "BOOTSTRAP", None),
        *(("t", "INSERT", number) for number in (-1, 0, 5)),
        ("u", "BOOTSTRAP", None),
    ]
    assert heard.records[0].before is None
    assert heard.records[0].after is None
    assert all(1 <= len(batch) <= size for batch in heard.batches)


def test_a_bootstrap_needs_no_set_up_and_leaves_no_trace(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("insert into t values (1, 'a')")
    before = app.execute("pragma data_version").fetchone()
    heard = Heard()
    Capture(path, ["t"], heard).bootstrap()
    assert len(heard.records) == 2
    assert {record.position for record in heard.records} == {None}
    assert ours(app) == []
    assert app.execute("pragma data_version").fetchone() == before


def test_a_bootstrap_leaves_every_change_to_cdc(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("insert into t values (1, 'a')")
    heard = Heard()
    Capture(path, ["t"], heard).bootstrap()
    assert ops(heard.records) == [("t", "BOOTSTRAP", None), ("t", "INSERT", 1)]
    with running(path, ["t"]) as after:
        assert after.count(1)[0].position == heard.records[1].position


def test_what_happens_during_a_bootstrap_comes_when_cdc_begins(
    path: Path, app: sqlite3.Connection
) -> None:
    app.execute("insert into t values (1, 'a'), (2, 'b'), (3, 'c')")
    Capture(path, ["t"], print).setup()
    app.execute("update t set v = 'before' where id = 1")
    heard = Heard()

    def writes(batch: Batch) -> None:
        if not heard.batches:
            writer = sqlite3.connect(path, isolation_level=None)
            writer.execute("update t set v = 'during' where id = 3")
            writer.execute("delete from t where id = 2")
            writer.close()
        heard(batch)

    capture = Capture(path, ["t"], writes, batch_size=2)
    run = Running(capture, "bootstrap_and_cdc", heard)
    records = heard.until(lambda all: sum(r.operation in ("UPDATE", "DELETE") for r in all) >= 2)
    capture.close()
    run.join()
    assert run.error is None
    changes = [record for record in records if record.operation in ("UPDATE", "DELETE")]
    assert ops(changes) == [("t", "UPDATE", 3), ("t", "DELETE", 2)]
    assert records.index(changes[0]) > max(
        at for at, record in enumerate(records) if record.operation in ("BOOTSTRAP", "INSERT")
    )
    state: dict[object, object] = {}
    for record in records:
        if record.operation == "BOOTSTRAP":
            state.clear()
        elif record.operation == "DELETE":
            state.pop((record.before or {})["id"], None)
        else:
            state[(record.after or {})["id"]] = (record.after or {})["v"]
    assert state == dict(app.execute("select * from t"))


def test_values_are_what_sqlite_holds(path: Path, app: sqlite3.Connection) -> None:
    values: list[object] = [
        None,
        0,
        2**63 - 1,
        -(2**63),
        0.1 + 0.2,
        math.inf,
        -math.inf,
        1.7976931348623157e308,
    ]
    values += ["", "a\0b", "\u2028<&>", b"", b"\x00\xff", "true"]
    Capture(path, ["t"], print).setup()
    app.executemany("insert into t values (?, ?)", list(enumerate(values)))
    app.execute("insert into t values (99, cast(x'41ff' as text))")
    heard = Heard()
    Capture(path, ["t"], heard).bootstrap()
    with running(path, ["t"]) as changes:
        logged = changes.count(len(values) + 1)
    for records in (heard.records[1:], logged):
        found = [(record.after or {})["v"] for record in records]
        assert found == [*values, "A\udcff"]
        assert [type(value) for value in found[:-1]] == [type(value) for value in values]


def test_only_one_run_an_instance(path: Path, app: sqlite3.Connection) -> None:
    capture = Capture(path, ["t"], Heard())
    capture.bootstrap()
    with pytest.raises(RunTwice, match="has already run"):
        capture.cdc()
    assert capture.setup().tables == ("t",)  # a run that has ended stands in nobody's way


@pytest.mark.parametrize("method", ["setup", "teardown", "cdc", "bootstrap", "bootstrap_and_cdc"])
def test_during_a_run_nothing_else_is_done(
    path: Path, app: sqlite3.Connection, method: str
) -> None:
    heard = Heard()
    capture = Capture(path, ["t"], heard)
    capture.setup()
    app.execute("insert into t values (1, 2)")
    run = Running(capture, "cdc", heard)
    heard.count(1)
    with pytest.raises(StillRunning) as caught:
        getattr(capture, method)()
    assert caught.value.code == "capture.running"
    capture.close()
    run.join()
    assert run.error is None


def test_a_closed_capture_does_not_run(path: Path, app: sqlite3.Connection) -> None:
    capture = Capture(path, ["t"], print)
    capture.close()
    capture.close()
    with pytest.raises(RunTwice, match="was closed"):
        capture.bootstrap()


def test_close_waits_for_the_batch_that_is_being_handled(
    path: Path, app: sqlite3.Connection
) -> None:
    entered, leave = threading.Event(), threading.Event()
    done: list[int] = []

    def slow(batch: Batch) -> None:
        entered.set()
        assert leave.wait(patience())
        done.append(len(batch))

    capture = Capture(path, ["t"], slow, batch_size=1)
    capture.setup()
    app.execute("insert into t values (1, 2), (3, 4)")
    run = Running(capture, "cdc")
    assert entered.wait(patience())
    closing = threading.Thread(target=capture.close)
    closing.start()
    leave.set()
    closing.join(patience())
    assert done == [1]  # the second was not begun
    run.join()
    with running(path, ["t"]) as heard:
        assert ops(heard.count(1)) == [("t", "INSERT", 3)]  # and the first is acknowledged


def test_a_handler_may_close_its_own_capture(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print).setup()
    app.execute("insert into t values (1, 2)")
    capture = Capture(path, ["t"], lambda batch: capture.close())
    capture.cdc()
    with running(path, ["t"]) as heard:
        app.execute("insert into t values (2, 2)")
        assert ops(heard.count(1)) == [("t", "INSERT", 2)]


def test_a_capture_is_closed_with_its_block(path: Path, app: sqlite3.Connection) -> None:
    with Capture(path, ["t"], print) as capture:
        capture.setup()
    with pytest.raises(RunTwice):
        capture.cdc()


def test_what_a_handler_raises_ends_the_run_as_it_is(path: Path, app: sqlite3.Connection) -> None:
    def fails(batch: Batch) -> None:
        sqlite3.connect(":memory:").execute("select * from nowhere")

    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        Capture(path, ["t"], fails).bootstrap()


def test_a_batch_can_be_kept_and_looked_at_twice(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print).setup()
    app.executemany("insert into t values (?, ?)", [(number, None) for number in range(5)])
    with running(path, ["t"], batch_size=2) as heard:
        heard.count(5)
    first = heard.batches[0]
    assert list(first) == list(first) == [first[0], first[1]]
    assert first[-1] == first[1]
    assert first[:1] == [first[0]]
    with pytest.raises(IndexError):
        first[2]
    assert [len(batch) for batch in heard.batches[:2]] == [2, 2]
    assert heard.batches[-1].complete
    assert not first.complete
    epoch = triggers.capture_id(app)
    assert first.id == f"{epoch}/2-3"


def test_a_missing_file_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    for method in ("setup", "teardown", "bootstrap", "cdc", "bootstrap_and_cdc"):
        with pytest.raises(SourceRefused, match="not found"):
            getattr(Capture(tmp_path / "no.db", ["t"], print), method)()
    assert not (tmp_path / "no.db").exists()


def test_a_table_that_is_not_there_sets_up_nothing(path: Path, app: sqlite3.Connection) -> None:
    with pytest.raises(TableRefused):
        Capture(path, ["t", "nowhere"], print).setup()
    assert ours(app) == []


@pytest.mark.parametrize("method", ["cdc", "bootstrap_and_cdc"])
def test_changes_of_what_was_not_set_up_cannot_be_had(
    path: Path, app: sqlite3.Connection, method: str
) -> None:
    with pytest.raises(SourceRefused, match="not set up") as caught:
        getattr(Capture(path, None, print), method)()
    assert "setup" in caught.value.remedy
    Capture(path, ["t"], print).setup()
    with pytest.raises(SourceRefused, match="tables=u"):
        getattr(Capture(path, ["t", "u"], print), method)()


def test_wrong_settings_are_refused_at_once(path: Path) -> None:
    with pytest.raises(SourceRefused, match="batch_size must be at least 1"):
        Capture(path, ["t"], print, batch_size=0)
    with pytest.raises(BadName):
        Capture(path, ["t"], print, reader="a/b")


def test_without_names_it_is_all_tables(path: Path, app: sqlite3.Connection) -> None:
    assert Capture(path, None, print).setup().tables == ("t", "u")
    app.execute("insert into t values (1, 2)")
    app.execute("insert into u values (3, 4)")
    with running(path, None) as heard:
        assert ops(heard.count(2)) == [("t", "INSERT", 1), ("u", "INSERT", 3)]
    assert Capture(path, None, print).teardown().unread == 0
    assert ours(app) == []


def test_setting_up_twice_changes_nothing(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print).setup()
    before = app.execute("pragma data_version").fetchone()
    Capture(path, "t", print).setup()
    assert app.execute("pragma data_version").fetchone() == before


@pytest.mark.meets("R42")
def test_the_teardown_of_one_table_leaves_the_others_working(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t", "u"], print).setup()
    app.execute("insert into t values (1, 2)")
    assert Capture(path, ["t"], print).teardown().unread == 1
    app.execute("insert into t values (2, 2)")
    app.execute("insert into u values (3, 4)")
    with running(path, None) as heard:
        assert ops(heard.count(1)) == [("u", "INSERT", 3)]
    Capture(path, ["u"], print).teardown()
    assert ours(app) == []
    app.execute("insert into u values (4, 4)")


def test_what_somebody_else_reads_stays(path: Path, app: sqlite3.Connection) -> None:
    for reader in ("one", "two"):
        Capture(path, ["t"], print, reader=reader).setup()
    assert Capture(path, ["t"], print, reader="one").teardown().kept == ("t",)
    app.execute("insert into t values (1, 2)")
    with running(path, ["t"], reader="two") as heard:
        heard.count(1)
    assert Capture(path, ["t"], print, reader="two").teardown().kept == ()
    assert ours(app) == []


def test_two_readers_of_a_log_each_get_everything(path: Path, app: sqlite3.Connection) -> None:
    for reader in ("one", "two"):
        Capture(path, ["t"], print, reader=reader).setup()
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(100)])
    later = [(number,) for number in range(100, 200)]
    with (
        running(path, ["t"], reader="one", batch_size=7) as one,
        running(path, ["t"], reader="two", batch_size=11) as two,
    ):
        app.executemany("insert into t values (?, 0)", later)
        expected = [("t", "INSERT", number) for number in range(200)]
        assert ops(one.count(200)) == ops(two.count(200)) == expected


def test_tables_of_one_reader_may_be_read_by_two_processes(
    path: Path, app: sqlite3.Connection
) -> None:
    Capture(path, ["t", "u"], print).setup()
    app.execute("insert into t values (1, 2)")
    app.execute("insert into u values (3, 4)")
    with running(path, ["t"]) as heard:
        assert ops(heard.count(1)) == [("t", "INSERT", 1)]
    with running(path, ["u"]) as heard:
        assert ops(heard.count(1)) == [("u", "INSERT", 3)]


@pytest.mark.parametrize("log", ["__cdc_log", "Änderungen", "my log", "order"])
def test_two_logs_in_one_database_do_not_know_of_each_other(
    path: Path, app: sqlite3.Connection, log: str
) -> None:
    Capture(path, ["t"], print).setup()
    Capture(path, ["t", "u"], print, log_table=log).setup()
    app.execute("insert into t values (1, 2)")
    with running(path, None) as ours_, running(path, None, log_table=log) as theirs:
        app.execute("insert into u values (3, 4)")
        app.execute("update t set v = 3")
        assert ops(ours_.count(2)) == [("t", "INSERT", 1), ("t", "UPDATE", 1)]
        assert ops(theirs.count(3)) == [("t", "INSERT", 1), ("u", "INSERT", 3), ("t", "UPDATE", 1)]
        assert ours_.records[0].position != theirs.records[0].position
    assert Capture(path, None, print).setup().tables == ("t", "u")  # a log is no table to capture
    with pytest.raises(TableRefused, match="Internal tables"):
        Capture(path, [log], print).setup()
    Capture(path, None, print).teardown()
    app.execute("insert into t values (2, 2)")
    with running(path, None, log_table=log) as theirs:
        assert ops(theirs.count(1)) == [("t", "INSERT", 2)]
    Capture(path, None, print, log_table=log).teardown()
    assert app.execute("select count(*) from sqlite_master").fetchone() == (2,)


def test_a_log_of_another_program_is_not_used(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create table __cdc_log (id integer primary key, operation text not null)")
    with pytest.raises(SourceRefused, match="not a capture log"):
        Capture(path, ["t"], print, log_table="__CDC_LOG").setup()
    for name in ("sqlite_log", "__headrace_mine", " "):
        with pytest.raises(SourceRefused, match="is not valid"):
            Capture(path, ["t"], print, log_table=name)


@pytest.mark.process
def test_the_library_needs_neither_spark_nor_arrow() -> None:
    program = (
        "import sys; from headrace.capture.sqlite import Capture; "
        "print(sorted({'pyspark', 'pyarrow', 'numpy', 'click', 'ssl'} & set(sys.modules)))"
    )
    done = python(
        "-c", program, env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")}, check=True
    )
    assert done.stdout.strip() == "[]"


def test_operations_have_the_numbers_of_the_change_log() -> None:
    assert dict(EVENTS) == {"insert": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}
