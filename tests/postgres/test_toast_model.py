"""
Changes that lack values, against a model of a server that leaves them out.

The model runs transactions on a table of a few keys, takes a snapshot somewhere in between that
sees some of them and not others, and lets a copy pass by in pieces among the changes. Whoever
begins with the copy's rows and applies every change after F must have the exact table from H
on, and no change may keep its mark (R11, R21).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.position import LsnPosition
from headrace.capture.postgres.server.catalog import CatalogColumn, CatalogTable, Leaf, UniqueIndex
from headrace.capture.postgres.toast import unchanged_values as toast_module
from headrace.capture.postgres.toast.store import Cell, StoredColumns, joined
from headrace.capture.postgres.toast.unchanged_values import Toast
from headrace.changelog.change import Change, Changes, Op, TableChanges, as_segment
from headrace.changelog.history import TransactionSnapshot
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType

SCHEMA = TableSchema(
    "orders",
    (
        Column("id", ValueType("int64"), 1),
        Column("n", ValueType("int64"), 2),
        Column("body", ValueType("text"), 3),
        Column("total", ValueType("decimal", 30, 2), 4),
    ),
    ("id",),
    whole_before=False,
)
Rows = dict[int, dict[str, object]]


def column(number: int, name: str, *, toastable: bool) -> CatalogColumn:
    return CatalogColumn(
        number, name, 25, -1, 25, -1, "", True, False, False, number == 1, toastable, None, False
    )


PRIMARY = UniqueIndex("orders_pkey", ("id",), True, False, True, True)
TABLE = CatalogTable(
    name="orders",
    oid=1,
    namespace="public",
    table="orders",
    kind="r",
    persistence="p",
    identity="d",
    columns=(
        column(1, "id", toastable=False),
        column(2, "n", toastable=False),
        column(3, "body", toastable=True),
        column(4, "total", toastable=True),
    ),
    indexes=(PRIMARY,),
    leaves=(Leaf(1, "public", "orders", 1, 1, "r", "p", "d", (PRIMARY,)),),
    tree=frozenset(),
    partition=False,
)


def place(lsn: int) -> LsnPosition:
    return LsnPosition("1", 1, 0, 1, lsn)


@dataclass
class Made:
    """A change as the server sends it, and as it should be."""

    change: Change
    unsent: list[int] | None = None


@dataclass
class Commit:
    at: int
    xid: int
    keys: set[int]
    changes: list[Made]
    after: Rows
    """The whole table behind it."""


class Server:
    """Makes transactions."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.rows: Rows = {}
        self.commits: list[Commit] = []
        self.number = 0

    def commit(self) -> Commit:
        at, keys, made = 100 + 10 * len(self.commits), set[int](), list[Made]()
        for ordinal in range(self.chance.randint(1, 4)):
            made.append(self._change(at, ordinal, keys))
        after = {key: dict(row) for key, row in self.rows.items()}
        commit = Commit(at, 1_000 + len(self.commits), keys, made, after)
        self.commits.append(commit)
        return commit

    def _change(self, at: int, ordinal: int, keys: set[int]) -> Made:
        self.number += 1
        key = self.chance.randint(1, 4)
        keys.add(key)

        def of(op: Op, before: object = None, after: object = None) -> Change:
            return Change(op, at, ordinal, at, before, after)  # type: ignore[arg-type]

        if self.chance.random() < 0.03:
            keys.update(range(1, 10))
            self.rows = {}
            return Made(of(Op.TRUNCATE))
        if (row := self.rows.get(key)) is None:
            fresh: dict[str, object] = {
                "id": key,
                "n": self.number,
                "body": self._body(),
                "total": None,
            }
            self.rows[key] = fresh
            return Made(of(Op.INSERT, after=dict(fresh)))
        if self.chance.random() < 0.2:
            del self.rows[key]
            return Made(of(Op.DELETE, before={"id": key}))
        row = {**row, "n": self.number}
        unsent = [3]
        if self.chance.random() < 0.25:
            row["body"], unsent = self._body(), []
        # A number is short, and sent each time; unless it is null, it may be left out as well.
        if row["total"] is not None and self.chance.random() < 0.5:
            unsent.append(4)
        else:
            row["total"] = self.chance.choice([None, self.number])
        if row["body"] is None:
            unsent = [each for each in unsent if each != 3]
        before = None
        free = [each for each in range(1, 6) if each not in self.rows]
        if free and self.chance.random() < 0.3:
            before = {"id": key}
            del self.rows[key]
            row["id"] = key = self.chance.choice(free)
            keys.add(key)
        self.rows[key] = row
        return Made(of(Op.UPDATE, before, dict(row)), unsent or None)

    def _body(self) -> str | None:
        return None if self.chance.random() < 0.1 else f"body {self.number}"


