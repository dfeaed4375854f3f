"""A target that takes frames: baseline first, then batches, each under an id of its own."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import pytest

from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.deadletters.ledger import Selection
from headrace.errors import BadTransform, Fenced, RowsRefused, TargetError
from headrace.pipeline.batch import BatchFacts, BlockedRows, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.foreach import FrameBatch
from headrace.pipeline.result import Failure, RowReference
from headrace.runtime.corrections import ReplayRequest
from headrace.runtime.pipeline_run import IDLE
from headrace.runtime.table_jobs import StagedBatches
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
        rows = [((row["_commit"], row["_ordinal"]), row["id"]) for row in result.rows.to_pylist()]
        failures = result.failures
        while True:
            parked = behind(failures) if failures else frozenset()
            try:
                take([id for reference, id in rows if reference not in parked])
            except RowsRefused as error:
                failures = (*failures, *refused_of(error, rows, parked))
            else:
                return failures

    def give_baseline(
        self,
        pipeline: Pipeline,
        part: SegmentGroup,
        take: Callable[[Any, int], None],
        blocked: BlockedRows | None = None,
    ) -> tuple[Failure, ...]:
        (loaded,) = self.baseline(pipeline, part)
        rows = [
            ((number, at), change["after"]["id"])
            for number, changes in enumerate(self._segments_of(part))
            for at, change in enumerate(changes)
        ]
        failures = loaded.failures
        while True:
            if failures and blocked is not None:
                blocked(failures)
            gone = {failure.reference for failure in failures}
            try:
                take([id for reference, id in rows if reference not in gone], 1)
            except RowsRefused as error:
                failures = (*failures, *refused_of(error, rows, gone))
            else:
                return failures


def refused_of(
    error: RowsRefused, rows: Sequence[tuple[RowReference, int]], gone: Container[RowReference]
) -> list[Failure]:
    """Return refused rows, named by their key, as Spark's runner finds them in a frame."""
    there: dict[int, RowReference] = {}
    for reference, id in rows:
        if reference not in gone:
            there.setdefault(id, reference)
    return [
        Failure(there[each.row["id"]], each.code, each.facts)  # type: ignore[index]
        for each in error.rows
    ]


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
        self,
        pipeline: Pipeline,
        part: SegmentGroup,
        take: Callable[[Any, int], None],
        blocked: BlockedRows | None = None,
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


# --- rows that the target refuses ----------------------------------------------------------


class Refusing(Taking):
    """Refuses some keys before it has any effect; a batch that it has finished is passed over."""

    def __init__(self, *refused: int) -> None:
        super().__init__()
        self.refused = set(refused)
        self.done: set[str] = set()
        self.offered: list[tuple[str, list[int]]] = []
        self.letters: Callable[[], int] = lambda: 0
        self.letters_at_effects: list[int] = []

    def write_frame(self, frame: Any, batch: FrameBatch) -> None:
        if batch.id in self.done:
            return
        assert batch.key == ("id",)
        self.offered.append((batch.id, frame))
        if bad := self.refused.intersection(frame):
            keys = [{"id": key} for key in sorted(bad)]
            raise RowsRefused.in_frame(keys, "409", answer="conflict")
        self.done.add(batch.id)
        self.letters_at_effects.append(self.letters())
        super().write_frame(frame, batch)


@pytest.mark.meets("R30", "ENG-46")
def test_rows_that_a_function_refuses_are_dead_letters_and_it_is_called_again_without_them(
    world: Stepping,
) -> None:
    target = Refusing(2)
    run = world.run(Pipeline(world.source, "orders", target), FrameRunner(world.disk))
    target.letters = lambda: run.delivery.dead_letter_count
    world.settle(run)
    world.put(1)
    world.put(2)
    world.put(2, "good")
    world.settle(run)
    world.put(2, "better")
    world.put(3)
    world.settle(run)
    assert not run.failed
    assert [rows for _, rows in target.given] == [[], [1], [3]]
    (first, offered), (again, rest) = target.offered[1:3]
    assert (offered, rest, first == again) == ([1, 2, 2], [1], True)
    letters = run.delivery.dead_letters.all()
    assert [(each.kind, each.key, each.code) for each in letters] == [
        ("failed", (2,), "409"),
        ("behind", (2,), ""),
        ("behind", (2,), ""),
    ]
    assert letters[0].facts == {"answer": "conflict"}
    assert target.letters_at_effects == [0, 2, 2]


