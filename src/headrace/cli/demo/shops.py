"""
The demo's shop in either database, and the writer that keeps changing it.

The differences between the databases are in `sqlite_shop` and `postgres_shop`; the rest of the
demo uses only `Shop`.

The writer is a separate process. It ends when its standard input is closed, so it never outlives
the demo, however the demo ends.
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
"""The folder for each value of `--source`: a log belongs to the database it started with."""

_LITTLE_ROOM = 256 << 10
"""A database may report a full disk as "I/O error": with less free space it counts as full."""


class Shop(ABC):
    """
    One shop, in the demo's folder.

    `open` comes first and `close` last; `close` may be called repeatedly and at any time. Errors
    of the database or the operating system are raised as `StorageError`.
    """

    kind: ClassVar[str]
    """Its name for `--source`."""

    location: ClassVar[str]
    """Where the orders are, as printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def open(self, on_step: Callable[[str], None]) -> None:
        """Create the shop, or reuse that of an earlier run; refuse a folder that is not ours."""

    @abstractmethod
    def close(self) -> str | None:
        """Stop what was started; return a text to print, if any."""

    @abstractmethod
    def connected(self) -> AbstractContextManager[Till]:
        """Return a new connection, closed on exit."""

    @abstractmethod
    def writer(self) -> Sequence[str]:
        """Return the arguments for Python that run the writer, without the rate."""

    @abstractmethod
    def source(self, name: str) -> Recordable:
        """Return the source that captures the shop."""

    @abstractmethod
    def asking(self, folder: str, query: str) -> str:
        """Return a Python program that prints the rows of `query`; `folder` is as typed."""

    def count(self) -> int:
        """Return the number of orders in the shop."""
        with self.connected() as till:
            [(found,)] = till.execute("select count(*) from orders").fetchall()
        return int(found)

    def orders(self) -> dict[int, dict[str, object]]:
        """Return the current orders by id."""
        with self.connected() as till:
            found = till.execute("select * from orders")
            names = [column[0] for column in found.description]
            return {row[0]: dict(zip(names, row, strict=True)) for row in found.fetchall()}

    def add_last_order(self) -> int:
        """Add one more order and return its id: a reader that sees it has seen all before it."""
        with self.connected() as till, till.transaction():
            return goods.add_last(till)

    def spoilt_order(self) -> int | None:
        """Return the order with a barcode as its quantity, if there is one."""
        with self.connected() as till:
            found = till.execute("select id from orders where qty = ?", (BARCODE,)).fetchone()
        return None if found is None else int(found[0])

    def add_spoilt_order(self) -> int:
        """Add an order with a barcode as its quantity; return its id."""
        with self.connected() as till, till.transaction():
            return goods.add_spoilt(till)

    def move_on(self, order: int) -> str | None:
        """Pay an order, or ship one that is paid; return its new status, None if it stays."""
        with self.connected() as till, till.transaction():
            return goods.move_on(till, order)


def refuse_others(folder: Path, ours: str) -> None:
    """Raise if a folder without such a shop has anything but a shop's leftovers."""
    # Leftovers of a demo that was killed while it created its shop are ours.
    if any(not path.name.startswith(ours) for path in folder.iterdir()):
        raise BadDataDirectory(
            "The folder is not empty and contains no demo of this kind",
            remedy="Use a new or empty folder with --data. To continue an earlier demo, use the"
            " --source it was started with.",
            path=str(folder),
        )


def unusable(path: Path, why: str, *, full: bool, failed: bool = False) -> StorageError:
    """Return the error for a shop that could not be used; `failed` means an I/O error."""
    try:
        no_room = shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    except OSError:
        no_room = False
    if full or (no_room and failed):
        return StorageFull("The disk is full: the demo's shop cannot be written", path=str(path))
    return StorageError("The demo's shop database cannot be used", path=str(path), why=why)


def shop_in(data: str, source: str) -> Shop:
    """Return the shop of this kind in the folder; creates the folder, and nothing more."""
    # Imported here: the writer, a separate process, starts without the change log.
    from headrace.runtime.lease import usable_folder

    # Imported late: each imports the library of its database.
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
    """The totals of a writer."""

    changes: int = 0
    transactions: int = 0


class Writer:
    """
    The shop's writer as a child process, which is never left running.

    `stop` may be called at any time, and repeatedly.
    """

    def __init__(self, shop: Shop, rate: float) -> None:
        self._written: WriterTotals | None = None
        self._child = subprocess.Popen(
            [sys.executable, *shop.writer(), str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Its result comes on stdout, as JSON; the terminal belongs to the demo.
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the demo, which then ends the writer. It could come before the child
            # ignores it.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def check(self) -> None:
        """Raise the writer's error, if it ended by itself."""
        if self._child.poll() is not None:
            self.stop()

    def stop(self) -> WriterTotals:
        """End the writer and return its totals; raises its error."""
        if self._written is not None:
            return self._written
        try:
            # Closes its stdin, which ends it after the current transaction.
            output, _ = self._child.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            output, _ = self._child.communicate()
        self._written = WriterTotals()
        try:
            answer = json.loads(output)
        except ValueError:
            raise StorageError(
                "The demo's shop database cannot be used", why=f"exit code {self._child.returncode}"
            ) from None
        if "error" in answer:
            kind = StorageFull if answer["code"] == StorageFull.code else StorageError
            raise kind(answer["error"], **answer["facts"])
        self._written = WriterTotals(answer["changes"], answer["transactions"])
        return self._written


def write_until_closed(
    till: Till, rate: float, until: int, seed: int | None = None
) -> WriterTotals:
    """Change the shop about `rate` times a second until the descriptor `until` is closed."""
    chance = random.Random(seed)
    changes = transactions = 0
    due = time.monotonic()
    while True:
        wait = max(0.0, due - time.monotonic())
        if select.select([until], [], [], wait)[0]:
            return WriterTotals(changes, transactions)
        size = chance.choice((1, 1, 1, 2, 3))
        with till.transaction():
            for _ in range(size):
                goods.change(till, chance)
        changes += size
        transactions += 1
        # Counted from now after a long pause: it is not followed by a burst.
        due = max(due + size / rate, time.monotonic() - 1)


def main(connected: Callable[[], AbstractContextManager[Till]], rate: float) -> int:
    """Run the writer; prints its totals to standard output, as JSON."""
    # Ctrl-C goes to every process of the terminal; this one ends when the demo ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    result: dict[str, object]
    try:
        with connected() as till:
            done = write_until_closed(till, rate, sys.stdin.fileno())
        result = {"changes": done.changes, "transactions": done.transactions}
    except StorageError as error:
        result = {"code": error.code, "error": error.message, "facts": error.facts}
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if "error" in result else 0
