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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import BadDataDirectory, ControlError, HeadraceError, NotRunning, TableError
from headrace.interfaces.cli.demo import shop
from headrace.interfaces.cli.demo.compare import compare, expected_rows
from headrace.interfaces.cli.demo.ending import Ending
from headrace.interfaces.cli.demo.next_steps import next_steps
from headrace.interfaces.cli.demo.parts import Build, View
from headrace.interfaces.cli.demo.snapshot import (
    HOPS,
    Comparison,
    HopTimes,
    Rate,
    Snapshot,
    SparkNow,
    Step,
    Summary,
)
from headrace.interfaces.cli.demo.watch import Watch
from headrace.interfaces.cli.demo.writer import Writer, shop_errors

if TYPE_CHECKING:
    from headrace.control.info import PipelineInfo, SourceInfo

SOURCE = "shop"
TABLE = "orders"
INDEX = "by_customer"

TICK_SECONDS = 0.25
SPARK_SECONDS = 1.0
READY_SECONDS = 300.0
"""Without a first row by then something is stuck, and a script that waits should know."""

START_SECONDS = 60.0
"""For a start to finish when the end was asked for in the midst of it."""

END_SECONDS = 60.0
"""For the target to reach the source's end after the last order."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line said."""

    data: Path
    run_seconds: float
    rate: float


class Session:
    """One run: `open_shop`, then `run`, once."""

    def __init__(self, settings: Settings, build: Build, view: View, ending: Ending) -> None:
        self._settings = settings
        self._build = build
        self._view = view
        self._ending = ending
        self._shop = settings.data / "shop.db"
        self._began = time.monotonic()
        self._visible_at: float | None = None
        self._writer: Writer | None = None
        self._captured, self._applied = Rate(), Rate()
        self._last = Snapshot("starting", 0.0)
        self._said: list[Step] = []
        self._spark_now: SparkNow | None = None
        self._spark_due = 0.0

    def run(self) -> Summary:
        """Run to the end and return what was done; raises what stopped it."""
        self._engine, self._orders = self._build(self._shop, self._settings.data, self._hear)
        self._watch = Watch(self._orders.changes, self._orders.lookup_all, INDEX)
        self._started: futures.Future[None] = futures.Future()
        threading.Thread(target=self._start, name="demo-start", daemon=True).start()
        try:
            self._until_visible()
            self._while_running()
            written, comparison = self._close()
        finally:
            self._stop()
        return Summary(self._last, written, comparison, next_steps(self._settings.data, SOURCE))

    def open_shop(self) -> None:
        """Make the shop, or find the one of an earlier run; refuse a folder of others."""
        with shop_errors(self._shop):
            if not self._shop.exists():
                others = sorted(path.name for path in self._settings.data.iterdir())
                # Leftovers of a demo that was killed while it made its shop are ours.
                if any(not name.startswith(self._shop.name) for name in others):
                    raise BadDataDirectory(
                        "The folder holds other things and no demo",
                        remedy="Name a new or empty folder with --data.",
                        path=str(self._settings.data),
                    )
                shop.make(self._shop)
            elif not shop.is_shop(self._shop):
                raise BadDataDirectory(
                    "The folder holds a shop.db that is not the demo's",
                    remedy="Name another folder with --data.",
                    path=str(self._settings.data),
                )
            orders = shop.count(self._shop)
        self._step("shop", f"shop with {orders:,} orders in {self._shop.name}")

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

    def _is_visible(self) -> bool:
        if self._started.done():
            self._started.result()
        if self._writer is None and any(s.state == "streaming" for s in self._sources()):
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
            self._show("running", until)

    def _close(self) -> tuple[int | None, Comparison | None]:
        written = self._writer.stop().changes if self._writer else None
        with shop_errors(self._shop):
            last = shop.place_last_order(self._shop)
        self._step("closing", "writer stopped, waiting for its last change")
        until = self._seconds() + END_SECONDS
        # Changes come in commit order: the last order is visible when all before it is.
        while self._orders.get(last) is None:
            if self._seconds() > until:
                return written, None
            self._show("closing")
            time.sleep(0.02)
        self._spark_due = 0.0
        self._show("closing")
        self._step("closing", "comparing every row of source and target")
        with shop_errors(self._shop):
            expected = expected_rows(self._shop)
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

    def _show(self, phase: str, until: float | None = None) -> None:
        if self._writer is not None and phase != "closing":
            self._writer.check()
        self._tell_steps()
        self._last = self._snapshot(phase, until)
        self._view.show(self._last)

    def _snapshot(self, phase: str, until: float | None) -> Snapshot:
        now = self._seconds()
        snapshot = Snapshot(phase, now, None if until is None else max(0.0, until - now))
        for source in self._sources():
            _raise_failure(source)
            snapshot = replace(
                snapshot,
                source=source.name,
                source_state=source.state,
                captured=source.captured,
                captured_rate=self._captured.at(now, source.captured),
                flushes=source.flushes,
                log_bytes=source.bytes,
            )
        for pipeline in self._pipelines():
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
            )
        return replace(
            snapshot,
            spark=self._spark(),
            changes=self._watch.last(),
            lookup=self._watch.lookup() if self._visible_at is not None else None,
        )

    def _sources(self) -> tuple[SourceInfo, ...]:
        with suppress(NotRunning):
            return self._engine.sources()
        return ()

    def _pipelines(self) -> tuple[PipelineInfo, ...]:
        with suppress(NotRunning):
            return self._engine.pipelines()
        return ()

    def _spark(self) -> SparkNow | None:
        # Spark answers in another process: asked seldom, it does not slow what it is asked about.
        if self._started.done() and self._seconds() >= self._spark_due:
            self._spark_due = self._seconds() + SPARK_SECONDS
            if now := self._engine.spark_info():
                self._spark_now = SparkNow(
                    now.version, now.jobs, now.tasks, now.last_job_ms, now.plan
                )
        return self._spark_now

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


def _raise_failure(info: SourceInfo | PipelineInfo) -> None:
    if info.state == "failed" and info.error is not None:
        raise info.error


def _hops(pipeline: PipelineInfo) -> tuple[HopTimes, ...]:
    return tuple(
        HopTimes(name, pipeline.hops[name].p50_ms, pipeline.hops[name].p95_ms)
        for name in HOPS
        if name in pipeline.hops
    )
