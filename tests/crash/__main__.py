"""Run rounds until the time is up, and tell what came of them."""

from __future__ import annotations

import argparse
import secrets
import sys
from functools import partial
from pathlib import Path

from tests.crash.report import page, summary, table, too_few
from tests.crash.round import Outcome
from tests.crash.run import Run

RESULTS = Path(__file__).parent / "RESULTS.md"
LONG_MINUTES = 10.0
FULL_ROUNDS = 100
"""A run of fewer rounds by number is a look, not a proof: points may be missed in it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--rounds", type=int, help="so many rounds, however long they take")
    parser.add_argument("--minutes", type=float, default=LONG_MINUTES)
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on")
    parser.add_argument("--spark-share", type=float, default=0.15)
    parser.add_argument("--jobs", type=int, default=2, help="rounds at a time; one with Spark")
    arguments = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    full = arguments.rounds is None or arguments.rounds >= FULL_ROUNDS
    run = Run(
        seed,
        rounds=arguments.rounds,
        seconds=None if arguments.rounds is not None else arguments.minutes * 60,
        spark_share=arguments.spark_share,
        tell=partial(_tell, spark_share=arguments.spark_share),
    )
    outcomes = run.play(arguments.jobs)
    print("\n".join(table(outcomes)))
    print(summary(outcomes))
    few = too_few(outcomes) if full else []
    if few:
        print(f"Hit too rarely: {', '.join(few)}")
    if arguments.rounds is None and arguments.minutes >= LONG_MINUTES:
        RESULTS.write_text(page(outcomes, seed, arguments.minutes))
    return 1 if few or any(outcome.error for outcome in outcomes) else 0


def _tell(outcome: Outcome, spark_share: float) -> None:
    plan = outcome.plan
    kills = ", ".join(
        f"{kill.strike}{'' if outcome.hits[kill.strike] else ' (not reached)'}"
        for kill in plan.kills
    )
    with_what = "spark" if plan.spark else "arrow"
    print(
        f"seed {plan.seed} {with_what} {outcome.seconds:5.1f} s "
        f"{'ok   ' if outcome.error is None else 'WRONG'} {kills}",
        flush=True,
    )
    if outcome.error is not None:
        print(f"  {outcome.error}")
        print(f"  kept: {outcome.folder}")
        share = f" --spark-share {spark_share:g}"
        print(f"  again: python -m tests.crash --rounds 1 --seed {plan.seed}{share}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
