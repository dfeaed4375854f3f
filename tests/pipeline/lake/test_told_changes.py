"""What a run tells a table of changes: each change once, and those before a truncate, too."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.changelog.change import Op
from headrace.lake.target import TableTarget, table
from headrace.pipeline.definition import Pipeline
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from tests.control.stepping import Stepping
from tests.control.test_seen_changes import Window
from tests.pipeline.lake.test_parquet import target_context


def target_in(folder: Path) -> TableTarget:
    target = table(path=str(folder / "lake"), format="parquet", mode="append")
    target.use(target_context(folder / "data"))
    return target


def changes_in(folder: Path) -> list[tuple[str, int | None]]:
    rows = [
        row
        for path in (folder / "lake").glob("*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    rows.sort(key=lambda row: (row["_position"], row["id"] or 0))
    return [(row["_change_type"], row["id"]) for row in rows]


def settled(run: PipelineRun) -> None:
    while run.step() != IDLE:
        pass


@pytest.mark.meets("R23d")
def test_changes_before_a_truncate_in_the_same_batch_are_told(tmp_path: Path) -> None:
    world = Stepping()
    run = world.run(Pipeline(world.source, "orders", target_in(tmp_path)))
    world.settle(run)
    world.source.emit_insert("orders", {"id": 1, "status": "new"})
    world.source.emit_update("orders", {"id": 1, "status": "paid"})
    world.source.emit_truncate("orders")
    world.source.emit_insert("orders", {"id": 2, "status": "new"})
    world.flush()
    world.settle(run)
    assert changes_in(tmp_path) == [
        ("insert", 1),
        ("update_postimage", 1),
        ("truncate", None),
        ("insert", 2),
    ]


@pytest.mark.meets("R11")
def test_what_the_baselines_rows_hold_is_not_told_behind_them(tmp_path: Path) -> None:
    window = Window()
    window.commit(Op.INSERT, xid=99, key=1)
    window.commit(Op.INSERT, xid=103, key=2)
    window.commit(Op.INSERT, xid=105, key=3)
    window.commit(Op.INSERT, xid=110, key=4)
    window.baseline((1, "new"), (3, "new"))
    window.commit(Op.INSERT, xid=104, key=5)
    run = window.world.run(Pipeline(window.world.source, "orders", target_in(tmp_path)))
    settled(run)
    assert changes_in(tmp_path) == [
        ("insert", 1),
        ("insert", 3),
        ("insert", 2),
        ("insert", 4),
        ("insert", 5),
    ]


@pytest.mark.meets("R25")
def test_a_switch_that_was_not_noted_tells_nothing_twice(tmp_path: Path) -> None:
    world = Stepping()
    world.put(1)
    run = world.run(Pipeline(world.source, "orders", target_in(tmp_path)))
    settled(run)
    world.take_baseline()
    world.put(2)

    def die(*about: object) -> None:
        raise KeyboardInterrupt

    run._loads._settle = die  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        settled(run)
    assert changes_in(tmp_path) == [("insert", 1), ("insert", 2)]
    world.put(3)
    again = world.run(Pipeline(world.source, "orders", target_in(tmp_path)))
    world.settle(again)
    assert changes_in(tmp_path) == [("insert", 1), ("insert", 2), ("insert", 3)]
