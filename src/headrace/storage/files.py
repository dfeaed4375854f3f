"""
Files that are absent or whole.

The one place that knows how (invariant 5): a temporary name in the same folder, sync,
then rename (`put`) or link (`create`), then sync the folder. Renaming replaces; linking
is refused where the name is taken, and that refusal is what makes two writers of one log
safe (R31).

A temporary name holds a word that no other process has, so that two writers never meet in
one temporary file; and it never begins with `_` or `.`: Spark reads such files as empty (S15).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar

import pyarrow as pa

from headrace.errors import AlreadyStored, StorageError, StorageFull
from headrace.storage.disk import Buffer, Disk
from headrace.storage.killpoints import reach

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEMPORARY = ".tmp"


class Files:
    """
    Storage under one folder; names are relative to it, with `/` between folders.

    *Durability*: what `put` and `create` wrote is durable when they return, name and bytes.
    *Failure*: `StorageFull` or `StorageError` with the path; the name then holds what it held
    before, or, when the very last step failed, the new file, which may vanish at a power cut.
    A missing file passes as `FileNotFoundError`. *Threads*: any number, on different names.

    `Objects` is the same in a bucket; which of the two a place is, `opening.opened` tells.
    """

    local: ClassVar[bool] = True
    """Whether paths are those of a file system that this machine has."""

    pace: ClassVar[float] = 0.0
    """Seconds for which changes are gathered at least: where each write is paid for."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root.rstrip("/") or "/"

    def within(self, folder: str) -> Files:
        """Return the same storage, rooted at `folder`."""
        return Files(self._disk, self.path(folder))

    def prove(self) -> None:
        """Raise where this storage would not keep two writers apart: a file system does."""

    def put(self, name: str, data: Buffer) -> None:
        """Store a file, in place of an earlier one of that name."""
        path = self.path(name)
        with self._staged(path, data) as temporary:
            self._disk.rename(temporary, path)
            self._disk.sync_folder(_folder(path))

    def create(
        self, name: str, data: Buffer, *, settle: bool = True, point: str | None = None
    ) -> None:
        """
        Store a file that must not exist yet: `AlreadyStored` where it does.

        With `settle=False` the name is durable only after `settle(folder)`, which several
        files can share. `point` is the kill point between the two.
        """
        path = self.path(name)
        with self._staged(path, data) as temporary:
            self._disk.link(temporary, path)
            if point is not None:
                reach(point)
            # Swept later if this fails: the file has its name, and that is what was asked.
            with suppress(OSError):
                self._disk.remove(temporary)
            if settle:
                self._disk.sync_folder(_folder(path))

    def settle(self, folder: str) -> None:
        """Make the names in `folder` durable."""
        path = self.path(folder)
        with _translated(path):
            self._disk.sync_folder(path)

    def make_folder(self, folder: str) -> None:
        """Create `folder` and its parents, durably."""
        path = self.path(folder)
        with _translated(path):
            self._disk.make_folder(path)

    def read(self, name: str) -> bytes:
        """Return all bytes of a file; `FileNotFoundError` where there is none."""
        path = self.path(name)
        with _translated(path, absent=True):
            return self._disk.read(path)

    def read_many(self, names: Iterable[str]) -> Iterator[bytes | None]:
        """Yield the bytes of each file, in order; None for one that is missing."""
        for name in names:
            try:
                yield self.read(name)
            except FileNotFoundError:
                yield None

    def reader(self, name: str) -> str | pa.NativeFile:
        """Return what `pyarrow.parquet` reads a file from: its path, or its bytes."""
        return self.path(name)

    def list(self, folder: str) -> list[str]:
        """Return the names in `folder`, sorted; none where it is missing."""
        path = self.path(folder)
        with _translated(path):
            return self._disk.list(path)

    def remove(self, name: str) -> None:
        """Remove a file; where there is none, `FileNotFoundError`, or nothing in a bucket."""
        path = self.path(name)
        with _translated(path, absent=True):
            self._disk.remove(path)

    def remove_many(self, names: Iterable[str]) -> None:
        """
        Remove files, and pass over those that are missing; in a bucket in no order.

        What cannot be removed ends it: `StorageError`, with others left.
        """
        for name in names:
            with suppress(FileNotFoundError):
                self.remove(name)

    def size(self, name: str) -> int:
        """Return a file's size in bytes; `FileNotFoundError` where there is none."""
        path = self.path(name)
        with _translated(path, absent=True):
            return self._disk.size(path)

    def sweep(self, folder: str) -> int:
        """Remove what interrupted writes left in `folder`; return how many there were."""
        inside = self.within(folder)
        left = [name for name in inside.list("") if name.endswith(_TEMPORARY)]
        inside.remove_many(left)
        return len(left)

    def path(self, name: str) -> str:
        """Return the whole path of `name`, for Spark and for messages."""
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _staged(self, path: str, data: Buffer) -> Iterator[str]:
        """Give a synced temporary file beside `path`, and take it away again on failure."""
        temporary = f"{path}.{self._disk.unique()}{_TEMPORARY}"
        try:
            with _translated(path):
                self._disk.write(temporary, data)
                # A failed fsync is final for this file: its bytes are in doubt for ever,
                # although a second fsync would succeed (R36). So it is removed, not retried.
                self._disk.sync(temporary)
                yield temporary
        except StorageError:
            with suppress(OSError):
                self._disk.remove(temporary)
            raise


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@contextmanager
def _translated(path: str, *, absent: bool = False) -> Iterator[None]:
    """Turn errors of the system into ours; a missing file passes where it may be `absent`."""
    try:
        yield
    except FileExistsError as error:
        raise AlreadyStored("File exists", file=path) from error
    except FileNotFoundError as error:
        if absent:
            raise
        raise StorageError("File or folder is missing", file=path) from error
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, "unknown")
        if error.errno in _FULL:
            raise StorageFull("No room left", file=path, reason=reason) from error
        raise StorageError("Disk refused", file=path, reason=reason) from error
