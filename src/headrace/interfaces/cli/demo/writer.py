"""The shop's writer as a child process: started, asked to end, never left behind."""

from __future__ import annotations

import json
import subprocess
import sys

from headrace.errors import StorageError, StorageFull
from headrace.interfaces.cli.demo.shop import Shop
from headrace.interfaces.cli.demo.writing import Written

STOP_SECONDS = 10.0


class Writer:
    """The running child. `stop` may be called at any time, and again."""

    def __init__(self, shop: Shop, rate: float) -> None:
        self._written: Written | None = None
        self._child = subprocess.Popen(
            [sys.executable, *shop.writer(), str(rate)],
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
            raise StorageError(
                "The demo's shop cannot be used", why=f"exit code {self._child.returncode}"
            ) from None
        if "error" in said:
            kind = StorageFull if said["code"] == StorageFull.code else StorageError
            raise kind(said["error"], **said["facts"])
        self._written = Written(said["changes"], said["transactions"])
        return self._written
