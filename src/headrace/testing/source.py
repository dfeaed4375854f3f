"""
A source in memory that a test controls, and the table `things` of all contract suites.

The source keeps its whole history, so changes can be read again with the same positions, as every
source must allow. It waits only if it is asked to, and its clock is an argument, so that a
simulation can drive it on one thread.

    source = MemorySource()
    source.set_schema("orders", {"id": "int64", "status": "text"}, key=["id"])
    source.add_row("orders", {"id": 1, "status": "new"})
    with source.transaction():
        source.emit_update("orders", {"id": 1, "status": "paid"})
        source.emit_insert("orders", {"id": 2, "status": "new"})
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from headrace.capture.source import Lag, Problem, SourcePosition, SourceSpec, SourceTraits
from headrace.changelog.change import Change, Changes, Op, TableChanges, as_segment
from headrace.changelog.schema import Column, TableName, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadPosition, HeadraceError, SourceUnreachable, TableRefused

Row = Mapping[str, object]
Key = tuple[object, ...]
Call = Literal["open", "read", "baseline", "acknowledge"]


@dataclass(frozen=True, slots=True, order=True)
class MemoryPosition:
    """A commit in one of the source's histories; `life` is the number of the history."""

    generation: int
    commit: int

    @property
    def lineage(self) -> str:
        """The lineage: commit numbers start again in every history."""
        return f"test/{self.generation}"

    def __str__(self) -> str:
        return f"{self.generation}:{self.commit}"

    @classmethod
    def parse(cls, text: str) -> MemoryPosition:
        """Read back what `str()` wrote."""
        generation, colon, commit = text.partition(":")
        if not (colon and generation.isdecimal() and commit.isdecimal()):
            raise BadPosition("Text is not a position of a memory source", text=text)
        return cls(int(generation), int(commit))


@dataclass(slots=True)
class _Commit:
    number: int
    changes: list[tuple[TableSchema, Change]] = field(default_factory=list)
    markers: tuple[str, ...] = ()


