"""
A shop that sells until it is interrupted, with its changes recorded beside it.

    .venv/bin/python examples/auto_cdc/shop.py

The recorder needs no Spark. `spark-pipelines run` reads what it wrote, while it writes on.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from pathlib import Path

import headrace as hr

ORDERS = """
    create table if not exists orders (
        id integer primary key, customer text not null, status text not null, price integer
    );
"""
FOLDER = Path(__file__).resolve().parent
SECONDS = 0.2
"""Between two transactions."""


def opened(path: Path, orders: int = 50) -> sqlite3.Connection:
    """Return the shop's database; where it is new, with so many orders in it."""
    shop = sqlite3.connect(path, isolation_level=None)
    shop.executescript(ORDERS)
    if shop.execute("select count(*) from orders").fetchone() == (0,):
        shop.executemany(
            "insert into orders values (?, ?, 'open', ?)",
            [(number, f"customer {number % 7}", number * 150) for number in range(1, orders + 1)],
        )
    return shop


def trade(shop: sqlite3.Connection, chance: random.Random) -> None:
    """Do one transaction of several statements: orders come, are paid, renumbered and go."""
    shop.execute("begin immediate")
    for _ in range(chance.randint(1, 5)):
        [[order]] = shop.execute("select coalesce(max(id), 0) from orders").fetchall()
        some = chance.randint(1, order + 1)
        kind = chance.choice(("insert", "insert", "update", "update", "delete", "renumber"))
        if kind == "insert":
            price = None if chance.random() < 0.2 else chance.randint(100, 99_999)
            row = (order + 1, f"customer {chance.randint(0, 6)}", price)
            shop.execute("insert into orders values (?, ?, 'open', ?)", row)
        elif kind == "update":
            shop.execute("update orders set status = 'paid', price = 725 where id = ?", (some,))
        elif kind == "delete":
            shop.execute("delete from orders where id = ?", (some,))
        else:
            shop.execute("update orders set id = ? where id = ?", (order + 1, some))
    shop.execute("commit")


def main() -> int:
    """Record the shop and trade, until interrupted."""
    shop = opened(FOLDER / "shop.db")
    engine = hr.record(
        hr.sqlite(FOLDER / "shop.db", name="shop"), "orders", data=FOLDER / "headrace-data"
    )
    try:
        if not engine.await_ready(60):
            return 1
        print("Recording. Now, in another terminal: spark-pipelines run", flush=True)
        chance = random.Random()
        while True:
            trade(shop, chance)
            time.sleep(SECONDS)
    except KeyboardInterrupt:
        return 0
    finally:
        engine.stop()
        shop.close()


if __name__ == "__main__":
    sys.exit(main())
