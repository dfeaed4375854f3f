"""
Which shop a demo has, and what the shop's writer does.

The writer keeps changing the orders, in a process of its own. It ends when its standard input
does, so it never outlives the demo, however that ends.
"""

from __future__ import annotations

import json
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headrace.cli.demo.goods import Till, change
from headrace.cli.demo.model import Shop
from headrace.errors import StorageError


def shop_in(data: str, source: str) -> Shop:
    """Return the shop of this kind in the folder, which is made if need be; nothing more is."""
    # Here and not above: the writer, a process of its own, begins without the change log.
    from headrace.runtime.lease import usable_folder

    # Imported late: each brings its database's library with it.
    if source == "postgres":
        from headrace.cli.demo.postgres_shop import PostgresShop, find_programs

        programs = find_programs()
        return PostgresShop(usable_folder(data), programs)
    from headrace.cli.demo.sqlite_shop import SqliteShop

    return SqliteShop(usable_folder(data))


# --- the shop's writer ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriterTotals:
    """What a writer did."""

    changes: int = 0
    transactions: int = 0


def write_until_told(till: Till, rate: float, told: int, seed: int | None = None) -> WriterTotals:
    """Change the shop about `rate` times a second until the file descriptor `told` ends."""
    chance = random.Random(seed)
    changes = transactions = 0
    due = time.monotonic()
    while True:
        wait = max(0.0, due - time.monotonic())
        if select.select([told], [], [], wait)[0]:
            return WriterTotals(changes, transactions)
        size = chance.choice((1, 1, 1, 2, 3))
        with till.transaction():
            for _ in range(size):
                change(till, chance)
        changes += size
        transactions += 1
        # Counted from now if we fell far behind: a pause is not made up for by a burst.
        due = max(due + size / rate, time.monotonic() - 1)


def main(connected: Callable[[], AbstractContextManager[Till]], rate: float) -> int:
    """Run the writer. Says on standard output what it did, as JSON."""
    # Ctrl-C goes to every process of the terminal; ours ends when the demo says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told: dict[str, object]
    try:
        with connected() as till:
            done = write_until_told(till, rate, sys.stdin.fileno())
        told = {"changes": done.changes, "transactions": done.transactions}
    except StorageError as error:
        told = {"code": error.code, "error": error.message, "facts": error.facts}
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if "error" in told else 0
