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

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.capture.table_selection import chosen
from headrace.engine.checks import checked_schemas, gathered, named_pipelines, named_sources
from headrace.engine.tables import TakenTables
from headrace.errors import BadName, NotRunning
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.runtime.copy_on_spark import share_copies
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.runtime.store import ProgressStore
from headrace.runtime.threads import Drivers
from headrace.storage.files import Files

if TYPE_CHECKING:
    from headrace.capture.process import RunningRecorder
    from headrace.capture.source import Recordable
    from headrace.engine.replay import Twins


Undo = Callable[[], None]


@dataclass(slots=True)
class Home:
    """Where an engine at work keeps what it knows, and what computes for it."""

    data: Path
    store: ProgressStore
    files: Files
    """What executors read, and what outlives this machine where it lies elsewhere."""
    runner: Runner | None = None
    """None while it has no pipeline."""


class Reconfiguration:
    """What an engine at work can take in and let go of."""

    _pipelines: list[Pipeline]
    _names: list[str]
    _runs: list[PipelineRun]
    _records: list[tuple[Recordable, tuple[str, ...]]]
    _sources: dict[str, Recordable]
    _recordings: dict[str, SourceRun]
    _taken: TakenTables
    _undo: list[Undo]
    _home: Home | None
    _drivers: Drivers | None
    _running: bool
    _changing: threading.RLock
    _holding: bool
    """Whether nothing may be acknowledged, because not all that is needed is known."""

    if TYPE_CHECKING:

        def _run(
            self, name: str, pipeline: Pipeline, home: Home, recording: SourceRun
        ) -> PipelineRun: ...
        def _log_of(self, source: Recordable, home: Home) -> SourceRun: ...
        def _recorder_of(
            self, recording: SourceRun, source: Recordable, home: Home
        ) -> Callable[[], RunningRecorder]: ...
        @property
        def _twins(self) -> Twins: ...
        def _tend(self, home: Home) -> None: ...
        def _acknowledge(self) -> None: ...
        def _heard(self) -> None: ...

    def change(
        self,
        add: Sequence[Pipeline] = (),
        drop: Sequence[str] = (),
        sources: Sequence[Recordable] = (),
    ) -> None:
        """
        Take pipelines in, and let others go; those that are in neither list go on untouched.

        One that is to be another is in both, under its name; one that does not run, and is
        only stored, can be let go of as well. Each of `sources`, and the source
        of an added pipeline, takes the place of the one of its name; its other pipelines go
        on. Raises `InvalidConfiguration` with everything that is wrong, and has then changed
        nothing. What fails later, a target that cannot be opened, is raised at the end: that
        pipeline is not there then.
        """
        with self._changing:
            drivers, home = self._drivers, self._home
            if not self._running or drivers is None or home is None:
                raise NotRunning("The engine has not started, or has no pipeline")
            going = [run for run in self._runs if run.name in drop]
            absent = set(drop) - {run.name for run in going}
            if unknown := [name for name in sorted(absent) if not home.store.knows(name)]:
                raise NotRunning("No such pipeline", pipeline=unknown[0])
            self._holding = True
            try:
                _Change(self, drivers, home).carry_out(list(add), going, list(sources))
                for name in absent - {run.name for run in self._runs}:
                    home.store.forget(name)  # nothing is kept for it any more (R27)
            finally:
                self._holding = False
                if self._running:
                    self._acknowledge()
                self._heard()


