"""A pipeline tried on a few rows: what becomes of each, and that nothing else happens."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.capture.registry import sample
from headrace.capture.sqlite.source import sqlite
from headrace.changelog.reader import LogReader
from headrace.engine.preview import PreviewRow, TriedTable, take_samples, try_rows
from headrace.errors import InvalidConfiguration, SourceRefused, TableRefused, UnknownPipeline
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import drop, equals, rename
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, Shop

FAILING = "DIVIDE_BY_ZERO"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, rows=4)
    made.app.execute("update orders set status = 'open' where id = 2")
    yield made
    made.close()


def pipeline(shop: Shop, *tables: str, **options: Any) -> Pipeline:
    given = {"filters": [equals("status", "paid")], "transforms": [drop("card")], **options}
    return Pipeline(shop.source(), tables=tables or ["orders"], target=memory(), **given)


def failing_at(*keys: int) -> ArrowRunner:
    return ArrowRunner(fails=lambda _, row: FAILING if row["id"] in keys else None)


def tried(
    asked: Pipeline, runner: ArrowRunner | None = None, most: int = 20, table: str | None = None
) -> list[TriedTable]:
    return list(try_rows(asked, take_samples(asked, most, table).tables, runner or ArrowRunner()))


def schema_and_files(shop: Shop) -> tuple[object, ...]:
    made = shop.app.execute("select type, name, sql from sqlite_schema order by 1, 2").fetchall()
    return made, sorted(path.name for path in shop.path.parent.iterdir())


def test_every_row_is_told_with_what_became_of_it(shop: Shop) -> None:
    [found] = tried(pipeline(shop), failing_at(3))
    assert (found.table, found.after.names) == ("orders", ("id", "customer_id", "status"))
    assert found.rows == (
        PreviewRow(row(1), {"id": 1, "customer_id": 1, "status": "paid"}),
        PreviewRow(row(2, "open"), None),
        PreviewRow(row(3), None, FAILING),
        PreviewRow(row(4), {"id": 4, "customer_id": 4, "status": "paid"}),
    )
    assert [each.outcome for each in found.rows] == ["passed", "filtered", "failed", "passed"]
    assert [found.count(each) for each in ("passed", "filtered", "failed")] == [2, 1, 1]


def row(key: int, status: str = "paid") -> dict[str, object]:
    return {"id": key, "customer_id": key % 7, "status": status, "card": "x"}


def test_nothing_is_left_in_the_database_or_beside_it(
    shop: Shop, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = schema_and_files(shop)
    tried(pipeline(shop))
    assert schema_and_files(shop) == before
    assert list(temporary.iterdir()) == []


def test_a_file_without_a_wal_has_the_same_bytes_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "small.db"
    app = sqlite3.connect(path)
    app.executescript("create table t (id integer primary key); insert into t values (1), (2)")
    app.close()
    before = path.read_bytes()
    [found] = tried(Pipeline(sqlite(path), "t", memory()))
    assert len(found.rows) == 2
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_not_more_rows_are_read_than_were_asked_for(shop: Shop) -> None:
    [found] = tried(pipeline(shop), most=3)
    assert len(found.rows) == 3


def test_every_row_that_fails_is_told_where_a_run_would_stop(shop: Shop) -> None:
    [found] = tried(pipeline(shop, on_error="stop", filters=[]), failing_at(1, 2, 3, 4))
    assert [each.failed for each in found.rows] == [FAILING] * 4


def test_a_table_without_rows_still_tells_its_columns(shop: Shop) -> None:
    shop.app.execute("delete from orders")
    [found] = tried(pipeline(shop, transforms=[rename(card="number")]))
    assert (found.rows, found.after.names[-1]) == ((), "number")


def test_all_tables_are_tried_or_the_one_that_is_named(shop: Shop) -> None:
    shop.app.execute("create table letters (id integer primary key, status text, card text)")
    shop.app.execute("insert into letters values (7, 'paid', 'y')")
    asked = pipeline(shop, "orders", "letters")
    assert [each.table for each in tried(asked)] == ["orders", "letters"]
    [found] = tried(asked, table="letters")
    assert [each.row_after for each in found.rows] == [{"id": 7, "status": "paid"}]
    with pytest.raises(UnknownPipeline, match="does not have this table") as caught:
        tried(asked, table="nobody")
    assert caught.value.remedy == "Its tables: orders, letters."


def test_a_table_that_merely_matches_and_does_not_fit_is_left_out(shop: Shop) -> None:
    shop.app.execute("create table audit (rowid, _rowid_, oid)")
    shop.app.execute("create table others (id integer primary key)")
    found = take_samples(pipeline(shop, "*"), 20)
    assert [each.schema.table for each in found.tables] == ["orders"]
    assert {name: error.code for name, error in found.left_out.items()} == {
        "audit": "capture.unsupported_table",
        "others": "pipeline.unknown_column",
    }
    with pytest.raises(UnknownPipeline, match="No table matches"):
        take_samples(pipeline(shop, "nothing_*"), 20)


def test_what_is_wrong_is_told_before_anything_is_run(shop: Shop) -> None:
    with pytest.raises(TableRefused, match="Table not found"):
        take_samples(pipeline(shop, "nobody"), 20)
    with pytest.raises(InvalidConfiguration) as caught:
        take_samples(pipeline(shop, transforms=[drop("colour"), drop("size")]), 20)
    assert len(caught.value.errors) == 2


def test_a_source_of_another_kind_says_that_it_cannot(tmp_path: Path) -> None:
    market = Market(tmp_path)
    with pytest.raises(SourceRefused, match="cannot return sample rows"):
        take_samples(market.pipeline(memory()), 20)


@pytest.mark.meets("R23f")
def test_a_value_that_its_column_cannot_hold_is_shown_exactly(shop: Shop) -> None:
    shop.app.execute("insert into orders values (9, 'many', 'paid', cast(x'ff41' as text))")
    [found] = tried(pipeline(shop, transforms=[]))
    assert found.rows[-1].row_before == {
        "id": 9,
        "customer_id": {"exact": "many"},
        "status": "paid",
        "card": {"exact": "cast(X'FF41' as text)"},
    }


@pytest.mark.meets("R18")
def test_the_rows_are_in_the_types_that_a_baseline_gives(shop: Shop) -> None:
    shop.app.execute("create table t (id integer primary key, a text, b blob, c real, d decimal)")
    shop.app.execute("insert into t values (1, 'ä', x'00ff', 1.5, '1.50'), (2, 7, 'x', 'y', 3)")
    taken = sample(shop.source(), "t", 20)
    target = memory()
    with shop.engine(Pipeline(shop.source(), "t", target)) as engine:
        assert engine.await_ready(PATIENCE)
    log: LogReader = shop.log()
    baseline = log.usable_baseline("t")
    assert baseline is not None
    [file] = baseline.files
    stored = log.rows(file)
    assert log.schema("t", file.schema).arrow == taken.rows.schema
    assert stored["after"].to_pylist() == taken.rows.to_pylist()
    marks = [None, None] if taken.exact is None else taken.exact.to_pylist()
    assert stored["_exact"].to_pylist() == marks
    # Fields are numbered by the triggers; both are in the table's order.
    assert log.schema("t", file.schema).names == taken.schema.names
