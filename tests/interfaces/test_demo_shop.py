from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import StorageError, StorageFull
from headrace.interfaces.cli.demo import shop
from headrace.interfaces.cli.demo.writer import Writer, shop_errors

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.db"
    shop.make(made, orders=300)
    return made


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


def test_a_shop_has_customers_orders_and_a_write_ahead_log(path: Path) -> None:
    with shop.connected(path) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
        assert connection.execute("select count(*) from customers").fetchone() == (shop.CUSTOMERS,)
    assert shop.count(path) == 300
    assert shop.is_shop(path)


def test_nothing_but_the_shop_is_left_in_the_folder(path: Path) -> None:
    assert [file.name for file in path.parent.iterdir()] == ["shop.db"]


def test_a_shop_that_is_there_is_left_alone(path: Path) -> None:
    shop.make(path, orders=5)
    assert shop.count(path) == 300
    assert [file.name for file in path.parent.iterdir()] == ["shop.db"]


def test_another_database_or_file_is_no_shop(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with shop.connected(other) as connection:
        connection.execute("create table orders (id integer primary key)")
    text = tmp_path / "text"
    text.write_text("hello")
    assert not shop.is_shop(other)
    assert not shop.is_shop(text)


def test_changes_are_inserts_updates_and_deletes(path: Path) -> None:
    chance = random.Random(3)
    with shop.connected(path) as connection:
        before = dict(connection.execute("select id, status from orders"))
        with connection:
            for _ in range(300):
                shop.change(connection, chance)
        after = dict(connection.execute("select id, status from orders"))
    assert after.keys() - before.keys()
    assert before.keys() - after.keys()
    moved = {(before[key], after[key]) for key in before.keys() & after.keys()}
    assert ("new", "paid") in moved
    assert ("paid", "shipped") in moved
    assert ("new", "cancelled") in moved
    assert not any(old == "shipped" and new != "shipped" for old, new in moved)


def test_an_empty_shop_gets_orders(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    shop.make(path, orders=0)
    with shop.connected(path) as connection, connection:
        for seed in range(20):
            shop.change(connection, random.Random(seed))
    assert shop.count(path) > 0


def test_the_writer_changes_the_shop_until_it_is_stopped(path: Path) -> None:
    with shop.connected(path) as connection:
        before = connection.execute("pragma data_version").fetchone()
        writer = Writer(path, 500)
        while connection.execute("pragma data_version").fetchone() == before:
            writer.check()
        written = writer.stop()
    assert written.changes >= written.transactions > 0
    assert writer.stop() == written


def test_the_writer_ends_with_the_process_that_started_it(path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from headrace.interfaces.cli.demo.writer import Writer
print(Writer(Path({str(path)!r}), 50).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    # Not our child any more, so it cannot be waited for: a pidfd tells its end by a signal.
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    ended = select.select([descriptor], [], [], 10)[0]
    os.close(descriptor)
    assert ended, "the writer outlived its demo"


def test_ctrl_c_does_not_end_the_writer(path: Path) -> None:
    with shop.connected(path) as connection:
        before = connection.execute("pragma data_version").fetchone()
        writer = Writer(path, 500)
        # Its first change tells that it is past its start.
        while connection.execute("pragma data_version").fetchone() == before:
            writer.check()
        os.kill(writer.pid, signal.SIGINT)
        assert writer.stop().changes > 0


def test_a_writer_that_fails_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "shop.db"
    with shop.connected(missing) as connection:
        connection.execute("create table customers (id integer primary key)")
    writer = Writer(missing, 50)
    with pytest.raises(StorageError) as caught:
        while True:
            writer.check()
    assert "no such table" in str(caught.value.facts["why"])


@pytest.mark.meets("P7")
def test_a_full_disk_is_told_as_such(path: Path) -> None:
    with pytest.raises(StorageFull) as caught, shop_errors(path), shop.connected(path) as small:
        small.execute("pragma max_page_count = 1")
        with small:
            chance = random.Random(1)
            for _ in range(10_000):
                shop.change(small, chance)
    assert caught.value.facts == {"path": str(path)}


@pytest.mark.meets("P7")
def test_a_disk_without_room_at_all_is_told_as_such(path: Path) -> None:
    with pytest.raises(StorageFull), shop_errors(path):
        raise OSError(28, "No space left on device")
    with pytest.raises(StorageError) as caught, shop_errors(path):
        raise PermissionError(13, "Permission denied")
    assert caught.value.facts["why"] == "Permission denied"


def test_there_is_one_spoilt_order_and_nobody_else_touches_it(path: Path) -> None:
    assert shop.spoilt_order(path) is None
    order = shop.place_spoilt_order(path)
    assert shop.spoilt_order(path) == order
    chance = random.Random(5)
    with shop.connected(path) as connection, connection:
        for _ in range(500):
            shop.change(connection, chance)
        found = connection.execute("select qty, status from orders where id = ?", (order,))
        assert found.fetchone() == (shop.BARCODE, "new")


def test_the_spoilt_order_is_paid_then_shipped_then_left(path: Path) -> None:
    order = shop.place_spoilt_order(path)
    assert [shop.move_on(path, order) for _ in range(3)] == ["paid", "shipped", None]


def test_the_last_order_has_the_highest_number(path: Path) -> None:
    last = shop.place_last_order(path)
    with shop.connected(path) as connection:
        row = connection.execute("select max(id), status from orders").fetchone()
    assert row == (last, "paid")
    assert isinstance(sqlite3.sqlite_version, str)
