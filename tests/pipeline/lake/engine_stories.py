"""An engine with SQLite as the source and tables of a lake as targets."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import headrace as hr
from headrace.lake import table
from headrace.lake.rows import VALID
from headrace.spark_session.session import Spark
from tests.pipeline.lake.kinds import Kind
from tests.pipeline.lake.stories import StoryEnvironment, story
from tests.support.patience import patience

LONG = patience(300)
"""Seconds until a story gives up: each commit takes some, on a busy machine many."""

ACCOUNTS = 40
MONEY = 100


class Bank:
    """Accounts whose money moves, and never becomes more or less within a transaction."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bank.db"
        self.data = folder / "data"
        self.app = sqlite3.connect(self.path, isolation_level=None, timeout=patience())
        self._chance = random.Random(7)

    def made(self) -> Bank:
        self.app.execute("pragma journal_mode = wal")
        self.app.execute(
            "create table accounts (id integer primary key, owner text, money integer)"
        )
        rows = [(number, f"owner {number}", MONEY) for number in range(ACCOUNTS)]
        self.app.executemany("insert into accounts values (?, ?, ?)", rows)
        return self

    def work(self, transactions: int) -> None:
        """Move money, between rows that come, go and change their keys."""
        for _ in range(transactions):
            # It reads before it writes, and the recorder may write in between.
            self.app.execute("begin immediate")
            for _ in range(self._chance.randint(1, 4)):
                self._step()
            self.app.execute("commit")

    def _step(self) -> None:
        ids = [id for (id,) in self.app.execute("select id from accounts")]
        one, other = self._chance.sample(ids, 2)
        fresh = max(ids) + 1
        move = "update accounts set money = money + ? where id = ?"
        match self._chance.choice(["move", "move", "rename", "split", "join", "key"]):
            case "move":
                self.app.executemany(move, [(-7, one), (7, other)])
            case "rename":
                self.app.execute("update accounts set owner = ? where id = ?", ("new", one))
            case "split":
                self.app.execute(move, (-1, one))
                self.app.execute("insert into accounts values (?, 'split', 1)", (fresh,))
            case "join" if len(ids) > ACCOUNTS // 2:
                (money,) = self.app.execute(
                    "select money from accounts where id = ?", (one,)
                ).fetchone()
                self.app.execute(move, (money, other))
                self.app.execute("delete from accounts where id = ?", (one,))
            case _:
                self.app.execute("update accounts set id = ? where id = ?", (fresh, one))

    def rows(self) -> list[tuple[object, ...]]:
        return self.app.execute("select * from accounts order by id").fetchall()

    def engine(self, *targets: tuple[str, object], spark: Spark | None) -> hr.Engine:
        source = hr.sqlite(self.path, name="bank")
        pipelines = [
            hr.Pipeline(source, "accounts", target, name=name)  # type: ignore[arg-type]
            for name, target in targets
        ]
        return hr.Engine(*pipelines, data=self.data, spark=None if spark is None else spark.session)


def read(
    kind: Kind, spark: Spark, path: Path, version: int | None = None
) -> list[tuple[object, ...]]:
    return [tuple(row) for row in kind.rows(spark, path, version).orderBy("id").collect()]


def check_versions(kind: Kind, spark: Spark, path: Path) -> None:
    """Look at every version: whole transactions alone, and each commit of ours once."""
    history = kind.versions(spark, path)
    for version, _ in history:
        rows = read(kind, spark, path, version)
        assert sum(row[2] for row in rows) == ACCOUNTS * MONEY, version  # type: ignore[misc]
    notes = [note for _, note in history if note is not None]
    assert [note.number for note in notes] == list(range(len(notes), 0, -1))
    positions = [note.position for note in notes]
    assert positions == sorted(positions, reverse=True)


def seen(look: Callable[[], bool]) -> bool:
    """Look now and then: each look is a job, and takes from what is looked for."""
    until, pause = time.monotonic() + LONG, threading.Event()
    while not look():
        if time.monotonic() > until:
            return False
        pause.wait(0.5)
    return True


@story
def a_table_equals_the_source_through_a_mixed_workload_and_restarts(env: StoryEnvironment) -> None:
    bank = Bank(env.folder).made()
    path = env.folder / "lake" / "accounts"

    def target() -> object:
        # In Iceberg a table has a name or a folder.
        name = "bank.accounts" if env.kind.format.name == "delta" else None
        return hr.table(name, path=str(path), format=env.kind.format.name, compact_every=3)

    for _ in range(2):
        with bank.engine(("accounts", target()), spark=env.spark) as engine:
            assert engine.await_ready(LONG)
            for _ in range(3):
                bank.work(15)
                assert seen(lambda: read(env.kind, env.spark, path) == bank.rows())
        bank.work(10)  # while none runs
    check_versions(env.kind, env.spark, path)
    # The second has a value in rows of before that no change tells: they are loaded anew.
    for column in ("note text", "level integer default 3"):
        bank.app.execute(f"alter table accounts add column {column}")
        bank.app.execute("update accounts set money = money where id % 2 = 0")
        with bank.engine(("accounts", target()), spark=env.spark) as engine:
            assert seen(lambda: read(env.kind, env.spark, path) == bank.rows())
            assert engine.await_ready(LONG)
    if env.kind.format.name == "delta":
        named = env.spark.session.sql("select count(*) from bank.accounts").collect()
        assert named[0][0] == len(bank.rows())


