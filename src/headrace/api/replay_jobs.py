"""
Replays that run in the background, for callers that do not wait for them.

One runs at a time: it uses the engine's Spark and memory. A caller never names a path: files are
written to a new folder or file below `replays/` in the data directory, which must not be there yet.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.api.connect import internal_error
from headrace.errors import BadRequest, HeadraceError, NotRunning, UnknownPipeline
from headrace.observe.logs import logger
from headrace.targets.files import target_named

if TYPE_CHECKING:
    from headrace.changelog.ranges import Moment
    from headrace.engine.engine import Engine
    from headrace.engine.replay import Replayed, ReplayProgress

_log = logger(__name__)

FOLDER = "replays"
"""Where replays into files are written, in the data directory."""

MOST_REMEMBERED = 20
"""How many replays that have ended are remembered."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A replay, as observed."""

    id: str
    pipeline: str
    target: str
    """As it was asked for: `memory`, `parquet:NAME`, `jsonl:NAME`."""

    path: str
    """Where its rows are written; empty for `memory`."""

    started: float
    """In seconds since 1970."""

    state: str = "running"
    """running, completed, stopped or error."""

    ended: float | None = None
    progress: ReplayProgress | None = None
    target_rows: int | None = None
    """Rows in the target at the end; None before, or if it cannot count them."""

    failed: int = 0
    """Changes that could not be computed, and later ones of their keys."""

    error: HeadraceError | None = None


class _Stopped(Exception):
    """The replay was asked to stop."""


class ReplayJobs:
    """The replays of one engine. Safe to call from several threads."""

    def __init__(self, engine: Engine, wall: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._wall = wall
        self._lock = threading.Lock()
        self._jobs: dict[str, ReplayJob] = {}
        self._stops: dict[str, threading.Event] = {}
        self._number = 0

    def start(
        self, pipeline: str, target: str, start: Moment | None, end: Moment | None
    ) -> ReplayJob:
        """Start a replay; raises if one runs, or if the target is not a possible one."""
        path = self._path(target)
        with self._lock:
            running = next((each for each in self._jobs.values() if each.state == "running"), None)
            if running is not None:
                raise NotRunning(
                    f"The replay {running.id} of {running.pipeline} is running",
                    remedy="Wait for it, or stop it: one replay runs at a time.",
                    replay=running.id,
                )
            self._number += 1
            job = ReplayJob(
                f"{pipeline}-{self._number}", pipeline, target, path, started=self._wall()
            )
            self._jobs[job.id] = job
            stop = self._stops[job.id] = threading.Event()
            for old in list(self._jobs)[:-MOST_REMEMBERED]:
                del self._jobs[old], self._stops[old]
        text = target if not path else f"{target.partition(':')[0]}:{path}"
        threading.Thread(
            target=self._run,
            args=(job.id, text, start, end, stop),
            name=f"headrace replay {job.id}",
            daemon=True,
        ).start()
        return job

    def job(self, id: str) -> ReplayJob:
        """Return a replay; raises if it is not known."""
        with self._lock:
            if (found := self._jobs.get(id)) is None:
                raise UnknownPipeline(
                    f"There is no replay {id}",
                    remedy=f"The last {MOST_REMEMBERED} are known, until the engine is restarted.",
                    replays=list(self._jobs),
                )
            return found

    def jobs(self) -> list[ReplayJob]:
        """Return all replays that are remembered, the newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def stop(self, id: str) -> bool:
        """Ask a replay to stop; return whether it was running."""
        job = self.job(id)
        self._stops[id].set()
        return job.state == "running"

    def elapsed(self, job: ReplayJob) -> float:
        """Return for how long a replay has run, or ran, in seconds."""
        return max(0.0, (self._wall() if job.ended is None else job.ended) - job.started)

    def _path(self, target: str) -> str:
        if target == "memory":
            return ""
        kind, _, name = target.partition(":")
        if kind not in ("parquet", "jsonl") or not _NAME.fullmatch(name):
            raise BadRequest(
                "The target of a replay must be memory, parquet:NAME or jsonl:NAME",
                remedy="A name has at most 64 of a-z, 0-9, dot, dash and underscore.",
            )
        path = self._engine.data / FOLDER / name
        if path.exists():
            raise BadRequest(
                "There is already a replay of this name",
                remedy="Choose another name, or remove the files.",
                path=str(path),
            )
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return str(path)

    def _run(
        self,
        id: str,
        target: str,
        start: Moment | None,
        end: Moment | None,
        stop: threading.Event,
    ) -> None:
        def on_progress(progress: ReplayProgress) -> None:
            self._change(id, progress=progress)
            if stop.is_set():
                raise _Stopped

        pipeline = self._jobs[id].pipeline
        try:
            done: Replayed = self._engine.replay(
                pipeline, target_named(target), start=start, end=end, on_progress=on_progress
            )
        except _Stopped:
            self._end(id, "stopped")
        except HeadraceError as error:
            self._end(id, "error", error=error)
        except Exception as error:  # noqa: BLE001 - a bug must not look like a running replay
            _log.failed("replay failed", error, code="internal", replay=id)
            self._end(id, "error", error=internal_error(error))
        else:
            # Not the target: its rows would stay in memory as long as the replay is remembered.
            self._end(id, "completed", target_rows=done.rows, failed=done.failed)

    def _end(self, id: str, state: str, **result: object) -> None:
        self._change(id, state=state, ended=self._wall(), **result)
        _log.info("replay ended", replay=id, state=state)

    def _change(self, id: str, **changes: object) -> None:
        with self._lock:
            if id in self._jobs:
                self._jobs[id] = replace(self._jobs[id], **changes)  # type: ignore[arg-type]
