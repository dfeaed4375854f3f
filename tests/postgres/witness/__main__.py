"""Play rounds until there are enough or the time is up, and tell what came of them."""

from __future__ import annotations

import sys

from tests.postgres.witness.report import REPORT, times_to_red
from tests.postgres.witness.round import play
from tests.rounds.run import main

if __name__ == "__main__":
    code = main(REPORT, play)
    print("\n".join(times_to_red()))
    sys.exit(code)
