"""
Changes are made whole where the server left out a value that did not change (R21).

PostgreSQL does not send a large value again that an update leaves alone, and where a table's
identity is not FULL, nothing else has it either. So values of columns that may be large are
kept in a store, from which a change takes what it lacks before anybody sees it: filters and
targets never learn of it. Without the store, or where it would grow beyond its cap, the change
keeps its mark.

The store is filled by a copy of the table, row by row as they pass, and by every change after
the copy's F. Where a change comes before the copy has come to its row, the copy's snapshot is
asked for it. In (F, H] there are changes that the snapshot has seen: what they lack is what
the snapshot has under their *new* key, because nobody looks before H, and then that is right
(R11); the old key may by then be another row's. If the snapshot has not got it, neither
has anybody at H, and it does not matter what it was.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pyarrow as pa

from headrace.capture.postgres.asking import row, talking
from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.holder import Holder
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.place import Place
from headrace.capture.postgres.spill import scratch_folder
from headrace.capture.postgres.toast_cells import Shape, keys_of, long, marked, marks_of
from headrace.capture.postgres.toast_file import discard
from headrace.capture.postgres.toast_lookup import Lookup
from headrace.capture.postgres.toast_rows import Completing, Window
from headrace.capture.postgres.toast_store import ToastStore
from headrace.capture.source import News, NotYet, SourcePosition
from headrace.changelog.change import Changes, TableChanges
from headrace.changelog.schema import TableName, TableSchema
from headrace.observe.logs import logger

PART_BYTES = 16 << 20
"""So much is made whole at a time: a few bytes in a message may stand for a gigabyte."""

OWED = "toast store"
PAGE_BYTES = 8192

Connection: TypeAlias = psycopg.Connection[Any]
Passing: TypeAlias = Callable[[pa.RecordBatch | None, pa.Array | None], None]

log = logger(__name__)


@dataclass(slots=True)
class _Served:
    """A table whose changes may lack values."""

    table: CatalogTable
    schema: TableSchema
    shape: Shape
    where: str
    window: Window | None = None
    """While it is filled, and until everything up to H was read."""


class Toast:
    """
    Completes the changes of one source.

    *Durability*: what a change brought is durable before the change is given. *Failure*:
    `StorageError` where the store cannot be used. *Threads*: one.
    """

    def __init__(self, options: Options, reader: str) -> None:
        self._options = options
        self._reader = reader
        self._path: Path | None = None
        self._lasts = False
        self._most = 0
        self._store: ToastStore | None = None
        self._served: dict[TableName, _Served] = {}
        self._owed: list[TableName] = []
        self._at: SourcePosition = Place("0", 0, 0, 0, 0)
        self._synced = 0
        self._within = False
        """Whether a commit was given in part."""

    @property
    def bytes(self) -> int:
        """What the store takes on disk."""
        return 0 if self._store is None else self._store.bytes

    def open(
        self,
        tables: Mapping[TableName, CatalogTable],
        schemas: Mapping[TableName, TableSchema],
        at: Place,
        first: Holder | None,
        query: Connection | None,
        resumed: bool,
    ) -> None:
        """
        Go back to `at`, where the log ends; unless it is `resumed`, everything begins anew.

        `first` is the snapshot of a slot that was just made: any table may be copied under it.
        """
        self.close()
        page = PAGE_BYTES if query is None else _asked(query, "current_setting('block_size')::int")
        # The server moves values out of rows of more than a quarter of a page.
        self._most = page // 4 - 100
        self._at, self._synced, self._within, self._owed = at, at.lsn, False, []
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
            elif resumed and name not in store.states:
                self._owed.append(name)
        store.commit(at.lsn)

    def add(self, table: CatalogTable, schema: TableSchema) -> None:
        """Take one more table, of which nothing was given yet."""
        self._serve(table, schema)
        if self._store is None and self._served and self._path is not None:
            self._store = ToastStore(self._path, self._options.toast_store_bytes)
            self._store.resume(self._at.lineage, self._at.commit, {})

    def _serve(self, table: CatalogTable, schema: TableSchema) -> None:
        shape = Shape.of(table, schema) if self._options.toast_store else None
        if shape is not None:
            where = self._options.asked_of(table.name).where
            self._served[table.name] = _Served(table, schema, shape, where)

    def news(self, others: Sequence[News] = ()) -> list[News]:
        """
        Return also the tables of which the store does not have what the log builds on, once.

        What is kept of a table that is owed a baseline is of no use: its rows changed without
        a change.
        """
        for each in others:
            if each.owed:
                self._forget(each.table)
        owed, self._owed = self._owed, []
        return [*others, *(News(name, owed=OWED) for name in owed)]

    def _forget(self, table: TableName) -> None:
        one = self._served.get(table)
        if self._store is not None and one is not None:
            self._end(one)
            if self._store.states.get(table) != "over":
                self._store.forget(table)

    def synced(self, upto: int) -> None:
        """Hear how far the log is durable: nothing before is read again."""
        self._synced = max(self._synced, upto)

    # --- copies ----------------------------------------------------------------------------

    def fills(self, table: TableName) -> bool:
        """Whether the rows of a copy have to pass by here."""
        served = self._store is not None and table in self._served
        return served and self._state(table) not in ("full", "over")

    def spares(self, table: TableName, holder: Holder, own: bool, query: Connection | None) -> bool:
        """
        Whether others can copy a table under this snapshot; otherwise it is closed if it is `own`.

        They can where there is nothing to be kept: while the server has no value elsewhere,
        no row in the snapshot has one.
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
        """Raise `NotYet` where a commit was given in part: of changes after F some are gone by."""
        if self._within and self.fills(table):
            raise NotYet

    def fill(self, table: TableName, holder: Holder) -> Passing | None:
        """
        Begin to fill the store as of a snapshot; return who takes the rows, None for nobody.

        It is called with each batch and its marks, and at the end without.
        """
        if self._store is None or not self.fills(table):
            return None
        one = self._served[table]
        if one.window is None or one.window.holder is not holder:
            self._end(one)
            lookup = Lookup(holder, one.table, one.where)
            one.window = Window(holder, holder.first, holder.last, holder.snapshot, lookup)
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
        window: Window,
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
        marks = marks_of(exact)
        large = long(one.shape.columns, rows.to_struct_array(), marks)
        if not large.any():
            return
        if not large.all():
            rows = rows.filter(pa.array(large))
            marks = marks_of(None if exact is None else exact.filter(pa.array(large)))
        image = rows.to_struct_array()
        names = {column.field: column.name for column in (*one.shape.key, *one.shape.columns)}
        keys = keys_of(one.shape, names, image, marks, 1)
        columns = [
            marked(image.field(column.name), column.field, marks) for column in one.shape.columns
        ]
        self._store.put(table, zip(keys, zip(*columns, strict=True), strict=True))
        self._store.commit(self._at.commit)
        self._shrink()

    # --- changes ---------------------------------------------------------------------------

    def completed(self, taken: Iterator[Changes]) -> Iterator[Changes]:
        """Give the same changes, with what they lack as far as the store has it."""
        for changes in taken:
            yield from self._completed(changes)

    def _completed(self, changes: Changes) -> Iterator[Changes]:
        store = self._store
        if store is None:
            yield changes
            return
        self._within = True
        made: list[TableChanges] = []
        size = 0
        for each in changes.tables:
            window, state = self._watched(each.schema.table)
            if state in (None, "over"):
                made.append(each)
                continue
            one = self._served[each.schema.table]
            # With columns that are not published nobody can tell how large a row is there.
            most = self._most if len(one.table.columns) <= len(one.schema.columns) else 0
            completing = Completing(store, one.shape, window, each.schema, most, PART_BYTES)
            for batch in each.rows.to_batches():
                for rows in completing.rows(batch):
                    if size >= PART_BYTES:
                        # As of a commit too large for memory: what follows belongs to it (R9).
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

    def moved(self, upto: SourcePosition) -> None:
        """Hear that reading has come so far without a change."""
        self._at = upto
        if self._store is not None:
            self._store.commit(upto.commit)
            self._settle()

    def close(self) -> None:
        """Let go of the store. Never raises."""
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

    def _watched(self, table: TableName) -> tuple[Window | None, str | None]:
        """Return how a table is filled, and what there is of it; None: nothing."""
        one = self._served.get(table)
        if one is None:
            return None, None
        if one.window is not None and not one.window.done and not one.window.holder.alive:
            # Nobody can copy under it any more; whoever copies later begins at a later F.
            self._forget(table)
        return one.window, self._state(table)

    def _settle(self) -> None:
        """Let go of windows that lie behind: all that is read from now on comes after H."""
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
                "gave up the store of TOAST values of a table: it would be too large",
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
        return int(row(query, f"select {what}")[0])


def store_path(source: str, reader: str) -> tuple[Path, bool]:
    """Return where the store of a reader is, and whether it outlives the reader."""
    _, _, data = reader.partition("@")
    if data and Path(data).is_dir():
        return Path(data) / "toast" / source / "store.sqlite", True
    # Whoever has no data directory has no log to go on with either.
    return scratch_folder(reader) / f"toast-{secrets.token_hex(4)}.sqlite", False
