"""
The orders of the demo's shop, and how they change: plain statements for any database.

It knows nothing of Headrace, like any application.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

CUSTOMERS = 60
SEED_ORDERS = 3_000
FAVOURITE = 7
"""This customer orders more than the others, so that the lookup changes while you watch."""

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
"""Scanned as a quantity once, on purpose: multiplied by a price it overflows 64 bits."""

MOVES = {"new": ("paid", "paid", "paid", "cancelled"), "paid": ("shipped",)}
"""The next states of an order; shipped and cancelled ones stay until they are deleted."""

_ORDER = "customer_id, product, qty, price_cents, status, card_number, placed_at"
_INSERT = f"insert into orders ({_ORDER}) values (?, ?, ?, ?, ?, ?, ?)"


class Till:
    """
    A connection to the shop's database, `sqlite3`'s or psycopg's.

    `?` in a statement is a parameter; `mark` is the placeholder of the library.
    """

    def __init__(
        self,
        connection: Any,
        transaction: Callable[[], AbstractContextManager[object]],
        mark: str = "?",
    ) -> None:
        self._connection = connection
        self.transaction = transaction
        """Opens a transaction, a context; outside of it, each statement is a transaction."""

        self._mark = mark

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement; return its cursor."""
        return self._connection.execute(statement.replace("?", self._mark), values)

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement for each of the rows."""
        self._connection.cursor().executemany(statement.replace("?", self._mark), rows)


def stock(till: Till, *, orders: int, seed: int) -> None:
    """Fill new tables with customers and their first orders, within the caller's transaction."""
    chance = random.Random(seed)
    till.executemany("insert into customers values (?, ?, ?)", _customers(chance))
    till.executemany(_INSERT, (_seeded(chance) for _ in range(orders)))


def change(till: Till, chance: random.Random) -> None:
    """Make one change to the orders, within the caller's transaction."""
    dice = chance.random()
    if dice < 0.45:
        till.execute(_INSERT, _order(chance, _customer(chance), "new", _now()))
        return
    if dice < 0.90 and (found := _some_order(till, chance, tuple(MOVES))):
        order, status = found
        moved = chance.choice(MOVES[status])
        till.execute("update orders set status = ? where id = ?", (moved, order))
        return
    if dice < 0.93 and (found := _some_order(till, chance, ("new",))):
        till.execute("update orders set qty = qty + 1 where id = ?", (found[0],))
        return
    if found := _some_order(till, chance, ("shipped", "cancelled")):
        till.execute("delete from orders where id = ?", (found[0],))
        return
    till.execute(_INSERT, _order(chance, _customer(chance), "new", _now()))


def add_last(till: Till) -> int:
    """Place one more order and return its id."""
    return _placed(till, _order(random.Random(), FAVOURITE, "paid", _now()))


def add_spoilt(till: Till) -> int:
    """Place an order with a barcode for a quantity; return its id."""
    return _placed(till, (12, "desk", BARCODE, 24_900, "new", "0000-0000-0000-0012", _now()))


def move_on(till: Till, order: int) -> str | None:
    """Pay an order, or ship one that is paid; return its new status, None if it stays."""
    found = till.execute("select status from orders where id = ?", (order,)).fetchone()
    status = {"new": "paid", "paid": "shipped"}.get(found[0]) if found else None
    if status is not None:
        till.execute("update orders set status = ? where id = ?", (status, order))
    return status


def _placed(till: Till, values: Sequence[object]) -> int:
    [(order,)] = till.execute(f"{_INSERT} returning id", values).fetchall()
    return int(order)


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
    till: Till, chance: random.Random, statuses: tuple[str, ...]
) -> tuple[int, str] | None:
    """Return id and status of the first order in one of `statuses` from a random id on."""
    (highest,) = till.execute("select coalesce(max(id), 0) from orders").fetchone()
    placeholders = ", ".join("?" * len(statuses))
    mine = "and customer_id = ?" if chance.random() < 0.2 else "and customer_id <> ?"
    found: tuple[int, str] | None = till.execute(
        f"select id, status from orders where id >= ? and status in ({placeholders}) {mine}"
        # `SpoiltOrder` alone changes the spoilt order.
        " and qty <> ? order by id limit 1",
        (chance.randint(0, highest), *statuses, FAVOURITE, BARCODE),
    ).fetchone()
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