@pytest.mark.meets("R30", "ENG-46")
def test_rows_of_a_baseline_that_a_function_refuses_hold_what_follows_them(
    world: Stepping,
) -> None:
    for key in (1, 2, 3):
        world.put(key)
    world.take_baseline()
    target = Refusing(2)
    run = world.run(Pipeline(world.source, "orders", target), FrameRunner(world.disk))
    target.letters = lambda: run.delivery.dead_letter_count
    world.settle(run)
    world.put(2, "good")
    world.put(3, "good")
    world.settle(run)
    assert [rows for _, rows in target.given] == [[1, 3], [3]]
    assert target.letters_at_effects == [1, 1]
    letters = run.delivery.dead_letters.all()
    assert [(each.kind, each.op, each.key, each.code) for each in letters] == [
        ("failed", "baseline", (2,), "409"),
        ("behind", "update", (2,), ""),
    ]


@pytest.mark.meets("R30", "R25")
@pytest.mark.parametrize("loaded", [False, True], ids=["changes", "a baseline"])
def test_a_refused_row_is_not_lost_with_a_batch_that_the_function_passes_over_the_next_time(
    world: Stepping, loaded: bool
) -> None:
    target = Refusing(2)
    pipeline = Pipeline(world.source, "orders", target)
    run = world.run(pipeline, FrameRunner(world.disk))
    if not loaded:
        world.settle(run)
    world.put(1)
    world.put(2)
    if loaded:
        world.take_baseline()
    target.failures = 1  # once, after its effect
    assert run.step() not in (None, IDLE)
    assert target.given[-1][1] == [1]
    run = world.run(pipeline, FrameRunner(world.disk))
    world.settle(run)
    assert [each.key for each in run.delivery.dead_letters.all()] == [(2,)]
    assert len(target.given) == (1 if loaded else 2)


def test_rows_that_executors_prepare_cannot_be_refused() -> None:
    class Lake:
        staged_from = 0

        def stage(self, table: str, frame: Any, epoch: int, emptied: Position | None) -> object:
            raise RowsRefused.in_frame([{"id": 1}])

    prepared: Any = None
    staging = StagedBatches("lake", Lake(), prepared, lambda: None)
    about = FrameBatch("1", "lake", "orders", Position(1, 1), Position(1, 2))
    with pytest.raises(TargetError, match="executors prepare") as caught:
        staging.write_frame(prepared, about)
    assert not isinstance(caught.value, RowsRefused)
    assert caught.value.facts == {"table": "orders"}


def test_a_replayed_change_is_given_under_an_id_of_its_own(world: Stepping) -> None:
    bad = {"bad"}
    world.put(1)
    target = Taking()
    runner = FrameRunner(world.disk, lambda _, row: "X" if row["status"] in bad else None)
    run = world.run(Pipeline(world.source, "orders", target), runner)
    world.settle(run)
    world.put(2, status="bad")
    world.put(3)
    world.settle(run)
    assert [rows for _, rows in target.given] == [[1], [3]]
    for outcome in ("failed", "applied"):
        request = ReplayRequest(Selection())
        run.corrections.ask(request)
        run.requests += 1
        world.settle(run)
        (found,) = request.answer.result(0)
        assert found.outcome == outcome
        bad.clear()
    assert [rows for _, rows in target.given][-1] == [2]
    ids = [batch.id for batch, _ in target.given]
    assert len(set(ids)) == len(ids)
    assert run.delivery.dead_letters.all() == ()
    world.put(4)
    world.settle(run)
    assert [rows for _, rows in target.given][-1] == [4]
