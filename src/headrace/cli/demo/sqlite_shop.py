"""The shop as a SQLite file; run as a module it is the shop's writer."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.demo import shops
from headrace.cli.demo.goods import SEED_ORDERS, Till, stock
from headrace.cli.demo.shops import Shop, refuse_others, unusable
from headrace.errors import BadDataDirectory

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


APPLICATION_ID = 0x48_52_44_31
"""Written to the file's header, so that a database that is not ours is never changed."""

FORMAT = 1

_TABLES = """
create table customers (
  id integer primary key, name text not null, city text not null
);
create table orders (
  id integer primary key,
  customer_id integer not null,
  product text not null,
  qty integer not null,
  price_cents integer not null,
  status text not null,
  card_number text not null,
  placed_at text not null
);
"""


class SqliteShop(Shop):
    """`shop.db` in the demo's folder."""

    kind = "sqlite"
    location = "shop.db"

    @property
    def path(self) -> Path:
        """The database's file."""
        return self.folder / "shop.db"

    def open(self, on_step: Callable[[str], None]) -> None:
        """Create the shop, or reuse that of an earlier run; refuse a folder that is not ours."""
        with file_errors(self.path):
            if not self.path.exists():
                refuse_others(self.folder, self.path.name)
                make(self.path)
            elif not is_shop(self.path):
                raise BadDataDirectory(
                    "shop.db in this folder was not created by the demo",
                    remedy="Use another folder with --data.",
                    path=str(self.folder),
                )

    def close(self) -> None:
        """Do nothing: no process was started."""

    @contextmanager
    def connected(self) -> Iterator[Till]:
        """Return a new connection, closed on exit."""
        with connected(self.path) as till:
            yield till

    def writer(self) -> Sequence[str]:
        """Return the arguments for Python that run the writer, without the rate."""
        return ("-m", __name__, str(self.path))

    def source(self, name: str) -> Recordable:
        """Return the source that captures the shop."""
        import headrace as hr

        return hr.sqlite(str(self.path), name=name)

    def asking(self, folder: str, query: str) -> str:
        """Return a Python program that prints the rows of `query`."""
        path = json.dumps(f"{folder}/{self.path.name}", ensure_ascii=False)
        return (
            f"import sqlite3; shop = sqlite3.connect({path}); "
            f'print(*shop.execute("{query}"), sep="\\n")'
        )


def is_shop(path: Path) -> bool:
    """Return whether the file is a shop made by `make`."""
    # Read with SQLite, which knows our other connections to the file and their locks. Opened as
    # immutable, because any other way may leave files next to it.
    try:
        looked = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    except sqlite3.Error:
        return False
    try:
        (found,) = looked.execute("pragma application_id").fetchone()
    except sqlite3.Error:
        return False
    finally:
        looked.close()
    return bool(found == APPLICATION_ID)


def make(path: Path, *, orders: int = SEED_ORDERS, seed: int = 1) -> None:
    """Create the shop with its first orders; it appears complete, or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with connected(temporary) as shop:
            for statement in _TABLES.split(";"):
                shop.execute(statement)
            shop.execute(f"pragma application_id = {APPLICATION_ID}")
            shop.execute(f"pragma user_version = {FORMAT}")
            with shop.transaction():
                stock(shop, orders=orders, seed=seed)
            # The demo may choose it for its own database: readers never block the writer.
            shop.execute("pragma journal_mode = wal")
        # link() refuses an existing name; rename() would replace another demo's shop.
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        for leftover in path.parent.glob(f"{temporary.name}*"):
            leftover.unlink(missing_ok=True)


@contextmanager
def connected(path: Path) -> Iterator[Till]:
    """Open the database; unlike sqlite3's own context, this one closes it on exit."""
    with file_errors(path):
        shop = sqlite3.connect(path, timeout=30)
        try:
            yield Till(shop, partial(_transaction, shop))
        finally:
            shop.close()


@contextmanager
def _transaction(shop: sqlite3.Connection) -> Iterator[None]:
    with shop:
        # Locked at once: a read that turns into a write may find the database busy.
        shop.execute("begin immediate")
        yield


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the operating system into errors of ours."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "")
        full, failed = code == "SQLITE_FULL", code.startswith("SQLITE_IOERR")
        raise unusable(path, str(error), full=full, failed=failed) from error
    except FileExistsError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise unusable(path, error.strerror or str(error), full=full) from error


if __name__ == "__main__":
    sys.exit(shops.main(partial(connected, Path(sys.argv[1])), float(sys.argv[2])))
