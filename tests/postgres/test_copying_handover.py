"""Baselines and the log make one table at every commit, whatever is written meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import psycopg
import pytest

from headrace.capture.postgres.copy import ranges
from headrace.capture.postgres.copy.reader import PostgresCopy
from headrace.capture.postgres.copy.snapshot import TransactionSnapshot, take_snapshot
from headrace.capture.postgres.decode.pgoutput import Relation, RelationLayout
from headrace.capture.postgres.position import LsnPosition
from headrace.capture.postgres.stream.spill import Spill
from headrace.capture.postgres.stream.transactions import Transactions
from headrace.changelog.change import Op
from headrace.changelog.schema import TableSchema
from headrace.errors import SourceUnreachable
from tests.postgres.copies import connecting, known, values
from tests.postgres.servers import Database, wait_until

BASELINES = 8
WRITERS = 4
KEYS = 260

Rows: TypeAlias = dict[int, Any]


@dataclass(frozen=True)
class Layouts:
    schema: TableSchema

    def layout(self, relation: Relation) -> RelationLayout | None:
        return RelationLayout(self.schema, tuple(range(len(self.schema.columns))))


@dataclass(frozen=True)
class Change:
    op: Op
    old: int | None
    new: tuple[int, Any] | None


@dataclass
class Commit:
    end: int
    xid: int
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True)
class Baseline:
    first: int
    snapshot: TransactionSnapshot
    last: int
    rows: Rows


def applied(rows: Rows, commit: Commit) -> None:
    for change in commit.changes:
        if change.op == Op.TRUNCATE:
            rows.clear()
            continue
        if change.old is not None:
            rows.pop(change.old, None)
        if change.new is not None:
            key, value = change.new
            rows[key] = value


class Recorder:
    """Reads a slot as the server decodes it, on a thread; its log is in memory."""

    def __init__(self, database: Database, schema: TableSchema) -> None:
        database.execute("create publication p for table t")
        database.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
        self._connection = database.connect()
        around = database.value("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        self._transactions = Transactions(
            Layouts(schema),
            Spill(None),
            after=0,
            position_at=lambda lsn: LsnPosition("1", 1, 0, 1, lsn),
            near_xid=around,
        )
        self.log: list[Commit] = []
        self.lock = threading.Lock()
        self.pairs: list[tuple[int, int]] = []
        self.end = 0

    def read(self) -> int:
        """Take what there is, and return how many messages it was."""
        messages = [
            bytes(data)
            for (data,) in self._connection.execute(
                "select data from pg_logical_slot_get_binary_changes('s', null, null,"
                " 'proto_version', '2', 'publication_names', 'p', 'streaming', 'on')"
            ).fetchall()
        ]
        stops = np.cumsum([len(message) for message in messages]).astype(np.int64)
        starts = np.concatenate([[0], stops[:-1]]).astype(np.int64) if messages else stops
        found = list(self._transactions.take(b"".join(messages), starts, stops))
        commits: dict[int, Commit] = {}
        for changes in found:
            for table in changes.tables:
                for row in table.rows.to_pylist():
                    commit = commits.setdefault(row["_commit"], Commit(row["_commit"], row["_xid"]))
                    commit.changes.append(_change(row))
        with self.lock:
            self.log += [commits[end] for end in sorted(commits)]
            self.pairs = self._transactions.committed.pairs()
            self.end = self.pairs[-1][0] if self.pairs else 0
        return len(messages)

    def state(self) -> tuple[int, list[tuple[int, int]]]:
        with self.lock:
            return self.end, self.pairs


def _change(row: dict[str, Any]) -> Change:
    op = Op(row["_op"])
    before, after = row["before"], row["after"]
    old = before["id"] if before else None
    return Change(op, old, (after["id"], after["v"]) if after else None)


class Writer(threading.Thread):
    """Does everything that an application may do to a table, until it is told to stop."""

    def __init__(self, database: Database, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._connection = database.connect()
        self._name = f"g{seed}"
        self._stop_it = stop
        if self._chance.random() < 0.5:
            self._connection.execute("set synchronous_commit = off")

    def run(self) -> None:
        number = 0
        while not self._stop_it.is_set():
            number += 1
            try:
                self._transaction(f"{self._name}_{number}")
            except psycopg.Error:
                # A key that is there already, a deadlock: what applications live with.
                with suppress(psycopg.Error):
                    self._connection.execute("rollback")

    def _transaction(self, name: str) -> None:
        chance, execute = self._chance, self._connection.execute
        execute("begin")
        for _ in range(chance.randint(1, 3)):
            saved = chance.random() < 0.4
            if saved:
                execute("savepoint z")
            execute(self._statement().encode())
            if saved and chance.random() < 0.4:
                execute("rollback to z")
            self._stop_it.wait(chance.random() * 0.01)
        end = chance.random()
        if end < 0.1:
            execute("rollback")
        elif end < 0.25:
            execute(f"prepare transaction '{name}'".encode())
            self._stop_it.wait(chance.random() * 0.03)
            verb = "commit" if chance.random() < 0.8 else "rollback"
            execute(f"{verb} prepared '{name}'".encode())
        else:
            execute("commit")

    def _statement(self) -> str:
        chance = self._chance
        key, other = chance.randint(1, KEYS), chance.randint(1, KEYS)
        value = chance.randint(1, 10**6)
        kind = chance.random()
        if kind < 0.35:
            return (
                f"insert into t values ({key}, {value})"
                " on conflict (id) do update set v = excluded.v"
            )
        if kind < 0.6:
            return f"update t set v = {value} where id = {key}"
        if kind < 0.7:
            return f"update t set id = {other}, v = {value} where id = {key}"
        if kind < 0.73:
            return f"update t set v = v + 1 where id between {key} and {key + 120}"
        if kind < 0.735:
            return "truncate t"
        return f"delete from t where id = {key}"


def _baseline(database: Database, recorder: Recorder) -> Baseline:
    first, committed = recorder.state()
    table, schema = known(database, "t")
    holder = take_snapshot(connecting(database), first, committed)
    copy = PostgresCopy(holder, table, schema)
    rows = dict(values(schema, copy))
    return Baseline(copy.first, holder.snapshot, copy.last, rows)


def _baselines(database: Database, recorder: Recorder) -> Iterator[Baseline]:
    while True:
        # A table that was truncated meanwhile is taken anew.
        with suppress(SourceUnreachable):
            yield _baseline(database, recorder)


@pytest.mark.ci
@pytest.mark.meets("R11", "R16", "H2", "H3")
@pytest.mark.parametrize("seed", [1, 2])
def test_every_baseline_is_exact_from_its_end_on(
    database: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 8 << 10)
    database.execute("create table t (id int primary key, v int)")
    _, schema = known(database, "t")
    recorder = Recorder(database, schema)
    database.execute("insert into t select g, 0 from generate_series(1, 200) g")
    stop, stop_reading = threading.Event(), threading.Event()

    def record() -> None:
        while not stop_reading.is_set():
            if not recorder.read():
                stop_reading.wait(0.002)

    threads = [Writer(database, 100 * seed + number, stop) for number in range(WRITERS)]
    reader = threading.Thread(target=record)
    for thread in [*threads, reader]:
        thread.start()
    baselines: list[Baseline] = []
    try:
        wait_until(lambda: len(recorder.log) > 50, what="writers to write")
        for baseline in _baselines(database, recorder):
            baselines.append(baseline)
            if len(baselines) == BASELINES:
                break
        last = max(baseline.last for baseline in baselines)
        wait_until(lambda: recorder.end > last, what="the log to pass all baselines")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        stop_reading.set()
        reader.join()
    # An asynchronous commit is flushed a moment later, or with the next one that is not.
    database.execute("create table flushes_what_came_before ()")
    while recorder.read():
        pass

    truth: Rows = {}
    shown: dict[int, Rows] = {}
    for commit in recorder.log:
        applied(truth, commit)
        shown[commit.end] = dict(truth)
    assert truth == dict(database.rows("select id, v from t"))
    for baseline in baselines:
        _check(baseline, recorder.log, shown)
    # The check H2.5 and the window would prove nothing if nobody wrote there.
    assert any(
        baseline.first < commit.end <= baseline.last
        for baseline in baselines
        for commit in recorder.log
    )


def _check(baseline: Baseline, log: list[Commit], shown: dict[int, Rows]) -> None:
    """Replay what follows F, once without what the snapshot has, and once with all of it."""
    skipping, repeating = dict(baseline.rows), dict(baseline.rows)
    following = [commit for commit in log if commit.end > baseline.first]
    window = [commit for commit in following if commit.end <= baseline.last]
    for commit in window:
        if not baseline.snapshot.sees(commit.xid):
            applied(skipping, commit)
        applied(repeating, commit)
    if window:
        assert skipping == shown[window[-1].end]
        assert repeating == shown[window[-1].end]
    for commit in following[len(window) :]:
        applied(skipping, commit)
        applied(repeating, commit)
        assert skipping == shown[commit.end]
        assert repeating == shown[commit.end]
