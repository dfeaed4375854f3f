"""
Changes rows at a steady rate.

    python -m bench.freshness_writer DATABASE RATE COUNT FIRST SEED UPDATES

Writes to its output when it began each commit, in seconds since 1970: as JSON, at the end.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time

CHANGES, UPDATES = 10, 8
"""Of a commit, in all, and of rows anywhere in the table, unless told otherwise."""


def main(path: str, rate: float, count: int, first: int, seed: int, updates: int) -> None:
    """
    Make `count` commits, numbered from `first`; each number stands in the rows it changed.

    So many of its changes are of rows anywhere in the table, the others new rows behind its last.
    """
    inserts = CHANGES - updates
    database = sqlite3.connect(path, isolation_level=None, timeout=60)
    database.execute("pragma synchronous = normal")
    (rows,) = database.execute("select max(id) from orders").fetchone()
    chance = random.Random(seed)
    stamps = []
    began = time.monotonic()
    for number in range(first, first + count):
        pause = began + (number - first) / rate - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        database.execute("begin immediate")
        database.executemany(
            "update orders set status = 'paid', total = total + 1, batch = ? where id = ?",
            [(number, key) for key in chance.sample(range(1, rows + 1), updates)],
        )
        database.executemany(
            "insert into orders values (?, ?, 'new', 1.5, ?, ?)",
            [
                (key, key % 1000, f"order {key} of commit {number}", number)
                for key in range(rows + 1, rows + 1 + inserts)
            ],
        )
        rows += inserts
        stamps.append(time.time())
        database.execute("commit")
    database.close()
    json.dump(stamps, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *(int(text) for text in sys.argv[3:]))
