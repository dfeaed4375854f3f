"""Writes stamped rows at a steady rate: `python -m bench.writer DATABASE RATE COUNT`."""

from __future__ import annotations

import sqlite3
import sys
import time


def main(path: str, rate: float, count: int) -> None:
    """Insert `count` rows, one commit each."""
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    database.execute("pragma synchronous = normal")
    (first,) = database.execute("select coalesce(max(id), 0) + 1 from orders").fetchone()
    began = time.monotonic()
    for number in range(count):
        pause = began + number / rate - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        # Stamped as late as can be: what follows is all ours, the commit included.
        database.execute(
            "insert into orders values (?, ?, 'tea', ?, 350, 'paid', '4000', ?)",
            (first + number, number % 50, number % 9 + 1, time.time()),
        )
    database.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
