"""
Plain Parquet: every change as a row, a file a batch, and nothing but a folder.

A file is named by the positions it holds. A batch whose outcome is unknown comes again as it was
cut (R25), and takes the place of its own file; each file appears whole. Rows of a baseline are
one file, so that they appear together, and it is named by the baseline: loaded again, because
nobody knew that it was, it takes its own place, too. With it come the changes that followed;
those that other files hold of the same time are taken out of them right behind. That is more than
one step: who reads in between sees them twice. Where it is interrupted a load is still owed, of
that baseline or a newer one, and its switch does what is left of it. A folder cannot be exchanged
for another in one step on every system, nor where it is a mount, and files that readers are told
of by a list of ours would be no plain folder any more; what must be one step is for a format that
has commits.
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
    begins,
    emptied_row,
    first_of,
    fresh,
    own_columns,
    told_rows,
)
from headrace.storage.disk import RealDisk
from headrace.targets.target import BaselineId, Batch, TargetContext

_OWNER = "_headrace"
"""Names the folder's owner; Spark reads no file whose name begins so."""

_POSITION = CHANGE[-1][0]
_BATCH = re.compile(r"([0-9a-f-]{30})-([0-9a-f-]{30})")
"""The name of a batch's file: the first and the last position."""

_NAMED = r"(baseline-[0-9a-f]{8,}-[0-9a-f]{8}|[0-9a-f-]{61})"
_DATA = re.compile(rf"{_NAMED}\.parquet")
_LEFT = re.compile(rf"_({_NAMED}(\.rows)?|headrace)\.tmp")
"""What an interrupted write of ours leaves."""


def check_plain(path: str | None, *, adopt: bool) -> None:
    """Raise `BadTable` where plain files cannot be kept so."""
    if adopt:
        raise BadTable(
            "A folder of plain Parquet cannot be adopted: files of others would stay in it",
            remedy="Name a folder that is empty, or not there yet; or use format delta.",
        )
    if path is not None and "://" in path:
        raise BadTable(
            "Plain Parquet is written to a folder of this machine, and this is a URL",
            remedy="Name a folder, or use format delta, which takes any URL of Spark's.",
        )


