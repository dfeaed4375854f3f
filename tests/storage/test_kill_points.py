"""Kill points do nothing unless one is armed."""

from __future__ import annotations

import signal
import sys

import pytest

from headrace.storage.killpoints import POINTS, reach
from tests.support.children import python

PROGRAM = """
import sys
from headrace.storage.killpoints import reach
for name in sys.argv[1:]:
    reach(name)
    sys.stdout.write(name + " ")
    sys.stdout.flush()
"""


def run(armed: str, *names: str) -> tuple[int, str]:
    done = python(
        "-c", PROGRAM, *names, env={"HEADRACE_KILL_POINT": armed, "PYTHONPATH": ":".join(sys.path)}
    )
    return done.returncode, done.stdout.strip()


def test_names_are_unique_and_harmless_here() -> None:
    assert len(set(POINTS)) == len(POINTS)
    for name in POINTS:
        reach(name)


@pytest.mark.meets("P2")
@pytest.mark.parametrize(
    ("armed", "passed"),
    [("entry_linked", "entry_synced"), ("entry_linked:2", "entry_synced entry_linked")],
)
@pytest.mark.process
def test_an_armed_point_kills_at_the_time_it_was_armed_for(armed: str, passed: str) -> None:
    code, out = run(armed, "entry_synced", "entry_linked", "entry_linked")
    assert (code, out) == (-signal.SIGKILL, passed)


@pytest.mark.process
def test_nothing_armed_nothing_killed() -> None:
    assert run("", *POINTS) == (0, " ".join(POINTS))
