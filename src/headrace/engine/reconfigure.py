"""
Pipelines added to a running engine and dropped from it, while the others continue.

```
 check names, sources, tables ─▶ plans of the new pipelines
   └─ up to here nothing has changed, and all errors are reported together
 ─▶ stop dropped pipelines ─▶ restart recorders ─▶ recall the new pipelines ─▶ a thread each
```

A recorder whose tables changed is restarted. It continues where it was; to pipelines this looks
like a recorder that died. The stored state of a dropped pipeline is deleted: a later pipeline of
the same name begins with a baseline. A pipeline in mode `changes` that is replaced continues at its
position, because no baseline could make up for what it would miss.

From the first pipeline that stops until the new ones have recalled their progress, nothing is
acknowledged: before, nobody knows what they need (invariant 1). Nothing in between waits for a
target without a limit. The targets are opened by the pipelines' own threads, as at a start: one
that hangs, or cannot be opened, keeps nothing else from running. Once a pipeline was stopped,
errors are raised at the end, after everything else was done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.capture.messages import Retries
from headrace.capture.table_selection import chosen
from headrace.changelog.schema import TableSchema
from headrace.engine.assembly import (
    maintain_logs,
    pipeline_run,
    prepare,
    recorder_of,
    schemas_in,
    source_run,
)
from headrace.engine.checks import checked_schemas, named_pipelines, named_sources
from headrace.engine.state import EngineState
from headrace.errors import BadName, ControlError, NotRunning
from headrace.pipeline.definition import Pipeline
from headrace.runtime.copy_on_spark import share_copies
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.runtime.threads import Drivers, call_within

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


def change_pipelines(
    state: EngineState,
    add: Sequence[Pipeline],
    drop: Sequence[str],
    sources: Sequence[Recordable],
    reconnect: Mapping[str, Retries],
) -> None:
    """Add and drop pipelines, and replace sources; see `Engine.change`."""
    with state.changing:
        drivers, store = state.running_drivers(), state.directory.store
        going = [run for run in state.runs if run.name in drop]
        absent = set(drop) - {run.name for run in going}
        if unknown := [name for name in sorted(absent) if not store.knows(name)]:
            raise NotRunning("No such pipeline", pipeline=unknown[0])
        try:
            change = _Change(state, drivers)
            new = change.carry_out(list(add), going, list(sources), reconnect)
            for name in absent - {run.name for run in state.runs}:
                store.forget(name)  # the log keeps nothing for it from now on (R27)
        finally:
            state.holding = False
            if state.running:
                state.acknowledge()
            state.notify()
    # Not held up by this: a stop, or another change.
    state.await_opened(new)


class _Change:
    """One change of an engine."""

    def __init__(self, state: EngineState, drivers: Drivers) -> None:
        self._state = state
        self._drivers = drivers
        self._errors: list[Exception] = []

    def carry_out(
        self,
        add: list[Pipeline],
        going: list[PipelineRun],
        others: list[Recordable],
        reconnect: Mapping[str, Retries],
    ) -> list[PipelineRun]:
        """Change everything; return the new pipelines. Raises the first error at the end."""
        state = self._state
        kept = [run for run in state.runs if run not in going]
        names, sources = self._checked(add, kept, others)
        before = {name: self._taken_of(name) for name in state.sources}
        new = {
            name: source_run(state, source)
            for name, source in sources.items()
            if name not in state.recordings
        }
        runs = self._planned(add, names, {**state.recordings, **new})
        modes = {run.name: run.pipeline.mode for run in runs}
        state.reconnects.update(reconnect)
        state.holding = True
        for run in going:
            self._end(run, modes.get(run.name))
        state.runs[:] = kept
        self._put([*kept, *runs], sources)
        state.recordings.update(new)
        for recording in new.values():
            self._try(partial(self._record, recording))
        gone = [state.recordings.pop(n) for n in list(state.recordings) if n not in state.sources]
        for name, recording in list(state.recordings.items()):
            if name in before and before[name] != self._taken_of(name):
                self._try(partial(self._record_otherwise, name, recording))
        known = [run for run in runs if self._try(partial(self._recall, run))]
        if len(known) < len(runs):
            self._put([*kept, *known], sources)
        state.runs[:] = [*kept, *known]
        self._drivers.take(known, state.runs)
        state.holding = False
        for recording in gone:
            self._try(partial(recording.stop, _GONE_SECONDS))
        for recording in list(state.recordings.values()):
            recording.on_found()
        self._try(partial(maintain_logs, state))
        if self._errors:
            raise self._errors[0]
        return known

    def _try(self, step: Callable[[], None]) -> bool:
        """Do a step whose failure must not prevent the others; return whether it succeeded."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - targets may raise anything; raised at the end
            self._errors.append(error)
            return False
        return True

    def _recall(self, run: PipelineRun) -> None:
        run.recall()
        self._state.undo.insert(self._undo_index, run.close)

    def _record(self, recording: SourceRun) -> None:
        """Start the recorder of a new source, now that its tables are known."""
        state = self._state
        state.undo.insert(self._undo_index, partial(state.stop_recorder, recording))
        self._share(recording)
        recording.start(recorder_of(state, recording))

    def _record_otherwise(self, name: str, recording: SourceRun) -> None:
        """Replace the recorder of a source by one with the current tables."""
        self._share(recording)
        tables = self._state.tables
        patterns = tables.selections(name)

        def takes(table: str) -> bool:
            return table in tables.named(name) or any(chosen([table], each) for each in patterns)

        recording.replace(recorder_of(self._state, recording), takes)

    def _share(self, recording: SourceRun) -> None:
        """Use Spark tasks for copies, if the source can be read in parts."""
        state = self._state
        if (last := recording.copies) is not None:
            state.undo.remove(last.stop)
            last.stop()
        mine = {recording.name: recording}
        for copies in share_copies(mine, state.sources, state.runner, state.directory.files):
            state.undo.insert(self._undo_index, copies.stop)

    def _checked(
        self, add: list[Pipeline], kept: list[PipelineRun], others: list[Recordable]
    ) -> tuple[list[str], dict[str, Recordable]]:
        """Return the names of the added pipelines, and all sources from now on."""
        state = self._state
        known = state.sources
        sources = {source.name: known[source.name] for source, _ in state.records}
        sources |= {run.source: known[run.source] for run in kept}
        # Pipelines that stay may have the previous source, of the same name.
        asked, wrong = named_sources([*others, *(pipeline.source for pipeline in add)])
        sources |= asked
        stay = [run.name for run in kept]
        names, misnamed = named_pipelines([*(run.pipeline for run in kept), *add])
        # A pipeline that stays keeps its name, even if its default name would now be another.
        new = names[len(kept) :]
        wrong += misnamed or [BadName(f"Two pipelines are named {n}") for n in new if n in stay]
        every = [*add, *(run.pipeline for run in kept)]
        of = {name: [each for each in every if each.source.name == name] for name in asked}
        schemas = checked_schemas(
            asked,
            {name: sorted({t for each in mine for t in each.tables}) for name, mine in of.items()},
            add,
            wrong,
            {name: [e.patterns for e in mine if e.patterns] for name, mine in of.items()},
            logged=self._logged,
        )
        state.tables.schemas |= schemas
        for name in asked:
            state.tables.away.pop(name, None)
        return new, sources

    def _logged(self, source: str) -> Mapping[str, TableSchema]:
        recording = self._state.recordings.get(source)
        return {} if recording is None else schemas_in(recording.log)

    def _planned(
        self, add: list[Pipeline], names: list[str], recordings: Mapping[str, SourceRun]
    ) -> list[PipelineRun]:
        state = self._state
        runs = [
            pipeline_run(state, name, pipeline, recordings[pipeline.source.name])
            for name, pipeline in zip(names, add, strict=True)
        ]
        prepare(runs)
        return runs

    def _end(self, run: PipelineRun, mode: str | None) -> None:
        """Stop a pipeline; `mode` is that of its replacement, None if there is none."""
        state = self._state
        self._drivers.leave(run)
        state.undo.remove(run.close)
        if not self._try(partial(self._call, run.close, f"The target of pipeline {run.name}")):
            run.abandon()
        if not (mode == run.pipeline.mode == "changes"):
            drop = run.delivery.drop_dead_letters
            self._try(partial(self._call, drop, f"The disk of pipeline {run.name}'s dead letters"))
            store = state.directory.store
            self._try(partial(store.forget, run.name, paused=mode is None))

    def _call(self, call: Callable[[], None], what: str) -> None:
        """Call something that may hang; raise `ControlError` if it takes too long."""
        if not call_within(self._state.options.shutdown_timeout / 3, call):
            raise ControlError(f"{what} did not answer in time and was left behind")

    def _put(self, runs: list[PipelineRun], sources: dict[str, Recordable]) -> None:
        state = self._state
        state.pipelines[:] = [run.pipeline for run in runs]
        state.names[:] = [run.name for run in runs]
        used = {run.source for run in runs} | {source.name for source, _ in state.records}
        state.records[:] = [(sources[each.name], tables) for each, tables in state.records]
        state.sources.update({name: sources[name] for name in used})
        for gone in state.sources.keys() - used:
            del state.sources[gone]

    def _taken_of(self, source: str) -> object:
        """Return everything that a source's recorder is started with."""
        state, tables = self._state, self._state.tables
        again = state.reconnect_of(source)
        return state.sources[source].spec, tables.named(source), tables.selections(source), again

    @property
    def _undo_index(self) -> int:
        """The index in `undo` for parts of pipelines: they are stopped after the threads."""
        return self._state.undo.index(self._state.acknowledge)


_GONE_SECONDS = 30.0
"""How long a recorder that is no longer needed may take to flush and stop."""
