"""
Where a story on a simulated disk is interrupted: at each kind of step, and in the night at all.

The steps of a log have a rhythm: write, sync, link, remove, sync_folder. One of every so many of
them may miss whole kinds for ever, so they are recorded on a run that nothing happens to, and
chosen by their kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from random import Random

from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.support.tiers import NIGHTLY

STEPS = ("write", "sync", "rename", "link", "remove", "sync_folder")
"""The operations of a disk that change it."""

Step = tuple[str, str]
"""An operation and its path."""

_NUMBER = re.compile(r"[0-9a-f]{12}|\d+")
_NAMING = ("link", "rename")
_COUNTING = (*_NAMING, "sync_folder")


def steps_of(story: Callable[[SimulatedDisk], object], among: Collection[str]) -> list[Step]:
    """Return the steps of these operations that a story takes where nothing happens to it."""
    found: list[Step] = []

    def on_step(step: str, path: str) -> None:
        if step in among:
            found.append((step, path))

    story(SimulatedDisk(on_step))
    return found


def counting(
    steps: int, then: Callable[[], None], among: Collection[str] = STEPS
) -> Callable[[str, str], None]:
    """Return a hook that calls `then` at each writing step after the first `steps`."""
    left = steps

    def on_step(step: str, _: str) -> None:
        nonlocal left
        left -= step in among
        if left < 0:
            then()

    return on_step


def cut() -> None:
    raise PowerCut


def places(steps: Sequence[Step], since: int = 0, more: int = 3) -> Sequence[int]:
    """
    Return where to interrupt: at the first step of each kind, and at a few more; at night at all.

    The first is sought `since` a step, where what is told before it is not the point.
    """
    if NIGHTLY:
        return range(len(steps))
    firsts: dict[tuple[str, ...], int] = {}
    for number, kind in enumerate(_kinds(steps[since:]), since):
        firsts.setdefault(kind, number)
    others = sorted(set(range(len(steps))) - set(firsts.values()))
    return sorted([*firsts.values(), *Random(more).sample(others, more)])


def assert_every_kind(steps: Sequence[Step], walked: Iterable[int]) -> None:
    """Assert that each operation is interrupted on each kind of file that it is done to."""
    assert steps
    missed = set(map(_kind, steps)) - {_kind(steps[number]) for number in walked}
    assert not missed, missed


def _kind(step: Step) -> tuple[str, str]:
    operation, path = step
    return operation, _NUMBER.sub("#", path)


def _kinds(steps: Iterable[Step]) -> Iterator[tuple[str, ...]]:
    """
    Yield the kind of each step.

    Where a name begins to count or to last, it matters what it counts for: the entry of a
    compaction is named like any other, after a merged segment in another folder.
    """
    named: dict[str, str] = {}
    for step in steps:
        operation, path = step
        folder = path if operation == "sync_folder" else path.rpartition("/")[0]
        kind: tuple[str, ...] = _kind(step)
        if operation in _COUNTING:
            kind += tuple(there for at, there in named.items() if at != folder)
        if operation in _NAMING:
            named[folder] = kind[1]
        yield kind
