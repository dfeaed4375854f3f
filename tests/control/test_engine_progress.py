"""What a pipeline has reached, across baselines and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.changelog.position import Position
from headrace.changelog.reader import LogWriter
from headrace.runtime.store import ProgressStore
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.testing.target import ScriptedTarget
from tests.support.shop import PATIENCE, Shop, await_that


def test_only_a_baseline_takes_progress_back(tmp_path: Path) -> None:
    store = ProgressStore.at(tmp_path / "control.sqlite")
    store.take_over()
    assert store.lineage("p", "t") is None
    store.advance("p", ["t"], "sqlite/a", Position(1, 50))
    assert store.advance("p", ["t"], "sqlite/a", Position(1, 20)) == Position(1, 50)
    store.settle("p", "t", "sqlite/b", Position(1, 20), "live", 1)
    assert store.reached("p", "t") == Position(1, 20)
    assert store.lineage("p", "t") == "sqlite/b"
    store.close()


@pytest.mark.meets("R12")
def test_a_newer_copy_of_the_table_does_not_make_a_target_load_again(shop: Shop) -> None:
    target = ScriptedTarget()
    engine = shop.engine(shop.pipeline(target))
    with engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(20, 25))
        assert await_that(engine, lambda: len(target.rows("orders")) == 15)
    # As after a recorder that finished a copy twice.
    log = shop.log()
    position = log.end
    writer = LogWriter.open(
        Files(RealDisk(), str(shop.data)),
        source="shop",
        origin=log.origin,
        writer="test",
        term=2,
        clock=lambda: 0.0,
    )
    copy = writer.baseline(log.schema("orders"))
    copy.finish(position.commit - 3, position.commit)
    with engine:
        assert engine.await_ready(PATIENCE)
    assert target.calls["load"] == 1
    assert target.disk.duplicates() == []
    assert {key: row for (key,), row in target.rows("orders").items()} == shop.truth()
