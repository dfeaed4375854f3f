"""A recorder's care for its log: orders obeyed between reads, and nothing read while it is full."""

from __future__ import annotations

import errno

import msgspec
import pytest

from headrace.capture import caring
from headrace.capture.wire import COMMANDS, Flushed, FlushNow, LagReport, TakeBaseline, Tend, Warned
from headrace.changelog import compaction, folding
from headrace.changelog.position import Position
from tests.capture.test_recorder import TABLE, World, failures, flushes, states


@pytest.fixture
def world() -> World:
    made = World()
    made.step()
    return made


def at(commit: int) -> str:
    return str(Position(1, commit))


def order(world: World, prune: int = 0, **more: object) -> Tend:
    heard = world.reader().last_entry
    known: dict[str, object] = {"heard": heard, "prune": at(prune), "settled": at(prune)}
    return Tend(**{**known, "lease": 60.0, **more})  # type: ignore[arg-type]


def fill(world: World, count: int, first: int = 1) -> None:
    for key in range(first, first + count):
        world.insert(key)
        world.step()
        world.step(FlushNow())


def test_an_order_survives_the_line() -> None:
    sent = Tend(heard=3, prune="a", settled="b", fences=("c",), drop=(1,), fold="d", cap=7)
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
    world.step(order(world, world.reader().end.commit, heard=1))
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
    reports = world.step(order(world, cap=int(size / caring.FULL)))
    assert states(reports) == ["full"]
    world.insert(5, 6)
    for _ in range(5):
        reports = world.step(after=1.1)
        assert flushes(reports) == 0
        # The source is asked how far it is, and so told that somebody is there.
        assert any(isinstance(report, LagReport) for report in reports)
    assert world.recorder.rest == caring.HOLD_SECONDS
    # Somebody has taken what was waiting: it is pruned, and there is room.
    reports = world.step(order(world, 3, cap=int(size / caring.FULL)))
    reports += world.step()
    assert "streaming" in states(reports)
    world.step(after=1.1)
    world.step(FlushNow())
    assert world.reader().end.commit == world.source.position.commit
    assert failures(reports) == []
