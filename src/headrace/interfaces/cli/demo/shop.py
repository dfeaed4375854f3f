"""
The demo's shop: a small SQLite database, and a process that keeps changing it.

It knows nothing of Headrace, as an application would not: standard library only, plain
statements, its own connection. The writer is a child process (`python -m` this module)
that ends when its standard input does, so it never outlives the demo, however that ends.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

APPLICATION_ID = 0x48_52_44_31
"""Written into the file's header, so that a database that is not ours is never touched."""

FORMAT = 1

CUSTOMERS = 60
SEED_ORDERS = 3_000
FAVOURITE = 7
"""This customer orders more than the others, so that one lookup changes as you watch."""

PRODUCTS = (
    ("lamp", 2_990),
    ("kettle", 3_450),
    ("chair", 8_900),
    ("desk", 24_900),
    ("rug", 6_400),
    ("mug", 890),
    ("clock", 1_990),
    ("shelf", 5_450),
)
_FIRST = ("Ada", "Bo", "Cleo", "Dina", "Eli", "Fay", "Gus", "Hana", "Ivo", "June")
_LAST = ("Ames", "Birch", "Cole", "Drew", "Eddy", "Frost")
_CITIES = ("Lisbon", "Oslo", "Graz", "Ghent", "Turku", "Brno")

BARCODE = 340_123_450_000_000_018
"""Scanned into the quantity once, on purpose: times a price it is beyond any 64-bit integer."""

MOVES = {"new": ("paid", "paid", "paid", "cancelled"), "paid": ("shipped",)}
"""What becomes of an order; shipped and cancelled ones stay, until they are deleted."""

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

_ORDER = "customer_id, product, qty, price_cents, status, card_number, placed_at"
_INSERT = f"insert into orders ({_ORDER}) values (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer did."""

    changes: int = 0
    transactions: int = 0


def is_shop(path: Path) -> bool:
    """Return whether the file is a shop made by `make`."""
    # By SQLite, which knows of our other connections to the file and their locks; and as
    # if the file could not change, because any other way of opening may leave files beside.
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
    """Create the shop with its first orders; it appears whole, or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with connected(temporary) as shop:
            shop.executescript(_TABLES)
            shop.execute(f"pragma application_id = {APPLICATION_ID}")
            shop.execute(f"pragma user_version = {FORMAT}")
            chance = random.Random(seed)
            with shop:
                shop.executemany("insert into customers values (?, ?, ?)", _customers(chance))
                shop.executemany(_INSERT, (_seeded(chance) for _ in range(orders)))
            # Ours to choose, as it is our own database: readers never hold up the writer.
            shop.execute("pragma journal_mode = wal")
        # link() refuses a name that is taken, rename() would replace another demo's shop.
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        for leftover in path.parent.glob(f"{temporary.name}*"):
            leftover.unlink(missing_ok=True)


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database; unlike sqlite3's own context, this one closes it."""
    shop = sqlite3.connect(path, timeout=30)
    try:
        yield shop
    finally:
        shop.close()


def count(path: Path) -> int:
    """Return how many orders the shop holds."""
    with connected(path) as shop:
        (found,) = shop.execute("select count(*) from orders").fetchone()
    return int(found)


def place_last_order(path: Path) -> int:
    """Place one more order and return its id: who sees it has seen all before it."""
    chance = random.Random()
    with connected(path) as shop, shop:
        cursor = shop.execute(_INSERT, _order(chance, FAVOURITE, "paid", _now()))
        return int(cursor.lastrowid or 0)


def spoilt_order(path: Path) -> int | None:
    """Return the order with a barcode for a quantity, if there is one."""
    with connected(path) as shop:
        found = shop.execute("select id from orders where qty = ?", (BARCODE,)).fetchone()
    return None if found is None else int(found[0])


def place_spoilt_order(path: Path) -> int:
    """Place an order with a barcode for a quantity; return its id."""
    with connected(path) as shop, shop:
        values = (12, "desk", BARCODE, 24_900, "new", "0000-0000-0000-0012", _now())
        return int(shop.execute(_INSERT, values).lastrowid or 0)


def move_on(path: Path, order: int) -> str | None:
    """Pay an order, or ship one that is paid; return its new status, None if it stays."""
    after = {"new": "paid", "paid": "shipped"}
    with connected(path) as shop, shop:
        found = shop.execute("select status from orders where id = ?", (order,)).fetchone()
        status = after.get(found[0]) if found else None
        if status is not None:
            shop.execute("update orders set status = ? where id = ?", (status, order))
    return status


