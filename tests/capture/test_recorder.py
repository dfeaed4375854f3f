"""The recorder's step machine, on a virtual clock and a disk that can fail."""

import errno
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.capture import recorder as module
from headrace.capture.messages import (
    Acknowledge,
    BaselineProgress,
    Command,
    Failed,
    Flushed,
    FlushNow,
    LagReport,
    Report,
    Retries,
    StateReport,
    StopRecorder,
    TakeBaseline,
    Warned,
)
from headrace.capture.recorder import Recorder
from headrace.capture.source import Lag
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogReader, LogWriter
from headrace.errors import Reopening, SourceRefused, SourceUnreachable
from headrace.storage import killpoints
from headrace.storage.files import Files
from headrace.storage.simulation import PowerCut, SimulatedDisk
from headrace.testing.source import MemorySource

TABLE = "things"
Truth = dict[tuple[object, ...], dict[str, object]]


class World:
    """A source, a disk, a clock, and the recorder between them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.disk = SimulatedDisk()
        self.source = MemorySource(clock=self.clock)
        self.source.set_supports_resume(True)
        self.source.set_schema(TABLE, {"id": "int64", "name": "text"}, key=["id"])
        self.source.chunk_rows = 2
        self.origin_term = 1
        self.recorder = self.start()

    def clock(self) -> float:
        return self.now

    def start(self) -> Recorder:
        self.recorder = Recorder(self.source, self.open_log, [TABLE], self.clock)
        return self.recorder

    def files(self) -> Files:
        return Files(self.disk, "/data")

    def open_log(self) -> LogWriter:
        return LogWriter.open(
            self.files(),
            source="test",
            origin=self.source.origin,
            writer="w",
            term=self.origin_term,
            clock=self.clock,
        )

    def step(self, *commands: Command, after: float = 0.0) -> list[Report]:
        self.now += after
        return self.recorder.step(commands, 0)

    def insert(self, *keys: int) -> None:
        with self.source.transaction():
            for key in keys:
                self.source.emit_insert(TABLE, {"id": key, "name": "x"})

    def reader(self) -> LogReader:
        return LogReader.open(Files(self.disk, "/data"), "test")

    def replayed(self) -> Truth:
        """The table as the log alone tells it: a baseline and what follows."""
        log = self.reader()
        rows: Truth = {}
        at = ORIGIN
        if (baseline := log.usable_baseline(TABLE)) is not None:
            at = baseline.window[0]
            for file in baseline.files:
                for row in log.rows(file)["after"].to_pylist():
                    rows[(row["id"],)] = row
        while (batch := log.next_batch(TABLE, at, 10**6)) is not None:
            for file in batch.files:
                for change in log.rows(file).to_pylist():
                    if Position(batch.epoch, change["_commit"], change["_ordinal"]) <= at:
                        continue
                    if change["before"] is not None:
                        rows.pop((change["before"]["id"],), None)
                    if change["after"] is not None:
                        rows[(change["after"]["id"],)] = change["after"]
            at = batch.last
        return rows


@pytest.fixture
def world() -> World:
    made = World()
    made.step()
    return made


def flushes(reports: Sequence[Report]) -> int:
    return sum(isinstance(report, Flushed) for report in reports)


def states(reports: Sequence[Report]) -> list[str]:
    return [report.state for report in reports if isinstance(report, StateReport)]


def failures(reports: Sequence[Report]) -> list[Failed]:
    return [report for report in reports if isinstance(report, Failed)]


def test_the_first_step_connects_and_begins_history() -> None:
    world = World()
    reports = world.step()
    assert states(reports) == ["connecting", "streaming"]
    assert world.reader().epoch == 1


@pytest.mark.meets("R10")
def test_a_change_waits_a_second_for_a_busy_engine(world: World) -> None:
    world.insert(1)
    assert not flushes(world.step())
    assert not flushes(world.step(after=0.99))
    assert flushes(world.step(after=0.02))


@pytest.mark.meets("R10", "S14")
def test_a_change_waits_five_milliseconds_for_an_idle_engine(world: World) -> None:
    world.step(FlushNow())
    world.insert(1)
    assert not flushes(world.step())
    assert not flushes(world.step(after=0.004))
    assert flushes(world.step(after=0.002))


@pytest.mark.meets("R10", "S14")
def test_an_engine_that_becomes_idle_gets_what_is_pending_at_once(world: World) -> None:
    world.insert(1)
    world.step()
    assert flushes(world.step(FlushNow()))


@pytest.mark.meets("R10")
def test_a_flush_uses_up_the_credit(world: World) -> None:
    world.step(FlushNow())
    world.insert(1)
    world.step()
    assert flushes(world.step(after=0.006))
    world.insert(2)
    world.step()
    assert not flushes(world.step(after=0.5))
    assert flushes(world.step(after=0.6))


@pytest.mark.meets("R10")
def test_many_changes_are_flushed_at_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_ROWS", 3)
    world.insert(1, 2)
    assert not flushes(world.step())
    world.insert(3)
    assert flushes(world.step())


@pytest.mark.meets("R10", "R9")
def test_a_flush_never_cuts_a_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_ROWS", 2)
    monkeypatch.setattr(module, "LIMIT_ROWS", 1)
    world.insert(1, 2, 3, 4, 5)
    assert not flushes(world.step(FlushNow()))
    assert not flushes(world.step(FlushNow(), after=2))
    assert flushes(world.step())
    assert len(world.replayed()) == 5


@pytest.mark.meets("R34")
def test_heartbeats_are_merged_to_one_in_ten_seconds(world: World) -> None:
    entries = world.reader().last_entry
    for _ in range(30):
        world.source.heartbeat()
        world.step(after=1)
    assert world.reader().last_entry - entries == 3


@pytest.mark.meets("R34")
def test_a_heartbeat_never_overtakes_a_change(world: World) -> None:
    world.insert(1)
    world.source.heartbeat()
    world.step()
    world.source.heartbeat()
    world.step(after=0.5)
    world.step(after=20)
    world.step(after=20)
    assert world.reader().end == Position(1, 3)
    assert len(world.replayed()) == 1


@pytest.mark.meets("R43")
def test_a_baseline_is_read_chunk_by_chunk_between_changes(world: World) -> None:
    for key in range(5):
        world.source.add_row(TABLE, {"id": key, "name": "old"})
    progress = []
    for number in range(6):
        world.insert(100 + number)
        reports = world.step(*([TakeBaseline(TABLE)] if number == 0 else []))
        progress += [report for report in reports if isinstance(report, BaselineProgress)]
    assert [report.done for report in progress][-1]
    world.step(FlushNow())
    assert world.replayed() == world.source.rows(TABLE)


def test_a_baseline_asked_for_twice_is_taken_once(world: World) -> None:
    world.source.add_row(TABLE, {"id": 1, "name": "old"})
    done = 0
    for number in range(6):
        reports = world.step(*([TakeBaseline(TABLE)] * 2 if number < 2 else []))
        done += sum(isinstance(report, BaselineProgress) and report.done for report in reports)
    assert done == 1


@pytest.mark.meets("R34", "R43")
def test_the_log_passes_the_end_of_a_baseline_without_waiting_for_a_heartbeat(
    world: World,
) -> None:
    world.source.add_row(TABLE, {"id": 1, "name": "old"})
    world.source.heartbeat()
    world.source.heartbeat()
    world.step(TakeBaseline(TABLE))
    for _ in range(3):
        world.step()
    log = world.reader()
    baseline = log.usable_baseline(TABLE)
    assert baseline is not None
    assert log.end >= baseline.window[1]


def test_a_table_that_is_not_recorded_has_no_baseline(world: World) -> None:
    (failed,) = failures(world.step(TakeBaseline("other")))
    assert failed.code == "tables.unknown_table"
    assert not failed.stops
    assert not world.recorder.done


@pytest.mark.meets("R8")
def test_an_acknowledgement_names_the_last_entry_at_or_before_it(world: World) -> None:
    for key in (1, 2, 3):
        world.insert(key)
        world.step()
        world.step(FlushNow())
    world.step(Acknowledge(str(Position(1, 2))))
    world.step(Acknowledge(str(Position(1, 2, 5))))
    world.step(Acknowledge(str(Position(1, 3))))
    assert world.source.acknowledged == ["1:2", "1:3"]


@pytest.mark.meets("R8")
def test_nothing_is_acknowledged_beyond_what_is_synced(world: World) -> None:
    world.insert(1)
    world.step()
    (failed,) = failures(world.step(Acknowledge(str(Position(1, 1)))))
    assert failed.stops
    assert world.source.acknowledged == []


def test_an_acknowledgement_during_an_outage_is_sent_afterwards(world: World) -> None:
    world.insert(1)
    world.step()
    world.step(FlushNow())
    world.source.inject_error(SourceUnreachable("Away"))
    world.step()
    world.step(Acknowledge(str(Position(1, 1))))
    assert world.source.acknowledged == []
    world.step(after=1)
    assert world.source.acknowledged == ["1:1"]


def test_an_unreachable_source_is_tried_again_ever_later(world: World) -> None:
    world.source.inject_error(SourceUnreachable("Away"), at="open", times=12)
    world.source.inject_error(SourceUnreachable("Away"))
    assert states(world.step()) == ["reconnecting"]
    waits = []
    for _ in range(12):
        waits.append(world.recorder.rest)
        assert world.step(after=world.recorder.rest / 2) == []
        world.step(after=world.recorder.rest)
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(waits) == pytest.approx(30)
    assert "streaming" in states(world.step(after=30))
    world.step()
    world.source.inject_error(SourceUnreachable("Away"))
    world.step()
    assert world.recorder.rest == pytest.approx(0.1), "starts low again after a success"


def test_what_was_read_before_an_outage_is_flushed(world: World) -> None:
    world.insert(1)
    world.step()
    world.source.inject_error(SourceUnreachable("Away"))
    assert flushes(world.step())
    assert len(world.replayed()) == 1


def test_half_a_commit_before_an_outage_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_ROWS", 2)
    world.insert(1, 2, 3)
    world.step()
    world.source.inject_error(SourceUnreachable("Away"))
    assert not flushes(world.step())
    for _ in range(4):
        world.step(after=1)
    assert len(world.replayed()) == 3


def test_a_baseline_interrupted_by_an_outage_is_taken_again(world: World) -> None:
    for key in range(9):
        world.source.add_row(TABLE, {"id": key, "name": "old"})
    world.step(TakeBaseline(TABLE))
    world.source.inject_error(SourceUnreachable("Away"), at="baseline")
    assert states(world.step()) == ["reconnecting"]
    for _ in range(10):
        world.step(after=0.2)
    assert world.replayed() == world.source.rows(TABLE)


@pytest.mark.meets("R1")
def test_a_new_lineage_opens_an_epoch(world: World) -> None:
    world.insert(1, 2)
    world.step()
    world.step(FlushNow())
    world.source.reset()
    world.step()
    world.step(after=1)
    log = world.reader()
    assert (log.epoch, log.lineage) == (2, "test/2")
    assert log.usable_baseline(TABLE) is None
    world.insert(7)
    world.step()
    assert flushes(world.step(FlushNow()))
    assert world.reader().end == Position(2, 1)


@pytest.mark.meets("R1")
def test_a_source_that_cannot_resume_has_a_gap_at_every_start(world: World) -> None:
    world.source.set_supports_resume(False)
    world.start()
    world.step()
    log = world.reader()
    assert log.epoch == 1
    assert log.gap is not None
    assert log.gap.reason == "gap"


def test_another_database_is_refused_before_it_is_touched(world: World) -> None:
    world.source.name = "elsewhere"
    world.source.reset()
    world.source.calls.clear()
    world.start()
    (failed,) = failures(world.step())
    assert failed.code == "capture.other_database"
    assert world.recorder.done
    assert world.source.calls["open"] == 0


def test_a_moved_database_is_the_same(world: World) -> None:
    world.source.name = "elsewhere"
    world.start()
    assert states(world.step())[-1] == "streaming"


@pytest.mark.meets("R36")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_loses_nothing(world: World, number: int) -> None:
    world.insert(1)
    world.step()
    world.disk.fail("sync", number=number)
    reports = world.step(FlushNow())
    (failed,) = failures(reports)
    assert failed.code.startswith("storage.")
    assert not failed.stops
    assert states(reports) == ["failed"]
    world.insert(2)
    for _ in range(3):
        world.step(FlushNow(), after=1)
    assert world.replayed() == world.source.rows(TABLE)


@pytest.mark.meets("R1")
def test_a_history_that_does_not_go_on_is_reported_with_its_range_and_tables(world: World) -> None:
    world.insert(1)
    world.step()
    world.step(FlushNow())
    end = world.reader().end
    world.source.reset()
    reports = [report for _ in range(3) for report in world.step(FlushNow(), after=1)]
    [problem] = [report.problem for report in reports if isinstance(report, Warned)]
    assert problem.code == "capture.history_lost"
    assert f"Changes between {end} and {world.reader().end} may be missing" in problem.message
    assert problem.message.endswith(f"every table is copied again: {TABLE}")


@pytest.mark.meets("R1")
def test_a_gap_that_a_killed_recorder_did_not_report_is_reported_once_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.insert(1)
    world.step()
    world.step(FlushNow())
    end = world.reader().end

    def killed(point: str) -> None:
        if point == killpoints.LOG_BEGUN:
            raise KeyboardInterrupt

    world.source.reset()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(killpoints, "reach", killed)
        for _ in range(3):
            world.step(FlushNow(), after=1)
    found: list[Warned] = []
    for _ in range(3):
        world.start()
        reports = [report for _ in range(3) for report in world.step(FlushNow(), after=1)]
        found += [report for report in reports if isinstance(report, Warned)]
    [warned] = found
    assert f"Changes between {end} and {world.reader().end}" in warned.problem.message


@pytest.mark.meets("R36")
def test_a_disk_that_stays_full_is_failed_until_something_was_written(world: World) -> None:
    world.insert(1)
    world.step(FlushNow())
    seen: list[str] = []
    for _ in range(5):
        # Entries of the index are small, and may find room where a segment does not.
        world.disk.fail("write", number=errno.ENOSPC, part="segments/")
        world.insert(2)
        for _ in range(3):
            seen += states(world.step(FlushNow(), after=40))
    assert set(seen) == {"failed"}
    world.disk.heal()
    reports = [*world.step(FlushNow(), after=40), *world.step(FlushNow(), after=40)]
    assert states(reports) == ["streaming"]
    assert world.replayed() == world.source.rows(TABLE)


@pytest.mark.meets("R36")
def test_a_source_without_news_streams_again_once_its_log_is_open(world: World) -> None:
    world.start()
    world.disk.fail("write", number=errno.ENOSPC, part="index/")
    assert states(world.step()) == ["connecting", "failed"]
    assert states([*world.step(after=40), *world.step()]) == ["streaming"]


@pytest.mark.meets("R36")
def test_a_failing_disk_is_tried_less_and_less_often(world: World) -> None:
    world.insert(1)
    world.step()
    pauses: list[float] = []
    for _ in range(24):
        world.disk.fail("write", number=errno.ENOSPC, part="segments/")
        world.step(FlushNow(), after=40)
        world.step(FlushNow())
        pauses.append(world.recorder._pause)
    assert pauses[-1] == module.LONGEST_PAUSE_SECONDS


@pytest.mark.meets("R31")
def test_a_writer_that_lost_its_log_stops(world: World) -> None:
    world.insert(1)
    world.step()
    world.origin_term = 2
    other = world.open_log()
    reports = world.step(FlushNow())
    assert [failed.code for failed in failures(reports)] == ["changelog.lost_writer"]
    assert failures(reports)[0].stops
    assert world.recorder.done
    assert other.epoch == 1


def test_a_refusing_source_stops_the_recorder(world: World) -> None:
    world.source.inject_error(SourceRefused("No"))
    reports = world.step()
    assert failures(reports)[0].stops
    assert states(reports) == ["failed"]
    assert world.recorder.done
    assert world.step() == []


def test_stopping_flushes_what_is_pending(world: World) -> None:
    world.insert(1)
    world.step()
    reports = world.step(StopRecorder())
    assert flushes(reports)
    assert states(reports) == ["closed"]
    assert world.recorder.done
    assert len(world.replayed()) == 1


def test_lag_is_told_once_a_second_and_after_flushes(world: World) -> None:
    told = [
        report
        for _ in range(40)
        for report in world.step(after=0.1)
        if isinstance(report, LagReport)
    ]
    assert 3 <= len(told) <= 4
    world.insert(1, 2)
    world.step()
    (lag,) = [report for report in world.step(FlushNow()) if isinstance(report, LagReport)]
    assert (lag.changes, lag.captured) == (0, 2)


class Measured(MemorySource):
    """A source that measures how far reading is behind it, as a test says."""

    now = Lag(seconds=0.0, age=0.0)

    def lag(self) -> Lag:
        return self.now


@pytest.fixture
def measured(world: World) -> Measured:
    """The source of a recorder that has just said that all is in the log."""
    source = Measured(clock=world.clock)
    source.traits = replace(source.traits, measures_lag=True)
    source.set_supports_resume(True)
    source.set_schema(TABLE, {"id": "int64", "name": "text"}, key=["id"])
    world.source, world.origin_term = source, 2
    world.start()
    for _ in range(3):
        world.step(after=1.1)
    return source


def lags(reports: Sequence[Report]) -> list[LagReport]:
    return [report for report in reports if isinstance(report, LagReport)]


def test_what_was_read_and_is_not_in_the_log_counts_as_not_read(
    world: World, measured: Measured
) -> None:
    measured.now = Lag(seconds=None, age=40.0)
    world.step(after=1.1)
    world.step(after=1.1)
    # All of it was read at once, and the flush is yet to come.
    world.insert(1)
    measured.now = Lag(seconds=0.0, age=0.0, bytes=0)
    (lag,) = lags(world.step(after=0.2))
    assert lag.seconds == lag.age and lag.age and lag.age > 40
    (lag,) = lags(world.step(FlushNow(), after=1.1))
    assert (lag.seconds, lag.age) == (0.0, 0.0)


def test_a_steady_load_does_not_keep_a_source_from_being_current(
    world: World, measured: Measured
) -> None:
    found = []
    for number in range(100):
        world.insert(number)
        found += lags(world.step(after=0.1))
    assert 8 <= len(found) <= 12
    assert all(lag.age is not None and lag.age <= 1.5 for lag in found), found


@pytest.mark.meets("R31", "R36")
@pytest.mark.parametrize("seed", range(40))
def test_no_power_cut_loses_or_repeats_a_change(seed: int) -> None:
    dice = random.Random(seed)
    world = World()
    steps = 0
    fatal = dice.randrange(5, 60)

    def count(step: str, path: str) -> None:
        nonlocal steps
        steps += 1
        if steps % fatal == 0:
            raise PowerCut

    world.disk.on_step = count
    world.source.chunk_rows = 10
    asked = False
    for key in range(60):
        if dice.random() < 0.7:
            world.insert(*range(key * 10, key * 10 + dice.randrange(1, 4)))
        commands: list[Command] = [FlushNow()] if dice.random() < 0.6 else []
        if not asked or dice.random() < 0.1:
            commands.append(TakeBaseline(TABLE))
            asked = True
        try:
            world.step(*commands, after=dice.choice([0, 0.01, 1]))
        except PowerCut:
            world.disk.power_cut(dice)
            world.start()
            asked = False
    world.disk.on_step = lambda step, path: None
    for number in range(40):
        commands = [FlushNow(), TakeBaseline(TABLE)] if number == 0 else [FlushNow()]
        world.step(*commands, after=1)
    assert world.replayed() == world.source.rows(TABLE)
    seen = [(change["_commit"], change["_ordinal"]) for change in _every_change(world.reader())]
    assert len(seen) == len(set(seen))
    assert sorted(seen) == seen


def _every_change(log: LogReader) -> list[dict[str, int]]:
    found = []
    at = ORIGIN
    while (batch := log.next_batch(TABLE, at, 10**6)) is not None:
        for file in batch.files:
            found += log.rows(file).to_pylist()
        at = batch.last
    return found


def test_opening_a_source_again_because_something_changed_counts_as_no_failure(
    world: World,
) -> None:
    world.recorder = Recorder(
        world.source, world.open_log, [TABLE], world.clock, reconnect=Retries(max_attempts=1)
    )
    world.step()
    for at in ("read", "open", "read"):
        world.source.inject_error(Reopening("A table was altered"), at=at)
        for _ in range(4):
            world.step(after=1.0)
        assert not world.recorder.done
    world.insert(1)
    world.step()
    world.step(after=1.0)
    assert len(world.replayed()) == 1
    world.source.inject_error(SourceUnreachable("The stream was lost"))
    [failed] = failures(world.step())
    assert failed.stops


def test_failures_before_and_after_a_time_without_tables_do_not_count_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.recorder = Recorder(
        world.source, world.open_log, [TABLE], world.clock, reconnect=Retries(max_attempts=2)
    )
    world.insert(1)
    world.step()
    world.step(FlushNow(), after=1.0)
    monkeypatch.delitem(world.source._schemas, TABLE)
    world.source.set_away(True)
    world.step()
    for _ in range(3):
        world.source.set_away(False)
        assert states(world.step(after=60.0))[-1] == "watching"
        world.source.set_away(True)
        assert states(world.step(after=60.0)) == ["reconnecting"]
    assert not world.recorder.done
