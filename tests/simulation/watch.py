"""
What must hold at every instant, not only at the end.

It looks at the disk as a power cut would leave it, and at targets as a reader does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from headrace.changelog.entries import AnyEntry, Baseline, Compacted, Flush, Gap, Heartbeat, decode
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName
from headrace.errors import ChangesMissing, RowFailed, TooManyFailed
from headrace.runtime.model import Member
from headrace.storage.simulation import SimulatedDisk
from headrace.testing.source import MemoryPosition
from tests.simulation.corrections import Corrections, Made
from tests.simulation.database import Database, Violation
from tests.simulation.engine import ROOT, Driven, Engine, Segments
from tests.simulation.lives import Life, Seat
from tests.simulation.model import Beginning, Replays
from tests.simulation.target import DurableTarget


class Flushed(NamedTuple):
    """A flush of a log, as far as this matters."""

    log: int
    first: Position
    last: Position
    tables: frozenset[TableName]


class Watch:
    """Compares what was claimed with what is so."""

    def __init__(self, disk: SimulatedDisk, database: Database, segments: Segments) -> None:
        self._disk = disk
        self._database = database
        self._segments_read = segments
        self._folder = f"{ROOT}/log/{database.name}"
        self._looked: dict[int, object] = {}
        self.every_copy: dict[tuple[int, int], int] = {}
        """The same of every log."""
        self.corrections = Corrections(database)
        self.replays = Replays(database, self._made)
        self.log = -1
        """How many logs were lost."""
        self.baselines: dict[tuple[int, TableName, int], Beginning] = {}
        """Every baseline of every log, by table and number."""
        self.flushes: list[Flushed] = []
        """Every flush of every log."""
        self.restart()

    def restart(self) -> None:
        """Expect a log that has not begun."""
        self.log += 1
        self.entries: list[AnyEntry] = []
        """The index as a power cut would leave it."""
        self.contents: dict[str, bytes] = {}
        """Segments as they were when an entry first named them."""
        self.copies: dict[int, int] = {}
        """Of baselines that were folded, the copies that they come from; of this log."""
        self.lives: dict[int, int] = {}
        """The source's life for each epoch."""
        self._durable_at = MemoryPosition(0, 0)

    # --- the disk --------------------------------------------------------------------------------

    def scan(self) -> None:
        """Read the entries that have become durable."""
        folder = self._disk._folders.get(f"{self._folder}/index")
        while folder is not None:
            name = f"{self._folder}/index/{len(self.entries) + 1:012x}.json"
            file = folder.durable.get(name)
            if file is None or not file.durable or file.durable != file.content:
                return
            entry = decode(file.durable)
            self.entries.append(entry)
            match entry:
                case Flush():
                    self._segments(entry)
                    tables = frozenset(each.table for each in entry.files)
                    self.flushes.append(Flushed(self.log, *entry.span, tables))
                case Baseline():
                    self._segments(entry)
                    self._baseline(entry)
                    self.copies[entry.baseline] = entry.copy or entry.baseline
                    self.every_copy[self.log, entry.baseline] = entry.copy or entry.baseline
                case Compacted():
                    self._segments(entry)
                case Gap():
                    self.lives[entry.epoch] = MemoryPosition.parse(entry.source).generation
            if isinstance(entry, Flush | Gap | Heartbeat):
                self._durable_at = MemoryPosition.parse(entry.source)

    def _segments(self, entry: Flush | Baseline | Compacted) -> None:
        for named in entry.files:
            folder = self._disk._folders[f"{self._folder}/segments"]
            file = folder.durable.get(f"{self._folder}/segments/{named.name}")
            # Invariant 5: what an entry names is there, whole, before the entry is.
            if file is None or len(file.durable) != named.bytes or file.durable != file.content:
                raise Violation(f"entry {entry.entry} is durable before its segment {named.name}")
            self.contents[named.name] = file.durable

    def _baseline(self, entry: Baseline) -> None:
        first, _ = entry.window
        rows = [
            row["after"]
            for file in entry.files
            for row in self._segments_read.rows(self.contents[file.name])
        ]
        self.baselines[self.log, entry.table, entry.baseline] = Beginning(
            log=self.log,
            epoch=first.epoch,
            life=self.lives[first.epoch],
            commit=first.commit,
            ordinal=first.ordinal,
            baseline=entry.baseline,
            rows=tuple(rows),
            last=Position.parse(entry.last).commit,
            folded=entry.copy != 0,
        )

    def seen(self, engine: Engine) -> None:
        """An engine has read its log: nothing in it may vanish again."""
        self.scan()
        if engine.log.last_entry > len(self.entries):
            raise Violation(
                f"the engine has seen entry {engine.log.last_entry},"
                f" and only {len(self.entries)} are durable"
            )

    # --- acknowledgements ------------------------------------------------------------------------

    def acknowledged(self, at: MemoryPosition) -> None:
        """The source was told to forget: the log must have it, durably (invariant 1)."""
        self.scan()
        if at > self._durable_at:
            raise Violation(f"acknowledged {at}, and only {self._durable_at} is durable")

    def settled(self, engine: Engine, seats: Sequence[Seat]) -> None:
        """The engine decided what may be forgotten: durable targets must have it (R8)."""
        upto = engine.recording.acknowledged
        assert upto is not None
        for driven, seat in zip(engine.driven, seats, strict=True):
            for member in driven.run.members:
                if isinstance(seat.target, DurableTarget):
                    self._settled(driven, member, seat.target.at(member.table), upto)

    def _settled(self, driven: Driven, member: Member, has: Position, upto: Position) -> None:
        if not member.following:
            if member.load is None:
                return  # a baseline is owed, and will hold all of it; or nothing more is wanted
            has = member.load.first
        elif member.load is not None:
            has = min(has, member.load.first)
        if has >= upto:
            return
        # What a gap took away is nobody's any more: only what the log has can be waited for.
        missing = any(
            each.log == self.log
            and each.first <= upto
            and each.last > has
            and member.table in each.tables
            for each in self.flushes
        )
        if missing:
            name = driven.run.name
            raise Violation(f"acknowledged {upto}, and the durable target of {name} has {has}")

    # --- corrections -----------------------------------------------------------------------------

    def corrected(self, engine: Engine) -> int:
        """Note the corrections that an engine's pipelines have; return how many are new."""
        self.scan()
        new = 0
        with self._undisturbed():
            for number, driven in enumerate(engine.driven):
                journal = driven.run.delivery._journal
                for each in journal.all() if journal is not None else ():
                    if each.ended == "dropped":
                        continue
                    life = int(each.record.lineage.rpartition("/")[2])
                    new += self.corrections.note(number, each, self.log, life, self.baselines)
        return new

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Read the disk without faults, which are for the product, and without a turn of others."""
        disk = self._disk
        step, faults = disk.on_step, disk._faults
        disk.on_step, disk._faults = None, []
        try:
            yield
        finally:
            disk.on_step, disk._faults = step, faults

    def _made(self, number: int, table: TableName, began: Beginning) -> list[Made]:
        copy = self.every_copy.get((began.log, began.baseline), 0)
        return self.corrections.of(number, table, began, copy)

    # --- targets ---------------------------------------------------------------------------------

    def look(self, life: Life) -> None:
        """Look at every table as a reader does, and at what has stopped."""
        self.corrected(life.engine)  # before anything is deleted that an entry named
        for driven, seat in zip(life.engine.driven, life.seats, strict=True):
            run = driven.run
            if run.failed and not driven.stopped_by_us and not may_fail(driven, seat):
                raise Violation(f"pipeline {run.name} failed: {run.error}")
            self.look_at(seat)
            if life.engine.is_ready(driven):
                self._reached(driven, seat)

    def look_at(self, seat: Seat) -> None:
        """Compare what a target shows with what it must show there."""
        target, flow = seat.target, seat.flow
        upto = seat.upto
        places = {table: (target.at(table), target.began[table]) for table in target.began}
        if self._looked.get(id(seat)) == (places, upto):
            return
        self._looked[id(seat)] = places, upto
        # Copies that do not follow the log stay where they are when one of them is renewed.
        if not flow.durable and flow.mode != "baseline":
            self._together(seat, {table: at for table, (at, _) in places.items()})
        for table, (at, began) in places.items():
            if at.epoch != began.epoch:
                raise Violation(f"{table} of p{seat.number} is at {at}, and began with {began}")
            copy = self.every_copy.get((began.log, began.baseline), 0)
            if lost := self.corrections.lost(seat.number, table, began, copy):
                raise Violation(f"p{seat.number} has {table} from {began}, and {lost}")
            replay = self.replays.at(seat.number, flow, table, began, at.commit, at.ordinal)
            found = target.seen(table)
            if not replay.agrees(found, upto):
                was = replay.shown(upto)
                raise Violation(
                    f"p{seat.number} shows {table} at {at} as {found}, and it was {was}"
                )

    def _together(self, seat: Seat, places: dict[TableName, Position]) -> None:
        """All tables are at one place, but for flushes that have nothing of theirs."""
        furthest = max(places.values(), default=ORIGIN)
        for table, at in places.items():
            if at != furthest and any(
                each.log == self.log and at < each.last <= furthest and table in each.tables
                for each in self.flushes
            ):
                raise Violation(f"readers of p{seat.number} see several positions: {places}")

    def _reached(self, driven: Driven, seat: Seat) -> None:
        """A pipeline says that it is ready: every table is there, as far as it says."""
        for member in driven.run.members:
            began = seat.target.began.get(member.table)
            if began is None:
                raise Violation(f"{seat.number} is ready, and {member.table} was never shown")
            missing = [
                each
                for each in self.flushes
                if each.log == began.log
                and seat.target.at(member.table) < each.last <= member.reached
                and member.table in each.tables
            ]
            if missing:
                raise Violation(f"p{seat.number} is at {member.reached}, and lacks {missing}")

    def ended(self, seats: Sequence[Seat]) -> None:
        """An engine has ended: what it told its readers must lead to what it showed them."""
        for seat in seats:
            self._looked.pop(id(seat), None)
            for table in seat.readers:
                _replay(seat, table)


def may_fail(driven: Driven, seat: Seat) -> bool:
    """Return whether a pipeline has stopped on what it was made to stop on."""
    match driven.run.error:
        case TooManyFailed() | RowFailed():
            return seat.flow.breaks and seat.limited
        case ChangesMissing():
            return seat.flow.mode == "changes"
        case _:
            return False


def _replay(seat: Seat, table: TableName) -> None:
    reader = seat.readers[table]
    reader.end()
    rows: dict[object, dict[str, object]] = {}
    for change in reader:
        if change.op == "truncate":
            rows.clear()
            continue
        (key,) = change.key
        before = None if change.before is None else dict(change.before)
        if rows.get(key) != before:
            raise Violation(f"{change.op} of {key} told {before}, and there was {rows.get(key)}")
        if change.after is None:
            del rows[key]
        else:
            rows[key] = dict(change.after)
    shown = seat.target.seen(table) if seat.target.at(table) != ORIGIN else {}
    if rows != shown:
        raise Violation(f"changes lead to {rows}, and readers see {shown}")
