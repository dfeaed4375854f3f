"""
A table in memory: rows by key and by index, at one position.

One thread writes, any number read, and neither waits for the other. Reads go to a `TableVersion`,
which the writer replaces by a single assignment; how versions share all their arrays, and
what that costs, is described in `hash_index.py`, `columns.py` and `store.py`:

* a row takes its data and 32 bytes, and 16 to 24 more for each index;
* a batch costs by its own size, not the table's, except for a copy of all living rows
  after updates of half of them;
* a `get` takes about 1 µs for an integer key, 1.5 to 2.5 µs for others, and decodes nothing
  but what it must compare. (Python's own lock is shared by all threads of a process: readers
  and writer do not wait for each other here, but they take turns there.)

A table takes batches that come again, in whole or in part: rows at or before its position are
ignored (invariant 4). A baseline is staged while the live rows continue to take batches; it
catches up, and replaces them at `switch`, for readers too (invariant 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import BATCH_META, TableSchema
from headrace.errors import (
    HeadraceError,
    NoKey,
    NotUnique,
    NullKey,
    TableError,
    UnknownColumn,
    UnknownIndex,
    UnknownTable,
)
from headrace.tables.changes import RowChanges, difference, present
from headrace.tables.columns import Row
from headrace.tables.keys import Codec, Hash64
from headrace.tables.store import RowStore, StoreLayout
from headrace.tables.version import TableVersion

_NOTHING: Mapping[str, Sequence[str]] = MappingProxyType({})


class Table:
    """
    Rows of one table.

    `apply`, `publish`, `load`, `catch_up`, `list_rows`, `switch` and `discard` are for one thread
    at a time; everything else is for all.
    """

    def __init__(
        self,
        schema: TableSchema,
        *,
        indexes: Mapping[str, Sequence[str]] = _NOTHING,
        lookup: Sequence[str] = (),
        key: Sequence[str] | None = None,
        hash64: Hash64 = xxhash.xxh64_intdigest,
    ) -> None:
        self.schema = schema
        self.key = key_of(schema, key)
        self._width = len(self.key)
        self._lookup = columns_of(lookup)
        every = {name: columns_of(columns) for name, columns in indexes.items()}
        self._names = {name: at for at, name in enumerate(every)}
        self._indexed = [*every.values(), *([self._lookup] if self._lookup else [])]
        self._hash64 = hash64
        self._given_key = key
        self._layout = self._laid_out(schema)
        self._coming: StoreLayout | None = None
        """What the table is after the next `switch`, where that is something else."""
        self._store = RowStore(self._layout)
        self._version = self._store.version(ORIGIN)
        self._loading: RowStore | None = None
        self._caught_up = ORIGIN
        """How far the rows being loaded are; a baseline's own rows have no position."""
        self._shown: TableVersion | None = None
        """What readers see; with `_shown_store`, enough to compute what a reload changed."""
        self._shown_store: RowStore | None = None

    # --- for readers ------------------------------------------------------------------------

    @property
    def shown(self) -> Position | None:
        """The position that readers see; None before the first `switch`."""
        version = self._shown
        return None if version is None else version.position

    def get(self, *key: object) -> Row | None:
        """Return the row with this key, or None."""
        version = self._shown
        if version is None or len(key) != self._width:
            self._read()
            raise self._miscounted(self.key, key)
        return version.get(key)

    def lookup(self, *values: object) -> Row | None:
        """Return the row with these values in the columns of `lookup`, or None."""
        if not self._lookup:
            raise UnknownIndex("No lookup was declared", table=self.schema.table)
        if len(values) != len(self._lookup):
            raise self._miscounted(self._lookup, values)
        rows = self._read().lookup(len(self._indexed) - 1, values)
        if len(rows) > 1:
            raise NotUnique(
                "Lookup found several rows",
                table=self.schema.table,
                columns=list(self._lookup),
                rows=len(rows),
            )
        return rows[0] if rows else None

    def lookup_all(self, index: str, *values: object) -> list[Row]:
        """Return the rows with these values in the columns of an index; None is null."""
        if (at := self._names.get(index)) is None:
            raise UnknownIndex("No such index", table=self.schema.table, index=index)
        if len(values) != len(self._indexed[at]):
            raise self._miscounted(self._indexed[at], values)
        return self._read().lookup(at, values)

    def all(self) -> Iterator[Row]:
        """Return an iterator over all rows of the present version."""
        # The version is taken here, at the call, and not at the first row.
        return self._read().all()

    def count(self) -> int:
        """Return how many rows there are."""
        return self._read().count

    def columns_of(self, index: str | None) -> tuple[str, ...]:
        """Return the columns of an index; None for those of the unique lookup."""
        if index is None:
            if not self._lookup:
                raise UnknownIndex("No lookup was declared", table=self.schema.table)
            return self._lookup
        if (at := self._names.get(index)) is None:
            raise UnknownIndex(
                "No such index",
                table=self.schema.table,
                index=index,
                indexes=sorted(self._names),
            )
        return self._indexed[at]

    @property
    def indexes(self) -> Mapping[str, Sequence[str]]:
        """The columns of each index, by its name."""
        return {name: self._indexed[at] for name, at in self._names.items()}

    def index_number(self, index: str | None) -> int:
        """Return the number of an index in every version; None for that of the unique lookup."""
        self.columns_of(index)
        return len(self._indexed) - 1 if index is None else self._names[index]

    def version(self) -> TableVersion:
        """Return what readers see now; it stays as it is."""
        return self._read()

    def present(self) -> RowChanges:
        """Return all rows as inserts at the version's position; none before the first `switch`."""
        version = self._shown
        return RowChanges.none() if version is None else present(version, list(self.key))

    def _read(self) -> TableVersion:
        if (version := self._shown) is None:
            raise UnknownTable("Table is not ready", table=self.schema.table)
        return version

    def _miscounted(self, columns: Sequence[str], values: Sequence[object]) -> TableError:
        return TableError(
            "Wrong number of values: one is needed for each column",
            remedy="Pass the values in the order of the columns.",
            table=self.schema.table,
            columns=list(columns),
            given=len(values),
        )

    # --- for the writer ---------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """How far the writer has got, published or not."""
        return self._version.position

    @property
    def visible(self) -> bool:
        """Whether there is a table to read: from the first `switch` on."""
        return self._shown is not None

    @property
    def nbytes(self) -> int:
        """Bytes of rows, keys and indexes, room that is not used yet included."""
        return self._store.nbytes

    def apply(
        self,
        rows: pa.Table | None,
        *,
        epoch: int,
        upto: Position,
        truncate: Position | None = None,
        want_changes: bool = False,
        publish: bool = True,
    ) -> RowChanges:
        """
        Apply changes in position order and move to `upto`; return what they did.

        `rows` are in the shape of a target's batch, None for none. With `want_changes` the
        states that a row has within the batch are kept and returned one by one; without, the
        changes returned are the net ones. Nothing is visible before `publish`.
        """
        if upto <= self.position:
            # Invariant 4: what is at or before our position has been applied.
            return RowChanges.none()
        self._store, changes = self._applied(
            self._store, self.position, rows, epoch, upto, truncate, net=not want_changes
        )
        self._version = self._store.version(upto)
        if publish:
            self.publish()
        return changes

    def publish(self) -> None:
        """Make what was applied visible, if the table is."""
        if self._shown is not None:
            # The one assignment that readers depend on (invariant 7).
            self._shown = self._version
            self._shown_store = self._store

    def adapt(self, schema: TableSchema) -> None:
        """Load with other columns from here on; what readers see keeps its own until `switch`."""
        self.discard()
        self._coming = self._laid_out(schema)

    def load(self, rows: pa.Table) -> None:
        """Add rows of a baseline, in any order; readers do not see them before `switch`."""
        store = self._loading or RowStore(self._coming or self._layout)
        if rows.num_rows:
            arrays = _arrays(rows, store.layout)
            store.write(np.zeros(rows.num_rows, np.int8), arrays, net=True)
        self._loading = store.compacted() if store.worn_out else store

    def catch_up(
        self,
        rows: pa.Table | None,
        *,
        epoch: int,
        upto: Position,
        truncate: Position | None = None,
    ) -> None:
        """Apply changes to the rows being loaded, as `apply` does to the live ones."""
        if upto <= self._caught_up:
            return
        store = self._loading or RowStore(self._coming or self._layout)
        self._loading, _ = self._applied(
            store, self._caught_up, rows, epoch, upto, truncate, net=True
        )
        self._caught_up = upto

    def switch(self, at: Position, *, want_changes: bool = False) -> RowChanges:
        """
        Make the loaded rows the table, at `at`, for readers too; without any it is empty.

        Returns the difference to what readers saw, if wanted.
        """
        store = self._loading or RowStore(self._coming or self._layout)
        version = store.version(at)
        changes = RowChanges.none()
        if want_changes:
            seen = None
            if self._shown is not None and self._shown_store is not None:
                seen = self._shown_store, self._shown
            changes = difference(seen, (store, version))
        self._store, self._version = store, version
        self.discard()
        if self._coming is not None:
            self._layout, self._coming = self._coming, None
            self.schema = self._layout.schema
            self.key = key_of(self.schema, self._given_key)
            self._width = len(self.key)
        # The one assignment that readers depend on (invariant 7).
        self._shown = self._version
        self._shown_store = self._store
        return changes

    def list_rows(self, columns: Sequence[str], *, loading: bool = False) -> pa.Table:
        """Return these columns of all rows as written so far, or of those being loaded."""
        store = self._store
        if loading:
            store = self._loading or RowStore(self._coming or self._layout)
        schema = store.layout.schema
        _check_columns(schema, columns)
        fields = [schema.arrow.field(name) for name in columns]
        rows = store.version(ORIGIN).rows()
        if not len(rows):
            return pa.schema(fields).empty_table()
        found = store.collect(rows, [schema.names.index(name) for name in columns])
        return pa.Table.from_arrays(found, schema=pa.schema(fields))

    def discard(self) -> None:
        """Forget the rows loaded so far."""
        self._loading = None
        self._caught_up = ORIGIN

    def _applied(
        self,
        store: RowStore,
        position: Position,
        rows: pa.Table | None,
        epoch: int,
        upto: Position,
        truncate: Position | None,
        *,
        net: bool,
    ) -> tuple[RowStore, RowChanges]:
        """Apply what comes after `position` to `store`; return the store to go on with."""
        emptied = truncate is not None and truncate > position
        if emptied and truncate is not None:
            # R23d: all rows so far are gone; the batch's own begin after it.
            store, position = RowStore(store.layout), truncate
        fresh = None if rows is None else _after(rows, position, epoch)
        changes = RowChanges.none()
        if fresh is not None and fresh.num_rows:
            changes = self._write(store, fresh, upto, net=net)
        if emptied and truncate is not None:
            changes = changes.after_truncate(truncate)
        return store.compacted() if store.worn_out else store, changes

    def _write(self, store: RowStore, rows: pa.Table, upto: Position, *, net: bool) -> RowChanges:
        ops = _numpy(rows, 0)
        if not store.layout.schema.key and (ops != Op.INSERT).any():
            # The source does not send the old row, so its key is unknown.
            raise NoKey(
                "A row of a table without a key was changed or deleted, and cannot be identified",
                remedy="Declare a primary key at the source; key= alone is only for tables with"
                " inserts alone. If this is an old change that the log still holds, reload the"
                " table: it then starts after that change.",
                table=store.layout.schema.table,
                rows=int((ops != Op.INSERT).sum()),
            )
        own = rows.select(list(range(BATCH_META, rows.num_columns)))
        arrays = _arrays(own, store.layout)
        written = store.write(ops, arrays, net=net)
        chosen = written.changes
        return RowChanges(
            [column.name for column in store.layout.key.columns],
            upto,
            old=store.chunks,
            new=store.chunks,
            before=written.before,
            after=written.after,
            at=(
                _numpy(rows, 1)[chosen],
                _numpy(rows, 2)[chosen],
                rows.column(3).to_numpy().view(np.int64)[chosen],
            ),
        )

    def _laid_out(self, schema: TableSchema) -> StoreLayout:
        key = key_of(schema, self._given_key)
        for columns in (key, *self._indexed):
            _check_columns(schema, columns)
        made = [
            Codec([schema.column(name) for name in columns], self._hash64)
            for columns in (key, *self._indexed)
        ]
        return StoreLayout(schema, made[0], tuple(made[1:]))


