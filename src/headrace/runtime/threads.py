"""
The threads that run pipelines: one each, so that a slow or failing pipeline does not delay others.

A thread waits for its source's log; a new entry, or a request to the pipeline, wakes it. A pipeline
can be paused between two steps.

`SourceWalGuard` prevents a source from dropping our position: it checks each measurement of the
space that the source uses for us (R28). One pipeline at a time is released, and the next one only
after the source had time to show the effect. It also compares each pipeline's lag with its limit
(R29): from outside, because a pipeline may hang in its target.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from headrace.capture.source import Room
from headrace.changelog.reader import LogReader
from headrace.errors import ControlError, HeadraceError, LagExceeded, SourceFilling
from headrace.observe.logs import logger
from headrace.runtime.model import Watermark
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.runtime.wal_pressure import is_tight, pinned_by, to_release

# --- the guard of a source's space ----------------------------------------------------------------

PATIENCE = 1
"""Measurements to ignore after a release: they may be older than its effect."""

_log = logger(__name__)


class SourceWalGuard:
    """Guards one source. Called on the recorder's reader thread, once per measurement."""

    def __init__(
        self,
        recording: SourceRun,
        runs: Sequence[PipelineRun],
        wake: Callable[[PipelineRun], None],
        acknowledge: Callable[[], None],
    ) -> None:
        """`runs` are the pipelines of this source."""
        self._recording = recording
        self._runs = {run.name: run for run in runs}
        self._wake = wake
        self._acknowledge = acknowledge
        self._patience = 0

    def pins(self) -> Mapping[str, Watermark]:
        """Return what each pipeline still needs the source to keep."""
        return {name: run.watermark() for name, run in self._runs.items()}

    def look(self, room: Room) -> None:
        """Check a new measurement."""
        watermarks, end = self.pins(), self._recording.log.end
        self._warn(room, pinned_by(room, end, watermarks))
        name = None if self._patience else to_release(room, end, watermarks)
        self._patience = max(0, self._patience - 1)
        if name is None:
            # Pipelines do this when they are idle; but all may hang after one was released.
            self._acknowledge()
            return
        facts = {"source": self._recording.name, "used": room.used, "limit": room.limit}
        if self._release(name, facts):
            self._patience = PATIENCE
            self._wake(self._runs[name])

    def _release(self, name: str, facts: Mapping[str, object]) -> bool:
        """Release a pipeline, with a notice; return whether that could be stored."""
        try:
            self._runs[name].release_source(**facts)
            self._acknowledge()
        except HeadraceError as error:
            # Not raised: it would end the thread that reads from the recorder. The next
            # measurement tries again.
            _log.error(
                "pipeline could not be released from its source",
                pipeline=name,
                code=error.code,
                problem=str(error),
            )
            return False
        if (released := self._runs[name].release.why) is not None:
            self._recording.note(released)
        return True

    def look_at_lags(self) -> None:
        """Act on pipelines that lag behind by more than their limit allows."""
        for run in self._runs.values():
            policy = run.pipeline.lag.policy
            done = run.failed if policy == "error" else run.release.why is not None
            if policy == "block" or done or (excess := run.lag_excess()) is None:
                continue
            if policy == "error":
                error = LagExceeded(
                    f"Pipeline {run.name} lags behind by more than its limit",
                    pipeline=run.name,
                    **excess.facts,
                )
                run.halt(error, "lag")
                run.context.on_failure(run.name, error)
            else:
                self._release(run.name, {"source": self._recording.name, **excess.facts})
            self._wake(run)

    def _warn(self, room: Room, held_by: str) -> None:
        source = self._recording
        before, source.tight = source.tight, is_tight(room.used, room.limit, before=source.tight)
        if source.tight and not before:
            source.note(
                SourceFilling(
                    f"Source {source.name} keeps {room.used:,} of {room.limit:,} bytes that it may"
                    f" keep, for {held_by}",
                    used=room.used,
                    limit=room.limit,
                    pinned_by=held_by,
                )
            )


# --- the threads ----------------------------------------------------------------------------------

_GRACE_SECONDS = 1.0
"""How long a stop waits for a batch to finish before its job is cancelled."""

_LINE_SECONDS = 0.1
"""How long a stop waits at least for a line in the log file."""

_NO_ENTRY = sys.maxsize
"""Higher than the number of any entry."""

_AGAIN_SECONDS = 0.2
"""Between two attempts to cancel: a job that starts just after one is caught by the next."""


