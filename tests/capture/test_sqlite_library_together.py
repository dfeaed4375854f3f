"""The library under writers that never stop, beside an engine, and beside the peer's form."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from pathlib import Path

import pytest

from headrace.capture.sqlite import Capture, Record
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.testing.contracts import read_all
from tests.capture.library import Heard, Running, ops, running
from tests.support.patience import patience


def write(path: Path, seed: int, stop: threading.Event) -> None:
    """Insert, change, move and delete rows, some to a transaction, until told to stop."""
    chance = random.Random(seed)
    app = sqlite3.connect(path, isolation_level=None, timeout=patience())
    app.execute("pragma synchronous = off")
    steps = 0
    while steps < 300 or not stop.is_set():
        app.execute("begin immediate")
        for _ in range(chance.randrange(1, 6)):
            key, other = chance.randrange(60), chance.randrange(60)
            match chance.randrange(5):
                case 0 | 1:
                    app.execute("insert or replace into t values (?, ?)", (key, chance.random()))
                case 2:
                    app.execute("update t set v = ? where id = ?", (chance.random(), key))
                case 3:
                    app.execute("update or ignore t set id = ? where id = ?", (other, key))
                case _:
                    app.execute("delete from t where id = ?", (key,))
        app.execute(chance.choice(["commit", "commit", "commit", "rollback"]))
        steps += 1
    app.close()


def replayed(records: list[Record]) -> dict[object, object]:
    """Return the table that a handler would have, who does as the records say."""
    state: dict[object, object] = {}
    for record in records:
        if record.operation == "BOOTSTRAP":
            state.clear()
        if record.before is not None:
            state.pop(record.before["id"], None)
        if record.after is not None:
            state[record.after["id"]] = record.after["v"]
    return state


@pytest.mark.meets("R43")
@pytest.mark.parametrize("seed", range(4))
def test_rows_and_changes_together_are_the_table(
    path: Path, app: sqlite3.Connection, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.copy.CHUNK_ROWS", 7)
    app.execute("create table t (id integer primary key, v)")
    app.executemany("insert into t values (?, 0)", [(number,) for number in range(60)])
    Capture(path, ["t"], print).setup()
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(path, seed, stop))
    writer.start()
    heard = Heard()
    run = Running(Capture(path, ["t"], heard, batch_size=5), "bootstrap_and_cdc", heard)
    try:
        # By their number alone: it is asked with every batch, however many there are.
        heard.until(lambda all: len(all) > 400)
    finally:
        stop.set()
        writer.join()
    app.execute("insert or replace into t values (1000, 'last')")
    records = heard.until(lambda all: (all[-1].after or {}).get("id") == 1000)
    run.capture.close()
    run.join()
    assert sum(record.operation in ("UPDATE", "DELETE") for record in records) > 50
    assert replayed(records) == dict(app.execute("select * from t"))
    numbers = [int(str(r.position).partition("/")[2]) for r in records]
    assert numbers == sorted(numbers)


def test_an_engine_and_the_library_read_one_log(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create table t (id integer primary key, v)")
    Capture(path, ["t"], print).setup()
    source = SQLiteSource(sqlite(path).spec, "shop")
    source.describe(["t"])
    source.open(None)
    app.execute("insert into t values (1, 2)")
    with running(path, ["t"]) as heard:
        assert ops(heard.count(1)) == [("t", "INSERT", 1)]
    assert [part.rows.num_rows for changes in read_all(source) for part in changes.tables] == [1]
    source.close()
    # The engine may come back: what it reads stays.
    assert Capture(path, ["t"], print).teardown().kept == ("t",)
    app.execute("insert into t values (2, 2)")


def test_parsed_it_is_what_the_peers_triggers_make(path: Path, app: sqlite3.Connection) -> None:
    columns = ["id integer primary key", "a text", "b real", "c int", "d blob", "e"]
    app.execute(f"create table t ({', '.join(columns)})")
    image = "json_object('id', {0}.id, 'a', {0}.a, 'b', {0}.b, 'c', {0}.c, 'e', {0}.e)"
    # As it does it, beside ours: JSON text made by SQLite in the application's transaction.
    app.execute("create table peer (id integer primary key, operation, before, after)")
    Capture(path, ["t"], print).setup()
    for event, before, after in (
        ("insert", "null", image.format("NEW")),
        ("update", image.format("OLD"), image.format("NEW")),
        ("delete", image.format("OLD"), "null"),
    ):
        app.execute(
            f"create temp trigger peer_{event} after {event} on main.t begin insert into peer"
            f" (operation, before, after) values ('{event.upper()}', {before}, {after}); end"
        )
    app.execute("insert into t values (1, 'é\"\n😀', 0.5, 9007199254740993, x'01', null)")
    app.execute("insert into t values (2, '', -1e300, -1, null, 'true')")
    app.execute("update t set a = '</script>', e = 7 where id = 1")
    app.execute("delete from t where id = 2")
    with running(path, ["t"]) as heard:
        heard.count(4)
    ours = [
        {name: change[name] for name in ("operation", "before", "after")}
        for batch in heard.batches
        for change in map(json.loads, batch.json_lines().splitlines())
    ]
    theirs = [
        {
            "operation": operation,
            "before": json.loads(before) if before else None,
            "after": json.loads(after) if after else None,
        }
        for operation, before, after in app.execute(
            "select operation, before, after from peer order by id"
        )
    ]
    assert ours == theirs
