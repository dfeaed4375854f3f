"""
Tables in the engine's own memory, to read from any thread.

```python
orders = hr.memory(indexes={"by_customer": ["customer_id"]}, lookup=["email"])
orders.get(42); orders.lookup_all("by_customer", 7)
```

Not durable: it is filled from the log at every start, and the log keeps what it needs (R8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import TableError, UnknownTable
from headrace.tables import Row, RowChanges, Table, TableChange
from headrace.targets.feed import ChangeReader, Feed, Listener
from headrace.targets.target import BaselineId, Batch, TargetTraits

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

    With one table its methods are here; with several, ask `table(name)` first. All tables
    of a batch are applied before the first becomes visible, and then become so one after
    another, at once (R26a).
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
        # Who listens before the engine starts hears the first rows as inserts.
        self._early = Feed()

    # --- for readers ------------------------------------------------------------------------

    def table(self, name: TableName) -> MemoryTable:
        """Return one of several tables."""
        if (view := self._views.get(name)) is None:
            raise UnknownTable("No such table here", table=name, tables=sorted(self._views))
        return view

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

    def load(self, table: TableName, baseline: BaselineId) -> MemoryLoading:
        self._table(table).discard()
        return MemoryLoading(self._table(table))

    def show(self, table: TableName) -> None:
        feed = self._feeds[table]
        with feed.lock:
            feed.put(self._table(table).show(want_changes=feed.wanted))

    def write(self, batch: Batch) -> Position:
        applied = {
            name: table.apply(
                batch.tables.get(name),
                epoch=batch.epoch,
                upto=batch.last,
                truncate=batch.truncates.get(name),
                want_changes=self._feeds[name].wanted,
                publish=False,
            )
            for name, table in self._tables.items()
        }
        for name, changes in applied.items():
            feed, table = self._feeds[name], self._tables[name]
            with feed.lock:
                table.publish()
                # Before `show` nothing was visible, so nothing has changed.
                if table.visible:
                    feed.put(changes)
        return min((table.position for table in self._tables.values()), default=batch.last)

    def row_count(self, table: TableName) -> int | None:
        found = self._tables.get(table)
        return found.count() if found is not None and found.visible else None

    def close(self) -> None:
        for feed in {self._early, *self._feeds.values()}:
            feed.close()
        # The rows stay readable; who opens the target again gets new feeds.
        self._early = Feed()

    def _make(self, schema: TableSchema) -> Table:
        return Table(schema, indexes=self._indexes, lookup=self._lookup, key=self._key)

    def _table(self, name: TableName) -> Table:
        if (table := self._tables.get(name)) is None:
            raise UnknownTable("No such table here", table=name, tables=sorted(self._tables))
        return table


class MemoryLoading:
    """A baseline on its way in; see `Loading`."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def write(self, rows: pa.Table) -> None:
        self._table.load(rows)

    def switch(self, at: Position) -> None:
        self._table.switch(at)

    def discard(self) -> None:
        self._table.discard()


def memory(
    *,
    indexes: Mapping[str, Sequence[str]] | None = None,
    lookup: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
) -> IndexedMemory:
    """
    Return a target that keeps its table in memory, to be read from this process.

    `indexes` names columns to find rows by, `lookup` columns that are unique together, and
    `key` unique columns that are never null, only for a table that has no key of its own.
    """
    return IndexedMemory(indexes=indexes, lookup=lookup, key=key)
