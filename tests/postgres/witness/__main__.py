"""Play rounds until there are enough or the time is up, tell what came of them, and keep it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

from tests.postgres.witness.report import LONG_MINUTES, REPORT, RESULTS, page
from tests.postgres.witness.round import play
from tests.rounds.outcome import Outcome
from tests.rounds.run import main


def main_of_run() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--spark", action="store_true", help="compute batches with a real Spark")
    given, sys.argv[1:] = parser.parse_known_args()
    began = time.monotonic()

    def keep(outcomes: Sequence[Outcome]) -> None:
        minutes = (time.monotonic() - began) / 60
        told = page(outcomes, minutes)
        print(told)
        if minutes >= LONG_MINUTES and not given.spark:
            RESULTS.write_text(told)

    return main(REPORT, partial(play, spark=given.spark), keep)


if __name__ == "__main__":
    sys.exit(main_of_run())
