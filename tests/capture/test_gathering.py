"""Where writes are paid for, changes are gathered, however often somebody asks for them."""

from __future__ import annotations

import pytest

from headrace.capture.messages import Flushed, FlushNow
from headrace.storage.files import Files
from headrace.storage.objects import Objects
from headrace.storage.simulation import SimulatedBucket
from tests.capture.test_recorder import World, flushes

SECONDS = 10


class BucketWorld(World):
    """The same with its log in a bucket."""

    def __init__(self) -> None:
        self.bucket = SimulatedBucket()
        super().__init__()

    def files(self) -> Files:
        return Objects(self.bucket, "bucket", "shop")


def flushed_by_an_idle_engine(world: World) -> int:
    """Return the flushes under steady changes, of an engine that asks 100 ms after each."""
    world.step()
    world.step()
    begun, ask_at, asked, count = world.now, world.now, False, 0
    for key in range(100 * SECONDS):
        world.insert(key)
        ask = not asked and world.now >= ask_at
        asked = asked or ask
        found = flushes(world.step(*([FlushNow()] if ask else []), after=0.01))
        if found:
            count, asked, ask_at = count + found, False, world.now + 0.1
    assert world.now - begun == pytest.approx(SECONDS)
    return count


@pytest.mark.slow
def test_in_a_bucket_there_are_at_most_two_flushes_a_second() -> None:
    world = BucketWorld()
    count = flushed_by_an_idle_engine(world)
    assert SECONDS < count <= 2 * SECONDS + 1


@pytest.mark.slow
def test_on_a_disk_who_asks_is_given_what_is_there() -> None:
    assert flushed_by_an_idle_engine(World()) > 5 * SECONDS


def test_what_was_asked_for_comes_when_it_was_gathered() -> None:
    world = BucketWorld()
    world.step()
    world.insert(1)
    world.step()
    assert flushes(world.step(FlushNow(), after=0.1)) == 0
    (told,) = (each for each in world.step(after=0.5) if isinstance(each, Flushed))
    assert told.entry
