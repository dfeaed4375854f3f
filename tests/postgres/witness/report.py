"""How a run is told: what was done, how often, and how long it took to be seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from tests.postgres.witness.plan import Fault
from tests.rounds.outcome import Outcome
from tests.rounds.report import Report

RED: defaultdict[str, list[float]] = defaultdict(list)
"""Seconds from each fault to the first look that was not ready."""

GREEN: defaultdict[str, list[float]] = defaultdict(list)
"""Seconds from the end of each fault until all was ready again."""


def times_to_red() -> list[str]:
    """Return the lines of the table of times."""
    lines = [
        "",
        "| what | seen | s to red, median | longest | s to green, median | longest |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for fault in Fault:
        red, green = RED[fault], GREEN[fault]
        lines.append(f"| {fault} | {len(red)} | {_of(red)} | {_of(green)} |")
    return lines


def _of(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} | {max(seconds):.1f}" if seconds else "- | -"


def _counted(outcomes: Sequence[Outcome]) -> str:
    looks = sum(outcome.writes["look"] for outcome in outcomes)
    wrong = sum(outcome.writes["false green"] for outcome in outcomes)
    commits = sum(outcome.writes["commit"] + outcome.writes["prepared"] for outcome in outcomes)
    return f"{commits} commits; {looks} looks at the status; {wrong} false greens"


REPORT = Report("tests.postgres.witness", "what", tuple(Fault), "faults", _counted)
