"""
What was written before, and is followed now: a shop, its pipelines, and where they keep things.

Used by `write_fixture.py` with the code of an earlier commit, and by the tests with the code of
today. So it takes from Headrace only what `import headrace` has, and its runner from the one who
calls it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import headrace as hr

Answer = TypeVar("Answer")

DATA = Path(__file__).parent / "data.tar.gz"

PLACE = "/tmp/headrace-compat"
"""Where it was made: a log names its database by its path, a database its readers by theirs."""

PLAIN, LAKE = "plain", "lake"
"""The two folders in it: without Spark, and with tables of Delta."""

EXPECTED = "expected"
"""A folder in `plain`, with what the code of then says about what it wrote."""

COPIED = ("baseline row", "baseline complete", "truncate")
"""What a journal notes when its table is loaded."""

ODD = "odd"
"""A status that the pipeline `held` cannot compute."""


class Journal(hr.RowTarget):
    """Keeps rows in a SQLite file, and what it was called with."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._within(
            lambda file: file.executescript(
                "create table if not exists rows (id integer primary key, row text);"
                "create table if not exists told (what text, id integer, position text);"
            )
        )

    def rows(self) -> dict[int, dict[str, object]]:
        found = self._within(lambda file: file.execute("select id, row from rows").fetchall())
        return {key: json.loads(row) for key, row in found}

    def told(self) -> list[tuple[str, int, str]]:
        return self._within(
            lambda file: file.execute("select * from told order by rowid").fetchall()
        )

    def is_durable(self) -> bool:
        return True

    def on_baseline_row(self, row: hr.Row) -> None:
        self._put("baseline row", row)

    def on_baseline_complete(self) -> None:
        self._within(lambda file: self._note(file, "baseline complete", 0))

    def on_insert(self, row: hr.Row) -> None:
        self._put("insert", row)

    def on_update(self, row: hr.Row, identity: hr.Row) -> None:
        self._put("update", row, identity)

    def on_delete(self, identity: hr.Row) -> None:
        self._put("delete", None, identity)

    def on_truncate(self) -> None:
        def empty(file: sqlite3.Connection) -> None:
            self._note(file, "truncate", 0)
            file.execute("delete from rows")

        self._within(empty)

    def on_schema_change(self, old: object, new: object) -> Any:
        return "continue"

    def _put(self, what: str, row: hr.Row | None, identity: hr.Row | None = None) -> None:
        def put(file: sqlite3.Connection) -> None:
            was = None if identity is None else int(str(identity["id"]))
            if was is not None:
                file.execute("delete from rows where id = ?", (was,))
            if row is not None:
                key = int(str(row["id"]))
                text = json.dumps(plain(dict(row)), sort_keys=True)
                file.execute("insert or replace into rows values (?, ?)", (key, text))
                was = key
            self._note(file, what, was)

        self._within(put)

    def _note(self, file: sqlite3.Connection, what: str, key: int | None) -> None:
        file.execute("insert into told values (?, ?, ?)", (what, key, str(self.position)))

    def _within(self, do: Callable[[sqlite3.Connection], Answer]) -> Answer:
        file = sqlite3.connect(self._path)
        try:
            with file:
                return do(file)
        finally:
            file.close()


def plain(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row's values as JSON has them."""
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}


def fails(pipeline: hr.Pipeline, image: Mapping[str, object]) -> str | None:
    """Say which rows cannot be computed, for a runner of tests."""
    return "BAD_ROW" if pipeline.name == "held" and image["status"] == ODD else None


