"""From a configuration to a query as a new user types it: real Spark, real terminals."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interfaces.terminal import Terminal
from tests.support.patience import patience

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2 * patience(240))]

CONFIGURATION = """
service = shop
data = "./headrace-data"

sources.shop { type = sqlite, path = "shop.db" }

pipelines.orders {
  source = shop
  tables = [orders]
  filters = [{ type = field-equals, field = status, value = paid }]
  target { type = indexed-memory, indexes.by_customer { fields = [customer_id] } }
}
"""
SECONDS = 180


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    (tmp_path / "headrace.conf").write_text(CONFIGURATION)
    shop = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, timeout=30)
    shop.execute("pragma journal_mode = wal")
    shop.execute(
        "create table orders (id integer primary key, customer_id integer, status text, total real)"
    )
    shop.executemany(
        "insert into orders values (?, ?, ?, ?)",
        [(key, key % 7, "paid" if key % 2 else "open", key * 1.5) for key in range(1, 2_001)],
    )
    yield shop
    shop.close()


def typed(folder: Path, *words: str, code: int = 0) -> str:
    """Type a command at a terminal; return what it leaves there."""
    terminal = Terminal(["-m", "headrace", *words], folder, 120)
    assert terminal.to_the_end(SECONDS) == code, terminal.all_text
    return "\n".join(line.rstrip() for line in terminal.all_text.splitlines()).strip()


def test_a_new_user_runs_looks_asks_watches_and_stops(
    shop: sqlite3.Connection, tmp_path: Path
) -> None:
    assert "headrace run" in typed(tmp_path, "status", code=4)
    run = Terminal(["-m", "headrace", "run"], tmp_path, 120)
    run.until(lambda text: "try next, in another terminal" in text, SECONDS)
    assert "ready: 1 pipeline, 1,000 rows" in run.all_text
    try:
        status = typed(tmp_path, "status", "--ready")
        assert re.search(r"^orders +shop +indexed-memory +streaming +1,000 ", status, re.MULTILINE)
        assert "✓ ready" in status
        assert re.search(r"^total +61\.5$", typed(tmp_path, "query", "orders", "--key", "41"), re.M)
        assert "No such row" in typed(tmp_path, "query", "orders", "--key", "42", code=1)

        watch = Terminal(["-m", "headrace", "watch", "orders", "--json"], tmp_path, 400)
        # Crosses the filter: what was not there is, as far as readers see, inserted. Until the
        # watch has begun it is changed again and again.
        for customer in range(100, 100_000):
            shop.execute(
                "update orders set status = 'paid', customer_id = ? where id = 42", (customer,)
            )
            if _seen(watch):
                break
        watch.child.sendintr()
        assert watch.to_the_end(SECONDS) == 0
        first = json.loads(watch.all_text.splitlines()[0])
        assert (first["key"], first["after"]["status"]) == ([42], "paid")

        found = typed(tmp_path, "query", "orders", "--count")
        assert found == "1,001"
        plan = typed(tmp_path, "explain", "orders")
        assert "directly, without a Spark job" in plan
        told = json.loads(typed(tmp_path, "explain", "orders", "--json").replace("\n", ""))
        assert told["rows_in"] > 0
        assert "orders is paused" in typed(tmp_path, "pause", "orders")
        assert "✗ not ready: orders" in typed(tmp_path, "status", "--ready", code=3)
        typed(tmp_path, "resume", "orders")
        wait = f"{patience(90):.0f}s"
        assert "orders was copied again" in typed(tmp_path, "reload", "orders", "--wait", wait)
    finally:
        run.child.sendintr()
    assert run.to_the_end(SECONDS) == 0
    assert "stopped" in run.all_text
    assert "Traceback" not in run.all_text
    assert "No engine is running" in typed(tmp_path, "status", code=4)


def _seen(watch: Terminal) -> bool:
    watch._read()
    return '"op"' in watch.text