def change(shop: sqlite3.Connection, chance: random.Random) -> None:
    """Make one change to the orders, within the caller's transaction."""
    dice = chance.random()
    if dice < 0.45:
        shop.execute(_INSERT, _order(chance, _customer(chance), "new", _now()))
        return
    if dice < 0.90 and (found := _some_order(shop, chance, tuple(MOVES))):
        order, status = found
        moved = chance.choice(MOVES[status])
        shop.execute("update orders set status = ? where id = ?", (moved, order))
        return
    if dice < 0.93 and (found := _some_order(shop, chance, ("new",))):
        shop.execute("update orders set qty = qty + 1 where id = ?", (found[0],))
        return
    if found := _some_order(shop, chance, ("shipped", "cancelled")):
        shop.execute("delete from orders where id = ?", (found[0],))
        return
    shop.execute(_INSERT, _order(chance, _customer(chance), "new", _now()))


def write_until_told(path: Path, rate: float, told: int, seed: int | None = None) -> Written:
    """Change the shop about `rate` times a second until the file descriptor `told` ends."""
    chance = random.Random(seed)
    changes = transactions = 0
    with connected(path) as shop:
        due = time.monotonic()
        while True:
            wait = max(0.0, due - time.monotonic())
            if select.select([told], [], [], wait)[0]:
                return Written(changes, transactions)
            size = chance.choice((1, 1, 1, 2, 3))
            with shop:
                # Taken at once: a read that turns into a write may find the database busy.
                shop.execute("begin immediate")
                for _ in range(size):
                    change(shop, chance)
            changes += size
            transactions += 1
            # Counted from now if we fell far behind: a pause is not made up for by a burst.
            due = max(due + size / rate, time.monotonic() - 1)


def main(arguments: list[str]) -> int:
    """Run the writer: `shop.db rate`. Says on standard output what it did, as JSON."""
    # Ctrl-C goes to every process of the terminal; ours ends when the demo says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path, rate = Path(arguments[0]), float(arguments[1])
    told: dict[str, object]
    try:
        done = write_until_told(path, rate, sys.stdin.fileno())
        told = {"changes": done.changes, "transactions": done.transactions}
    except sqlite3.Error as error:
        told = {"error": str(error), "code": getattr(error, "sqlite_errorname", "")}
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if "error" in told else 0


def _customers(chance: random.Random) -> Iterator[tuple[int, str, str]]:
    for number in range(1, CUSTOMERS + 1):
        name = f"{chance.choice(_FIRST)} {chance.choice(_LAST)}"
        yield number, name, chance.choice(_CITIES)


def _customer(chance: random.Random) -> int:
    return FAVOURITE if chance.random() < 0.2 else chance.randint(1, CUSTOMERS)


def _seeded(chance: random.Random) -> tuple[object, ...]:
    status = chance.choices(("new", "paid", "shipped", "cancelled"), (25, 25, 40, 10))[0]
    ago = timedelta(minutes=chance.randint(1, 60 * 24 * 30))
    placed = (datetime.now(UTC) - ago).isoformat(timespec="microseconds")
    return _order(chance, chance.randint(1, CUSTOMERS), status, placed)


def _order(chance: random.Random, customer: int, status: str, placed: str) -> tuple[object, ...]:
    product, cents = chance.choice(PRODUCTS)
    card = f"0000-0000-{chance.randint(0, 9999):04}-{chance.randint(0, 9999):04}"
    return customer, product, chance.randint(1, 4), cents, status, card, placed


def _some_order(
    shop: sqlite3.Connection, chance: random.Random, statuses: tuple[str, ...]
) -> tuple[int, str] | None:
    """Return id and status of an order in one of `statuses`, near a random place."""
    (highest,) = shop.execute("select coalesce(max(id), 0) from orders").fetchone()
    marks = ", ".join("?" * len(statuses))
    mine = "and customer_id = ?" if chance.random() < 0.2 else "and customer_id <> ?"
    found: tuple[int, str] | None = shop.execute(
        f"select id, status from orders where id >= ? and status in ({marks}) {mine}"
        # The spoilt order has a story of its own, and is left to it.
        " and qty <> ? order by id limit 1",
        (chance.randint(0, highest), *statuses, FAVOURITE, BARCODE),
    ).fetchone()
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