class StopLimits:
    """
    How long each of several steps may take, so that all of them end within a time.

    Each may take half of what is left: whatever hangs leaves time for the steps after it.
    """

    def __init__(self, seconds: float) -> None:
        # What the last step leaves behind is named in the log file after it.
        self._until = time.monotonic() + max(seconds - _LINE_SECONDS, 0.9 * seconds)
        self.log_hangs = False
        """Whether the last line did not get into the log file in time."""

    @property
    def next(self) -> float:
        """The seconds for the next step."""
        return max(0.0, self._until - time.monotonic()) / 2

    @property
    def for_a_line(self) -> float:
        """The seconds for a line in the log file; none after one that hangs."""
        return 0.0 if self.log_hangs else max(_LINE_SECONDS, min(1.0, self.next))


def call_within(seconds: float, call: Callable[[], object]) -> bool:
    """
    Call on a daemon thread, and raise what it raises; return False if it takes longer.

    A call that hangs is left behind, and does not keep the process from exiting.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="headrace stop", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return False
    if errors:
        raise errors[0]
    return True


def _ended(thread: threading.Thread, until: float) -> bool:
    thread.join(max(0.0, until - time.monotonic()))
    return not thread.is_alive()


def _cancel(runs: Sequence[PipelineRun], before: dict[str, threading.Thread]) -> None:
    """Cancel the jobs of pipelines; `before` has the attempts so far, which may hang."""

    def cancel(run: PipelineRun) -> None:
        with suppress(Exception):
            run.prepared.cancel()

    for run in runs:
        last = before.get(run.name)
        if last is None or not last.is_alive():
            # Not on this thread: a frozen JVM does not answer.
            before[run.name] = threading.Thread(target=cancel, args=(run,), daemon=True)
            before[run.name].start()
    until = time.monotonic() + _AGAIN_SECONDS
    for run in runs:
        before[run.name].join(max(0.0, until - time.monotonic()))


class Drivers:
    """
    A thread for each pipeline, from `start` to `stop`.

    They are daemon threads: one that hangs in a target or in Spark must not keep the process from
    exiting. Until `stop`, another thread keeps the process running.
    """

    def __init__(
        self,
        recordings: Mapping[str, SourceRun],
        on_change: Callable[[], None],
        acknowledge: Callable[[], None],
        patience: float = 10.0,
        abandon: Callable[[PipelineRun], None] = lambda run: None,
    ) -> None:
        """
        `patience` is how long a thread may take to end; then `abandon` is called with its pipeline.
        """
        self._recordings = recordings
        self._on_change = on_change
        self._acknowledge = acknowledge
        self._patience = patience
        self._abandon = abandon
        self._stopping = threading.Event()
        self._keep_alive = threading.Thread(target=self._stopping.wait, name="headrace engine")
        self._threads: list[tuple[PipelineRun, threading.Thread]] = []
        self._stepping: dict[str, threading.Lock] = {}
        self._leaving: list[PipelineRun] = []
        self._broken: set[str] = set()
        """Pipelines whose thread ended on an unexpected error."""

    def start(self, runs: Sequence[PipelineRun]) -> None:
        """Start a thread for each pipeline."""
        self._keep_alive.start()
        self.take(runs, runs)

    def take(self, runs: Sequence[PipelineRun], all_runs: Sequence[PipelineRun]) -> None:
        """Start threads for these pipelines, in addition to those that run already."""
        threads = [(run, self._thread(run)) for run in runs]
        for run in runs:
            self._stepping[run.name] = threading.Lock()
        self._threads += threads
        for _, thread in threads:
            thread.start()
        for name, recording in list(self._recordings.items()):
            mine = [run for run in all_runs if run.source == name]
            recording.guard = SourceWalGuard(recording, mine, self.wake, self._acknowledge)

    def leave(self, run: PipelineRun) -> None:
        """End one pipeline's thread; the others continue."""
        self._leaving.append(run)
        run.nudge()
        self._recordings[run.source].log.interrupt()
        mine = [pair for pair in self._threads if pair[0] is run]
        self._join(mine, self._patience)
        self._threads = [pair for pair in self._threads if pair not in mine]
        self._broken.discard(run.name)
        self._leaving.remove(run)

    def wake(self, run: PipelineRun) -> None:
        """Wake a pipeline's thread; restart it if it ended on an unexpected error."""
        if run.name in self._broken:
            self._broken.discard(run.name)
            thread = self._thread(run)
            self._threads.append((run, thread))
            thread.start()
        self._recordings[run.source].log.interrupt()

    def ended(self) -> list[PipelineRun]:
        """
        Return the pipelines whose thread ended, although nothing has stopped them.

        Not those that failed on an unexpected error: a resume gives them a new thread.
        """
        if self._stopping.is_set():
            return []
        last = dict(self._threads)  # the last thread of each: it may have been started again
        return [
            run
            for run, thread in last.items()
            if not (thread.is_alive() or run.stopped or run.abandoned or self._over(run))
            and run.name not in self._broken
        ]

    def _thread(self, run: PipelineRun) -> threading.Thread:
        name = f"headrace {run.name}"
        return threading.Thread(target=self._drive, args=(run,), name=name, daemon=True)

    def rest(self, runs: Sequence[PipelineRun]) -> list[PipelineRun]:
        """
        Wait until the pipelines are between two steps; running jobs are cancelled (S8).

        Return those whose step did not end in time: a call of a target may hang.
        """
        until = time.monotonic() + self._patience
        left, cancels = list(runs), dict[str, threading.Thread]()
        while (left := [run for run in left if not self._rests(run)]) and time.monotonic() < until:
            _cancel(left, cancels)
        return left

    def _rests(self, run: PipelineRun) -> bool:
        lock = self._stepping[run.name]
        if found := lock.acquire(timeout=_AGAIN_SECONDS):
            lock.release()
        return found

    def stop(self, patience: float | None = None) -> None:
        """
        End every thread; a long job is cancelled, and its batch computed again next time.

        `patience` is for all of them together, if it is less than that of one.
        """
        self._stopping.set()
        for recording in list(self._recordings.values()):
            recording.guard = None
            recording.log.interrupt()
        self._join(self._threads, self._patience if patience is None else patience)
        self._threads.clear()

    def _join(
        self, threads: Sequence[tuple[PipelineRun, threading.Thread]], patience: float
    ) -> None:
        """Wait for threads that were asked to end; cancel their jobs if that takes long."""
        now = time.monotonic()
        until, look = now + patience, now + min(_GRACE_SECONDS, patience / 2)
        left, cancels = list(threads), dict[str, threading.Thread]()
        while (left := [each for each in left if not _ended(each[1], look)]) and look < until:
            _cancel([run for run, _ in left], cancels)
            look = min(until, time.monotonic() + _AGAIN_SECONDS)
        # All of them before anything else: what follows closes what they use.
        for run, _ in left:
            run.abandon()
        for run, _ in left:
            with suppress(Exception):
                self._abandon(run)

    def _drive(self, run: PipelineRun) -> None:
        """Run one pipeline's steps; mark the pipeline as failed if they end unexpectedly."""
        try:
            self._take_steps(run)
        except BaseException as error:
            if run.abandoned:
                return  # another run may have its name by now
            self._broken.add(run.name)
            run.fail(
                ControlError(
                    "The pipeline stopped on an unexpected error",
                    pipeline=run.name,
                    error=type(error).__name__,
                )
            )
            self._on_change()
            raise

    def _take_steps(self, run: PipelineRun) -> None:
        """Step until the engine stops; a fenced pipeline only waits for that."""
        recording = self._recordings[run.source]
        logged: HeadraceError | None = None
        while not self._over(run):
            seen, heeded = recording.log.last_entry, run.requests
            before = run.state, run.opened
            try:
                with self._stepping[run.name]:
                    pause = run.step()
            except HeadraceError as error:
                run.fail(error)
                pause = IDLE
            if run.abandoned:
                return  # it is no longer waited for, and its store may be closed
            if (run.state, run.opened) != before or pause is not None:
                self._on_change()
            if run.error is not None and run.error is not logged:
                _log.error(
                    "batch failed",
                    pipeline=run.name,
                    code=run.error.code,
                    state=run.state,
                    problem=str(run.error),
                )
            logged = run.error
            if pause is None:
                continue
            self._acknowledge()
            if not (run.failed or run.paused):
                recording.ask_flush()

            def called(heeded: int = heeded) -> bool:
                return self._over(run) or run.requests != heeded

            if pause == IDLE:
                recording.log.wait(seen, run.wakes_in, called)
            else:
                self._sit_out(recording.log, pause, called)

    @staticmethod
    def _sit_out(log: LogReader, seconds: float, called: Callable[[], bool]) -> None:
        """
        Wait for the whole pause after a failure, unless something is requested of the pipeline.

        New entries of the log do not end it: under load they arrive many times a second. Nor
        does a wake-up of another pipeline of the same source.
        """
        until = time.monotonic() + seconds
        while not called() and (left := until - time.monotonic()) > 0:
            log.wait(_NO_ENTRY, left, called)

    def _over(self, run: PipelineRun) -> bool:
        return self._stopping.is_set() or any(run is each for each in self._leaving)
