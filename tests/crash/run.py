"""Many rounds: one seed after the other, by a few workers, until there are enough."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from tests.crash.plan import STRIKES, planned
from tests.crash.report import too_few
from tests.crash.round import Outcome, play


class Run:
    """Plays rounds; `tell` hears of each as it ends."""

    def __init__(
        self,
        seed: int,
        *,
        rounds: int | None = None,
        seconds: float | None = None,
        spark_share: float = 0.0,
        tell: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._seeds = itertools.count(seed)
        self._left = itertools.count(rounds, -1) if rounds is not None else itertools.repeat(1)
        self._until = None if seconds is None else time.monotonic() + seconds
        self._spark_share = spark_share
        self._tell = tell
        self._lock = threading.Lock()
        self._jvm = threading.Lock()

    def play(self, jobs: int) -> Sequence[Outcome]:
        """Play all, `jobs` at a time, and return what came of them."""
        with ThreadPoolExecutor(jobs) as pool:
            for worker in [pool.submit(self._work) for _ in range(jobs)]:
                worker.result()
        return self.outcomes

    def _work(self) -> None:
        while (seed := self._next()) is not None:
            plan = planned(seed, self._spark_share)
            # One JVM at a time: two would starve each other on a small machine.
            with self._jvm if plan.spark else nullcontext():
                outcome = play(plan)
            with self._lock:
                self.outcomes.append(outcome)
                self._tell(outcome)

    def _next(self) -> int | None:
        with self._lock:
            if next(self._left) <= 0 or (self._until and time.monotonic() > self._until):
                return None
            seed = next(self._seeds)
            # Once round the clock, points that were not reached get another turn; every
            # other seed still comes as it comes.
            if seed % 2 and len(self.outcomes) >= 3 * len(STRIKES):
                for name in too_few(self.outcomes):
                    while STRIKES[seed % len(STRIKES)] != name:
                        seed = next(self._seeds)
                    break
            return seed
