"""
Completes changes with the values that the server left out because they did not change (R21).

PostgreSQL does not send a large value again if an update leaves it unchanged, and if a table's
replica identity is not FULL, nothing else in the stream has it either. So values of columns that
may be large are kept in a store. A change is completed from it before any reader sees the change,
so filters and targets need not handle missing values. Without the store, or if the store would
exceed its cap, the value stays marked as unsent.

The store is filled by a copy of the table, row by row as the rows pass, and by every change after
the copy's F. A change may leave out a value of a row that the copy has not reached yet. The
snapshot that the copy is read under has the value, and is queried for the row by its key. The
snapshot contains some of the changes in (F, H]. They are completed with the snapshot's row under
their *new* key: no reader looks before H, and at H that row is right (R11); the old key may belong
to another row by then. If the snapshot does not have the row, no reader has it at H either, and its
value does not matter.

The changes of one table are completed row by row, in order. The row of a key is looked up in three
sources: in the changes just before, in the store, and, while a copy is running, in its snapshot.

Long because a value is looked up in three sources, and all three must follow the same order.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from headrace.capture.postgres.connection import importing, talking
from headrace.capture.postgres.connection import row as one_row
from headrace.capture.postgres.copy.snapshot import HeldSnapshot
from headrace.capture.postgres.decode.text import text_column
from headrace.capture.postgres.options import PostgresOptions, quoted
from headrace.capture.postgres.position import LsnPosition
from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.capture.postgres.stream.spill import scratch_folder
from headrace.capture.postgres.toast.store import (
    UNKNOWN,
    Cell,
    ExactTexts,
    Row,
    RowVersion,
    StoredColumns,
    ToastStore,
    array_of,
    cells,
    discard,
    exact_texts_of,
    heavy,
    joined,
    keys_of,
    long,
    marked,
    sizes,
    texts_of,
)
from headrace.capture.source import NotYet, SourceNotice, SourcePosition
from headrace.changelog.change import Changes, Op, TableChanges
from headrace.changelog.history import TransactionSnapshot
from headrace.changelog.schema import Column, TableName, TableSchema
from headrace.errors import Reopening
from headrace.observe.logs import logger

# --- rows in a running copy's snapshot, by their keys ---------------------------------------------

MOST_KEYS = 1_000
"""The number of keys per query: the recorder's thread waits for the result."""

LIMITS = "set local lock_timeout = '2s'; set local statement_timeout = '10s'"
"""How long an ALTER TABLE of another session may block us; then copy and reading start again."""


