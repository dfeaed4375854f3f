"""How a run is told: what was done to it, how often, and how many commits there were."""

from __future__ import annotations

from collections.abc import Sequence

from tests.postgres.rounds.plan import STRIKES, Act
from tests.rounds.outcome import Outcome
from tests.rounds.report import Report


def _counted(outcomes: Sequence[Outcome]) -> str:
    commits = sum(outcome.writes["commit"] + outcome.writes["prepared"] for outcome in outcomes)
    return f"{commits} commits"


REPORT = Report("tests.postgres.rounds", "what", (*STRIKES, *Act), "blows", _counted)
