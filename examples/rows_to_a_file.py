"""
A target of your own: every change of a table as a line of a JSON file, each exactly once.

Run it in any folder; it makes its own shop.db, headrace-data and paid.jsonl there:

    .venv/bin/python examples/rows_to_a_file.py
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import headrace as hr

ORDERS = """
    create table if not exists orders (
        id integer primary key, status text not null, total integer not null
    );
    delete from orders;
    insert into orders values (41, 'open', 990), (42, 'paid', 750), (43, 'paid', 120);
"""


class JsonLines(hr.RowTarget):
    """Keeps what it was told in a file, and with each line where that stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = ""
        self.synced = threading.Semaphore(0)
        """Counts batches, so that a program can wait for them."""

    def is_durable(self) -> bool:
        return True

    def on_init(self, table: str, columns: Sequence[object]) -> None:
        self.path.touch()
        # A crash may have cut the last line in two; the batch it belongs to comes again.
        whole = [line for line in self.path.read_text().splitlines(True) if line.endswith("\n")]
        self.path.write_text("".join(whole))
        self.last = json.loads(whole[-1])["at"] if whole else ""
        self.file = self.path.open("a")

    def on_baseline_row(self, row: Mapping[str, object]) -> None:
        self.add("baseline", row)

    def on_baseline_complete(self) -> None:
        self.on_batch_complete()

    def on_insert(self, row: Mapping[str, object]) -> None:
        self.add("insert", row)

    def on_update(self, row: Mapping[str, object], identity: Mapping[str, object]) -> None:
        self.add("update", row)

    def on_delete(self, identity: Mapping[str, object]) -> None:
        self.add("delete", identity)

    def on_truncate(self) -> None:
        self.file.truncate(0)
        self.last = ""

    def on_batch_complete(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.synced.release()

    def on_close(self) -> None:
        self.file.close()

    def add(self, op: str, row: Mapping[str, object]) -> None:
        """Write a line, unless an earlier life has: positions sort as their text does."""
        at = str(self.position)
        if op == "baseline" or at > self.last:
            self.file.write(json.dumps({"at": at, "op": op, "row": dict(row)}) + "\n")


def main() -> int:
    """Follow the paid orders of a small shop through three changes."""
    with sqlite3.connect("shop.db") as shop:
        shop.executescript(ORDERS)

    paid = JsonLines(Path("paid.jsonl"))
    pipeline = hr.Pipeline(
        hr.sqlite("shop.db"), "orders", paid, filters=[hr.equals("status", "paid")]
    )
    with hr.Engine(pipeline, data=Path("headrace-data"), on_step=print) as engine:
        if not engine.await_ready(timeout=120):
            print("not ready:", engine.pipelines())
            return 1
        with shop:
            shop.execute("update orders set status = 'paid' where id = 41")  # enters the filter
            shop.execute("update orders set total = 700 where id = 42")  # stays
            shop.execute("update orders set status = 'returned' where id = 43")  # leaves it
        while '"delete"' not in paid.path.read_text():
            if not paid.synced.acquire(timeout=60):
                print("no change came:", engine.pipelines())
                return 1
    shop.close()
    print(paid.path.read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
