"""Play rounds until there are enough or the time is up, and tell what came of them."""

from __future__ import annotations

import argparse
import itertools
import secrets
import sys
import time

from tests.pipeline.lake.rounds.plan import planned
from tests.pipeline.lake.rounds.report import summary, table, told
from tests.pipeline.lake.rounds.round import Outcome, play

MINUTES = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.lake.rounds")
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
        outcomes.append(play(planned(seed)))
        print("\n".join(told(outcomes[-1])), flush=True)
    print("\n".join(table(outcomes)))
    print(summary(outcomes))
    return 1 if any(outcome.error for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