def _arrays(rows: pa.Table, layout: StoreLayout) -> list[pa.Array]:
    """Return the columns of rows as a store of this layout takes them."""
    arrays = [_array(rows, field) for field in layout.schema.arrow]
    for at in layout.column_indexes(layout.key):
        if arrays[at].null_count:
            raise NullKey(
                "Key holds a null",
                table=layout.schema.table,
                column=layout.schema.names[at],
                rows=arrays[at].null_count,
            )
    return arrays


def key_of(schema: TableSchema, key: Sequence[str] | None) -> tuple[str, ...]:
    """Return the key's columns: the source's, or those given where it has none."""
    given = columns_of(key or ())
    if schema.key and given and set(given) != set(schema.key):
        # Deletes carry the source's key and nothing else (R23).
        raise TableError(
            "The table already has a primary key",
            remedy="Leave key= out.",
            table=schema.table,
            key=list(schema.key),
        )
    if not (schema.key or given):
        raise NoKey("The table has no key", table=schema.table)
    return schema.key or given


def columns_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names; a single name may be given as a string."""
    return (names,) if isinstance(names, str) else tuple(names)


def _check_columns(schema: TableSchema, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in schema.names:
            raise UnknownColumn(
                "Table has no such column",
                table=schema.table,
                column=name,
                columns=list(schema.names),
            )


def _after(rows: pa.Table, position: Position, epoch: int) -> pa.Table:
    """Return the rows that come after `position`; they are in position order."""
    commits, ordinals = _numpy(rows, 1), _numpy(rows, 2)
    rising = (commits[1:] > commits[:-1]) | (
        (commits[1:] == commits[:-1]) & (ordinals[1:] >= ordinals[:-1])
    )
    if not rising.all():
        # Positions decide what is new; without order they cannot.
        raise TableError(
            "Rows are not in position order", rows=rows.num_rows, remedy=HeadraceError.remedy
        )
    if epoch != position.epoch:
        return rows if epoch > position.epoch else rows.slice(0, 0)
    seen = (commits < position.commit) | (
        (commits == position.commit) & (ordinals <= position.ordinal)
    )
    return rows.slice(int(seen.sum()))


def _numpy(rows: pa.Table, index: int) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = rows.column(index).to_numpy()
    return values


def _array(rows: pa.Table, field: pa.Field) -> pa.Array:
    at = rows.schema.get_field_index(field.name)
    if at < 0:
        raise UnknownColumn("Rows lack a column", column=field.name, columns=rows.column_names)
    column = rows.column(at)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return array if array.type == field.type else array.cast(field.type)
