"""
Pipelines taken into an engine at work, and out of it, while the others go on.

```
 check names, sources, tables ─▶ plans of the new pipelines
   └─ up to here nothing has changed, and whatever is wrong is reported together
 ─▶ end those that go ─▶ recorders of other tables ─▶ open the new ones ─▶ a thread each
```

A recorder whose tables are others is ended and started again: it goes on where it was, and
pipelines see no more of it than of one that died. What is stored of a pipeline that goes is
forgotten with it: one that comes again under its name begins with a baseline. One that takes
changes alone, and becomes another, goes on where it stood: it has no other way to them.

Meanwhile nothing is acknowledged: what a pipeline that is not open yet needs is not known
(invariant 1). Once something has ended, whatever fails is reported at the end, and the rest
is done: what could not be opened is not there, and can be taken in again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from headrace.capture.table_selection import chosen
from headrace.engine.assembly import (
    maintain_logs,
    pipeline_run,
    prepare,
    recorder_of,
    source_run,
)
from headrace.engine.checks import checked_schemas, named_pipelines, named_sources
from headrace.engine.state import EngineState
from headrace.errors import BadName, NotRunning
from headrace.pipeline.definition import Pipeline
from headrace.runtime.copy_on_spark import share_copies
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.runtime.threads import Drivers

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


def change_pipelines(
    state: EngineState,
    add: Sequence[Pipeline],
    drop: Sequence[str],
    sources: Sequence[Recordable],
) -> None:
    """Add and drop pipelines, and replace sources; see `Engine.change`."""
    with state.changing:
        drivers, store = state.running_drivers(), state.directory.store
        going = [run for run in state.runs if run.name in drop]
        absent = set(drop) - {run.name for run in going}
        if unknown := [name for name in sorted(absent) if not store.knows(name)]:
            raise NotRunning("No such pipeline", pipeline=unknown[0])
        state.holding = True
        try:
            _Change(state, drivers).carry_out(list(add), going, list(sources))
            for name in absent - {run.name for run in state.runs}:
                store.forget(name)  # nothing is kept for it any more (R27)
        finally:
            state.holding = False
            if state.running:
                state.acknowledge()
            state.notify()


class _Change:
    """One change of an engine."""

    def __init__(self, state: EngineState, drivers: Drivers) -> None:
        self._state = state
        self._drivers = drivers
        self._errors: list[Exception] = []

    def carry_out(
        self, add: list[Pipeline], going: list[PipelineRun], others: list[Recordable]
    ) -> None:
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
        for run in going:
            self._end(run, modes.get(run.name))
        state.runs[:] = kept
        self._put([*kept, *runs], sources)
        state.recordings.update(new)
        for recording in new.values():
            self._try(partial(self._record, recording))
        for name, recording in list(state.recordings.items()):
            if name not in state.sources:
                state.recordings.pop(name)
                self._try(partial(recording.stop, _GONE_SECONDS))
            elif name in before and before[name] != self._taken_of(name):
                self._try(partial(self._record_otherwise, name, recording))
        opened = [run for run in runs if self._try(partial(self._open, run))]
        if len(opened) < len(runs):
            self._put([*kept, *opened], sources)
        state.runs[:] = [*kept, *opened]
        self._drivers.take(opened, state.runs)
        for recording in list(state.recordings.values()):
            recording.on_found()
        self._try(partial(maintain_logs, state))
        if self._errors:
            raise self._errors[0]

    def _try(self, step: Callable[[], None]) -> bool:
        """Do what must not keep the rest from being done; return whether it went well."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - targets may raise anything; told at the end
            self._errors.append(error)
            return False
        return True

    def _open(self, run: PipelineRun) -> None:
        # Before it is opened: one that opened in part is closed with the others.
        self._state.undo.insert(self._place, run.close)
        try:
            run.open()
        except BaseException:
            self._state.undo.remove(run.close)
            with suppress(Exception):
                run.close()
            raise

    def _record(self, recording: SourceRun) -> None:
        """Begin to record a source, now that it is known which tables are taken of it."""
        state = self._state
        state.undo.insert(self._place, partial(recording.stop, _GONE_SECONDS))
        self._share(recording)
        recording.start(recorder_of(state, recording))

    def _record_otherwise(self, name: str, recording: SourceRun) -> None:
        """Let a source be recorded by a recorder that knows what is taken of it now."""
        self._share(recording)
        tables = self._state.tables
        patterns = tables.selections(name)

        def takes(table: str) -> bool:
            return table in tables.named(name) or any(chosen([table], each) for each in patterns)

        recording.replace(recorder_of(self._state, recording), takes)

    def _share(self, recording: SourceRun) -> None:
        """Let tasks copy the tables of a source that can be read in parts."""
        state = self._state
        if (last := recording.copies) is not None:
            state.undo.remove(last.stop)
            last.stop()
        mine = {recording.name: recording}
        for copies in share_copies(mine, state.sources, state.runner, state.directory.files):
            state.undo.insert(self._place, copies.stop)

    def _checked(
        self, add: list[Pipeline], kept: list[PipelineRun], others: list[Recordable]
    ) -> tuple[list[str], dict[str, Recordable]]:
        """Return the names of what is added, and all sources from now on."""
        state = self._state
        known = state.sources
        sources = {source.name: known[source.name] for source, _ in state.records}
        sources |= {run.source: known[run.source] for run in kept}
        # Those that stay may have the source of before, of the same name.
        asked, wrong = named_sources([*others, *(pipeline.source for pipeline in add)])
        sources |= asked
        stay = [run.name for run in kept]
        names, misnamed = named_pipelines([*(run.pipeline for run in kept), *add])
        # What stays keeps its name, also one that it would not be given today.
        new = names[len(kept) :]
        wrong += misnamed or [BadName(f"Two pipelines are called {n}") for n in new if n in stay]
        every = [*add, *(run.pipeline for run in kept)]
        of = {name: [each for each in every if each.source.name == name] for name in asked}
        schemas = checked_schemas(
            asked,
            {name: sorted({t for each in mine for t in each.tables}) for name, mine in of.items()},
            add,
            wrong,
            {name: [e.patterns for e in mine if e.patterns] for name, mine in of.items()},
        )
        state.tables.schemas |= schemas
        return new, sources

    def _planned(
        self, add: list[Pipeline], names: list[str], recordings: Mapping[str, SourceRun]
    ) -> list[PipelineRun]:
        state = self._state
        runs = [
            pipeline_run(state, name, pipeline, recordings[pipeline.source.name])
            for name, pipeline in zip(names, add, strict=True)
        ]
        prepare(state, runs)
        return runs

    def _end(self, run: PipelineRun, mode: str | None) -> None:
        """Let a pipeline go; `mode` is that of the one which takes its place, if one does."""
        state = self._state
        self._drivers.leave(run)
        state.undo.remove(run.close)
        self._try(run.close)
        if not (mode == run.pipeline.mode == "changes"):
            self._try(run.delivery.drop_letters)
            store = state.directory.store
            self._try(partial(store.forget, run.name, paused=mode is None))

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
        """Return all that a source's recorder was started with."""
        state, tables = self._state, self._state.tables
        return state.sources[source].spec, tables.named(source), tables.selections(source)

    @property
    def _place(self) -> int:
        """Where in the list of what is to be undone pipelines stand: ended after their threads."""
        return self._state.undo.index(self._state.acknowledge)


_GONE_SECONDS = 30.0
"""How long a recorder that nobody needs any more may take to flush and end."""