@dataclass
class Held:
    """Stands in for a holder, and for what its snapshot has."""

    first: int
    last: int
    snapshot: TransactionSnapshot
    rows: Rows
    alive: bool = True
    id: str = ""
    asked: list[int] = field(default_factory=list)


class Lookup:
    def __init__(self, holder: Held, table: CatalogTable, where: str) -> None:
        self.holder = holder

    def rows(
        self, shape: StoredColumns, texts: list[list[str]]
    ) -> list[tuple[bytes, tuple[Cell, ...]]]:
        wanted = [int(text) for text in texts[0]]
        self.holder.asked += wanted
        return [kept(self.holder.rows[key]) for key in wanted if key in self.holder.rows]

    def close(self) -> None:
        pass


def kept(row: dict[str, object]) -> tuple[bytes, tuple[Cell, ...]]:
    body, total = row["body"], row["total"]
    assert isinstance(row["id"], int)
    number = None if total is None else int(str(total)) * 100
    return joined([row["id"].to_bytes(8, "little")]), (
        None if body is None else str(body).encode(),
        None if number is None else number.to_bytes(16, "little"),
    )


def sent(commits: list[Commit]) -> Changes:
    """Return commits as they come: without what was left out."""
    made: list[Made] = [each for commit in commits for each in commit.changes]
    stripped = []
    for each in made:
        after = None if each.change.after is None else dict(each.change.after)
        for number in each.unsent or ():
            assert after is not None
            after[SCHEMA.columns[number - 1].name] = None
        change = each.change
        xid = next(commit.xid for commit in commits if commit.at == change.commit)
        stripped.append(
            Change(change.op, change.commit, change.ordinal, 0, change.before, after, xid)
        )
    rows = as_segment(SCHEMA, stripped)
    rows = rows.set_column(
        rows.schema.get_field_index("_unsent"),
        rows.schema.field("_unsent"),
        [pa.array([each.unsent for each in made], rows.schema.field("_unsent").type)],
    )
    return Changes([TableChanges(SCHEMA, rows)], place(commits[-1].at))


def received(changes: Iterator[Changes]) -> list[dict[str, object]]:
    parts = list(changes)
    assert [part.ends for part in parts] == [False] * (len(parts) - 1) + [True]
    tables = [table.rows for part in parts for table in part.tables]
    assert all(rows.schema == SCHEMA.segment for rows in tables)
    return [row for rows in tables for row in rows.to_pylist()]


def apply(rows: Rows, change: dict[str, object]) -> None:
    before, after = change["before"], change["after"]
    assert change["_unsent"] is None, change
    if change["_op"] == Op.TRUNCATE:
        rows.clear()
    if isinstance(before, dict):
        rows.pop(before["id"], None)
    if isinstance(after, dict):
        rows[after["id"]] = after


def seen(chance: random.Random, commits: list[Commit], first: int, last: int) -> set[int]:
    """Return xids that a snapshot sees: who waited for a row's lock is not seen before."""
    found: set[int] = set()
    hidden: set[int] = set()
    prefer = chance.random()
    for commit in commits:
        free = commit.at <= first or (commit.at <= last and chance.random() < prefer)
        if free and not commit.keys & hidden:
            found.add(commit.xid)
        else:
            hidden |= commit.keys
    return found


def state_of(commits: list[Commit], visible: set[int]) -> Rows:
    rows: Rows = {}
    for commit in commits:
        if commit.xid in visible:
            for made in commit.changes:
                change = made.change
                apply(
                    rows,
                    {
                        "_op": change.op,
                        "_unsent": None,
                        "before": change.before,
                        "after": None if change.after is None else dict(change.after),
                    },
                )
    return rows