class ParquetTable:
    """One folder of changes. For the thread that writes."""

    def __init__(self, shape: LakeShape, folder: Path, context: TargetContext, owner: str) -> None:
        self.shape = shape
        self.folder = folder
        self.context = context
        self.lost: str | None = None
        """Why its files are not those that were left there; None: they are."""
        self.position = ORIGIN
        """Everything up to here is in the folder, or was nothing for it."""
        self._owner = owner

    def open(self, at: Position) -> None:
        """
        Find the folder, or make it ours; remove what an interrupted write left.

        `at` is what the engine knows: where something was written the folder must be marked. An
        empty mark, which a power loss can leave of one that was not synced, is as good as none,
        but where something was written: there a folder of nothing but files named as ours are,
        with a baseline of this log's lineage among them, is marked anew.
        """
        self.lost, self.position = None, at
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            owner, names = self._marked(), [path.name for path in self.folder.iterdir()]
            left = [name for name in names if _LEFT.fullmatch(name)]
            there = {*names} - {*left, _OWNER}
            if not owner and not there:
                if at > ORIGIN:
                    # Marked when it is loaded: until then every start finds that it is lost.
                    self.lost = "the folder is gone, or was made anew"
            elif owner != self._owner and not (
                owner == "" and at > ORIGIN and self._named_as_ours(there)
            ):
                raise self._taken(owner)
            for name in left:
                (self.folder / name).unlink()
            if not owner and self.lost is None:
                self._mark()

    def write(self, batch: Batch, rows: pa.Table) -> Position:
        """Write one table's share of a batch as a file; return how far the table is."""
        if batch.last <= self.position:
            return self.position
        rows = fresh(rows, batch.epoch, self.position)
        emptied = batch.truncates.get(self.shape.schema.table)
        if emptied is not None and emptied <= self.position:
            emptied = None
        told = told_rows(rows, self.shape, batch.epoch, emptied, self.time())
        with _writing(self.folder):
            self.check_ours()
            if told.num_rows:
                with AtomicFile(self, f"{batch.first}-{batch.last}") as file:
                    file.add(told)
        self.position = batch.last
        return self.position

    def check_ours(self) -> None:
        """Raise where the folder is not the one that was opened, whoever saw to that."""
        owner = self._marked()
        if owner != self._owner and (owner or self.lost is None):
            raise self._taken(owner)

    def mark_found(self) -> None:
        """
        Mark a folder that was lost, before its first file is there: without a mark it is refused.

        That it must be loaded the engine has stored before, and does not ask the folder again.
        """
        if self.lost is not None:
            self._mark()

    def switched(self, own: Path, first: Position, at: Position) -> None:
        """Take note of a baseline in a file of its own, with all that is from `first` on."""
        for path in self.others(own):
            self._cut(path, str(first))
        self._finish_others(own)
        # Before anybody notes that it is done: files that are gone must not come back.
        RealDisk().sync_folder(str(self.folder))
        self.lost, self.position = None, at

    def others(self, own: Path) -> list[Path]:
        """Return the files but one."""
        return [path for path in self.folder.glob("*.parquet") if path != own]

    def log_name(self) -> str:
        """Return what tells the log from others in names: of another a number may come again."""
        return hashlib.blake2s(self.context.lineage().encode(), digest_size=4).hexdigest()

    def time(self) -> datetime:
        """Return what time it is."""
        return datetime.fromtimestamp(self.context.clock(), UTC)

    def _finish_others(self, own: Path) -> None:
        """
        Do what interrupted switches left to do: what a baseline's file has no other has, too.

        Not when the folder is opened: batches that come again would bring it back.
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
        """Leave a file nothing from `first` on, up to `last` if that is given."""
        if (named := _BATCH.fullmatch(path.stem)) is not None and (
            named[2] < first or (last is not None and last < named[1])
        ):
            return  # Not even opened: it says so itself.
        if not path.exists():
            return  # An earlier cut left nothing of it.
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
            why, remedy = "Another pipeline writes to this folder", "Name another folder."
        elif self.position > ORIGIN:
            why = "The folder is not what was left there"
            remedy = "Restart the engine: an empty folder, or none, is loaded anew."
        else:
            why = "There are files in this folder, and they are not ours"
            remedy = "Name a folder that is empty, or not there yet."
        return TableTaken(why, remedy=remedy, table=str(self.folder))


class AtomicFile:
    """A file that appears whole at the end, or not at all."""

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
        """Add rows, by place."""
        self._writer.write_table(pa.Table.from_arrays(rows.columns, schema=self._schema))

    def show(self) -> None:
        """Make it durable, and let readers see it."""
        self._writer.close()
        _show(self._temporary, self._path)

    def drop(self) -> None:
        """Let go of it."""
        self._writer.close()
        with suppress(OSError):
            self._temporary.unlink()


class ParquetLoading:
    """A baseline in a file of its own, with what changed since behind it."""

    def __init__(self, table: ParquetTable, baseline: BaselineId) -> None:
        self._table = table
        self._shape = table.shape
        self._baseline = baseline
        self._name = f"baseline-{baseline:08x}-{table.log_name()}"
        # Aside, for which position they are told with is not known before the first change.
        self._aside = table.folder / f"_{self._name}.rows.tmp"
        self._writer: pq.ParquetWriter | None = None
        self._told: list[pa.Table] = []
        self._first: Position | None = None
        self._reached = ORIGIN

    def write(self, rows: pa.Table) -> None:
        if rows.num_rows:
            with _writing(self._table.folder):
                if self._writer is None:
                    self._writer = pq.ParquetWriter(self._aside, self._own, compression="zstd")
                own = own_columns(rows, self._shape, start=0)
                self._writer.write_table(pa.Table.from_arrays(own, schema=self._own))

    def catch_up(self, batch: Batch) -> None:
        # What came before is told already: batches may begin anywhere before.
        rows = fresh(batch.tables[self._shape.schema.table], batch.epoch, self._reached)
        emptied = batch.truncates.get(self._shape.schema.table)
        if emptied is not None and emptied <= self._reached:
            emptied = None
        self._reached = max(self._reached, batch.last)
        if self._first is None:
            self._first = first_of(batch, rows, emptied)
        now = self._table.time()
        told = told_rows(rows, self._shape, batch.epoch, emptied, now)
        if told.num_rows:
            self._told.append(told)

    def switch(self, at: Position) -> None:
        table, now = self._table, self._table.time()
        emptied, begin = begins(self._first, at)
        own = table.folder / f"{self._name}.parquet"
        with _writing(table.folder):
            table.check_ours()
            table.mark_found()
            with AtomicFile(table, self._name) as file:
                # Changes alone, without a baseline, say nothing of what was before.
                if self._baseline and table.others(own):
                    file.add(emptied_row(self._shape, emptied, now))
                for rows in self._rows():
                    file.add(self._inserts(rows, begin, now))
                for rows in self._told:
                    file.add(rows)
            table.switched(own, emptied, at)
        self.discard()

    def discard(self) -> None:
        self._told = []
        if self._writer is not None:
            writer, self._writer = self._writer, None
            # It may still have something to write, and no room.
            with suppress(OSError):
                writer.close()
            with suppress(OSError):
                self._aside.unlink(missing_ok=True)

    def _rows(self) -> Iterator[pa.Table]:
        """Yield the baseline's rows, a piece at a time."""
        if self._writer is not None:
            self._writer.close()
            with pq.ParquetFile(self._aside) as file:
                for at in range(file.num_row_groups):
                    yield file.read_row_group(at)

    @property
    def _own(self) -> pa.Schema:
        return pa.schema(list(self._shape.columns[: len(self._shape.schema.columns)]))

    def _inserts(self, rows: pa.Table, at: Position, now: datetime) -> pa.Table:
        count = rows.num_rows
        told = ("insert", at.commit, now, str(at))
        ours = [
            pa.array([each] * count, type) for each, (_, type) in zip(told, CHANGE, strict=True)
        ]
        return pa.table([*rows.columns, *ours], pa.schema(list(self._shape.columns)))


def _span(path: Path) -> tuple[str, str] | None:
    """Return the first and the last position in a file; None: it has no rows."""
    with pq.ParquetFile(path) as file:
        found = pc.min_max(file.read([_POSITION]).column(0)).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def _show(temporary: Path, path: Path) -> None:
    """Make a written file durable, and give it its name, in place of one that had it."""
    disk = RealDisk()
    disk.sync(str(temporary))
    disk.rename(str(temporary), str(path))
    disk.sync_folder(str(path.parent))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn what a folder raises into our error."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            "A table's folder cannot be written", path=str(folder), why=error.strerror
        ) from error
