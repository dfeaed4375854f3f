"""
Tables in the engine's own memory, to read from any thread.

```python
orders = hr.memory(indexes={"by_customer": ["customer_id"]}, lookup=["email"])
orders.get(42); orders.lookup_all("by_customer", 7)
```

Not durable: it is filled from the log at every start, and the log keeps what it needs (R8).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import TableError, UnknownTable
from headrace.tables import Row, RowChanges, Table, TableChange
from headrace.targets.feed import ChangeReader, Feed, Listener
from headrace.targets.target import BaselineId, Batch, SchemaAnswer, TargetTraits

__all__ = ["IndexedMemory", "MemoryTable", "TableChange", "memory"]

_TRAITS: Final = TargetTraits(type="indexed-memory", durable=False)


class MemoryTable:
    """One table, as readers see it: each call looks at one version of it (invariant 7)."""

    def __init__(self, rows: Table, feed: Feed) -> None:
        self._rows = rows
        self._feed = feed
        # The table's own methods: a call less, for those that are called a million times.
        self.get: Final = rows.get
        self.lookup: Final = rows.lookup
        self.lookup_all: Final = rows.lookup_all
        self.all: Final = rows.all
        self.count: Final = rows.count
        self.columns_of: Final = rows.columns_of

    @property
    def schema(self) -> TableSchema:
        """The columns of the rows that readers see; before there are any, of those to come."""
        return self._rows.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key, in the order `get` takes their values."""
        return self._rows.key

    @property
    def position(self) -> Position:
        """The position that readers see; `ORIGIN` before there is one."""
        return self._rows.shown or ORIGIN

    def changes(self, start: str = "now") -> ChangeReader:
        """
        Return an iterator of every change from here on; it ends when the engine stops.

        With `start="rows"` it begins with every row that is there, as an insert. Before
        the table is ready the two are the same: its first rows are changes too.
        """
        if start not in ("now", "rows"):
            raise TableError("Changes start now or with the rows", start=start)
        with self._feed.lock:
            first = self._rows.present() if start == "rows" else RowChanges.none()
            return self._feed.join(first)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """
        Call `listener(old, new)` for every change from here on; return a function to stop it.

        (None, row) is an insert, (old, new) an update, (old, None) a delete and (None, None)
        a truncate. It runs on a thread of its own, after the change is visible; if it
        raises it is not called again.
        """
        return self._feed.listen(self.changes(), listener)


