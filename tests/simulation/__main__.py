"""
Run seeds: `python -m tests.simulation --seeds 2000`, or look at one with `--seed 7 --trace`.

What passed is kept, with the state of the code: a run that was interrupted goes on where it
stopped, and one that is complete says so. `--again` plays all the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import headrace
from tests.simulation.hooks import staged
from tests.simulation.ledger import PLACE, ROOT, Ledger, state_of_the_code
from tests.simulation.story import Outcome, play

SHOWN = 60
"""Lines of a failing seed's trace."""


def report(outcome: Outcome) -> str:
    """Return a failing seed in words, with the command that plays it again."""
    return "\n".join(
        (
            f"seed {outcome.seed} fails: {outcome.error}",
            *outcome.trace[-SHOWN:],
            "play it again:",
            f"  .venv/bin/python -m tests.simulation --seed {outcome.seed} --trace",
        )
    )


def main(arguments: Sequence[str]) -> int:
    """Play what was asked for; 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with every step")
    parser.add_argument("--jobs", type=int, default=1, help="processes, a core each")
    parser.add_argument("--failures", type=int, default=3, help="stop after so many")
    parser.add_argument("--again", action="store_true", help="also what passed for this code")
    asked = parser.parse_args(arguments)
    with staged():
        if asked.seed is not None:
            return _one(asked.seed, asked.trace)
        seeds: Sequence[int] = range(asked.first, asked.first + asked.seeds)
        ledger = _ledger()
        if ledger is not None and not asked.again:
            seeds = ledger.missing(seeds)
            if not seeds:
                print(f"{asked.seeds} seeds already passed for this code")
                return 0
            if len(seeds) < asked.seeds:
                print(f"{asked.seeds - len(seeds)} of them already passed for this code")
        return _many(seeds, asked.jobs, asked.failures, ledger)


def _ledger() -> Ledger | None:
    """Return what is kept of this code; None for code from elsewhere, as a mutant's is."""
    if not Path(headrace.__file__).is_relative_to(ROOT / "src"):
        return None
    return Ledger(PLACE, state_of_the_code())


def _one(seed: int, trace: bool) -> int:
    outcome = play(seed, verbose=trace)
    for line in outcome.trace if trace else ():
        print(line)
    print(report(outcome) if outcome.error else f"seed {seed} is good ({outcome.digest[:16]})")
    return 1 if outcome.error else 0


def _played(seeds: Sequence[int], jobs: int) -> Iterator[Outcome]:
    """Yield the outcome of every seed, in their order."""
    if jobs <= 1:
        yield from map(play, seeds)
        return
    # Forked within `staged()`, so each process has what it stages.
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(play, seeds, chunksize=20)


def _many(seeds: Sequence[int], jobs: int, most_failures: int, ledger: Ledger | None) -> int:
    total: Counter[str] = Counter()
    failures = 0
    began = told = time.monotonic()
    done = 0
    try:
        for outcome in _played(seeds, jobs):
            total.update(outcome.counts)
            done += 1
            if outcome.error is not None:
                failures += 1
                print(report(outcome), flush=True)
                if failures >= most_failures:
                    break
            elif ledger is not None:
                ledger.passed(outcome.seed)
            if time.monotonic() - told >= 10:
                told = time.monotonic()
                speed = done / (told - began)
                print(f"{done} of {len(seeds)} seeds, {speed:.0f} a second", flush=True)
                if ledger is not None:
                    ledger.save()
    finally:
        if ledger is not None:
            ledger.save()
    seconds = time.monotonic() - began
    for name, number in sorted(total.items()):
        print(f"  {number:9}  {name}")
    print(f"{done} seeds in {seconds:.1f} s, {done / seconds:.0f} a second; {failures} failed")
    if failures:
        print("A seed that failed joins tests/simulation/failed_seeds.py.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
