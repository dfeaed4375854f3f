"""
The one check at the end of every seed: the source's rows against the target's, the log
against the source's history, and what was forgotten against what was safe.
"""

from __future__ import annotations

from typing import Any

from headrace.changelog.entries import Baseline, Flush, Gap, Heartbeat
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogReader
from headrace.runtime.model import TableState
from headrace.storage.files import Files
from headrace.testing.source import MemoryPosition
from tests.simulation.database import Violation
from tests.simulation.engine import ROOT, WALL
from tests.simulation.letters import check_letters
from tests.simulation.lives import Life, Seat
from tests.simulation.sent import check_sent
from tests.simulation.target import DurableTarget
from tests.simulation.ttl import all_looked_for, expired_rows
from tests.simulation.world import World

Place = tuple[int, int, int]


def at_rest(world: World) -> bool:
    """Return whether nothing is left to do."""
    life, end = world.life, world.database.position
    if life is None or life.engine.recorder is None or life.engine.reports:
        return False
    engine, log = life.engine, life.engine.log
    stopped = world.stopped()
    return (
        not engine.runnable()
        and log.source_position_at(log.end) == str(end)
        and all(each in stopped or engine.is_ready(each) for each in engine.driven)
        and all(
            each in stopped
            or not member.following
            or (member.reached >= log.end and member.state != TableState.RELOADING)
            for each in engine.driven
            for member in each.run.members
        )
        and (bool(stopped) or world.database.acknowledged_upto == end)
        and all_looked_for(life, WALL + world.now + world.database.skew, stopped)
    )


def state_of(world: World) -> str:
    """Return what keeps it from resting."""
    life = world.life
    if life is None:
        return "no engine"
    engine = life.engine
    return ", ".join(
        (
            f"source {world.database.position}",
            f"log {engine.log.source_position_at(engine.log.end)} {engine.log.end}",
            f"recording {engine.recording.state} {engine.recording.error}",
            f"acknowledged {world.database.acknowledged_upto}",
            *(
                f"{each.run.name} {each.run.state} at {each.run.reached} {each.run.error}"
                for each in engine.driven
            ),
        )
    )


def check(world: World) -> None:
    """Raise `Violation` if anything is not as it must be; the world is at rest."""
    assert world.life is not None
    world.watch.corrected(world.life.engine)
    world.counts["correction moved"] = sum(each.moved for each in world.watch.corrections.all())
    _check_answers(world)
    _check_targets(world)
    world.counts["rows expired"] = expired_rows(world.life)
    _check_log(world)


def count(world: World) -> None:
    """Add what the log of a seed came to hold to its counts."""
    for entry in world.watch.entries:
        kind = type(entry).__name__.lower()
        world.counts[
            f"entry {kind} {entry.reason}" if isinstance(entry, Gap) else f"entry {kind}"
        ] += 1
        if isinstance(entry, Flush):
            world.counts["changes recorded"] += sum(file.rows for file in entry.files)
        if isinstance(entry, Baseline) and entry.copy:
            world.counts["baseline folded"] += 1
            world.counts["baseline folded with changes"] += entry.rows > 0
    for disk in world.durable_disks:
        world.counts["durable target loaded"] += len(disk.earlier)
        world.counts["durable effects"] += len(disk.effects) + sum(map(len, disk.earlier))


def _check_targets(world: World) -> None:
    life = world.life
    assert life is not None
    stopped = world.stopped()
    for seat, driven in zip(life.seats, life.engine.driven, strict=True):
        name = driven.run.name
        if isinstance(seat.target, DurableTarget):
            repeated = seat.target.kept.repeated()
            if repeated and seat.flow.target == "database":
                raise Violation(f"{name} took effect twice: {repeated}")
            check_sent(world, seat, stopped=driven in stopped)
        if driven in stopped:
            continue
        if not life.engine.is_ready(driven):
            raise Violation(f"{name} is at rest and not ready: {driven.run.error}")
        for table in seat.flow.tables:
            _check_table(world, seat, table)
            _check_owed(world, seat, table)
            check_letters(world, seat, driven.run, table)
    _check_wishes(world, life)


