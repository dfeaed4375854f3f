"""Writes stamped rows at a steady rate: `python -m bench.postgres_writer DSN RATE COUNT`."""

from __future__ import annotations

import sys
import time

import psycopg

TABLE = "stamped"


def main(dsn: str, rate: float, count: int) -> None:
    """Insert `count` rows, one commit each."""
    with psycopg.connect(dsn, autocommit=True) as database:
        found = database.execute(f"select coalesce(max(id), 0) + 1 from {TABLE}".encode())
        (first,) = found.fetchone() or (1,)
        insert = f"insert into {TABLE} values (%s, %s, 'tea', %s, 350, 'paid', '4000', %s)"
        began = time.monotonic()
        for number in range(count):
            pause = began + number / rate - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            values = (first + number, number % 50, number % 9 + 1)
            # Stamped as late as can be: what follows is all ours, the commit included.
            database.execute(insert.encode(), (*values, time.time()), prepare=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
