"""Large values that were silently wrong once: each told in a few lines, so that it stays found."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from tests.postgres.recording import Recording


@pytest.fixture
def shop(recording: Recording) -> Recording:
    return recording


def images(shop: Recording, table: str) -> list[tuple[Any, dict[str, Any]]]:
    """What was not sent, and the row, of every change in order."""
    return [(row["_unsent"], row["after"]) for row in shop.changes(table)]


def text(size: int) -> str:
    """A text that cannot be made shorter."""
    return secrets.token_hex(size // 2)


@pytest.mark.meets("R21", "PG-14")
def test_a_column_that_is_not_published_may_push_others_out_of_their_row(shop: Recording) -> None:
    run = shop.database.execute
    run(
        "create table docs (id bigint primary key, n int, body text,"
        " g text generated always as (left(body, 1000)) stored)"
    )
    shop.follow("docs")
    new = text(1600)
    run(f"insert into docs values (1, 0, '{text(3000)}')")
    run(f"update docs set body = '{new}' where id = 1")
    run("update docs set n = 1 where id = 1")
    shop.until(lambda: shop.log.counts().rows == 3)
    assert images(shop, "docs")[-1] == (None, {"id": 1, "n": 1, "body": new})


@pytest.fixture
def shrunk(shop: Recording) -> str:
    """A row that is small by now, with a value that was put elsewhere when it was large."""
    value = text(1500)
    run = shop.database.execute
    run("create table two (id bigint primary key, n int, a text, b text)")
    run(f"insert into two values (1, 0, '{text(1000)}', '{value}')")
    run("update two set a = '' where id = 1")
    return value


@pytest.mark.meets("R21", "PG-14")
def test_a_value_that_stays_elsewhere_when_its_row_shrinks_is_kept(
    shop: Recording, shrunk: str
) -> None:
    shop.follow("two")
    shop.database.execute("update two set n = 1 where id = 1")
    shop.until(lambda: shop.log.counts().rows == 1)
    assert images(shop, "two") == [(None, {"id": 1, "n": 1, "a": "", "b": shrunk})]


@pytest.mark.meets("R21", "R11")
def test_a_value_that_the_copy_has_is_not_taken_for_gone(shop: Recording, shrunk: str) -> None:
    shop.live("two")
    shop.streaming()
    shop.source._snapshots.close()  # a snapshot of its own, which sees what was not read yet
    recorder = shop.recorder
    log = recorder._log
    assert log is not None
    shop.database.execute("update two set n = 1 where id = 1")
    recorder._copies.want("two", shared=False)
    while not recorder._copies._waits:
        recorder._copies.advance(log, lambda: recorder._flush(log))
    shop.until(lambda: shop.baseline("two"))
    shop.until(lambda: shop.log.counts().rows == 1)
    assert images(shop, "two")[0][1]["b"] == shrunk
