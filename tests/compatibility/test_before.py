"""
What an engine of an earlier commit wrote is gone on with: a log, a control store, a lake's tables.

`data.tar.gz` is that, written by `write_fixture.py` with the code of then.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.compatibility.shop import (
    COPIED,
    DATA,
    EXPECTED,
    LAKE,
    ODD,
    PLACE,
    PLAIN,
    QUESTIONS,
    Shop,
    fails,
    plain,
)
from tests.pipeline.lake.jars import need_delta
from tests.support.arrow_runner import ArrowRunner
from tests.support.children import python
from tests.support.patience import patience
from tests.support.shop import await_seen

ROOT = Path(__file__).parents[2]

ALL = hr.log(keep="36500d")
"""What it holds is older than a day, and should stay."""

NOW = (
    "insert into orders values (50, 5, 'paid', 5.5, x'05', 'now')",
    "update orders set price = 1.75, note = 'now' where id in (1, 6, 99)",
    "update orders set id = 100 where id = 20",
    "update orders set status = 'paid' where id = 2",
    "delete from orders where id = 9",
    "insert into oddities values ('now', 1, 'text', null)",
)


def unpack(folder: Path) -> Path:
    with tarfile.open(DATA) as archive:
        archive.extractall(folder, filter="data")
    # A database knows its readers by their data directories, which are here now.
    for path in (folder / PLAIN / "shop.db", folder / LAKE / "bank.db"):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(
                "update __headrace_readers set name = replace(name, ?, ?)", (PLACE, str(folder))
            )
    return folder


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(unpack(tmp_path) / PLAIN)
    yield made
    made.close()


def asked(shop: Shop, name: str) -> list[dict[str, Any]]:
    """Return what a command of today says."""
    done = python("-m", "headrace", *QUESTIONS[name], "--json", "--data", str(shop.data))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_answer(shop: Shop, name: str) -> list[dict[str, Any]]:
    """Compare it with what the same command said then; return what it says besides."""
    lines = (shop.folder / EXPECTED / name).read_text().splitlines()
    then, now = [json.loads(line) for line in lines], asked(shop, name)
    assert then
    # There may be more to say now.
    known = [{key: new[key] for key in old} for old, new in zip(then, now, strict=False)]
    assert known == then
    return now[len(then) :]


def copies(shop: Shop) -> set[str]:
    """Return the files of the log's baselines."""
    segments = (shop.data / "log" / "shop" / "segments").iterdir()
    return {path.name for path in segments if "-b" in path.name}


def in_memory(target: Any) -> dict[int, dict[str, object]]:
    return {row["id"]: plain(dict(row)) for row in target.all()}


@pytest.mark.process
@pytest.mark.meets("P8")
@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_what_was_written_before_is_read_as_it_was_then(shop: Shop, name: str) -> None:
    assert check_answer(shop, name) == []


@pytest.mark.process
@pytest.mark.meets("P8", "R12", "R19")
def test_an_engine_goes_on_where_one_of_before_stopped(shop: Shop) -> None:
    copied, told = copies(shop), shop.journal.told()
    assert copied
    assert {what for what, _, _ in told} >= {*COPIED, "insert", "update", "delete"}
    held_before = shop.held.rows()[6]
    with shop.engine(runner=ArrowRunner(fails=fails), log=ALL) as engine:
        assert engine.pipeline_info("paused").state == "paused"
        engine.resume("paused")
        assert engine.await_ready(patience())
        # What nobody had read, first: it tells apart going on from beginning anew.
        assert await_seen(lambda: shop.journal.rows() == shop.orders(), patience())
        for statement in NOW:
            shop.app.execute(statement)
        orders, paid = shop.orders(), shop.paid_orders()
        for target, wanted in (
            (shop.paid, paid),
            (shop.paused, {key: orders[key] for key in paid}),
        ):
            assert await_seen(lambda: in_memory(target) == wanted, patience())  # noqa: B023
        assert await_seen(lambda: shop.journal.rows() == orders, patience())
        # A row that was held then is held now: what comes later waits behind its letter.
        assert orders[6]["status"] == ODD
        assert await_seen(lambda: shop.held.rows() == {**orders, 6: held_before}, patience())
        assert await_seen(lambda: len(engine.dead_letters()) == 4, patience())
    # It reads on under the name that was there.
    readers = shop.app.execute("select name from __headrace_readers").fetchall()
    assert readers == [(f"shop@{shop.data}",)]
    assert copies(shop) == copied, "a table was copied again"
    since = shop.journal.told()[len(told) :]
    assert shop.journal.told()[: len(told)] == told
    assert not {what for what, _, _ in since} & set(COPIED), "a table was loaded again"
    positions = [position for _, _, position in (*told, *since)]
    changes = [each for each in positions if not each.startswith("0000-")]
    assert positions[-len(since) :] == sorted(set(positions[-len(since) :]))
    assert max(changes[: -len(since)]) < changes[-len(since)]
    # The log has the old changes still, and the new ones behind them.
    seen = check_answer(shop, "orders.jsonl")
    assert [each["position"] for each in seen] == [position for _, _, position in since]
    assert [each["after"]["kind"] for each in check_answer(shop, "oddities.jsonl")] == [
        "unread",
        "now",
    ]
    (letter,) = check_answer(shop, "letters.jsonl")
    assert (letter["kind"], letter["key"]) == ("behind", [6])


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.process
@pytest.mark.meets("P8", "R12", "R19")
def test_tables_of_delta_go_on_where_an_engine_of_before_left_them(tmp_path: Path) -> None:
    need_delta()
    # In a process of its own: the Spark that tests share was started without Delta.
    done = python(
        "-m", "tests.compatibility.follow_lake", str(unpack(tmp_path) / LAKE), cwd=ROOT, seconds=500
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert done.stdout.splitlines()[-1] == "followed"
