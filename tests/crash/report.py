"""What a run came to, as a table: point, hits, outcome."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from headrace.storage.killpoints import POINTS
from tests.crash.plan import STRIKES
from tests.crash.round import Outcome

ENOUGH = 3
"""Hits that a full run must have on every named point."""


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the table."""
    hits, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    for outcome in outcomes:
        hits += outcome.hits
        missed += outcome.missed
        if outcome.error is not None:
            wrong.update(set(outcome.hits) or {"no kill"})
    names = [*STRIKES, *(["no kill"] if wrong["no kill"] else [])]
    lines = ["| point | hits | not reached | rounds gone wrong |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {hits[name]} | {missed[name]} | {wrong[name]} |" for name in names]
    return lines


def too_few(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the named points that were not hit often enough."""
    hits = Counter[str]()
    for outcome in outcomes:
        hits += outcome.hits
    return [name for name in POINTS if hits[name] < ENOUGH]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the run in one line."""
    with_spark = [outcome for outcome in outcomes if outcome.plan.spark]
    wrong = [outcome for outcome in outcomes if outcome.error is not None]
    kills = sum(outcome.hits.total() for outcome in outcomes)
    return (
        f"{len(outcomes)} rounds, {len(with_spark)} of them with Spark; "
        f"{kills} kills; {len(wrong)} rounds gone wrong"
    )


def page(outcomes: Sequence[Outcome], seed: int, minutes: float) -> str:
    """Return the page that keeps the last long run."""
    today = datetime.now(UTC).date().isoformat()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    wrong = [f"* seed {o.plan.seed}: {o.error}" for o in outcomes if o.error is not None]
    few = [f"* hit fewer than {ENOUGH} times: {name}" for name in too_few(outcomes)]
    return "\n".join(
        [
            "# The last long crash run",
            "",
            f"{today}, `python -m tests.crash --minutes {minutes:g} --seed {seed}`, "
            f"{machine}, Python {platform.python_version()}.",
            "",
            f"{summary(outcomes)}.",
            "",
            *table(outcomes),
            *([""] if wrong or few else []),
            *wrong,
            *few,
            "",
        ]
    )
