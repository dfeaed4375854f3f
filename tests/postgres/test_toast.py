"""Updates that leave a large value alone, recorded from a server."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.capture.messages import BaselineProgress, CopyPlanned, TakeBaseline
from headrace.capture.postgres.toast.store import StoredColumns
from headrace.capture.postgres.toast.unchanged_values import RowLookup
from headrace.changelog.position import ORIGIN
from tests.postgres.recording import Recording
from tests.postgres.servers import Database

LARGE = "x" * 5_000


@pytest.fixture
def shop(database: Database, recording: Recording) -> Recording:
    database.execute("create table orders (id bigint primary key, n int, body text)")
    database.execute("alter table orders alter body set storage external")
    database.execute(
        "insert into orders select n, 0, n || repeat('x', 5000) from generate_series(1, 20) n"
    )
    return recording


def changes(shop: Recording) -> list[dict[str, object]]:
    """Return all changes of orders that the log has, with the row they leave behind."""
    log, at, found = shop.log, ORIGIN, []
    while (batch := log.next_batch("orders", at, 1 << 40)) is not None:
        for file in batch.files:
            rows = log.rows(file).combine_chunks()
            after = rows["after"].chunk(0)
            names = {field.name for field in after.type} & {"id", "n", "body"}
            images = [after.field(name).to_pylist() for name in sorted(names)]
            for unsent, *values in zip(rows["_unsent"].to_pylist(), *images, strict=True):
                found.append({"_unsent": unsent, **dict(zip(sorted(names), values, strict=True))})
        at = batch.last
    return found


def recorded(shop: Recording, count: int) -> list[tuple[object, object]]:
    """Wait for so many changes, and return key and body of each; none may keep its mark."""
    shop.until(lambda: shop.log.counts().rows >= count)
    found = changes(shop)
    assert [change["_unsent"] for change in found] == [None] * count
    return [(change.get("id"), change["body"]) for change in found]


@pytest.mark.meets("R21", "PG-14")
def test_an_update_that_leaves_a_large_value_alone_has_it(shop: Recording) -> None:
    shop.follow("orders")
    execute = shop.database.execute
    execute("update orders set n = 1 where id = 7")
    assert recorded(shop, 1) == [(7, "7" + LARGE)]
    execute("update orders set body = 'new' || repeat('y', 5000) where id = 7")
    execute("update orders set n = 2 where id = 7")
    execute("insert into orders values (30, 0, '30' || repeat('x', 5000))")
    execute("update orders set n = 1 where id = 30")
    new = "new" + "y" * 5_000
    assert recorded(shop, 5)[1:] == [(7, new), (7, new), (30, "30" + LARGE), (30, "30" + LARGE)]
    assert shop.source._toast.bytes > 20 * 5_000


@pytest.mark.meets("R21", "R6", "PG-14")
def test_a_restart_changes_nothing_and_owes_nothing(shop: Recording) -> None:
    shop.follow("orders")
    shop.database.execute("update orders set body = 'new' || repeat('y', 5000) where id = 7")
    recorded(shop, 1)
    shop.database.execute("update orders set n = 1 where id in (7, 8)")
    baseline = shop.baseline("orders")
    shop.live("orders")
    assert sorted(recorded(shop, 3)[1:]) == [(7, "new" + "y" * 5_000), (8, "8" + LARGE)]
    assert shop.baseline("orders") == baseline
    store = shop.data / "toast" / "shop" / "store.sqlite"
    assert store.stat().st_mode & 0o777 == 0o600


@pytest.mark.meets("R21", "PG-14")
def test_a_key_that_changes_takes_its_large_value_with_it(shop: Recording) -> None:
    shop.follow("orders")
    execute = shop.database.execute
    execute("update orders set id = 107 where id = 7")
    execute("insert into orders values (7, 0, 'another')")
    execute("update orders set n = 1 where id = 107")
    execute("update orders set n = 1 where id = 7")
    old = "7" + LARGE
    assert recorded(shop, 4) == [(107, old), (7, "another"), (107, old), (7, "another")]


@pytest.mark.meets("R21", "R23d", "PG-14")
def test_a_truncate_empties_the_store(shop: Recording) -> None:
    shop.follow("orders")
    execute = shop.database.execute
    execute("begin; truncate orders; insert into orders values (7, 0, 'short'); commit")
    execute("update orders set body = 'b' || repeat('z', 5000) where id = 7")
    execute("update orders set n = 1 where id = 7")
    bodies = [body for _, body in recorded(shop, 4)]
    assert bodies == [None, "short", "b" + "z" * 5_000, "b" + "z" * 5_000]


@pytest.mark.meets("R21", "R11", "PG-14")
@pytest.mark.parametrize("first", [True, False])
def test_rows_that_a_copy_has_not_come_to_are_looked_up_in_its_snapshot(
    shop: Recording, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Under the slot's own snapshot, and under one that is taken for the copy."""
    asked: list[int] = []
    rows = RowLookup.rows

    def counted(self: RowLookup, shape: StoredColumns, texts: Sequence[Sequence[str]]) -> object:
        asked.append(len(texts[0]))
        return rows(self, shape, texts)

    monkeypatch.setattr(RowLookup, "rows", counted)
    monkeypatch.setattr("headrace.capture.postgres.copy.ranges.RANGE_BYTES", 8192)
    # A name takes 64 bytes wherever it is: so rows are on more than one page.
    names = ", ".join(f"add n{each} name default 'x'" for each in range(9))
    shop.database.execute(f"alter table orders {names}")
    shop.database.execute("vacuum full orders")
    shop.live("orders")
    shop.streaming()
    if not first:
        shop.source._snapshots.close()
    execute = shop.database.execute
    if first:
        # Before anybody asks for a copy, and yet after its F.
        execute("update orders set n = 1 where id = 19")
        shop.until(lambda: shop.log.counts().rows == 1)
    shop.reports += shop.recorder.step([TakeBaseline("orders", shared=True)], 0.05)
    shop.until(lambda: any(isinstance(r, BaselineProgress) and r.rows for r in shop.reports))
    assert shop.baseline("orders") is None
    execute("update orders set n = 1 where id = 20")
    execute("update orders set id = 118 where id = 18")
    execute("delete from orders where id = 17")
    before = 1 if first else 0
    with monkeypatch.context() as held:
        held.setattr(shop.recorder._copies, "advance", lambda log, flush: None)
        shop.until(lambda: shop.log.counts().rows == before + 3)
    assert shop.baseline("orders") is None
    shop.until(lambda: shop.baseline("orders"))
    execute("update orders set n = 2 where id in (118, 20)")
    found = recorded(shop, before + 5)[before:]
    assert [body for _, body in found] == [
        "20" + LARGE,
        "18" + LARGE,
        None,
        *[b for _, b in found[3:]],
    ]
    assert {body for _, body in found[3:]} == {"20" + LARGE, "18" + LARGE}
    assert asked
    assert not [report for report in shop.reports if isinstance(report, CopyPlanned)]