class RowLookup:
    """Queries rows under a holder's snapshot, over a connection of its own."""

    def __init__(self, holder: HeldSnapshot, table: CatalogTable, where: str) -> None:
        self._holder = holder
        self._table = table
        self._where = where
        self._connection: psycopg.Connection[Any] | None = None

    def rows(
        self, shape: StoredColumns, texts: Sequence[Sequence[str]]
    ) -> list[tuple[bytes, tuple[Cell, ...]]] | None:
        """
        Return key and values of the rows with these keys in the snapshot.

        `texts` are the keys, column by column. None if they cannot be queried. Raises
        `SourceUnreachable` if the connection fails, or if the table is locked.
        """
        found: list[tuple[bytes, tuple[Cell, ...]]] = []
        with talking(table=self._table.name):
            try:
                for at in range(0, len(texts[0]), MOST_KEYS):
                    found += self._asked(shape, [column[at : at + MOST_KEYS] for column in texts])
            except (psycopg.errors.DataException, psycopg.errors.UndefinedFunction):
                # A text is not valid for its type, or a type's extension is in another schema.
                return None
        return found

    def close(self) -> None:
        """Close its connection. Never raises."""
        if self._connection is not None:
            with suppress(psycopg.Error, OSError):
                self._connection.close()
            self._connection = None

    def _asked(
        self, shape: StoredColumns, texts: Sequence[Sequence[str]]
    ) -> list[tuple[bytes, tuple[Cell, ...]]]:
        if self._connection is None:
            self._connection = self._holder.connect()
        connection = self._connection
        # A new transaction for each query: no lock on the table is held in between (R16).
        connection.execute(
            f"{importing(self._holder.id)}; set local row_security = off; {LIMITS};"
            " set local enable_hashjoin = off; set local enable_mergejoin = off".encode(),
            prepare=False,
        )
        try:
            # A raw cursor: a filter may contain a % that would be read as a placeholder.
            cursor = psycopg.RawCursor(connection)
            cursor.execute(self._query(shape).encode(), list(texts), prepare=False)
            result = cursor.pgresult
            assert result is not None
            columns = [
                _cells(column, [result.get_value(row, at) for row in range(result.ntuples)])
                for at, column in enumerate((*shape.key, *shape.columns))
            ]
        finally:
            if not connection.closed:
                connection.execute("rollback")
        many = len(shape.key)
        return [(joined(row[:many]), tuple(row[many:])) for row in zip(*columns, strict=True)]

    def _query(self, shape: StoredColumns) -> str:
        table = self._table
        relation = quoted(table.namespace, table.table)
        # Tables that inherit are published under their own names; partitions are not.
        source = relation if table.kind == "p" else f"only {relation}"
        where = f" where ({self._where})" if self._where else ""
        chosen = ", ".join(f"r.{quoted(column.name)}" for column in (*shape.key, *shape.columns))
        wanted = ", ".join(f"w{at}" for at in range(len(shape.key)))
        # unnest without its schema: with several arrays it is syntax, not a function.
        arrays = ", ".join(f"${at}::pg_catalog.text[]" for at in range(1, len(shape.key) + 1))
        matches = " and ".join(
            f"r.{quoted(column.name)} = w{at}::{column.declared}"
            for at, column in enumerate(shape.key)
        )
        return (
            f"select {chosen} from unnest({arrays}) as wanted({wanted})"
            f" join (select * from {source}{where}) as r on {matches}"
        )


def _cells(column: Column, values: Sequence[bytes | None]) -> list[Cell]:
    array, unrepresentable = text_column(column.type, pa.array(values, pa.binary()))
    found: list[Cell] = list(cells(array))
    for row, text in unrepresentable:
        found[row] = text
    return found


# --- completing the changes of one table, in order ------------------------------------------------


@dataclass(slots=True)
class CopyWindow:
    """A copy that fills the store, and its snapshot (R11)."""

    holder: HeldSnapshot
    first: int
    last: int
    snapshot: TransactionSnapshot
    lookup: RowLookup
    done: bool = False
    """Whether all rows of the copy are in the store."""

    absent: set[bytes] = field(default_factory=set)
    """Keys that were queried and are not in the snapshot."""

    def holds(self, commit: int, xid: int | None) -> bool:
        """Whether the copy's rows include the changes of this commit."""
        return commit <= self.last and xid is not None and self.snapshot.sees(xid)


@dataclass(slots=True)
class _Images:
    """A batch of changes as Python values."""

    ops: Sequence[int]
    commits: Sequence[int]
    xids: Sequence[int | None]
    unsent: Sequence[Sequence[int] | None]
    old: Sequence[bytes | None]
    """The old key, if there is a before image."""

    new: Sequence[bytes]
    values: Sequence[Row]
    heavy: Sequence[bool]
    """Whether a row may be so large that later changes leave out some of its values."""


@dataclass(slots=True)
class _Made:
    """The values found for rows since the last cut."""

    start: int = 0
    bytes: int = 0
    cells: dict[int, list[tuple[int, Cell]]] = field(default_factory=dict)
    """Rows and values, by field."""


