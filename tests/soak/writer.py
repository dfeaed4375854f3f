"""The load: `python -m tests.soak.writer DATABASE RATE`, until its input ends."""

from __future__ import annotations

import random
import select
import sqlite3
import sys
import time

ROWS = 2_000
"""About as many rows as there are at any time: the table must not be what grows."""

BAD_EVERY = 2_000
"""One order of so many has a text that is no number, and becomes a dead letter."""


def main(path: str, rate: float) -> None:
    """Insert, update and delete, a commit at a time."""
    dice = random.Random(7)
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    database.execute("pragma synchronous = normal")
    (last,) = database.execute("select coalesce(max(id), 0) from orders").fetchone()
    began, number = time.monotonic(), 0
    while True:
        number += 1
        pause = max(0.0, began + number / rate - time.monotonic())
        if select.select([sys.stdin], [], [], pause)[0]:
            return
        database.execute("begin immediate")
        for _ in range(dice.randint(1, 20)):
            last += 1
            discount = "none" if last % BAD_EVERY == 0 else str(dice.randint(0, 30))
            database.execute(
                "insert into orders values (?, ?, 'paid', ?, ?)",
                (last, last % 50, dice.randint(1, 9), discount),
            )
            there = dice.randint(max(1, last - ROWS), last)
            database.execute("update orders set qty = qty + 1 where id = ?", (there,))
        database.execute(
            "delete from orders where id <= ? and id % ? <> 0", (last - ROWS, BAD_EVERY)
        )
        database.execute("commit")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
