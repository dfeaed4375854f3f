"""
The store of TOAST values: what a change did not send again, by table and key (R21).

It is scratch that a baseline fills again, yet what it says must be exact, also when changes are
read a second time after a crash. So it keeps versions, each with its commit, for as long as the
log could still fall back behind them. On `resume` everything after the log's end is taken
away, and what is read again finds what was true then.

Only what a key has at the end of what is read at once is kept, because no log ends in between.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from headrace.capture.postgres.toast_cells import Cell, Shape
from headrace.capture.postgres.toast_file import ToastFile
from headrace.changelog.schema import Column
from headrace.changelog.values import ValueType

State: TypeAlias = Literal["filling", "full", "over"]
Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Version:
    """What a key has from one commit on."""

    at: int
    row: Row | None
    """None: the row is gone."""


@dataclass(slots=True)
class _Table:
    number: int
    shape: Shape
    state: State
    first: int
    last: int
    truncated: int = 0
    """The newest truncate: what is older is gone."""

    sql: dict[str, str] = field(default_factory=dict)


class ToastStore:
    """
    Versions of values, by table and key.

    *Order*: commits are written as they come. *Durability*: of what was written before `commit`
    returned. *Duplicates*: what is written again replaces itself. *Failure*: see `ToastFile`.
    *Threads*: one.
    """

    def __init__(self, path: Path, cap: int) -> None:
        self._file = ToastFile(path)
        self._cap = cap
        self._superseded: deque[tuple[int, str, list[tuple[bytes, int, bool]]]] = deque()
        """Keys whose older versions can go once the log has come so far."""

        self._tables: dict[str, _Table] = {}
        for name, number, shape, state, first, last, allowed in self._file.rows(
            "select name, number, shape, state, first, last, cap from tables"
        ):
            if state == "over" and allowed < cap:
                state = "filling"  # there is more room now: it is worth another try
            self._tables[name] = _Table(number, _parsed(shape), state, first, last)
            self._find_truncate(self._tables[name])

    # --- tables ----------------------------------------------------------------------------

    def resume(self, lineage: str, at: int, shapes: Mapping[str, Shape]) -> None:
        """
        Take the store, go back to `at`, where the log ends, and keep what is complete there.

        Of a table that is not among `states` afterwards there is nothing.
        """
        usable = self._file.lineage == lineage and self._file.end >= at
        self._file.take(lineage, at)
        for name, table in list(self._tables.items()):
            shape = shapes.get(name)
            if not usable or shape is None or not self._fits(table, shape, at):
                self.forget(name)
            elif table.state == "full":
                self._file.write(f"delete from t{table.number} where at > ?", (at,))
                self._file.write(
                    "delete from truncates where number = ? and at > ?", (table.number, at)
                )
                self._find_truncate(table)
                self.tidy(name, at)
                self._note(name)
        self.commit(at)

    @property
    def states(self) -> dict[str, State]:
        """What there is of each table."""
        return {name: table.state for name, table in self._tables.items()}

    def begin(self, name: str, shape: Shape, first: int, last: int) -> None:
        """Begin a table anew, to be filled as of F from a snapshot that sees nothing after H."""
        self.forget(name)
        [(highest,)] = self._file.rows("select coalesce(max(number), 0) from tables")
        columns = "".join(f", f{column.field}" for column in shape.columns)
        self._file.write(
            f"create table t{highest + 1} (key blob not null, at integer not null,"
            f" gone integer not null{columns}, primary key (key, at))"
        )
        self._tables[name] = _Table(highest + 1, shape, "filling", first, last)
        self._note(name)

    def finish(self, name: str) -> None:
        """Note, durably, that all rows of the snapshot are there."""
        self._tables[name].state = "full"
        self._note(name)
        self.commit(self._file.end)

    def forget(self, name: str) -> None:
        """Remove what there is of a table."""
        if (table := self._tables.pop(name, None)) is not None:
            self._file.write(f"drop table if exists t{table.number}")
            self._file.write("delete from truncates where number = ?", (table.number,))
            self._file.write("delete from tables where name = ?", (name,))

    # --- values ----------------------------------------------------------------------------

    def newest(self, name: str, key: bytes) -> Version | None:
        """Return what a key has now; None where nothing was heard of it since a truncate."""
        table = self._tables[name]
        found = self._file.rows(_sql(table, "newest"), (key, table.truncated))
        return Version(found[0][0], None if found[0][1] else found[0][2:]) if found else None

    def at(self, name: str, key: bytes, commit: int) -> Row | None:
        """Return what a key has in the version of exactly that commit; None: there is none."""
        found = self._file.rows(_sql(self._tables[name], "at"), (key, commit))
        return found[0][2:] if found and not found[0][1] else None

    def truncated(self, name: str) -> int:
        """Return the commit that emptied the table last; 0: none that is remembered."""
        return self._tables[name].truncated

    def put(self, name: str, rows: Iterable[tuple[bytes, Row]]) -> None:
        """Take rows of the snapshot that the table is filled from."""
        table = self._tables[name]
        self._file.write_all(
            _sql(table, "write"), ((key, table.first, False, *row) for key, row in rows)
        )

    def write(self, name: str, versions: Mapping[bytes, Version]) -> None:
        """Take what keys have from now on."""
        if not versions:
            return
        table = self._tables[name]
        nothing = (None,) * len(table.shape.columns)
        self._file.write_all(
            _sql(table, "write"),
            (
                (key, version.at, version.row is None, *(version.row or nothing))
                for key, version in versions.items()
            ),
        )
        latest = max(version.at for version in versions.values())
        touched = [(key, version.at, version.row is None) for key, version in versions.items()]
        self._superseded.append((latest, name, touched))

    def truncate(self, name: str, at: int) -> None:
        """Let everything be gone that was written before."""
        table = self._tables[name]
        # Also what the same commit wrote: versions of it that follow come after this.
        self._file.write(f"delete from t{table.number} where at = ?", (at,))
        self._file.write("insert or replace into truncates values (?, ?)", (table.number, at))
        table.truncated = max(table.truncated, at)

    def commit(self, end: int) -> None:
        """Make what was written durable, and that it is all there is up to `end`."""
        self._file.commit(end)

    # --- room ------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """What is in use of the file."""
        return self._file.bytes

    def shrink(self) -> list[str]:
        """Give up the largest tables until the rest is below the cap; return which."""
        given_up: list[str] = []
        while self.bytes > self._cap:
            held = [name for name, table in self._tables.items() if table.state != "over"]
            if not held:
                break
            name = max(held, key=self._weight)
            table = self._tables[name]
            self.forget(name)
            self._tables[name] = _Table(table.number, table.shape, "over", 0, 0)
            self._note(name)
            given_up.append(name)
        return given_up

    def prune(self, synced: int, besides: Collection[str] = ()) -> None:
        """Remove versions that nobody can fall back to, except of some tables."""
        while self._superseded and self._superseded[0][0] <= synced:
            _, name, keys = self._superseded.popleft()
            table = self._tables.get(name)
            if table is not None and table.state == "full" and name not in besides:
                # What is gone need not be remembered either.
                self._file.write_all(
                    f"delete from t{table.number} where key = ? and at < ?",
                    ((key, at + gone) for key, at, gone in keys),
                )
        for name, table in self._tables.items():
            if 0 < table.truncated <= synced and name not in besides:
                self.tidy(name, synced)

    def tidy(self, name: str, synced: int) -> None:
        """Remove all versions of a table that nobody can fall back to."""
        table = self._tables[name]
        number = table.number
        [(emptied,)] = self._file.rows(
            "select coalesce(max(at), 0) from truncates where number = ? and at <= ?",
            (number, synced),
        )
        self._file.write(f"delete from t{number} where at < ?", (emptied,))
        self._file.write("delete from truncates where number = ? and at <= ?", (number, emptied))
        self._find_truncate(table)
        self._file.write(
            f"delete from t{number} where at < (select max(at) from t{number} later"
            f" where later.key = t{number}.key and later.at <= ?)",
            (synced,),
        )
        self._file.write(f"delete from t{number} where gone and at <= ?", (synced,))

    def close(self) -> None:
        """Let go of the file, without what was not committed. Never raises."""
        self._file.close()

    # --- steps -----------------------------------------------------------------------------

    def _fits(self, table: _Table, shape: Shape, at: int) -> bool:
        """Whether what is there of a table is all that is needed of it at `at`."""
        if table.state == "over":
            return True
        # Rows of its snapshot may be of any time up to H, and before H only who holds the
        # snapshot knows what that means.
        if table.state != "full" or table.last > at:
            return False
        known = {column.field: column.type for column in table.shape.columns}
        added = [column for column in shape.columns if column.field not in known]
        if (
            _fields(table.shape.key) != _fields(shape.key)
            or any(known.get(column.field, column.type) != column.type for column in shape.columns)
            or any(column.rewritten for column in added)
        ):
            return False
        missing = dict(zip(shape.columns, shape.missing, strict=True))
        for column in added:
            literal = _literal(missing[column])
            self._file.write(
                f"alter table t{table.number} add column f{column.field} default {literal}"
            )
        table.shape = shape
        return True

    def _find_truncate(self, table: _Table) -> None:
        [(table.truncated,)] = self._file.rows(
            "select coalesce(max(at), 0) from truncates where number = ?", (table.number,)
        )

    def _note(self, name: str) -> None:
        table = self._tables[name]
        shape = json.dumps([_fields(table.shape.key), _fields(table.shape.columns)])
        self._file.write(
            "insert or replace into tables values (?, ?, ?, ?, ?, ?, ?)",
            (name, table.number, shape, table.state, table.first, table.last, self._cap),
        )

    def _weight(self, name: str) -> int:
        table = self._tables[name]
        lengths = "".join(f" + coalesce(length(f{c.field}), 0)" for c in table.shape.columns)
        [(found,)] = self._file.rows(
            f"select coalesce(sum(length(key){lengths}), 0) from t{table.number}"
        )
        return int(found)


def _sql(table: _Table, kind: str) -> str:
    """Return a statement, made once, so that SQLite knows it again."""
    if not table.sql:
        columns = ["at", "gone", *(f"f{column.field}" for column in table.shape.columns)]
        chosen = f"select {', '.join(columns)} from t{table.number} where key = ?"
        places = ", ".join("?" * (len(columns) + 1))
        table.sql["newest"] = f"{chosen} and at >= ? order by at desc limit 1"
        table.sql["at"] = f"{chosen} and at = ?"
        table.sql["write"] = (
            f"insert or replace into t{table.number} (key, {', '.join(columns)}) values ({places})"
        )
    return table.sql[kind]


def _fields(columns: Iterable[Column]) -> list[tuple[int, str]]:
    return [(column.field, str(column.type)) for column in columns]


def _parsed(text: str) -> Shape:
    key, columns = (
        tuple(Column(f"f{number}", ValueType.parse(kind), number) for number, kind in part)
        for part in json.loads(text)
    )
    return Shape(key, columns)


def _literal(cell: Cell) -> str:
    if isinstance(cell, bytes):
        return f"x'{cell.hex()}'"
    if isinstance(cell, str):
        return "'" + cell.replace("'", "''") + "'"
    return "null"