class IndexedMemory:
    """
    The target that `memory()` makes; see `Target` for the engine's side.

    With one table its methods are here; with several, or patterns, ask `table(name)` first.
    All tables of a batch are applied before the first becomes visible, and then become so one
    after another, at once (R26a).
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
        self._unheard: dict[TableName, list[RowChanges]] = {}
        # Who listens before the engine starts hears the first rows as inserts.
        self._early = Feed()

    # --- for readers ------------------------------------------------------------------------

    def table(self, name: TableName) -> MemoryTable:
        """Return one of several tables."""
        if (view := self._views.get(name)) is None:
            raise UnknownTable("No such table here", table=name, tables=sorted(self._views))
        return view

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables it holds, by name; none before the engine has started."""
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
        """Return an iterator over all rows, as they are now."""
        return self._only().all()

    def count(self) -> int:
        """Return how many rows there are."""
        return self._only().count()

    @property
    def position(self) -> Position:
        """The position that readers see; `ORIGIN` before there is one."""
        return min((view.position for view in self._views.values()), default=ORIGIN)

    @property
    def dropped_listeners(self) -> int:
        """Listeners that were let go: they raised, or fell too far behind."""
        return sum(feed.dropped for feed in {self._early, *self._feeds.values()})

    def changes(self, start: str = "now") -> ChangeReader:
        """Return an iterator of every change from here on; see `MemoryTable.changes`."""
        if not self._views:
            with self._early.lock:
                return self._early.join(RowChanges.none())
        return self._only().changes(start)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(old, new)` for every change from here on; see `MemoryTable.listen`."""
        if not self._views:
            return self._early.listen(self.changes(), listener)
        return self._only().listen(listener)

    def _only(self) -> MemoryTable:
        if len(self._views) == 1:
            return next(iter(self._views.values()))
        if not self._views:
            raise UnknownTable("Table is not ready: the engine has not started")
        raise UnknownTable(
            "Target holds several tables",
            remedy="Ask for one: target.table(name).",
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
        # `at` is of no use here: what a table held is gone, and comes anew from the log.
        self._tables = {name: self._make(schema) for name, schema in tables.items()}
        self._loadings = {}
        self._unheard = {name: [] for name in tables}
        self._feeds = {name: Feed() for name in tables}
        if len(tables) == 1:
            self._feeds = dict.fromkeys(tables, self._early)
        self._views = {
            name: MemoryTable(table, self._feeds[name]) for name, table in self._tables.items()
        }
        # In the way of the method of this name: one call less of the two that a get takes.
        self.__dict__.pop("get", None)
        if len(tables) == 1:
            self.__dict__["get"] = next(iter(self._tables.values())).get

    def add(self, table: TableName, schema: TableSchema, at: Position) -> None:
        if (known := self._tables.get(table)) is not None:
            known.adapt(schema)
            return
        made, feed = self._make(schema), Feed()
        self._unheard[table] = []
        # Other threads read these meanwhile: they see them without the table, or with all of it.
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
            # Kept, not handed on: if a later table fails, this one is told at the next try.
            self._unheard[name].append(changes)
        with contextlib.ExitStack() as locks:
            for name in found:
                locks.enter_context(self._feeds[name].lock)
            for table in found.values():
                table.publish()
            for name, table in found.items():
                told = self._told(name)
                # Before its first rows are shown nothing was visible, so nothing has changed.
                if table.visible:
                    for changes in told:
                        self._feeds[name].put(changes)
        return min((table.position for table in found.values()), default=batch.last)

    def schema_changed(self, table: TableName, old: TableSchema, new: TableSchema) -> SchemaAnswer:
        self._loadings.pop(table, None)
        self._table(table).adapt(new)
        return "reload"

    def row_count(self, table: TableName) -> int | None:
        found = self._tables.get(table)
        return found.count() if found is not None and found.visible else None

    def close(self) -> None:
        for feed in {self._early, *self._feeds.values()}:
            feed.close()
        # The rows stay readable; who opens the target again gets new feeds.
        self._early = Feed()

    def _switch(self, name: TableName, table: Table, at: Position) -> None:
        del self._loadings[name]
        feed = self._feeds[name]
        with feed.lock:
            # What was applied and not published is in the difference to what was seen.
            self._told(name)
            feed.put(table.switch(at, want_changes=feed.wanted))

    def _told(self, name: TableName) -> list[RowChanges]:
        """Take the changes of a table that nobody was told yet."""
        told, self._unheard[name] = self._unheard[name], []
        return told

    def _make(self, schema: TableSchema) -> Table:
        return Table(schema, indexes=self._indexes, lookup=self._lookup, key=self._key)

    def _table(self, name: TableName) -> Table:
        if (table := self._tables.get(name)) is None:
            raise UnknownTable("No such table here", table=name, tables=sorted(self._tables))
        return table


class MemoryLoading:
    """A baseline on its way in; see `Loading`."""

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

    def switch(self, at: Position) -> None:
        self._target._switch(self._name, self._table(), at)

    def discard(self) -> None:
        if self._target._loadings.get(self._name) is self:
            self._table().discard()
            del self._target._loadings[self._name]

    def _table(self) -> Table:
        if self._target._loadings.get(self._name) is not self:
            raise TableError("Load is over: another one was begun, or it ended", table=self._name)
        return self._target._table(self._name)


def memory(
    *,
    indexes: Mapping[str, Sequence[str]] | None = None,
    lookup: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
) -> IndexedMemory:
    """
    Return a target that keeps its table in memory, to be read from this process.

    `indexes` names columns to find rows by, `lookup` columns that are unique together, and
    `key` unique columns that are never null, only for a table that has no key of its own and
    of which the source sends nothing but inserts: a delete would not say which row is gone.
    """
    return IndexedMemory(indexes=indexes, lookup=lookup, key=key)
