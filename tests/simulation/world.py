"""
The world around recorder and engine: disk, clock, dice, and who is alive.

One thread plays all processes. While one of them takes a step, the disk's steps and the
kill points it passes come back here: a death may be armed at any of them, or another
process may get its turn in between, as on a machine with two cores.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headrace.changelog.schema import TableName
from headrace.errors import Fenced, HeadraceError, StorageError
from headrace.pipeline.definition import Pipeline
from headrace.runtime.corrections import ReplayRequest
from headrace.storage.killpoints import TABLE_SWITCHED, TARGET_WRITTEN
from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.simulation.database import Database, Violation
from tests.simulation.engine import ROOT, WALL, Driven, Engine, RecorderLife, Segments
from tests.simulation.lives import Life, Lingering, Seat, Wish
from tests.simulation.model import Beginning
from tests.simulation.plan import PLENTY, Flow, Plan
from tests.simulation.target import DurableDisk, DurableTarget, WatchedMemory
from tests.simulation.ttl import Watermarks, planned, ttl_of
from tests.simulation.watch import Watch, may_fail


class Killed(BaseException):
    """The running process was killed."""


@dataclass(slots=True)
class Armed:
    """Something that happens at a step of the disk, or at a point of the code."""

    what: str
    """`kill`, `power_cut` or `other`."""

    point: str | None
    left: int


@dataclass(slots=True)
class World:
    """Everything there is, for one seed."""

    seed: int
    verbose: bool = False
    now: float = 0.0
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    dice: Random = field(init=False)
    plan: Plan = field(init=False)
    disk: SimulatedDisk = field(init=False)
    database: Database = field(init=False)
    watch: Watch = field(init=False)
    connection: sqlite3.Connection = field(init=False)
    durable_disks: list[DurableDisk] = field(init=False)
    segments: Segments = field(init=False, default_factory=Segments)
    life: Life | None = field(init=False, default=None)
    old_lives: list[Life] = field(init=False, default_factory=list)
    lingering: list[Lingering] = field(init=False, default_factory=list)
    armed: list[Armed] = field(init=False, default_factory=list)
    wishes: list[Wish] = field(init=False, default_factory=list)
    asked: list[tuple[int, ReplayRequest]] = field(init=False, default_factory=list)
    """Replays and edits that were asked for, each with its pipeline."""
    paused: dict[str, bool] = field(init=False, default_factory=dict)
    """Which pipelines a restart must find paused, or not, as far as that can be told."""
    watermarks: Watermarks = field(init=False, default_factory=Watermarks)
    raised: bool = field(init=False, default=False)
    """Whether pipelines may set aside as much as they like by now."""
    other: Callable[[], None] = field(init=False, default=lambda: None)
    """What another process does when it gets its turn in between."""

    _running: list[Life | RecorderLife | None] = field(init=False, default_factory=list)
    _dying: BaseException | None = field(init=False, default=None)
    _steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)
        self.plan = planned(Plan.of(self.dice), self.seed)
        self.disk = SimulatedDisk(self._on_step)
        self.database = Database(lambda: WALL + self.now)
        self.database.chunk_rows = self.plan.chunk_rows
        self.database.set_supports_resume(self.plan.resumes)
        self.database.set_inserts_replace(self.plan.inserts_replace)
        self.watch = Watch(self.disk, self.database, self.segments)
        self.database.on_acknowledge = self.watch.acknowledged
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.durable_disks = [DurableDisk() for _ in self.plan.flows]

    # --- time and trace --------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now

    def note(self, text: str) -> None:
        """Write down what happens."""
        self.trace.append(f"{len(self.trace):4} {self.now:9.3f}s {self._steps:5} {text}")

    # --- lives -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start an engine; it may die on the way, or not find its disk in order."""
        self.counts["engine started"] += 1
        self.within(None, self._start)

    def _start(self) -> None:
        seats = [
            self._seat(number, flow, disk)
            for number, (flow, disk) in enumerate(
                zip(self.plan.flows, self.durable_disks, strict=True)
            )
        ]
        pipelines = [
            Pipeline(
                self.database,
                tables=seat.flow.tables,
                target=seat.target,
                name=f"p{seat.number}",
                mode=seat.flow.mode,
                on_error=seat.flow.on_error if seat.limited else PLENTY,
                filters=seat.flow.filters,
                transforms=seat.flow.transforms,
                ttl=ttl_of(seat.flow),
            )
            for seat in seats
        ]
        try:
            engine = Engine(
                self.database,
                self.disk,
                self.connection,
                pipelines,
                self.clock,
                self.segments,
                self._fails,
                self.plan.batch_rows,
                self.plan.care,
            )
        except StorageError as error:
            self.counts["engine start refused"] += 1
            self.note(f"engine does not start: {error}")
            return
        self.life = Life(engine, seats)
        for seat, driven in zip(seats, engine.driven, strict=True):
            seat.expiry = driven.run.delivery.expiry
        for seat in seats:
            if isinstance(seat.target, WatchedMemory) and not seat.readers:
                views = {table: seat.target.table(table) for table in seat.flow.tables}
                seat.readers = {table: view.changes() for table, view in views.items()}
        for driven in engine.driven:
            wanted = self.paused.get(driven.run.name, driven.run.paused)
            if driven.run.paused != wanted:
                raise Violation(f"{driven.run.name} is paused after a start: {not wanted}")
        self.watch.seen(engine)
        self.note(f"engine of term {engine.term} is up at entry {engine.log.last_entry}")

    def _seat(self, number: int, flow: Flow, disk: DurableDisk) -> Seat:
        def begin(table: TableName, baseline: int) -> Beginning:
            return self._beginning(number, table, baseline)

        limited = flow.limited and not self.raised
        if flow.durable:
            durable = DurableTarget(disk, begin, transactional=flow.target == "database")
            return Seat(number, flow, limited, durable)
        target = WatchedMemory(begin)
        seat = Seat(number, flow, limited, target)
        if len(flow.tables) == 1:
            # Who listens before the engine starts hears the first rows, too.
            seat.readers = {flow.tables[0]: target.changes()}
        return seat

    def _beginning(self, number: int, table: TableName, baseline: int) -> Beginning:
        self.watch.scan()
        if baseline:
            return self.watch.baselines[self.watch.log, table, baseline]
        row = self.connection.execute(
            'select epoch, "commit", ordinal from origins where pipeline = ? and "table" = ?',
            (f"p{number}", table),
        ).fetchone()
        epoch, commit, ordinal = row
        life = self.watch.lives.get(epoch, 0)
        return Beginning(self.watch.log, epoch, life, commit, ordinal, 0, ())

    def _fails(self, pipeline: Pipeline, image: dict[str, Any]) -> str | None:
        flow = self.plan.flows[int((pipeline.name or "")[1:])]
        return "BROKEN" if flow.breaks_on(image) else None

    def within(self, process: Life | RecorderLife | None, call: Callable[[], None]) -> None:
        """Let a process do something, and let it die where that was armed."""
        self._running.append(process)
        killed = False
        try:
            call()
        except Killed:
            self._dying = None
            killed = True
        except PowerCut:
            if len(self._running) > 1:
                raise  # it is dark for everybody
            self._dying = None
            self.power_cut()
        finally:
            self._running.pop()
        if killed:
            self.died(process)

    def died(self, process: Life | RecorderLife | None) -> None:
        """Take a process out of the world."""
        match process:
            case Life():
                self.engine_died(process)
            case RecorderLife():
                self.recorder_died(process)
            case None:
                self.note("engine died while it started")

    def recorder_died(self, recorder: RecorderLife) -> None:
        self.note("recorder died")
        self.counts["recorder died"] += 1
        recorder.alive = False
        self.lingering = [each for each in self.lingering if each.recorder is not recorder]
        for life in self._lives():
            if life.engine.recorder is recorder:
                life.engine.lose_recorder(self.dice)

    def engine_died(self, life: Life) -> None:
        """Let an engine die; its recorder may not notice at once."""
        self.note(f"engine of term {life.engine.term} died")
        self.counts["engine died"] += 1
        self.watch.ended(life.seats)
        self.forget_wishes()
        self._count_fenced(life)
        recorder = life.engine.recorder
        if recorder is not None and recorder.alive:
            recorder.session.superseded = True
            if recorder in self._running or self.dice.random() < 0.4:
                self.lingering.append(Lingering(recorder, self.dice.randint(1, 6)))
            else:
                recorder.alive = False
        if life is self.life:
            self.life = None
        self.old_lives = [each for each in self.old_lives if each is not life]

    def _count_fenced(self, life: Life) -> None:
        """Count what an engine noticed after another had taken over."""
        if life.engine.recorder_failed is not None:
            self.counts["recorder of an engine taken over lost its log"] += 1
        for driven in life.engine.driven:
            self.counts["pipeline fenced"] += isinstance(driven.run.error, Fenced)

    def power_cut(self) -> None:
        """End everything, and let the disk forget what was not synced."""
        self.note("power cut")
        self.counts["power cut"] += 1
        for life in self._lives():
            self.watch.ended(life.seats)
        self.forget_wishes()
        self.life = None
        self.old_lives = []
        self.lingering = []
        self.disk.power_cut(self.dice)

    def lose_log(self) -> None:
        """Lose the folder of the log, and nothing else; a new one begins."""
        self.power_cut()
        self.counts["log lost"] += 1
        self.asked.clear()
        for path in [path for path in self.disk._folders if path.startswith(f"{ROOT}/log")]:
            del self.disk._folders[path]
        for path in [path for path in self.disk._names if path.startswith(f"{ROOT}/log")]:
            del self.disk._names[path]
        self.watch.restart()

    def stop(self, life: Life) -> None:
        """Stop an engine in order."""

        def close() -> None:
            try:
                life.engine.close()
            except HeadraceError as error:
                self.note(f"engine ends with {error}")

        self.within(life, close)
        recorder = life.engine.recorder
        if self.life is life and recorder is not None:
            life.engine.recorder = None
            self.within(recorder, lambda: life.engine.close_recorder(recorder))
        if self.life is life:
            self.watch.ended(life.seats)
            self.forget_wishes()
            self.life = None

    def _lives(self) -> list[Life]:
        return [*([self.life] if self.life else []), *self.old_lives]

    # --- steps -----------------------------------------------------------------------------------

    def step_recorder(self, life: Life) -> None:
        recorder = life.engine.recorder
        if recorder is not None and recorder not in self._running:
            self.within(recorder, life.engine.step_recorder)

    def hear(self, life: Life, count: int) -> None:
        def hear() -> None:
            life.engine.hear(count)

        if life not in self._running:
            self.within(life, hear)
            self.watch.seen(life.engine)

    def drive(self, life: Life, number: int) -> None:
        """Let one of the pipelines that are awake do a piece of work."""
        engine = life.engine
        awake = engine.runnable()
        if not awake or life in self._running:
            return
        driven = awake[number % len(awake)]
        before = engine.recording.acknowledged
        run = driven.run
        state, paused = run.state, run.paused
        (seat,) = (each for each in life.seats if each.target is run.target)
        places = {table: seat.target.at(table) for table in seat.target.began}

        def drive() -> None:
            engine.drive(driven)
            self._taken(life, driven)

        self.within(life, drive)
        if paused and run.paused and places != {t: seat.target.at(t) for t in seat.target.began}:
            raise Violation(f"{run.name} is paused, and went on")
        if driven.run.state != state:
            self.note(f"pipeline {driven.run.name} {state} -> {driven.run.state}")
        if life is self.life and engine.recording.acknowledged != before:
            self.watch.settled(engine, life.seats)

    def _taken(self, life: Life, driven: Driven) -> None:
        """Note the wishes that a pipeline has taken; from now on they are owed."""
        if life is self.life and not driven.run._reloads:
            for wish in self.wishes:
                wish.taken |= driven.run.name == f"p{wish.pipeline}"

    def forget_wishes(self) -> None:
        """Let go of what nobody had noted when the engine ended."""
        self.wishes = [wish for wish in self.wishes if wish.taken]

    # --- what is asked for -----------------------------------------------------------------------

    def pause(self, life: Life, number: int, pause: bool) -> None:
        """Pause a pipeline, or let it go on; that may fail, and be done nevertheless."""
        driven = life.engine.driven[number]
        name = driven.run.name
        self.paused.pop(name, None)
        try:
            if pause:
                life.engine.pause(driven)
            else:
                driven.run.resume()
        except StorageError:
            return
        if life is self.life:
            self.counts["paused" if pause else "resumed"] += 1
            self.paused[name] = pause

    def reload(self, life: Life, table: TableName) -> None:
        """Ask for a new baseline of a table."""
        for driven in life.engine.reload(table):
            self.counts["reload asked"] += 1
            # As far as the engine knows: one that is finished, and not heard of, will do.
            newest = life.engine.log.usable_baseline(table)
            known = (self.watch.log, (newest.copy or newest.baseline) if newest else 0)
            number = int(driven.run.name[1:])
            self.wishes.append(Wish(number, table, known, self.database.position))

    def linger(self, one: Lingering) -> None:
        """Let a recorder without an engine take a step; nobody hears what it says."""
        if one.recorder in self._running:
            return

        def step() -> None:
            one.recorder.deliver(9)
            one.recorder.step()

        self.within(one.recorder, step)
        one.steps_left -= 1
        if one.recorder.recorder.done:
            self.counts["lingering recorder lost its log"] += 1
        if one.steps_left <= 0 or one.recorder.recorder.done:
            one.recorder.alive = False
            self.lingering = [each for each in self.lingering if each is not one]

    # --- what comes back from the product --------------------------------------------------------

    def on_point(self, name: str) -> None:
        """A kill point was passed."""
        self.counts[f"point {name}"] += 1
        if self.verbose:
            self.note(f"    point {name}")
        self._come_by(name)
        life = self.life
        if name in (TABLE_SWITCHED, TARGET_WRITTEN) and life is not None and life in self._running:
            self.watch.corrected(life.engine)
            for seat in life.seats:
                if isinstance(seat.target, WatchedMemory):
                    self.watch.look_at(seat)

    def _on_step(self, step: str, path: str) -> None:
        if self._dying is not None:
            # Nothing is written by a process that is dead: what runs now is only our unwinding.
            raise self._dying
        self._steps += 1
        self.counts["disk steps"] += 1
        if self.verbose and step not in ("read", "list"):
            self.note(f"    {step} {path}")
        if self.armed:
            self._come_by(None)

    def _come_by(self, point: str | None) -> None:
        if not self._running:
            return
        for armed in [each for each in self.armed if each.point == point]:
            armed.left -= 1
            if armed.left == 0:
                self.armed.remove(armed)
                self._happen(armed, point or "a step of the disk")

    def _happen(self, armed: Armed, where: str) -> None:
        if armed.what == "other":
            if len(self._running) == 1:
                self.counts["turn in between"] += 1
                self.note(f"  at {where} somebody else gets a turn")
                self.other()
            return
        self.note(f"  {armed.what} at {where}")
        self.counts[f"{armed.what} at {where}"] += 1
        self._dying = Killed() if armed.what == "kill" else PowerCut()
        raise self._dying

    def stopped(self) -> list[Driven]:
        """Return the pipelines that stopped on what they were made to stop on."""
        life = self.life
        pairs = zip(life.engine.driven, life.seats, strict=True) if life else ()
        return [driven for driven, seat in pairs if driven.run.failed and may_fail(driven, seat)]

    def heal(self) -> None:
        """Take every fault away; what has gone wrong stays so."""
        self.note("healed")
        self.armed.clear()
        self.disk.capacity = None
        self.disk._faults.clear()
        self.database.heal()
        if self.life is not None:
            self.life.engine.store.faults.clear()
            for seat in self.life.seats:
                if isinstance(seat.target, DurableTarget):
                    seat.target.heal()

    def fail(self, what: str) -> None:
        """Say that something is not as it must be."""
        raise Violation(what)
