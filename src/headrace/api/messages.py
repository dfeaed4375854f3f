"""
The status of an engine, as plain values for JSON.

The status never looks better than the engine is: a pipeline is `streaming` only while it is ready
now; a lag is given only while it is known. `Rates` counts the changes per second of each pipeline
over the last few seconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.api.connect import error_object
from headrace.errors import with_facts

if TYPE_CHECKING:
    from headrace.errors import HeadraceError
    from headrace.runtime.info import CopyInfo, Notice, PipelineInfo, SourceInfo, TableInfo


# --- sources and pipelines ------------------------------------------------------------------------

_COMING = frozenset({"waiting", "loading", "catching_up"})
"""States in which readers see nothing yet, or the previous rows."""

_AT_WORK = frozenset({"streaming", "watching"})


def source_fields(source: SourceInfo) -> dict[str, Any]:
    """Return one source."""
    return {
        "name": source.name,
        "kind": source.kind,
        "state": source.state,
        "reason": source.reason,
        "captured": source.captured,
        "flushes": source.flushes,
        "log_bytes": source.bytes,
        "end": str(source.end),
        "acknowledged": None if source.acknowledged is None else str(source.acknowledged),
        "lag_changes": source.lag_changes,
        "lag_seconds": _rounded(source.lag_seconds),
        "lag_bytes": source.lag_bytes,
        "current_seconds": _rounded(source.current_seconds),
        "silence_seconds": _rounded(source.silence_seconds),
        "recorder_pid": source.recorder_pid,
        "restarts": source.restarts,
        "error": _error(source.error),
        "error_since": _rounded(source.error_since),
        "newest": _rounded(source.newest),
        "copies": [copy_fields(copy) for copy in source.copies],
        "room": None
        if source.room is None
        else {
            "used": source.room.used,
            "limit": source.room.limit,
            "pinned_by": source.room.pinned_by,
        },
        "left_out": _errors(source.left_out),
        "notices": [notice_fields(notice) for notice in source.notices],
    }


def notice_fields(notice: Notice) -> dict[str, Any]:
    """Return a notice of a source."""
    at = datetime.fromtimestamp(notice.at, UTC)
    return {
        "number": notice.number,
        "time": at.isoformat(timespec="seconds"),
        **error_object(notice.problem),
    }


def pipeline_fields(
    pipeline: PipelineInfo, source: SourceInfo | None, *, ready: bool, rate: float | None
) -> dict[str, Any]:
    """Return one pipeline; `ready` is whether the engine says it is ready now."""
    state, reason = _state(pipeline, source, ready=ready)
    return {
        "name": pipeline.name,
        "source": pipeline.source,
        "target": pipeline.target,
        "state": state,
        "ready": ready,
        "reason": reason,
        "rows": pipeline.rows,
        "lag_seconds": _rounded(_lag(pipeline, source)),
        "rate_per_s": _rounded(rate),
        "position": str(pipeline.position),
        "changes": pipeline.changes,
        "batches": pipeline.batches,
        "jobs": pipeline.jobs,
        "dead_letters": pipeline.dead_letters,
        "held_keys": pipeline.held_keys,
        "rows_given_up": dict(pipeline.rows_given_up),
        "notices": [error_object(each) for each in pipeline.notices],
        "error": _error(pipeline.error),
        "error_since": _rounded(pipeline.error_since),
        "set_aside": _error(pipeline.set_aside),
        "opening_seconds": _rounded(pipeline.opening_seconds),
        "applying": None
        if pipeline.applying is None
        else {
            "changes": pipeline.applying.changes,
            "seconds": _rounded(pipeline.applying.seconds),
        },
        "left_out": _errors(pipeline.left_out),
        "hops": {
            name: {"p50_ms": _rounded(hop.p50_ms), "p95_ms": _rounded(hop.p95_ms)}
            for name, hop in pipeline.hops.items()
        },
        "tables": [_table(table) for table in pipeline.tables],
    }


def copy_fields(copy: CopyInfo) -> dict[str, Any]:
    """Return the progress of the copy of a table."""
    return {
        "table": copy.table,
        "rows": copy.rows,
        "expected": copy.expected,
        "seconds": _rounded(copy.seconds),
        "rows_per_s": _rounded(copy.rows_per_s),
        "left_seconds": _rounded(copy.left_seconds),
        "waits": copy.waits,
    }


def _table(table: TableInfo) -> dict[str, Any]:
    return {
        "table": table.table,
        "state": table.state,
        "position": str(table.position),
        "baseline": table.baseline,
        "rows": table.rows,
        "rows_age_seconds": _rounded(table.rows_age),
        "copy": None if table.copy is None else copy_fields(table.copy),
        "reason": table.reason,
    }


def _state(pipeline: PipelineInfo, source: SourceInfo | None, *, ready: bool) -> tuple[str, str]:
    """Return the state as one word, and what keeps the pipeline from being ready."""
    if pipeline.state in ("paused", "failed", "stopped"):
        return pipeline.state, sentence(pipeline.error, pipeline.name)
    if ready:
        state = "streaming" if pipeline.state == "live" else pipeline.state
        return state, _load_reasons(pipeline)
    reason = _hindrance(pipeline, source)
    return pipeline.state if pipeline.state in _COMING else "not_ready", reason


def state_phrase(state: str) -> str:
    """Return a state as the end of a sentence: `is catching up`, `failed`."""
    return "failed" if state == "failed" else f"is {state.replace('_', ' ')}"


def _hindrance(pipeline: PipelineInfo, source: SourceInfo | None) -> str:
    if source is None or source.state not in _AT_WORK:
        state = "not recorded" if source is None else source.state
        why = "" if source is None else source.reason or sentence(source.error, source.name)
        return f"source {pipeline.source} {state_phrase(state)}{f': {why}' if why else ''}"
    if source.error is not None:
        return f"source {pipeline.source}: {sentence(source.error, source.name)}"
    if pipeline.error is not None:
        return f"retrying: {sentence(pipeline.error, pipeline.name)}"
    if pipeline.spark_down_seconds is not None:
        return f"Spark is not running, or does not answer, for {pipeline.spark_down_seconds:.0f} s"
    if pipeline.opening_seconds is not None:
        return f"its target is being opened, for {pipeline.opening_seconds:.0f} s"
    if pipeline.state in _COMING:
        return _load_reasons(pipeline)
    if source.reason:
        return f"source {pipeline.source}: {source.reason}"
    if pipeline.lag_seconds:
        return f"the oldest change that is not applied yet is {pipeline.lag_seconds:.0f} s old"
    if (batch := pipeline.applying) is not None:
        # Tables that must be copied again, for one, wait until it is done.
        return f"a batch has been applied for {batch.seconds:.0f} s, and is not done"
    return "it is not confirmed yet that all changes are applied"


def _load_reasons(pipeline: PipelineInfo) -> str:
    """Return why tables are loaded again; one reason is given once."""
    tables: dict[str, list[str]] = {}
    for table in pipeline.tables:
        if table.reason:
            tables.setdefault(table.reason, []).append(table.table)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in tables.items())


def sentence(error: HeadraceError | None, subject: str) -> str:
    """Return an error's message with its facts; empty if there is none."""
    return "" if error is None else with_facts(error.message, error.facts, subject)


