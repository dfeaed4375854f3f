"""
One run of the demo: shop, engine, writer, view, comparison, in that order.

The engine starts on a thread of its own, because Spark takes seconds, and the recorder
already records meanwhile: the main thread shows that, and listens for the end. The view
is given a `Snapshot` a few times a second and decides itself what to print.
"""

from __future__ import annotations

import threading
import time
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from headrace.errors import ControlError, HeadraceError, TableError
from headrace.interfaces.cli.demo import killing
from headrace.interfaces.cli.demo.compare import compare, expect
from headrace.interfaces.cli.demo.ending import Ending
from headrace.interfaces.cli.demo.gathering import Gathering
from headrace.interfaces.cli.demo.next_steps import next_steps
from headrace.interfaces.cli.demo.parts import Build, View
from headrace.interfaces.cli.demo.shop import Shop
from headrace.interfaces.cli.demo.snapshot import Comparison, Snapshot, Step, Summary
from headrace.interfaces.cli.demo.spoilt import SpoiltOrder
from headrace.interfaces.cli.demo.watch import Watch
from headrace.interfaces.cli.demo.writer import Writer

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
class Settings:
    """What the command line said."""

    run_seconds: float
    rate: float
    kill: bool = False
    """`k` kills the recorder."""

    explain: bool = False
    """The whole plan is told at the end."""


class Session:
    """One run: `open_shop`, then `run`, once."""

    def __init__(
        self, settings: Settings, shop: Shop, build: Build, view: View, ending: Ending
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
        self._kills = killing.Kills()
        self._last = Snapshot("starting", 0.0)
        self._said: list[Step] = []

    def run(self) -> Summary:
        """Run to the end and return what was done; raises what stopped it."""
        self._engine, self._orders = self._build(self._shop, self._hear)
        self._watch = Watch(self._orders.changes, self._orders.lookup_all, INDEX)
        self._gathering = Gathering(
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
        asked = self._ending.pressed(killing.KEY) and self._settings.kill
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
