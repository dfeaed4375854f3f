"""
Whether pipelines are ready, as observed now, and who waits for that.

Readiness is never stored: it is read from the pipelines and recorders each time, so it goes
back to False with the first thing that is wrong (invariant 9). Whoever waits is woken by
`heard`, which everything that moves calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from headrace.control.recording import Recording
from headrace.control.run import PipelineRun


class Readiness:
    """
    Looks at what it was given, and keeps nothing but who waits. Safe to call from any thread.

    `recorded` are sources with the tables that are recorded without a pipeline; `spark_alive`
    and `at_work` say whether Spark is well and whether the engine has something running.
    """

    def __init__(
        self,
        runs: Sequence[PipelineRun],
        recordings: Mapping[str, Recording],
        recorded: Sequence[tuple[str, Sequence[str]]],
        spark_alive: Callable[[], bool],
        at_work: Callable[[], bool],
    ) -> None:
        self._runs = runs
        self._recordings = recordings
        self._recorded = recorded
        self._spark_alive = spark_alive
        self._at_work = at_work
        self._changed = threading.Condition()
        self._calls: list[Callable[[], None]] = []

    def now(
        self, source: str | None = None, table: str | None = None, pipeline: str | None = None
    ) -> bool:
        """Return whether the pipelines asked for are ready; False where there is none."""
        runs = [
            run
            for run in list(self._runs)
            if source in (None, run.source)
            and (table is None or table in run.tables)
            and pipeline in (None, run.name)
        ]
        recorded = [
            (self._recordings.get(each), name)
            for each, tables in self._recorded
            for name in tables
            if pipeline is None and source in (None, each) and table in (None, name)
        ]
        return (
            bool(runs or recorded)
            and (not runs or self._spark_alive())
            and all(run.ready and self._recorded_well(run.source) for run in runs)
            and all(recording is not None and recording.has(name) for recording, name in recorded)
        )

    def _recorded_well(self, source: str) -> bool:
        recording = self._recordings.get(source)
        return recording is not None and recording.ready

    def wait(self, timeout: float | None) -> bool:
        """Return whether all is ready, once it is, or waiting is of no use."""
        self.wait_for(lambda: self.now() or self._hopeless(), timeout)
        return self.now()

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Look at `done` whenever something moves, until it is true or the time is over."""
        with self._changed:
            return self._changed.wait_for(done, timeout)

    def until(self, done: Callable[[], bool], source: str, timeout: float | None) -> bool:
        """Wait for something of a source, unless that is of no use; return whether it is so."""
        recording = self._recordings[source]
        runs = [run for run in list(self._runs) if run.source == source]

        def stuck() -> bool:
            # One that has stopped was let go of: it will bring nothing.
            failed = recording.gave_up or any(run.failed or run.stopped for run in runs)
            return failed or not self._at_work()

        self.wait_for(lambda: done() or stuck(), timeout)
        return done()

    def call(self, call: Callable[[], None]) -> None:
        """Call `call` once, when all is ready next: at once if it is."""
        with self._changed:
            if not self.now():
                self._calls.append(call)
                return
        call()

    def heard(self) -> None:
        """Something moved: look again."""
        calls: list[Callable[[], None]] = []
        with self._changed:
            if self.now():
                calls, self._calls = self._calls, []
            self._changed.notify_all()
        for call in calls:
            call()

    def ended(self) -> None:
        """Nothing runs any longer: nobody waits in vain."""
        with self._changed:
            self._changed.notify_all()

    def _hopeless(self) -> bool:
        return (
            not self._at_work()
            or any(run.failed for run in list(self._runs))
            or any(recording.gave_up for recording in list(self._recordings.values()))
        )
