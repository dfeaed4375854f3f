"""
A durable target for tests: rows, position and effects in one SQLite file.

It takes a batch and its position in one transaction, and writes down every effect it had,
so that a change applied twice can be found afterwards by (key, position).
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
from headrace.targets.target import Batch, TargetTraits

_TABLES = """
create table if not exists rows (key text primary key, body text not null);
create table if not exists loading (key text primary key, body text not null);
create table if not exists about (position text not null, shown integer not null);
create table if not exists effects (key text not null, position text not null, op integer);
"""


class FileTarget:
    """One table in one file. Rows are JSON, keyed by the JSON of their key."""

    traits = TargetTraits(type="file", durable=True)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._key: tuple[str, ...] = ()

    def check(self, tables: Mapping[TableName, TableSchema]) -> None: ...

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        (schema,) = tables.values()
        self._key = schema.key
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("pragma synchronous = full")
        connection.executescript(_TABLES)
        if connection.execute("select count(*) from about").fetchone()[0] == 0:
            connection.execute("insert into about values (?, 0)", (str(ORIGIN),))
        self._connection = connection

    def load(self, table: TableName, baseline: int) -> FileLoading:
        self._sql.execute("delete from loading")
        return FileLoading(self)

    def show(self, table: TableName) -> None:
        self._sql.execute("update about set shown = 1")

    def write(self, batch: Batch) -> Position:
        (rows,) = batch.tables.values()
        sql = self._sql
        sql.execute("begin immediate")
        position = self.position
        for truncate in batch.truncates.values():
            if truncate > position:
                sql.execute("delete from rows")
        for row in rows.to_pylist():
            at = Position(batch.epoch, row.pop("_commit"), row.pop("_ordinal"))
            op = row.pop("_op")
            row.pop("_time")
            if at <= position:
                continue
            key = self.key_of(row)
            if op == Op.DELETE:
                gone = sql.execute("delete from rows where key = ?", (key,)).rowcount
                if not gone:
                    continue
            else:
                sql.execute("insert or replace into rows values (?, ?)", (key, json.dumps(row)))
            sql.execute("insert into effects values (?, ?, ?)", (key, str(at), op))
        sql.execute("update about set position = ?", (str(max(position, batch.last)),))
        sql.execute("commit")
        return self.position

    def row_count(self, table: TableName) -> int | None:
        return int(self._sql.execute("select count(*) from rows").fetchone()[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def position(self) -> Position:
        (text,) = self._sql.execute("select position from about").fetchone()
        return Position.parse(text)

    @property
    def _sql(self) -> sqlite3.Connection:
        assert self._connection is not None, "not open"
        return self._connection

    def key_of(self, row: Mapping[str, object]) -> str:
        return json.dumps([row[name] for name in self._key])


class FileLoading:
    """A baseline beside the live rows; taken over in one transaction."""

    def __init__(self, target: FileTarget) -> None:
        self._target = target

    def write(self, rows: pa.Table) -> None:
        self._target._sql.executemany(
            "insert or replace into loading values (?, ?)",
            [(self._target.key_of(row), json.dumps(row)) for row in rows.to_pylist()],
        )

    def switch(self, at: Position) -> None:
        sql = self._target._sql
        sql.execute("begin immediate")
        sql.execute("delete from rows")
        sql.execute("insert into rows select * from loading")
        sql.execute("update about set position = ?, shown = 0", (str(at),))
        sql.execute("commit")

    def discard(self) -> None:
        self._target._sql.execute("delete from loading")
