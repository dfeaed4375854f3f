"""
The log under power cuts and kills, at every step of every write (P2).

One seed plays a source whose changes are numbered, a writer that is cut down somewhere and
opened again, and a reader; afterwards the log holds every change it promised, once, in order.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from headrace.changelog.position import Position
from headrace.errors import HeadraceError
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.killpoints import (
    BEFORE_CHECKPOINT,
    ENTRY_LINKED,
    ENTRY_SYNCED,
    SEGMENT_WRITTEN,
)
from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.changelog.log_making import (
    ORIGIN_TEXT,
    At,
    baseline,
    commits,
    files_on,
    logged,
    opened,
    reading,
)
from tests.support.cuts import (
    STEPS,
    Step,
    assert_every_kind,
    counting,
    cut,
    places,
    steps_of,
)
from tests.support.tiers import thinned

COMMITS = 12


def record(files: Files, term: int, promised: list[int]) -> None:
    """Record the source to its end, from where the log stands; note what was promised."""
    log = opened(files, writer=f"w{term}", term=term)
    if log.epoch == 0:
        log.begin(At(0), "start", ORIGIN_TEXT)
    if log.end.commit < 3:
        baseline(log)
    while (at := log.end.commit) < COMMITS:
        if at == 5:
            log.heartbeat(At(6))
            promised.append(5)
            continue
        log.append(commits(at + 1))
        if at % 3 == 0 and at + 1 < COMMITS and at + 2 != 6:
            log.append(commits(at + 2))
        flush = log.flush()
        assert flush is not None
        promised.append(flush.span[1].commit)


def check(files: Files, promised: list[int], *, whole: bool) -> None:
    """Check that the log is sound and holds at least what was promised."""
    reader = reading(files)
    found = logged(reader)
    expected = [n for n in range(1, COMMITS + 1) if n != 6]
    assert found == expected[: len(found)]
    if promised:
        assert reader.end.commit >= max(promised)
    if whole:
        assert found == expected
        assert reader.end == Position(1, COMMITS)
        assert reader.usable_baseline("orders") is not None


def play_failures(seed: int) -> None:
    """Cut, kill or fail a writer four times, then let one finish."""
    dice = Random(seed)
    disk = SimulatedDisk()
    files = files_on(disk)
    promised: list[int] = []
    for term in range(1, 5):
        fate = dice.choice(("cut", "kill", "fault"))
        if fate == "fault":
            disk.fail(
                dice.choice(STEPS),
                dice.choice((errno.EIO, errno.ENOSPC)),
                nth=dice.randrange(1, 30),
                done=dice.random() < 0.5,
            )
        else:
            disk.on_step = counting(dice.randrange(110), cut)
        try:
            record(files, term, promised)
        except (PowerCut, HeadraceError):
            disk.on_step = None
            if fate != "kill" and dice.random() < 0.8:
                disk.power_cut(dice)
        disk.on_step = None
        disk.heal()
        # A reader makes durable what it reads, so it does not always look.
        if dice.random() < 0.5:
            check(files, promised, whole=False)
    disk.power_cut(dice)
    check(files, promised, whole=False)
    record(files, 9, promised)
    disk.power_cut(dice)
    check(files, promised, whole=True)


def play_takeover(seed: int) -> None:
    """Stop a writer somewhere, let a new one record, then wake the old one."""
    disk = SimulatedDisk()
    files = files_on(disk)
    promised: list[int] = []

    def take_over() -> None:
        disk.on_step = None
        record(files, 2, promised)

    disk.on_step = counting(seed, take_over)
    with suppress(HeadraceError):
        record(files, 1, promised)
    disk.on_step = None
    check(files, promised, whole=False)
    record(files, 3, promised)
    check(files, promised, whole=True)


@pytest.mark.meets("P2", "R36")
@pytest.mark.parametrize("batch", range(8))
def test_no_power_cut_kill_or_fault_loses_what_was_promised(batch: int) -> None:
    for seed in thinned(range(batch * 20, batch * 20 + 20), every=5):
        play_failures(seed)


def cuts() -> tuple[list[Step], Sequence[int]]:
    """Return all steps, and at which of them somebody takes over."""
    steps = steps_of(lambda disk: record(files_on(disk), 1, []), STEPS)
    return steps, places(steps)


def test_a_writer_is_taken_over_at_every_kind_of_step() -> None:
    assert_every_kind(*cuts())


@pytest.mark.meets("P2", "R31")
@pytest.mark.slow
def test_a_takeover_at_any_step_leaves_one_history() -> None:
    for step in cuts()[1]:
        play_takeover(step)


PROGRAM = """
import sys
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.changelog.test_log_power_cut import beats, record
files = Files(RealDisk(), sys.argv[1])
record(files, 1, []) if sys.argv[2] != "before_checkpoint" else beats(files)
"""


def beats(files: Files) -> None:
    """Write entries until one owes a checkpoint."""
    log = opened(files)
    log.begin(At(0), "start", ORIGIN_TEXT)
    for commit in range(1, 1_001):
        log.heartbeat(At(commit))


@pytest.mark.crash
@pytest.mark.meets("P2")
@pytest.mark.parametrize(
    "point",
    [
        *[f"{SEGMENT_WRITTEN}:{nth}" for nth in (1, 3)],
        *[f"{ENTRY_LINKED}:{nth}" for nth in (1, 2, 5)],
        *[f"{ENTRY_SYNCED}:{nth}" for nth in (1, 4)],
        BEFORE_CHECKPOINT,
    ],
)
def test_a_killed_process_leaves_a_log_that_goes_on(point: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HEADRACE_KILL_POINT": point}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), point], env=environment, check=False
    )
    assert done.returncode == -9
    files = Files(RealDisk(), str(tmp_path))
    if point == BEFORE_CHECKPOINT:
        assert reading(files).last_entry == 1_000
        opened(files, term=2)
        assert "0000000003e8.checkpoint.parquet" in files.list("log/shop/index")
        return
    record(files, 2, [])
    check(files, [], whole=True)
