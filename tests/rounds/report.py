"""What a run came to, as a table: what was done to it, how often, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.rounds.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Report:
    """How one program tells of its rounds."""

    module: str
    """What is behind `python -m`."""

    head: str
    """Of the table's first column."""

    names: Sequence[str]
    """Its rows."""

    blows: str
    """What hits are called."""

    counted: Callable[[Sequence[Outcome]], str]
    """What else there is to say of a run."""

    more: Callable[[Outcome], str] = lambda outcome: ""
    """What else there is to say of a round, behind its blows."""

    def table(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Return the lines of the table."""
        hits, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
        for outcome in outcomes:
            hits += outcome.hits
            missed += outcome.missed
            if outcome.error is not None:
                wrong.update(set(outcome.hits))
        lines = [
            f"| {self.head} | hits | not reached | rounds gone wrong |",
            "|---|---:|---:|---:|",
        ]
        lines += [
            f"| {name} | {hits[name]} | {missed[name]} | {wrong[name]} |" for name in self.names
        ]
        return lines

    def summary(self, outcomes: Sequence[Outcome]) -> str:
        """Return the run in one line."""
        wrong = sum(outcome.error is not None for outcome in outcomes)
        hits = sum(outcome.hits.total() for outcome in outcomes)
        return (
            f"{len(outcomes)} rounds; {hits} {self.blows}; {self.counted(outcomes)};"
            f" {wrong} rounds gone wrong"
        )

    def told(self, outcome: Outcome) -> list[str]:
        """Return what is printed of a round."""
        marks = [f"{name}{'' if n == 1 else f' x{n}'}" for name, n in outcome.hits.items()]
        marks += [f"{name} (not reached)" for name in outcome.missed]
        verdict = "ok   " if outcome.error is None else "WRONG"
        lines = [
            f"seed {outcome.seed} {outcome.seconds:5.1f} s {verdict} {', '.join(marks)}"
            f"{self.more(outcome)}"
        ]
        if outcome.error is not None:
            lines.append(f"  {outcome.error}")
            lines.append(f"  kept: {outcome.folder}")
            lines.append(f"  again: python -m {self.module} --rounds 1 --seed {outcome.seed}")
        return lines
