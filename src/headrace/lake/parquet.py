"""
Plain Parquet: every change as a row, one file for each batch, and only a folder.

A file is named after the positions in it. A batch whose outcome is unknown comes again with the
same limits (R25), and replaces its own file. Each file appears as a whole. The rows of a baseline
are one file, so that they appear together. It is named after the baseline, so that a baseline that
is loaded again, because its outcome was unknown, replaces its own file, too. The file also has the
changes that followed the baseline, and the same changes are then removed from other files. That is
more than one step, and a reader in between sees these changes twice. If it is interrupted, the
table still needs a load, of that baseline or a newer one, and its switch does the rest.

Not every system can replace a folder by another in one step, and a mount cannot be replaced at all.
A list of valid files would mean that it is no longer a plain folder. If it must be one step, use a
format that has commits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.changelog.position import ORIGIN, Position
from headrace.errors import BadTable, StorageError, TableTaken
from headrace.lake.rows import (
    CHANGE,
    LakeShape,
    appended_rows,
    begins,
    emptied_row,
    first_of,
    fresh,
    own_columns,
)
from headrace.storage.disk import RealDisk
from headrace.targets.target import BaselineId, Batch, TargetContext

_OWNER = "_headrace"
"""The file with the folder's owner; Spark ignores files whose names begin with `_`."""

_POSITION = CHANGE[-1][0]
_BATCH = re.compile(r"([0-9a-f-]{30})-([0-9a-f-]{30})")
"""The name of a batch's file: the first and the last position."""

_NAMED = r"(baseline-[0-9a-f]{8,}-[0-9a-f]{8}|[0-9a-f-]{61})"
_DATA = re.compile(rf"{_NAMED}\.parquet")
_LEFT = re.compile(rf"_({_NAMED}(\.rows)?|headrace)\.tmp")
"""Temporary files that an interrupted write of ours leaves."""


def check_plain(path: str | None, *, adopt: bool) -> None:
    """Raise `BadTable` if plain files do not support these options."""
    if adopt:
        raise BadTable(
            "Format parquet does not support adopt: existing files would stay in the folder",
            remedy="Use a folder that is empty or does not exist, or use format delta.",
        )
    if path is not None and "://" in path:
        raise BadTable(
            "Format parquet needs a folder on this machine, and path is a URL",
            remedy="Use a folder, or use format delta, which supports every URL that Spark does.",
            path=path,
        )


