"""What a run came to, as a table: what was done to it, how often, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.postgres.rounds.plan import STRIKES, Act
from tests.postgres.rounds.round import Outcome


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the table."""
    hits, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    for outcome in outcomes:
        hits += outcome.hits
        missed += outcome.missed
        if outcome.error is not None:
            wrong.update(set(outcome.hits))
    lines = ["| what | hits | not reached | rounds gone wrong |", "|---|---:|---:|---:|"]
    lines += [
        f"| {name} | {hits[name]} | {missed[name]} | {wrong[name]} |" for name in [*STRIKES, *Act]
    ]
    return lines


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the run in one line."""
    wrong = [outcome for outcome in outcomes if outcome.error is not None]
    blows = sum(outcome.hits.total() for outcome in outcomes)
    commits = sum(outcome.writes["commit"] + outcome.writes["prepared"] for outcome in outcomes)
    return (
        f"{len(outcomes)} rounds; {blows} blows; {commits} commits; {len(wrong)} rounds gone wrong"
    )


def told(outcome: Outcome) -> list[str]:
    """Return what is printed of a round."""
    marks = [f"{name}{'' if n == 1 else f' x{n}'}" for name, n in outcome.hits.items()]
    marks += [f"{name} (not reached)" for name in outcome.missed]
    verdict = "ok   " if outcome.error is None else "WRONG"
    lines = [f"seed {outcome.plan.seed} {outcome.seconds:5.1f} s {verdict} {', '.join(marks)}"]
    if outcome.error is not None:
        lines.append(f"  {outcome.error}")
        lines.append(f"  kept: {outcome.folder}")
        again = f"python -m tests.postgres.rounds --rounds 1 --seed {outcome.plan.seed}"
        lines.append(f"  again: {again}")
    return lines
