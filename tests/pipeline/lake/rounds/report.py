"""How a run is told: who was killed when, how often, and how many versions were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.pipeline.lake.rounds.plan import ALL
from tests.rounds.outcome import Outcome
from tests.rounds.report import Report


def _counted(outcomes: Sequence[Outcome]) -> str:
    commits = sum(outcome.writes["commit"] for outcome in outcomes)
    versions = sum((outcome.versions for outcome in outcomes), Counter[str]())
    kinds = ", ".join(f"{operation} {n}" for operation, n in versions.most_common())
    unsure = sum(outcome.unsure for outcome in outcomes)
    return (
        f"{commits} transactions; {versions.total()} versions of tables read ({kinds}),"
        f" {unsure} of them beside a commit"
    )


def _more(outcome: Outcome) -> str:
    return f"; {outcome.writes['commit']} transactions, {outcome.versions.total()} versions"


REPORT = Report(
    "tests.pipeline.lake.rounds", "killed", tuple(map(str, ALL)), "kills", _counted, _more
)
