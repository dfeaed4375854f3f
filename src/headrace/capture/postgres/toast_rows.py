"""
Changes of one table, made whole row by row, in their order.

What a key has is looked for in three places: among the changes just before, in the store, and,
while a copy is under way, in its snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.capture.postgres.holder import Holder
from headrace.capture.postgres.toast_cells import (
    UNKNOWN,
    Cell,
    Marks,
    Shape,
    array_of,
    heavy,
    keys_of,
    marked,
    marks_of,
    sizes,
    texts_of,
)
from headrace.capture.postgres.toast_lookup import Lookup
from headrace.capture.postgres.toast_store import Row, ToastStore, Version
from headrace.changelog.change import Op
from headrace.changelog.schema import TableSchema
from headrace.changelog.window import Snapshot


@dataclass(slots=True)
class Window:
    """A copy that fills the store, and what is known of its snapshot (R11)."""

    holder: Holder
    first: int
    last: int
    snapshot: Snapshot
    lookup: Lookup
    done: bool = False
    """Whether all its rows are in the store."""

    absent: set[bytes] = field(default_factory=set)
    """Keys that it was asked for in vain."""

    def holds(self, commit: int, xid: int | None) -> bool:
        """Whether the copy's rows hold what this commit did."""
        return commit <= self.last and xid is not None and self.snapshot.sees(xid)


@dataclass(slots=True)
class _Images:
    """A batch of changes in Python's terms."""

    ops: Sequence[int]
    commits: Sequence[int]
    xids: Sequence[int | None]
    unsent: Sequence[Sequence[int] | None]
    old: Sequence[bytes | None]
    """The key before, where there is an image that has it."""

    new: Sequence[bytes]
    values: Sequence[Row]
    heavy: Sequence[bool]
    """Whether a row may be so large that something of it is left out later."""


@dataclass(slots=True)
class _Made:
    """What was found for rows since the last cut."""

    start: int = 0
    bytes: int = 0
    cells: dict[int, list[tuple[int, Cell]]] = field(default_factory=dict)
    """By field: row and value."""


