"""
The operations of a file system, one method each.

Nothing here is atomic beyond what the operating system guarantees for that one step, and nothing
is durable before it is synced: a file's bytes by `sync`, its name by `sync_folder`. `files.py`
builds on these steps. They are a protocol because `simulation.py` implements them as well, with
the losses of a power cut.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

Buffer: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
"""Anything whose bytes can be read without a copy."""


class Disk(Protocol):
    """
    Steps on a file system.

    *Order*: steps take effect in the order they are called. *Durability*: none without
    `sync` (bytes) and `sync_folder` (names); only `make_folder` includes it. *Failure*:
    `OSError` with the errno of the system; a step that failed may have taken effect in
    part. *Threads*: any number, on different files.
    """

    def write(self, path: str, data: Buffer) -> None:
        """Create the file, or replace its contents; not synced."""
        ...

    def sync(self, path: str) -> None:
        """Make the file's bytes durable, not its name."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give the file a new name; replaces a file of that name."""
        ...

    def link(self, old: str, new: str) -> None:
        """Give the file a second name; `FileExistsError` if that exists."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make the names in this folder durable."""
        ...

    def read(self, path: str) -> bytes:
        """Return all bytes; `FileNotFoundError` if there is no such file."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in this folder, sorted; none if it is missing."""
        ...

    def remove(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents, accessible only to this user; durable on return."""
        ...

    def size(self, path: str) -> int: ...

    def unique(self) -> str:
        """Return a word that no other writer gets, for temporary names."""
        ...


class RealDisk:
    """The file system of this machine."""

    def __init__(self) -> None:
        # Not the process id: two containers on one volume can have the same.
        self._tag = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def write(self, path: str, data: Buffer) -> None:
        # 0600: the log is as private as its source (P8).
        with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
            rest = memoryview(data).cast("B")
            while rest:
                # A write may be partial, as on a full disk: writing the rest raises the error.
                rest = rest[os.write(handle, rest) :]

    def sync(self, path: str) -> None:
        with _opened(path, os.O_RDONLY) as handle:
            os.fsync(handle)

    def rename(self, old: str, new: str) -> None:
        Path(old).replace(new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def sync_folder(self, path: str) -> None:
        with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as handle:
            os.fsync(handle)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - names are wanted, not a hundred thousand Paths
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        Path(path).unlink()

    def make_folder(self, path: str) -> None:
        folder = Path(path)
        missing = [at for at in (folder, *folder.parents) if not at.is_dir()]
        for at in reversed(missing):
            at.mkdir(mode=0o700, exist_ok=True)
            self.sync_folder(str(at.parent))

    def size(self, path: str) -> int:
        return Path(path).stat().st_size

    def unique(self) -> str:
        return f"{self._tag}-{next(self._numbers)}"


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def free_bytes(path: str | Path) -> int | None:
    """Return how many bytes this user can still write on the disk of `path`; None if unknown."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    # Some network and user-space file systems report no sizes at all.
    return found.f_bavail * found.f_frsize if found.f_blocks else None
