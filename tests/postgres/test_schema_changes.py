"""Tables that the application alters while they are captured, and while nobody reads."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.capture.messages import Failed
from headrace.changelog.schema import TableSchema
from tests.postgres.recording import Recording
from tests.postgres.servers import Database

pytestmark = pytest.mark.meets("R23b")


@pytest.fixture
def noticing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what the stream does not tell of looked for with every read."""
    monkeypatch.setattr("headrace.capture.postgres.server.ddl_watch.WATCH_SECONDS", 0.0)


# Made before the first look, which decides when the next one is due.
NOTICING = pytest.mark.usefixtures("noticing")


@pytest.fixture
def shop(database: Database, recording: Recording) -> Recording:
    database.execute("create table orders (id bigint primary key, note text)")
    database.execute("create table clients (id bigint primary key, name text)")
    database.execute("insert into orders values (1, 'a'); insert into clients values (1, 'a')")
    recording.live("orders", "clients")
    recording.streaming()
    recording.copy("orders")
    recording.copy("clients")
    return recording


def images(shop: Recording) -> list[dict[str, Any]]:
    """Every row after its change, in order, as the segments have it."""
    return [row["after"] for row in shop.changes("orders")]


def recorded(shop: Recording, rows: int) -> list[dict[str, Any]]:
    shop.until(lambda: shop.log.counts().rows == rows)
    assert not [report for report in shop.reports if isinstance(report, Failed)]
    return images(shop)


def newest(shop: Recording) -> TableSchema:
    return shop.log.schema("orders")


def test_a_column_that_is_added_while_streaming_comes_with_the_next_change(
    shop: Recording,
) -> None:
    shop.database.execute("insert into orders values (2, 'b')")
    shop.database.execute("alter table orders add state text")
    shop.database.execute("insert into orders values (3, 'c', 'new')")
    assert recorded(shop, 2) == [
        {"id": 2, "note": "b"},
        {"id": 3, "note": "c", "state": "new"},
    ]
    assert newest(shop).names == ("id", "note", "state")
    assert shop.baseline("orders") == 1
    assert shop.baseline("clients") == 2


def test_a_constant_default_is_known_of_older_rows(shop: Recording) -> None:
    shop.database.execute("alter table orders add state text default 'new'")
    shop.database.execute("alter table orders alter state set default 'other'")
    shop.database.execute("insert into orders values (3, 'c')")
    assert recorded(shop, 1) == [{"id": 3, "note": "c", "state": "other"}]
    assert newest(shop).column("state").missing == "new"
    assert shop.baseline("orders") == 1


@NOTICING
@pytest.mark.parametrize(
    "altered",
    [
        "alter table orders add drawn double precision default random()",
        "alter table orders add number bigint generated always as identity",
        "alter table orders alter note type varchar(20) using upper(note)",
        "alter table orders alter note type text using upper(note)",
        "alter table orders alter id type integer",
        "alter table orders drop note, add note text",
    ],
)
def test_what_may_have_altered_rows_makes_the_table_be_copied_again_and_no_other(
    shop: Recording, monkeypatch: pytest.MonkeyPatch, altered: str
) -> None:
    shop.database.execute("insert into orders values (2, 'b')")
    shop.gather(monkeypatch)
    shop.database.execute(altered)
    shop.until(lambda: shop.log.rebaseline_required("orders") is not None, idle=False)
    assert shop.baseline("orders") is None
    assert shop.baseline("clients") == 2
    shop.copy("orders")
    shop.database.execute("insert into clients values (2, 'b')")
    shop.until(lambda: shop.log.counts().rows == 2)


@NOTICING
def test_another_expression_of_a_generated_column_makes_the_table_be_copied_again(
    shop: Recording,
) -> None:
    if shop.database.connect().info.server_version < 170000:
        pytest.skip("SET EXPRESSION came with PostgreSQL 17")
    run = shop.database.execute
    before = seen(shop)
    run("alter table orders add large text generated always as (upper(note)) stored")
    shop.until(lambda: seen(shop) != before)
    run("alter table orders alter large set expression as (lower(note))")
    shop.until(lambda: shop.log.rebaseline_required("orders") is not None)


