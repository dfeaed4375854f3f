"""
Messages of transactions that have not ended yet.

A transaction may still be rolled back, and its position is known only when it commits (R3), so
its messages wait here as they were received (R9). A few megabytes of them stay in memory; beyond
that the largest transaction is written to a file of its own. The files are scratch files: they
are never synced, and are removed with the connection, because the server sends everything
again (R6). They contain row values, so only their owner may read them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StorageError, StorageFull

_SUFFIX = ".spill"
_HEAD = struct.Struct("<QQ")
PART_MESSAGES: Final = 16_384
PART_BYTES: Final = 8 << 20
"""About how much `blocks` returns at a time."""


def scratch_folder(reader: str) -> Path:
    """
    Create and return the scratch folder of a reader.

    It is the same folder after a crash, so that no files of an earlier run remain.
    """
    tag = hashlib.sha256(reader.encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"headrace-spill-{os.getuid()}-{tag}"
    with _translated(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    # Any user may create folders in the temporary folder, so another one may own this name.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StorageError(
            "Scratch folder exists, but is not a private folder of this user",
            file=str(folder),
            remedy="Remove it, or set TMPDIR to a folder that only this user can write to.",
        )
    return folder


@dataclass(frozen=True, slots=True)
class Block:
    """Messages that were received together, in order."""

    data: bytes | memoryview
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    subs: NDArray[np.int64]
    """The (sub-)transaction that each message belongs to, as 32 bits."""

    @property
    def size(self) -> int:
        """Its size in bytes, in memory or in a file."""
        return len(self.data) + 24 * len(self.starts)


@dataclass(slots=True)
class _Kept:
    """The messages of one transaction."""

    path: Path | None
    blocks: list[Block] = field(default_factory=list)
    in_memory: int = 0
    on_disk: int = 0


class Spill:
    """
    Keeps messages by transaction, in the order in which they were received.

    *Durability*: none, on purpose. *Failure*: `StorageFull` or `StorageError` if a file
    cannot be written or read; the messages of that transaction are then lost. *Threads*: one.
    """

    def __init__(self, folder: Path | None, memory_limit: int = 16 << 20) -> None:
        """Keep everything in memory if `folder` is None; otherwise remove its old files."""
        self._folder = folder
        self._limit = memory_limit
        # The previous reader may still use the same folder for a moment.
        self._tag = secrets.token_hex(4)
        self._kept: dict[int, _Kept] = {}
        if folder is not None:
            with _translated(folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for left in folder.glob(f"*{_SUFFIX}"):
                    left.unlink(missing_ok=True)

    @property
    def memory_bytes(self) -> int:
        """The size of the messages in memory."""
        return sum(kept.in_memory for kept in self._kept.values())

    @property
    def disk_bytes(self) -> int:
        """The size of the messages in files."""
        return sum(kept.on_disk for kept in self._kept.values())

    def __contains__(self, key: int) -> bool:
        return key in self._kept

    def open(self, key: int) -> None:
        """Start to keep messages under `key`."""
        path = None if self._folder is None else self._folder / f"{self._tag}-{key:x}{_SUFFIX}"
        self._kept[key] = _Kept(path)

    def append(self, key: int, block: Block) -> None:
        """Keep more messages of a transaction; the block must own its bytes."""
        kept = self._kept[key]
        kept.blocks.append(block)
        kept.in_memory += block.size
        while self._folder is not None and self.memory_bytes > self._limit:
            self._store(max(self._kept.values(), key=lambda kept: kept.in_memory))

    def blocks(self, key: int) -> Iterator[tuple[Block, bool]]:
        """
        Yield all messages of a transaction in parts, each with a flag: whether it is the last.

        At least one part is yielded; it is empty if there are no messages.
        """
        collected: list[Block] = []
        messages = size = 0
        for block in self._all(self._kept[key]):
            if collected and (messages >= PART_MESSAGES or size >= PART_BYTES):
                yield _joined(collected), False
                collected, messages, size = [], 0, 0
            collected.append(block)
            messages += len(block.starts)
            size += block.size
        yield _joined(collected), True

    def discard(self, key: int) -> None:
        """Drop the messages of a transaction; does nothing if it is unknown."""
        if (kept := self._kept.pop(key, None)) and kept.on_disk and kept.path is not None:
            with suppress(OSError):
                kept.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Drop all transactions, as at the start of every stream (R6)."""
        for key in list(self._kept):
            self.discard(key)

    def close(self) -> None:
        """Drop everything and remove the folder; a folder that is in use stays."""
        self.clear()
        if self._folder is not None:
            with suppress(OSError):
                self._folder.rmdir()

    # --- files -----------------------------------------------------------------------------

    def _store(self, kept: _Kept) -> None:
        assert kept.path is not None
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if kept.on_disk else os.O_TRUNC)
        with _translated(kept.path):
            descriptor = os.open(kept.path, flags, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                for block in kept.blocks:
                    file.write(_HEAD.pack(len(block.starts), len(block.data)))
                    for numbers in (block.starts, block.stops, block.subs):
                        file.write(numbers.astype("<i8", copy=False).tobytes())
                    file.write(block.data)
        kept.on_disk += kept.in_memory
        kept.blocks, kept.in_memory = [], 0

    def _all(self, kept: _Kept) -> Iterator[Block]:
        if kept.on_disk and kept.path is not None:
            with _translated(kept.path), kept.path.open("rb") as file:
                while head := file.read(_HEAD.size):
                    yield _read(file, head, kept.path)
        yield from kept.blocks


def _read(file: BinaryIO, head: bytes, path: Path) -> Block:
    try:
        count, size = _HEAD.unpack(head)
        numbers = [
            np.frombuffer(file.read(8 * count), "<i8", count).astype(np.int64) for _ in range(3)
        ]
    except (struct.error, ValueError) as error:
        raise StorageError("Scratch file is truncated", file=str(path)) from error
    data = file.read(size)
    if len(data) < size:
        raise StorageError("Scratch file is truncated", file=str(path))
    return Block(data, numbers[0], numbers[1], numbers[2])


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    bases = np.cumsum([0, *(len(block.data) for block in blocks)])
    pairs = list(zip(blocks, bases.tolist(), strict=False))
    return Block(
        b"".join(block.data for block in blocks),
        _chained([block.starts + base for block, base in pairs]),
        _chained([block.stops + base for block, base in pairs]),
        _chained([block.subs for block in blocks]),
    )


def _chained(parts: list[NDArray[Any]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts])


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = StorageFull if full else StorageError
        reason = os.strerror(error.errno) if error.errno else "failed"
        raise kind(
            "Scratch file cannot be read or written", file=str(path), reason=reason
        ) from error
