from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.demo import goods
from headrace.cli.demo.shops import Writer
from headrace.cli.demo.sqlite_shop import SqliteShop, connected, file_errors, is_shop, make
from headrace.errors import StorageError, StorageFull

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def shop(tmp_path: Path) -> SqliteShop:
    made = SqliteShop(tmp_path)
    make(made.path, orders=300)
    return made


@pytest.fixture
def path(shop: SqliteShop) -> Path:
    return shop.path


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


def test_a_shop_has_customers_orders_and_a_write_ahead_log(shop: SqliteShop, path: Path) -> None:
    with connected(path) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
        assert connection.execute("select count(*) from customers").fetchone() == (goods.CUSTOMERS,)
    assert shop.count() == 300
    assert is_shop(path)


def test_nothing_but_the_shop_is_left_in_the_folder(shop: SqliteShop, path: Path) -> None:
    assert [file.name for file in path.parent.iterdir()] == ["shop.db"]


def test_a_shop_that_is_there_is_left_alone(shop: SqliteShop, path: Path) -> None:
    make(path, orders=5)
    assert shop.count() == 300
    assert [file.name for file in path.parent.iterdir()] == ["shop.db"]


def test_another_database_or_file_is_no_shop(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with connected(other) as connection:
        connection.execute("create table orders (id integer primary key)")
    text = tmp_path / "text"
    text.write_text("hello")
    assert not is_shop(other)
    assert not is_shop(text)


def test_changes_are_inserts_updates_and_deletes(path: Path) -> None:
    chance = random.Random(3)
    with connected(path) as connection:
        before = dict(connection.execute("select id, status from orders"))
        with connection.transaction():
            for _ in range(300):
                goods.change(connection, chance)
        after = dict(connection.execute("select id, status from orders"))
    assert after.keys() - before.keys()
    assert before.keys() - after.keys()
    moved = {(before[key], after[key]) for key in before.keys() & after.keys()}
    assert ("new", "paid") in moved
    assert ("paid", "shipped") in moved
    assert ("new", "cancelled") in moved
    assert not any(old == "shipped" and new != "shipped" for old, new in moved)


def test_an_empty_shop_gets_orders(tmp_path: Path) -> None:
    shop = SqliteShop(tmp_path)
    make(shop.path, orders=0)
    with shop.connected() as connection, connection.transaction():
        for seed in range(20):
            goods.change(connection, random.Random(seed))
    assert shop.count() > 0


@pytest.mark.process
def test_the_writer_changes_the_shop_until_it_is_stopped(shop: SqliteShop, path: Path) -> None:
    with connected(path) as connection:
        before = connection.execute("pragma data_version").fetchone()
        writer = Writer(shop, 500)
        while connection.execute("pragma data_version").fetchone() == before:
            writer.check()
        written = writer.stop()
    assert written.changes >= written.transactions > 0
    assert writer.stop() == written


@pytest.mark.process
def test_the_writer_ends_with_the_process_that_started_it(shop: SqliteShop) -> None:
    program = f"""
import os, signal
from pathlib import Path
from headrace.cli.demo.shops import Writer
from headrace.cli.demo.sqlite_shop import SqliteShop
print(Writer(SqliteShop(Path({str(shop.folder)!r})), 50).pid, flush=True)
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


@pytest.mark.process
def test_ctrl_c_does_not_end_the_writer(shop: SqliteShop, path: Path) -> None:
    with connected(path) as connection:
        before = connection.execute("pragma data_version").fetchone()
        writer = Writer(shop, 500)
        # Its first change tells that it is past its start.
        while connection.execute("pragma data_version").fetchone() == before:
            writer.check()
        os.kill(writer.pid, signal.SIGINT)
        assert writer.stop().changes > 0


@pytest.mark.process
def test_a_writer_that_fails_says_why(tmp_path: Path) -> None:
    missing = SqliteShop(tmp_path)
    with missing.connected() as connection:
        connection.execute("create table customers (id integer primary key)")
    writer = Writer(missing, 50)
    with pytest.raises(StorageError) as caught:
        while True:
            writer.check()
    assert "no such table" in str(caught.value.facts["why"])


@pytest.mark.meets("P7")
def test_a_full_disk_is_told_as_such(path: Path) -> None:
    with pytest.raises(StorageFull) as caught, file_errors(path), connected(path) as small:
        small.execute("pragma max_page_count = 1")
        with small.transaction():
            chance = random.Random(1)
            for _ in range(10_000):
                goods.change(small, chance)
    assert caught.value.facts == {"path": str(path)}


@pytest.mark.meets("P7")
def test_a_disk_without_room_at_all_is_told_as_such(path: Path) -> None:
    with pytest.raises(StorageFull), file_errors(path):
        raise OSError(28, "No space left on device")
    with pytest.raises(StorageError) as caught, file_errors(path):
        raise PermissionError(13, "Permission denied")
    assert caught.value.facts["why"] == "Permission denied"


def test_there_is_one_spoilt_order_and_nobody_else_touches_it(shop: SqliteShop, path: Path) -> None:
    assert shop.spoilt_order() is None
    order = shop.add_spoilt_order()
    assert shop.spoilt_order() == order
    chance = random.Random(5)
    with connected(path) as connection, connection.transaction():
        for _ in range(500):
            goods.change(connection, chance)
        found = connection.execute("select qty, status from orders where id = ?", (order,))
        assert found.fetchone() == (goods.BARCODE, "new")


def test_the_spoilt_order_is_paid_then_shipped_then_left(shop: SqliteShop) -> None:
    order = shop.add_spoilt_order()
    assert [shop.move_on(order) for _ in range(3)] == ["paid", "shipped", None]


def test_the_last_order_has_the_highest_number(shop: SqliteShop, path: Path) -> None:
    last = shop.add_last_order()
    with connected(path) as connection:
        row = connection.execute("select max(id), status from orders").fetchone()
    assert row == (last, "paid")
