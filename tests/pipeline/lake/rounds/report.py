"""What a run came to, as a table: who was killed when, how often, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.pipeline.lake.rounds.plan import ALL
from tests.pipeline.lake.rounds.round import Outcome


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the table."""
    hits, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    for outcome in outcomes:
        hits += outcome.hits
        missed += outcome.missed
        if outcome.error is not None:
            wrong.update(set(outcome.hits))
    lines = ["| killed | hits | not reached | rounds gone wrong |", "|---|---:|---:|---:|"]
    lines += [
        f"| {name} | {hits[name]} | {missed[name]} | {wrong[name]} |" for name in map(str, ALL)
    ]
    return lines


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the run in one line."""
    wrong = [outcome for outcome in outcomes if outcome.error is not None]
    kills = sum(outcome.hits.total() for outcome in outcomes)
    commits = sum(outcome.writes["commit"] for outcome in outcomes)
    versions = sum((outcome.versions for outcome in outcomes), Counter[str]())
    kinds = ", ".join(f"{operation} {n}" for operation, n in versions.most_common())
    unsure = sum(outcome.unsure for outcome in outcomes)
    return (
        f"{len(outcomes)} rounds; {kills} kills; {commits} transactions;"
        f" {versions.total()} versions of tables read ({kinds}), {unsure} of them beside a commit;"
        f" {len(wrong)} rounds gone wrong"
    )


def told(outcome: Outcome) -> list[str]:
    """Return what is printed of a round."""
    marks = [f"{name}{'' if n == 1 else f' x{n}'}" for name, n in outcome.hits.items()]
    marks += [f"{name} (not reached)" for name in outcome.missed]
    verdict = "ok   " if outcome.error is None else "WRONG"
    lines = [
        f"seed {outcome.plan.seed} {outcome.seconds:5.1f} s {verdict} {', '.join(marks)};"
        f" {outcome.writes['commit']} transactions, {outcome.versions.total()} versions"
    ]
    if outcome.error is not None:
        lines.append(f"  {outcome.error}")
        lines.append(f"  kept: {outcome.folder}")
        again = f"python -m tests.pipeline.lake.rounds --rounds 1 --seed {outcome.plan.seed}"
        lines.append(f"  again: {again}")
    return lines
