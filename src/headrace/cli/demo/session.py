"""
One run of the demo: shop, engine, writer, view, comparison, in that order.

The comparison reads both ends and looks at every row, to say whether the target is what it should
be. What the pipeline does is stated a second time for it, in Python over what SQL returns, and
shares nothing with the pipeline: a mistake in one of the two is found by the other. A row that a
dead letter holds is compared, too: with what it was before the letter. And a letter must have a
cause: of a row that can be computed it is a difference, as is a row that cannot be computed and
has no letter.

`next_steps` are commands to try after the demo, as they can be pasted where it was called.

The engine starts on a thread of its own, because Spark takes seconds, and the recorder
already records meanwhile: the main thread shows that, and listens for the end. The view
is given a `Snapshot` a few times a second and decides itself what to print.

Long because everything that a run of the demo does is here, beside the session that does it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.cli.demo.model import (
    DEFAULT,
    HOPS,
    Build,
    ChangeWatch,
    Command,
    Comparison,
    DemoEngine,
    DemoView,
    HeldRow,
    HopTimes,
    LastBatch,
    Rate,
    RowDifference,
    Shop,
    Snapshot,
    SparkNow,
    Step,
    Summary,
)
from headrace.cli.demo.shops import WriterTotals
from headrace.cli.signals import StopRequest
from headrace.errors import (
    ControlError,
    HeadraceError,
    NotRunning,
    StorageError,
    StorageFull,
    TableError,
)

if TYPE_CHECKING:
    from headrace.deadletters.letter import DeadLetter
    from headrace.runtime.info import PipelineInfo, SourceInfo


# --- the comparison of source and target ----------------------------------------------------------

MOST_SHOWN = 20
"""Differences that are kept: one is enough to fail, a few are enough to see why."""

LARGEST = 2**63 - 1
"""A total beyond it cannot be computed; the shop has no negative ones."""

Row = Mapping[str, object]


class Letter(Protocol):
    """A dead letter, as far as a comparison needs it."""

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> tuple[object, ...]: ...
    @property
    def before(self) -> Row | None: ...
    @property
    def after(self) -> Row | None: ...


@dataclass(frozen=True, slots=True)
class ExpectedRows:
    """What the target must hold, by order id."""

    rows: Mapping[int, Row]
    held: tuple[int, ...] = ()
    """The orders among them, or missing from them, that dead letters hold."""

    wrong: tuple[RowDifference, ...] = ()
    """What is wrong before the target is looked at."""


@dataclass(slots=True)
class _Expecting:
    rows: dict[int, Row] = field(default_factory=dict)
    wrong: list[RowDifference] = field(default_factory=list)


def as_in_target(order: Row) -> dict[str, object] | None:
    """
    Return what the target must make of an order: filter, derive and drop, restated.

    None for one that is filtered out. Raises `ValueError` where the total cannot be computed.
    """
    if order["status"] == "cancelled":
        return None
    row = {name: value for name, value in order.items() if name != "card_number"}
    total = _number(order["qty"]) * _number(order["price_cents"])
    if total > LARGEST:
        raise ValueError("beyond a 64-bit integer")
    row["total_cents"] = total
    return row


def expect(orders: Mapping[int, Row], letters: Iterable[Letter]) -> ExpectedRows:
    """Return what the target must hold of these orders; `letters` are in position order."""
    first: dict[int, Letter] = {}
    for letter in letters:
        first.setdefault(_number(letter.key[0]), letter)
    found = _Expecting()
    for key, order in orders.items():
        if key not in first:
            _expect_row(found, key, order, "letterless")
    for key, letter in first.items():
        if not _has_cause(letter):
            found.wrong.append(RowDifference(key, "causeless"))
        if letter.before is not None:
            _expect_row(found, key, letter.before, "causeless")
    return ExpectedRows(found.rows, tuple(sorted(first)), tuple(found.wrong))


def compare(expected: ExpectedRows, found: Iterable[Row]) -> Comparison:
    """Compare row by row and column by column; a value of another type is another value."""
    differences = list(expected.wrong)
    seen: set[object] = set()
    for row in found:
        key = row["id"]
        wanted = expected.rows.get(key) if isinstance(key, int) else None
        if wanted is None or key in seen:
            differences.append(RowDifference(_number(key), "extra"))
        elif columns := _differing(wanted, row):
            differences.append(RowDifference(_number(key), "columns", columns))
        seen.add(key)
    differences += [RowDifference(key, "missing") for key in expected.rows.keys() - seen]
    differences.sort(key=lambda difference: difference.key)
    compared = len(expected.rows.keys() | seen)
    return Comparison(compared, tuple(differences[:MOST_SHOWN]), expected.held)


def _expect_row(found: _Expecting, key: int, order: Row, otherwise: str) -> None:
    try:
        row = as_in_target(order)
    except ValueError:
        found.wrong.append(RowDifference(key, otherwise))
        return
    if row is not None:
        found.rows[key] = row


def _has_cause(letter: Letter) -> bool:
    """Whether the first letter of a row is of a change that really cannot be computed."""
    if letter.kind != "failed" or letter.after is None:
        return False
    try:
        as_in_target(letter.after)
    except ValueError:
        return True
    return False


def _differing(wanted: Row, row: Row) -> tuple[str, ...]:
    return tuple(
        name
        for name in sorted(wanted.keys() | set(row))
        # 1, 1.0 and True are equal in Python; a replica that mixes them up is not right.
        if name not in wanted
        or name not in row
        or type(wanted[name]) is not type(row[name])
        or wanted[name] != row[name]
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


# --- commands to try next -------------------------------------------------------------------------


def next_steps(
    shop: Shop, source: str, table: str, letters: Iterable[HeldRow] = ()
) -> tuple[Command, ...]:
    """Return the commands: see a dead letter, write and read changes, go on, ask the shop."""
    python = as_typed(Path(sys.executable))
    folder = as_typed(shop.folder)
    # Not the log's own files: which of them count is known to its index alone, for flushes are
    # merged, and the files of before stay for a while.
    changes = f"{folder}/changes.parquet"
    write = ("log", "read", source, table, "--data", folder, "--format", "parquet")
    read = (
        "import headrace as hr; "
        f"changes = hr.spark().read.parquet({_literal(changes)}); "
        'changes.groupBy("op").count().show()'
    )
    ask_shop = shop.asking(folder, "select status, count(*) from orders group by status")
    kind = () if shop.kind == DEFAULT else ("--source", shop.kind)
    return (
        *(Command("look at the dead letter", each.commands[0]) for each in list(letters)[:1]),
        Command(
            "write the change log to a Parquet file",
            # Pasted a second time, it writes the file anew.
            _line(*program(), *write, "--output", changes, "--force"),
        ),
        Command("read that file with PySpark", _line(python, "-c", read)),
        Command(
            "go on where this one stopped",
            _line(*program(), "demo", *kind, "--data", folder),
        ),
        Command("ask the shop itself", _line(python, "-c", ask_shop)),
    )


def letter_commands(data: Path, position: str) -> tuple[str, ...]:
    """Return what shows the dead letter at a position, and what lists all of them."""
    letters, folder = (*program(), "dead-letters"), as_typed(data)
    return (
        _line(*letters, "show", position, "--data", folder),
        _line(*letters, "list", "--data", folder),
    )


def program() -> tuple[str, ...]:
    """Return how this Headrace is called: by its name, where the shell finds it by that."""
    script = Path(sys.executable).with_name("headrace")
    if not script.exists():
        return (as_typed(Path(sys.executable)), "-m", "headrace")
    found = shutil.which("headrace")
    same = found is not None and Path(found).absolute() == script.absolute()
    return ("headrace",) if same else (as_typed(script),)


def as_typed(path: Path) -> str:
    """Return the path as someone in the present folder would type it."""
    here = Path.cwd()
    path = path.absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _literal(text: str) -> str:
    # Double quotes, so that the shell's single ones around the program stay readable.
    return json.dumps(text, ensure_ascii=False)


def _line(*words: str) -> str:
    return shlex.join(words)


# --- snapshots of a running engine ----------------------------------------------------------------

SPARK_SECONDS = 1.0


class FlowMonitor:
    """Gathers `Snapshot`s from a running engine, each part as often as it is worth asking for."""

    def __init__(
        self, engine: DemoEngine, watch: ChangeWatch, data: Path, *, killable: bool
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._data = data
        self._killable = killable
        self._captured, self._applied = Rate(), Rate()
        self._spark: SparkNow | None = None
        self._spark_due = 0.0
        self._letters: tuple[DeadLetter, ...] = ()

    def snapshot(
        self, phase: str, now: float, left: float | None, *, started: bool, visible: bool
    ) -> Snapshot:
        """Return the flow at this moment; raises what a source or pipeline stopped on."""
        snapshot = Snapshot(phase, now, left, killable=self._killable)
        for source in self.sources():
            _raise_failure(source)
            snapshot = replace(
                snapshot,
                source=source.name,
                kind=source.kind,
                source_state=source.state,
                source_reason=source.reason,
                restarts=source.restarts,
                captured=source.captured,
                captured_rate=self._captured.at(now, source.captured),
                flushes=source.flushes,
                log_bytes=source.bytes,
                copies=source.copies,
            )
        for pipeline in self.pipelines():
            _raise_failure(pipeline)
            snapshot = replace(
                snapshot,
                table=pipeline.table,
                state=pipeline.state,
                applied=pipeline.changes,
                applied_rate=self._applied.at(now, pipeline.changes),
                rows=pipeline.rows,
                position=str(pipeline.position),
                hops=_hops(pipeline),
                letters=self._held(pipeline),
            )
        return replace(
            snapshot,
            spark=self._spark_now(now) if started else None,
            changes=self._watch.last(),
            lookup=self._watch.lookup() if visible else None,
        )

    def sources(self) -> tuple[SourceInfo, ...]:
        """Return the sources, none before there are any."""
        with suppress(NotRunning):
            return self._engine.sources()
        return ()

    def pipelines(self) -> tuple[PipelineInfo, ...]:
        """Return the pipelines, none before there are any."""
        with suppress(NotRunning):
            return self._engine.pipelines()
        return ()

    def ask_spark_again(self) -> None:
        """Let the next snapshot have Spark's newest counts."""
        self._spark_due = 0.0

    def letters(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters there are now."""
        return self._engine.dead_letters()

    def last_batch(self, *, whole: bool) -> LastBatch | None:
        """Return what Spark did last, with the whole explanation on request."""
        with suppress(NotRunning):
            for pipeline in self.pipelines():
                told = self._engine.explain(pipeline.name)
                plan = self._spark.plan if self._spark else ""
                text = str(told) if whole else None
                return LastBatch(told.rows_in, told.rows_out, told.last_job_ms, plan, text)
        return None

    def _spark_now(self, now: float) -> SparkNow | None:
        # Spark answers in another process: asked seldom, it does not slow what it is asked about.
        if now >= self._spark_due:
            self._spark_due = now + SPARK_SECONDS
            if told := self._engine.spark_info():
                self._spark = SparkNow(
                    told.version, told.jobs, told.tasks, told.last_job_ms, told.plan, told.ui
                )
        return self._spark

    def _held(self, pipeline: PipelineInfo) -> tuple[HeldRow, ...]:
        # Letters are read from files: only when there are others than a moment ago.
        if pipeline.dead_letters != len(self._letters):
            self._letters = self._engine.dead_letters()
        if not self._letters:
            return ()
        from headrace.deadletters.letter import behind

        first: dict[tuple[object, ...], DeadLetter] = {}
        for letter in self._letters:
            first.setdefault(letter.key, letter)
        return tuple(
            HeldRow(
                pipeline=letter.pipeline,
                table=letter.table,
                key=", ".join(str(part) for part in letter.key),
                code=letter.code,
                position=str(letter.position),
                behind=len(behind(letter, self._letters)),
                commands=letter_commands(self._data, str(letter.position)),
            )
            for letter in first.values()
        )


def _raise_failure(info: SourceInfo | PipelineInfo) -> None:
    if info.state == "failed" and info.error is not None:
        raise info.error


def _hops(pipeline: PipelineInfo) -> tuple[HopTimes, ...]:
    return tuple(
        HopTimes(name, pipeline.hops[name].p50_ms, pipeline.hops[name].p95_ms)
        for name in HOPS
        if name in pipeline.hops
    )


# --- killing the recorder -------------------------------------------------------------------------

KEY = "k"


class Kills:
    """Kills a source's recorder when asked, to see it come back; says when another one records."""

    def __init__(self) -> None:
        self.healed: list[float | None] = []
        """For each kill, seconds until changes were recorded again; None until then."""

        self._killed: tuple[float, int] | None = None
        """When it was killed last, and how often it had been started again before."""

    def kill(self, source: SourceInfo, now: float) -> str | None:
        """Kill the recorder as nothing else does: at once, and without a word to it."""
        pid = source.recorder_pid
        # Between two recorders there is nobody to kill; and never ourselves.
        if pid is None or pid == os.getpid() or self._killed is not None:
            return None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._killed = (now, source.restarts)
        self.healed.append(None)
        return f"recorder killed: process {pid}, SIGKILL"

    def look(self, source: SourceInfo, now: float) -> str | None:
        """Return what to tell when the recorder is back."""
        if self._killed is None:
            return None
        at, restarts = self._killed
        if source.restarts <= restarts or source.state != "streaming":
            return None
        self._killed = None
        self.healed[-1] = now - at
        return f"recorder is back after {now - at:.1f} s, on from the log's end"


# --- the order that cannot be computed ------------------------------------------------------------

PLACED_SECONDS = 3.0
"""After the first visible row; earlier where the demo is too short for that."""

MOVED_SECONDS = 3.0
"""After the letter, likewise."""


class SpoiltOrder:
    """
    One order that cannot be computed, on purpose: how a dead letter looks.

    A barcode is scanned into the quantity, so the order's total overflows. Once its letter is
    there the order is paid: that change cannot be computed either, and waits behind the first.
    This happens as time goes by; a shop has one such order, over all runs.
    """

    def __init__(self, shop: Shop, run_seconds: float) -> None:
        self.changes = 0
        """Made to the shop so far."""

        self._shop = shop
        self._placed_at = min(PLACED_SECONDS, 0.25 * run_seconds)
        self._moved_after = min(MOVED_SECONDS, 0.15 * run_seconds)
        self._placed = self._moved = False
        self._held_since: float | None = None

    def go_on(self, seconds: float, *, held: bool) -> str | None:
        """
        Do what is due, so many seconds after the first visible row; return what was done.

        `held` tells whether the order's letter is there.
        """
        if not self._placed and seconds >= self._placed_at:
            self._placed = True
            return self._place()
        if not held or self._moved or not self._placed:
            return None
        if self._held_since is None:
            self._held_since = seconds
        if seconds < self._held_since + self._moved_after:
            return None
        self._moved = True
        return self._move()

    def _place(self) -> str | None:
        if self._shop.spoilt_order() is not None:
            return None
        order = self._shop.place_spoilt_order()
        self.changes += 1
        return f"order {order}: a barcode is scanned as its quantity"

    def _move(self) -> str | None:
        order = self._shop.spoilt_order()
        status = None if order is None else self._shop.move_on(order)
        if status is None:
            return None
        self.changes += 1
        return f"order {order} is {status}: waits behind its dead letter"


# --- the shop's writer ----------------------------------------------------------------------------

STOP_SECONDS = 10.0


class Writer:
    """
    The shop's writer as a child process: started, asked to end, never left behind.

    `stop` may be called at any time, and again.
    """

    def __init__(self, shop: Shop, rate: float) -> None:
        self._written: WriterTotals | None = None
        self._child = subprocess.Popen(
            [sys.executable, *shop.writer(), str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What it has to say comes on stdout, as JSON; the terminal is the demo's.
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the demo, which ends the writer in its turn; it could come before
            # the child has got as far as to ignore it.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def check(self) -> None:
        """Raise what ended the writer, if it ended by itself."""
        if self._child.poll() is not None:
            self.stop()

    def stop(self) -> WriterTotals:
        """End the writer and return what it did; raises what it failed on."""
        if self._written is not None:
            return self._written
        try:
            # Closes its stdin, which ends it after the transaction it is in.
            told, _ = self._child.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            told, _ = self._child.communicate()
        self._written = WriterTotals()
        try:
            said = json.loads(told)
        except ValueError:
            raise StorageError(
                "The demo's shop cannot be used", why=f"exit code {self._child.returncode}"
            ) from None
        if "error" in said:
            kind = StorageFull if said["code"] == StorageFull.code else StorageError
            raise kind(said["error"], **said["facts"])
        self._written = WriterTotals(said["changes"], said["transactions"])
        return self._written


# --- the session ----------------------------------------------------------------------------------

SOURCE = "shop"
TABLE = "orders"
INDEX = "by_customer"

TICK_SECONDS = 0.25
READY_SECONDS = 300.0
"""Without a first row by then something is stuck, and a script that waits should know."""

START_SECONDS = 60.0
"""For a start to finish when the end was asked for in the midst of it."""

END_SECONDS = 60.0
"""For the target to reach the source's end after the last order."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the command line said."""

    run_seconds: float
    rate: float
    kill: bool = False
    """`k` kills the recorder."""

    explain: bool = False
    """The whole plan is told at the end."""


class DemoSession:
    """One run: `open_shop`, then `run`, once."""

    def __init__(
        self, settings: DemoSettings, shop: Shop, build: Build, view: DemoView, ending: StopRequest
    ) -> None:
        self._settings = settings
        self._shop = shop
        self._build = build
        self._view = view
        self._ending = ending
        self._began = time.monotonic()
        self._visible_at: float | None = None
        self._writer: Writer | None = None
        self._spoilt = SpoiltOrder(self._shop, settings.run_seconds)
        self._kills = Kills()
        self._last = Snapshot("starting", 0.0)
        self._said: list[Step] = []

    def run(self) -> Summary:
        """Run to the end and return what was done; raises what stopped it."""
        self._engine, self._orders = self._build(self._shop, self._hear)
        self._watch = ChangeWatch(self._orders.changes, self._orders.lookup_all, INDEX)
        self._gathering = FlowMonitor(
            self._engine, self._watch, self._shop.folder, killable=self._settings.kill
        )
        self._started: futures.Future[None] = futures.Future()
        threading.Thread(target=self._start, name="demo-start", daemon=True).start()
        try:
            self._until_visible()
            self._while_running()
            written, comparison = self._close()
            last_batch = self._gathering.last_batch(whole=self._settings.explain)
        finally:
            self._stop()
        return Summary(
            self._last,
            written,
            comparison,
            next_steps(self._shop, SOURCE, TABLE, self._last.letters),
            last_batch,
            tuple(self._kills.healed),
        )

    def open_shop(self) -> None:
        """Make the shop, or find the one of an earlier run; refuse a folder of others."""
        try:
            self._shop.open(partial(self._step, "server"))
            orders = self._shop.count()
        except HeadraceError:
            # Ctrl-C reaches the programs that make a database, too: not an error then.
            if self._ending.asked:
                raise KeyboardInterrupt from None
            raise
        self._step("shop", f"shop with {orders:,} orders in {self._shop.place}")

    def _start(self) -> None:
        try:
            self._engine.start()
        except BaseException as error:  # noqa: BLE001 - carried to the main thread, raised there
            self._started.set_exception(error)
        else:
            self._started.set_result(None)

    def _until_visible(self) -> None:
        while not self._is_visible():
            if self._seconds() > READY_SECONDS:
                raise ControlError("No row became visible in time", seconds=int(READY_SECONDS))
            # While Spark starts this is the picture; short, so the first row is not missed.
            if self._ending.wait(TICK_SECONDS if not self._started.done() else 0.02):
                self._step("ended", "ended before the first row was visible, nothing compared")
                raise KeyboardInterrupt
            self._show("starting")
        self._visible_at = self._seconds()
        self._watch.start()
        self._show("starting")
        self._step("visible", f"first rows visible: {self._orders.count():,} orders in memory")
        if self._last.spark is not None and self._last.spark.ui is not None:
            self._step("engine", f"Spark's own pages: {self._last.spark.ui}")
        if self._settings.kill:
            self._step("engine", "press k to kill the recorder, q to end")

    def _is_visible(self) -> bool:
        if self._started.done():
            self._started.result()
        sources = self._gathering.sources()
        if self._writer is None and any(source.state == "streaming" for source in sources):
            # Only now: with the data directory ours, and every change of the writer captured.
            self._writer = Writer(self._shop, self._settings.rate)
            self._step("writer", f"writer changes the shop, {self._settings.rate:g} times a second")
        if not self._started.done() or not self._engine.await_ready(timeout=0):
            return False
        with suppress(TableError):
            return self._orders.count() > 0
        return False

    def _while_running(self) -> None:
        assert self._visible_at is not None
        until = self._visible_at + self._settings.run_seconds
        while (left := until - self._seconds()) > 0:
            if self._ending.wait(min(TICK_SECONDS, left)):
                break
            since = self._seconds() - self._visible_at
            done = self._spoilt.go_on(since, held=bool(self._last.letters))
            if done is not None:
                self._step("spoilt", done)
            self._show("running", until)

    def _close(self) -> tuple[int, Comparison | None]:
        written = self._writer.stop().changes if self._writer else 0
        last = self._shop.place_last_order()
        written += self._spoilt.changes + 1
        self._step("closing", "writer stopped, waiting for its last change")
        until = self._seconds() + END_SECONDS
        # Changes come in commit order: the last order is visible when all before it is.
        while self._orders.get(last) is None:
            if self._seconds() > until:
                return written, None
            self._show("closing")
            time.sleep(0.02)
        self._gathering.ask_spark_again()
        self._show("closing")
        self._step("closing", "comparing every row of source and target")
        # What holds a row must have a cause, and is itself part of what is compared.
        expected = expect(self._shop.orders(), self._gathering.letters())
        return written, compare(expected, self._orders.all())

    def _stop(self) -> None:
        if self._writer is not None:
            # What it failed on was raised by `check` or `stop` where it mattered.
            with suppress(HeadraceError):
                self._writer.stop()
        # An engine is stopped when it has started: half of a start cannot be undone.
        futures.wait([self._started], timeout=START_SECONDS)
        self._engine.stop()
        self._watch.join()
        if closed := self._shop.close():
            self._step("closing", closed)

    def _show(self, phase: str, until: float | None = None) -> None:
        if self._writer is not None and phase != "closing":
            self._writer.check()
        self._tell_steps()
        self._kill_if_asked()
        now = self._seconds()
        held = self._last.letters
        self._last = self._gathering.snapshot(
            phase,
            now,
            None if until is None else max(0.0, until - now),
            started=self._started.done(),
            visible=self._visible_at is not None,
        )
        for letter in self._last.letters[len(held) :]:
            self._step("letter", f"dead letter: order {letter.key}, {letter.code}")
        self._view.show(self._last)

    def _kill_if_asked(self) -> None:
        asked = self._ending.pressed(KEY) and self._settings.kill
        for source in self._gathering.sources():
            if back := self._kills.look(source, self._seconds()):
                self._step("back", back)
            if asked and (killed := self._kills.kill(source, self._seconds())):
                self._step("killed", killed)

    def _hear(self, text: str) -> None:
        # On the thread that starts the engine: told by the main thread, with the time of now.
        self._said.append(Step(self._seconds(), "engine", text))

    def _tell_steps(self) -> None:
        while self._said:
            self._view.step(self._said.pop(0))

    def _step(self, name: str, text: str) -> None:
        self._tell_steps()
        self._view.step(Step(self._seconds(), name, text))

    def _seconds(self) -> float:
        return time.monotonic() - self._began
