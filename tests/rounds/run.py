"""Play rounds until there are enough or the time is up, and tell what came of them."""

from __future__ import annotations

import argparse
import itertools
import secrets
import time
from collections.abc import Callable, Sequence

from tests.rounds.outcome import Outcome
from tests.rounds.report import Report

MINUTES = 10.0


def main(
    report: Report,
    play: Callable[[int], Outcome],
    keep: Callable[[Sequence[Outcome]], None] | None = None,
) -> int:
    """
    Read the command line, let `play` play the round of each seed, and return the exit code.

    `keep` tells of the whole run, in place of the table.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {report.module}")
    parser.add_argument("--rounds", type=int, help="so many rounds at most")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="begin none after that")
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on")
    arguments = parser.parse_args()
    first = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    until = time.monotonic() + arguments.minutes * 60
    outcomes: list[Outcome] = []
    for seed in itertools.count(first):
        if len(outcomes) == arguments.rounds or (outcomes and time.monotonic() > until):
            break
        outcomes.append(play(seed))
        print("\n".join(report.told(outcomes[-1])), flush=True)
    if keep is not None:
        keep(outcomes)
    else:
        print("\n".join(report.table(outcomes)))
        print(report.summary(outcomes))
    return 1 if any(outcome.error for outcome in outcomes) else 0