class Completing:
    """Completes changes of one table that have one schema, and keeps what they bring."""

    def __init__(
        self,
        store: ToastStore,
        shape: Shape,
        window: Window | None,
        schema: TableSchema,
        most: int,
        part_bytes: int,
    ) -> None:
        """`most` is what a row may take without having anything kept elsewhere."""
        self._store = store
        self._shape = shape
        self._window = window
        self._schema = schema
        self._most = most
        self._part_bytes = part_bytes
        self._names = {column.field: column.name for column in schema.columns}
        self._fields = [column.field for column in shape.columns]
        self._fresh: dict[bytes, Version] = {}
        """What keys have by changes that the store does not know yet."""

        self._known: dict[bytes, Version | None] = {}
        """What was found in the store since the last cut."""

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the changes of a batch, whole as far as can be, in one piece or several."""
        marks = marks_of(batch.column("_exact"))
        large = heavy(self._schema.columns, batch.column("after"), marks, self._most)
        if not large.any() and _plain(batch):
            yield batch
            return
        images = self._images(batch, marks, large.tolist())
        if self._window is not None and not self._window.done:
            self._ask(self._window, batch, marks, images)
        made = _Made()
        for row in range(batch.num_rows):
            self._take(images, row, made)
            if made.bytes >= self._part_bytes:
                yield self._built(batch, row + 1, images, made)
                made = _Made(row + 1)
        if made.start < batch.num_rows:
            yield self._built(batch, batch.num_rows, images, made)

    def _images(self, batch: pa.RecordBatch, marks: Marks, large: Sequence[bool]) -> _Images:
        before, after = batch.column("before"), batch.column("after")
        count = batch.num_rows
        old: list[bytes | None] = [None] * count
        if before.null_count < count:
            found = keys_of(self._shape, self._names, before, marks, -1)
            valid = before.is_valid().to_pylist()
            old = [key if here else None for key, here in zip(found, valid, strict=True)]
        columns: list[Sequence[Cell]] = []
        for column, missing in zip(self._shape.columns, self._shape.missing, strict=True):
            name = self._names.get(column.field)
            columns.append(
                # Of before the column was there; rows got this when it came.
                [missing] * count
                if name is None
                else marked(after.field(name), column.field, marks)
            )
        unsent = batch.column("_unsent")
        return _Images(
            batch.column("_op").to_pylist(),
            batch.column("_commit").to_pylist(),
            batch.column("_xid").to_pylist(),
            unsent.to_pylist() if unsent.null_count < count else [None] * count,
            old,
            keys_of(self._shape, self._names, after, marks, 1),
            list(zip(*columns, strict=True)),
            large,
        )

    # --- one change after the other --------------------------------------------------------

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
                return  # it has what it had
        if old != key:
            self._leave(old, commit)
        # What was kept of a row that is small now is out of date, and nobody asks for it: before
        # anything of it is left out again, it is sent, with all the rest.
        if lacking or images.heavy[row]:
            self._fresh[key] = Version(commit, values)

    def _leave(self, key: bytes | None, commit: int) -> None:
        """Note that nothing has this key any more; while a copy is under way it may yet come."""
        if key is not None and (self._window is not None or self._has(key) is not None):
            self._fresh[key] = Version(commit, None)

    def _completed(self, images: _Images, row: int, lacking: Sequence[int], made: _Made) -> Row:
        """Return all values of a row, as far as they can be told, and note those it lacked."""
        values = list(images.values[row])
        found, nobody_looks = self._found(images, row)
        for index, number in enumerate(self._fields):
            if number not in lacking:
                continue
            cell: Cell = UNKNOWN if found is None else found[index]
            values[index] = cell
            if cell != UNKNOWN or nobody_looks:
                shown = None if cell == UNKNOWN else cell
                made.cells.setdefault(number, []).append((row, shown))
        made.bytes += sizes(values)
        return tuple(values)

    def _found(self, images: _Images, row: int) -> tuple[Row | None, bool]:
        """Return what a change's row had before it, and whether nobody looks at it if unknown."""
        key = images.new[row]
        had = self._has(images.old[row] or key)
        commit, window = images.commits[row], self._window
        if window is None or not window.holds(commit, images.xids[row]):
            return (None if had is None else had.row), False
        if had is not None and had.at > window.first and had.row and UNKNOWN not in had.row:
            return had.row, False
        seen = self._store.at(self._schema.table, key, window.first)
        # An insert that lacks something was an update, of a row that was not published before:
        # whether the snapshot has it says nothing.
        gone = seen is None and (window.done or key in window.absent)
        return seen, gone and images.ops[row] == Op.UPDATE

    def _has(self, key: bytes) -> Version | None:
        if (fresh := self._fresh.get(key)) is not None:
            return fresh
        if key not in self._known:
            self._known[key] = self._store.newest(self._schema.table, key)
        return self._known[key]

    # --- the copy's snapshot ---------------------------------------------------------------

    def _ask(self, window: Window, batch: pa.RecordBatch, marks: Marks, images: _Images) -> None:
        """Take from the snapshot what changes will need, and the copy has not come to."""
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
            own = {at: marks[row] for at, row in enumerate(rows) if row in marks}
            texts = texts_of(self._shape, self._names, chosen, own, sign)
            if (found := window.lookup.rows(self._shape, texts)) is not None:
                self._store.put(self._schema.table, found)
                window.absent.update(set(wanted) - {key for key, _ in found})

    # --- what comes of it ------------------------------------------------------------------

    def _built(
        self, batch: pa.RecordBatch, stop: int, images: _Images, made: _Made
    ) -> pa.RecordBatch:
        """Return changes with what was found for them, and let the store have what they bring."""
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
    """Whether nothing lacks a value, and no key goes: most changes of most tables are so."""
    count = batch.num_rows
    some = [batch.column(name).null_count < count for name in ("_unsent", "before")]
    return not any(some) and batch.column("after").null_count == 0


def _merged(rows: pa.RecordBatch, more: Mapping[int, Mapping[int, str]]) -> object:
    """Return the marks of rows together with some more."""
    column = rows.column("_exact")
    if not more:
        return column
    marks = marks_of(column)
    for row, texts in more.items():
        marks.setdefault(row, {}).update(texts)
    return [list(marks[row].items()) if row in marks else None for row in range(len(rows))]


def _with(rows: pa.RecordBatch, columns: Mapping[str, object]) -> pa.RecordBatch:
    """Return the rows with some columns replaced."""
    arrays = []
    for number, kind in enumerate(rows.schema):
        made = columns.get(kind.name, rows.column(number))
        arrays.append(pa.array(made, kind.type) if isinstance(made, list) else made)
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
