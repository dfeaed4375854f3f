"""Run rounds until the time is up, and tell what came of them."""

from __future__ import annotations

import argparse
import itertools
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from tests.crash.plan import planned
from tests.crash.report import page, summary, table, too_few
from tests.crash.round import Outcome, play

RESULTS = Path(__file__).parent / "RESULTS.md"
LONG_MINUTES = 10.0
FULL_ROUNDS = 100
"""A run of fewer rounds by number is a look, not a proof: points may be missed in it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--rounds", type=int, help="so many rounds, however long they take")
    parser.add_argument("--minutes", type=float, default=LONG_MINUTES)
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on")
    parser.add_argument("--spark-share", type=float, default=0.2)
    parser.add_argument("--jobs", type=int, default=2, help="rounds at a time; one with Spark")
    arguments = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    full = arguments.rounds is None or arguments.rounds >= FULL_ROUNDS
    until = time.monotonic() + arguments.minutes * 60
    run = Run(seed, arguments.spark_share, arguments.rounds, until)
    jobs = min(arguments.jobs, arguments.rounds or arguments.jobs)
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(run.work) for _ in range(jobs)]:
            done.result()
    outcomes = run.outcomes
    print("\n".join(table(outcomes)))
    print(summary(outcomes))
    few = too_few(outcomes) if full else []
    if few:
        print(f"Hit too rarely: {', '.join(few)}")
    if arguments.rounds is None and arguments.minutes >= LONG_MINUTES:
        RESULTS.write_text(page(outcomes, seed, arguments.minutes))
    return 1 if few or any(outcome.error for outcome in outcomes) else 0


class Run:
    """Rounds, one after the other, by as many workers as there are."""

    def __init__(self, seed: int, spark_share: float, rounds: int | None, until: float) -> None:
        self.outcomes: list[Outcome] = []
        self._seeds = itertools.count(seed)
        self._left = rounds
        self._until = until
        self._spark_share = spark_share
        self._lock = threading.Lock()
        self._jvm = threading.Lock()

    def work(self) -> None:
        """Play rounds until there is no more time, or no more to play."""
        while (seed := self._next()) is not None:
            plan = planned(seed, self._spark_share)
            # One JVM at a time: two would starve each other on a small machine.
            with self._jvm if plan.spark else nullcontext():
                outcome = play(plan)
            with self._lock:
                self.outcomes.append(outcome)
                _tell(outcome, self._spark_share)

    def _next(self) -> int | None:
        with self._lock:
            if self._left is None:
                return next(self._seeds) if time.monotonic() < self._until else None
            self._left -= 1
            return next(self._seeds) if self._left >= 0 else None


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