def _check_table(world: World, seat: Seat, table: str) -> None:
    """The target holds what the source does, but for rows that are held."""
    database, began = world.database, seat.target.began[table]
    if seat.flow.mode == "baseline":
        return  # it is what it was at its position, and that was looked at
    if began.life != database.position.generation:
        raise Violation(f"p{seat.number} has {table} of another life")
    replay = world.watch.replays.at(seat.number, seat.flow, table, began, database.position.commit)
    found = seat.target.seen(table)
    if not replay.agrees(found, seat.upto):
        wanted = replay.shown(seat.upto)
        raise Violation(f"p{seat.number} holds {found} of {table}, and should {wanted}")
    if began.baseline:
        rows = {key: row for (key,), row in database.rows(table).items()}
        source = seat.flow.expected(rows, seat.upto)
        other = {key for key in {*source, *found} if source.get(key) != found.get(key)}
        if not other <= replay.held | replay.corrected_keys:
            raise Violation(f"p{seat.number} holds {found} of {table}, and the source {source}")


def _check_answers(world: World) -> None:
    """A replay or an edit that was answered is a correction, and stays one."""
    made = {
        (each.pipeline, each.table, Position(at.epoch, at.commit, at.ordinal + index))
        for each in world.watch.corrections.all()
        for at in [each.first]
        for index in range(len(each.changes))
    }
    for number, request in world.asked:
        if not request.answer.done() or request.answer.cancelled():
            world.counts["correction not answered"] += 1
            continue
        if request.answer.exception() is not None:
            world.counts["correction refused"] += 1
            continue
        for outcome in () if request.dry_run else request.answer.result():
            world.counts[f"correction {outcome.outcome}"] += 1
            if (number, outcome.dead_letter.table, outcome.position) not in made:
                raise Violation(f"p{number} said {outcome}, and has no such correction")


def _check_owed(world: World, seat: Seat, table: str) -> None:
    """Where rows may have changed without a change, they were copied again."""
    assert world.life is not None
    owed, began = world.life.engine.log.rebaseline_required(table), seat.target.began[table]
    if owed is None or seat.flow.mode != "baseline_then_changes" or began.log != world.watch.log:
        return
    if began.baseline <= owed.baseline:
        raise Violation(f"p{seat.number} holds {table} of {began}, and {owed} is owed")
    world.counts["owed baseline loaded"] += 1


def _check_wishes(world: World, life: Life) -> None:
    """What was asked for was done: with a baseline that is newer than the wish."""
    stopped = world.stopped()
    left = []
    for wish in world.wishes:
        if life.engine.driven[wish.pipeline] in stopped:
            left.append(wish)
            continue
        began = life.seats[wish.pipeline].target.began[wish.table]
        # One that was folded is as old as its copy, whatever its number is.
        copy = world.watch.copies.get(began.baseline, 0) if began.log == world.watch.log else 0
        if (began.log, copy or began.baseline) <= wish.newest:
            raise Violation(f"{wish} was taken, and p{wish.pipeline} shows {began}")
        if began.log == wish.newest[0] and (began.life, began.commit) < (
            wish.source.generation,
            wish.source.commit,
        ):
            world.counts["reload with rows copied before it was asked"] += 1
        world.counts["reload done"] += 1
    world.wishes = left