@story
def all_modes_together_tell_the_same(env: StoryEnvironment) -> None:
    check_all_modes(env)


@story
def all_modes_tell_the_same_where_executors_prepare(env: StoryEnvironment) -> None:
    check_all_modes(env, staged_from=1)
    check_nothing_is_left_of_batches(env)


@story
def all_modes_tell_the_same_where_rows_come_by_a_file(env: StoryEnvironment) -> None:
    with patch.multiple(table, _JOINED_BY_FILE=1, _ADDED_BY_FILE=1):
        check_all_modes(env)
    check_nothing_is_left_of_batches(env)


@story
def columns_may_have_names_of_ours_where_executors_prepare(env: StoryEnvironment) -> None:
    bank, lake = Bank(env.folder).made(), env.folder / "lake"
    for name, ours in (("owner", "_time"), ("money", "_commit")):
        bank.app.execute(f"alter table accounts rename column {name} to {ours}")
    for ours in ("_op text", "_ordinal integer", "_position text"):
        bank.app.execute(f"alter table accounts add column {ours}")
    change = "update accounts set _time = 'at ' || id, _commit = id, _op = 'op', _ordinal = 5"
    bank.app.execute(f"{change}, _position = 'here'")
    format = env.kind.format.name
    targets = [
        (mode, hr.table(path=str(lake / mode), format=format, mode=mode, staged_from=1))
        for mode in ("merge", "history")
    ]
    with bank.engine(*targets, spark=env.spark) as engine:
        assert engine.await_ready(LONG)
        bank.app.execute(f"{change} + id, _position = 'there' where id % 2 = 0")
        bank.app.execute("update accounts set id = id + 1000 where id < 9")
        bank.app.execute("delete from accounts where id = 20")
        for look in (read, current):
            path = lake / ("merge" if look is read else "history")
            assert seen(lambda: look(env.kind, env.spark, path) == bank.rows())  # noqa: B023


def check_nothing_is_left_of_batches(env: StoryEnvironment) -> None:
    check_versions(env.kind, env.spark, env.folder / "lake" / "merge")
    left = [path for path in (env.folder / "data/tables/staging").rglob("*") if path.is_file()]
    assert left == []


def check_all_modes(env: StoryEnvironment, staged_from: int = 100_000) -> None:
    bank = Bank(env.folder).made()
    lake = env.folder / "lake"
    kind, format = env.kind, env.kind.format.name
    targets: list[tuple[str, object]] = [
        (mode, hr.table(path=str(lake / mode), format=format, mode=mode, staged_from=staged_from))
        for mode in ("merge", "append", "history")
    ]
    targets.append(
        ("parquet", hr.table(path=str(lake / "parquet"), format="parquet", mode="append"))
    )
    with bank.engine(*targets, spark=env.spark) as engine:
        assert engine.await_ready(LONG)
        bank.work(30)
        read_all = {
            "merge": lambda: read(kind, env.spark, lake / "merge"),
            "append": lambda: replayed(env.spark, format, lake / "append"),
            "history": lambda: current(kind, env.spark, lake / "history"),
            "parquet": lambda: replayed(env.spark, "parquet", lake / "parquet"),
        }
        for look in read_all.values():
            assert seen(lambda look=look: look() == bank.rows())  # type: ignore[misc]


def replayed(spark: Spark, format: str, path: Path) -> list[tuple[object, ...]]:
    """Return the rows that a table of changes comes to."""
    there: dict[int, tuple[object, ...]] = {}
    rows = spark.bulk.read.format(format).load(str(path)).collect()
    # A delete of an old key stands at the position of its row, and comes first.
    for row in sorted(rows, key=lambda row: (row._position, row._change_type)):
        if row._change_type == "truncate":
            there.clear()
        elif row._change_type == "delete":
            there.pop(row.id, None)
        else:
            there[row.id] = tuple(row)[:3]
    return [there[id] for id in sorted(there)]


def current(kind: Kind, spark: Spark, path: Path) -> list[tuple[object, ...]]:
    rows = kind.rows(spark, path).where("_valid_to is null")
    return [tuple(row)[: -len(VALID)] for row in rows.orderBy("id").collect()]
