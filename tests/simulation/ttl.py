"""
Rows that expire, as the model knows them: notes that are times, and a watermark.

What the watermark is, the pipeline says; that it never goes back, over all lives of the engine, and
is stored before it shows, is looked at. Which rows it leaves is for the model to say.

Only some seeds have such rows, all others tell the story that they told before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

from headrace.pipeline.definition import TTL
from tests.simulation.database import Database, Violation
from tests.simulation.engine import WALL
from tests.simulation.lives import Life
from tests.simulation.plan import BAD, Flow, Plan

FIRST = 250
"""Below are the seeds that find mutations, each by its story."""

SPANS = (-20.0, -0.5, 0.2, 1.5, 4.0, 20.0, 150.0, 1_000.0)
"""Seconds from the clock to the time of a row."""

PAUSES = (1.1, 1.1, 2.5, 6.0, 61.0)
"""Seconds after which there is a scan."""

SET_BACK = (0.0, -2.0, -30.0, -400.0)
"""Seconds by which the wall clock is wrong."""


def has_rows_that_expire(seed: int) -> bool:
    """Whether a seed has rows that expire; none that once failed without does."""
    return seed >= FIRST and seed % 8 in (1, 3)


def seeds(first: int, count: int) -> Iterator[int]:
    """Yield the first so many seeds from `first` on that have rows that expire."""
    while count:
        if has_rows_that_expire(first):
            count -= 1
            yield first
        first += 1


def planned(plan: Plan, seed: int) -> Plan:
    """Return the plan of a seed with rows that expire, if it is one of those."""
    if not has_rows_that_expire(seed):
        return plan
    dice = Random(f"rows that expire in {seed}")
    flows = [_flow(flow, dice, first=not at) for at, flow in enumerate(plan.flows)]
    weights = {**plan.weights, "rows_expire": 8, "clock_back": dice.choice((0, 2, 5))}
    return replace(plan, flows=tuple(flows), weights=weights, expires=True)


def _flow(flow: Flow, dice: Random, *, first: bool) -> Flow:
    if first or (flow.target == "memory" and dice.random() < 0.5):
        scan = dice.choice((1.0, 1.0, 5.0, 60.0))
        return replace(flow, target="memory", drops=False, scan=scan)
    return flow


def ttl_of(flow: Flow) -> TTL | None:
    """Return when the rows of a flow expire."""
    return TTL("note", scan=flow.scan) if flow.scan else None


def note(database: Database, now: float, dice: Random, otherwise: str | None) -> str | None:
    """Return the note of a new row: often a time, before or after the present one."""
    if otherwise == BAD or dice.random() < 0.3:
        return otherwise
    seconds = WALL + now + database.skew + dice.choice(SPANS)
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class Watermarks:
    """The watermark of every pipeline, as it was seen last."""

    def __init__(self) -> None:
        self._highest: dict[int, int] = {}

    def look(self, life: Life) -> None:
        """A watermark never goes back, and is stored before anything is deleted."""
        for seat in life.seats:
            if not seat.flow.scan or not seat.target.began:
                continue
            upto, name = seat.upto, f"p{seat.number}"
            if upto < (before := self._highest.get(seat.number, 0)):
                raise Violation(f"the rows of {name} are as of {upto}, and were of {before}")
            if upto > (stored := life.engine.store.expired_upto(name)):
                raise Violation(f"the rows of {name} are as of {upto}, and {stored} is stored")
            self._highest[seat.number] = upto


def all_looked_for(life: Life, wall: float, stopped: Sequence[object]) -> bool:
    """Whether each pipeline has looked for expired rows as often as it must."""
    return all(
        driven in stopped or seat.upto >= (wall - seat.flow.scan) * 1_000_000 - 1
        for seat, driven in zip(life.seats, life.engine.driven, strict=True)
        if seat.flow.scan
    )


def expired_rows(life: Life) -> int:
    """Return how many rows have expired in this life of the engine and those before."""
    runs = [driven.run for driven in life.engine.driven]
    return sum(run.delivery.counters.total().counts.expired for run in runs)
