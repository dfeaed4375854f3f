"""
A shop, an engine that follows it, and its server, for a browser to look at; without a JVM.

`python -m tests.console.shop_at_work FOLDER` runs one in which much happens, on port 4090.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.api.handlers import ApplyVerb, ControlService
from headrace.capture.sqlite.source import sqlite
from headrace.config.load import load
from headrace.engine.engine import Engine
from headrace.engine.from_config import configured
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import drop, equals
from headrace.server.network import NetworkServer
from headrace.server.settings import settings_of
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

CONFIGURATION = """
service = shop
data = "./data"
sources {
  shop { type = sqlite, path = "shop.db" }
  billing { type = sqlite, path = "billing.db" }
}
pipelines {
  orders {
    source = shop
    tables = [orders]
    target {
      type = indexed-memory
      lookup_fields = [number]
      indexes.by_customer { fields = [customer_id] }
    }
  }
  customers { source = shop, tables = [customers], target { type = indexed-memory } }
  paid-orders {
    source = shop
    tables = [orders]
    filters = [{ type = field-equals, field = status, value = paid }]
    target { type = indexed-memory }
  }
  invoices { source = billing, tables = [invoices], target { type = indexed-memory } }
}
"""

SCHEMA = {
    "shop": """
        create table customers (id integer primary key, name text, city text, since text);
        create table orders (
            id integer primary key, number text, customer_id integer, status text,
            amount real, created text
        );
    """,
    "billing": """
        create table invoices (
            id integer primary key, order_id integer, state text, total real, due text
        );
    """,
}

NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Radia", "Leslie", "Frances", "Jim", "Hedy")
CITIES = ("Bergen", "Lyon", "Porto", "Graz", "Delft", "Turku", "Cork", "Brno")
STATES = ("new", "paid", "packed", "shipped")


@dataclass
class ShopAtWork:
    """The databases, and the engine with its verbs."""

    folder: Path
    engine: Engine
    control: ControlService
    server: NetworkServer

    @property
    def url(self) -> str:
        return self.server.info.http

    def serve(self, **options: Any) -> NetworkServer:
        """Serve the engine again, with other options or after the server was closed."""
        self.server.close()
        self.server = served(self.engine, self.control, **options)
        return self.server

    def execute(self, database: str, *statements: str) -> None:
        with _open(self.folder, database) as connection:
            for each in statements:
                connection.execute(each)
        connection.close()


def served(engine: Engine, control: ControlService, **options: Any) -> NetworkServer:
    settings = settings_of({"http_port": 0, "grpc_port": 0, **options})
    server = NetworkServer(engine, settings, control=control).start()
    assert server.await_serving(patience()), server.info
    return server


@contextmanager
def shop_at_work(folder: Path, *, rows: int = 40, **options: Any) -> Iterator[ShopAtWork]:
    """Orders with an amount below zero cannot be computed: they become dead letters."""

    def fails(pipeline: Pipeline, row: Mapping[str, Any]) -> str | None:
        return "NUMERIC_VALUE_OUT_OF_RANGE" if (row.get("amount") or 0) < 0 else None

    chance = random.Random(7)
    for name, schema in SCHEMA.items():
        with _open(folder, name) as connection:
            connection.execute("pragma journal_mode = wal")
            for statement in schema.split(";"):
                connection.execute(statement)
            if name == "shop":
                people = [
                    (n, chance.choice(NAMES), chance.choice(CITIES), f"20{chance.randint(15, 25)}")
                    for n in range(1, 25)
                ]
                connection.executemany("insert into customers values (?, ?, ?, ?)", people)
                connection.executemany(
                    "insert into orders values (?, ?, ?, ?, ?, ?)",
                    [_order(n, chance) for n in range(1, rows + 1)],
                )
            else:
                connection.executemany(
                    "insert into invoices values (?, ?, ?, ?, ?)",
                    [(n, n, "open", 10.0 * n, "2026-12-01") for n in range(1, rows + 1)],
                )
        connection.close()
    shop, billing = (sqlite(folder / f"{name}.db", name=name) for name in SCHEMA)
    orders = memory(indexes={"by_customer": ["customer_id"]}, lookup=["number"])
    engine = Engine(
        Pipeline(shop, "orders", orders, name="orders"),
        Pipeline(shop, "customers", memory(), name="customers"),
        Pipeline(
            shop,
            "orders",
            memory(),
            name="paid-orders",
            filters=[equals("status", "paid")],
            transforms=[drop("created")],
        ),
        Pipeline(billing, "invoices", memory(), name="invoices"),
        data=folder / "data",
        runner=ArrowRunner(fails=fails),
        recorder="thread",
    )
    file = folder / "headrace.conf"
    file.write_text(CONFIGURATION)
    with engine:
        assert engine.await_ready(patience())
        control = ControlService(engine, service="shop")
        found = configured(load(file, environment={}, sets=()))
        control.unary["Configuration"] = ApplyVerb(engine, found, lambda: found, file).effective
        control.rates.start()
        shop_of = ShopAtWork(folder, engine, control, served(engine, control, **options))
        try:
            yield shop_of
        finally:
            shop_of.server.close()
            control.rates.stop()


def _order(number: int, chance: random.Random) -> tuple[Any, ...]:
    amount = round(chance.uniform(5, 480), 2)
    at = f"2026-11-{chance.randint(1, 19):02} {chance.randint(0, 23):02}:{chance.randint(0, 59):02}"
    state = chance.choice(STATES)
    return number, f"W-{10_000 + number}", chance.randint(1, 24), state, amount, at


def _open(folder: Path, name: str) -> sqlite3.Connection:
    return sqlite3.connect(folder / f"{name}.db", timeout=patience())


def _write(shop: ShopAtWork, over: threading.Event) -> None:
    """Write what a shop writes, until it is over."""
    chance, newest = random.Random(11), 40
    connection = _open(shop.folder, "shop")
    billing = _open(shop.folder, "billing")
    while not over.wait(chance.uniform(0.02, 0.25)):
        with connection:
            for _ in range(chance.randint(1, 4)):
                newest += 1
                connection.execute(
                    "insert into orders values (?, ?, ?, ?, ?, ?)", _order(newest, chance)
                )
            for _ in range(chance.randint(1, 9)):
                connection.execute(
                    "update orders set status = ? where id = ?",
                    (chance.choice(STATES), chance.randint(1, newest)),
                )
            if chance.random() < 0.004:
                connection.execute(
                    "update orders set amount = -1 where id = ?", (chance.randint(1, newest),)
                )
            if chance.random() < 0.2:
                connection.execute(
                    "update customers set city = ? where id = ?",
                    (chance.choice(CITIES), chance.randint(1, 24)),
                )
        if chance.random() < 0.4:
            with billing:
                billing.execute(
                    "update invoices set state = ? where id = ?",
                    (chance.choice(("open", "sent", "settled")), chance.randint(1, 40)),
                )


if __name__ == "__main__":
    root = Path(sys.argv[1])
    root.mkdir(parents=True)
    ended = threading.Event()
    with shop_at_work(root, http_port=4090) as at_work:
        writer = threading.Thread(target=_write, args=(at_work, ended))
        writer.start()
        at_work.execute("shop", "update orders set amount = -1 where id in (7, 12)")
        at_work.execute("shop", "update orders set status = 'shipped' where id = 7")
        print(at_work.url, flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        ended.set()
        writer.join()
