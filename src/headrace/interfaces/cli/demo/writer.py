"""The shop's writer as a child process: started, asked to end, never left behind."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StorageError, StorageFull
from headrace.interfaces.cli.demo import shop
from headrace.interfaces.cli.demo.shop import Written

STOP_SECONDS = 10.0
_LITTLE_ROOM = 256 << 10
"""SQLite says "disk I/O error" for some full disks: with less room than this it is one."""


class Writer:
    """The running child. `stop` may be called at any time, and again."""

    def __init__(self, path: Path, rate: float) -> None:
        self._path = path
        self._written: Written | None = None
        self._child = subprocess.Popen(
            [sys.executable, "-m", shop.__name__, str(path), str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What it has to say comes on stdout, as JSON; the terminal is the demo's.
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the demo, which ends the writer in its turn; it could come before
            # the child has got as far as to ignore it.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def check(self) -> None:
        """Raise what ended the writer, if it ended by itself."""
        if self._child.poll() is not None:
            self.stop()

    def stop(self) -> Written:
        """End the writer and return what it did; raises what it failed on."""
        if self._written is not None:
            return self._written
        try:
            # Closes its stdin, which ends it after the transaction it is in.
            told, _ = self._child.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            told, _ = self._child.communicate()
        self._written = Written()
        try:
            said = json.loads(told)
        except ValueError:
            said = {"error": f"exit code {self._child.returncode}"}
        if "error" in said:
            raise storage_error(self._path, said["error"], said.get("code", ""))
        self._written = Written(said["changes"], said["transactions"])
        return self._written


@contextmanager
def shop_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say about the shop's file into errors of ours."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "")
        raise storage_error(path, str(error), code) from error
    except OSError as error:
        code = "SQLITE_FULL" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise storage_error(path, error.strerror or str(error), code) from error


def storage_error(path: Path, why: str, code: str) -> StorageError:
    """Return the error for a shop that could not be written or read."""
    try:
        no_room = shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    except OSError:
        no_room = False
    if code == "SQLITE_FULL" or (no_room and code.startswith("SQLITE_IOERR")):
        return StorageFull("No room left for the demo's shop", path=str(path))
    return StorageError("The demo's shop cannot be used", path=str(path), why=why)
