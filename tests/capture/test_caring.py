"""A recorder's care for its log: orders obeyed between reads, and nothing read while it is full."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from headrace.capture import log_maintenance
from headrace.capture.baselines import TRY_AGAIN_SECONDS, BaselineRequests
from headrace.capture.messages import (
    COMMANDS,
    Flushed,
    FlushNow,
    LagReport,
    MaintainLog,
    TakeBaseline,
    Warned,
)
from headrace.changelog import compaction
from headrace.changelog import compaction as folding
from headrace.changelog.position import Position
from headrace.testing.source import MemoryCopy, MemorySource
from tests.capture.test_recorder import TABLE, World, failures, flushes, states


@pytest.fixture
def world() -> World:
    made = World()
    made.step()
    return made


def at(commit: int) -> str:
    return str(Position(1, commit))


def order(world: World, prune: int = 0, **more: object) -> MaintainLog:
    heard = world.reader().last_entry
    known: dict[str, object] = {"known_entry": heard, "prune": at(prune), "settled": at(prune)}
    return MaintainLog(**{**known, "lease": 60.0, **more})  # type: ignore[arg-type]


def fill(world: World, count: int, first: int = 1) -> None:
    for key in range(first, first + count):
        world.insert(key)
        world.step()
        world.step(FlushNow())


def test_an_order_survives_the_line() -> None:
    sent = MaintainLog(
        known_entry=3, prune="a", settled="b", fences=("c",), drop=(1,), fold="d", cap=7
    )
    assert COMMANDS.decode(msgspec.json.encode(sent)) == sent


@pytest.mark.meets("R27")
def test_the_recorder_prunes_as_told_and_tells_of_its_entry(world: World) -> None:
    fill(world, 6)
    reports = world.step(order(world, 4))
    reader = world.reader()
    assert reader.floor == Position(1, 4)
    assert Flushed(reader.last_entry) in reports
    # Once for each order, whatever comes after it.
    assert flushes(world.step()) == 0
    assert world.reader().last_entry == reader.last_entry


@pytest.mark.meets("R27")
def test_files_are_deleted_a_lease_later_and_not_before(world: World) -> None:
    fill(world, 6)
    world.step(order(world, 4))
    names = world.disk.list("/data/log/test/segments")
    world.step(after=59)
    assert world.disk.list("/data/log/test/segments") == names
    world.step(after=2)
    assert len(world.disk.list("/data/log/test/segments")) == len(names) - 4


@pytest.mark.meets("R11", "R27")
def test_what_a_copy_under_way_needs_is_not_pruned(world: World) -> None:
    for key in range(1, 60):
        world.source.add_row(TABLE, {"id": key, "name": "x"})
    world.step(TakeBaseline(TABLE))
    begun = world.source.position.commit
    fill(world, 2, first=100)
    world.step(order(world, world.reader().end.commit))
    assert world.reader().floor <= Position(1, begun, 2**31 - 1)
    while world.reader().usable_baseline(TABLE) is None:
        world.step()
    world.step(order(world, world.reader().end.commit, known_entry=1))
    assert world.reader().usable_baseline(TABLE) is not None
    assert world.replayed() == world.source.rows(TABLE)


@pytest.mark.meets("R27")
def test_small_flushes_are_merged_between_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LEAST_FLUSHES", 4)
    fill(world, 10)
    before = world.replayed()
    reports = world.step(order(world, settled=at(9)))
    reader = world.reader()
    assert reader.extent().segments == 2
    assert Flushed(reader.last_entry) in reports
    assert world.replayed() == before
    world.step(order(world, settled=at(10), compact=False))
    assert world.reader().extent().segments == 2


@pytest.mark.meets("R19")
def test_a_baseline_is_folded_piece_by_piece(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "LEAST_BYTES", 1)
    world.source.add_row(TABLE, {"id": 1, "name": "x"})
    world.step(TakeBaseline(TABLE))
    while world.reader().usable_baseline(TABLE) is None:
        world.step()
    fill(world, 5, first=2)
    first = world.reader().usable_baseline(TABLE)
    assert first is not None
    monkeypatch.setattr(folding, "SHARE", 1_000)
    world.step(order(world, fold=at(6)))
    for _ in range(20):
        world.step(after=2)
    newest = world.reader().usable_baseline(TABLE)
    assert newest is not None
    assert (newest.copy, newest.rows) == (first.baseline, 6)
    assert world.replayed() == world.source.rows(TABLE)


@pytest.mark.meets("P7")
def test_a_damaged_segment_is_told_once_and_recording_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LEAST_FLUSHES", 4)
    fill(world, 6)
    path = f"/data/log/test/segments/{world.disk.list('/data/log/test/segments')[2]}"
    world.disk.write(path, b"nonsense")
    reports = world.step(order(world, settled=at(6)))
    assert [r.problem.code for r in reports if isinstance(r, Warned)] == [
        "changelog.corrupt_segment"
    ]
    for _ in range(5):
        told = world.step(after=100)
        assert not any(isinstance(report, Warned) for report in told)
    world.insert(7)
    world.step()
    assert flushes(world.step(FlushNow())) == 1


@pytest.mark.meets("R36")
def test_where_the_disk_refuses_a_large_file_recording_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LEAST_FLUSHES", 4)
    fill(world, 6)
    world.disk.fail("write", errno.ENOSPC, part="-c.parquet")
    reports = world.step(order(world, settled=at(6)))
    assert [failed.code for failed in failures(reports)] == ["storage.full"]
    world.step(after=1)
    world.step(order(world, settled=at(6)))
    fill(world, 3, first=7)
    assert world.reader().extent().segments == 9
    world.step(after=100)
    assert world.reader().extent().segments < 9
    assert world.replayed() == world.source.rows(TABLE)


@pytest.mark.meets("R28")
def test_a_full_log_is_not_read_into_until_there_is_room(world: World) -> None:
    fill(world, 4)
    size = world.reader().size
    reports = world.step(order(world, cap=int(size / log_maintenance.FULL)))
    assert states(reports) == ["full"]
    world.insert(5, 6)
    for _ in range(5):
        reports = world.step(after=1.1)
        assert flushes(reports) == 0
        # The source is asked how far it is, and so told that somebody is there.
        assert any(isinstance(report, LagReport) for report in reports)
    assert world.recorder.rest == log_maintenance.HOLD_SECONDS
    # Somebody has taken what was waiting: it is pruned, and there is room.
    reports = world.step(order(world, 3, cap=int(size / log_maintenance.FULL)))
    reports += world.step()
    assert "streaming" in states(reports)
    world.step(after=1.1)
    world.step(FlushNow())
    assert world.reader().end.commit == world.source.position.commit
    assert failures(reports) == []


# --- copies and a log that is full, or pruned meanwhile ------------------------------------------


def copying(world: World) -> None:
    """Begin to copy a table, then fill the log behind its F."""
    for key in range(1, 200):
        world.source.add_row(TABLE, {"id": key, "name": "x"})
    fill(world, 1, first=1_000)
    world.step(TakeBaseline(TABLE))
    fill(world, 30, first=2_000)
    assert world.reader().usable_baseline(TABLE) is None


def filled(world: World, **more: object) -> MaintainLog:
    """Return an order that nothing is needed of, of a log that is full."""
    end = world.reader().end.commit
    cap = int(world.reader().size / log_maintenance.FULL)
    return order(world, end, needed=at(end), cap=cap, compact=False, **more)


@pytest.mark.meets("R28")
def test_a_log_that_is_full_because_of_a_copy_is_read_to_its_end(world: World) -> None:
    copying(world)
    world.insert(3_000, 3_001)  # before it is over, and not read yet
    reports = world.step(filled(world))
    assert "full" in states(reports)
    for _ in range(100):
        reports += world.step(after=0.2)
        if world.reader().usable_baseline(TABLE) is not None:
            break
    assert world.reader().usable_baseline(TABLE) is not None
    reports += world.step(order(world, world.reader().end.commit, cap=filled(world).cap))
    reports += world.step(after=1.1)
    assert states(reports)[-1] == "streaming"
    assert failures(reports) == []


@pytest.mark.meets("R28")
def test_nothing_is_read_for_a_copy_while_somebody_else_needs_the_log(world: World) -> None:
    copying(world)
    world.insert(3_000, 3_001)
    held = filled(world)
    end = world.reader().end
    world.step(msgspec.structs.replace(held, prune=at(0), needed=at(0)))
    for _ in range(100):
        world.step(after=0.2)
    assert world.reader().end == end
    # What has to be copied is copied, and only its end is waited for.
    assert world.recorder._copies.required_end > end.commit
    world.step(held)
    for _ in range(5):
        world.step(after=0.2)
    assert world.reader().usable_baseline(TABLE) is not None


@pytest.mark.meets("R28")
def test_no_copy_is_begun_into_a_full_log(world: World) -> None:
    fill(world, 6)
    cap = int(world.reader().size / log_maintenance.FULL)
    world.step(order(world, cap=cap), TakeBaseline(TABLE))
    for _ in range(5):
        world.step(after=0.2)
        assert world.recorder._copies.firsts == []
    world.step(order(world, 5, cap=cap))
    for _ in range(10):
        world.step(after=0.2)
    assert world.reader().usable_baseline(TABLE) is not None


class Late(MemoryCopy):
    """One that waits for others, for hours."""

    def __init__(self, source: MemorySource, table: str) -> None:
        super().__init__(source, table)
        self.first, self.waits = 0, "others"

        self.asked = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            self.asked += 1
            yield pa.RecordBatch.from_pylist([], schema=self.schema.arrow)


@pytest.mark.meets("R13")
def test_changes_are_read_at_full_speed_while_a_copy_waits_to_begin(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(world.source, TABLE)
    monkeypatch.setattr(world.source, "baseline", lambda name: late)
    world.step(TakeBaseline(TABLE))
    before = late.asked
    # A backlog, of which each step reads one commit: the copy may depend on all of it.
    for _ in range(100):
        world.step(after=TRY_AGAIN_SECONDS / 200)
    assert late.asked == before
    assert world.recorder._patience(10.0) > 0, "reading waits for changes, and not in vain"
    world.step(after=TRY_AGAIN_SECONDS)
    assert late.asked == before + 1


@pytest.mark.meets("R28")
def test_a_copy_that_waits_to_begin_keeps_no_full_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 6)
    copies: list[type[MemoryCopy]] = [Late, MemoryCopy]
    monkeypatch.setattr(world.source, "baseline", lambda name: copies.pop(0)(world.source, name))
    world.step(TakeBaseline(TABLE))
    assert world.recorder._copies.firsts == [0]
    world.step(order(world, 5, cap=int(world.reader().size / log_maintenance.FULL)))
    for _ in range(10):
        world.step(after=1.1)
    assert world.reader().floor == Position(1, 5)
    assert world.reader().usable_baseline(TABLE) is not None


@pytest.mark.meets("R27")
def test_an_order_that_a_copy_cut_short_is_obeyed_once_that_is_finished(world: World) -> None:
    copying(world)
    told = order(world, world.reader().end.commit, known_entry=1_000, compact=False)
    world.step(told)
    assert world.reader().floor < Position.parse(told.prune)
    for _ in range(100):
        world.step(after=0.2)
    # All but the newest step, which says where the source is read on.
    assert world.reader().floor >= Position(1, Position.parse(told.prune).commit - 1)


@pytest.mark.meets("R19", "R27")
def test_a_copy_of_which_changes_were_pruned_is_taken_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying(world)
    end = world.reader().end.commit
    monkeypatch.setattr(BaselineRequests, "firsts", [])
    reports = world.step(order(world, end, known_entry=1_000))
    for _ in range(250):
        reports += world.step()
    assert [r.problem.code for r in reports if isinstance(r, Warned)] == ["changelog.expired"]
    usable = world.reader().usable_baseline(TABLE)
    assert usable is not None
    assert usable.window[0] >= world.reader().floor
    assert world.replayed() == world.source.rows(TABLE)


@pytest.mark.meets("R27")
def test_what_a_copy_could_begin_with_is_kept_as_long_as_the_source_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 6)
    kept: list[int | None] = [2]
    traits = replace(world.source.traits, keeps_snapshot=True)
    monkeypatch.setattr(world.source, "traits", traits)
    monkeypatch.setattr(world.source, "kept_first", lambda: kept[0], raising=False)
    world.step(order(world, 5))
    assert world.reader().floor == Position(1, 2)
    kept[0] = None
    world.step(after=1.1)
    assert world.reader().floor == Position(1, 5)


@pytest.mark.meets("R19")
def test_a_fold_that_would_take_too_much_memory_is_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "LEAST_BYTES", 1)
    monkeypatch.setattr(folding, "SHARE", 1_000)
    monkeypatch.setattr(folding, "FOLD_MOST_ROWS", 3)
    world.step(TakeBaseline(TABLE))
    while world.reader().usable_baseline(TABLE) is None:
        world.step()
    world.insert(1, 2, 3, 4)
    world.step()
    world.step(FlushNow())
    reports = world.step(order(world, fold=str(world.reader().end)))
    for _ in range(20):
        reports += world.step(after=11)
    told = [report.problem for report in reports if isinstance(report, Warned)]
    assert [problem.code for problem in told] == ["changelog.failed"]
    assert "more changes than a fold may hold" in str(told[0].error())
