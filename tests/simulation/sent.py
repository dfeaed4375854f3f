"""The check of batches: in order, none left out, and one that comes again as it was (R25)."""

from __future__ import annotations

from headrace.changelog.position import Position
from headrace.changelog.schema import TableName
from tests.simulation.database import Violation
from tests.simulation.lives import Seat
from tests.simulation.target import DurableTarget, Sent
from tests.simulation.world import World


def check_sent(world: World, seat: Seat, *, stopped: bool) -> None:
    """Look at everything that a durable target was ever given."""
    assert isinstance(seat.target, DurableTarget)
    sent = seat.target.kept.sent
    world.counts["batches sent"] += sum(bool(each.id) for each in sent)
    for table in seat.flow.tables:
        at = _check_order(world, seat, table, sent)
        if at is not None and not stopped and seat.flow.mode != "baseline":
            _check_skipped(world, seat, table, at, None)
    if seat.flow.target == "queue":
        _check_repeated(world, seat, sent)


def _check_order(
    world: World, seat: Seat, table: TableName, sent: list[Sent]
) -> tuple[int, Position] | None:
    """Return where the table stands at the end: in which log, and where there."""
    at: tuple[int, Position] | None = None
    last: Sent | None = None
    for each in sent:
        if table not in each.contents:
            continue
        if not each.id:
            at, last = (each.log, each.last), None
            continue
        if last is not None and each.id == last.id:
            continue
        if at is not None and (each.log, each.first) <= at and seat.flow.target == "database":
            # It knows what it has: progress may be behind it by a batch or two, cut otherwise.
            at = max(at, (each.log, each.last))
            continue
        if at is not None and last is None and each.log == at[0] and each.first <= at[1]:
            # An engine that died between a switch and its note: the next one cannot know of
            # it, goes on from the progress that is stored, and loads the table once more.
            world.counts["batch over a switch that was not noted"] += 1
            at, last = (each.log, max(at[1], each.last)), each
            continue
        if at is None or (each.log, each.first) <= at:
            raise Violation(f"p{seat.number} was at {at} with {table}, and was given {each}")
        _check_skipped(world, seat, table, at, each)
        at, last = (each.log, each.last), each
    return at


def _check_skipped(
    world: World, seat: Seat, table: TableName, at: tuple[int, Position], upto: Sent | None
) -> None:
    log, position = at
    for flush in world.watch.flushes:
        if flush.log != log or table not in flush.tables or flush.last <= position:
            continue
        if upto is None or flush.last < upto.first:
            raise Violation(f"p{seat.number} was at {at} with {table}, and never given {flush}")


def _check_repeated(world: World, seat: Seat, sent: list[Sent]) -> None:
    """A batch that came again had the same tables and the same rows."""
    known: dict[str, dict[TableName, str]] = {}
    for each in sent:
        if not each.id:
            # What was said of this table before was about rows that are not there any more.
            for contents in known.values():
                contents.update(dict.fromkeys(each.contents, ""))
            continue
        before = known.get(each.id)
        if before is not None:
            world.counts["batch again"] += 1
            same = before.keys() == each.contents.keys() and all(
                old in ("", each.contents[table]) for table, old in before.items()
            )
            if not same:
                raise Violation(f"p{seat.number} was given another {each.id} than before")
        known[each.id] = dict(each.contents)
