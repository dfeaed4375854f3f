"""
A durable target for tests: rows, positions and effects of its tables in one SQLite file.

It takes all tables of a batch and their positions in one transaction, and writes down every
effect it had, so that a change applied twice can be found afterwards by (key, position).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import NoKey
from headrace.targets.target import Batch, TargetTraits

_TABLES = """
create table if not exists rows (name text, key text, body text not null, primary key (name, key));
create table if not exists loading (
    name text, key text, body text not null, primary key (name, key)
);
create table if not exists about (name text primary key, position text not null);
create table if not exists effects (
    name text not null, key text not null, position text not null, op integer
);
"""


class FileTarget:
    """Tables in one file. Rows are JSON, by the name of their table and the JSON of their key."""

    traits = TargetTraits(type="file", durable=True)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._keys: dict[TableName, tuple[str, ...]] = {}

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        for name, schema in tables.items():
            if not schema.key:
                raise NoKey("The table has no key", table=name)

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        self._keys = {name: schema.key for name, schema in tables.items()}
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("pragma synchronous = full")
        connection.executescript(_TABLES)
        connection.executemany(
            "insert or ignore into about values (?, ?)", [(name, str(ORIGIN)) for name in tables]
        )
        self._connection = connection

    def load(self, table: TableName, baseline: int) -> FileLoading:
        loading = FileLoading(self, table)
        loading.discard()
        return loading

    def write(self, batch: Batch) -> Position:
        with self._sql as sql:
            sql.execute("begin immediate")
            for name in batch.tables:
                position = self.position(name)
                self.apply("rows", name, batch, position, effects=True)
                self.move(name, max(position, batch.last))
        return min(map(self.position, batch.tables), default=batch.last)

    def row_count(self, table: TableName) -> int | None:
        count = "select count(*) from rows where name = ?"
        return int(self._sql.execute(count, (table,)).fetchone()[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def position(self, table: TableName) -> Position:
        found = self._sql.execute("select position from about where name = ?", (table,))
        return Position.parse(found.fetchone()[0])

    def move(self, table: TableName, to: Position) -> None:
        self._sql.execute("update about set position = ? where name = ?", (str(to), table))

    def apply(
        self, into: str, table: TableName, batch: Batch, after: Position, *, effects: bool
    ) -> None:
        """Apply what a batch has for one table, and is after a position, to `rows` or `loading`."""
        sql = self._sql
        if (truncate := batch.truncates.get(table)) is not None and truncate > after:
            sql.execute(f"delete from {into} where name = ?", (table,))
        for row in batch.tables[table].to_pylist():
            at = Position(batch.epoch, row.pop("_commit"), row.pop("_ordinal"))
            op = row.pop("_op")
            row.pop("_time")
            if at <= after:
                continue
            key = self.key_of(table, row)
            gone = sql.execute(
                f"delete from {into} where name = ? and key = ?", (table, key)
            ).rowcount
            if op == Op.DELETE and not gone:
                continue
            if op != Op.DELETE:
                sql.execute(f"insert into {into} values (?, ?, ?)", (table, key, json.dumps(row)))
            if effects:
                sql.execute("insert into effects values (?, ?, ?, ?)", (table, key, str(at), op))

    def key_of(self, table: TableName, row: Mapping[str, object]) -> str:
        return json.dumps([row[name] for name in self._keys[table]])

    @property
    def _sql(self) -> sqlite3.Connection:
        assert self._connection is not None, "not open"
        return self._connection


class FileLoading:
    """A baseline beside the live rows; taken over in one transaction."""

    def __init__(self, target: FileTarget, table: TableName) -> None:
        self._target = target
        self._table = table
        self._position = ORIGIN

    def write(self, rows: pa.Table) -> None:
        target, table = self._target, self._table
        target._sql.executemany(
            "insert or replace into loading values (?, ?, ?)",
            [(table, target.key_of(table, row), json.dumps(row)) for row in rows.to_pylist()],
        )

    def catch_up(self, batch: Batch) -> None:
        with self._target._sql as sql:
            sql.execute("begin immediate")
            self._target.apply("loading", self._table, batch, self._position, effects=False)
        self._position = max(self._position, batch.last)

    def switch(self, at: Position) -> None:
        name = (self._table,)
        with self._target._sql as sql:
            sql.execute("begin immediate")
            sql.execute("delete from rows where name = ?", name)
            sql.execute("insert into rows select * from loading where name = ?", name)
            sql.execute("delete from loading where name = ?", name)
            self._target.move(self._table, at)

    def discard(self) -> None:
        self._target._sql.execute("delete from loading where name = ?", (self._table,))
