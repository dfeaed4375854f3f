"""
Files that are absent or whole.

This module alone implements it (invariant 5): write a temporary file in the same folder, sync it,
then rename (`put`) or link (`create`), then sync the folder. Renaming replaces. Linking fails if
the name exists, and that failure is what makes two writers of one log safe (R31).

A temporary name contains a word that no other process has, so that two writers never share a
temporary file. It never begins with `_` or `.`: Spark reads such files as empty (S15).
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
    *Failure*: `StorageFull` or `StorageError` with the path. The name then has its previous
    content, or, if the very last step failed, the new file, which a power cut may remove.
    A missing file is a `FileNotFoundError`. *Threads*: any number, on different names.

    `Objects` is the same in a bucket; `s3.opened` returns the one that a location needs.
    """

    local: ClassVar[bool] = True
    """Whether paths are on a file system of this machine."""

    pace: ClassVar[float] = 0.0
    """Minimum seconds to collect changes before a flush: in a bucket each write costs money."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root.rstrip("/") or "/"

    def within(self, folder: str) -> Files:
        """Return the same storage, rooted at `folder`."""
        return Files(self._disk, self.path(folder))

    def prove(self) -> None:
        """Raise if this storage is not safe for two writers; a file system always is."""

    def put(self, name: str, data: Buffer) -> None:
        """Store a file; replaces an existing one of that name."""
        path = self.path(name)
        with self._staged(path, data) as temporary:
            self._disk.rename(temporary, path)
            self._disk.sync_folder(_folder(path))

    def create(
        self, name: str, data: Buffer, *, settle: bool = True, point: str | None = None
    ) -> None:
        """
        Store a file that must not exist yet: raises `AlreadyStored` if it does.

        With `settle=False` the name is durable only after `settle(folder)`, which several
        files can share. `point` is the kill point between the two.
        """
        path = self.path(name)
        with self._staged(path, data) as temporary:
            self._disk.link(temporary, path)
            if point is not None:
                reach(point)
            # If this fails, `sweep` removes it later: the file itself is in place.
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
        """Return all bytes of a file; `FileNotFoundError` if there is none."""
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
        """Return a source for `pyarrow.parquet`: the path of the file, or its bytes."""
        return self.path(name)

    def list(self, folder: str) -> list[str]:
        """Return the names in `folder`, sorted; none if it is missing."""
        path = self.path(folder)
        with _translated(path):
            return self._disk.list(path)

    def remove(self, name: str) -> None:
        """Remove a file; if there is none, raises `FileNotFoundError`, or nothing in a bucket."""
        path = self.path(name)
        with _translated(path, absent=True):
            self._disk.remove(path)

    def remove_many(self, names: Iterable[str]) -> None:
        """
        Remove files, and skip those that are missing; in a bucket in any order.

        Stops with `StorageError` at the first that cannot be removed; others may be left.
        """
        for name in names:
            with suppress(FileNotFoundError):
                self.remove(name)

    def size(self, name: str) -> int:
        """Return a file's size in bytes; `FileNotFoundError` if there is none."""
        path = self.path(name)
        with _translated(path, absent=True):
            return self._disk.size(path)

    def sweep(self, folder: str) -> int:
        """Remove temporary files of interrupted writes in `folder`; return their number."""
        inside = self.within(folder)
        left = [name for name in inside.list("") if name.endswith(_TEMPORARY)]
        inside.remove_many(left)
        return len(left)

    def path(self, name: str) -> str:
        """Return the full path of `name`, for Spark and for messages."""
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _staged(self, path: str, data: Buffer) -> Iterator[str]:
        """Write and sync a temporary file in the folder of `path`; remove it on failure."""
        temporary = f"{path}.{self._disk.unique()}{_TEMPORARY}"
        try:
            with _translated(path):
                self._disk.write(temporary, data)
                # A failed fsync is final for this file: its bytes stay uncertain, although a
                # second fsync would succeed (R36). So the file is removed, not retried.
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
    """Translate errors of the system; with `absent`, a missing file is passed through."""
    try:
        yield
    except FileExistsError as error:
        raise AlreadyStored("File already exists", file=path) from error
    except FileNotFoundError as error:
        if absent:
            raise
        raise StorageError("File or folder is missing", file=path) from error
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, "unknown")
        if error.errno in _FULL:
            message = f"No space left on the disk of {_folder(path)}"
            raise StorageFull(message, file=path, reason=reason) from error
        raise StorageError("A disk operation failed", file=path, reason=reason) from error