class ParquetTable:
    """One folder of changes. For the thread that writes."""

    def __init__(self, shape: LakeShape, folder: Path, context: TargetContext, owner: str) -> None:
        self.shape = shape
        self.folder = folder
        self.context = context
        self.lost: str | None = None
        """Why its files are not those that we left there; None if they are."""
        self.position = ORIGIN
        """Everything up to here is in the folder, or had no rows for it."""
        self._owner = owner

    def open(self, at: Position) -> None:
        """
        Check that the folder is ours, or claim it; remove what an interrupted write left.

        `at` is the engine's position. If something was written before, the folder must have our
        owner file. A power loss can leave an empty owner file that was not synced. It counts as
        missing, with one exception: if something was written before, and the folder only has
        files with our names, one of them a baseline of this log, the owner file is written again.
        """
        self.lost, self.position = None, at
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            owner, names = self._marked(), [path.name for path in self.folder.iterdir()]
            left = [name for name in names if _LEFT.fullmatch(name)]
            there = {*names} - {*left, _OWNER}
            if not owner and not there:
                if at > ORIGIN:
                    # Marked when it is loaded: until then, every start detects that it is lost.
                    self.lost = "the folder was removed, or created again"
            elif owner != self._owner and not (
                owner == "" and at > ORIGIN and self._named_as_ours(there)
            ):
                raise self._taken(owner)
            for name in left:
                (self.folder / name).unlink()
            if not owner and self.lost is None:
                self._mark()

    def write(self, batch: Batch, rows: pa.Table) -> Position:
        """Write a batch's rows of this table as a file; return the table's position."""
        if batch.last <= self.position:
            return self.position
        rows = fresh(rows, batch.epoch, self.position)
        emptied = batch.truncates.get(self.shape.schema.table)
        if emptied is not None and emptied <= self.position:
            emptied = None
        added = appended_rows(rows, self.shape, batch.epoch, emptied, self.time())
        with _writing(self.folder):
            self.check_ours()
            if added.num_rows:
                with AtomicFile(self, f"{batch.first}-{batch.last}") as file:
                    file.add(added)
        self.position = batch.last
        return self.position

    def check_ours(self) -> None:
        """Raise if the folder is not the one that was opened."""
        owner = self._marked()
        if owner != self._owner and (owner or self.lost is None):
            raise self._taken(owner)

    def mark_found(self) -> None:
        """
        Mark a folder that was lost, before its first file: one with files and no mark is refused.

        The engine has already stored that it must be loaded, and does not ask the folder again.
        """
        if self.lost is not None:
            self._mark()

    def switched(self, own: Path, first: Position, at: Position) -> None:
        """Finish the switch to a baseline's file, which has everything from `first` on."""
        for path in self.others(own):
            self._cut(path, str(first))
        self._finish_others(own)
        # Before the switch is recorded as done: removed files must not come back.
        RealDisk().sync_folder(str(self.folder))
        self.lost, self.position = None, at

    def others(self, own: Path) -> list[Path]:
        """Return all files except one."""
        return [path for path in self.folder.glob("*.parquet") if path != own]

    def log_name(self) -> str:
        """Return the log's id for file names: baselines of another log may have the same number."""
        return hashlib.blake2s(self.context.lineage().encode(), digest_size=4).hexdigest()

    def time(self) -> datetime:
        """Return the current time."""
        return datetime.fromtimestamp(self.context.clock(), UTC)

    def _finish_others(self, own: Path) -> None:
        """
        Finish interrupted switches: no other file may have what a baseline's file has.

        Not when the folder is opened: repeated batches would write it again.
        """
        batches = [path for path in self.others(own) if _BATCH.fullmatch(path.stem)]
        loads = [(_span(path), path) for path in self.others(own) if path not in batches]
        before: list[tuple[tuple[str, str], Path]] = []
        for span, path in sorted((span, path) for span, path in loads if span is not None):
            overlapping = [other for (_, last), other in before if span[0] <= last]
            for other in (*batches, *overlapping):
                self._cut(other, *span)
            before.append((span, path))

    def _cut(self, path: Path, first: str, last: str | None = None) -> None:
        """Remove rows from a file: from `first` on, up to `last` if that is given."""
        if (named := _BATCH.fullmatch(path.stem)) is not None and (
            named[2] < first or (last is not None and last < named[1])
        ):
            return  # By its name, it has no such rows.
        if not path.exists():
            return  # An earlier cut removed it.
        with pq.ParquetFile(path) as file:
            rows = file.read()
        where = rows.column(_POSITION)
        keep = pc.less(where, first)
        if last is not None:
            keep = pc.or_(keep, pc.greater(where, last))
        kept = rows.filter(keep)
        if not kept.num_rows and rows.num_rows:
            path.unlink()
        elif kept.num_rows < rows.num_rows:
            with AtomicFile(self, path.stem, kept.schema) as cut:
                cut.add(kept)

    def _named_as_ours(self, names: set[str]) -> bool:
        return all(_DATA.fullmatch(name) for name in names) and any(
            name.startswith("baseline-") and name.endswith(f"-{self.log_name()}.parquet")
            for name in names
        )

    def _marked(self) -> str | None:
        try:
            return (self.folder / _OWNER).read_text()
        except FileNotFoundError:
            return None

    def _mark(self) -> None:
        temporary = self.folder / f"{_OWNER}.tmp"
        temporary.write_text(self._owner)
        _show(temporary, self.folder / _OWNER)

    def _taken(self, owner: str | None) -> TableTaken:
        if owner:
            why, remedy = "Another pipeline writes to this folder", "Use another folder."
        elif self.position > ORIGIN:
            why = "The folder does not have the files that this pipeline left in it"
            remedy = (
                "Restart the engine. It loads the table again if the folder is empty or missing."
            )
        else:
            why = "The folder has files that this pipeline did not write"
            remedy = "Use a folder that is empty or does not exist."
        return TableTaken(why, remedy=remedy, table=str(self.folder))


class AtomicFile:
    """A file that appears as a whole at the end, or not at all."""

    def __init__(self, table: ParquetTable, name: str, schema: pa.Schema | None = None) -> None:
        self._path = table.folder / f"{name}.parquet"
        self._temporary = table.folder / f"_{name}.tmp"
        self._schema = schema or pa.schema(list(table.shape.columns))
        self._writer = pq.ParquetWriter(self._temporary, self._schema, compression="zstd")

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        if kind is None:
            self.show()
        else:
            self.drop()

    def add(self, rows: pa.Table) -> None:
        """Add rows, with columns in order."""
        self._writer.write_table(pa.Table.from_arrays(rows.columns, schema=self._schema))

    def show(self) -> None:
        """Make the file durable and visible to readers."""
        self._writer.close()
        _show(self._temporary, self._path)

    def drop(self) -> None:
        """Remove the file."""
        self._writer.close()
        with suppress(OSError):
            self._temporary.unlink()