class _Change:
    """One change of an engine."""

    def __init__(self, engine: Reconfiguration, drivers: Drivers, home: Home) -> None:
        self._engine = engine
        self._drivers = drivers
        self._home = home
        self._errors: list[Exception] = []

    def carry_out(
        self, add: list[Pipeline], going: list[PipelineRun], others: list[Recordable]
    ) -> None:
        engine = self._engine
        kept = [run for run in engine._runs if run not in going]
        names, sources = self._checked(add, kept, others)
        before = {name: self._taken_of(name) for name in engine._sources}
        new = {
            name: engine._log_of(source, self._home)
            for name, source in sources.items()
            if name not in engine._recordings
        }
        runs = self._planned(add, names, {**engine._recordings, **new})
        modes = {run.name: run.pipeline.mode for run in runs}
        for run in going:
            self._end(run, modes.get(run.name))
        engine._runs[:] = kept
        self._put([*kept, *runs], sources)
        engine._recordings.update(new)
        for recording in new.values():
            self._try(partial(self._record, recording))
        for name, recording in list(engine._recordings.items()):
            if name not in engine._sources:
                engine._recordings.pop(name)
                self._try(partial(recording.stop, _GONE_SECONDS))
            elif name in before and before[name] != self._taken_of(name):
                self._try(partial(self._record_otherwise, name, recording))
        opened = [run for run in runs if self._try(partial(self._open, run))]
        if len(opened) < len(runs):
            self._put([*kept, *opened], sources)
        engine._runs[:] = [*kept, *opened]
        self._drivers.take(opened, engine._runs)
        for recording in list(engine._recordings.values()):
            recording.on_found()
        self._try(partial(engine._tend, self._home))
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
        self._engine._undo.insert(self._place, run.close)
        try:
            run.open()
        except BaseException:
            self._engine._undo.remove(run.close)
            with suppress(Exception):
                run.close()
            raise

    def _record(self, recording: SourceRun) -> None:
        """Begin to record a source, now that it is known which tables are taken of it."""
        engine, home = self._engine, self._home
        engine._undo.insert(self._place, partial(recording.stop, _GONE_SECONDS))
        self._share(recording)
        source = engine._sources[recording.name]
        recording.start(engine._recorder_of(recording, source, home))

    def _record_otherwise(self, name: str, recording: SourceRun) -> None:
        """Let a source be recorded by a recorder that knows what is taken of it now."""
        engine = self._engine
        self._share(recording)
        source, taken = engine._sources[name], engine._taken
        patterns = taken.selections(name)

        def takes(table: str) -> bool:
            return table in taken.named(name) or any(chosen([table], each) for each in patterns)

        recording.replace(engine._recorder_of(recording, source, self._home), takes)

    def _share(self, recording: SourceRun) -> None:
        """Let tasks copy the tables of a source that can be read in parts."""
        engine, home = self._engine, self._home
        if (last := recording.copies) is not None:
            engine._undo.remove(last.stop)
            last.stop()
        mine = {recording.name: recording}
        for copies in share_copies(mine, engine._sources, home.runner, home.files):
            engine._undo.insert(self._place, copies.stop)

    def _checked(
        self, add: list[Pipeline], kept: list[PipelineRun], others: list[Recordable]
    ) -> tuple[list[str], dict[str, Recordable]]:
        """Return the names of what is added, and all sources from now on."""
        engine = self._engine
        known = engine._sources
        sources = {source.name: known[source.name] for source, _ in engine._records}
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
        engine._taken.schemas |= schemas
        return new, sources

    def _planned(
        self, add: list[Pipeline], names: list[str], recordings: Mapping[str, SourceRun]
    ) -> list[PipelineRun]:
        engine = self._engine
        runs = [
            engine._run(name, pipeline, self._home, recordings[pipeline.source.name])
            for name, pipeline in zip(names, add, strict=True)
        ]
        with gathered() as errors:
            for run in runs:
                with errors:
                    run.prepare(engine._taken.schemas_for(run))
        return runs

    def _end(self, run: PipelineRun, mode: str | None) -> None:
        """Let a pipeline go; `mode` is that of the one which takes its place, if one does."""
        self._drivers.leave(run)
        self._engine._undo.remove(run.close)
        self._try(run.close)
        if not (mode == run.pipeline.mode == "changes"):
            self._try(run.delivery.drop_letters)
            self._try(partial(self._home.store.forget, run.name, paused=mode is None))
        if self._home.runner is not None:
            for each in (run.pipeline, *self._engine._twins.forget(run.pipeline)):
                self._home.runner.forget(each)

    def _put(self, runs: list[PipelineRun], sources: dict[str, Recordable]) -> None:
        engine = self._engine
        engine._pipelines[:] = [run.pipeline for run in runs]
        engine._names[:] = [run.name for run in runs]
        used = {run.source for run in runs} | {source.name for source, _ in engine._records}
        engine._records[:] = [(sources[each.name], tables) for each, tables in engine._records]
        engine._sources.update({name: sources[name] for name in used})
        for gone in engine._sources.keys() - used:
            del engine._sources[gone]

    def _taken_of(self, source: str) -> object:
        """Return all that a source's recorder was started with."""
        engine = self._engine
        taken = engine._taken
        return engine._sources[source].spec, taken.named(source), taken.selections(source)

    @property
    def _place(self) -> int:
        """Where in the list of what is to be undone pipelines stand: ended after their threads."""
        return self._engine._undo.index(self._engine._acknowledge)


_GONE_SECONDS = 30.0
"""How long a recorder that nobody needs any more may take to flush and end."""