class RowCompletion:
    """Completes changes of one table with one schema, and stores the values that they send."""

    def __init__(
        self,
        store: ToastStore,
        shape: StoredColumns,
        window: CopyWindow | None,
        schema: TableSchema,
        most: int,
        part_bytes: int,
    ) -> None:
        """`most` is the size up to which a row has no TOAST values."""
        self._store = store
        self._shape = shape
        self._window = window
        self._schema = schema
        self._most = most
        self._part_bytes = part_bytes
        self._names = {column.field: column.name for column in schema.columns}
        self._fields = [column.field for column in shape.columns]
        self._fresh: dict[bytes, RowVersion] = {}
        """Versions of keys by changes that are not in the store yet."""

        self._known: dict[bytes, RowVersion | None] = {}
        """Versions found in the store since the last cut."""

        self.missed = False
        """Whether a row was updated that no earlier change and no copy has brought."""

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a batch, completed as far as possible, in one piece or several."""
        exact_texts = exact_texts_of(batch.column("_exact"))
        large = heavy(self._schema.columns, batch.column("after"), exact_texts, self._most)
        if not large.any() and _plain(batch):
            yield batch
            return
        images = self._images(batch, exact_texts, large.tolist())
        if self._window is not None and not self._window.done:
            self._ask(self._window, batch, exact_texts, images)
        made = _Made()
        for row in range(batch.num_rows):
            self._take(images, row, made)
            if made.bytes >= self._part_bytes:
                yield self._built(batch, row + 1, images, made)
                made = _Made(row + 1)
        if made.start < batch.num_rows:
            yield self._built(batch, batch.num_rows, images, made)

    def _images(
        self, batch: pa.RecordBatch, exact_texts: ExactTexts, large: Sequence[bool]
    ) -> _Images:
        before, after = batch.column("before"), batch.column("after")
        count = batch.num_rows
        old: list[bytes | None] = [None] * count
        if before.null_count < count:
            found = keys_of(self._shape, self._names, before, exact_texts, -1)
            valid = before.is_valid().to_pylist()
            old = [key if here else None for key, here in zip(found, valid, strict=True)]
        columns: list[Sequence[Cell]] = []
        for column, missing in zip(self._shape.columns, self._shape.missing, strict=True):
            name = self._names.get(column.field)
            columns.append(
                # The change is older than the column; rows got this value when it was added.
                [missing] * count
                if name is None
                else marked(after.field(name), column.field, exact_texts)
            )
        unsent = batch.column("_unsent")
        return _Images(
            batch.column("_op").to_pylist(),
            batch.column("_commit").to_pylist(),
            batch.column("_xid").to_pylist(),
            unsent.to_pylist() if unsent.null_count < count else [None] * count,
            old,
            keys_of(self._shape, self._names, after, exact_texts, 1),
            list(zip(*columns, strict=True)),
            large,
        )

    # --- one change at a time --------------------------------------------------------------

    def _take(self, images: _Images, row: int, made: _Made) -> None:
        op, commit = images.ops[row], images.commits[row]
        if op == Op.TRUNCATE:
            self._fresh.clear()
            self._known.clear()
            self._store.truncate(self._schema.table, commit)
            return
        old, key = images.old[row], images.new[row]
        if op == Op.DELETE:
            self._leave(old, commit)
            return
        values = images.values[row]
        if lacking := images.unsent[row]:
            values = self._completed(images, row, lacking, made)
            if key == (old or key) and all(each in lacking for each in self._fields):
                return  # nothing changed
        if old != key:
            self._leave(old, commit)
        # The stored version of a row that is small now is outdated, but it is not needed: before
        # the server leaves out a value again, it sends the whole row.
        if lacking or images.heavy[row]:
            self._fresh[key] = RowVersion(commit, values)

    def _leave(self, key: bytes | None, commit: int) -> None:
        """Record that the key is deleted; always while a copy runs, which may still read it."""
        if key is not None and (self._window is not None or self._has(key) is not None):
            self._fresh[key] = RowVersion(commit, None)

    def _completed(self, images: _Images, row: int, lacking: Sequence[int], made: _Made) -> Row:
        """Return all values of a row, as far as they are known, and record the missing ones."""
        values = list(images.values[row])
        found, irrelevant = self._found(images, row)
        filled = self._window is None or self._window.done
        if found is None and filled and not irrelevant and images.ops[row] == Op.UPDATE:
            # A row that a filter of the publication let pass only now comes as an insert.
            self.missed = True
        for index, number in enumerate(self._fields):
            if number not in lacking:
                continue
            cell: Cell = UNKNOWN if found is None else found[index]
            values[index] = cell
            if cell != UNKNOWN or irrelevant:
                shown = None if cell == UNKNOWN else cell
                made.cells.setdefault(number, []).append((row, shown))
        made.bytes += sizes(values)
        return tuple(values)

    def _found(self, images: _Images, row: int) -> tuple[Row | None, bool]:
        """Return the row before a change, and whether an unknown value does not matter."""
        key = images.new[row]
        had = self._has(images.old[row] or key)
        commit, window = images.commits[row], self._window
        if window is None or not window.holds(commit, images.xids[row]):
            return (None if had is None else had.row), False
        if had is not None and had.at > window.first and had.row and UNKNOWN not in had.row:
            return had.row, False
        seen = self._store.at(self._schema.table, key, window.first)
        # An insert with missing values was an update of a row that was not published before:
        # whether the snapshot has the row says nothing.
        gone = seen is None and (window.done or key in window.absent)
        return seen, gone and images.ops[row] == Op.UPDATE

    def _has(self, key: bytes) -> RowVersion | None:
        if (fresh := self._fresh.get(key)) is not None:
            return fresh
        if key not in self._known:
            self._known[key] = self._store.newest(self._schema.table, key)
        return self._known[key]

    # --- the copy's snapshot ---------------------------------------------------------------

    def _ask(
        self, window: CopyWindow, batch: pa.RecordBatch, exact_texts: ExactTexts, images: _Images
    ) -> None:
        """Store the snapshot's rows that changes need and that the copy has not reached."""
        for side, keys, sign in (("before", images.old, -1), ("after", images.new, 1)):
            wanted: dict[bytes, int] = {}
            for row, lacking in enumerate(images.unsent):
                key = keys[row] if lacking else None
                if key is None or key in window.absent or key in wanted:
                    continue
                if self._store.at(self._schema.table, key, window.first) is None:
                    wanted[key] = row
            if not wanted:
                continue
            rows = list(wanted.values())
            chosen = batch.column(side).take(pa.array(rows))
            own = {at: exact_texts[row] for at, row in enumerate(rows) if row in exact_texts}
            texts = texts_of(self._shape, self._names, chosen, own, sign)
            if (found := window.lookup.rows(self._shape, texts)) is not None:
                self._store.put(self._schema.table, found)
                window.absent.update(set(wanted) - {key for key, _ in found})

    # --- the result ------------------------------------------------------------------------

    def _built(
        self, batch: pa.RecordBatch, stop: int, images: _Images, made: _Made
    ) -> pa.RecordBatch:
        """Return changes with the values found for them, and write their versions to the store."""
        self._store.write(self._schema.table, self._fresh)
        self._fresh, self._known = {}, {}
        rows = batch.slice(made.start, stop - made.start)
        if not made.cells:
            return rows
        left = [list(each) if each else None for each in images.unsent[made.start : stop]]
        exact: dict[int, dict[int, str]] = {}
        after = rows.column("after")
        children = [after.field(index) for index in range(after.type.num_fields)]
        for column in self._shape.columns:
            if not (found := made.cells.get(column.field)):
                continue
            mask = np.zeros(len(rows), np.bool_)
            for row, cell in found:
                at = row - made.start
                mask[at] = True
                unsent = left[at]
                assert unsent is not None
                unsent.remove(column.field)
                left[at] = unsent or None
                if isinstance(cell, str):
                    exact.setdefault(at, {})[column.field] = cell
            index = after.type.get_field_index(self._names[column.field])
            fills = array_of(column, (cell for _, cell in found))
            children[index] = pc.replace_with_mask(children[index], mask, fills)
        image = pa.StructArray.from_arrays(children, fields=list(after.type), mask=after.is_null())
        return _with(rows, {"after": image, "_unsent": left, "_exact": _merged(rows, exact)})


