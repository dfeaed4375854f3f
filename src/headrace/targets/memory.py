"""
Tables in the engine's memory, readable from any thread.

```python
orders = hr.memory(indexes={"by_customer": ["customer_id"]}, lookup=["email"])
orders.get(42); orders.lookup_all("by_customer", 7)
```

Not durable: it is filled from the log at every start, and the log keeps what it needs (R8).

Changes are passed on to readers and listeners. The writer passes the changes of a batch as row
numbers, and continues. Every reader has its own queue and builds the changes in its own thread. So
a slow reader costs the writer only memory, and that is limited: a reader that falls too far behind
gets an error and is dropped.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import FellBehind, TableError, UnknownTable
from headrace.observe.logs import logger
from headrace.tables import Row, RowChanges, Table, TableChange
from headrace.targets.target import BaselineId, Batch, SchemaAnswer, TargetTraits

__all__ = [
    "IndexedMemory",
    "MemoryTable",
    "TableChange",
    "memory",
]


# --- changes for readers and listeners ------------------------------------------------------------

log = logger(__name__)

MAX_LAG: Final = 100_000
"""Maximum number of changes that wait for a reader; a single batch may be larger."""

Listener = Callable[[Row | None, Row | None], object]
"""Called with the row before and after; both are None for a truncate."""


class ChangeReader(Iterator[TableChange]):
    """
    Iterates over every change of a table, in order, each after it is visible.

    Ends when the engine stops, after the last change. `close` ends it earlier. Use it from one
    thread at a time.
    """

    def __init__(self, begins: Position = ORIGIN, existing: int = 0) -> None:
        self.begins = begins
        """What was visible when it began: it gives every later change."""
        self.existing = existing
        """How many rows that were there it gives first, as inserts."""
        # They do not count as lag: a reader of a large table gets the time for them.
        self._max_lag = MAX_LAG + existing
        self._wake = threading.Condition()
        self._waiting: deque[RowChanges] = deque()
        self._put = 0
        self._taken = 0
        self._done = False
        self._error: TableError | None = None
        self._batch: Iterator[TableChange] = iter(())

    def __next__(self) -> TableChange:
        while (change := next(self._batch, None)) is None:
            self._batch = iter(self._next_batch())
        # Only this thread writes it. The writer may see it a little late, which does no harm.
        self._taken += 1
        return change

    def batches(self) -> Iterator[RowChanges]:
        """Yield the changes of one batch of the pipeline after the other, instead of each alone."""
        while True:
            try:
                batch = self._next_batch()
            except StopIteration:
                return
            self._taken += len(batch)
            yield batch

    def _next_batch(self) -> RowChanges:
        with self._wake:
            while not self._waiting:
                if self._error is not None:
                    raise self._error
                if self._done:
                    raise StopIteration
                self._wake.wait()
            return self._waiting.popleft()

    def put(self, changes: RowChanges) -> None:
        """Add changes; if the reader is too far behind, drop what it has not read."""
        with self._wake:
            if self._done:
                return
            self._put += len(changes)
            lag = self._put - self._taken
            if lag > self._max_lag and lag > len(changes):
                self._waiting.clear()
                self._done = True
                self._error = FellBehind("The reader of changes is too slow", behind=lag)
            else:
                self._waiting.append(changes)
            self._wake.notify_all()

    @property
    def lag(self) -> int:
        """The number of changes that are visible and not yet read."""
        return self._put - self._taken

    @property
    def done(self) -> bool:
        """Whether no more changes will be added."""
        return self._done

    def end(self) -> None:
        """Mark the end: no change will follow. Waiting changes can still be read."""
        with self._wake:
            self._done = True
            self._wake.notify_all()

    def close(self) -> None:
        """Stop reading and drop waiting changes; may be called from any thread, and twice."""
        with self._wake:
            self._waiting.clear()
            self._done = True
            self._batch = iter(())
            self._wake.notify_all()


class Feed:
    """
    The readers and listeners of one table.

    `lock` is held while a version is published and its changes are put into the queues, and
    while a reader joins. So a reader sees each change either in its rows or in its changes,
    never in both or neither. It is not held for longer than that, and reads of rows do not
    take it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.dropped = 0
        """Listeners that were dropped: they raised, or fell behind."""
        # Weak references: an abandoned loop over changes must not collect them for ever.
        self._readers: list[weakref.ref[ChangeReader]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def wanted(self) -> bool:
        """Whether there are readers or listeners."""
        return bool(self._active())

    def put(self, changes: RowChanges) -> None:
        """Pass changes to every reader; the caller holds the lock."""
        if len(changes):
            for reader in self._active():
                reader.put(changes)

    def join(self, first: RowChanges, at: Position = ORIGIN) -> ChangeReader:
        """Return a new reader that begins with `first`; the caller holds the lock."""
        reader = ChangeReader(at, len(first))
        if len(first):
            reader.put(first)
        if self._closed:
            reader.end()
        self._readers = [weakref.ref(reader), *(weakref.ref(other) for other in self._active())]
        return reader

    def listen(self, reader: ChangeReader, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every change of `reader`, in a thread; return a stop function."""
        thread = threading.Thread(
            target=self._run, args=(reader, listener), name="headrace-listener", daemon=True
        )
        self._threads.append(thread)
        thread.start()
        return reader.close

    def close(self) -> None:
        """End all readers, and let listeners finish the waiting changes."""
        with self.lock:
            self._closed = True
            for reader in self._active():
                reader.end()
            threads, self._threads = self._threads, []
        for thread in threads:
            # A listener may be the one that stops the engine. A slow one must not delay it.
            if thread is not threading.current_thread():
                thread.join(timeout=1.0)

    def _active(self) -> list[ChangeReader]:
        readers = [reader for ref in self._readers if (reader := ref()) is not None]
        return [reader for reader in readers if not reader.done]

    def _run(self, reader: ChangeReader, listener: Listener) -> None:
        try:
            for change in reader:
                listener(change.before, change.after)
        except Exception as error:  # noqa: BLE001  user code may raise anything
            # The text of the error may contain row values, so it is not logged.
            reader.close()
            # Counted after the line is logged, so that the number never runs ahead of the log.
            log.warning("listener dropped", error=type(error).__name__, dropped=self.dropped + 1)
            self.dropped += 1


# --- the target and its tables --------------------------------------------------------------------

_TRAITS: Final = TargetTraits(type="indexed-memory", durable=False)


class MemoryTable:
    """One table, as readers see it. Each call reads one version of it (invariant 7)."""

    def __init__(self, rows: Table, feed: Feed) -> None:
        self._rows = rows
        self._feed = feed
        # The table's own methods: this saves a call for methods that are called very often.
        self.get: Final = rows.get
        self.lookup: Final = rows.lookup
        self.lookup_all: Final = rows.lookup_all
        self.all: Final = rows.all
        self.count: Final = rows.count
        self.columns_of: Final = rows.columns_of
        self.index_number: Final = rows.index_number
        self.version: Final = rows.version

    @property
    def schema(self) -> TableSchema:
        """The columns of the visible rows; before there are any, those of the first rows."""
        return self._rows.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key, in the order `get` takes their values."""
        return self._rows.key

    @property
    def indexes(self) -> Mapping[str, Sequence[str]]:
        """The columns of each index, by its name."""
        return self._rows.indexes

    @property
    def position(self) -> Position:
        """The position that readers see; `ORIGIN` before there is one."""
        return self._rows.shown or ORIGIN

    def changes(self, start: str = "now") -> ChangeReader:
        """
        Return an iterator over every change from now on; it ends when the engine stops.

        With `start="rows"` it begins with all current rows, as inserts. Before the table is
        ready there is no difference: its first rows are changes, too.
        """
        if start not in ("now", "rows"):
            raise TableError(
                "The argument start must be 'now' or 'rows'",
                remedy="Use changes() or changes(start='rows').",
                start=start,
            )
        with self._feed.lock:
            first = self._rows.present() if start == "rows" else RowChanges.none()
            return self._feed.join(first, self.position)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """
        Call `listener(old, new)` for every change from now on; return a function to stop it.

        (None, row) is an insert, (old, new) an update, (old, None) a delete and (None, None)
        a truncate. It runs in its own thread, after the change is visible. If it raises, it is
        not called again.
        """
        return self._feed.listen(self.changes(), listener)


class IndexedMemory:
    """
    The target that `memory()` returns; see `Target` for the engine's side.

    With one table, use the methods of this class; with several, or with patterns, those of
    `table(name)`. All tables of a batch are applied before the first one becomes visible; then
    they all become visible, one right after another (R26a).
    """

    def __init__(
        self,
        *,
        indexes: Mapping[str, Sequence[str]] | None = None,
        lookup: Sequence[str] | None = None,
        key: Sequence[str] | None = None,
    ) -> None:
        self._indexes = dict(indexes or {})
        self._lookup = lookup or ()
        self._key = key
        self._tables: dict[TableName, Table] = {}
        self._feeds: dict[TableName, Feed] = {}
        self._views: dict[TableName, MemoryTable] = {}
        self._loadings: dict[TableName, MemoryLoading] = {}
        self._pending: dict[TableName, list[RowChanges]] = {}
        # A listener that is added before the engine starts gets the first rows as inserts.
        self._early = Feed()

    # --- for readers ------------------------------------------------------------------------

    def table(self, name: TableName) -> MemoryTable:
        """Return one of several tables."""
        if (view := self._views.get(name)) is None:
            raise UnknownTable(
                "The target has no such table", table=name, tables=sorted(self._views)
            )
        return view

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The names of the tables; empty before the engine has started."""
        return tuple(sorted(self._views))

    def get(self, *key: object) -> Row | None:
        """Return the row with this key, or None."""
        return self._only().get(*key)

    def lookup(self, *values: object) -> Row | None:
        """Return the one row with these values in the columns of `lookup=`, or None."""
        return self._only().lookup(*values)

    def lookup_all(self, index: str, *values: object) -> list[Row]:
        """Return the rows with these values in the columns of an index; None is null."""
        return self._only().lookup_all(index, *values)

    def all(self) -> Iterator[Row]:
        """Return an iterator over all rows, at the current version."""
        return self._only().all()

    def count(self) -> int:
        """Return the number of rows."""
        return self._only().count()

    @property
    def position(self) -> Position:
        """The position that readers see; `ORIGIN` before there is one."""
        return min((view.position for view in self._views.values()), default=ORIGIN)

    @property
    def dropped_listeners(self) -> int:
        """The number of listeners that were dropped: they raised, or fell too far behind."""
        return sum(feed.dropped for feed in {self._early, *self._feeds.values()})

    def changes(self, start: str = "now") -> ChangeReader:
        """Return an iterator over every change from now on; see `MemoryTable.changes`."""
        if not self._views:
            with self._early.lock:
                return self._early.join(RowChanges.none())
        return self._only().changes(start)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(old, new)` for every change from now on; see `MemoryTable.listen`."""
        if not self._views:
            return self._early.listen(self.changes(), listener)
        return self._only().listen(listener)

    def _only(self) -> MemoryTable:
        if len(self._views) == 1:
            return next(iter(self._views.values()))
        if not self._views:
            raise UnknownTable("The table is not ready: the engine has not started")
        raise UnknownTable(
            "The target has several tables",
            remedy="Choose one: target.table(name).",
            tables=sorted(self._views),
        )

    # --- for the engine ---------------------------------------------------------------------

    @property
    def traits(self) -> TargetTraits:
        return _TRAITS

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        for schema in tables.values():
            self._make(schema)

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        # `at` is not used: the rows are gone, and are loaded again from the log.
        self._tables = {name: self._make(schema) for name, schema in tables.items()}
        self._loadings = {}
        self._pending = {name: [] for name in tables}
        self._feeds = {name: Feed() for name in tables}
        if len(tables) == 1:
            self._feeds = dict.fromkeys(tables, self._early)
        self._views = {
            name: MemoryTable(table, self._feeds[name]) for name, table in self._tables.items()
        }
        # Shadows the method of this name, which saves one of the two calls of a get.
        self.__dict__.pop("get", None)
        if len(tables) == 1:
            self.__dict__["get"] = next(iter(self._tables.values())).get

    def add(self, table: TableName, schema: TableSchema, at: Position) -> None:
        if (known := self._tables.get(table)) is not None:
            known.adapt(schema)
            return
        made, feed = self._make(schema), Feed()
        self._pending[table] = []
        # Replaced, not changed: other threads see these without the new table, or with all of it.
        self._feeds = {**self._feeds, table: feed}
        self._tables = {**self._tables, table: made}
        self._views = {**self._views, table: MemoryTable(made, feed)}
        self.__dict__.pop("get", None)

    def load(self, table: TableName, baseline: BaselineId) -> MemoryLoading:
        self._table(table).discard()
        self._loadings[table] = loading = MemoryLoading(self, table)
        return loading

    def write(self, batch: Batch) -> Position:
        found = {name: self._table(name) for name in batch.tables}
        for name, rows in batch.tables.items():
            changes = found[name].apply(
                rows,
                epoch=batch.epoch,
                upto=batch.last,
                truncate=batch.truncates.get(name),
                want_changes=self._feeds[name].wanted,
                publish=False,
            )
            # Not passed on yet: if a later table fails, these are passed on at the next attempt.
            self._pending[name].append(changes)
        with contextlib.ExitStack() as locks:
            for name in found:
                locks.enter_context(self._feeds[name].lock)
            for table in found.values():
                table.publish()
            for name, table in found.items():
                pending = self._take_pending(name)
                # Before the first rows are visible there is nothing that could have changed.
                if table.visible:
                    for changes in pending:
                        self._feeds[name].put(changes)
        return min((table.position for table in found.values()), default=batch.last)

    def schema_changed(self, table: TableName, old: TableSchema, new: TableSchema) -> SchemaAnswer:
        self._loadings.pop(table, None)
        self._table(table).adapt(new)
        return "reload"

    def columns_shown(self, table: TableName) -> TableSchema:
        return self._table(table).schema

    def list_rows(self, table: TableName, columns: Sequence[str]) -> pa.Table:
        return self._table(table).list_rows(columns)

    def row_count(self, table: TableName) -> int | None:
        found = self._tables.get(table)
        return found.count() if found is not None and found.visible else None

    def close(self) -> None:
        for feed in {self._early, *self._feeds.values()}:
            feed.close()
        # The rows stay readable. Opening the target again creates new feeds.
        self._early = Feed()

    def _switch(self, name: TableName, table: Table, at: Position) -> None:
        del self._loadings[name]
        feed = self._feeds[name]
        with feed.lock:
            # Changes that were applied but not published are part of the difference that follows.
            self._take_pending(name)
            feed.put(table.switch(at, want_changes=feed.wanted))

    def _take_pending(self, name: TableName) -> list[RowChanges]:
        """Return and remove the changes of a table that were not passed on yet."""
        pending, self._pending[name] = self._pending[name], []
        return pending

    def _make(self, schema: TableSchema) -> Table:
        return Table(schema, indexes=self._indexes, lookup=self._lookup, key=self._key)

    def _table(self, name: TableName) -> Table:
        if (table := self._tables.get(name)) is None:
            raise UnknownTable(
                "The target has no such table", table=name, tables=sorted(self._tables)
            )
        return table


class MemoryLoading:
    """The load of a baseline; see `Loading`."""

    def __init__(self, target: IndexedMemory, table: TableName) -> None:
        self._target = target
        self._name = table

    def write(self, rows: pa.Table) -> None:
        self._table().load(rows)

    def catch_up(self, batch: Batch) -> None:
        self._table().catch_up(
            batch.tables.get(self._name),
            epoch=batch.epoch,
            upto=batch.last,
            truncate=batch.truncates.get(self._name),
        )

    def list_rows(self, columns: Sequence[str]) -> pa.Table:
        return self._table().list_rows(columns, loading=True)

    def switch(self, at: Position) -> None:
        self._target._switch(self._name, self._table(), at)

    def discard(self) -> None:
        if self._target._loadings.get(self._name) is self:
            self._table().discard()
            del self._target._loadings[self._name]

    def _table(self) -> Table:
        if self._target._loadings.get(self._name) is not self:
            raise TableError(
                "The load has ended, or another one has begun",
                table=self._name,
                remedy="Begin a load for each baseline, and use it until it is switched or"
                " discarded.",
            )
        return self._target._table(self._name)


def memory(
    *,
    indexes: Mapping[str, Sequence[str]] | None = None,
    lookup: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
) -> IndexedMemory:
    """
    Return a target that keeps its table in memory, to be read from this process.

    `indexes` maps names to the columns of an index. `lookup` are columns that are unique
    together. `key` are unique columns that are never null; only for a table that has no key and
    whose source sends only inserts, because a delete would not identify its row.
    """
    return IndexedMemory(indexes=indexes, lookup=lookup, key=key)