def _check_log(world: World) -> None:
    """Compare the log with the source's whole history, stretch by stretch."""
    database, entries = world.database, world.watch.entries
    found: list[tuple[Place, Any]] = []
    place = MemoryPosition(0, 0)
    begun = place
    epoch = 0
    last = (0, 0, 0)
    for entry in entries:
        match entry:
            case Gap():
                if epoch:
                    _compare(world, begun, place, found)
                    _check_gap(world, entry, place, epoch)
                found = []
                epoch, begun = entry.epoch, MemoryPosition.parse(entry.source)
                place = begun
            case Flush():
                rows = sorted(_rows(world, entry), key=lambda row: row[0])
                places = [at for at, _ in rows]
                if any(b <= a for a, b in zip([last, *places], places, strict=False)):
                    raise Violation(f"positions do not rise in entry {entry.entry}: {places}")
                if (places[0], places[-1]) < ((epoch, 0, 0), (epoch, 0, 0)):
                    raise Violation(f"entry {entry.entry} is of another epoch")
                last = places[-1]
                found += rows
                place = MemoryPosition.parse(entry.source)
            case Heartbeat():
                place = MemoryPosition.parse(entry.source)
    _compare(world, begun, place, found)
    _check_kept(world)
    if place != database.position:
        raise Violation(f"the log ends at {place}, and the source is at {database.position}")


def _check_kept(world: World) -> None:
    """The log, as it is read now, has every change that was not pruned, and in order (R27)."""
    reader = LogReader.open(Files(world.disk, ROOT), world.database.name)
    floor = reader.floor
    for table in reader.tables():
        wanted = [
            (at, what)
            for entry in world.watch.entries
            if isinstance(entry, Flush) and entry.span[1] > floor
            for at, what in sorted(_rows(world, entry), key=lambda row: row[0])
            if what[0] == table
        ]
        has = [
            (piece.flush.epoch, row["_commit"], row["_ordinal"])
            for piece in reader._history.tables[table].pieces
            for file in piece.files
            for row in reader.rows(file).to_pylist()
        ]
        if has != [at for at, _ in wanted]:
            raise Violation(f"the log has {has} of {table} beyond {floor}, and had {wanted}")
        usable = reader.usable_baseline(table)
        for file in usable.files if usable else ():
            reader.verify(file)
        if usable is not None and usable.window[0] < floor:
            raise Violation(f"a baseline from {usable.first} is used, and {floor} is pruned")
    world.counts["log pruned"] += floor != ORIGIN


def _compare(
    world: World, begun: MemoryPosition, ended: MemoryPosition, found: list[tuple[Place, Any]]
) -> None:
    """Every change between two places is there once, as it was."""
    truth = world.database.truth[begun.generation]
    wanted = [
        ((commit, change.ordinal), (table, int(change.op), change.before, change.after))
        for commit in range(begun.commit + 1, ended.commit + 1)
        for table, change in truth[commit]
    ]
    has = [((commit, ordinal), what) for (_, commit, ordinal), what in found]
    if has != wanted:
        missing = [at for at, _ in wanted if at not in {place for place, _ in has}]
        strange = [at for at, _ in has if at not in {place for place, _ in wanted}]
        raise Violation(
            f"the log from {begun} to {ended} lacks {missing} and has {strange} too many"
        )


def _check_gap(world: World, gap: Gap, place: MemoryPosition, epoch: int) -> None:
    """History began anew only where it did."""
    at = MemoryPosition.parse(gap.source)
    if gap.reason == "lineage":
        good = at.generation > place.generation and gap.epoch == epoch + 1
    else:
        good = (
            at.generation == place.generation
            and gap.epoch == epoch
            and str(at) in world.database.gaps_given
        )
    if not good:
        raise Violation(f"a gap from {place} to {at} that nobody made: {gap.reason}")


def _rows(world: World, flush: Flush) -> list[tuple[Place, Any]]:
    first, final = flush.span
    rows: list[tuple[Place, Any]] = []
    for file in flush.files:
        for row in world.segments.rows(world.watch.contents[file.name]):
            at = (flush.epoch, row["_commit"], row["_ordinal"])
            if not first <= Position(*at) <= final:
                raise Violation(f"entry {flush.entry} holds {at} beyond its span")
            rows.append((at, (file.table, row["_op"], row["before"], row["after"])))
    return rows