def _plain(batch: pa.RecordBatch) -> bool:
    """Whether no value is missing and no key is deleted: true for most changes of most tables."""
    count = batch.num_rows
    some = [batch.column(name).null_count < count for name in ("_unsent", "before")]
    return not any(some) and batch.column("after").null_count == 0


def _merged(rows: pa.RecordBatch, more: Mapping[int, Mapping[int, str]]) -> object:
    """Return the exact texts of rows, with some more added."""
    column = rows.column("_exact")
    if not more:
        return column
    exact_texts = exact_texts_of(column)
    for row, texts in more.items():
        exact_texts.setdefault(row, {}).update(texts)
    return [
        list(exact_texts[row].items()) if row in exact_texts else None for row in range(len(rows))
    ]


def _with(rows: pa.RecordBatch, columns: Mapping[str, object]) -> pa.RecordBatch:
    """Return the rows with some columns replaced."""
    arrays = []
    for number, kind in enumerate(rows.schema):
        made = columns.get(kind.name, rows.column(number))
        arrays.append(pa.array(made, kind.type) if isinstance(made, list) else made)
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


# --- the changes of a source ----------------------------------------------------------------------

PART_BYTES = 16 << 20
"""How much is completed at a time: a few bytes of a message may refer to a gigabyte."""

