"""What seeds have found, each told in a few lines so that it stays found."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.capture.messages import Flushed, LagReport, StateReport
from headrace.changelog.reader import LogReader, LogWriter
from headrace.deadletters.ledger import Selection
from headrace.errors import Fenced, LostLog, StorageError, TargetError
from headrace.runtime.corrections import ReplayRequest
from headrace.runtime.info import LogOptions
from headrace.runtime.model import TableState
from headrace.runtime.source_run import SourceRun
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from headrace.testing.source import MemoryCopy, MemorySource
from tests.simulation.corrections import MENDED
from tests.simulation.hooks import played, staged
from tests.simulation.lives import Life
from tests.simulation.plan import BAD, PLENTY, Flow
from tests.simulation.story import Story
from tests.simulation.target import DurableDisk, DurableTarget
from tests.simulation.world import World

PLAIN = Flow(
    tables=("orders",),
    target="database",
    mode="baseline_then_changes",
    kind=None,
    filtered=False,
    drops=False,
    breaks=True,
    on_error=PLENTY,
    names=(),
)


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
    with staged():
        made = calm(PLAIN)
        made.start()
        yield made
    made.connection.close()


def calm(flow: Flow) -> World:
    """Return a world in which nothing goes wrong by itself, with one pipeline and one row."""
    made = World(0)
    made.plan = replace(made.plan, flows=(flow,), resumes=True, batch_rows=400_000)
    made.durable_disks = [DurableDisk()]
    made.database.set_supports_resume(True)
    made.database.chunk_rows = 100
    made.database.add_row("orders", row(1))
    made.database.begin()
    return made


def row(key: int, note: str | None = None) -> dict[str, object]:
    return {"id": key, "kind": "a", "n": key, "note": note}


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
    recording = SourceRun("test", "test", log, lambda: None, lambda: 1.0)
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
    world.database.emit_insert("orders", row(2))
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
    target_of(life).fail("switch", TargetError("Not now"))
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
    world.database.emit_insert("orders", row(2))
    world.start()
    rounds(world)
    assert set(target_of(life_of(world)).rows("orders")) == {(1,), (2,)}


@pytest.mark.meets("R30", "R31")
def test_letters_of_an_engine_that_was_taken_over_do_not_stop_the_next_one(world: World) -> None:
    rounds(world)
    old = life_of(world)
    world.life = None
    world.start()
    rounds(world)
    new = life_of(world)
    world.database.emit_insert("orders", row(2, BAD))
    for _ in range(3):
        world.now += 1.1
        new.engine.step_recorder()
    old.engine.log.refresh()
    old.engine.drive(old.engine.driven[0])
    assert isinstance(old.engine.driven[0].run.error, Fenced)
    rounds(world, 20)
    world.now += 60
    rounds(world)
    run = new.engine.driven[0].run
    assert (run.ready, [letter.key for letter in run.delivery.dead_letters.all()]) == (True, [(2,)])


@pytest.mark.meets("R25", "R31")
def test_an_engine_that_was_taken_over_does_not_repeat_a_batch_it_intended() -> None:
    with staged():
        world = calm(replace(PLAIN, target="queue"))
        world.start()
        rounds(world)
        old = life_of(world)
        target_of(old).fail_after_write(TargetError("Answer was lost"))
        world.database.emit_insert("orders", row(2))
        world.now += 1.1
        rounds(world, 3)
        assert old.engine.driven[0].run.error is not None
        world.life = None
        world.start()
        world.database.emit_insert("orders", row(3))
        world.now += 1.1
        rounds(world, 20)
        sent = len(target_of(life_of(world)).kept.sent)
        world.now += 60
        old.engine.drive(old.engine.driven[0])
        assert isinstance(old.engine.driven[0].run.error, Fenced)
        assert len(target_of(old).kept.sent) == sent
        world.connection.close()


@pytest.mark.meets("R11", "R30")
def test_what_failed_before_a_baseline_began_holds_nothing_after_it(world: World) -> None:
    database = world.database
    # The log flushes late: all of this is one flush, and F lies in the middle of it.
    life = life_of(world)
    engine = life.engine
    for _ in range(2):
        engine.step_recorder()
        engine.hear(99)
        engine.drive(engine.driven[0])
    database.emit_insert("orders", row(2, BAD))
    database.emit_update("orders", row(2))
    database.emit_insert("orders", row(3))
    database.emit_update("orders", row(4, BAD), key=(3,))
    assert engine.recorder is not None
    engine.recorder.deliver(99)
    engine.step_recorder()
    database.emit_update("orders", {**row(2), "n": 22})
    rounds(world, 20)
    world.now += 60
    rounds(world)
    run = engine.driven[0].run
    flush = world.watch.flushes[0]
    began = target_of(life).began["orders"]
    assert flush.first.commit <= began.commit < flush.last.commit, "F is not within a flush"
    assert target_of(life).seen("orders") == {1: row(1), 2: {**row(2), "n": 22}}
    assert [(each.key, each.op) for each in run.delivery.dead_letters.all(superseded=True)] == [
        ((4,), "baseline")
    ]


@pytest.mark.meets("R1", "R30")
def test_letters_of_a_log_that_was_lost_hold_nothing_in_the_next_one(world: World) -> None:
    world.database.emit_update("orders", row(1, BAD))
    rounds(world)
    world.database.emit_update("orders", row(1))
    # The number of the first baseline comes again.
    world.lose_log()
    world.start()
    rounds(world)
    world.database.emit_update("orders", {**row(1), "n": 11})
    world.now += 1.1
    rounds(world)
    life = life_of(world)
    assert target_of(life).seen("orders") == {1: {**row(1), "n": 11}}
    letters = life.engine.driven[0].run.delivery.dead_letters
    assert [each.superseded for each in letters.all(superseded=True)] == ["reload"]


@pytest.mark.meets("R12")
def test_a_reload_that_is_asked_for_while_one_is_loaded_takes_a_newer_baseline(
    world: World,
) -> None:
    rounds(world)
    life = life_of(world)
    target_of(life).fail("switch", TargetError("Not now"))
    world.reload(life, "orders")
    rounds(world, 4)
    assert life.engine.driven[0].run.state == TableState.RELOADING
    assert life.engine.log.usable_baseline("orders") is not None
    world.reload(life, "orders")
    world.now += 60
    rounds(world, 12)
    assert life.engine.driven[0].run.state == TableState.LIVE
    assert target_of(life).began["orders"].baseline == 3


@pytest.mark.meets("R12", "R25")
def test_a_reload_does_not_put_a_durable_target_back() -> None:
    with staged(), played(lambda name: None, {"flush_rows": 1}):
        world = calm(PLAIN)
        world.start()
        rounds(world)
        life = life_of(world)
        engine, run = life.engine, life.engine.driven[0].run
        world.reload(life, "orders")
        engine.drive(engine.driven[0])
        assert engine.recorder is not None
        engine.recorder.deliver(99)
        engine.step_recorder()
        # The copy is read to its end; a change is flushed before it is finished.
        world.database.emit_insert("orders", row(2))
        engine.hear(99)
        engine.step_recorder()
        target_of(life).fail_after_write(TargetError("Answer was lost"))
        while run.error is None:
            engine.hear(1)
            engine.drive(engine.driven[0])
        assert (run.state, target_of(life).at("orders").commit) == (TableState.RELOADING, 1)
        world.now += 60
        rounds(world)
        assert (run.state, target_of(life).at("orders").commit) == (TableState.LIVE, 1)
        world.connection.close()


@pytest.mark.meets("R8")
def test_a_pipeline_of_changes_keeps_the_source_from_forgetting_what_it_began_with() -> None:
    with staged():
        world = calm(replace(PLAIN, mode="changes"))
        world.start()
        life = life_of(world)
        target_of(life).fail("switch", TargetError("Not now"))
        rounds(world)
        assert life.engine.driven[0].run.state == TableState.CATCHING_UP
        world.database.emit_insert("orders", row(2))
        world.power_cut()
        world.start()
        life = life_of(world)
        for _ in range(4):
            world.now += 1.1
            life.engine.step_recorder()
            life.engine.hear(99)
        life.engine.settle()
        upto = life.engine.recording.acknowledged
        assert life.engine.log.end.commit == 1
        assert upto is not None
        assert upto.commit == 0
        world.connection.close()


@pytest.mark.meets("R12", "R23d", "R30")
def test_letters_that_a_truncate_ended_do_not_come_back_with_a_reload() -> None:
    with staged():
        world = calm(replace(PLAIN, target="memory"))
        world.plan = replace(world.plan, batch_rows=1)
        world.start()
        rounds(world)
        life, database = life_of(world), world.database
        driven, recorder = life.engine.driven[0], life.engine.recorder
        assert recorder is not None
        world.reload(life, "orders")
        life.engine.drive(driven)
        recorder.deliver(99)
        recorder.step()
        copying = recorder.recorder._copies._copying
        assert copying is not None
        recorder.recorder._copies._copying = None  # it takes its time
        database.emit_insert("orders", row(2, BAD))
        world.now += 1.1
        rounds(world)
        database.emit_truncate("orders")
        world.now += 1.1
        rounds(world)
        recorder.recorder._copies._copying = copying
        life.engine.step_recorder()
        database.emit_insert("orders", row(2))
        for _ in range(3):
            world.now += 1.1
            life.engine.step_recorder()
        life.engine.hear(99)
        while driven.run.state == TableState.RELOADING:
            life.engine.drive(driven)
            world.watch.look(life)
        assert life.seats[0].target.seen("orders") == {2: row(2)}
        assert driven.run.delivery.dead_letters.all() == ()
        world.connection.close()


@pytest.mark.meets("R30")
def test_a_row_stays_held_while_its_table_is_reloaded_though_its_baseline_left_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.database.add_row("orders", row(2, BAD))
    rounds(world)
    life = life_of(world)
    run = life.engine.driven[0].run
    assert (run.state, set(target_of(life).rows("orders"))) == (TableState.LIVE, {(1,)})
    # As where the log was pruned: it has no baseline that the new one could be newer than.
    monkeypatch.setattr(LogReader, "usable_baseline", lambda log, table: None)
    world.reload(life, "orders")
    world.database.emit_update("orders", row(2))
    world.database.emit_insert("orders", row(3))
    for _ in range(8):
        world.now += 1.1
        rounds(world, 1)
        world.watch.look(life)
    assert run.state == TableState.RELOADING
    assert set(target_of(life).rows("orders")) == {(1,), (3,)}
    assert [letter.key for letter in run.delivery.dead_letters.all()] == [(2,), (2,)]


FOLDS = {"fold_seconds": 0, "fold_bytes": 1, "fold_share": 1_000, "care_seconds": 0}


def fold(world: World) -> None:
    """Change another row, and go on until the log is folded past everything before."""
    before = len(world.watch.copies)
    for number in range(100):
        world.database.emit_update("orders", {**row(1), "n": 1_000 + number})
        world.now += 11.0
        rounds(world, 3)
        if len(world.watch.copies) > before + 2:
            return
    raise AssertionError("the log was not folded")


@pytest.mark.meets("R19", "R27", "ACC-16")
def test_an_edit_stays_although_the_log_is_folded_past_it_and_the_target_is_rebuilt() -> None:
    with staged(), played(lambda name: None, FOLDS):
        world = calm(replace(PLAIN, target="memory"))
        world.plan = replace(world.plan, care=LogOptions(keep=0.0))
        world.start()
        rounds(world)
        world.database.emit_insert("orders", row(2, BAD))
        world.now += 1.1
        rounds(world)
        run = life_of(world).engine.driven[0].run
        (letter,) = run.delivery.dead_letters.all()
        world.watch.corrections.edits.add((0, "orders", letter.position))
        selection = Selection(table="orders", position=letter.position)
        run.corrections.ask(ReplayRequest(selection, {"note": MENDED}))
        run.requests += 1
        rounds(world)
        world.watch.look(life_of(world))
        assert life_of(world).seats[0].target.seen("orders")[2] == row(2, MENDED)
        for moves in (1, 2, 3):
            fold(world)
            (made,) = (each for each in run.delivery.journal.all() if each.ended is None)
            assert life_of(world).engine.log.floor.commit > made.first.commit, "it keeps the log"
            world.watch.look(life_of(world))
            world.power_cut()
            world.start()
            world.now += 60
            rounds(world, 20)
            life = life_of(world)
            run = life.engine.driven[0].run
            assert run.ready
            world.watch.look(life)
            assert life.seats[0].target.seen("orders")[2] == row(2, MENDED)
            assert run.delivery.dead_letters.all() == ()
            assert sum(each.moved for each in world.watch.corrections.all()) == moves
        fold(world)
        files = [name for name in world.disk._names if name.endswith(".correction")]
        assert len(files) < 6, "the files of those that were moved are removed"
        world.connection.close()
