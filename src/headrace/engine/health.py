"""
Whether an engine works, as three checks, and what is wrong if one of them is red.

`live`: the engine's own threads run and answer. If not, only a restart of the process helps.
`startup`: the start is over: every pipeline has tried to open its target.
`ready`: readiness as `engine/status.py` computes it, with a reason for each part that is not.

All three are observed each time and stored nowhere, so each goes back to red (invariant 9). A part
that hangs must not hang the check: the observation runs on a thread of its own, and if that does
not answer in time, this is the answer.

`pipeline_state` says why one pipeline is not ready; the status shows the same words. Each reason
has the code of its error, or, if there is no error, one of `CONDITIONS`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from headrace.errors import with_facts

# Loaded by commands that start without Arrow and Spark: only types come from above `errors`.
if TYPE_CHECKING:
    from headrace.engine.state import EngineState
    from headrace.errors import HeadraceError
    from headrace.runtime.info import PipelineInfo, SourceInfo


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HealthReason:
    """One part of an engine that is not as it should be."""

    part: Literal["engine", "spark", "source", "pipeline"]
    name: str
    """Of the source or pipeline; empty for the engine and for Spark."""

    code: str
    """The code of the error, or a condition: see `CONDITIONS`."""

    message: str
    since: float | None = None
    """When it began, in seconds since 1970; None if that is not known."""

    @property
    def subject(self) -> str:
        """The part with its name, for people."""
        return " ".join(word for word in (self.part, self.name) if word)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One of the three checks."""

    ok: bool
    reasons: tuple[HealthReason, ...] = ()
    """Why it is not ok; empty if it is."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an engine at one moment."""

    live: HealthCheck
    """Whether the engine's own threads run and answer."""

    ready: HealthCheck
    """Whether everything is applied that was committed not long ago."""

    startup: HealthCheck
    """Whether the start is over."""


CHECKS = ("live", "ready", "startup")

CONDITIONS = {
    "engine_hangs": "the engine does not answer in time: a call that should not wait does",
    "engine_idle": "the engine has neither a pipeline nor a table to record",
    "engine_starting": "the engine is being started or stopped",
    "engine_stopped": "the engine has not been started, or was stopped",
    "thread_ended": "a thread of the engine ended that should not",
    "recorder_silent": "the recorder runs and has not reported for a minute",
    "spark_down": "Spark is not running, or does not answer",
    "source_connecting": "the source has not been reached yet",
    "source_waiting": "the source waits for something: its reason says what",
    "source_silent": "nothing was received from the recorder or the server for 20 s",
    "source_reconnecting": "the connection to the source was lost, or its recorder was",
    "source_resetting": "the source is being reset",
    "source_full": "the log has reached its limit, and reading has stopped",
    "source_failed": "the source cannot be read, and a retry does not help",
    "source_closed": "the source was stopped",
    "source_not_recorded": "the source has no recorder",
    "source_behind": "reading is more than 20 s behind the source",
    "baseline_missing": "the log has no baseline of a table that is only recorded",
    "target_opening": "the target is being opened",
    "pipeline_paused": "the pipeline was paused",
    "pipeline_stopped": "the pipeline was stopped",
    "pipeline_failed": "the pipeline stopped on an error",
    "table_waiting": "a table waits for a baseline",
    "table_loading": "a table is being loaded",
    "table_catching_up": "a table was loaded and applies the changes since",
    "changes_waiting": "changes in the log are not applied yet",
    "batch_running": "a batch has been applied for a while, and is not done",
    "not_confirmed": "it is not confirmed yet that all changes are applied",
}
"""What may be wrong without an error: code and meaning."""

# --- the state of a pipeline ----------------------------------------------------------------------

PIPELINE_STATES = (
    *("streaming", "complete", "reloading", "waiting", "loading", "catching_up"),
    *("not_ready", "paused", "failed", "stopped"),
)
"""The states of a pipeline in status and metrics."""

SOURCE_STATES = (
    *("connecting", "waiting", "streaming", "full", "watching", "silent", "reconnecting"),
    *("resetting", "failed", "closed"),
)
"""The states of a source."""

