"""
One change, all the way: from a SQLite database through Spark into a table in memory.

Run it in any folder; it creates shop.db and headrace-data there:

    .venv/bin/python examples/first_water.py
"""

from __future__ import annotations

import itertools
import sqlite3
import sys
from pathlib import Path

import headrace as hr

ORDERS = """
    create table if not exists orders (
        id integer primary key, cust integer not null, status text not null,
        qty integer not null, price integer not null, card_number text
    );
    delete from orders;
    insert into orders values
        (41, 7, 'open', 1, 990, null),
        (42, 7, 'paid', 3, 250, '4000-0042'),
        (43, 8, 'paid', 1, 120, '4000-0043');
"""


def main() -> int:
    """Follow the paid orders of a small shop through three changes."""
    with sqlite3.connect("shop.db") as shop:
        shop.executescript(ORDERS)

    orders = hr.memory(indexes={"by_customer": ["customer_id"]})
    pipeline = hr.Pipeline(
        hr.sqlite("shop.db"),
        "orders",
        orders,
        filters=[hr.equals("status", "paid")],
        transforms=[
            hr.drop("card_number"),
            hr.rename(cust="customer_id"),
            hr.derive(total="qty * price"),
        ],
    )
    with hr.Engine(pipeline, data=Path("headrace-data"), on_step=print) as engine:
        if not engine.await_ready(timeout=120):
            print("not ready:", engine.pipelines())
            return 1
        print("paid orders:", [dict(row) for row in orders.all()])

        changes = orders.changes()
        with shop:
            shop.execute("update orders set status = 'paid' where id = 41")  # enters the filter
            shop.execute("update orders set qty = 5 where id = 42")  # stays, with another total
            shop.execute("update orders set status = 'returned' where id = 43")  # leaves it
        for change in itertools.islice(changes, 3):
            print(change.position, change.op, change.key, change.after and dict(change.after))

        print("customer 7 paid:", [row["total"] for row in orders.lookup_all("by_customer", 7)])
    shop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
