"""
Files that lie beside the log, and files that somebody asked for: for their owner alone.

They may hold rows, as the log does. None of them is part of what an engine has promised to
keep, so nothing here is synced.
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
    """Make a folder, and those above it that are missing, each for its owner alone."""
    # `parents=True` would make those above it for everybody.
    for at in reversed([at for at in (folder, *folder.parents) if not at.is_dir()]):
        at.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, *, append: bool = False) -> IO[bytes]:
    """Open a file to write, for its owner alone from its first byte on; raises `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    handle = os.open(path, flags, _OWNER)
    # One that was there already may have been made for everybody.
    os.fchmod(handle, _OWNER)
    return os.fdopen(handle, "ab" if append else "wb")


def create_output(path: Path, *, replace: bool = False, mode: int = _OWNER) -> IO[bytes]:
    """
    Open a file that was asked for; nothing that is there is replaced unless `replace` says so.

    Raises `AlreadyStored` where there is a file, and `StorageError` where none can be made. What
    is no file, as /dev/null or a pipe, is written to as it is.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    if not _is_special(path):
        flags |= os.O_TRUNC if replace else os.O_EXCL
    try:
        return os.fdopen(os.open(path, flags, mode), "wb")
    except FileExistsError as error:
        raise AlreadyStored(
            "There is such a file already",
            path=str(path),
            remedy="Give a name that is not taken, or remove the file first.",
        ) from error
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> StorageError:
    """Return what is raised where the system cannot write a file."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (StorageFull if full else StorageError)(
        "File cannot be written",
        path=str(path),
        why=error.strerror or type(error).__name__,
        remedy="Make room on that disk, or give another folder."
        if full
        else "Check that its folder is there, and that you may write to it.",
    )


def _is_special(path: Path) -> bool:
    try:
        kind = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)
