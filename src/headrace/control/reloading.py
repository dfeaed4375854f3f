"""Taking a table anew: a baseline newer than the last one, for every pipeline that has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.control.driving import Drivers
from headrace.control.recording import Recording
from headrace.control.run import PipelineRun
from headrace.errors import BadTransform, UnknownTable


def ask_reload(
    table: str, runs: Sequence[PipelineRun], recording: Recording, drivers: Drivers
) -> tuple[Callable[[], bool], Callable[[], bool]]:
    """
    Ask for a reload of a table; `runs` are its source's pipelines.

    Returns what tells whether it is done, and what tells whether waiting is of no use.
    """
    runs = [run for run in runs if table in run.tables]
    if not runs:
        raise UnknownTable("No pipeline has this table", table=table, source=recording.name)
    runs = [run for run in runs if run.pipeline.mode != "changes"]
    if not runs:
        raise BadTransform("A pipeline of mode changes takes no baseline", table=table)
    newest = recording.log.usable_baseline(table)
    for run in runs:
        # One number for all: they share the copy.
        run.ask_reload(table, newest.baseline if newest else 0)
        drivers.wake(run)

    def done() -> bool:
        return not any(run.reloading(table) for run in runs)

    def hopeless() -> bool:
        return recording.gave_up or any(run.failed or run.stopped for run in runs)

    return done, hopeless
