"""
Files that live as long as the work on a batch, where executors read and write them.

Beside the log, on whichever storage that is. None of them is part of what an engine has promised
to keep, so on a disk nothing is synced; every start removes what the one before it left.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StorageError
from headrace.storage.opening import opened
from headrace.storage.places import elsewhere
from headrace.storage.private import make_private_folder, not_written, open_private

_FILE = ".parquet"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder of such files, which goes to executors as it is."""

    place: str
    """A path, or `s3a://bucket/prefix`."""

    def within(self, folder: str) -> Workspace:
        """Return a folder in it."""
        return Workspace(self.path(folder))

    def path(self, name: str) -> str:
        """Return the whole path of a file, for Spark."""
        return f"{self.place}/{name}"

    @contextmanager
    def writing(self, name: str) -> Iterator[pa.NativeFile]:
        """Give what Parquet is written to; the file, named `*.parquet`, is there at the end."""
        if elsewhere(self.place):
            # An object appears as a whole; and a file here is what one task has in memory anyway.
            with pa.BufferOutputStream() as held:
                yield held
                data = held.getvalue()
            opened(self.place).put(name, data)
            return
        make_private_folder(Path(self.place))
        open_private(Path(self.path(name))).close()
        with pa.OSFile(self.path(name), "w") as file:
            yield file

    def write(self, name: str, rows: pa.Table) -> None:
        """Write a file from the driver; `StorageError` where that cannot be done, or not now."""
        try:
            with self.writing(name) as file:
                pq.write_table(rows, file, compression="zstd")
        except OSError as error:
            raise not_written(Path(self.path(name)), error) from error

    def names(self) -> list[str]:
        """Return the names of the files, without those in folders."""
        return [name for name in opened(self.place).list("") if name.endswith(_FILE)]

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            opened(self.place).remove(name)

    def remove_many(self, names: Sequence[str]) -> None:
        """Remove files, as far as they are there."""
        if names:
            opened(self.place).remove_many(names)

    def clear(self) -> None:
        """Remove all files, in folders, too; what cannot be removed stays for the next time."""
        if not elsewhere(self.place):
            shutil.rmtree(self.place, ignore_errors=True)
            return
        with suppress(StorageError):
            names = opened(self.place).list("")
            self.remove_many([name for name in names if name.endswith(_FILE)])
            for name in names:
                if not name.endswith(_FILE):
                    self.within(name).clear()


def readable(path: str) -> str | pa.NativeFile:
    """Return what `pyarrow.parquet` reads a file of the log from, or of a workspace."""
    if not elsewhere(path):
        return path
    folder, _, name = path.rpartition("/")
    return opened(folder).reader(name)