_COMING = frozenset({"waiting", "loading", "catching_up"})
"""States in which readers see nothing yet, or the previous rows."""

AT_WORK = frozenset({"streaming", "watching"})
"""States of a source that is read."""


@dataclass(frozen=True, slots=True)
class ShownState:
    """The state of a pipeline in one word, and what keeps it from being ready, or loads a table."""

    state: str
    reason: str
    code: str = ""
    since: float | None = None


def pipeline_state(
    pipeline: PipelineInfo, source: SourceInfo | None, *, ready: bool, now: float | None = None
) -> ShownState:
    """Return the state of a pipeline, never a better one than it has; `ready` as of now."""
    now = time.time() if now is None else now
    if pipeline.state in ("paused", "failed", "stopped"):
        text = sentence(pipeline.error, pipeline.name)
        code = f"pipeline_{pipeline.state}" if pipeline.error is None else pipeline.error.code
        return ShownState(pipeline.state, text, code, pipeline.error_since)
    if ready:
        state = "streaming" if pipeline.state == "live" else pipeline.state
        return ShownState(state, _load_reasons(pipeline))
    text, code, since = _hindrance(pipeline, source, now)
    state = pipeline.state if pipeline.state in _COMING else "not_ready"
    return ShownState(state, text, code, since)


def state_phrase(state: str) -> str:
    """Return a state as the end of a sentence: `is catching up`, `failed`."""
    return "failed" if state == "failed" else f"is {state.replace('_', ' ')}"


def sentence(error: HeadraceError | None, subject: str) -> str:
    """Return an error's message with its facts; empty if there is none."""
    return "" if error is None else with_facts(error.message, error.facts, subject)


def visible_lag(pipeline: PipelineInfo, source: SourceInfo | None) -> float | None:
    """Return the age of the oldest change that readers do not see; None if not known."""
    if source is None or source.state not in AT_WORK or source.error is not None:
        return None
    if pipeline.lag_seconds is None or not pipeline.tables:
        return None
    if any(table.state in _COMING or table.state == "complete" for table in pipeline.tables):
        return None
    if (current := source.current_seconds) is None:
        return None  # what was committed before a start is still being read
    # After a silence nothing is measured yet.
    read = current if source.lag_seconds is None else source.lag_seconds
    return max(pipeline.lag_seconds, read)


_Hindrance = tuple[str, str, float | None]
"""Text, code, since when."""


def _hindrance(pipeline: PipelineInfo, source: SourceInfo | None, now: float) -> _Hindrance:
    if source is None:
        return f"source {pipeline.source} is not recorded", "source_not_recorded", None
    if source.state not in AT_WORK:
        why = source.reason or sentence(source.error, source.name)
        text = f"source {source.name} {state_phrase(source.state)}{f': {why}' if why else ''}"
        return text, _source_code(source), _source_since(source, now)
    if source.error is not None:
        text = f"source {source.name}: {sentence(source.error, source.name)}"
        return text, source.error.code, source.error_since
    if (error := pipeline.error) is not None:
        return f"retrying: {sentence(error, pipeline.name)}", error.code, pipeline.error_since
    if (down := pipeline.spark_down_seconds) is not None:
        text = f"Spark is not running, or does not answer, for {down:.0f} s"
        return text, "spark_down", now - down
    if (opening := pipeline.opening_seconds) is not None:
        text = f"its target is being opened, for {opening:.0f} s"
        return text, "target_opening", now - opening
    if pipeline.state in _COMING:
        copies = [now - each.copy.seconds for each in pipeline.tables if each.copy is not None]
        return _load_reasons(pipeline), f"table_{pipeline.state}", min(copies, default=None)
    if source.reason:
        current = source.current_seconds
        since = None if current is None else now - current
        return f"source {source.name}: {source.reason}", "source_behind", since
    if (lag := pipeline.lag_seconds) is not None and lag > 0:
        text = f"the oldest change that is not applied yet is {lag:.0f} s old"
        return text, "changes_waiting", now - lag
    if (batch := pipeline.applying) is not None:
        # Tables that must be copied again, for one, wait until it is done.
        text = f"a batch has been applied for {batch.seconds:.0f} s, and is not done"
        return text, "batch_running", now - batch.seconds
    return "it is not confirmed yet that all changes are applied", "not_confirmed", None


