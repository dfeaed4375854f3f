"""
What must hold at every instant, not only at the end.

It looks at the disk as a power cut would leave it, and at targets as a reader does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.changelog.entry import AnyEntry, Baseline, Flush, Gap, Heartbeat, decode
from headrace.changelog.position import ORIGIN, Position
from headrace.control.run import PipelineRun
from headrace.control.states import TableState
from headrace.storage.simulated import SimulatedDisk
from headrace.testing.source import MemoryPosition
from tests.simulation.database import Database, Violation
from tests.simulation.engine import ROOT, Driven, Engine
from tests.simulation.target import DurableTarget

if TYPE_CHECKING:
    from tests.simulation.world import Life, Seat


class Watch:
    """Compares what was claimed with what is so."""

    def __init__(self, disk: SimulatedDisk, database: Database) -> None:
        self._disk = disk
        self._database = database
        self._folder = f"{ROOT}/log/{database.name}"
        self._looked: dict[int, object] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Expect a log that has not begun."""
        self.entries: list[AnyEntry] = []
        """The index as a power cut would leave it."""
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
                case Flush() | Baseline():
                    self._segments(entry)
                case Gap():
                    self.lives[entry.epoch] = MemoryPosition.parse(entry.source).life
            if isinstance(entry, Flush | Gap | Heartbeat):
                self._durable_at = MemoryPosition.parse(entry.source)

    def _segments(self, entry: Flush | Baseline) -> None:
        for named in entry.files:
            folder = self._disk._folders[f"{self._folder}/segments"]
            file = folder.durable.get(f"{self._folder}/segments/{named.name}")
            # Invariant 5: what an entry names is there, whole, before the entry is.
            if file is None or len(file.durable) != named.bytes or file.durable != file.content:
                raise Violation(f"entry {entry.entry} is durable before its segment {named.name}")

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
            if isinstance(seat.target, DurableTarget):
                self._settled(driven, seat.target.position(seat.flow.table), upto)

    def _settled(self, driven: Driven, has: Position, upto: Position) -> None:
        run = driven.run
        if run.state == TableState.WAITING:
            return  # a baseline is owed, and will hold all of it
        if run.state == TableState.LOADING and run._window is not None:
            has = run._window[0]
        if has >= upto:
            return
        # What a gap took away is nobody's any more: only what the log has can be waited for.
        missing = any(
            isinstance(entry, Flush)
            and entry.first <= str(upto)
            and entry.last > str(has)
            and any(file.table == run.table for file in entry.files)
            for entry in self.entries
        )
        if missing:
            raise Violation(f"acknowledged {upto}, and the durable target of {run.name} has {has}")

    # --- targets ---------------------------------------------------------------------------------

    def look(self, life: Life) -> None:
        """Look at every table as a reader does."""
        for driven, seat in zip(life.engine.driven, life.seats, strict=True):
            run = driven.run
            if run.state == TableState.FAILED and not driven.stopped_by_us:
                raise Violation(f"pipeline {run.name} failed: {run.error}")
            # A durable target may be ahead of the progress that was stored for it.
            durable = isinstance(seat.target, DurableTarget)
            position = _position(seat)
            places = [position] if position != ORIGIN and not durable else []
            if life.engine.is_ready(driven):
                places.append(max(run.reached, position))
            looked = (run.state, *places)
            if self._looked.get(id(seat)) != looked:
                self._looked[id(seat)] = looked
                for place in places:
                    self._compare(seat, place, run)

    def _compare(self, seat: Seat, at: Position, run: PipelineRun) -> None:
        self.scan()
        life = self.lives.get(at.epoch, 0)
        if isinstance(seat.target, DurableTarget):
            # It may hold rows of an epoch that only a lost log knew.
            life = int((run._lineage or "").rpartition("/")[2])
        wanted = seat.flow.expected(self._database.at(life, at.commit, seat.flow.table))
        found = rows_of(seat)
        if found != wanted:
            raise Violation(
                f"{run.name} is shown at {at} with {found}, and the source had {wanted}"
            )

    def ended(self, seats: Sequence[Seat]) -> None:
        """An engine has ended: what it told its readers must lead to what it showed them."""
        for seat in seats:
            self._looked.pop(id(seat), None)
            if seat.reader is not None:
                _replay(seat)


def rows_of(seat: Seat) -> dict[object, dict[str, object]]:
    """Return the target's rows as readers see them, by key."""
    if isinstance(seat.target, DurableTarget):
        return {key: row for (key,), row in seat.target.rows(seat.flow.table).items()}
    return {row[seat.flow.key]: dict(row) for row in seat.target.all()}


def _position(seat: Seat) -> Position:
    if isinstance(seat.target, DurableTarget):
        return seat.target.position(seat.flow.table)
    return seat.target.position


def _replay(seat: Seat) -> None:
    assert seat.reader is not None
    assert not isinstance(seat.target, DurableTarget)
    seat.reader.end()
    table: dict[object, dict[str, object]] = {}
    for change in seat.reader:
        if change.op == "truncate":
            table.clear()
            continue
        (key,) = change.key
        before = None if change.before is None else dict(change.before)
        if table.get(key) != before:
            raise Violation(f"{change.op} of {key} told {before}, and there was {table.get(key)}")
        if change.after is None:
            del table[key]
        else:
            table[key] = dict(change.after)
    shown = rows_of(seat) if seat.target.position != ORIGIN else {}
    if table != shown:
        raise Violation(f"changes lead to {table}, and readers see {shown}")