class MemorySource:
    """A programmable source; methods that are not part of the protocol work from any thread."""

    def __init__(self, name: str = "test", *, clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self.spec = SourceSpec("test", name, {})
        self.traits = SourceTraits(lineage="test", resumes=False, lists=True)
        self.chunk_rows = 100
        """How many rows a baseline reads at a time."""
        self.calls: Counter[str] = Counter()
        """How often each method of the protocol was called."""
        self.acknowledged: list[str] = []
        """Every acknowledgement, in order."""
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._schemas: dict[TableName, TableSchema] = {}
        self._rows: dict[TableName, dict[Key, dict[str, object]]] = {}
        self._history: list[_Commit] = []
        self._open_commit: _Commit | None = None
        self._generation = 1
        self._last = 0
        self._at = MemoryPosition(1, 0)
        self._part = 0
        self._is_open = False
        self._away = False
        self._awake = False
        self._errors: dict[str, deque[HeadraceError]] = {}
        self._delays: dict[str, float] = {}
        self._sleep: Callable[[float], object] = time.sleep

    # --- what a test calls ---------------------------------------------------------------

    def set_schema(
        self, table: TableName, columns: Mapping[str, str], key: Sequence[str] = ()
    ) -> None:
        """Create a table; each column has a type as text (`int64`, `decimal(12,2)`)."""
        made = tuple(
            Column(name, ValueType.parse(kind), number)
            for number, (name, kind) in enumerate(columns.items(), start=1)
        )
        with self._changed:
            self._schemas[table] = TableSchema(table, made, tuple(key))
            self._rows.setdefault(table, {})

    def add_column(
        self,
        table: TableName,
        name: str,
        kind: str,
        default: object = None,
        *,
        rewritten: bool = False,
    ) -> None:
        """
        Add a column; existing rows get `default`, and no change is emitted for them.

        With `rewritten`, the schema does not contain the default.
        """
        with self._changed:
            old = self._schemas[table]
            number = max(column.field for column in old.columns) + 1
            missing = None if default is None or rewritten else str(default)
            added = Column(
                name, ValueType.parse(kind), number, missing=missing, rewritten=rewritten
            )
            self._schemas[table] = replace(old, columns=(*old.columns, added))
            for row in self._rows[table].values():
                row[name] = default

    def drop_column(self, table: TableName, name: str) -> None:
        """Drop a column; no change is emitted."""
        with self._changed:
            old = self._schemas[table]
            left = tuple(column for column in old.columns if column.name != name)
            self._schemas[table] = replace(old, columns=left)
            for row in self._rows[table].values():
                row.pop(name, None)

    def rename_column(self, table: TableName, old: str, new: str) -> None:
        """Rename a column; no change is emitted."""
        with self._changed:
            schema = self._schemas[table]
            columns = tuple(
                replace(column, name=new) if column.name == old else column
                for column in schema.columns
            )
            self._schemas[table] = replace(schema, columns=columns)
            for row in self._rows[table].values():
                row[new] = row.pop(old)

    def add_row(self, table: TableName, row: Row) -> None:
        """Add a row without a change: only a baseline contains it."""
        with self._changed:
            self._rows[table][self._key(table, row)] = dict(row)

    def emit_insert(self, table: TableName, row: Row, *, wait: bool = False) -> None:
        """Insert a row; `wait` waits until the change has been read."""
        self._emit(table, Op.INSERT, None, row, wait)

    def emit_update(
        self, table: TableName, row: Row, *, key: Sequence[object] | None = None, wait: bool = False
    ) -> None:
        """Update the row with the same key, or the row with `key` if the key itself changes."""
        with self._changed:
            old = tuple(key) if key is not None else self._key(table, row)
            self._emit(table, Op.UPDATE, self._rows[table].get(old), row, wait)

    def emit_delete(self, table: TableName, *key: object, wait: bool = False) -> None:
        """Delete the row with this key."""
        with self._changed:
            self._emit(table, Op.DELETE, self._rows[table][key], None, wait)

    def emit_truncate(self, table: TableName, *, wait: bool = False) -> None:
        """Truncate the table."""
        self._emit(table, Op.TRUNCATE, None, None, wait)

    @contextmanager
    def transaction(self, *, wait: bool = False) -> Iterator[None]:
        """Make everything that this thread emits in the block one commit."""
        with self._changed:
            self._open_commit = commit = _Commit(self._last + 1)
            try:
                yield
            finally:
                self._open_commit = None
            self._commit(commit)
        if wait:
            self.wait_until_read()

    def heartbeat(self) -> None:
        """Move the position without a change."""
        with self._changed:
            self._commit(_Commit(self._last + 1))

    def emit_marker(self, text: str) -> None:
        """Emit a marker between the changes, in its own commit."""
        with self._changed:
            self._commit(_Commit(self._last + 1, markers=(text,)))

    def reset(self) -> None:
        """Begin a new history, as after a restore: rows stay, commit numbers start again."""
        with self._changed:
            self._generation += 1
            self._last = 0
            self._history = []
            self._changed.notify_all()

    def inject_error(self, error: HeadraceError, at: Call = "read", times: int = 1) -> None:
        """Make the next `times` calls of `at` raise `error`."""
        with self._changed:
            self._errors.setdefault(at, deque()).extend([error] * times)
            self._changed.notify_all()

    def set_away(self, away: bool) -> None:
        """Make every call that needs the source raise `SourceUnreachable`, until set to False."""
        with self._changed:
            self._away = away
            self._changed.notify_all()

    def set_delay(
        self, at: Call, seconds: float, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """Delay every call of `at` by `seconds`; for a baseline, every chunk."""
        self._delays[at] = seconds
        self._sleep = sleep

    def set_supports_resume(self, resumes: bool) -> None:
        """Set whether reading can continue after a restart; if not, every start is a gap."""
        self.traits = replace(self.traits, resumes=resumes)

    def set_inserts_replace(self, replaces: bool) -> None:
        """Set whether an insert may replace a row, as in SQLite."""
        self.traits = replace(self.traits, inserts_replace=replaces)

    def rows(self, table: TableName) -> dict[Key, dict[str, object]]:
        """Return all current rows, by key."""
        with self._changed:
            return {key: dict(row) for key, row in self._rows[table].items()}

    @property
    def position(self) -> MemoryPosition:
        """The last commit."""
        with self._changed:
            return MemoryPosition(self._generation, self._last)

    def wait_until_read(self, timeout: float = 10.0) -> bool:
        """Wait until everything emitted so far has been read; return whether it has."""
        with self._changed:
            wanted = self.position
            return self._changed.wait_for(lambda: self._at >= wanted, timeout)

    def wait_until_acknowledged(self, timeout: float = 10.0) -> bool:
        """Wait until everything emitted so far has been acknowledged; return whether it has."""
        with self._changed:
            wanted = self.position

            def done() -> bool:
                return any(MemoryPosition.parse(text) >= wanted for text in self.acknowledged)

            return self._changed.wait_for(done, timeout)

    # --- the protocol --------------------------------------------------------------------

    @property
    def origin(self) -> str:
        """What identifies the source in the log: its name."""
        return f"test:{self.name}"

    def lineage(self) -> str | None:
        """Return the lineage of the current history."""
        return self.position.lineage

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        """Return the current schemas."""
        self.calls["describe"] += 1
        self._reach()
        if problems := self._missing(tables):
            raise problems[0]
        return {name: self._schemas[name] for name in tables}

    def tables(self) -> Sequence[TableName]:
        """Return the tables that were created with `set_schema`."""
        self.calls["tables"] += 1
        self._reach()
        with self._changed:
            return list(self._schemas)

    def add(self, table: TableName) -> TableSchema:
        """Capture one more table and return its schema; all its changes are in the history."""
        return self.describe([table])[table]

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return a problem for each table that does not exist."""
        self.calls["check"] += 1
        return [self._unreachable()] if self._away else self._missing(tables)

    def _missing(self, tables: Sequence[TableName]) -> list[Problem]:
        return [
            TableRefused("Table not found", table=name)
            for name in tables
            if name not in self._schemas
        ]

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """Continue after `after` in the same history; otherwise begin at the end."""
        self._called("open")
        with self._changed:
            wanted = MemoryPosition.parse(str(after)) if after is not None else self.position
            goes_on = wanted.generation == self._generation and self.traits.resumes
            self._at = wanted if goes_on else self.position
            self._part = 0
            self._is_open = True
            return self._at

    def read(self, most: int, wait: float) -> Changes | None:
        """Return commits up to about `most` changes; a larger commit is returned in parts."""
        with self._changed:
            if wait > 0:
                self._changed.wait_for(self._something_to_read, wait)
            self._awake = False
            self._called("read")
            if self._at.generation != self._generation:
                raise SourceUnreachable("The history was replaced", source=self.name)
            return self._next(most)

    def _something_to_read(self) -> bool:
        errors = self._away or self._errors.get("read")
        return self._awake or self._at < self.position or bool(errors)

    def _next(self, most: int) -> Changes | None:
        taken: list[tuple[TableSchema, Change]] = []
        markers: tuple[str, ...] = ()
        upto = self._at
        ends = True
        parted = self._part > 0  # the schemas of its first parts are not known any more
        # Commits are numbered without gaps, so a number is also an index in the list.
        for commit in self._history[self._at.commit :]:
            rest = commit.changes[self._part :]
            if taken and (parted or len(taken) + len(rest) > most or _alters(taken, rest)):
                break
            if len(rest) > most:
                taken, ends = rest[:most], False
                self._part += most
                break
            taken += rest
            markers += commit.markers
            self._part = 0
            upto = MemoryPosition(self._generation, commit.number)
        if upto == self._at and not taken:
            return None
        self._at = upto
        self._changed.notify_all()
        return Changes(_by_table(taken), upto, ends, markers)

    def wake(self) -> None:
        """End the wait of a running `read`, or of the next one."""
        with self._changed:
            self._awake = True
            self._changed.notify_all()

    def acknowledge(self, upto: str) -> None:
        """Record the acknowledgement; the history is kept anyway."""
        self._called("acknowledge")
        with self._changed:
            self.acknowledged.append(upto)
            self._changed.notify_all()

    def lag(self) -> Lag:
        """Return the number of changes that were not read yet."""
        with self._changed:
            waiting = self._history[self._at.commit :]
            return Lag(sum(len(commit.changes) for commit in waiting), 0.0)

    def close(self) -> None:
        """Close; it may be opened again."""
        self.calls["close"] += 1
        self._is_open = False

    def baseline(self, table: TableName) -> MemoryCopy:
        """Begin to copy a table, `chunk_rows` rows at a time."""
        self._called("baseline")
        return MemoryCopy(self, table)

    # --- what a copy uses ----------------------------------------------------------------

    def chunk(
        self, table: TableName, after: str | None
    ) -> tuple[list[dict[str, object]], str, bool]:
        """Return the rows after key `after`, the key of the last one, and whether more follow."""
        if seconds := self._delays.get("baseline"):
            self._sleep(seconds)
        with self._changed:
            self._raise("baseline")
            # Any order of keys will do, as long as it is the same for every chunk.
            keys = sorted((repr(key), key) for key in self._rows[table])
            due = [(text, key) for text, key in keys if after is None or text > after]
            taken = due[: self.chunk_rows]
            rows = [dict(self._rows[table][key]) for _, key in taken]
            return rows, taken[-1][0] if taken else after or "", len(due) > len(taken)

    def _called(self, call: Call) -> None:
        self.calls[call] += 1
        if seconds := self._delays.get(call):
            self._sleep(seconds)
        self._raise(call)

    def _unreachable(self) -> SourceUnreachable:
        return SourceUnreachable("The source is away", source=self.name)

    def _reach(self) -> None:
        if self._away:
            raise self._unreachable()

    def _raise(self, call: Call) -> None:
        self._reach()
        if waiting := self._errors.get(call):
            raise waiting.popleft()

    def _key(self, table: TableName, row: Row) -> Key:
        return tuple(row[name] for name in self._schemas[table].key)

    def _emit(
        self, table: TableName, op: Op, before: Row | None, after: Row | None, wait: bool
    ) -> None:
        with self._changed:
            commit = self._open_commit or _Commit(self._last + 1)
            change = Change(
                op,
                commit.number,
                len(commit.changes),
                int(self._clock() * 1_000_000),
                before=None if before is None else dict(before),
                after=None if after is None else dict(after),
            )
            commit.changes.append((self._schemas[table], change))
            rows = self._rows[table]
            if op is Op.TRUNCATE:
                rows.clear()
            if before is not None:
                rows.pop(self._key(table, before), None)
            if after is not None:
                rows[self._key(table, after)] = dict(after)
            if self._open_commit is None:
                self._commit(commit)
        if wait:
            self.wait_until_read()

    def _commit(self, commit: _Commit) -> None:
        self._history.append(commit)
        self._last = commit.number
        self._changed.notify_all()


class MemoryCopy:
    """A baseline of a memory source that is being copied."""

    def __init__(self, source: MemorySource, table: TableName) -> None:
        self.schema = source.describe([table])[table]
        self.snapshot = ""
        self.expected: int | None = None
        self.waits = ""
        self.exact: pa.Array | None = None
        self.first = self.last = source.position.commit
        self._source = source

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        key: str | None = None
        more = True
        while more:
            rows, key, more = self._source.chunk(self.schema.table, key)
            self.last = self._source.position.commit
            if rows:
                changes = [Change(Op.INSERT, 0, 0, 0, after=row) for row in rows]
                made = as_segment(self.schema, changes).combine_chunks()
                self.exact = made["_exact"].combine_chunks()
                image = made["after"].combine_chunks()
                yield pa.RecordBatch.from_arrays(image.flatten(), schema=self.schema.arrow)

    def close(self) -> None:
        """Do nothing: the copy holds no resources."""


def _alters(
    taken: Sequence[tuple[TableSchema, Change]], rest: Sequence[tuple[TableSchema, Change]]
) -> bool:
    """Whether a table has other columns in this commit than in the changes taken before."""
    known = {schema.table: schema for schema, _ in taken}
    return any(known.get(schema.table, schema) != schema for schema, _ in rest)


def _by_table(changes: Sequence[tuple[TableSchema, Change]]) -> list[TableChanges]:
    groups: list[tuple[TableSchema, list[Change]]] = []
    for schema, change in changes:
        last = next((group for group in reversed(groups) if group[0].table == schema.table), None)
        if last is None or last[0] != schema:
            last = (schema, [])
            groups.append(last)
        last[1].append(change)
    return [TableChanges(schema, as_segment(schema, group)) for schema, group in groups]


# --- the table of all contract suites -------------------------------------------------------------

TABLE = "things"
THINGS = TableSchema(
    TABLE,
    (Column("id", ValueType("int64"), 1), Column("name", ValueType("text"), 2)),
    key=("id",),
)
Step = tuple[str, int, str | None]
"""`insert`, `update` or `delete`, the key, and the new name."""

State = dict[int, str | None]