@pytest.mark.meets("R21")
@pytest.mark.parametrize("gone", ["all of it", "the store", "nothing"])
def test_a_table_whose_store_was_lost_is_owed_a_baseline(shop: Recording, gone: str) -> None:
    shop.follow("orders")
    shop.die()
    folder = shop.data / "toast" / "shop"
    if gone == "all of it":
        shutil.rmtree(folder)
    elif gone == "the store":
        (folder / "store.sqlite").write_bytes(b"damaged" * 1_000)
    shop.live("orders")
    shop.streaming()
    assert (shop.baseline("orders") is None) == (gone != "nothing")
    if gone != "nothing":
        shop.database.execute("update orders set n = 1 where id = 7")
        shop.until(lambda: shop.log.counts().rows == 1)
        # Nobody looks at it before the next copy.
        assert changes(shop)[0]["_unsent"] == [3]
        shop.copy("orders")
        shop.database.execute("update orders set n = 2 where id = 7")
        shop.until(lambda: shop.log.counts().rows == 2)
        assert changes(shop)[1] == {"_unsent": None, "id": 7, "n": 2, "body": "7" + LARGE}


@pytest.mark.meets("R21")
@pytest.mark.parametrize("options", [{"toast_store_bytes": 50_000}, {"toast_store": False}])
def test_beyond_the_cap_or_without_a_store_a_change_keeps_its_mark(
    shop: Recording, options: dict[str, object]
) -> None:
    shop.live("orders", **options)
    shop.streaming()
    shop.copy("orders")
    baseline = shop.baseline("orders")
    shop.database.execute("update orders set n = 1 where id = 7")
    shop.until(lambda: shop.log.counts().rows == 1)
    assert changes(shop)[0]["_unsent"] == [3]
    shop.live("orders", **options)
    shop.streaming()
    assert shop.baseline("orders") == baseline
    if "toast_store" not in options:
        # With more room it is worth another copy.
        shop.live("orders")
        shop.streaming()
        assert shop.baseline("orders") is None


