"""A column with the time of a change is the same whenever its row is computed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import headrace as hr
from headrace.changelog.reader import LogReader
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import IndexedMemory
from tests.support.shop import PATIENCE, Market, await_that

Rows = dict[object, dict[str, object]]


def rows_of(target: IndexedMemory) -> Rows:
    return {row["id"]: dict(row) for row in target.table("orders").all()}


def stamped(market: Market, target: IndexedMemory) -> hr.Pipeline:
    times = [hr.timestamp("at"), hr.timestamp("seen", of="capture")]
    return market.pipeline(target, transforms=times)


@pytest.mark.meets("TRF-03", "R23g")
def test_every_row_has_its_times_and_keeps_them_over_a_restart_and_a_replay(
    market: Market,
) -> None:
    began = datetime.now(UTC)
    first = hr.memory()
    with market.engine(stamped(market, first)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="sent")
        market.put("orders", 11, status="sent")
        assert await_that(engine, lambda: 11 in rows_of(first))
        found = rows_of(first)
        again = hr.memory()
        engine.replay("orders", again)
        assert rows_of(again) == found
    copied = {key: row for key, row in found.items() if key not in (2, 11)}
    assert len(copied) == 9
    ((at, seen),) = {(row["at"], row["seen"]) for row in copied.values()}
    assert at == seen
    assert isinstance(at, datetime)
    assert began <= at <= datetime.now(UTC)
    reader = LogReader.open(Files(RealDisk(), str(market.data)), "shop")
    committed = [
        (row["after"]["id"], row["_time"])
        for files in reader._history.tables["orders"].files
        for file in files
        for row in reader.rows(file).to_pylist()
    ]
    assert {key: found[key]["at"] for key in (2, 11)} == dict(committed)
    for key in (2, 11):
        captured = found[key]["seen"]
        assert isinstance(captured, datetime)
        assert at <= captured <= datetime.now(UTC)
    rebuilt = hr.memory()
    with market.engine(stamped(market, rebuilt)) as engine:
        assert engine.await_ready(PATIENCE)
        assert rows_of(rebuilt) == found
