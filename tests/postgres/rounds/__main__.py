"""Play rounds until there are enough or the time is up, and tell what came of them."""

from __future__ import annotations

import sys

from tests.postgres.rounds.plan import planned
from tests.postgres.rounds.report import REPORT
from tests.postgres.rounds.round import play
from tests.rounds.run import main

if __name__ == "__main__":
    sys.exit(main(REPORT, lambda seed: play(planned(seed))))