class Shop:
    """A database, its engine's data directory beside it, and pipelines that keep their rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.app = sqlite3.connect(folder / "shop.db", isolation_level=None, timeout=60)
        self.source = hr.sqlite(folder / "shop.db", name="shop")
        self.paid = hr.memory()
        self.paused = hr.memory()
        self.journal = Journal(folder / "journal.db")
        self.held = Journal(folder / "held.db")

    def create(self) -> None:
        self.app.executescript(
            "pragma journal_mode = wal;"
            "create table orders (id integer primary key, customer integer, status text,"
            " price real, photo blob);"
            # With values that their columns cannot hold, and a key of two columns.
            "create table oddities (kind text, number integer, what integer, amount real,"
            " primary key (number, kind));"
        )
        self.app.executemany("insert into orders values (?, ?, 'paid', ?, ?)", _FIRST)

    def pipelines(self) -> list[hr.Pipeline]:
        paid = [hr.equals("status", "paid")]
        return [
            hr.Pipeline(
                *(self.source, "orders", self.paid),
                name="paid",
                filters=paid,
                transforms=[hr.drop("photo"), hr.rename(customer="customer_id")],
            ),
            hr.Pipeline(self.source, "orders", self.paused, name="paused", filters=paid),
            hr.Pipeline(self.source, "orders", self.journal, name="journal"),
            hr.Pipeline(self.source, "orders", self.held, name="held"),
        ]

    def engine(self, **options: Any) -> hr.Engine:
        recorded = [(self.source, ["oddities"])]
        return hr.Engine(*self.pipelines(), data=self.data, records=recorded, **options)

    def orders(self) -> dict[int, dict[str, object]]:
        """Return what the source holds."""
        found = self.app.execute("select * from orders order by id")
        names = [column[0] for column in found.description]
        return {row[0]: plain(dict(zip(names, row, strict=True))) for row in found}

    def paid_orders(self) -> dict[int, dict[str, object]]:
        """Return what the pipeline `paid` should hold."""
        found = {}
        for key, row in self.orders().items():
            if row.pop("status") == "paid":
                del row["photo"]
                found[key] = {"status": "paid", "customer_id": row.pop("customer"), **row}
        return found

    def close(self) -> None:
        self.app.close()


_FIRST = [
    (number, number % 3, number + 0.25, bytes([0, number, 255]) if number % 2 else None)
    for number in range(1, 13)
]

EARLY = [f"update orders set price = {number} where id = {number % 12 + 1}" for number in range(12)]
"""Changes that the log of then has made one of, and folded into its baseline."""

BETWEEN = (
    "insert into orders values (20, 9007199254740993, 'paid', -0.0, x'00ff')",
    "insert into oddities values ('a', 1, 'text', 1.5), ('b', 1, x'ff00', 9e999), ('a', 2, 7, 0)",
    "update orders set status = 'žluťoučký 🐎', customer = null where id = 2",
    "update orders set id = 99 where id = 3",
    "delete from orders where id = 4",
    "update oddities set what = 'not a number' where kind = 'b'",
    "delete from oddities where kind = 'b'",
)
"""Changes of every kind, a flush each."""

ALTER = "alter table orders add column note text"

LATER = (
    "update orders set note = 'a' || char(10) || 'b' where id in (1, 5)",
    f"update orders set status = '{ODD}' where id = 6",
    "update orders set price = 0.1 where id = 6",
    "begin; update orders set price = price * 2 where id < 9; delete from orders where id = 7;"
    " insert into orders values (7, 7, 'paid', 7.5, null, 'again'); commit",
)
"""And in other columns, with one that cannot be computed."""

UNREAD = (
    "insert into orders values (30, 1, 'paid', 3.25, null, 'unread')",
    "update orders set status = 'unread' where id = 5",
    "delete from orders where id = 8",
    "insert into oddities values ('unread', 9, null, null)",
)
"""Changes that the source captured, and no engine of then has read."""


class Bank:
    """The same with a Spark: accounts in two tables of Delta."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.app = sqlite3.connect(folder / "bank.db", isolation_level=None, timeout=60)
        self.source = hr.sqlite(folder / "bank.db", name="bank")

    def create(self) -> None:
        self.app.executescript(
            "pragma journal_mode = wal;"
            "create table accounts (id integer primary key, owner text, money integer);"
        )
        rows = [(number, f"owner {number}", 100) for number in range(1, 9)]
        self.app.executemany("insert into accounts values (?, ?, ?)", rows)

    def lake(self, mode: str) -> Path:
        return self.folder / "lake" / mode

    def engine(self, **options: Any) -> hr.Engine:
        pipelines = [
            hr.Pipeline(
                *(self.source, "accounts"),
                hr.table(path=str(self.lake(mode)), format="delta", mode=mode, compact_every=3),
                name=mode,
            )
            for mode in MODES
        ]
        return hr.Engine(*pipelines, data=self.data, **options)

    def accounts(self) -> list[tuple[object, ...]]:
        return self.app.execute("select * from accounts order by id").fetchall()

    def close(self) -> None:
        self.app.close()


MODES: tuple[Any, ...] = ("merge", "history")

MOVED = (
    "update accounts set money = money - 7 where id = 1",
    "begin; delete from accounts where id = 2; insert into accounts values (20, 'new', 3); commit",
    "update accounts set id = 30 where id = 3",
    "update accounts set owner = 'žluťoučký 🐎' where id < 6",
)
"""Changes that the tables of then have, a commit each."""

MOVED_UNREAD = (
    "update accounts set money = 1 where id = 5",
    "insert into accounts values (40, 'unread', 40)",
)

QUESTIONS = {
    "orders.jsonl": ("log", "read", "shop", "orders"),
    "oddities.jsonl": ("log", "read", "shop", "oddities"),
    "letters.jsonl": ("dead-letters", "list"),
}
"""Commands whose answers, as JSON lines, must be the same now as then."""
