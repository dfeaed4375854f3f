"""
Apply each mutation to a copy of the source and run the test that must turn red.

What was caught is kept in `.cache/mutate.json`, and not tried again before the code, the mutation
or its test changes: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutate.ledger import Ledger
from tests.mutate.mutation import SIMULATION, Mutation
from tests.mutate.mutations import MUTATIONS
from tests.mutate.trying import ROOT, Trying, Verdict

JOBS = 2
"""Mutations tried at a time: each is a process or two of its own."""

LEDGER = ROOT / ".cache" / "mutate.json"


def main(arguments: Sequence[str]) -> int:
    """Run those whose name holds the words given, or all; 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations with these words in their name")
    parser.add_argument("--jobs", type=int, default=JOBS, help="so many at a time")
    parser.add_argument("--again", action="store_true", help="also those that were caught before")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    ledger = Ledger(LEDGER, ROOT)
    chosen = [each for each in MUTATIONS if all(word in each.name for word in asked.words)]
    verdicts = [] if asked.again else [_kept(ledger, each) for each in chosen]
    known = {each.mutation.name: each for each in verdicts if each is not None}
    open_ = [each for each in chosen if each.name not in known]
    with tempfile.TemporaryDirectory(prefix="headrace-mutate-") as folder:
        trying = Trying(Path(folder))
        if open_ and (wrong := trying.try_nothing(open_)) is not None:
            print(f"A test fails without a mutation: mend that first.\n{wrong}")
            return 1
        with ThreadPoolExecutor(asked.jobs) as pool:
            for verdict in pool.map(lambda each: _tried(trying, ledger, each), open_):
                known[verdict.mutation.name] = verdict
    return _told([known[each.name] for each in chosen], time.monotonic() - began)


def _kept(ledger: Ledger, mutation: Mutation) -> Verdict | None:
    found = ledger.find(mutation)
    if found is None:
        return None
    return Verdict(mutation, True, found["seconds"], found["said"], kept=True)


def _tried(trying: Trying, ledger: Ledger, mutation: Mutation) -> Verdict:
    verdict = trying.try_(mutation)
    if verdict.caught:
        ledger.keep(mutation, verdict.seconds, verdict.said)
    else:
        ledger.drop(mutation)
    print(f"{_line(verdict)}\n          {verdict.said[:300]}", flush=True)
    return verdict


def _told(verdicts: Sequence[Verdict], seconds: float) -> int:
    print()
    for verdict in verdicts:
        print(_line(verdict))
    survivors = sum(not each.caught for each in verdicts)
    kept = sum(each.kept for each in verdicts)
    print(
        f"{len(verdicts)} mutations, {survivors} survived; "
        f"{kept} caught in an earlier run; {seconds:.0f} s"
    )
    return 1 if survivors else 0


def _line(verdict: Verdict) -> str:
    mutation = verdict.mutation
    said = "SURVIVED" if not verdict.caught else "before" if verdict.kept else "caught"
    test = mutation.test
    if test == SIMULATION:
        test = f"{mutation.seeds} seeds"
    return f"{said:8} {verdict.seconds:6.1f} s  {mutation.name:62} {test}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
