"""
The demo's shop, whichever database it is kept in, and the writer that keeps changing it.

What the two kinds of shop do differently is in `sqlite_shop` and `postgres_shop`; the rest of the
demo knows a `Shop` only.

The writer is a process of its own. It ends when its standard input does, so it never outlives the
demo, however that ends.
"""

from __future__ import annotations

import json
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from headrace.cli.demo import goods
from headrace.cli.demo.goods import BARCODE, Till
from headrace.errors import BadDataDirectory, StorageError, StorageFull
from headrace.extras import require

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


# --- the shop, in either database -----------------------------------------------------------------

DEFAULT = "sqlite"
FOLDERS = {"sqlite": "headrace-demo", "postgres": "headrace-demo-postgres"}
"""By what `--source` takes, where each is kept: a log goes on with the database it began with."""

_LITTLE_ROOM = 256 << 10
"""A database may say "I/O error" for a full disk: with less room than this it is one."""


class Shop(ABC):
    """
    One shop, in the demo's folder.

    `open` comes first and `close` last, which may be called again and at any time. Whatever
    the database or the system has against it is a `StorageError`.
    """

    kind: ClassVar[str]
    """Its name for `--source`."""

    place: ClassVar[str]
    """Where the orders are, for people."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def open(self, on_step: Callable[[str], None]) -> None:
        """Make the shop, or find the one of an earlier run; refuse a folder of others."""

    @abstractmethod
    def close(self) -> str | None:
        """End what was started; return what to say of it, if there is something."""

    @abstractmethod
    def connected(self) -> AbstractContextManager[Till]:
        """Return a connection of its own, closed when it is left."""

    @abstractmethod
    def writer(self) -> Sequence[str]:
        """Return the arguments for Python that run the writer, but for its rate."""

    @abstractmethod
    def source(self, name: str) -> Recordable:
        """Return the source that captures the shop."""

    @abstractmethod
    def asking(self, folder: str, query: str) -> str:
        """Return a Python program that prints what `query` finds; `folder` is as one types it."""

    def count(self) -> int:
        """Return how many orders the shop holds."""
        with self.connected() as till:
            [(found,)] = till.execute("select count(*) from orders").fetchall()
        return int(found)

    def orders(self) -> dict[int, dict[str, object]]:
        """Return the orders as they are, by id."""
        with self.connected() as till:
            found = till.execute("select * from orders")
            names = [column[0] for column in found.description]
            return {row[0]: dict(zip(names, row, strict=True)) for row in found.fetchall()}

    def place_last_order(self) -> int:
        """Place one more order and return its id: who sees it has seen all before it."""
        with self.connected() as till, till.transaction():
            return goods.place_last(till)

    def spoilt_order(self) -> int | None:
        """Return the order with a barcode for a quantity, if there is one."""
        with self.connected() as till:
            found = till.execute("select id from orders where qty = ?", (BARCODE,)).fetchone()
        return None if found is None else int(found[0])

    def place_spoilt_order(self) -> int:
        """Place an order with a barcode for a quantity; return its id."""
        with self.connected() as till, till.transaction():
            return goods.place_spoilt(till)

    def move_on(self, order: int) -> str | None:
        """Pay an order, or ship one that is paid; return its new status, None if it stays."""
        with self.connected() as till, till.transaction():
            return goods.move_on(till, order)


def refuse_others(folder: Path, ours: str) -> None:
    """Raise where a folder without such a shop holds anything but a shop's leftovers."""
    # Leftovers of a demo that was killed while it made its shop are ours.
    if any(not path.name.startswith(ours) for path in folder.iterdir()):
        raise BadDataDirectory(
            "The folder is not empty and contains no demo of this kind",
            remedy="Use a new or empty folder with --data. To continue an earlier demo, use the"
            " --source it was started with.",
            path=str(folder),
        )


def unusable(path: Path, why: str, *, full: bool, failed: bool = False) -> StorageError:
    """Return the error for a shop that could not be used; `failed`: its disk did not obey."""
    try:
        no_room = shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    except OSError:
        no_room = False
    if full or (no_room and failed):
        return StorageFull("The disk is full: the demo's shop cannot be written", path=str(path))
    return StorageError("The demo's shop database cannot be used", path=str(path), why=why)


def shop_in(data: str, source: str) -> Shop:
    """Return the shop of this kind in the folder, which is made if need be; nothing more is."""
    # Here and not above: the writer, a process of its own, begins without the change log.
    from headrace.runtime.lease import usable_folder

    # Imported late: each brings its database's library with it.
    if source == "postgres":
        require("postgres", "The demo on PostgreSQL")
        from headrace.cli.demo.postgres_shop import PostgresShop, find_programs

        programs = find_programs()
        return PostgresShop(usable_folder(data), programs)
    from headrace.cli.demo.sqlite_shop import SqliteShop

    return SqliteShop(usable_folder(data))


# --- the shop's writer ----------------------------------------------------------------------------

STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class WriterTotals:
    """What a writer did."""

    changes: int = 0
    transactions: int = 0


class Writer:
    """
    The shop's writer as a child process: started, asked to end, never left behind.

    `stop` may be called at any time, and again.
    """

    def __init__(self, shop: Shop, rate: float) -> None:
        self._written: WriterTotals | None = None
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

    def stop(self) -> WriterTotals:
        """End the writer and return what it did; raises what it failed on."""
        if self._written is not None:
            return self._written
        try:
            # Closes its stdin, which ends it after the transaction it is in.
            told, _ = self._child.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            told, _ = self._child.communicate()
        self._written = WriterTotals()
        try:
            said = json.loads(told)
        except ValueError:
            raise StorageError(
                "The demo's shop database cannot be used", why=f"exit code {self._child.returncode}"
            ) from None
        if "error" in said:
            kind = StorageFull if said["code"] == StorageFull.code else StorageError
            raise kind(said["error"], **said["facts"])
        self._written = WriterTotals(said["changes"], said["transactions"])
        return self._written


def write_until_told(till: Till, rate: float, told: int, seed: int | None = None) -> WriterTotals:
    """Change the shop about `rate` times a second until the file descriptor `told` ends."""
    chance = random.Random(seed)
    changes = transactions = 0
    due = time.monotonic()
    while True:
        wait = max(0.0, due - time.monotonic())
        if select.select([told], [], [], wait)[0]:
            return WriterTotals(changes, transactions)
        size = chance.choice((1, 1, 1, 2, 3))
        with till.transaction():
            for _ in range(size):
                goods.change(till, chance)
        changes += size
        transactions += 1
        # Counted from now if we fell far behind: a pause is not made up for by a burst.
        due = max(due + size / rate, time.monotonic() - 1)


def main(connected: Callable[[], AbstractContextManager[Till]], rate: float) -> int:
    """Run the writer. Says on standard output what it did, as JSON."""
    # Ctrl-C goes to every process of the terminal; ours ends when the demo says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told: dict[str, object]
    try:
        with connected() as till:
            done = write_until_told(till, rate, sys.stdin.fileno())
        told = {"changes": done.changes, "transactions": done.transactions}
    except StorageError as error:
        told = {"code": error.code, "error": error.message, "facts": error.facts}
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if "error" in told else 0
