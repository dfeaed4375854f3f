"""
Files outside the log, and output files, readable only by their owner.

They may contain rows, as the log does. None of them has to survive a power cut, so nothing here is
synced.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from headrace.errors import AlreadyStored, StorageError, StorageFull

_OWNER = 0o600


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents, each accessible only to its owner."""
    # `parents=True` would create the parents with the default permissions.
    for at in reversed([at for at in (folder, *folder.parents) if not at.is_dir()]):
        at.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, *, append: bool = False) -> IO[bytes]:
    """Open a file for writing that only its owner can read from the start; raises `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    handle = os.open(path, flags, _OWNER)
    # An existing file may be readable by others.
    os.fchmod(handle, _OWNER)
    return os.fdopen(handle, "ab" if append else "wb")


def create_output(path: Path, *, replace: bool = False, mode: int = _OWNER) -> IO[bytes]:
    """
    Create an output file; an existing file is overwritten only with `replace`.

    Raises `AlreadyStored` if the file exists, and `StorageError` if it cannot be created. A
    device or a pipe, such as /dev/null, is opened as it is.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    if not _is_special(path):
        flags |= os.O_TRUNC if replace else os.O_EXCL
    try:
        return os.fdopen(os.open(path, flags, mode), "wb")
    except FileExistsError as error:
        raise AlreadyStored(
            "The file already exists",
            path=str(path),
            remedy="Choose another name, or remove the file first.",
        ) from error
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> StorageError:
    """Return the error for a file that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (StorageFull if full else StorageError)(
        "The file cannot be written",
        path=str(path),
        why=error.strerror or type(error).__name__,
        remedy="Free some space on that disk, or choose another folder."
        if full
        else "Check that its folder exists, and that you can write to it.",
    )


def _is_special(path: Path) -> bool:
    try:
        kind = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)
