"""A query under a name: the log keeps what it has not read yet, as long as it is heard of (R27)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.changelog.log import LogReader
from headrace.changelog.position import Position
from headrace.changelog.readers import NamedReader, leases
from headrace.pipeline.reading.claiming import Claim
from headrace.pipeline.reading.offsets import Offset
from headrace.pipeline.reading.starting import Asked, newest_baseline
from headrace.storage.opening import opened
from headrace.storage.places import elsewhere

_RENEWALS = 3
"""In the length of a lease, so that one that comes late is early enough."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a query needs."""

    position: Position
    """Everything after it."""

    baselines: frozenset[int] = frozenset()
    """These, whether they are the newest or not."""


def needed(asked: Asked, at: Offset) -> Held:
    """Return what a query needs that goes on from an offset."""
    log = asked.log
    if at.waits:
        # Which baseline a batch began with, that may have to be read again, is not known here;
        # and one that is still to come may begin before the log's end.
        known = (newest_baseline(asked), *(log.baseline(asked.table, n) for n in log.superseded()))
        return Held(log.floor, frozenset(each.baseline for each in known if each is not None))
    if at.given is not None and at.baseline is not None:
        return Held(at.position, frozenset({at.baseline}))
    return Held(at.position)


class Keeper:
    """The lease of one query, which is the only one of its name until `end`. For one thread."""

    def __init__(
        self,
        data: str,
        source: str,
        name: str,
        seconds: float,
        clock: Callable[[], float] = time.time,
        *,
        wait: float = 0.0,
        goes_on: bool = False,
    ) -> None:
        """
        `ReaderTaken` where another query has the name for all of `wait` seconds.

        What an earlier life of a query that `goes_on` held is held until it is moved: where
        that one stood is known by its checkpoint alone, which is told later.
        """
        # A bucket has no locks: there the guide asks for names that are not shared.
        self._claim = None if elsewhere(data) else Claim(data, source, name, wait)
        self._named = NamedReader(opened(data), source, name, seconds, clock)
        self._every = seconds / _RENEWALS
        self._clock = clock
        self._held: Held | None = None
        for lease in leases(opened(data), source, clock()) if goes_on else ():
            if lease.name == name:
                self._held = Held(lease.position, frozenset(lease.baselines))
        self._due = 0.0

    def keep(self, wanted: Held, log: LogReader) -> None:
        """Have that kept, besides what is held already."""
        held = self._held
        if held is None or held.position < log.floor:
            self._hold(wanted, log)
        elif wanted.position < held.position or not wanted.baselines <= held.baselines:
            lower = min(held.position, wanted.position)
            self._hold(Held(lower, held.baselines | wanted.baselines), log)
        elif self._clock() >= self._due:
            self._hold(held, log)

    def move(self, to: Held, log: LogReader) -> None:
        """Let go of everything else."""
        held = self._held
        if (
            held is None
            or to.position > held.position
            or (to.position == held.position and to.baselines != held.baselines)
        ):
            self._hold(to, log)

    def end(self) -> None:
        """Let others have the name; what is held is held until the lease is over."""
        if self._claim is not None:
            self._claim.release()

    def _hold(self, wanted: Held, log: LogReader) -> None:
        self._named.hold(wanted.position, log, wanted.baselines)
        self._held, self._due = wanted, self._clock() + self._every
