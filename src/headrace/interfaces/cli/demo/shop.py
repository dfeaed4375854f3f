"""
The demo's shop, whatever database it is kept in.

What the two kinds do differently stands in `sqlite_shop` and `postgres_shop`; the rest of the
demo knows a `Shop` only.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from headrace.errors import BadDataDirectory, StorageError, StorageFull
from headrace.interfaces.cli.demo import goods
from headrace.interfaces.cli.demo.goods import BARCODE, Till

if TYPE_CHECKING:
    from headrace.capture.source import Recordable

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
            "The folder holds other things and no such demo",
            remedy="Name a new or empty folder with --data; a demo that was begun there goes on"
            " with its own --source.",
            path=str(folder),
        )


def unusable(path: Path, why: str, *, full: bool, failed: bool = False) -> StorageError:
    """Return the error for a shop that could not be used; `failed`: its disk did not obey."""
    try:
        no_room = shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    except OSError:
        no_room = False
    if full or (no_room and failed):
        return StorageFull("No room left for the demo's shop", path=str(path))
    return StorageError("The demo's shop cannot be used", path=str(path), why=why)
