"""The engine's Spark session: ours, restarted if its JVM dies, or the user's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from headrace.errors import NotRunning
from headrace.observe.logs import logger
from headrace.pipeline.definition import Pipeline
from headrace.runtime.run_context import RunContext
from headrace.spark_session.s3a import s3_needs
from headrace.spark_session.settings import merged
from headrace.storage.files import Files
from headrace.targets.target import NeedsContext, NeedsSpark, SparkAccess, Target, TargetContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.runner import SparkRunner
    from headrace.spark_session.session import Spark


_LOOK_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
"""Between two checks, and the maximum between two starts of a Spark that keeps dying."""

FROZEN_SECONDS = 10.0
"""A check that takes longer counts as no answer; the longest pause for garbage is shorter."""

_STOP_SECONDS = 1.0

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Options of a Spark session that we start, and of what runs in it."""

    conf: Mapping[str, str]
    ui: bool
    events: bool
    small_batches: Literal["direct", "job"] = "direct"
    """As in `headrace.pipeline.runner`; also for a session of the user."""


def spark_runner(
    data: Path, files: Files, session: SparkSession | None, options: SparkOptions
) -> SparkRunner:
    """Return a runner on the user's session, or on our own; the logs are in `files`."""
    # Imported here, because an engine that only records needs no Spark.
    from headrace.pipeline.failed_rows import Workspace
    from headrace.pipeline.runner import SparkRunner
    from headrace.spark_session.cluster_probe import probed
    from headrace.spark_session.session import Spark, start_session

    made = partial(
        SparkRunner,
        scratch=Workspace(files.path("scratch")),
        small_batches=options.small_batches,
        differences=Workspace(files.path("differences")),
    )
    if session is not None:
        return made(probed(Spark.bring(session), files))

    def start() -> Spark:
        # After a restart there may be other executors.
        started = start_session(data, conf=options.conf, ui=options.ui, events=options.events)
        return probed(started, files)

    return made(start(), renew=start)


def with_needs(options: SparkOptions, pipelines: Sequence[Pipeline], files: Files) -> SparkOptions:
    """Return the options with the settings that targets and the log's storage need."""
    targets = [pipeline.target for pipeline in pipelines]
    wanted = [each.spark_needs() for each in targets if isinstance(each, NeedsSpark)]
    if not files.local:
        wanted.append(s3_needs(options.conf))
    return replace(options, conf=merged(options.conf, wanted))


def give_context(name: str, target: Target, context: RunContext) -> None:
    """Pass the engine's context to a target that needs it."""
    if not isinstance(target, NeedsContext):
        return
    runner = context.runner if isinstance(context.runner, HasSpark) else None

    def spark() -> SparkAccess:
        if runner is None:
            raise NotRunning("The engine runs without Spark", pipeline=name)
        return runner.spark

    target.use(
        TargetContext(
            spark=spark,
            pipeline=name,
            files=context.files,
            clock=context.wall,
            lineage=lambda: context.log.lineage or "",
            check=context.check,
        )
    )


@runtime_checkable
class HasSpark(Protocol):
    """A runner on Spark."""

    @property
    def spark(self) -> Spark: ...


class ChecksSpark(Protocol):
    """A runner whose Spark may die."""

    @property
    def alive(self) -> bool:
        """Whether Spark is running; waits for its answer."""
        ...

    def revive(self) -> bool:
        """Restart Spark if it can be; return whether it runs."""
        ...


class SparkWatchdog:
    """
    Checks whether Spark is alive, and restarts it if it died and is ours.

    A pipeline without changes would not notice, and the status must not be ready with a dead
    JVM (invariant 9). `on_change` is called when it died and when it runs again.
    A check waits for the JVM, which may be frozen, so everybody else asks how the last one ended.
    """

    def __init__(
        self,
        runner: ChecksSpark,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._on_change = on_change
        self._clock = clock
        self._alive = True
        """How the last check that ended did."""
        self._asked_at: float | None = None
        """When the check in progress began; None between two checks, which may be long."""
        self._died_at = clock()
        self.restarts = 0
        """How often Spark was started again."""

        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace spark", daemon=True)
        self._thread.start()

    @property
    def down_seconds(self) -> float | None:
        """How long Spark has been dead, or has not answered; None if it runs. Never waits."""
        now, asked = self._clock(), self._asked_at
        if not self._alive:
            return now - self._died_at
        silent = 0.0 if asked is None else now - asked
        return silent if silent >= FROZEN_SECONDS else None

    @property
    def ended(self) -> bool:
        """Whether the thread that checks has ended, and was not stopped."""
        return not (self._thread.is_alive() or self._over.is_set())

    def stop(self) -> None:
        """Stop checking; a check that waits for a frozen JVM is left behind."""
        self._over.set()
        self._thread.join(_STOP_SECONDS)

    def _check(self, find: Callable[[], bool]) -> bool:
        self._asked_at = asked = self._clock()
        try:
            found = find()
        finally:
            self._asked_at = None
        now = self._clock()
        changed = found != self._alive or now - asked >= FROZEN_SECONDS
        if self._alive and not found:
            self._died_at = now
        self._alive = found
        if changed:
            self._report_change()
        return found

    def _watch(self) -> None:
        deaths = 0
        while not self._over.wait(min(_LOOK_SECONDS * 2 ** min(deaths, 10), _LONGEST_SECONDS)):
            try:
                if self._check(lambda: self._runner.alive):
                    deaths = 0
                    continue
                _log.error("Spark died", deaths=deaths)
                if self._check(self._runner.revive):
                    self.restarts += 1
            except Exception as error:  # noqa: BLE001 - whatever it is: the next attempt may succeed
                _log.failed("Spark could not be restarted", error)
            # Also after a success: the pauses grow if it dies again and again.
            deaths += 1
            self._report_change()

    def _report_change(self) -> None:
        try:
            self._on_change()
        except Exception as error:  # noqa: BLE001 - a caller's own code; the checks must go on
            _log.failed("change of Spark could not be reported", error)
