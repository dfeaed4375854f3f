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
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.api.connect import error_object
from headrace.engine.health import CHECKS, pipeline_state, visible_lag

if TYPE_CHECKING:
    from headrace.engine.health import Health
    from headrace.errors import HeadraceError
    from headrace.runtime.info import CopyInfo, Notice, PipelineInfo, SourceInfo, TableInfo


# --- sources and pipelines ------------------------------------------------------------------------


def source_fields(source: SourceInfo) -> dict[str, Any]:
    """Return one source."""
    return {
        "name": source.name,
        "kind": source.kind,
        "state": source.state,
        "reason": source.reason,
        "phase": source.phase,
        "since": _rounded(source.since),
        "ordering": source.ordering,
        "source_position": source.source_position,
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
        "started": _rounded(source.started),
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
    shown = pipeline_state(pipeline, source, ready=ready)
    return {
        "name": pipeline.name,
        "source": pipeline.source,
        "target": pipeline.target,
        "state": shown.state,
        "ready": ready,
        "reason": shown.reason,
        "rows": pipeline.rows,
        "lag_seconds": _rounded(visible_lag(pipeline, source)),
        "rate_per_s": _rounded(rate),
        "position": str(pipeline.position),
        "changes": pipeline.changes,
        "batches": pipeline.batches,
        "jobs": pipeline.jobs,
        "direct": pipeline.direct,
        "abandoned": pipeline.abandoned,
        "dead_letters": pipeline.dead_letters,
        "held_keys": pipeline.held_keys,
        "rows_given_up": dict(pipeline.rows_given_up),
        "notices": [error_object(each) for each in pipeline.notices],
        "error": _error(pipeline.error),
        "error_since": _rounded(pipeline.error_since),
        "set_aside": _error(pipeline.set_aside),
        "releases": pipeline.releases,
        "opening_seconds": _rounded(pipeline.opening_seconds),
        "applying": None
        if pipeline.applying is None
        else {
            "changes": pipeline.applying.changes,
            "seconds": _rounded(pipeline.applying.seconds),
        },
        "counts": asdict(pipeline.counts),
        "counted_since": _rounded(pipeline.counted_since),
        "last_change": _rounded(pipeline.last_change),
        "started": _rounded(pipeline.started),
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
        "counts": asdict(table.counts),
        "last_change": _rounded(table.last_change),
    }


def health_fields(health: Health) -> dict[str, Any]:
    """Return the three checks of an engine."""
    return {
        name: {
            "ok": getattr(health, name).ok,
            "reasons": [
                {
                    "part": reason.part,
                    "name": reason.name,
                    "code": reason.code,
                    "message": reason.message,
                    "since": _rounded(reason.since),
                }
                for reason in getattr(health, name).reasons
            ],
        }
        for name in CHECKS
    }


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
