"""How a run is told: what was done, how often, and how long it took to be seen."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from tests.postgres.witness.catalog import KINDS as CATALOG
from tests.postgres.witness.plan import DRAWN, KINDS, OF_SPARK
from tests.rounds.outcome import Outcome
from tests.rounds.report import Report

RESULTS = Path(__file__).parent / "RESULTS.md"
LONG_MINUTES = 25
"""A run that is shorter is for somebody who looks for a failure: it is not kept."""

ROOT = Path(__file__).parent.parent.parent.parent

RED: defaultdict[str, list[float]] = defaultdict(list)
"""Seconds from each fault to the first look that was not ready."""

GREEN: defaultdict[str, list[float]] = defaultdict(list)
"""Seconds from the end of each fault until all was ready again."""

NAMES = (
    *(kind for kind in KINDS if kind not in DRAWN),
    *dict.fromkeys(f"catalog: {name}" for name in CATALOG.values()),
)
"""The rows of the table: of what is drawn from the list of catalog changes, what it was."""


def times_to_red(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the table of times."""
    lines = [
        "| what | hits | not reached | seen | s to red, median | longest | s to green, median"
        " | longest |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    also = [each for each in (*OF_SPARK, *DRAWN) if any(_sum(outcomes, each))]
    for name in (*NAMES, *also):
        red, green = RED[name], GREEN[name]
        hits, missed = _sum(outcomes, name)
        lines.append(f"| {name} | {hits} | {missed} | {len(red)} | {_of(red)} | {_of(green)} |")
    return lines


def page(outcomes: Sequence[Outcome], minutes: float) -> str:
    """Return RESULTS.md."""
    commit = _git("rev-parse", "--short", "HEAD") + "+" * bool(_git("status", "--porcelain", "src"))
    seeds = [outcome.seed for outcome in outcomes]
    return "\n".join(
        [
            "# Rounds in which the status is examined",
            "",
            f"`python -m tests.postgres.witness --minutes 30`, {datetime.now(UTC).date()}, commit"
            f" {commit}, {minutes:.0f} minutes, seeds {min(seeds)} to {max(seeds)}. What is done,"
            " and what each look is compared with, is in `docs/internals/crash.md`.",
            "",
            f"{REPORT.summary(outcomes)}.",
            "",
            "*Seen* counts the faults after which a pipeline was not ready for at least one look;"
            " the others were over before anything was late. Seconds to red are from the fault to"
            " that look, seconds to green from the fault's end until all was ready.",
            "",
            *times_to_red(outcomes),
            "",
        ]
    )


def _sum(outcomes: Sequence[Outcome], name: str) -> tuple[int, int]:
    hits = sum(outcome.hits[name] for outcome in outcomes)
    return hits, sum(outcome.missed[name] for outcome in outcomes)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _of(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} | {max(seconds):.1f}" if seconds else "- | -"


def _counted(outcomes: Sequence[Outcome]) -> str:
    def total(name: str) -> int:
        return sum(outcome.writes[name] for outcome in outcomes)

    errors = [outcome.error or "" for outcome in outcomes]
    lost = sum(bool(re.search(r"[1-9]\d* missing| differs", error)) for error in errors)
    twice = sum(bool(re.search(r"happened \d+ times|follows", error)) for error in errors)
    return (
        f"{total('commit') + total('prepared') + total('beat')} commits; {total('look')} looks at"
        f" the status; {lost} rounds with rows lost; {twice} with effects twice;"
        f" {total('false green')} false greens"
    )


REPORT = Report("tests.postgres.witness", "what", NAMES, "faults", _counted)
