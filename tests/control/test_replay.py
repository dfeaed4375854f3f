"""A part of the log goes to another target, and the pipeline itself does not notice."""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.changelog.position import Position
from headrace.changelog.ranges import after, before
from headrace.engine.engine import Engine
from headrace.engine.replay import ReplayProgress, replay_log
from headrace.errors import (
    AlreadyStored,
    BadTransform,
    ChangesMissing,
    CorruptSegment,
    NotRunning,
    PositionExpired,
    StorageError,
    TargetError,
    TooManyFailed,
    UnknownPart,
)
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.foreach import foreach_batch
from headrace.pipeline.steps import drop, equals, rename
from headrace.runtime.store import stored_progress
from headrace.targets.files import JsonLines, ParquetFolder, _Written, target_named
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.target import Batch
from tests.control.stepping import Stepping
from tests.control.test_gaps import replace_history
from tests.support.arrow_runner import ArrowRunner, Row
from tests.support.shop import PATIENCE, Market, Shop, await_seen, await_that

Rows = dict[object, dict[str, object]]


def rows_of(target: IndexedMemory, table: str = "orders") -> Rows:
    return {row["id"]: dict(row) for row in target.table(table).all()}


def paid(rows: Mapping[int, dict[str, object]]) -> Rows:
    return {key: row for key, row in rows.items() if row["status"] == "paid"}


