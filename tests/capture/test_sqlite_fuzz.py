"""Whatever the application does, rows and changes make its table: by seeds."""

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.capture.sqlite import copy as baseline
from headrace.capture.sqlite import database
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.changelog.change import Changes
from headrace.changelog.schema import TableSchema
from tests.support.tiers import thinned

SHAPES = [
    ("t", "id integer primary key, v, w int", ("id",)),
    ('a "b"', 'id int, "select" text, v, w int, primary key (id, "select")', ("id", "select")),
    ("it's", "v, b blob primary key, w int", ("b",)),
    ("wr", "a text, v, b int, w int, primary key (b, a)", ("b", "a")),
    ("down", "a text, b real, v, w int, primary key (a desc, b)", ("a", "b")),
]
ROUNDS = 25
Key = tuple[object, ...]
State = dict[Key, dict[str, object]]


class Writer:
    """An application that does everything SQLite allows."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.app = sqlite3.connect(path, isolation_level=None)
        self.app.execute("pragma journal_mode = wal")
        self.app.execute("pragma synchronous = off")
        self.app.execute(f"pragma recursive_triggers = {self.random.choice(('on', 'off'))}")
        self.name, columns, self.key = self.random.choice(SHAPES)
        self.table = '"' + self.name.replace('"', '""') + '"'
        without = "without rowid" if self.name == "wr" else ""
        self.app.execute(f"create table {self.table} ({columns}) {without}")
        self.columns = [row[1] for row in self.app.execute(f"pragma table_info({self.table})")]

    def one(self, column: str) -> object:
        pick = self.random
        match column:
            case "id":
                return pick.randrange(30)
            case "b":
                return {"it's": bytes([pick.randrange(30)]), "down": pick.randrange(8) / 4}.get(
                    self.name, pick.randrange(8)
                )
            case "a" | "select":
                return pick.choice(["", "a", "A", "b", "ü", "\N{ROCKET}"])
            case "w":
                return pick.randrange(9)
        return pick.choice([None, 1, 1.5, "x", b"x", 2**60])

    def where(self) -> tuple[str, list[object]]:
        quoted = [f'"{name}" = ?' for name in self.key]
        return " and ".join(quoted), [self.one(name) for name in self.key]

    def row(self) -> list[object]:
        return [self.one(name) for name in self.columns]

    def statement(self) -> None:
        pick = self.random
        marks = ", ".join("?" * len(self.columns))
        where, key = self.where()
        key_names = ", ".join(f'"{name}"' for name in self.key)
        new_key = ", ".join(f'"{name}" = ?' for name in self.key)
        choice = pick.random()
        with suppress(sqlite3.IntegrityError):
            if choice < 0.25:
                how = pick.choice(["", "or replace", "or ignore", "or fail", "or abort"])
                self.app.execute(f"insert {how} into {self.table} values ({marks})", self.row())
            elif choice < 0.45:
                self.app.execute(
                    f"insert into {self.table} values ({marks}) "
                    f"on conflict ({key_names}) do update set w = excluded.w + 10, v = excluded.v",
                    self.row(),
                )
            elif choice < 0.6:
                self.app.execute(f"update {self.table} set w = w + 1 where {where}", key)
            elif choice < 0.75:
                how = pick.choice(["", "or replace", "or ignore"])
                self.app.execute(
                    f"update {how} {self.table} set {new_key} where {where}", self.where()[1] + key
                )
            elif choice < 0.93:
                self.app.execute(f"delete from {self.table} where {where}", key)
            elif choice < 0.97:
                self.app.execute(f"update {self.table} set v = v")
            else:
                self.app.execute(f"delete from {self.table}")

    def transaction(self) -> None:
        self.app.execute("begin")
        for _ in range(self.random.randint(1, 5)):
            if self.random.random() < 0.2:
                self.app.execute("savepoint s")
                self.statement()
                self.app.execute(self.random.choice(["rollback to s", "release s"]))
            else:
                self.statement()
        self.app.execute(self.random.choice(["commit", "commit", "commit", "rollback"]))

    def truth(self, schema: TableSchema) -> State:
        found = self.app.execute(f"select * from {self.table}").fetchall()
        return keyed(schema, [dict(zip(self.columns, row, strict=True)) for row in found])


def keyed(schema: TableSchema, found: Sequence[dict[str, object]]) -> State:
    return {tuple(row[name] for name in schema.key): row for row in found}


def images(schema: TableSchema, column: object) -> Iterator[dict[str, object] | None]:
    """The rows of a struct column, as values at the edge."""
    array = column.combine_chunks()  # type: ignore[attr-defined]
    parts = [kept.type.from_arrow(array.field(place)) for place, kept in enumerate(schema.columns)]
    for number, values in enumerate(zip(*parts, strict=True)):
        present = array[number].is_valid
        yield dict(zip(schema.names, values, strict=True)) if present else None


def replay(state: State, changes: Changes, after: int) -> None:
    for table in changes.tables:
        schema = table.schema
        commits = table.rows["_commit"].to_pylist()
        before = images(schema, table.rows["before"])
        done = images(schema, table.rows["after"])
        for commit, old, new in zip(commits, before, done, strict=True):
            if commit <= after:
                continue
            if old is not None:
                state.pop(tuple(old[name] for name in schema.key), None)
            if new is not None:
                state[tuple(new[name] for name in schema.key)] = new


def drained(source: SQLiteSource, state: State, after: int, most: int) -> None:
    while (changes := source.read(most, 0)) is not None:
        replay(state, changes, after)


@pytest.mark.meets("R41", "R43")
@pytest.mark.parametrize("first", range(0, 250, ROUNDS))
def test_rows_and_changes_make_the_table(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "CHUNK_ROWS", 4)
    monkeypatch.setattr(database, "PART_ROWS", 3)
    for seed in thinned(range(first, first + ROUNDS), every=5):
        writer = Writer(tmp_path / f"{seed}.db", seed)
        source = sqlite(tmp_path / f"{seed}.db")
        schema = source.describe([writer.name])[writer.name]
        source.open(None)
        most = writer.random.choice([1, 3, 50])
        for _ in range(writer.random.randint(0, 20)):
            writer.transaction()
        if writer.random.random() < 0.5:
            drained(source, {}, 0, most)
        copy = source.baseline(writer.name)
        state: State = {}
        for chunk in copy:
            values = [
                column.type.from_arrow(chunk.column(place))
                for place, column in enumerate(schema.columns)
            ]
            found = [dict(zip(schema.names, row, strict=True)) for row in zip(*values, strict=True)]
            state.update(keyed(schema, found))
            for _ in range(writer.random.randint(0, 3)):
                writer.transaction()
        truth = writer.truth(schema)
        (end,) = writer.app.execute("select max(seq) from __headrace_log").fetchone()
        drained(source, state, copy.first, most)
        if end == copy.last:
            assert state == truth, f"seed {seed}, at H"
        for _ in range(8):
            writer.transaction()
            drained(source, state, copy.first, most)
            assert state == writer.truth(schema), f"seed {seed}"
        source.close()
        writer.app.close()
