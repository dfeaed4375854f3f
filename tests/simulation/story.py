"""
One seed from beginning to end: things happen, everything is healed, all must come right.
"""

from __future__ import annotations

import errno
import hashlib
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from headrace.deadletters.ledger import Selection
from headrace.errors import BadValue, SourceUnreachable, StorageError, TargetError
from headrace.runtime.corrections import ReplayRequest
from headrace.storage.killpoints import (
    DEAD_LETTERS_STORED,
    EFFECT_DONE,
    INTENT_STORED,
    JOB_DONE,
    POINTS,
    TABLE_SWITCHED,
    TARGET_WRITTEN,
)
from tests.simulation import check, ttl
from tests.simulation.corrections import MENDED
from tests.simulation.database import TABLES, Violation
from tests.simulation.hooks import played
from tests.simulation.lives import Life
from tests.simulation.plan import BAD, KINDS
from tests.simulation.target import DurableTarget
from tests.simulation.world import Armed, World

KEYS = range(1, 8)
CLOCK_STEPS = (0.001, 0.006, 0.05, 0.3, 1.1, 10.5, 120.0)
SELDOM = (JOB_DONE, TARGET_WRITTEN, DEAD_LETTERS_STORED, INTENT_STORED, EFFECT_DONE, TABLE_SWITCHED)
"""Points that are come by less often than those of the recorder."""
DISK_STEPS = ("write", "sync", "link", "rename", "sync_folder", "remove", "read", "list")
WARM_ROUNDS = 8
MOST_ROUNDS = 150
"""Until rest, at most; the longest way is a few back-offs and one heartbeat."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed."""

    seed: int
    error: str | None
    trace: tuple[str, ...]
    counts: Counter[str]

    @property
    def digest(self) -> str:
        """The same for the same story."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def play(seed: int, *, verbose: bool = False) -> Outcome:
    """Play one seed; `staged()` must surround it."""
    world = World(seed, verbose)
    error = None
    try:
        with played(world.on_point, world.plan.limits):
            Story(world).tell()
    except Exception as failure:  # noqa: BLE001  whatever it is, it belongs to this seed
        error = f"{type(failure).__name__}: {failure}"
        world.note(error)
        if verbose:
            world.trace += traceback.format_exc().splitlines()
    finally:
        world.connection.close()
    return Outcome(seed, error, tuple(world.trace), world.counts)


def life_of(world: World) -> Life:
    """Return the engine that lives."""
    assert world.life is not None
    return world.life


class Story:
    """What happens in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = world.dice
        self._value = 0
        world.other = self._other
        weights = world.plan.weights
        self._names = list(weights)
        self._weights = list(weights.values())
        self._acts: dict[str, Callable[[], None]] = {
            name: getattr(self, f"_{name}") for name in self._names
        }

    def tell(self) -> None:
        """Begin, let things happen, heal, and look."""
        world = self.world
        for table in TABLES:
            for key in range(1, world.plan.first_rows + 1):
                world.database.add_row(table, self._row(key))
        world.database.begin()
        world.start()
        for _ in range(WARM_ROUNDS if world.plan.warm else 0):
            self._round()
            self._look()
            world.now += 0.006
        for _ in range(world.plan.action_count):
            (name,) = self.dice.choices(self._names, self._weights)
            self._act(name)
        self._come_to_rest()
        if world.stopped():
            # A person looks at the letters, and allows more.
            world.raised = True
            world.stop(life_of(world))
            self._come_to_rest()
        check.count(world)
        if not {"edit_letters", "replay_letters"}.isdisjoint(self._names):
            # A person looks at what is left, and then life goes on.
            for _ in range(self.dice.randint(1, 4)):
                self._correct(edit=self.dice.random() < 0.7)
                self._act(self.dice.choice(("run", "run", "busy", *self._names)))
            self._come_to_rest()
        if self.dice.random() < 0.25:
            # And once more, from a state in which nothing is under way.
            self._act(self.dice.choice(("power_cut", "kill_engine", "restart")))
            self._come_to_rest()

    def _act(self, name: str) -> None:
        world = self.world
        if world.life is None and name not in ("write", "clock", "source_forgets"):
            name = "start"
        world.counts[f"act {name}"] += 1
        world.note(name)
        if name == "start":
            world.start()
        else:
            self._acts.get(name, getattr(self, f"_{name}"))()
        self._go_on()
        self._look()

    def _go_on(self) -> None:
        """Let those who should be dead take a step, too."""
        world = self.world
        for one in list(world.lingering):
            if self.dice.random() < 0.5:
                world.counts["step of a lingering recorder"] += 1
                world.note("  a lingering recorder takes a step")
                world.linger(one)
        for life in list(world.old_lives):
            if self.dice.random() < 0.5:
                self._old_step(life)

    def _old_step(self, life: Life) -> None:
        world = self.world
        world.counts["step of an engine taken over"] += 1
        what = self.dice.choice(("recorder", "commands", "reports", "run"))
        world.note(f"  the engine of term {life.engine.term} goes on with {what}")
        self._move(life, what)
        life.steps_left -= 1
        if life.steps_left <= 0 and life in world.old_lives:
            world.engine_died(life)

    def _move(self, life: Life, what: str) -> None:
        engine = life.engine
        match what:
            case "recorder":
                if engine.may_spawn:
                    engine.spawn()
                if self._somebody_old and self.dice.random() < 0.4:
                    # Two writers at once: what they do must meet at every step (R31).
                    self.world.armed.append(Armed("other", None, self.dice.randint(1, 16)))
                self.world.step_recorder(life)
            case "commands":
                if engine.recorder is not None:
                    engine.recorder.deliver(self.dice.randint(1, 3))
            case "reports":
                self.world.hear(life, self.dice.randint(1, 4))
            case "run":
                self.world.drive(life, self.dice.randint(0, 5))

    def _look(self) -> None:
        life = self.world.life
        if life is None:
            return
        failed = life.engine.recorder_failed
        if failed is not None:
            raise Violation(f"the recorder stopped for good: {failed.error()}")
        self.world.watch.look(life)
        self.world.watermarks.look(life)

    def _other(self) -> None:
        """Take a turn while somebody else is in the middle of a step."""
        world = self.world
        what = self.dice.choice(("write", "recorder", "reports", "reports", "run", "ask"))
        if self._somebody_old and self.dice.random() < 0.6:
            what = "old"
        if what == "old" and world.lingering:
            world.linger(world.lingering[0])
        elif what == "old" and world.old_lives:
            self._move(world.old_lives[0], self.dice.choice(("recorder", "run")))
        elif what == "write" or world.life is None:
            self._write()
        elif what == "ask":
            wishes = ("pause", "resume", "reload", "edit_letters")
            asked = [name for name in wishes if name in self._acts]
            if asked:
                self._acts[self.dice.choice(asked)]()
        else:
            self._move(world.life, what)

    @property
    def _somebody_old(self) -> bool:
        return bool(self.world.lingering or self.world.old_lives)

    # --- what goes on all the time ------------------------------------------------------------

    def _row(self, key: int) -> dict[str, object]:
        self._value += 1
        note = self.dice.choice((None, "", "x", "a longer note"))
        if self.dice.random() < self.world.plan.bad_share:
            note = BAD
        if self.world.plan.expires:
            note = ttl.note(self.world.database, self.world.now, self.dice, note)
        return {"id": key, "kind": self.dice.choice(KINDS), "n": self._value, "note": note}

    def _write(self) -> None:
        database = self.world.database
        if database._open_commit is not None:
            return
        count = self.dice.choice((1, 1, 1, 2, 3, 6))
        if count == 1:
            self._change()
            return
        with database.transaction():
            for _ in range(count):
                self._change()

    def _change(self) -> None:
        dice, database = self.dice, self.world.database
        table = dice.choice(TABLES)
        rows = database._rows[table]
        key = dice.choice(KEYS)
        if dice.random() < self.world.plan.truncate_share:
            database.emit_truncate(table)
        elif (key,) not in rows:
            database.emit_insert(table, self._row(key))
        elif dice.random() < 0.25:
            database.emit_delete(table, key)
        elif self.world.plan.inserts_replace and dice.random() < 0.3:
            database.emit_insert(table, self._row(key))
        else:
            free = [other for other in KEYS if (other,) not in rows]
            if free and dice.random() < 0.25:
                database.emit_update(table, self._row(dice.choice(free)), key=(key,))
            else:
                database.emit_update(table, self._row(key))

    def _idle_commit(self) -> None:
        self.world.database.heartbeat()

    def _clock(self) -> None:
        self.world.now += self.dice.choice(CLOCK_STEPS)

    def _rows_expire(self) -> None:
        """Let as much time pass as a scan waits for, and let everybody have a turn."""
        self.world.now += self.dice.choice(ttl.PAUSES)
        self._round()

    def _clock_back(self) -> None:
        self.world.database.skew = self.dice.choice(ttl.SET_BACK)

    def _busy(self) -> None:
        """Let everybody have a turn or two, in order, with writes in between."""
        for _ in range(self.dice.randint(1, 3)):
            if self.dice.random() < 0.6:
                self._write()
            self.world.now += 0.006
            if self.world.life is not None:
                self._round()

    def _recorder(self) -> None:
        assert self.world.life is not None
        self._move(self.world.life, "recorder")

    def _commands(self) -> None:
        assert self.world.life is not None
        self._move(self.world.life, "commands")

    def _reports(self) -> None:
        assert self.world.life is not None
        self._move(self.world.life, "reports")

    def _run(self) -> None:
        assert self.world.life is not None
        self._move(self.world.life, "run")

    # --- what goes wrong ------------------------------------------------------------------------

    def _kill_recorder(self) -> None:
        assert self.world.life is not None
        if (recorder := self.world.life.engine.recorder) is not None:
            self.world.recorder_died(recorder)

    def _kill_engine(self) -> None:
        assert self.world.life is not None
        self.world.engine_died(self.world.life)

    def _power_cut(self) -> None:
        self.world.power_cut()

    def _arm_kill(self) -> None:
        self._arm("kill")

    def _arm_power_cut(self) -> None:
        self._arm("power_cut")

    def _arm_other(self) -> None:
        self._arm("other")

    def _arm(self, what: str) -> None:
        points = SELDOM if self.dice.random() < 0.7 else POINTS
        point = self.dice.choice(points) if self.dice.random() < 0.6 else None
        left = self.dice.choice((1, 1, 2, 3)) if point else self.dice.randint(1, 25)
        self.world.note(f"  {what} at {point or 'step'} number {left}")
        self.world.armed.append(Armed(what, point, left))

    def _disk_fault(self) -> None:
        step = self.dice.choice(DISK_STEPS)
        nth, done = self.dice.randint(1, 4), self.dice.random() < 0.3
        number = self.dice.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        self.world.note(f"  {step} number {nth} fails {'after' if done else 'before'} its effect")
        self.world.disk.fail(step, number, nth=nth, done=done)

    def _disk_full(self) -> None:
        disk = self.world.disk
        disk.capacity = None if disk.capacity else disk.used + self.dice.randint(0, 6_000)

    def _source_away(self) -> None:
        self.world.database.away = not self.world.database.away

    def _source_error(self) -> None:
        database = self.world.database
        if self.dice.random() < 0.3:
            database.lost_answers += 1
            return
        call = self.dice.choice(("open", "read", "baseline", "acknowledge"))
        error = SourceUnreachable("Injected", at=call)
        database.inject_error(error, call, self.dice.randint(1, 3))  # type: ignore[arg-type]

    def _source_replaced(self) -> None:
        database = self.world.database
        states = database.states[database.position.generation]
        database.replace(self.dice.choice(states), self.dice.choice((0, 0, 3, len(states) + 5)))

    def _source_forgets(self) -> None:
        database = self.world.database
        database.forget(self.dice.randint(database.floor, database.position.commit), injected=True)

    def _source_rewritten(self) -> None:
        self.world.database.rewritten[self.dice.choice(TABLES)] += 1

    def _target_fault(self) -> None:
        target = self._durable()
        if target is None:
            return
        error = TargetError("Injected")
        calls = ("load", "loading", "catch_up", "switch", "switched")
        call = self.dice.choice(("before", "after", "after", self.dice.choice(calls)))
        match call:
            case "before":
                target.reject(error)
            case "after":
                target.fail_after_write(error)
            case _:
                target.fail(call, error)

    def _target_stops(self) -> None:
        target = self._durable()
        life = self.world.life
        if target is None or life is None:
            return
        target.reject(BadValue("Injected"))
        for driven in life.engine.driven:
            driven.stopped_by_us |= driven.run.target is target

    def _durable(self) -> DurableTarget | None:
        life = self.world.life
        seats = life.seats if life else []
        found = [seat.target for seat in seats if isinstance(seat.target, DurableTarget)]
        return self.dice.choice(found) if found else None

    def _store_fault(self) -> None:
        assert self.world.life is not None
        self.world.life.engine.store.faults.append(self.dice.choice(("before", "after", "none")))

    def _log_lost(self) -> None:
        self.world.lose_log()

    def _restart(self) -> None:
        assert self.world.life is not None
        self.world.stop(self.world.life)
        self.world.start()

    def _take_over(self) -> None:
        world = self.world
        assert world.life is not None
        if world.old_lives:
            return
        world.life.engine.supersede()
        for seat in world.life.seats:
            if isinstance(seat.target, DurableTarget):
                seat.target.superseded = True
        world.life.steps_left = self.dice.randint(2, 20)
        world.old_lives.append(world.life)
        world.forget_wishes()
        world.life = None
        world.start()

    # --- what is asked for ----------------------------------------------------------------------

    def _pause(self) -> None:
        self._ask("pause")

    def _resume(self) -> None:
        self._ask("resume")

    def _reload(self) -> None:
        self._ask("reload")

    def _replay_letters(self) -> None:
        self._correct(edit=False)

    def _edit_letters(self) -> None:
        self._correct(edit=True)

    def _correct(self, *, edit: bool) -> None:
        """Ask for a dead letter to be applied, as it is or with a note that can be computed."""
        world = self.world
        if world.life is None:
            return
        number = self.dice.randrange(len(world.plan.flows))
        run = world.life.engine.driven[number].run
        if run.paused or run.failed or not run.opened:
            return
        try:
            letters = run.delivery.dead_letters.all()
        except StorageError:
            return
        if edit:
            letters = tuple(each for each in letters if each.after is not None)
        if not letters:
            return
        letter = self.dice.choice(letters)
        selection = Selection(table=letter.table, position=letter.position)
        values = {"note": MENDED} if edit else None
        if edit:
            world.watch.corrections.edits.add((number, letter.table, letter.position))
        request = ReplayRequest(selection, values, dry_run=self.dice.random() < 0.1)
        world.counts["edit asked" if edit else "replay asked"] += 1
        world.asked.append((number, request))
        run.corrections.ask(request)
        run.requests += 1

    def _ask(self, what: str) -> None:
        world = self.world
        assert world.life is not None
        if what == "reload":
            world.reload(world.life, self.dice.choice(TABLES))
        else:
            number = self.dice.randrange(len(world.plan.flows))
            world.pause(world.life, number, what == "pause")

    # --- rest -----------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        """Heal everything, go on until nothing moves, and check."""
        world = self.world
        world.heal()
        for old in list(world.old_lives):
            world.engine_died(old)
        life = world.life
        if life is not None and any(driven.run.failed for driven in life.engine.driven):
            world.stop(life)
        if world.life is None:
            world.start()
        for number in range(len(world.plan.flows)):
            world.pause(life_of(world), number, False)
        for number in range(MOST_ROUNDS):
            self._round()
            for one in list(world.lingering):
                world.linger(one)
            self._look()
            if check.at_rest(world):
                break
            world.now += 0.01 if number < 5 else 1.0 if number < 60 else 10.0
        else:
            raise Violation(f"does not come to rest: {check.state_of(world)}")
        world.note("at rest")
        check.check(world)

    def _round(self) -> None:
        world = self.world
        if world.life is None:
            world.start()
        life = world.life
        if life is None:
            return
        engine = life.engine
        if engine.may_spawn:
            engine.spawn()
        if engine.recorder is not None:
            engine.recorder.deliver(99)
        world.step_recorder(life)
        if world.life is life:
            world.hear(life, 99)
        for _ in range(50):
            if world.life is not life or not engine.runnable():
                break
            world.drive(life, 0)
