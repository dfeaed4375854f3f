"""
A part of the log brought to another target, beside the pipeline that follows it.

A replay goes through the pipeline's own filters and transforms, as jobs of its own. Nothing of
the live pipeline is touched: neither its progress, nor its letters, nor its target. It ends
where the log ended when it began, or where it was told to.

Without a start it begins with the table's baseline, and its result is what the pipeline's own
target held at the end; with one it is changes alone. A row that cannot be computed is left out
with all that follows it by key, as the pipeline itself does (R30), and counted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.changelog.log import LogReader
from headrace.changelog.ranges import Moment
from headrace.control.replay_plan import Replayed, ReplayProgress
from headrace.control.replay_run import Replay
from headrace.errors import BadTransform, NotRunning, UnknownPart
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.foreach import TakesFrames
from headrace.storage.opening import storage_of

if TYPE_CHECKING:
    from headrace.control.run import PipelineRun
    from headrace.pipeline.batch import Runner
    from headrace.targets.target import Target

__all__ = ["ReplayProgress", "Replayed", "Replays", "replay_log", "target_named"]

OnProgress = Callable[[ReplayProgress], None]


class Replays:
    """What an engine can do with the past of its pipelines."""

    _pipelines: list[Pipeline]

    if TYPE_CHECKING:

        def _find(self, name: str) -> PipelineRun: ...

    def replay(
        self,
        pipeline: str,
        target: Target | str,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        on_progress: OnProgress = lambda progress: None,
    ) -> Replayed:
        """
        Bring a part of a pipeline's log to another target; the pipeline goes on meanwhile.

        `start` and `end` are positions, or times with an offset from UTC; both are included.
        Without `start` it begins with the baseline, without `end` it ends where the log does
        now. A target is any that takes rows, or `"memory"`, `"parquet:DIR"`, `"jsonl:FILE"`
        (`-` for stdout). Raises `PositionExpired` where the log does not reach back so far, and
        `ChangesMissing` where it has a gap in between.
        """
        run = self._find(pipeline)
        if run.stopped:
            raise NotRunning("The engine has stopped", pipeline=pipeline)
        if any(target is each.target for each in self._pipelines):
            raise BadTransform(
                "The target is one that a pipeline keeps up to date",
                remedy="Give another one: hr.memory().",
                pipeline=pipeline,
            )
        with self._twins.of(run.pipeline, run.name) as twin:
            around = run.around
            return _replayed(
                run.name, twin, target, around.log, around.runner, start, end, on_progress
            )

    @cached_property
    def _twins(self) -> Twins:
        return Twins()


class Twins:
    """
    Pipelines like those at work, for replays: what a runner knows of one it never forgets.

    One for each replay that goes on at a time. It has the target of the other, and no business
    with it: the rows go elsewhere.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[tuple[Pipeline, Pipeline]] = []
        """Each with the one it is like: an id alone may pass to another."""

    @contextmanager
    def of(self, pipeline: Pipeline, name: str) -> Iterator[Pipeline]:
        """Lend one."""
        with self._lock:
            mine = next((pair for pair in self._free if pair[0] is pipeline), None)
            if mine is not None:
                self._free.remove(mine)
        twin = like(pipeline, name) if mine is None else mine[1]
        try:
            yield twin
        finally:
            with self._lock:
                self._free.append((pipeline, twin))

    def forget(self, pipeline: Pipeline) -> list[Pipeline]:
        """Return those that nobody has need of any more."""
        with self._lock:
            gone = [pair for pair in self._free if pair[0] is pipeline]
            self._free = [pair for pair in self._free if pair[0] is not pipeline]
        return [twin for _, twin in gone]


def like(pipeline: Pipeline, name: str) -> Pipeline:
    """Return another pipeline that does the same."""
    return Pipeline(
        pipeline.source,
        target=pipeline.target,
        tables=[*pipeline.tables, *pipeline.patterns],
        name=f"{name}.replay",
        mode=pipeline.mode,
        filters=pipeline.filters,
        transforms=pipeline.transforms,
        on_error=pipeline.on_error,
        on_schema_change=pipeline.on_schema_change,
    )


def replay_log(
    data: Path,
    name: str,
    pipeline: Pipeline,
    target: Target | str,
    runner: Runner,
    *,
    start: Moment | None = None,
    end: Moment | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Replayed:
    """Replay from the log in a data directory, without an engine; one may run there."""
    log = LogReader.open(storage_of(data), pipeline.source.name)
    twin = like(pipeline, name)
    return _replayed(name, twin, target, log, runner, start, end, on_progress)


def target_named(text: str, *, replace: bool = False) -> Target:
    """
    Return the target that a text stands for: `memory`, `parquet:DIR`, `jsonl:FILE`.

    A file that is there is kept, and the replay refused, unless `replace` says otherwise.
    """
    from headrace.targets.memory import memory
    from headrace.targets.replayed import JsonLines, ParquetFolder

    kind, _, place = text.partition(":")
    if text == "memory":
        return memory()
    if kind == "parquet" and place:
        return ParquetFolder(Path(place).expanduser())
    if kind == "jsonl" and place:
        stream = sys.stdout.buffer if place == "-" else Path(place).expanduser()
        return JsonLines(stream, replace=replace)
    raise UnknownPart(
        "No such target of a replay",
        remedy="Give memory, parquet:DIR, or jsonl:FILE with - for stdout.",
        # Not all of it: somebody may have given an address, with its password.
        target=kind,
    )


def _replayed(
    name: str,
    twin: Pipeline,
    target: Target | str,
    log: LogReader,
    runner: Runner,
    start: Moment | None,
    end: Moment | None,
    on_progress: OnProgress,
) -> Replayed:
    made = target_named(target) if isinstance(target, str) else target
    if isinstance(made, TakesFrames):
        raise BadTransform(
            "A replay has no frames for a target",
            remedy="Replay into memory, a RowTarget, parquet:DIR or jsonl:FILE.",
            pipeline=name,
        )
    replay = Replay(name, twin, made, log, runner, twin.source.traits, on_progress)
    return replay.run(start, end)