def _load_reasons(pipeline: PipelineInfo) -> str:
    """Return why tables are loaded again; one reason is given once."""
    tables: dict[str, list[str]] = {}
    for table in pipeline.tables:
        if table.reason:
            tables.setdefault(table.reason, []).append(table.table)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in tables.items())


def _source_code(source: SourceInfo) -> str:
    return f"source_{source.state}" if source.error is None else source.error.code


def _source_since(source: SourceInfo, now: float) -> float | None:
    if source.error_since is not None:
        return source.error_since
    if source.state == "silent" and source.silence_seconds is not None:
        return now - source.silence_seconds
    return None if source.phase == "streaming" else source.since


# --- the checks -----------------------------------------------------------------------------------

ANSWER_SECONDS = 0.8
"""How long an observation may take: a probe is answered within a second, whatever hangs."""

HUNG_SECONDS = 10.0
"""An observation that takes longer shows that the engine hangs; a busy machine is only slow."""

SILENT_RECORDER_SECONDS = 60.0
"""How long a recorder may be busy with one flush before it counts as hanging."""

T = TypeVar("T")


class TimedCall(Generic[T]):
    """
    A call that may hang, made on daemon threads. *Threads*: any.

    While a call hangs, no other one is made.
    """

    def __init__(self, call: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[threading.Thread, float] = {}

    def result(self, seconds: float) -> T | None:
        """Return its result, or raise its error; None if it takes longer."""
        outcome: list[T | BaseException] = []

        def run() -> None:
            try:
                outcome.append(self._call())
            except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
                outcome.append(error)

        with self._lock:
            if (self._hung_seconds() or 0.0) > seconds:
                return None
            thread = threading.Thread(target=run, name="headrace look", daemon=True)
            self._running[thread] = self._clock()
            thread.start()
        thread.join(seconds)
        if not outcome:
            return None
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    @property
    def hung_seconds(self) -> float | None:
        """For how long the oldest call has not returned; None if all have."""
        with self._lock:
            return self._hung_seconds()

    def _hung_seconds(self) -> float | None:
        self._running = {each: at for each, at in self._running.items() if each.is_alive()}
        return None if not self._running else self._clock() - min(self._running.values())


class HealthObserver:
    """Observes the health of one engine. *Threads*: any."""

    def __init__(
        self,
        state: EngineState,
        infos: Callable[[], tuple[Sequence[SourceInfo], Sequence[PipelineInfo]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`infos` returns all sources and pipelines; the rows of targets need not be counted."""
        self._state = state
        self._infos = infos
        self._observed = TimedCall(self.observe, clock)

    def look(self) -> Health:
        """Return the health as of now, within a second."""
        found = self._observed.result(ANSWER_SECONDS)
        return self.unanswered() if found is None else found

    def unanswered(self) -> Health:
        """Return the health of an engine whose status does not come in time."""
        hung = self._observed.hung_seconds or 0.0
        reason = HealthReason(
            "engine",
            "",
            "engine_hangs",
            f"it has not answered for {max(hung, ANSWER_SECONDS):.0f} s",
            time.time() - hung,
        )
        red = HealthCheck(False, (reason,))
        return Health(
            live=red if hung >= HUNG_SECONDS else HealthCheck(True),
            ready=red,
            startup=HealthCheck(True) if self._started() else red,
        )

    def observe(self) -> Health:
        """Return the health as of now; waits for whatever hangs."""
        now = time.time()
        return Health(
            live=_check(self._live_reasons(now)),
            ready=self._ready(now),
            startup=_check(self._startup_reasons(now)),
        )

    # -- live -----------------------------------------------------------------------------

    def _live_reasons(self, now: float) -> Iterator[HealthReason]:
        state = self._state
        if not state.at_work:
            yield _STOPPED
            return
        # Every change of state takes this lock: if it is not free, nothing goes on.
        state.readiness.wait_for(lambda: True, 0)
        if not state.running:
            return  # parts are still being started, or stopped
        for run in state.drivers.ended() if state.drivers is not None else ():
            text = "its thread ended, and the pipeline is not marked as failed"
            yield HealthReason("pipeline", run.name, "thread_ended", text)
        for name, recording in list(state.recordings.items()):
            if recording.recorder_ended:
                text = "the thread that watches its recorder ended"
                yield HealthReason("source", name, "thread_ended", text)
            elif (age := recording.unreported_seconds) > SILENT_RECORDER_SECONDS:
                text = f"its recorder has not reported for {age:.0f} s"
                yield HealthReason("source", name, "recorder_silent", text, now - age)
        if state.watchdog is not None and state.watchdog.ended:
            yield HealthReason("spark", "", "thread_ended", "the thread that checks Spark ended")

    # -- startup --------------------------------------------------------------------------

    def _started(self) -> bool:
        state = self._state
        return state.running and all(run.was_tried or run.stopped for run in list(state.runs))

    def _startup_reasons(self, now: float) -> Iterator[HealthReason]:
        state = self._state
        if not state.running:
            yield _STARTING if state.at_work else _STOPPED
            return
        for run in list(state.runs):
            if not (run.was_tried or run.stopped):
                seconds = run.opening_seconds or 0.0
                text = f"its target is being opened, for {seconds:.0f} s"
                yield HealthReason("pipeline", run.name, "target_opening", text, now - seconds)

    # -- ready ----------------------------------------------------------------------------

    def _ready(self, now: float) -> HealthCheck:
        state = self._state
        if not state.running:
            return HealthCheck(False, (_STARTING if state.at_work else _STOPPED,))
        if state.readiness.now():
            return HealthCheck(True)
        reasons = tuple(self._ready_reasons(now))
        # Again: it may be ready by now, and then the reasons are those of before.
        if state.running and state.readiness.now():
            return HealthCheck(True)
        return HealthCheck(False, reasons or (_UNCONFIRMED,))

    def _ready_reasons(self, now: float) -> Iterator[HealthReason]:
        state = self._state
        sources, pipelines = self._infos()
        if not pipelines and not any(tables for _, tables in state.tables.recorded):
            yield HealthReason("engine", "", "engine_idle", CONDITIONS["engine_idle"])
        if (down := state.spark_down_seconds) is not None:
            text = f"not running, or not answering, for {down:.0f} s"
            yield HealthReason("spark", "", "spark_down", text, now - down)
        for source in sources:
            yield from _source_reasons(source, now)
        named = {source.name: source for source in sources}
        for info in pipelines:
            if not state.readiness.now(pipeline=info.name):
                shown = pipeline_state(info, named.get(info.source), ready=False, now=now)
                text = shown.reason or CONDITIONS.get(shown.code, shown.state)
                yield HealthReason("pipeline", info.name, shown.code, text, shown.since)
        for name, tables in state.tables.recorded:
            recording = state.recordings.get(name)
            missing = [each for each in tables if recording is None or not recording.has(each)]
            if missing and recording is not None and recording.ready:
                text = f"no baseline of {', '.join(missing)} is in the log yet"
                yield HealthReason("source", name, "baseline_missing", text)


def _source_reasons(source: SourceInfo, now: float) -> Iterator[HealthReason]:
    if source.state not in AT_WORK or source.error is not None:
        text = source.reason or sentence(source.error, source.name) or state_phrase(source.state)
        since = _source_since(source, now)
        yield HealthReason("source", source.name, _source_code(source), text, since)
    elif source.reason:
        since = None if source.current_seconds is None else now - source.current_seconds
        yield HealthReason("source", source.name, "source_behind", source.reason, since)


def _check(reasons: Iterator[HealthReason]) -> HealthCheck:
    found = tuple(reasons)
    return HealthCheck(not found, found)


def _of_engine(code: str) -> HealthReason:
    return HealthReason("engine", "", code, CONDITIONS[code])


_STOPPED = _of_engine("engine_stopped")
_STARTING = _of_engine("engine_starting")
_UNCONFIRMED = _of_engine("not_confirmed")