@pytest.mark.meets("R21", "S4")
def test_rows_that_are_small_are_not_kept_and_spark_may_copy_them(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.postgres.copy.ranges.RANGE_BYTES", 8192)
    shop.database.execute("truncate orders")
    shop.database.execute(
        "insert into orders select n, 0, repeat('x', 900) from generate_series(1, 40) n"
    )
    shop.live("orders")
    shop.streaming()
    shop.database.execute("update orders set n = 1 where id = 7")
    shop.reports += shop.recorder.step([TakeBaseline("orders", shared=True)], 0.05)
    shop.until(lambda: [r for r in shop.reports if isinstance(r, CopyPlanned)])
    shop.database.execute("update orders set body = repeat('y', 5000) where id = 7")
    shop.database.execute("update orders set n = 2 where id = 7")
    shop.database.execute("update orders set n = 2 where id = 8")
    bodies = [body for _, body in recorded(shop, 4)]
    assert bodies == ["x" * 900, "y" * 5_000, "y" * 5_000, "x" * 900]
    store = shop.source._toast._store
    assert store is not None
    assert store._file.rows("select count(*) from t1") == [(1,)]


@pytest.mark.meets("R21")
def test_a_table_that_always_tells_costs_nothing(shop: Recording) -> None:
    shop.database.execute("alter table orders replica identity full")
    shop.database.execute("create table numbers (id int primary key, n int)")
    shop.live("orders", "numbers")
    shop.streaming()
    shop.copy("orders")
    shop.database.execute("update orders set n = 1 where id = 7")
    assert recorded(shop, 1) == [(7, "7" + LARGE)]
    assert not (shop.data / "toast").exists()


@pytest.mark.meets("R21", "R23")
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("a text, b date, primary key (a, b)", "'it''s', 'infinity'"),
        ("a bytea, b numeric, primary key (a, b)", r"'\x00ff', 1.50"),
        ("a uuid, b timestamptz, primary key (a, b)", "gen_random_uuid(), '2026-01-01 12:00:00.5'"),
        ("a numeric(4,2), b float8, primary key (a, b)", "'NaN', 0.1"),
        ("a time, b interval, primary key (a, b)", "'24:00', '1 mon -3 days'"),
        ("a bool, b inet, primary key (a, b)", "true, '10.0.0.1'"),
        ("a char(5), b varchar(9), primary key (a, b)", "'ab', 'Ä%s'"),
        ("a timetz, b int[], primary key (a, b)", "'12:00+02', '{1,2}'"),
    ],
)
def test_keys_of_every_kind_are_found_again_in_the_store_and_in_a_snapshot(
    database: Database, tmp_path: Path, key: str, values: str
) -> None:
    database.execute(f"create table orders (n int, body text, {key})")
    database.execute("alter table orders alter body set storage external")
    database.execute(f"insert into orders values (0, repeat('x', 5000), {values})")
    shop = Recording(database, tmp_path / "data")
    try:
        shop.live("orders")
        shop.streaming()
        database.execute("update orders set n = 1")
        assert [body for _, body in recorded(shop, 1)] == [LARGE]
        shop.copy("orders")
        database.execute("update orders set n = 2")
        assert [body for _, body in recorded(shop, 2)] == [LARGE] * 2
    finally:
        shop.die()