class ParquetLoading:
    """A baseline in a file of its own, followed by the changes since."""

    def __init__(self, table: ParquetTable, baseline: BaselineId) -> None:
        self._table = table
        self._shape = table.shape
        self._baseline = baseline
        self._name = f"baseline-{baseline:08x}-{table.log_name()}"
        # In a temporary file: the rows' position is not known before the first change.
        self._rows_file = table.folder / f"_{self._name}.rows.tmp"
        self._writer: pq.ParquetWriter | None = None
        self._changes: list[pa.Table] = []
        self._first: Position | None = None
        self._reached = ORIGIN

    def write(self, rows: pa.Table) -> None:
        if rows.num_rows:
            with _writing(self._table.folder):
                if self._writer is None:
                    self._writer = pq.ParquetWriter(self._rows_file, self._own, compression="zstd")
                own = own_columns(rows, self._shape, start=0)
                self._writer.write_table(pa.Table.from_arrays(own, schema=self._own))

    def catch_up(self, batch: Batch) -> None:
        # Earlier changes were taken already, and batches may begin before them.
        rows = fresh(batch.tables[self._shape.schema.table], batch.epoch, self._reached)
        emptied = batch.truncates.get(self._shape.schema.table)
        if emptied is not None and emptied <= self._reached:
            emptied = None
        self._reached = max(self._reached, batch.last)
        if self._first is None:
            self._first = first_of(batch, rows, emptied)
        now = self._table.time()
        added = appended_rows(rows, self._shape, batch.epoch, emptied, now)
        if added.num_rows:
            self._changes.append(added)

    def switch(self, at: Position) -> None:
        table, now = self._table, self._table.time()
        emptied, begin = begins(self._first, at)
        own = table.folder / f"{self._name}.parquet"
        with _writing(table.folder):
            table.check_ours()
            table.mark_found()
            with AtomicFile(table, self._name) as file:
                # Changes without a baseline do not replace earlier rows.
                if self._baseline and table.others(own):
                    file.add(emptied_row(self._shape, emptied, now))
                for rows in self._rows():
                    file.add(self._inserts(rows, begin, now))
                for rows in self._changes:
                    file.add(rows)
            table.switched(own, emptied, at)
        self.discard()

    def discard(self) -> None:
        self._changes = []
        if self._writer is not None:
            writer, self._writer = self._writer, None
            # It may still have to write something, and the disk may be full.
            with suppress(OSError):
                writer.close()
            with suppress(OSError):
                self._rows_file.unlink(missing_ok=True)

    def _rows(self) -> Iterator[pa.Table]:
        """Yield the baseline's rows in pieces."""
        if self._writer is not None:
            self._writer.close()
            with pq.ParquetFile(self._rows_file) as file:
                for at in range(file.num_row_groups):
                    yield file.read_row_group(at)

    @property
    def _own(self) -> pa.Schema:
        return pa.schema(list(self._shape.columns[: len(self._shape.schema.columns)]))

    def _inserts(self, rows: pa.Table, at: Position, now: datetime) -> pa.Table:
        count = rows.num_rows
        values = ("insert", at.commit, now, str(at))
        ours = [
            pa.array([each] * count, type) for each, (_, type) in zip(values, CHANGE, strict=True)
        ]
        return pa.table([*rows.columns, *ours], pa.schema(list(self._shape.columns)))


def _span(path: Path) -> tuple[str, str] | None:
    """Return the first and the last position in a file; None if it has no rows."""
    with pq.ParquetFile(path) as file:
        found = pc.min_max(file.read([_POSITION]).column(0)).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def _show(temporary: Path, path: Path) -> None:
    """Make a written file durable and rename it; replaces an existing one."""
    disk = RealDisk()
    disk.sync(str(temporary))
    disk.rename(str(temporary), str(path))
    disk.sync_folder(str(path.parent))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Translate errors of the folder into ours."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            "The table's folder cannot be written", path=str(folder), why=error.strerror
        ) from error