def _lag(pipeline: PipelineInfo, source: SourceInfo | None) -> float | None:
    """Return the age of the oldest change that readers do not see; None if not known."""
    if source is None or source.state not in _AT_WORK or source.error is not None:
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


def _error(error: HeadraceError | None) -> dict[str, Any] | None:
    return None if error is None else error_object(error)


def _errors(errors: Mapping[str, HeadraceError]) -> dict[str, Any]:
    return {table: error_object(error) for table, error in errors.items()}


def _rounded(value: float | None) -> float | None:
    """Return the value without digits that are more precise than our clocks."""
    return None if value is None else round(value, 3)


# --- changes per second ---------------------------------------------------------------------------

WINDOW_SECONDS = 5.0
_EVERY_SECONDS = 1.0


class Rates:
    """Counts that are read once a second, on a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        counts: Callable[[], Iterable[tuple[str, int]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counts
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-rates", daemon=True)

    def start(self) -> None:
        """Start to read the counts."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading the counts."""
        self._ended.set()
        self._thread.join(_EVERY_SECONDS)

    def look(self) -> dict[str, float | None]:
        """Read the counts now; return the growth of each per second, None if not known yet."""
        counts, now = list(self._counts()), self._clock()  # not locked: it may take a moment
        with self._lock:
            return {name: self._rate(name, count, now) for name, count in counts}

    def _rate(self, name: str, count: int, now: float) -> float | None:
        seen = self._seen.setdefault(name, deque())
        if seen and count < seen[-1][1]:
            seen.clear()  # it was restarted
        seen.append((now, count))
        # One reading older than the window stays, so that there is a time to divide by.
        while len(seen) > 2 and seen[1][0] <= now - WINDOW_SECONDS:
            seen.popleft()
        began, before = seen[0]
        # Two readings in quick succession are not precise.
        return (count - before) / (now - began) if now - began >= _EVERY_SECONDS / 2 else None

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            self.look()