@pytest.mark.meets("R16", "R23b")
def test_a_column_given_other_values_while_nobody_reads_has_its_table_copied(
    shop: Recording,
) -> None:
    shop.die()
    shop.database.execute("vacuum full clients")
    shop.database.execute("alter table orders alter note type text using upper(note)")
    shop.live("orders", "clients")
    shop.until(lambda: shop.log.rebaseline_required("orders") is not None)
    assert shop.baseline("orders") is None
    assert shop.baseline("clients") == 2


@NOTICING
@pytest.mark.parametrize(
    "kept",
    [
        "vacuum full orders",
        "alter table orders alter note set default 'x'",
        "alter table orders alter note set statistics 10",
    ],
)
def test_what_leaves_rows_as_they_are_costs_no_copy(shop: Recording, kept: str) -> None:
    before = seen(shop)
    shop.database.execute(kept)
    shop.until(lambda: seen(shop) != before)
    assert shop.log.rebaseline_required("orders") is None
    assert shop.baseline("orders") == 1


@NOTICING
@pytest.mark.parametrize(
    ("altered", "copied"),
    [
        ("vacuum full orders", False),
        ("alter table orders alter n type int using 7 - n", True),
    ],
)
def test_a_constant_that_is_written_into_older_rows_costs_no_copy(
    shop: Recording, altered: str, copied: bool
) -> None:
    before = seen(shop)
    shop.database.execute("alter table orders add n int default 1")
    shop.database.execute("insert into orders values (2, 'b')")
    shop.until(lambda: shop.log.counts().rows == 1 and seen(shop) != before)
    before = seen(shop)
    shop.database.execute(altered)
    shop.until(lambda: seen(shop) != before)
    assert (shop.log.rebaseline_required("orders") is not None) == copied
    shop.until(lambda: not copied or shop.baseline("orders") is None)


def seen(shop: Recording) -> str:
    log = shop.recorder._log
    assert log is not None
    return log.notes["standing/orders"]


def test_where_nobody_can_tell_what_a_column_was_every_table_is_copied(shop: Recording) -> None:
    shop.die()
    run = shop.database.execute
    run("alter table orders add state text")
    run("alter table orders rename state to stage")
    run("insert into orders values (2, 'b', 'new')")
    run("alter table orders rename stage to status")
    shop.live("orders", "clients")
    shop.until(lambda: shop.baseline("orders") is None)
    assert shop.log.gap is not None
    assert shop.log.gap.reason == "gap"
    shop.streaming()
    shop.copy("orders")
    [file] = shop.log.usable_baseline("orders").files  # type: ignore[union-attr]
    assert file.rows == 2


def test_alterations_while_nobody_reads_are_followed(shop: Recording) -> None:
    shop.die()
    run = shop.database.execute
    run("insert into orders values (2, 'b')")
    run("alter table orders add state text")
    run("insert into orders values (3, 'c', 'new')")
    run("alter table orders rename note to remark")
    run("insert into orders values (4, 'd', 'new')")
    shop.live("orders", "clients")
    shop.streaming()
    assert recorded(shop, 3) == [
        {"id": 2, "note": "b"},
        {"id": 3, "note": "c", "state": "new"},
        {"id": 4, "remark": "d", "state": "new"},
    ]
    assert [column.field for column in newest(shop).columns] == [1, 2, 3]
    assert shop.baseline("orders") == 1


def test_a_column_that_is_dropped_is_left_out(shop: Recording) -> None:
    shop.database.execute("alter table orders drop note")
    shop.database.execute("insert into orders values (3)")
    assert recorded(shop, 1) == [{"id": 3}]
    assert shop.baseline("orders") == 1


@pytest.mark.meets("R23")
def test_another_replica_identity_is_followed(shop: Recording) -> None:
    shop.database.execute("alter table orders replica identity full")
    shop.database.execute("update orders set note = 'z' where id = 1")
    recorded(shop, 1)
    assert newest(shop).whole_before
    shop.database.execute("alter table orders replica identity default")
    shop.database.execute("update orders set note = 'y' where id = 1")
    recorded(shop, 2)
    assert not newest(shop).whole_before
    assert shop.baseline("orders") == 1


@pytest.mark.meets("R23")
def test_another_key_is_followed_by_a_copy(shop: Recording) -> None:
    shop.database.execute("alter table orders add other bigint not null default 7")
    shop.database.execute("alter table orders drop constraint orders_pkey, add primary key (other)")
    shop.database.execute("delete from orders where id = 1")
    shop.until(lambda: shop.log.counts().rows == 1)
    assert newest(shop).key == ("other",)
    assert shop.baseline("orders") is None
