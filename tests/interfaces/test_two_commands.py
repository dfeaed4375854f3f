"""From nothing to a query on one's own database, in the two commands of the README."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.interfaces.terminal import Terminal
from tests.postgres.servers import make_server
from tests.support.patience import patience

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2 * patience(300))]

SECONDS = 200
ROWS = [(key, f"customer {key}", key * 10) for key in range(1, 301)]
TABLE = "create table orders (id integer primary key, customer text, total integer)"


def typed(folder: Path, *words: str) -> str:
    terminal = Terminal(["-m", "headrace", *words], folder, 120)
    assert terminal.to_the_end(SECONDS) == 0, terminal.all_text
    return terminal.all_text


def streams(folder: Path, url: str, change: Callable[[], None]) -> None:
    """Type the two commands; ask for a row, change it, and see that."""
    made = typed(folder, "init", url)
    assert "headrace.conf written" in made
    assert "next: headrace run" in made
    run = Terminal(["-m", "headrace", "run"], folder, 120)
    run.until(lambda text: "try next, in another terminal" in text, SECONDS)
    try:
        assert "ready: 1 pipeline, 300 rows" in run.all_text
        assert "420" in typed(folder, "query", "orders", "--key", "42")
        change()
        while "1234567" not in typed(folder, "query", "orders", "--key", "42"):
            assert run.child.isalive()
    finally:
        run.child.sendintr()
    assert run.to_the_end(SECONDS) == 0
    assert "Traceback" not in run.all_text


def test_a_sqlite_file_streams_after_two_commands(tmp_path: Path) -> None:
    shop = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, timeout=30)
    shop.execute(TABLE)
    shop.executemany("insert into orders values (?, ?, ?)", ROWS)

    def change() -> None:
        shop.execute("update orders set total = 1234567 where id = 42")

    streams(tmp_path, "sqlite:shop.db", change)
    shop.close()


@pytest.mark.ci
@pytest.mark.server
def test_a_postgresql_database_streams_after_two_commands(tmp_path: Path) -> None:
    with make_server() as server, psycopg.connect(server.dsn, autocommit=True) as shop:
        shop.execute(TABLE)
        with shop.cursor() as cursor:
            cursor.executemany("insert into orders values (%s, %s, %s)", ROWS)

        def change() -> None:
            shop.execute("update orders set total = 1234567 where id = 42")

        streams(tmp_path, server.dsn, change)