def json_rows(stream: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


# --- the past, at any position ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_up_to_any_position_it_is_what_the_pipeline_held_then(seed: int, market: Market) -> None:
    chance = random.Random(seed)
    live = memory()
    pipeline = market.pipeline(live, filters=[equals("status", "paid")])
    truth: dict[int, Rows] = {}
    with market.engine(pipeline) as engine:
        assert engine.await_ready(PATIENCE)
        first = market.source.position.commit
        truth[first] = paid(market.truth())
        for _ in range(12):
            # Some at a time, so that flushes hold several commits.
            for _ in range(chance.randint(1, 4)):
                key = chance.randint(1, 14)
                match chance.random():
                    case n if n < 0.07:
                        market.source.emit_truncate("orders")
                    case n if n < 0.3 and (key,) in market.source.rows("orders"):
                        market.source.emit_delete("orders", key)
                    case n:
                        market.put(
                            "orders", key, "paid" if n < 0.8 else "open", chance.randint(1, 9)
                        )
                truth[market.source.position.commit] = paid(market.truth())
            if chance.random() < 0.5:
                assert market.recorded(engine)
        assert market.recorded(engine)
        for commit, wanted in truth.items():
            target = memory()
            done = engine.replay("orders", target, end=Position(1, commit, 0))
            assert rows_of(target) == wanted, commit
            assert done.rows == len(wanted)
        whole = memory()
        assert engine.replay("orders", whole).position == engine.source_info("shop").end
        assert rows_of(whole) == paid(market.truth())


def test_changes_alone_are_those_between_the_ends_both_included(market: Market) -> None:
    live = memory()
    with market.engine(market.pipeline(live)) as engine:
        assert engine.await_ready(PATIENCE)
        start = market.source.position.commit + 1
        for key in range(20, 26):
            market.put("orders", key)
        assert market.recorded(engine)
        target = memory()
        first, last = Position(1, start + 1), Position(1, start + 3)
        done = engine.replay("orders", target, start=first, end=last)
        assert set(rows_of(target)) == {21, 22, 23}
        assert (done.changes, done.baseline_rows, done.rows) == (3, 0, 3)
        assert (done.first, done.position) == (first, last)
        assert target.position == last
        # Nothing lies there: that is no error, and an empty table.
        nothing = memory()
        assert engine.replay("orders", nothing, start=after(last), end=last).changes == 0
        assert nothing.count() == 0


def test_times_are_places_too(tmp_path: Path) -> None:
    market = Market(tmp_path)
    clock = [1_000.0]
    market.source._clock = lambda: clock[0]
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        for key in range(20, 25):
            clock[0] += 10
            market.put("orders", key)
        assert market.recorded(engine)
        target = memory()
        at = datetime(1970, 1, 1, tzinfo=UTC)
        engine.replay(
            "orders", target, start=at + timedelta(seconds=1_020), end=at + timedelta(seconds=1_040)
        )
        assert set(rows_of(target)) == {21, 22, 23}


def test_several_tables_end_at_one_position_and_patterns_count(tmp_path: Path) -> None:
    market = Market(tmp_path, ("orders", "items"))
    with market.engine(market.pipeline(memory(), "orders", "items", name="both")) as engine:
        assert engine.await_ready(PATIENCE)
        for key in range(20, 24):
            with market.source.transaction():
                market.put("orders", key)
                market.put("items", key + 100)
        assert market.recorded(engine)
        target, stream = memory(), io.BytesIO()
        done = engine.replay("both", target, end=Position(1, market.source.position.commit - 1, 9))
        assert done.tables == ("orders", "items")
        assert set(rows_of(target, "orders")) == {*range(1, 11), 20, 21, 22}
        assert set(rows_of(target, "items")) == {*range(1, 11), 120, 121, 122}
        engine.replay("both", JsonLines(stream))
        positions = [each["position"] for each in json_rows(stream) if each["position"]]
        assert positions == sorted(positions)
        assert len(positions) == 8


# --- next to the live one ------------------------------------------------------------------------


def test_the_live_pipeline_its_progress_and_its_target_are_not_touched(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    live = memory()
    with shop.engine(shop.pipeline(live)) as engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(20, 30))
        assert await_seen(lambda: live.count() == 20)
        before_it, info = live.position, engine.pipeline_info("orders")
        notified: list[object] = []
        stop = live.listen(lambda old, new: notified.append(new))
        reports: list[ReplayProgress] = []
        done = engine.replay("orders", "memory", on_progress=reports.append)
        assert (done.rows, done.baseline_rows, done.changes) == (20, 10, 10)
        assert isinstance(done.target, IndexedMemory)
        assert rows_of(done.target) == shop.truth()
        now = engine.pipeline_info("orders")
        assert (now.batches, now.jobs, now.changes) == (info.batches, info.jobs, info.changes)
        assert (live.position, live.count(), notified) == (before_it, 20, [])
        assert engine.is_ready()
        assert [(each.rows, each.changes) for each in reports][-1] == (10, 10)
        assert {(each.of_rows, each.of_changes) for each in reports} == {(10, 10)}
        # It goes on, and the replayed one does not.
        shop.insert(range(40, 42))
        assert await_seen(lambda: live.count() == 22)
        assert done.target.count() == 20
        stop()
    (stored,) = stored_progress(shop.data)
    assert stored.pipeline == "orders"
    shop.close()


def test_the_progress_of_several_tables_never_goes_back(tmp_path: Path) -> None:
    market = Market(tmp_path, ("orders", "items"))
    paid_only = [equals("status", "paid")]
    both = market.pipeline(memory(), "orders", "items", name="both", filters=paid_only)
    with market.engine(both) as engine:
        assert engine.await_ready(PATIENCE)
        # Baselines from different positions, of which a filter leaves out rows.
        market.put("orders", 1, "open")
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        reports: list[ReplayProgress] = []
        done = engine.replay("both", "memory", on_progress=reports.append)
        assert done.baseline_rows == 19
    rows = [each.rows for each in reports]
    assert rows == sorted(rows)
    assert rows[0] <= 10, "the rows of the first table were taken for those of both"
    assert (rows[-1], reports[-1].of_rows) == (20, 20)
    positions = [each.position for each in reports]
    assert positions == sorted(positions)


def test_two_replays_of_one_pipeline_go_on_at_the_same_time(market: Market) -> None:
    meet = threading.Barrier(2, timeout=PATIENCE)

    class Meeting(ArrowRunner):
        def prepare(self, pipeline: Pipeline, traits: Any, name: str | None = None) -> Any:
            prepared: Any = super().prepare(pipeline, traits, name)
            if (name or "").endswith(".replay"):
                baseline = prepared.baseline
                prepared.baseline = lambda part: (meet.wait(), baseline(part))[1]
            return prepared

    with market.engine(market.pipeline(memory()), runner=Meeting()) as engine:
        assert engine.await_ready(PATIENCE)
        targets = [memory(), memory()]
        threads = [
            threading.Thread(target=engine.replay, args=("orders", target)) for target in targets
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert [target.count() for target in targets] == [10, 10]


def test_what_cannot_be_replayed_into_is_refused(market: Market) -> None:
    live = memory()
    engine = market.engine(market.pipeline(live))
    with pytest.raises(NotRunning):
        engine.replay("orders", memory())
    with engine:
        assert engine.await_ready(PATIENCE)
        with pytest.raises(BadTransform, match="belongs to a pipeline"):
            engine.replay("orders", live)
        with pytest.raises(BadTransform, match="cannot write DataFrames"):
            engine.replay("orders", foreach_batch(lambda frame, batch: None))
        with pytest.raises(UnknownPart, match="Unknown target"):
            engine.replay("orders", "parquet:")
        with pytest.raises(NotRunning, match="No such pipeline"):
            engine.replay("others", memory())
    with pytest.raises(NotRunning, match="stopped"):
        engine.replay("orders", memory())


# --- what is not there --------------------------------------------------------------------------


def test_an_end_before_the_baseline_is_exact_and_a_start_before_the_log_are_expired(
    market: Market,
) -> None:
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 20)
        assert market.recorded(engine)
        early = Position(1, 1)
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        with pytest.raises(PositionExpired, match="newer than the requested end"):
            engine.replay("orders", memory(), end=before(early))
        with pytest.raises(PositionExpired, match="begins after this position"):
            engine.replay("orders", memory(), start=Position(0, 5))


@pytest.mark.meets("R1")
def test_a_gap_in_between_is_refused_before_anything_is_given() -> None:
    world = Stepping()
    world.put(1)
    world.take_baseline()
    target = memory()
    pipeline = Pipeline(world.source, "orders", target)
    run = world.run(pipeline)
    world.settle(run)
    replace_history(world)
    world.settle(run)
    from headrace.engine.replay import Replay

    def replayed(start: Position | None) -> IndexedMemory:
        into = memory()
        prepared = ArrowRunner(world.disk).prepare(pipeline, world.source.traits)
        Replay("orders", pipeline, into, world.log, prepared, print).run(start, None)
        return into

    with pytest.raises(ChangesMissing) as caught:
        replayed(Position(1, 1))
    gap = world.log.gap
    assert gap is not None
    assert caught.value.facts["position"] == gap.at
    # The newest baseline lies behind it.
    assert set(rows_of(replayed(None))) == {1, 77}


def flushed(engine: Engine, beyond: int) -> bool:
    return engine.source_info("shop").flushes > beyond


@pytest.mark.parametrize("into", ["memory", "jsonl"])
def test_a_damaged_segment_is_an_error_with_file_and_place(into: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.engine(shop.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        for key in (20, 21, 22):
            flushes = engine.source_info("shop").flushes
            shop.insert(range(key, key + 1))
            assert await_that(engine, partial(flushed, engine, flushes))
        files = sorted((shop.data / "log/shop/segments").glob("*.parquet"))
        changed = [file for file in files if "-b" not in file.name]
        changed[1].write_bytes(b"nonsense")
        stream, target = io.BytesIO(), memory()
        with pytest.raises(CorruptSegment) as caught:
            engine.replay("orders", target if into == "memory" else JsonLines(stream))
        assert caught.value.facts["file"] == str(changed[1])
        assert caught.value.facts["table"] == "orders"
        assert "position" in caught.value.facts
        # A table is shown whole, or not at all.
        assert target.row_count("orders") is None
    shop.close()


# --- rows that cannot be computed ---------------------------------------------------------------


def odd(pipeline: Pipeline, image: Row) -> str | None:
    return "DIVIDE_BY_ZERO" if image["version"] == 13 else None


@pytest.mark.meets("R30")
def test_a_row_that_fails_is_left_out_with_what_follows_it_and_no_letter_is_written(
    market: Market,
) -> None:
    live = memory()
    with market.engine(market.pipeline(live), runner=ArrowRunner(fails=odd)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 1, version=13)
        market.put("orders", 1, version=2)
        market.put("orders", 2, version=3)
        assert market.recorded(engine)
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        target = memory()
        done = engine.replay("orders", target)
        assert done.failed == 2
        # As the pipeline itself: the row stays as it was, and the others go on.
        assert rows_of(target) == rows_of(live)
        assert rows_of(target)[1]["version"] == 0
        assert len(engine.dead_letters()) == 2
        # A truncate ends it.
        market.source.emit_truncate("orders")
        market.put("orders", 1, version=5)
        assert market.recorded(engine)
        again = memory()
        engine.replay("orders", again)
        assert {key: row["version"] for key, row in rows_of(again).items()} == {1: 5}


@pytest.mark.meets("R30")
@pytest.mark.parametrize("into", ["memory", "jsonl"])
def test_a_truncate_after_the_end_does_not_bring_back_what_follows_a_failed_row(
    into: str, market: Market
) -> None:
    with market.engine(market.pipeline(memory()), runner=ArrowRunner(fails=odd)) as engine:
        assert engine.await_ready(PATIENCE)
        # One flush, so that the truncate is in the batch that the replay ends in.
        with market.source.transaction():
            market.put("orders", 1, version=13)
            market.put("orders", 1, version=2)
            market.source.emit_truncate("orders")
        assert market.recorded(engine)
        stream, target = io.BytesIO(), memory()
        last = Position(1, market.source.position.commit, 1)
        done = engine.replay("orders", target if into == "memory" else JsonLines(stream), end=last)
        assert done.failed == 2
        if into == "memory":
            assert rows_of(target)[1]["version"] == 0
        else:
            assert [each for each in json_rows(stream) if each["position"]] == []


def test_more_than_the_pipeline_allows_end_the_replay(market: Market) -> None:
    market.source.add_row("orders", {"id": 50, "status": "paid", "version": 13})
    market.source.add_row("orders", {"id": 51, "status": "paid", "version": 13})
    few = DeadLetters(max_per_batch=5, max_keys=1)
    lenient = [True]

    def fails(pipeline: Pipeline, image: Row) -> str | None:
        return None if lenient[0] else odd(pipeline, image)

    engine = market.engine(market.pipeline(memory(), on_error=few), runner=ArrowRunner(fails=fails))
    with engine:
        assert engine.await_ready(PATIENCE)
        lenient[0] = False
        target = memory()
        with pytest.raises(TooManyFailed):
            engine.replay("orders", target)
        assert target.row_count("orders") is None


# --- into files ---------------------------------------------------------------------------------


def played(market: Market, target: Any, **steps: Any) -> None:
    """Replay a small history into a target: a baseline, then every kind of change."""
    with market.engine(market.pipeline(memory(), **steps)) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            market.put("orders", 20, version=1)
            market.put("orders", 21, version=2)
            market.source.emit_delete("orders", 1)
            market.source.emit_truncate("orders")
            market.put("orders", 30, version=3)
        market.put("orders", 30, "open")
        assert market.recorded(engine)
        engine.replay("orders", target)


WANTED = [
    ("insert", 20),
    ("insert", 21),
    ("delete", 1),
    ("truncate", None),
    ("insert", 30),
    ("delete", 30),
]


def test_lines_of_json_have_every_change_also_those_before_a_truncate(market: Market) -> None:
    stream = io.BytesIO()
    played(market, JsonLines(stream), filters=[equals("status", "paid")])
    found = json_rows(stream)
    assert {(each["op"], each["row"]["id"]) for each in found[:10]} == {
        ("insert", key) for key in range(1, 11)
    }
    assert {(each["position"], each["baseline"]) for each in found[:10]} == {(None, 1)}
    assert [(each["op"], each["row"] and each["row"]["id"]) for each in found[10:]] == WANTED
    positions = [each["position"] for each in found[10:]]
    assert positions == sorted(positions)
    assert found[12]["row"] == {"id": 1}
    assert found[10]["row"] == {"id": 20, "status": "paid", "version": 1}
    assert datetime.fromisoformat(found[10]["time"]).utcoffset() == timedelta(0)
    assert {each["table"] for each in found} == {"orders"}


def test_a_folder_of_parquet_files_has_the_same(market: Market, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    played(market, ParquetFolder(folder), transforms=[rename(version="n"), drop("status")])
    files = sorted((folder / "orders").iterdir())
    assert {file.suffix for file in files} == {".parquet"}
    assert files[0].name == "baseline-000001.parquet"
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert list(rows[0]) == ["id", "n", "_op", "_position", "_commit", "_ordinal", "_time"]
    assert {row["_op"] for row in rows[:10]} == {"insert"}
    assert {row["_position"] for row in rows[:10]} == {None}
    changes = [(row["_op"], row["id"]) for row in rows[10:]]
    assert changes == [*WANTED[:-1], ("update", 30)]
    positions = [row["_position"] for row in rows[10:]]
    assert positions == sorted(positions)
    assert [Position.parse(each).commit for each in positions] == [
        row["_commit"] for row in rows[10:]
    ]
    with pytest.raises(TargetError, match="not empty"):
        ParquetFolder(folder).check({})


def test_a_column_with_the_name_of_one_of_ours_is_refused(tmp_path: Path) -> None:
    from tests.changelog.log_making import table

    with pytest.raises(BadTransform, match="name that Headrace uses"):
        ParquetFolder(tmp_path).check({"t": table("t", id="int64", _op="text")})


def test_a_target_can_be_given_by_name(tmp_path: Path) -> None:
    assert isinstance(target_named("memory"), IndexedMemory)
    lines = target_named(f"jsonl:{tmp_path}/out.jsonl")
    assert isinstance(lines, JsonLines)
    assert not (tmp_path / "out.jsonl").exists()
    lines.open({}, {})
    lines.close()
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    with pytest.raises(AlreadyStored):
        lines.open({}, {})
    with pytest.raises(StorageError):
        target_named(f"jsonl:{tmp_path}").open({}, {})
    assert isinstance(target_named("parquet:out"), ParquetFolder)


def test_what_is_written_down_is_told_by_whoever_is_a_target_of_the_kind() -> None:
    class Half(_Written):
        type = "half"

        def _changes(self, batch: Batch) -> None:
            raise AssertionError

    # Not when the first baseline comes.
    with pytest.raises(TypeError, match="_baseline"):
        Half()  # type: ignore[abstract]


# --- without an engine --------------------------------------------------------------------------


def test_a_log_is_replayed_without_an_engine_and_beside_one(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    pipeline = shop.pipeline(memory(), "orders")
    with shop.engine(pipeline) as engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(20, 30))
        assert await_seen(lambda: pipeline.target.row_count("orders") == 20)
        second = memory()
        replay_log(shop.data, "orders", pipeline, second, ArrowRunner())
        assert rows_of(second) == shop.truth()
        assert engine.is_ready()
    alone = memory()
    replay_log(shop.data, "orders", pipeline, alone, ArrowRunner())
    assert rows_of(alone) == shop.truth()
    shop.close()