_ABSENT = ("_unsent", "_exact", "before")
"""Null in a change that was sent complete, fits its columns and keeps its key."""

REASON = "toast store"
"""Why a table needs a new baseline: the store does not have its values."""
PAGE_BYTES = 8192

Connection: TypeAlias = psycopg.Connection[Any]
Passing: TypeAlias = Callable[[pa.RecordBatch | None, pa.Array | None], None]

log = logger(__name__)


@dataclass(slots=True)
class _Served:
    """A table whose changes may lack values."""

    table: CatalogTable
    schema: TableSchema
    shape: StoredColumns
    where: str
    window: CopyWindow | None = None
    """Set while it is filled, and until everything up to H was read."""


class Toast:
    """
    Completes the changes of one source.

    *Durability*: the values of a change are durable before the change is returned. *Failure*:
    `StorageError` if the store cannot be read or written. *Threads*: one.
    """

    def __init__(self, options: PostgresOptions, reader: str) -> None:
        self._options = options
        self._reader = reader
        self._path: Path | None = None
        self._lasts = False
        self._most = 0
        self._store: ToastStore | None = None
        self._served: dict[TableName, _Served] = {}
        self.whole: set[TableName] = set()
        """Tables whose large values are not stored, because the server sends all of them."""

        self._partial: set[TableName] = set()
        """Tables that have changes from a time when it did not, although it may again."""

        self._lacking: set[TableName] = set()
        """Tables with changes that lack values for good: only a copy made after them is right."""

        self._waiting: set[TableName] = set()
        """Tables whose values the store should have, and does not until they are copied again."""

        self._rebaseline_required: list[TableName] = []
        self._at: SourcePosition = LsnPosition("0", 0, 0, 0, 0)
        self._synced = 0
        self._within = False
        """Whether only a part of a commit was returned so far."""

    @property
    def active(self) -> bool:
        """Whether there is a store: otherwise changes and positions need not be passed to it."""
        return self._store is not None

    @property
    def bytes(self) -> int:
        """The size of the store on disk."""
        return 0 if self._store is None else self._store.bytes

    def open(
        self,
        tables: Mapping[TableName, CatalogTable],
        schemas: Mapping[TableName, TableSchema],
        at: LsnPosition,
        first: HeldSnapshot | None,
        query: Connection | None,
        resumed: bool,
    ) -> None:
        """
        Go back to `at`, where the log ends; unless it is `resumed`, start with an empty store.

        `first` is the snapshot of a new slot: any table may be copied under it.
        """
        self.close()
        self.whole, self._waiting = set(), set()
        page = PAGE_BYTES if query is None else _asked(query, "current_setting('block_size')::int")
        # The server moves values out of rows of more than a quarter of a page.
        self._most = page // 4 - 100
        self._at, self._synced, self._within, self._rebaseline_required = at, at.lsn, False, []
        self._path, self._lasts = store_path(self._options.name, self._reader)
        for name, table in tables.items():
            self._serve(table, schemas[name])
        if not self._served:
            discard(self._path)
            return
        store = self._store = ToastStore(self._path, self._options.toast_store_bytes)
        shapes = {name: one.shape for name, one in self._served.items()} if resumed else {}
        store.resume(at.lineage, at.lsn, shapes)
        for name in self._served:
            if first is not None:
                self.fill(name, first)
            elif resumed and (name not in store.states or name in self._lacking):
                store.forget(name)
                self._rebaseline_required.append(name)
                self._waiting.add(name)
        store.commit(at.lsn)

    def add(self, table: CatalogTable, schema: TableSchema) -> None:
        """Add a table, of which no change was returned yet."""
        self._serve(table, schema)
        if self._store is None and self._served and self._path is not None:
            self._store = ToastStore(self._path, self._options.toast_store_bytes)
            self._store.resume(self._at.lineage, self._at.commit, {})

    def _serve(self, table: CatalogTable, schema: TableSchema) -> None:
        shape = StoredColumns.of(table, schema) if self._options.toast_store else None
        whole = all(each.identity == "f" for each in (table, *table.leaves))
        if shape is not None and whole and table.name not in self._partial:
            self.whole.add(table.name)
        elif shape is not None:
            where = self._options.asked_of(table.name).where
            self._served[table.name] = _Served(table, schema, shape, where)

    def notices(self, others: Sequence[SourceNotice] = ()) -> list[SourceNotice]:
        """
        Return `others`, and once the tables that the store lacks values of.

        The stored values of a table that needs a new baseline are useless: its rows changed
        without a change in the stream.
        """
        for each in others:
            if each.rebaseline_reason:
                self._forget(each.table)
        tables, self._rebaseline_required = self._rebaseline_required, []
        mine = (
            # Nobody may apply the changes that lack values, so they count as missing.
            SourceNotice(name, rebaseline_reason=REASON, missing=name in self._lacking)
            for name in tables
        )
        return [*others, *mine]

    def _forget(self, table: TableName) -> None:
        one = self._served.get(table)
        if self._store is not None and one is not None:
            self._end(one)
            if self._store.states.get(table) != "over":
                if table in self._store.states:
                    self._waiting.add(table)
                self._store.forget(table)

    def store_anyway(self, table: TableName) -> None:
        """Store the values of a table from the next `open` on, whatever its replica identity."""
        self._partial.add(table)

    def synced(self, upto: int) -> None:
        """Record how far the log is durable: nothing before is read again."""
        self._synced = max(self._synced, upto)

    # --- copies ----------------------------------------------------------------------------

    def fills(self, table: TableName) -> bool:
        """Whether the rows of a copy have to be passed to `fill`."""
        served = self._store is not None and table in self._served
        return served and self._state(table) not in ("full", "over")

    def spares(
        self, table: TableName, holder: HeldSnapshot, own: bool, query: Connection | None
    ) -> bool:
        """
        Whether other processes can copy a table under this snapshot; if not, close an `own` one.

        They can if there is nothing to store: while the table's TOAST relation is empty, no row
        in the snapshot has a TOAST value.
        """
        if not self.fills(table):
            return True
        if query is not None and not self._within:
            leaves = ", ".join(str(leaf.oid) for leaf in self._served[table].table.leaves)
            size = "coalesce(sum(pg_catalog.pg_relation_size(reltoastrelid)), 0)::int8"
            where = f"from pg_catalog.pg_class where oid in ({leaves or 0}) and reltoastrelid <> 0"
            if not _asked(query, f"{size} {where}") and (passing := self.fill(table, holder)):
                passing(None, None)
                return True
        if own:
            holder.close()
        return False

    def wait(self, table: TableName) -> None:
        """Raise `NotYet` inside a commit: some of its changes, which are after F, have passed."""
        if self._within and self.fills(table):
            raise NotYet

    def fill(self, table: TableName, holder: HeldSnapshot) -> Passing | None:
        """
        Start to fill the store from a snapshot; return a function that takes the rows, or None.

        Call it with each batch and its exact texts, and with None at the end.
        """
        if self._store is None or not self.fills(table):
            return None
        one = self._served[table]
        if one.window is None or one.window.holder is not holder:
            self._end(one)
            lookup = RowLookup(holder, one.table, one.where)
            self._lacking.discard(table)
            self._waiting.discard(table)
            one.window = CopyWindow(holder, holder.first, holder.last, holder.snapshot, lookup)
            self._store.begin(table, one.shape, holder.first, holder.last)
        window = one.window

        def passing(rows: pa.RecordBatch | None, exact: pa.Array | None) -> None:
            if one.window is window and not window.done:
                self._passing(table, one, window, rows, exact)

        return passing

    def _passing(
        self,
        table: TableName,
        one: _Served,
        window: CopyWindow,
        rows: pa.RecordBatch | None,
        exact: pa.Array | None,
    ) -> None:
        assert self._store is not None
        if rows is None:
            window.done = True
            window.lookup.close()
            self._store.finish(table)
            log.info("filled the store of TOAST values", table=table, bytes=self._store.bytes)
            return
        exact_texts = exact_texts_of(exact)
        large = long(one.shape.columns, rows.to_struct_array(), exact_texts)
        if not large.any():
            return
        if not large.all():
            rows = rows.filter(pa.array(large))
            exact_texts = exact_texts_of(None if exact is None else exact.filter(pa.array(large)))
        image = rows.to_struct_array()
        names = {column.field: column.name for column in (*one.shape.key, *one.shape.columns)}
        keys = keys_of(one.shape, names, image, exact_texts, 1)
        columns = [
            marked(image.field(column.name), column.field, exact_texts)
            for column in one.shape.columns
        ]
        self._store.put(table, zip(keys, zip(*columns, strict=True), strict=True))
        self._store.commit(self._at.commit)
        self._shrink()

    # --- changes ---------------------------------------------------------------------------

    def completed(self, taken: Iterator[Changes]) -> Iterator[Changes]:
        """Yield the same changes, completed as far as the store has the values."""
        store = self._store
        for changes in taken:
            if store is None:
                yield changes
            elif changes.ends and not self._within and all(map(self._untouched, changes.tables)):
                self._at = changes.upto
                store.commit(self._at.commit)
                yield changes
            else:
                yield from self._completed(store, changes)

    def _completed(self, store: ToastStore, changes: Changes) -> Iterator[Changes]:
        self._within = True
        made: list[TableChanges] = []
        size = 0
        for each in changes.tables:
            window, state = self._watched(each.schema.table)
            if state in (None, "over"):
                if state is None:
                    self._require_complete(each)
                made.append(each)
                continue
            one = self._served[each.schema.table]
            most = self._most_of(one)
            completing = RowCompletion(store, one.shape, window, each.schema, most, PART_BYTES)
            for batch in each.rows.to_batches():
                for rows in completing.rows(batch):
                    if completing.missed and state == "full":
                        raise self._lacks(each.schema.table)
                    if size >= PART_BYTES:
                        # Like a commit too large for memory: what follows belongs to it (R9).
                        yield Changes(made, self._at, ends=False)
                        made, size = [], 0
                    made.append(TableChanges(each.schema, pa.Table.from_batches([rows])))
                    size += rows.nbytes
        if changes.ends:
            self._at = changes.upto
        store.prune(self._synced, [name for name, one in self._served.items() if one.window])
        store.commit(self._at.commit)
        self._shrink()
        self._within = not changes.ends
        self._settle()
        yield Changes(made, changes.upto, changes.ends, changes.markers)

    def _require_complete(self, changes: TableChanges) -> None:
        """Raise if changes lack values that were not stored, until the log has recorded that."""
        name, unsent = changes.schema.table, changes.rows.column("_unsent")
        if name not in self._waiting or name in self._lacking or unsent.null_count == len(unsent):
            return
        raise self._lacks(name)

    def _lacks(self, table: TableName) -> Reopening:
        """Return the error after which the log records first that changes are missing."""
        self._lacking.add(table)
        return Reopening("Updates lack large values that were not stored", table=table)

    def _untouched(self, changes: TableChanges) -> bool:
        """Whether these are a few small rows, sent complete, with nothing to store or delete."""
        one = self._served.get(changes.schema.table)
        if one is None:
            return True
        if one.window is not None:
            return False
        rows, after = changes.rows, changes.rows.column("after")
        sent = all(rows.column(name).null_count == len(rows) for name in _ABSENT)
        # All of them together are smaller than one row that `heavy` would find.
        most = self._most_of(one) - 24 * (len(changes.schema.columns) + 1)
        return sent and after.null_count == 0 and 16 * after.nbytes <= most

    def _most_of(self, one: _Served) -> int:
        # If some columns are not published, the size of a row on the server is unknown.
        return self._most if len(one.table.columns) <= len(one.schema.columns) else 0

    def moved(self, upto: SourcePosition) -> None:
        """Record that reading has reached a position without a change."""
        self._at = upto
        if self._store is not None:
            self._store.commit(upto.commit)
            self._settle()

    def close(self) -> None:
        """Close the store. Never raises."""
        for one in self._served.values():
            self._end(one)
        self._served = {}
        if self._store is not None:
            self._store.close()
            self._store = None
            if self._path is not None and not self._lasts:
                discard(self._path)

    # --- steps -----------------------------------------------------------------------------

    def _state(self, table: TableName) -> str | None:
        return None if self._store is None else self._store.states.get(table)

    def _watched(self, table: TableName) -> tuple[CopyWindow | None, str | None]:
        """Return a table's copy window and its state in the store; None: there is none."""
        one = self._served.get(table)
        if one is None:
            return None, None
        if one.window is not None and not one.window.done and not one.window.holder.alive:
            # No copy can use this snapshot any more; a later copy starts at a later F.
            self._forget(table)
        return one.window, self._state(table)

    def _settle(self) -> None:
        """Drop windows that have passed: all that is read from now on comes after H."""
        for name, one in self._served.items():
            window = one.window
            if window is not None and window.done and self._at.commit >= window.last:
                if self._within:
                    continue
                one.window = None
                if self._store is not None:
                    self._store.tidy(name, min(self._synced, self._at.commit))

    def _shrink(self) -> None:
        assert self._store is not None
        for name in self._store.shrink():
            self._end(self._served[name])
            log.warning(
                "dropped a table from the store of TOAST values: it would exceed the cap",
                table=name,
                cap=self._options.toast_store_bytes,
            )
            self._store.commit(self._at.commit)

    @staticmethod
    def _end(one: _Served) -> None:
        if one.window is not None:
            one.window.lookup.close()
            one.window = None


def _asked(query: Connection, what: str) -> int:
    with talking():
        return int(one_row(query, f"select {what}")[0])


def store_path(source: str, reader: str) -> tuple[Path, bool]:
    """Return the path of a reader's store, and whether it is kept after the reader has ended."""
    _, _, data = reader.partition("@")
    if data and Path(data).is_dir():
        return Path(data) / "toast" / source / "store.sqlite", True
    # Without a data directory there is no log to continue either.
    return scratch_folder(reader) / f"toast-{secrets.token_hex(4)}.sqlite", False
