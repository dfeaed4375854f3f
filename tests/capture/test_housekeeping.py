"""What a recorder does between two reads, and when: a change on its way does not pass it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from headrace.capture.messages import FlushNow, TakeBaseline
from headrace.capture.recorder import LAG_SECONDS, Recorder
from headrace.capture.source import SourceNotice
from headrace.changelog.change import Changes
from headrace.changelog.entries import Flush
from headrace.changelog.reader import LogWriter
from headrace.errors import SourceUnreachable
from headrace.testing.source import MemorySource
from tests.capture.test_recorder import TABLE, World

EVERY_SECONDS = 30.0


class Maintained(MemorySource):
    """A source that finds out, when it is maintained, that rows changed without a change."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=world.clock)
        self.traits = replace(self.traits, reports_notices=True, maintains=True)
        self.set_schema(TABLE, {"id": "int64", "name": "text"}, key=["id"])
        self.steps: list[str] = []
        self.finds: list[SourceNotice] = []
        self._news: list[SourceNotice] = []

    def maintain(self) -> float:
        self.steps.append("maintain")
        self._news, self.finds = self.finds, []
        return EVERY_SECONDS

    def read(self, most: int, wait: float) -> Changes | None:
        self.steps.append("read")
        return super().read(most, wait)

    def notices(self) -> list[SourceNotice]:
        found, self._news = self._news, []
        return found

    def claim(self) -> str:
        return "mine"

    def recall(self, notes: Mapping[str, str], schemas: Mapping[str, object]) -> None:
        """Remember nothing."""

    def synced(self, upto: str) -> None:
        """Keep nothing."""


class Early(Maintained):
    """A source that has something to note before each part of a commit."""

    def read(self, most: int, wait: float) -> Changes | None:
        changes = super().read(most, wait)
        if changes is not None and changes.tables:
            number = self.steps.count("read") - 1
            self._news.append(SourceNotice("names", note=f"up to part {number}", early=True))
        return changes


@pytest.fixture
def world() -> World:
    made = World()
    made.step()
    return made


def maintained() -> tuple[World, Maintained]:
    """Return a world, opened and not read yet, and its source."""
    world = World()
    world.source = source = Maintained(world)
    world.start()
    world.step()
    return world, source


def test_changes_pass_no_housekeeping_while_nothing_in_it_is_due(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = 0
    housekeeping = Recorder._housekeeping

    def counted(self: Recorder, log: LogWriter, *, reads: bool) -> None:
        nonlocal entered
        entered += 1
        housekeeping(self, log, reads=reads)

    monkeypatch.setattr(Recorder, "_housekeeping", counted)
    world.step()
    assert entered == 1  # the first one after the source was opened
    for key in range(10):
        world.insert(key)
        world.step(FlushNow(), after=0.01)
        world.step(after=0.01)
    assert len(world.replayed()) == 10
    assert entered == 1
    world.step(after=LAG_SECONDS)
    assert entered == 2
    world.step(TakeBaseline(TABLE))
    while world.reader().usable_baseline(TABLE) is None:
        world.step()
    assert entered > 5  # a baseline goes on after every read
    entered = 0
    for _ in range(5):
        world.step()
    assert entered == 0


def test_a_source_is_maintained_before_its_first_read_and_then_when_it_says() -> None:
    world, source = maintained()
    assert source.steps == []
    world.step()
    world.step(after=EVERY_SECONDS - 1)
    assert source.steps == ["maintain", "read", "read"]
    world.step(after=1)
    world.step(after=0)
    assert source.steps == ["maintain", "read", "read", "maintain", "read", "read"]


def test_what_maintenance_finds_is_in_the_log_before_what_is_read_after_it() -> None:
    world, source = maintained()
    world.step(TakeBaseline(TABLE))
    while world.reader().usable_baseline(TABLE) is None:
        world.step()
    world.insert(1)
    source.finds = [SourceNotice(TABLE, rebaseline_reason="rewritten")]
    world.step(FlushNow(), after=EVERY_SECONDS)
    rebaseline_reason = world.reader().rebaseline_required(TABLE)
    assert rebaseline_reason is not None
    assert source.position.commit == 1
    assert world.reader().end.commit == 0  # the change is read, and not yet flushed
    world.step(after=1)
    assert world.reader().end.commit == 1
    assert world.reader().rebaseline_required(TABLE) == rebaseline_reason


@pytest.mark.meets("R23b")
@pytest.mark.parametrize("lost", [False, True], ids=["read on", "lost"])
def test_an_early_note_is_in_the_log_before_a_commit_that_comes_in_parts(
    monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr("headrace.capture.recorder.READ_ROWS", 2)
    world = World()
    world.source = source = Early(world)
    world.start()
    world.step()
    world.step()
    world.insert(1, 2, 3, 4, 5)
    seen: list[str | None] = []
    flush = LogWriter.flush

    def noted(self: LogWriter) -> Flush | None:
        found = flush(self)
        if found is not None:
            seen.append(self.notes.get("names"))
        return found

    monkeypatch.setattr(LogWriter, "flush", noted)
    for number in range(3):
        assert seen == []
        world.step(after=0.0)
        assert source.steps.count("read") == number + 2
        log = world.recorder._log
        assert log is not None
        assert log.notes.get("names") == f"up to part {number + 1}"
        assert log.pending_complete == (number == 2)
    if lost:
        source.inject_error(SourceUnreachable("The source is away"))
        world.step()
    else:
        world.step(FlushNow(), after=1.0)
    assert seen == ["up to part 3"]
    assert len(world.replayed()) == 5
