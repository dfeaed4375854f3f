"""What the library does for readers, with each kind of table: no key, wide, REPLACE, collations."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from headrace.capture.sqlite import Batch, Capture, Record, Retention
from headrace.capture.sqlite.library import run as module
from headrace.capture.sqlite.library.handlers import Post
from headrace.capture.sqlite.library.records import RecordFormat, TableColumns, TableRows
from headrace.errors import CaptureExpired, RecordsRefused, SourceRefused, TargetError
from tests.capture.library import Heard, Running, running

WIDE = ", ".join(f"c{number}" for number in range(1, 1_200))


@dataclass(frozen=True)
class Kind:
    """A table `t`, and what is written to it."""

    create: str
    key: str
    """The first column; for a table without a key it is the rowid."""

    statements: Sequence[str]


KINDS = {
    "no key": Kind(
        "create table t (v)",
        "rowid",
        [
            "insert into t values ('bad'), ('b'), ('b')",
            "update t set v = 'fine' where v = 'bad'",
            "delete from t where rowid = 2",
        ],
    ),
    "wide": Kind(
        f"create table t (id integer primary key, v, {WIDE})",
        "id",
        [
            "insert into t (id, v, c1199) values (1, 'bad', 1), (2, 'b', 2)",
            "update t set v = 'fine', c1199 = null where id = 1",
            "update t set c500 = 5",
            "delete from t where id = 2",
        ],
    ),
    "stash": Kind(
        "create table t (id integer primary key, v, u unique)",
        "id",
        [
            "insert into t values (1, 'bad', 1), (2, 'b', 2), (3, 'c', 3)",
            "update or replace t set v = 'fine', u = 2 where id = 1",
            "insert or replace into t values (4, 'd', 3)",
        ],
    ),
    "nocase": Kind(
        "create table t (k text collate nocase primary key, v) without rowid",
        "k",
        [
            "insert into t values ('a', 'bad'), ('B', 'b')",
            "update t set v = 'fine' where k = 'A'",
            "insert or replace into t values ('b', 'c')",
        ],
    ),
    "tangled": Kind(
        "create table t (id integer primary key, v, p references t on update cascade)",
        "id",
        [
            "insert into t values (1, 'bad', 1), (2, 'b', 1), (3, 'c', 2)",
            "update t set id = id + 10, v = 'fine' where id = 1",
            "update t set id = id + 100 where id in (2, 3)",
            "delete from t where id = 103",
        ],
    ),
}

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture
def table(path: Path, app: sqlite3.Connection, kind: Kind) -> Kind:
    """The table, captured and written to; `e` gets a row at the end."""
    app.execute(kind.create)
    app.execute("create table e (id integer primary key)")
    app.execute("pragma foreign_keys = on")
    Capture(path, None, print, retention=Retention(history_seconds=3600)).setup()
    write(app, kind)
    return kind


def write(app: sqlite3.Connection, kind: Kind) -> None:
    for number, statement in enumerate([*kind.statements, "insert into e default values"]):
        (last,) = app.execute("select max(seq) from __headrace_log").fetchone()
        app.execute(statement)
        # Each statement has a time of its own.
        app.execute("update __headrace_log set ts = ts + ? where seq > ?", (20 * number, last))


def read(
    path: Path, handler: Heard | None = None, method: str = "cdc", last: int = 1, **how: object
) -> list[Record]:
    """Run until the row `last` of `e` comes; return the records of `t`."""
    heard = handler or Heard()
    options = {
        name: how.pop(name)
        for name in list(how)
        if name not in ("resume", "from_position", "from_time")
    }
    capture = Capture(path, None, heard, **options)  # type: ignore[arg-type]
    run = Running(capture, method, heard, **how)  # type: ignore[arg-type]
    heard.until(
        lambda all: any(each.table == "e" and (each.after or {}).get("id") == last for each in all)
    )
    capture.close()
    run.join()
    assert run.error is None
    return [each for each in heard.records if each.table == "t"]


def state(records: Sequence[Record], key: str) -> dict[object, object]:
    """Return the rows that the records lead to."""
    rows: dict[object, object] = {}
    for record in records:
        if record.operation == "BOOTSTRAP":
            rows.clear()
        if record.before is not None:
            rows.pop(record.before[key], None)
        if record.after is not None:
            rows[record.after[key]] = tuple(record.after.values())
    return rows


def stored(app: sqlite3.Connection, key: str) -> dict[object, object]:
    """Return the rows of `t` by their key."""
    names = "rowid, *" if key == "rowid" else "*"
    return {row[0]: row for row in app.execute(f"select {names} from t")}


def told(records: Sequence[Record]) -> list[object]:
    return [(each.position, each.operation, each.before, each.after) for each in records]


# --- the way back ---------------------------------------------------------------------------------


@each_kind
def test_a_reader_goes_back_to_any_position_and_time(
    path: Path, app: sqlite3.Connection, table: Kind
) -> None:
    records = read(path)
    assert state(records, table.key) == stored(app, table.key)
    for at in range(len(records) - 1):
        rest = records[at + 1 :]
        again = read(path, from_position=records[at].position)
        # In the middle of a statement that is put in order, it begins with that statement.
        assert told(again)[-len(rest) :] == told(rest)
        assert len(again) == len(rest) or table is KINDS["tangled"]
    for when in sorted({each.timestamp for each in records})[-2:]:
        rest = [each for each in records if each.timestamp >= when]
        assert told(read(path, from_time=when)) == told(rest)
    assert told(read(path, from_position="earliest")) == told(records)


@pytest.mark.parametrize("kind", [KINDS["wide"], KINDS["tangled"]], ids=["wide", "tangled"])
def test_a_log_whose_first_rows_belong_together_is_read_from_their_end(
    path: Path, app: sqlite3.Connection, table: Kind
) -> None:
    records = read(path)
    update = next(each for each in records if each.operation == "UPDATE")
    number = int(str(update.position).rpartition("/")[2])
    first = number - (table is KINDS["wide"])
    app.execute("delete from __headrace_log where seq < ?", (first,))
    again = told(read(path, from_position="earliest"))
    assert again == told(records)[-len(again) :]
    assert told([update])[0] not in again
    epoch = str(update.position).partition("/")[0]
    with pytest.raises(CaptureExpired):
        Capture(path, None, print).cdc(from_position=f"{epoch}/{first}")


# --- limits ---------------------------------------------------------------------------------------


@each_kind
def test_a_reader_that_has_expired_copies_the_table(
    path: Path, app: sqlite3.Connection, table: Kind
) -> None:
    Capture(path, None, print, retention=Retention(bytes=20)).setup()
    Capture(path, None, print).prune()
    with pytest.raises(CaptureExpired):
        Capture(path, None, print).cdc()

    def stop(batch: Batch) -> None:
        if batch[0].table == "t":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # so that `t` is still to be copied
        Capture(path, None, stop, on_expired="copy", batch_size=1).cdc()
    app.execute("update t set v = 'later'")
    with pytest.raises(CaptureExpired):
        Capture(path, None, print).cdc()
    heard = Heard()
    app.execute("insert into e values (2)")
    records = read(path, heard, last=2, on_expired="copy")
    assert records[0].operation == "BOOTSTRAP"
    assert state(records, table.key) == stored(app, table.key)


@pytest.mark.parametrize("kind", [KINDS["wide"]], ids=["wide"])
def test_an_update_of_a_wide_table_is_one_change_that_was_not_read(path: Path, table: Kind) -> None:
    assert Capture(path, ["t"], print).teardown().unread == 6


# --- records that a handler refuses ---------------------------------------------------------------


class Picky(Heard):
    """A handler that does not take rows with the value `bad`."""

    def __call__(self, batch: Batch) -> None:
        wrong = [at for at, each in enumerate(batch) if (each.after or {}).get("v") == "bad"]
        super().__call__([each for at, each in enumerate(batch) if at not in wrong])  # type: ignore[arg-type]
        if wrong:
            raise RecordsRefused("not a value", records=wrong)


@each_kind
def test_what_is_refused_is_delivered_later_and_leads_to_the_table(
    path: Path, app: sqlite3.Connection, table: Kind, tmp_path: Path
) -> None:
    heard, dead = Picky(), tmp_path / "dead.db"
    read(path, heard, dead_letters=dead)
    letters = Capture(path, None, print, dead_letters=dead)
    kinds = [each.kind for each in letters.dead_records()]
    assert kinds[0] == "refused"
    assert set(kinds[1:]) == {"waiting"}
    for each in letters.dead_records():
        line = json.loads(each.batch.json_lines(envelope=True))
        image = each.record.after or each.record.before or {}
        assert line["key"] == {table.key: image[table.key]}
    taken = Heard()
    Capture(path, None, taken, dead_letters=dead).redeliver()
    assert letters.dead_records() == []
    # They are of other keys, or were taken already.
    together = state([each for each in heard.records if each.table == "t"], table.key)
    for record in taken.records:
        if record.before is not None:
            together.pop(record.before[table.key], None)
        if record.after is not None:
            together[record.after[table.key]] = tuple(record.after.values())
    assert together == stored(app, table.key)


def test_keys_that_are_equal_as_numbers_wait_for_each_other(
    path: Path, app: sqlite3.Connection, tmp_path: Path
) -> None:
    app.execute("create table t (k primary key, v)")
    app.execute("create table e (id integer primary key)")
    Capture(path, None, print).setup()
    app.execute("insert into t values (1, 'bad')")
    app.execute("insert or replace into t values (1.0, 'fine')")
    app.execute("insert into e values (1)")
    heard, dead = Picky(), tmp_path / "dead.db"
    capture = Capture(path, None, heard, dead_letters=dead, batch_size=1)
    run = Running(capture, "cdc", heard)
    assert [each.table for each in heard.count(1)] == ["e"]
    capture.close()
    run.join()
    assert [each.kind for each in capture.dead_records()] == ["refused", "waiting"]


# --- the envelope ---------------------------------------------------------------------------------


@each_kind
def test_each_envelope_has_key_schema_and_commit_group(
    path: Path, app: sqlite3.Connection, table: Kind
) -> None:
    with running(path, None, "bootstrap_and_cdc") as heard:
        heard.until(lambda all: {each.table for each in all} == {"t", "e"})
        app.execute("begin")
        app.execute("update t set v = 'new'")
        app.execute("delete from t")
        app.execute("commit")
        heard.until(lambda all: all[-1].operation == "DELETE" and not app.in_transaction)
    lines: list[Mapping[str, object]] = [
        json.loads(line)
        for batch in heard.batches
        for line in batch.json_lines(envelope=True).splitlines()
    ]
    lines = [line for line in lines if line["table"] == "t"]
    assert [line["operation"] for line in lines].count("BOOTSTRAP_END") == 1
    changes = [line for line in lines if not line["bootstrap"]]
    assert {line["schema"] for line in lines} == {changes[0]["schema"]}
    for line in changes:
        image = line["after"] or line["before"]
        assert line["key"] == {table.key: image[table.key]}  # type: ignore[index]
    assert {line["group"] for line in changes} == {changes[-1]["position"]}
    assert [line["group_ends"] for line in changes] == [False] * (len(changes) - 1) + [True]


def test_the_end_of_a_table_is_sent_only_in_envelopes() -> None:
    shape = TableColumns("t", ("id",), ("",), (0,))
    end = Batch(TableRows([], shape, begins=False, ts=0, position=None, ends=True))
    url = "http://localhost:1"  # where nobody answers
    Post(url, RecordFormat(), retry_seconds=0)(end)
    with pytest.raises(TargetError):
        Post(url, RecordFormat(envelope=True), retry_seconds=0)(end)


# --- a bootstrap that was interrupted -------------------------------------------------------------


class Cut(Exception):
    """The end of a run, in its handler."""


@pytest.mark.meets("R43")
@pytest.mark.parametrize(
    ("create", "key", "between", "continues"),
    [
        pytest.param("v text", "rowid", "delete from t where v = 'k3'", True, id="no key"),
        pytest.param("v text", "rowid", "vacuum", False, id="no key, vacuum"),
        pytest.param(
            "v text collate nocase primary key",
            "v",
            "insert or replace into t values ('K1'), ('K12')",
            True,
            id="nocase",
        ),
        pytest.param(
            "v text, primary key (v collate nocase)",
            "v",
            "insert or replace into t values ('K1'), ('K12')",
            True,
            id="nocase in the key only",
        ),
        pytest.param(
            "v text collate mine primary key",
            "v",
            "insert or replace into t values ('K1'), ('K12')",
            False,
            id="a collation of the application's",
        ),
        pytest.param("v text primary key", "v", "delete from t where v = 'k3'", True, id="nulls"),
    ],
)
def test_a_bootstrap_continues_in_the_order_of_the_key(
    path: Path,
    app: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    create: str,
    key: str,
    between: str,
    continues: bool,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 4)
    monkeypatch.setattr(module, "COPY_POINT_SECONDS", 0.0)
    app.create_collation("mine", lambda one, other: (one > other) - (one < other))
    app.execute(f"create table t ({create})")
    app.execute("create table e (id integer primary key)")
    app.execute("insert into t values ('gone')")
    app.executemany("insert into t values (?)", [(f"k{number}",) for number in range(10, 30)])
    app.execute("delete from t where v = 'gone'")
    if request.node.callspec.id == "nulls":
        app.execute("insert into t values (null), (null)")
    Capture(path, None, print).setup()
    first, second = Heard(), Heard()

    def handle(batch: Batch) -> None:
        if len([each for each in first.records if each.table == "t"]) > 8:
            raise Cut
        first(batch)

    with pytest.raises(Cut):
        Capture(path, None, handle, batch_size=3).bootstrap_and_cdc()
    app.execute(between)
    app.execute("insert into e values (1)")
    records = read(path, second, "bootstrap_and_cdc", resume=True)
    began = [each.operation for each in records if each.operation == "BOOTSTRAP"]
    assert began == ([] if continues else ["BOOTSTRAP"])
    seen = [each for each in first.records if each.table == "t"]
    if continues:
        again = {str(each.after) for each in seen} & {str(each.after) for each in records}
        assert again <= {"None"}
    every = state([*seen, *records], key)
    expected = stored(app, key)
    every.pop(None, None)
    expected.pop(None, None)
    assert every == expected


# --- a log of format 1 ----------------------------------------------------------------------------


@pytest.fixture
def format_1(app: sqlite3.Connection) -> None:
    """A log with changes that its readers, `default` and `other`, have not read."""
    app.executescript(Path(__file__).with_name("sqlite_format_1.sql").read_text())
    app.execute("pragma journal_mode = wal")


def changes(path: Path, number: int, reader: str = "other", **how: object) -> list[Record]:
    heard = Heard()
    capture = Capture(path, ["t"], heard, reader=reader)
    run = Running(capture, "cdc", heard, **how)  # type: ignore[arg-type]
    heard.count(number)
    capture.close()
    run.join()
    assert run.error is None
    return heard.records


@pytest.mark.usefixtures("format_1")
def test_an_upgrade_keeps_what_other_readers_have_not_read(
    path: Path, app: sqlite3.Connection
) -> None:
    assert [each.unread for each in Capture(path, None, print).readers()] == [5, 5, 5]
    with running(path, None) as heard:
        heard.count(5)
    app.execute("update t set v = 2")
    Capture(path, ["t"], print, reader="other", retention=Retention(history_seconds=1e9)).setup()
    records = changes(path, 5)
    assert [each.operation for each in records] == [
        *("INSERT", "INSERT", "UPDATE", "DELETE", "UPDATE")
    ]
    # The way back, to before the upgrade.
    assert told(changes(path, 5, from_position="earliest")) == told(records)
    assert told(changes(path, 4, from_position=records[0].position)) == told(records[1:])
    when: datetime = records[2].timestamp
    assert told(changes(path, 3, from_time=when)) == told(records[2:])
    app.execute("delete from t")
    assert Capture(path, None, print, reader="other").teardown().unread == 1


@pytest.mark.usefixtures("format_1")
def test_a_reader_of_a_log_of_format_1_may_expire(path: Path, app: sqlite3.Connection) -> None:
    Capture(path, ["t"], print, reader="other", retention=Retention(bytes=1)).setup()
    assert {each.reader for each in Capture(path, None, print).readers() if each.expired} == {
        "other"
    }
    with pytest.raises(CaptureExpired):
        Capture(path, ["t"], print, reader="other").cdc()
    with running(path, None) as heard:
        heard.count(5)  # the other one has all of it
    with running(path, ["t"], reader="other", on_expired="copy") as heard:
        assert [each.after for each in heard.count(2)] == [None, {"id": 1, "v": 1.5}]


@pytest.mark.usefixtures("format_1")
def test_changes_of_format_1_have_keys_for_envelopes_and_dead_letters(
    path: Path, app: sqlite3.Connection, tmp_path: Path
) -> None:
    dead = tmp_path / "dead.db"
    heard = Heard()

    def refuse(batch: Batch) -> None:
        heard(batch)
        if wrong := [at for at, each in enumerate(batch) if (each.after or {}).get("v") == "a"]:
            raise RecordsRefused("not a value", records=wrong)

    capture = Capture(path, ["t"], refuse, dead_letters=dead)
    run = Running(capture, "cdc", heard)
    heard.count(4)
    app.execute("update t set v = 3")
    # The handler is not called for a change behind a dead letter, but for the row after it.
    app.execute("insert into t values (2, 0)")
    heard.until(lambda all: (all[-1].after or {}).get("id") == 2)
    capture.close()
    run.join()
    lines = [json.loads(each.batch.json_lines(envelope=True)) for each in capture.dead_records()]
    assert [line["operation"] for line in lines] == ["INSERT", "UPDATE", "UPDATE"]
    assert [line["key"] for line in lines] == [{"id": 1}] * 3
    assert [line["schema"] for line in lines][:2] == [1, 1]
    assert lines[2]["schema"] > 1


# --- nothing to capture ---------------------------------------------------------------------------


def test_an_ephemeral_reader_leaves_nothing_in_a_file_without_tables(
    path: Path, app: sqlite3.Connection
) -> None:
    with pytest.raises(SourceRefused, match="No tables"):
        Capture(path, None, print, ephemeral=True).cdc()
    assert app.execute("select count(*) from sqlite_master").fetchone() == (0,)
