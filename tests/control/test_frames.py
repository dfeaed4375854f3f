"""A target that takes frames: baseline first, then batches, each under an id of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.errors import BadTransform, Fenced, TargetError
from headrace.pipeline.batch import BatchFacts, BlockedRows, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.foreach import FrameBatch
from headrace.pipeline.result import Failure
from headrace.runtime.pipeline_run import IDLE
from headrace.targets.target import Batch, Loading, TargetTraits
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner, Row


class FrameRunner(ArrowRunner):
    """Gives lists of rows, where Spark's runner gives DataFrames."""

    def give(
        self,
        pipeline: Pipeline,
        parts: Sequence[SegmentGroup],
        facts: BatchFacts,
        behind: BlockedRows,
        take: Callable[[Any], None],
    ) -> tuple[Failure, ...]:
        result = self.rows(pipeline, parts, facts)
        parked = behind(result.failures) if result.failures else frozenset()
        take(
            [
                row["id"]
                for row in result.rows.to_pylist()
                if (row["_commit"], row["_ordinal"]) not in parked
            ]
        )
        return result.failures

    def give_baseline(
        self, pipeline: Pipeline, part: SegmentGroup, take: Callable[[Any, int], None]
    ) -> tuple[Failure, ...]:
        (loaded,) = self.baseline(pipeline, part)
        take([row["id"] for row in loaded.rows.to_pylist()], 1)
        return loaded.failures


class Taking:
    """Keeps what it is given; raises afterwards as often as it is told."""

    traits = TargetTraits("taking", durable=True, keyed=False, transactional=False)

    def __init__(self) -> None:
        self.given: list[tuple[FrameBatch, list[int]]] = []
        self.failures = 0

    def write_frame(self, frame: Any, batch: FrameBatch) -> None:
        self.given.append((batch, frame))
        if self.failures:
            self.failures -= 1
            raise TargetError("The answer got lost")

    def check(self, tables: Mapping[str, TableSchema]) -> None: ...

    def open(self, tables: Mapping[str, TableSchema], at: Mapping[str, Position]) -> None: ...

    def load(self, table: str, baseline: int) -> Loading:
        raise AssertionError

    def write(self, batch: Batch) -> Position:
        raise AssertionError

    def row_count(self, table: str) -> int | None:
        return None

    def close(self) -> None: ...


def fails(pipeline: Pipeline, row: Row) -> str | None:
    return "X" if row["status"] == "bad" else None


@pytest.mark.meets("R25", "S3")
def test_a_baseline_comes_first_and_then_every_change_once(world: Stepping) -> None:
    world.put(1)
    world.put(2)
    target = Taking()
    run = world.run(Pipeline(world.source, "orders", target), FrameRunner(world.disk))
    world.settle(run)
    world.put(3)
    world.settle(run)
    world.put(4)
    world.settle(run)
    assert run.ready
    assert [(batch.baseline, rows) for batch, rows in target.given] == [
        (1, [1, 2]),
        (None, [3]),
        (None, [4]),
    ]
    ids = [batch.id for batch, _ in target.given]
    assert len(set(ids)) == 3
    assert ids[0] == "orders/orders/baseline-1/1"
    assert target.given[1][0].last < target.given[2][0].first


@pytest.mark.meets("R25")
def test_a_frame_whose_outcome_is_unknown_comes_again_as_it_was(world: Stepping) -> None:
    target = Taking()
    pipeline = Pipeline(world.source, "orders", target)
    run = world.run(pipeline, FrameRunner(world.disk, fails))
    world.settle(run)
    del target.given[:]
    world.put(1)
    world.put(2, "bad")
    target.failures = 1
    assert run.step() not in (None, IDLE)
    # A new life, and more to take.
    world.put(2, "good")
    world.put(3)
    run = world.run(pipeline, FrameRunner(world.disk, fails))
    world.settle(run)
    first, again, last = target.given
    assert first == again
    assert first[1] == [1]
    assert last[1] == [3]
    assert [letter.kind for letter in run.delivery.dead_letters.all()] == ["failed", "behind"]


@pytest.mark.meets("R30")
def test_a_reload_gives_the_rows_anew_and_supersedes_the_letters(world: Stepping) -> None:
    bad = {"bad"}
    runner = FrameRunner(world.disk, lambda pipeline, row: "X" if row["status"] in bad else None)
    target = Taking()
    run = world.run(Pipeline(world.source, "orders", target), runner)
    world.settle(run)
    world.put(1, "bad")
    world.settle(run)
    assert run.delivery.dead_letter_count == 1
    bad.clear()
    run.ask_reload("orders", 1)
    world.settle(run)
    assert not run.reloading("orders")
    assert target.given[-1][0].baseline == 2
    assert target.given[-1][1] == [1]
    assert run.delivery.dead_letter_count == 0
    world.put(1, "good")
    world.settle(run)
    assert target.given[-1][1] == [1]
    assert run.delivery.dead_letter_count == 0


@pytest.mark.meets("R11", "R25")
def test_a_reload_of_a_table_that_was_emptied_is_told_by_a_piece_without_rows(
    world: Stepping,
) -> None:
    target = Taking()
    run = world.run(Pipeline(world.source, "orders", target), FrameRunner(world.disk))
    world.settle(run)
    world.put(1)
    world.settle(run)
    world.source.emit_truncate("orders")
    world.flush()
    run.ask_reload("orders", 1)
    world.settle(run)
    told = [(batch.id, batch.baseline, rows) for batch, rows in target.given]
    assert told[0] == ("orders/orders/baseline-1/1", 1, [])
    assert told[1][1:] == (None, [1])
    assert told[-1] == ("orders/orders/baseline-2/1", 2, [])


def test_a_runner_without_frames_is_refused(world: Stepping) -> None:
    with pytest.raises(BadTransform):
        world.run(Pipeline(world.source, "orders", Taking()))


class PieceRunner(FrameRunner):
    """Gives a baseline in pieces of one row."""

    def give_baseline(
        self, pipeline: Pipeline, part: SegmentGroup, take: Callable[[Any, int], None]
    ) -> tuple[Failure, ...]:
        (loaded,) = self.baseline(pipeline, part)
        for number, row in enumerate(loaded.rows.to_pylist()):
            take([row["id"]], number + 1)
        return loaded.failures


def test_a_function_is_given_no_further_piece_once_nobody_waits_for_its_pipeline(
    world: Stepping,
) -> None:
    for key in (1, 2, 3):
        world.put(key)
    world.take_baseline()
    target = Taking()
    run = world.run(Pipeline(world.source, "orders", target), PieceRunner(world.disk))
    write = target.write_frame

    def last(frame: Any, batch: FrameBatch) -> None:
        write(frame, batch)
        run.abandon()  # the engine has stopped; a session that the user brought goes on

    target.write_frame = last  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        while True:
            run.step()
    assert [rows for _, rows in target.given] == [[1]]
    assert run.context.store.state("orders", "orders") == ("loading", 1)