def copied(rows: Rows) -> pa.RecordBatch:
    arrays = [
        column.type.to_arrow([row[column.name] for row in rows.values()])[0]
        for column in SCHEMA.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow)


@pytest.mark.meets("R21", "R11", "PG-14")
@pytest.mark.parametrize("seed", range(60))
def test_from_h_on_a_table_that_lacks_nothing_is_what_the_server_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(toast_module, "RowLookup", Lookup)
    monkeypatch.setattr(toast_module, "PAGE_BYTES", 0)
    if chance.random() < 0.3:
        monkeypatch.setattr(toast_module, "PART_BYTES", 20)
    server = Server(chance)
    commits = [server.commit() for _ in range(chance.randint(12, 40))]
    at_f = chance.randrange(len(commits) - 6)
    at_h = chance.randrange(at_f, len(commits) - 4)
    first, last = commits[at_f].at, commits[at_h].at
    visible = seen(chance, commits, first, last)
    upto = max(visible) + 1
    running = frozenset(c.xid for c in commits if c.xid < upto) - visible
    snapshot = TransactionSnapshot(min(running, default=upto), upto, running)
    holder = Held(first, last, snapshot, state_of(commits, visible))

    toast = Toast(PostgresOptions("shop", ""), f"shop@{tmp_path}")
    tables, schemas = {"orders": TABLE}, {"orders": SCHEMA}
    toast.open(tables, schemas, place(1), None, None, False)
    received(toast.completed(iter([sent(commits[: at_f + 1])])))

    passing = toast.fill("orders", holder)  # type: ignore[arg-type]
    assert passing is not None
    left = list(holder.rows.values())
    chance.shuffle(left)
    rows = {key: dict(row) for key, row in holder.rows.items()}
    todo, done = commits[at_f + 1 :], False
    while todo:
        if not done and chance.random() < 0.5:
            some, left = left[:1], left[1:]
            if some:
                passing(copied({1: some[0]}), None)
            else:
                passing(None, None)
                done = True
        group, todo = todo[: (size := chance.randint(1, 4))], todo[size:]
        if chance.random() < 0.3:
            toast.synced(group[0].at - 10)
        for change in received(toast.completed(iter([sent(group)]))):
            apply(rows, change)
        if group[-1].at >= last:
            assert rows == group[-1].after
        if done and group[-1].at >= last and chance.random() < 0.3:
            toast.open(tables, schemas, place(group[-1].at), None, None, True)
            assert toast.notices() == []
    toast.close()


@pytest.mark.meets("R21", "R6", "PG-14")
@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_again_after_a_crash_lacks_nothing_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(toast_module, "RowLookup", Lookup)
    monkeypatch.setattr(toast_module, "PAGE_BYTES", 0)
    server = Server(chance)
    commits = [server.commit() for _ in range(30)]
    toast = Toast(PostgresOptions("shop", ""), f"shop@{tmp_path}")
    tables, schemas = {"orders": TABLE}, {"orders": SCHEMA}
    holder = Held(1, 1, TransactionSnapshot(1, 1, frozenset()), {})
    toast.open(tables, schemas, place(1), holder, None, False)  # type: ignore[arg-type]
    passing = toast.fill("orders", holder)  # type: ignore[arg-type]
    assert passing is not None
    passing(None, None)
    at, ends, synced = 0, [0], 0
    while at < len(commits):
        group = commits[at : at + chance.randint(1, 4)]
        found = received(toast.completed(iter([sent(group)])))
        exact = [made.change.after for commit in group for made in commit.changes]
        assert [row["after"] for row in found] == exact
        assert all(row["_unsent"] is None for row in found)
        at += len(group)
        ends.append(at)
        if chance.random() < 0.4:
            synced = chance.choice([end for end in ends if end >= synced])
            toast.synced(commits[synced - 1].at if synced else 1)
        if chance.random() < 0.3:
            at = chance.choice([end for end in ends if end >= synced])
            ends = [end for end in ends if end <= at]
            synced = at
            end = commits[at - 1].at if at else 1
            toast.open(tables, schemas, place(end), None, None, True)
            assert toast.notices() == []
    toast.close()
