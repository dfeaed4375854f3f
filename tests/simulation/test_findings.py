"""What seeds have found, each told in a few lines so that it stays found."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.capture.wire import Flushed, LagReport, StateReport
from headrace.changelog.log import LogReader, LogWriter
from headrace.control.recording import Recording
from headrace.control.states import TableState
from headrace.errors import Fenced, LostLog, StorageError, TargetError
from headrace.storage.files import Files
from headrace.storage.simulated import SimulatedDisk
from headrace.testing.source import MemoryCopy, MemorySource
from tests.simulation.hooks import staged
from tests.simulation.plan import Flow
from tests.simulation.story import Story
from tests.simulation.target import DurableDisk, DurableTarget
from tests.simulation.world import Life, World

PLAIN = Flow("orders", durable=True, kind=None, filtered=False, drops=False, names=())


@pytest.fixture
def source() -> MemorySource:
    source = MemorySource(clock=lambda: 1.0)
    source.set_schema("orders", {"id": "int64"}, key=["id"])
    source.add_row("orders", {"id": 1})
    return source


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def world() -> Iterator[World]:
    """A calm world with one durable target."""
    made = World(0)
    made.plan = replace(made.plan, flows=(PLAIN,), resumes=True)
    made.durable_disks = [DurableDisk()]
    made.database.set_supports_resume(True)
    made.database.add_row("orders", {"id": 1, "kind": "a", "n": 1, "note": None})
    made.database.begin()
    with staged():
        made.start()
        yield made
    made.connection.close()


def opened(disk: SimulatedDisk, term: int = 1) -> LogWriter:
    files = Files(disk, "/data")
    return LogWriter.open(
        files, source="test", origin="test:test", writer=f"w{term}", term=term, clock=lambda: 1.0
    )


def rounds(world: World, count: int = 8) -> None:
    story = Story(world)
    for _ in range(count):
        story._round()
        world.now += 0.01


def life_of(world: World) -> Life:
    assert world.life is not None
    return world.life


def target_of(life: Life) -> DurableTarget:
    target = life.seats[0].target
    assert isinstance(target, DurableTarget)
    return target


@pytest.mark.meets("R36")
def test_a_baseline_whose_entry_may_exist_keeps_its_files(
    source: MemorySource, disk: SimulatedDisk
) -> None:
    log = opened(disk)
    log.begin(source.position, "start", "test:test")
    copy = MemoryCopy(source, "orders")
    baseline = log.baseline(copy.schema)
    for batch in copy:
        baseline.write(batch)
    # The entry gets its name, and the sync of that name fails.
    disk.fail("sync_folder", errno.EIO, part="/index")
    with pytest.raises(StorageError):
        baseline.finish(copy.first, copy.last)
    baseline.discard()
    opened(disk)
    reader = LogReader.open(Files(disk, "/data"), "test")
    found = reader.usable_baseline("orders")
    assert found is not None
    for file in found.files:
        reader.verify(file)


@pytest.mark.meets("R31")
def test_a_later_writer_that_was_overtaken_while_it_opened_claims_the_next_number(
    source: MemorySource, disk: SimulatedDisk
) -> None:
    old = opened(disk, term=1)
    old.begin(source.position, "start", "test:test")
    source.heartbeat()

    def overtake(step: str, path: str) -> None:
        # When the new one has read the index, and writes its claim.
        if step == "write":
            disk.on_step = None
            old.heartbeat(source.position)

    disk.on_step = overtake
    new = opened(disk, term=2)
    assert new.end.commit == source.position.commit
    source.heartbeat()
    with pytest.raises(LostLog):
        old.heartbeat(source.position)
    assert new.heartbeat(source.position) is not None


def test_a_log_that_cannot_be_read_is_told_and_read_with_the_next_report(
    source: MemorySource, disk: SimulatedDisk
) -> None:
    log = LogReader.open(Files(disk, "/data"), "test")
    recording = Recording("test", "test", log, lambda: None, lambda: 1.0)
    recording.on_report(StateReport("streaming"))
    gap = opened(disk).begin(source.position, "start", "test:test")
    disk.fail("read", errno.EIO, part="/index")
    recording.on_report(Flushed(gap.entry))
    assert (recording.state, type(recording.error)) == ("failed", StorageError)
    recording.on_report(LagReport(None, None, 0))
    assert (recording.state, recording.error, log.last_entry) == ("streaming", None, gap.entry)


@pytest.mark.meets("R31")
def test_an_engine_that_was_taken_over_cannot_put_a_durable_target_back(world: World) -> None:
    old = life_of(world)
    target_of(old).fail("loading", TargetError("Not now"))
    rounds(world, 5)
    assert old.engine.driven[0].run.state == TableState.LOADING
    world.life = None
    world.start()
    world.database.emit_insert("orders", {"id": 2, "kind": "a", "n": 2, "note": None})
    rounds(world, 20)
    new = life_of(world)
    assert new.engine.driven[0].run.state == TableState.LIVE
    reached = target_of(new).position("orders")
    world.now += 60
    old.engine.drive(old.engine.driven[0])
    assert isinstance(old.engine.driven[0].run.error, Fenced)
    assert target_of(new).position("orders") == reached
    assert set(target_of(new).rows("orders")) == {(1,), (2,)}


def test_a_pipeline_is_not_live_before_its_target_has_shown_the_table(world: World) -> None:
    life = life_of(world)
    target_of(life).fail("show", TargetError("Not now"))
    rounds(world)
    run = life.engine.driven[0].run
    assert (run.state, run.ready, target_of(life).shown) == (TableState.CATCHING_UP, False, set())
    world.now += 60
    rounds(world)
    assert (run.state, run.ready, target_of(life).shown) == (TableState.LIVE, True, {"orders"})


@pytest.mark.meets("R1")
def test_a_log_made_anew_is_noticed_by_an_epoch_it_never_had(world: World) -> None:
    rounds(world)
    world.database.replace(world.database.states[1][0], 0)
    rounds(world, 20)
    world.now += 60
    rounds(world)
    assert target_of(life_of(world)).position("orders").epoch == 2
    world.lose_log()
    world.database.emit_insert("orders", {"id": 2, "kind": "a", "n": 2, "note": None})
    world.start()
    rounds(world)
    assert set(target_of(life_of(world)).rows("orders")) == {(1,), (2,)}
