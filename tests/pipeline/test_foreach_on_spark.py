"""A user's function as a target: the content of its frames, and the causes of errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import foreach_batch
from headrace.changelog.position import Position
from headrace.errors import (
    BadFrame,
    BadTransform,
    FunctionFailed,
    HeadraceError,
    JobFailed,
    RefusedRow,
    RowFailed,
    RowRefused,
    RowsRefused,
    TargetError,
    TooManyFailed,
)
from headrace.pipeline.batch import BatchFacts, GivesFrames, SegmentGroup
from headrace.pipeline.definition import DeadLetters
from headrace.pipeline.foreach import ForeachBatch
from headrace.pipeline.result import Failure, RowReference
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, frame, function, rename, where
from headrace.targets.target import FrameBatch, TakesFrames
from tests.pipeline.making import (
    ORDERS,
    TRAITS,
    batch,
    delete,
    insert,
    order,
    pipeline,
    table,
    truncate,
    update,
)
from tests.pipeline.planned import ready

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark_session.session import Spark

ABOUT = FrameBatch("orders/1", "orders", "orders", Position(1, 1), Position(1, 99))


def alone(failures: Sequence[Failure]) -> frozenset[RowReference]:
    """Nothing follows the failed rows by key."""
    return frozenset(failure.reference for failure in failures)


class Taken:
    """A function that keeps what it is given, in the order of the log."""

    def __init__(self) -> None:
        self.frames: list[list[dict[str, Any]]] = []
        self.columns: list[str] = []

    def __call__(self, frame: DataFrame, about: object = None) -> None:
        rows = frame.orderBy("_position", "_op").collect()
        self.columns = frame.columns
        self.frames.append([row.asDict() for row in rows])

    def row_tuples(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in self.frames[-1]]


# --- the target itself: no JVM ------------------------------------------------------------


def test_it_says_what_it_is_and_takes_frames_only() -> None:
    target = foreach_batch(Taken())
    assert isinstance(target, TakesFrames)
    traits = target.traits
    assert (traits.type, traits.durable, traits.keyed, traits.transactional) == (
        "foreach-batch", True, False, False,
    )  # fmt: skip
    target.check({"orders": ORDERS})
    target.open({"orders": ORDERS}, {})
    assert target.row_count("orders") is None
    with pytest.raises(TargetError, match="only DataFrames"):
        target.load("orders", 1)
    batch_: Any = object()
    with pytest.raises(TargetError, match="only DataFrames"):
        target.write(batch_)
    target.close()


@pytest.mark.parametrize("name", ["_op", "_position", "_commit", "_ordinal", "_time"])
def test_a_table_with_a_column_of_our_names_is_refused(name: str) -> None:
    with pytest.raises(BadTransform, match=name) as caught:
        foreach_batch(Taken()).check({"t": table(("id", "int64"), (name, "text"))})
    assert "rename" in caught.value.remedy


def test_what_a_function_raises_is_told_by_kind_and_never_by_text() -> None:
    def fn(frame: DataFrame, about: FrameBatch) -> None:
        raise ValueError("secret")

    frame: Any = object()
    with pytest.raises(FunctionFailed) as caught:
        foreach_batch(fn).write_frame(frame, ABOUT)
    assert caught.value.facts == {"error": "ValueError", "pipeline": "orders", "batch": "orders/1"}
    assert "fn" in caught.value.message
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_interrupt_passes_through_a_function() -> None:
    def fn(frame: DataFrame, about: FrameBatch) -> None:
        raise KeyboardInterrupt

    frame: Any = object()
    with pytest.raises(KeyboardInterrupt):
        foreach_batch(fn).write_frame(frame, ABOUT)


# --- its frames ----------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.meets("S17")
def test_a_frame_tells_what_happened_and_where(spark: Spark, tmp_path: Path) -> None:
    runner = SparkRunner(spark)
    what = pipeline(
        filters=[where("qty > 0")], transforms=[rename(id="number"), derive(twice="qty * 2")]
    )
    prepared = runner.prepare(what, TRAITS)
    assert isinstance(prepared, GivesFrames)
    prepared.output(ORDERS)
    changes = [
        insert(1, order(1)),
        truncate(2),
        insert(3, order(2)),
        update(4, order(2), order(3), 7),
        update(5, order(3), order(3, 0)),
        insert(6, order(4, 0)),
        update(255, order(5), order(5, 9)),
        delete(2**40, order(5, 9)),
    ]
    parts, facts = batch(tmp_path, ORDERS, changes)
    taken = Taken()
    facts = replace(facts, first=Position(10, 1), last=Position(10, 2**40))
    assert prepared.give(parts, facts, alone, taken) == ()
    assert taken.columns == [
        "number", "status", "qty", "price", "twice",
        "_op", "_position", "_commit", "_ordinal", "_time",
    ]  # fmt: skip
    assert taken.row_tuples("_op", "_commit", "_ordinal", "number", "status", "twice") == [
        ("insert", 1, 0, 1, "paid", 4),
        ("truncate", 2, 0, None, None, None),
        ("insert", 3, 0, 2, "paid", 4),
        ("delete", 4, 7, 2, None, None),
        ("update", 4, 7, 3, "paid", 4),
        ("delete", 5, 0, 3, None, None),
        ("update", 255, 0, 5, "paid", 18),
        ("delete", 2**40, 0, 5, None, None),
    ]
    positions = [row["_position"] for row in taken.frames[0]]
    places = [(row["_commit"], row["_ordinal"]) for row in taken.frames[0]]
    assert positions == [str(Position(10, *place)) for place in places]
    moment = taken.frames[0][0]["_time"].astimezone(UTC)
    assert moment == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


@pytest.mark.spark
def test_two_schema_versions_come_in_the_shape_of_the_last(spark: Spark, tmp_path: Path) -> None:
    wider = table(
        ("id", "int64"), ("note", "text"), ("qty", "int64"), ("price", "decimal(12,2)")
    )  # fmt: skip
    old, first = batch(tmp_path, ORDERS, [insert(1, order(1)), insert(4, order(4))])
    new, second = batch(tmp_path, wider, [insert(2, {"id": 2, "note": "n", "qty": 2**40})])
    runner, what, taken = SparkRunner(spark), pipeline(), Taken()
    prepared = runner.prepare(what, TRAITS)
    prepared.output(ORDERS)
    facts = replace(first, rows=first.rows + second.rows)
    prepared.give([*old, *new], facts, alone, taken)
    assert taken.columns[:4] == ["id", "note", "qty", "price"]
    assert taken.row_tuples("_commit", "id", "note", "qty") == [
        (1, 1, None, 2),
        (2, 2, "n", 2**40),
        (4, 4, None, 2),
    ]


@pytest.mark.spark
@pytest.mark.meets("S17", "S2")
def test_a_baseline_comes_in_pieces_as_inserts_without_positions(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.pipeline.runner.BASELINE_ROWS", 20)
    what = pipeline(filters=[where("qty > -1")], transforms=[derive(x="100 / qty")])
    prepared = ready(spark, what)
    segments = [
        [insert(0, order(s * 10 + at, 0 if (s, at) == (2, 3) else 2)) for at in range(10)]
        for s in range(3)
    ]
    parts, _ = batch(tmp_path, ORDERS, *segments)
    taken = Taken()
    pieces: list[int] = []

    def take(frame: DataFrame, piece: int) -> None:
        taken(frame)
        pieces.append(piece)

    failures = prepared.give_baseline(parts[0], take)
    place = {"step": "transform 1", "column": "x"}
    assert failures == (Failure((2, 3), "DIVIDE_BY_ZERO", place),)
    assert pieces == [1, 2]
    assert {len(frame) for frame in taken.frames} == {20, 9}
    rows = [row for frame in taken.frames for row in frame]
    assert sorted(row["id"] for row in rows) == [at for at in range(30) if at != 23]
    assert {(row["_op"], row["_position"], row["_commit"], row["_time"]) for row in rows} == {
        ("insert", None, None, None)
    }
    assert taken.columns[-5:] == ["_op", "_position", "_commit", "_ordinal", "_time"]


@pytest.mark.spark
@pytest.mark.meets("S17")
@pytest.mark.parametrize("step", ["sql", "function", "frame"])
def test_a_baseline_without_rows_is_one_piece_with_all_columns(
    spark: Spark, tmp_path: Path, step: str
) -> None:
    made = {
        "sql": derive(x="100D / qty"),
        "function": function(inverse, columns={"x": "double"}),
        "frame": frame(lambda df: df.withColumn("x", 100 / df.qty)),
    }
    what = pipeline(filters=[where("qty > -1")], transforms=[made[step]])
    prepared = ready(spark, what)
    pieces: list[int] = []
    schemas = []

    def take(frame: DataFrame, piece: int) -> None:
        pieces.append(piece)
        schemas.append(frame.dtypes)
        frame.write.mode("overwrite").parquet(str(tmp_path / "out"))

    assert prepared.give_baseline(SegmentGroup(ORDERS, ()), take) == ()
    parts, _ = batch(tmp_path, ORDERS, [insert(0, order(1, 2))])
    assert prepared.give_baseline(parts[0], take) == ()
    assert pieces == [1, 1]
    assert schemas[0] == schemas[1]


# --- whose fault ---------------------------------------------------------------------------


def bad_batch(folder: Path) -> tuple[Any, BatchFacts]:
    rows = [order(at, 0 if at == 7 else 2) for at in range(1, 21)]
    return batch(folder, ORDERS, [insert(row["id"], row) for row in rows])


@pytest.mark.spark
@pytest.mark.meets("S2", "R30")
@pytest.mark.parametrize("written", [False, True], ids=["collected", "written"])
def test_a_row_of_ours_that_fails_in_the_function_is_left_out_with_what_follows_it(
    spark: Spark, tmp_path: Path, written: bool
) -> None:
    what = pipeline(transforms=[derive(x="100 / qty")])
    prepared = ready(spark, what)
    log = tmp_path / "log"
    log.mkdir()
    parts, facts = bad_batch(log)
    taken, calls = Taken(), [0]

    def fn(frame: DataFrame, about: FrameBatch) -> None:
        calls[0] += 1
        if written:
            frame.write.mode("overwrite").parquet(str(tmp_path / "out"))
            frame = frame.sparkSession.read.parquet(str(tmp_path / "out"))
        taken(frame)

    asked: list[tuple[Failure, ...]] = []

    def behind(failures: Sequence[Failure]) -> frozenset[RowReference]:
        asked.append(tuple(failures))
        return frozenset({(7, 0), (9, 0)})

    target = foreach_batch(fn)
    given = replace(facts, without=frozenset({(1, 0)}))
    failures = prepared.give(parts, given, behind, lambda frame: target.write_frame(frame, ABOUT))
    place = {"step": "transform 1", "column": "x"}
    assert failures == (Failure((7, 0), "DIVIDE_BY_ZERO", place),)
    assert asked == [failures]
    assert calls == [2]
    assert [id for (id,) in taken.row_tuples("id")] == [
        at for at in range(2, 21) if at not in (7, 9)
    ]


@pytest.mark.spark
@pytest.mark.meets("S2")
def test_a_function_whose_own_expressions_fail_is_to_blame_and_no_row(
    spark: Spark, tmp_path: Path
) -> None:
    what = pipeline()
    prepared = ready(spark, what)
    parts, facts = bad_batch(tmp_path)

    def divides(frame: DataFrame, about: FrameBatch) -> None:
        frame.selectExpr("100 / qty").collect()

    def misspells(frame: DataFrame, about: FrameBatch) -> None:
        frame.select("nothing").collect()

    def python(frame: DataFrame, about: FrameBatch) -> None:
        frame.mapInArrow(lambda batches: (1 / 0 for _ in batches), "id bigint").collect()

    for target in map(foreach_batch, (divides, misspells, python)):

        def take(frame: DataFrame, target: ForeachBatch = target) -> None:
            target.write_frame(frame, ABOUT)

        with pytest.raises(FunctionFailed):
            prepared.give(parts, facts, alone, take)


def inverse(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": 100 / row["qty"]}


@pytest.mark.spark
@pytest.mark.meets("S2", "S10")
def test_rows_that_a_python_function_refuses_are_left_out_from_the_first_call(
    spark: Spark, tmp_path: Path
) -> None:
    what = pipeline(transforms=[function(inverse, columns={"x": "double"})])
    prepared = ready(spark, what)
    parts, facts = bad_batch(tmp_path)
    taken = Taken()
    [failure] = prepared.give(parts, facts, alone, taken)
    assert (failure.reference, failure.code) == ((7, 0), "FUNCTION_FAILED")
    [frame] = taken.frames
    assert [row["id"] for row in frame] == [at for at in range(1, 21) if at != 7]
    assert frame[0]["x"] == 50.0
    [failure] = prepared.give_baseline(parts[0], taken)
    assert failure.reference == (0, 6)
    assert len(taken.frames[-1]) == 19


@pytest.mark.spark
@pytest.mark.meets("S17")
def test_a_function_of_frames_that_loses_rows_is_found_before_the_target_is_called(
    spark: Spark, tmp_path: Path
) -> None:
    runner = SparkRunner(spark)
    parts, facts = bad_batch(tmp_path)
    keeps = pipeline(transforms=[frame(lambda df: df.withColumn("x", df.qty + 1))])
    loses = pipeline(transforms=[frame(lambda df: df.where("id <> 3"))])
    taken = Taken()
    keeping, losing = (runner.prepare(what, TRAITS) for what in (keeps, loses))
    for prepared in (keeping, losing):
        prepared.output(ORDERS)
    keeping.give(parts, facts, alone, taken)
    keeping.give_baseline(parts[0], taken)
    assert [len(each) for each in taken.frames] == [20, 20]
    assert {row["x"] for each in taken.frames for row in each} == {1, 3}
    with pytest.raises(BadFrame):
        losing.give(parts, facts, alone, taken)
    with pytest.raises(BadFrame):
        losing.give_baseline(parts[0], taken)
    assert len(taken.frames) == 2


@pytest.mark.spark
@pytest.mark.meets("S2")
def test_sparks_own_trouble_in_a_function_is_the_jobs(spark: Spark, tmp_path: Path) -> None:
    what = pipeline()
    prepared = ready(spark, what)
    parts, facts = bad_batch(tmp_path)

    def fn(frame: DataFrame, about: FrameBatch) -> None:
        Path(parts[0].paths[0]).unlink()
        frame.collect()

    target = foreach_batch(fn)
    with pytest.raises(JobFailed) as caught:
        prepared.give(parts, facts, alone, lambda frame: target.write_frame(frame, ABOUT))
    assert str(caught.value.facts["condition"]).startswith("FAILED_READ_FILE")


@pytest.mark.spark
def test_a_pipeline_that_is_to_stop_stops_before_the_function_is_called_again(
    spark: Spark, tmp_path: Path
) -> None:
    what = pipeline(transforms=[derive(x="100 / qty")], on_error="stop")
    prepared = ready(spark, what)
    parts, facts = bad_batch(tmp_path)
    taken = Taken()
    with pytest.raises(RowFailed) as caught:
        prepared.give(parts, facts, alone, taken)
    assert caught.value.facts["commit"] == 7
    assert taken.frames == []


# --- rows that the function refuses --------------------------------------------------------


@pytest.mark.spark
@pytest.mark.meets("R30", "S17")
def test_rows_that_a_function_refuses_are_found_in_its_frame_and_left_out(
    spark: Spark, tmp_path: Path
) -> None:
    what = pipeline(filters=[where("qty > 0")], transforms=[rename(id="number")])
    prepared = ready(spark, what)
    changes = [
        insert(1, order(1)),
        update(2, order(2), order(3), 7),
        *(insert(at, order(at)) for at in range(4, 8)),
        update(8, order(5), order(5, 9)),
    ]
    parts, facts = batch(tmp_path, ORDERS, changes)
    taken, calls = Taken(), [0]
    about = replace(ABOUT, key=("number",))

    def fn(df: DataFrame, batch: FrameBatch) -> None:
        calls[0] += 1
        if calls[0] == 1:
            # A key change is two rows with one position: either stands for both.
            raise RowsRefused.in_frame(df.where("_op = 'delete'"), "MOVED", rule="none moves")
        if calls[0] == 2:
            rows = df.where("number = 5").select(*batch.key).distinct().collect()
            raise RowsRefused.in_frame([*rows, str(Position(1, 6))], "409")
        taken(df)

    asked: list[tuple[Failure, ...]] = []

    def behind(failures: Sequence[Failure]) -> frozenset[RowReference]:
        asked.append(tuple(failures))
        return alone(failures) | {(8, 0)}

    target = foreach_batch(fn)
    found = prepared.give(parts, facts, behind, lambda frame: target.write_frame(frame, about))
    assert found == (
        Failure((2, 7), "MOVED", {"rule": "none moves"}),
        Failure((5, 0), "409"),
        Failure((6, 0), "409"),
    )
    assert asked == [found[:1], found]
    assert taken.row_tuples("number", "_commit") == [(1, 1), (4, 4), (7, 7)]


@pytest.mark.spark
@pytest.mark.meets("R30")
def test_rows_of_a_baseline_are_refused_by_key_and_their_piece_comes_again(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.pipeline.runner.BASELINE_ROWS", 20)
    what = pipeline(filters=[where("qty > -1")], transforms=[derive(x="100 / qty")])
    prepared = ready(spark, what)
    bad = {13: 0, 24: 7}
    segments = [
        [insert(0, order(s * 10 + at, bad.get(s * 10 + at, 2))) for at in range(10)]
        for s in range(3)
    ]
    parts, _ = batch(tmp_path, ORDERS, *segments)
    taken = Taken()
    pieces: list[int] = []
    told: list[tuple[Failure, ...]] = []

    def take(frame: DataFrame, piece: int) -> None:
        pieces.append(piece)
        if rows := frame.where("qty = 7").select("id", "_position").collect():
            raise RowsRefused.in_frame(rows, "SEVEN")
        taken(frame)

    def blocked(failures: Sequence[Failure]) -> frozenset[RowReference]:
        told.append(tuple(failures))
        return frozenset()

    failures = prepared.give_baseline(parts[0], take, blocked)
    assert [(each.reference, each.code) for each in failures] == [
        ((1, 3), "DIVIDE_BY_ZERO"),
        ((2, 4), "SEVEN"),
    ]
    assert pieces == [1, 1, 2, 2]
    assert told[-1] == failures
    ids = sorted(row["id"] for frame in taken.frames for row in frame)
    assert ids == [at for at in range(30) if at not in bad]

    def by_position(frame: DataFrame, piece: int) -> None:
        raise RowsRefused.in_frame([str(Position(0, 0, 0))])

    with pytest.raises(TargetError, match="not given"):
        prepared.give_baseline(parts[0], by_position)


@pytest.mark.spark
@pytest.mark.meets("R30")
def test_only_rows_of_the_frame_can_be_refused_and_no_more_than_the_pipeline_allows(
    spark: Spark, tmp_path: Path
) -> None:
    allowed = DeadLetters(max_per_batch=2)
    prepared = ready(spark, pipeline(filters=[where("qty > 0")], on_error=allowed))
    changes = [truncate(1), *(insert(at, order(at, int(at != 2))) for at in range(2, 7))]
    parts, facts = batch(tmp_path, ORDERS, changes)

    def given(prepared: GivesFrames, refused: RowsRefused) -> HeadraceError:
        def take(frame: DataFrame) -> None:
            raise refused

        with pytest.raises(HeadraceError) as caught:
            prepared.give(parts, facts, alone, take)
        return caught.value

    # One that was filtered out, the truncate, none that there is, another table's.
    for row in (str(Position(1, 2)), str(Position(1, 1)), {"id": 99}, {"id": 2}):
        error = given(prepared, RowsRefused.in_frame([row]))
        assert type(error) is TargetError
        assert "not given" in error.message
        assert "99" not in str(error)
    error = given(prepared, RowsRefused.of([RefusedRow("customers", {"id": 3})]))
    assert "not given" in error.message
    for refused in (
        RowsRefused.in_frame([{"id": "three"}]),
        RowsRefused.in_frame([{"status": "paid"}]),
        RowsRefused.of([]),
    ):
        assert type(given(prepared, refused)) is TargetError
    error = given(prepared, RowsRefused.in_frame([{"id": at} for at in (3, 4, 5)]))
    assert isinstance(error, TooManyFailed)
    assert (error.facts["found"], error.facts["limit"]) == (3, 2)
    stopping = ready(spark, pipeline(on_error="stop"))
    error = given(stopping, RowsRefused.in_frame([{"id": 3}], "409"))
    assert isinstance(error, RowRefused)
    assert (error.facts["table"], error.facts["reason"]) == ("orders", "409")


def test_a_function_that_raises_for_a_row_without_naming_it_has_failed() -> None:
    def fn(frame: DataFrame, about: FrameBatch) -> None:
        raise RowRefused("which one?")

    frame: Any = object()
    with pytest.raises(FunctionFailed) as caught:
        foreach_batch(fn).write_frame(frame, ABOUT)
    assert caught.value.facts["error"] == "RowRefused"
