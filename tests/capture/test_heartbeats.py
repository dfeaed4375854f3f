"""How the log's end follows a source in which nothing of ours changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.capture import recorder
from headrace.capture.messages import Flushed, FlushNow
from tests.capture.test_recorder import World

FAR = 16


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A source whose commits are numbered by the bytes of its log."""
    monkeypatch.setattr(recorder, "HEARTBEAT_BYTES", FAR)
    made = World()
    made.source.traits = replace(made.source.traits, counts_bytes=True)
    made.step()
    return made


def move(world: World, size: int) -> None:
    """Let the source write so many bytes that are none of ours."""
    for _ in range(size):
        world.source.heartbeat()
    world.step(after=0.1)


@pytest.mark.meets("R34")
def test_a_source_that_could_let_go_of_much_may_do_so_at_once(world: World) -> None:
    entries, end = world.reader().last_entry, world.reader().end.commit
    move(world, FAR)
    assert world.reader().last_entry == entries
    world.source.heartbeat()
    reports = world.step(after=0.1)
    assert world.reader().end.commit == end + FAR + 1
    assert Flushed(entries + 1) in reports
    # From there on it is counted anew.
    move(world, FAR)
    assert world.reader().last_entry == entries + 1
    world.step(after=recorder.HEARTBEAT_SECONDS)
    assert world.reader().last_entry == entries + 2


@pytest.mark.meets("R34")
def test_numbers_that_are_no_bytes_wait_for_their_time(world: World) -> None:
    world.source.traits = replace(world.source.traits, counts_bytes=False)
    entries = world.reader().last_entry
    move(world, 100 * FAR)
    assert world.reader().last_entry == entries


@pytest.mark.meets("R34")
def test_however_far_it_is_what_was_read_before_goes_first(world: World) -> None:
    world.insert(1)
    world.step()
    move(world, 2 * FAR)
    assert not world.replayed()
    world.step(FlushNow())
    assert len(world.replayed()) == 1
    world.step(after=0.1)
    move(world, 2 * FAR)
    assert world.reader().end.commit > 4 * FAR


def test_the_distance_is_that_of_an_acknowledgement() -> None:
    assert recorder.HEARTBEAT_BYTES == 16 << 20
    end = 16 << 20
    assert not recorder.due(0, end, wanted=0, waited=0.0, counts_bytes=True)
    assert recorder.due(0, end + 1, wanted=0, waited=0.0, counts_bytes=True)
