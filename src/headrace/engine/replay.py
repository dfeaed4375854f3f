"""
Replay: a part of the log brought to another target, beside the pipeline that follows it.

```
 plan (index alone) ─▶ baselines, where it begins with them ─▶ batches ─▶ the target shows them
```

A replay goes through the pipeline's own filters and transforms, as jobs of its own. Nothing of
the live pipeline is touched: neither its progress, nor its letters, nor its target. It ends
where the log ended when it began, or at the end that was given.

Without a start it begins with the table's baseline, and its result is what the pipeline's own
target held at the end; with one it is changes alone. A row that cannot be computed is left out
with all that follows it by key, as the pipeline itself does (R30), and counted.

The plan is made from the index alone, before anything is given to a target. A batch of the log is
cut where the part begins and ends, and for a target that records every change also where a table
is emptied: a pipeline's target need not receive rows that are gone in the same batch, but such a
target is asked for all of them.

Long because the plan, the run and both ways to start one depend on the same bounds of the part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.entries import Baseline, File, Gap
from headrace.changelog.history import BaselineWindow
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.ranges import (
    Moment,
    Span,
    after,
    before,
    flushes,
    missing,
    places_outside,
    span,
)
from headrace.changelog.reader import LogBatch, LogReader
from headrace.changelog.schema import TableName, TableSchema
from headrace.deadletters.hold import HeldChanges, Segments, baseline_letters, set_aside_in, without
from headrace.deadletters.letter import NewLetter
from headrace.errors import (
    BadTransform,
    ChangesMissing,
    CorruptSegment,
    HeadraceError,
    NotRunning,
    PositionExpired,
    TooManyFailed,
)
from headrace.pipeline.batch import BatchFacts, PreparedPipeline, Runner, SegmentGroup
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.result import Failure, RowReference, result_schema
from headrace.runtime.delivery import refuse_unknown, within_baseline
from headrace.runtime.new_tables import own_tables
from headrace.storage.s3 import storage_of
from headrace.targets.target import Batch, Loading, TakesFrames, Target

if TYPE_CHECKING:
    from headrace.engine.state import EngineState

__all__ = [
    "ReplayProgress",
    "Replayed",
    "replay_log",
    "replay_pipeline",
]


# --- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far a replay is; its changes are counted by whole flushes."""

    rows: int
    of_rows: int
    """Rows of baselines that were read, and how many there are."""

    changes: int
    of_changes: int
    """Changes that were read, and how many there are."""

    position: Position


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did."""

    pipeline: str
    tables: tuple[TableName, ...]
    target: Target
    first: Position
    """The first position that it looked at."""

    position: Position
    """Where it ended: the target is as of here."""

    baseline_rows: int
    changes: int
    """Rows of baselines, and of changes, that the target was given: filtered and transformed."""

    failed: int
    """Changes that could not be computed, and those behind them: the target has none of them."""

    rows: int | None
    """Rows that the target shows; None where that cannot be told."""

    seconds: float


@dataclass(slots=True)
class ReplayTable:
    """One table of a replay."""

    name: TableName
    schema: TableSchema
    output: TableSchema
    baseline: Baseline | None
    since: Position
    """Changes up to here are not for the target: they are in the baseline, or not asked for."""

    loading: Loading | None = None
    held: dict[bytes, Position] = field(default_factory=dict)
    """Keys whose changes are left out from there on: one of them could not be computed (R30)."""

    @property
    def nothing(self) -> pa.Table:
        return result_schema(self.output).empty_table()

    def emptied(self, at: Position) -> None:
        """Forget what was held for rows that are gone."""
        self.held = {key: since for key, since in self.held.items() if since > at}


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A part of the log, and the tables in it."""

    part: Span
    tables: dict[TableName, ReplayTable]
    rows: int
    """Of the baselines it begins with."""

    changes: int
    """Of the flushes that it has to look at."""


def planned(
    name: str,
    log: LogReader,
    pipeline: Pipeline,
    prepared: PreparedPipeline,
    start: Moment | None,
    end: Moment | None,
) -> ReplayPlan:
    """
    Return what is to be replayed between the two; None: the baseline, and the log's end.

    Raises `PositionExpired` where the log does not reach back so far, `ChangesMissing` where it
    has a gap in between, and what is wrong with the pipeline's steps.
    """
    taken = _taken(log, pipeline)
    part = span(log, list(taken), start, end)
    part = Span(part.first, min(part.last, log.end))
    baselines: dict[TableName, Baseline] = {}
    if start is None and pipeline.mode != "changes":
        baselines = {table: _baseline(log, table, part.last) for table in taken}
        first = min((each.window[0] for each in baselines.values()), default=part.after)
        part = Span(after(first), part.last)
    changes = _counted(name, log, taken, part)
    tables = {}
    for table, schema in taken.items():
        output = prepared.output(schema)
        baseline = baselines.get(table)
        since = part.after if baseline is None else baseline.window[0]
        tables[table] = ReplayTable(table, schema, output, baseline, since)
    return ReplayPlan(part, tables, sum(each.rows for each in baselines.values()), changes)


def _taken(log: LogReader, pipeline: Pipeline) -> dict[TableName, TableSchema]:
    """Return the tables of a pipeline with the newest columns that the log knows of them."""
    for name in pipeline.tables:
        log.schema(name)
    # A table of which all was read late has no newest one, but a last one.
    known = {name: log.schema(name, log.columns(name, 0).schema or None) for name in log.tables()}
    return own_tables(pipeline, known)


def _baseline(log: LogReader, table: TableName, last: Position) -> Baseline:
    found = log.usable_baseline(table)
    if found is None:
        raise PositionExpired(
            "The log has no baseline of this table to begin with",
            remedy="Give a start to replay changes alone, or let an engine take a baseline.",
            table=table,
        )
    exact = found.window[1]
    # By commit: H may stand for any place within its last one.
    if (last.epoch, last.commit) < (exact.epoch, exact.commit):
        raise PositionExpired(
            "The log's baseline is newer than the end that was asked for",
            remedy="Give a start, too, to replay changes alone; or a later end.",
            table=table,
            asked=str(last),
            baseline=str(exact),
        )
    return found


def _counted(name: str, log: LogReader, taken: Mapping[TableName, TableSchema], part: Span) -> int:
    """Return how many changes there are; raise where some are missing."""
    count = 0
    for found in flushes(log, list(taken), part):
        if isinstance(found, Gap):
            raise _lost(name, position=found.at)
        count += found.rows
    for table in taken:
        if missing(log, table, part):
            raise _lost(name, table=table)
    return count


def _lost(name: str, **facts: object) -> ChangesMissing:
    return ChangesMissing(
        "The log lost changes within what is to be replayed",
        remedy="Replay what lies before that, or what lies behind it.",
        pipeline=name,
        **facts,
    )


# --- the run --------------------------------------------------------------------------------------

MOST_ROWS = 400_000
"""A batch's limit, as of a pipeline at work."""


class Replay:
    """One replay; for one thread. `prepared` is its own, and has nothing of the live pipeline."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        target: Target,
        log: LogReader,
        prepared: PreparedPipeline,
        on_progress: Callable[[ReplayProgress], None],
        most_rows: int = MOST_ROWS,
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._target = target
        self._log = log
        self._prepared = prepared
        self._on_progress = on_progress
        self._most_rows = most_rows
        self._keyed = target.traits.keyed
        self._tables: dict[TableName, ReplayTable] = {}
        self._read = self._of = (0, 0)
        """Rows of baselines and changes: read so far, and in all."""
        self._rows = self._changes = self._failed = 0

    def run(self, start: Moment | None, end: Moment | None) -> Replayed:
        """Replay what lies between the two; None stands for the baseline, and the log's end."""
        began = time.monotonic()
        plan = planned(self._name, self._log, self._pipeline, self._prepared, start, end)
        part, self._tables = plan.part, plan.tables
        self._of = (plan.rows, plan.changes)
        outputs = {name: table.output for name, table in self._tables.items()}
        self._target.check(outputs)
        self._target.open(outputs, dict.fromkeys(outputs, ORIGIN))
        numbers = [each.baseline.baseline for each in self._tables.values() if each.baseline]
        try:
            with self._log.holds.hold(f"replay of {self._name}", part.after, numbers):
                self._load(part)
                self._follow(part)
            self._show(part.last)
            counts = [self._target.row_count(name) for name in self._tables]
        except BaseException:
            self._prepared.cancel()
            self._discard()
            raise
        finally:
            self._target.close()
        return Replayed(
            pipeline=self._name,
            tables=tuple(self._tables),
            target=self._target,
            first=part.first,
            position=part.last,
            baseline_rows=self._rows,
            changes=self._changes,
            failed=self._failed,
            rows=None if None in counts else sum(count or 0 for count in counts),
            seconds=time.monotonic() - began,
        )

    # -- baselines ----------------------------------------------------------------------------

    def _load(self, part: Span) -> None:
        for table in self._tables.values():
            number = 0 if table.baseline is None else table.baseline.baseline
            table.loading = self._target.load(table.name, number)
            if table.baseline is not None:
                self._load_rows(table, table.baseline, table.loading)
            if table.baseline is None or not self._keyed:
                # A target with a row a key is shown when it is exact; for others all is one.
                table.loading.switch(table.since)
                table.loading = None
        self._tell(part.after)

    def _load_rows(self, table: ReplayTable, baseline: Baseline, loading: Loading) -> None:
        failures: list[Failure] = []
        before = 0
        for part in self._parts(table, baseline.files, table.since):
            for loaded in self._prepared.baseline(part):
                loading.write(loaded.rows)
                failures += within_baseline(loaded.failures, before)
                self._rows += loaded.rows.num_rows
                # A filter leaves rows out: what was read is not known before all of it was.
                self._read = (self._rows, 0)
                self._tell(table.since)
            before += len(part.paths)
        self._read = (self._of[0], 0)
        number = baseline.baseline
        self._hold(
            table, baseline_letters(self._log, baseline.files, failures, number, table.since)
        )

    def _show(self, at: Position) -> None:
        for table in self._tables.values():
            if table.loading is not None:
                table.loading.switch(at)
                table.loading = None

    def _discard(self) -> None:
        for table in self._tables.values():
            if table.loading is not None:
                with suppress(HeadraceError):
                    table.loading.discard()

    # -- changes ------------------------------------------------------------------------------

    def _follow(self, part: Span) -> None:
        for batch in self._batches(part):
            segments = {
                name: Segments(self._log, batch.epoch, batch.files_of(name), self._window(table))
                for name, table in self._tables.items()
            }
            for piece, emptied in self._pieces(batch, segments, part):
                self._give(batch, segments, piece)
                if emptied:
                    self._empty(batch.epoch, after(piece.last), emptied)
            self._read = (self._read[0], self._read[1] + batch.rows)
            self._tell(min(batch.last, part.last))

    def _batches(self, part: Span) -> Iterator[LogBatch]:
        """Yield the batches of the log that lie in a part, or reach into it."""
        at = part.after
        names = list(self._tables)
        while at < part.last:
            batch = self._log.next_batch(names, at, self._most_rows, upto=part.last)
            if batch is None:
                batch = self._log.next_batch(names, at, 1)  # one that reaches over the end
                if batch is None or batch.first > part.last:
                    return
            if batch.files:
                yield batch
            at = batch.last

    def _window(self, table: ReplayTable) -> BaselineWindow | None:
        """Return in which commits the baseline's rows are ahead, where that must not show (R11)."""
        if self._keyed or table.baseline is None:
            return None
        return self._log.window(table.name, table.baseline.baseline)

    def _pieces(
        self, batch: LogBatch, segments: Mapping[TableName, Segments], part: Span
    ) -> Iterator[tuple[Span, list[TableName]]]:
        """Yield the parts of a batch, each with the tables that are emptied right behind it."""
        first, last = max(batch.first, part.first), min(batch.last, part.last)
        if not self._keyed and batch.has_truncates:
            ends: dict[Position, list[TableName]] = {}
            for name, table in self._tables.items():
                for at in _truncates(segments[name]):
                    if at > table.since and first <= at <= last:
                        ends.setdefault(at, []).append(name)
            for at, emptied in sorted(ends.items()):
                yield Span(first, before(at)), emptied
                first = after(at)
        yield Span(first, last), []

    def _give(self, batch: LogBatch, segments: Mapping[TableName, Segments], piece: Span) -> None:
        rows: dict[TableName, pa.Table] = {}
        truncates: dict[TableName, Position] = {}
        for name, table in self._tables.items():
            rows[name], emptied = self._computed(table, batch, segments[name], piece)
            if emptied is not None:
                truncates[name] = emptied
                table.emptied(emptied)
            self._changes += rows[name].num_rows
        made = Batch(
            id=f"{self._name}/replay/{piece.first}/{piece.last}",
            epoch=batch.epoch,
            first=piece.first,
            last=piece.last,
            tables=rows,
            truncates=truncates,
        )
        loading = [table for table in self._tables.values() if table.loading is not None]
        for table in loading:
            assert table.loading is not None
            name = table.name
            own = {name: truncates[name]} if name in truncates else {}
            table.loading.catch_up(replace(made, tables={name: rows[name]}, truncates=own))
        if not loading:
            self._target.write(made)

    def _empty(self, epoch: int, at: Position, emptied: Sequence[TableName]) -> None:
        """Tell a target that writes down every change of one that empties tables."""
        for name in emptied:
            self._tables[name].emptied(at)
        self._target.write(
            Batch(
                id=f"{self._name}/replay/{at}",
                epoch=epoch,
                first=at,
                last=at,
                tables={name: self._tables[name].nothing for name in emptied},
                truncates=dict.fromkeys(emptied, at),
            )
        )

    def _computed(
        self, table: ReplayTable, batch: LogBatch, segments: Segments, piece: Span
    ) -> tuple[pa.Table, Position | None]:
        files = segments.files
        wanted = Span(max(piece.first, after(table.since)), piece.last)
        # Verified before any of it is read, so that a damaged one is named with its place.
        parts = self._parts(table, files, max(batch.first, wanted.first))
        out = set(segments.known())
        if batch.first < wanted.first or batch.last > wanted.last:
            for _, rows in segments.read():
                out.update(places_outside(rows, batch.epoch, wanted))
        if len(out) >= sum(file.rows for file in files):
            return table.nothing, None
        lineage = self._log.lineage or ""
        aside = set_aside_in(segments, table.held, (), lineage) if table.held else HeldChanges()
        facts = BatchFacts.of(files, batch.first, batch.last)
        facts = replace(facts, without=frozenset(out) | aside.places)
        result = self._prepared.rows(parts, facts)
        found = result.rows
        if result.failures:
            aside = set_aside_in(segments, table.held, result.failures, lineage)
            found = without(found, aside.places)
        letters = [each for each in aside.letters if _place(each.position) not in out]
        # One that a truncate made history has no letter, and failed all the same.
        known = {_place(each.position) for each in letters}
        self._failed += sum(failure.place not in known for failure in result.failures)
        self._hold(table, letters)
        emptied = None if result.truncate is None else Position(batch.epoch, *result.truncate)
        return found, emptied

    def _hold(self, table: ReplayTable, letters: Sequence[NewLetter]) -> None:
        """Leave out what follows these by key, unless they are more than the pipeline allows."""
        self._failed += len(letters)
        for letter in letters:
            for key in letter.keys:
                table.held[key] = min(letter.position, table.held.get(key, letter.position))
        policy = self._pipeline.on_error
        limit = policy.max_keys if isinstance(policy, DeadLetters) else 0
        held = sum(len(each.held) for each in self._tables.values())
        if held > limit:
            raise TooManyFailed(
                f"{held} rows cannot be computed, and {limit} are allowed",
                pipeline=self._name,
                keys=held,
                limit=limit,
            )

    def _parts(self, table: ReplayTable, files: Sequence[File], at: Position) -> list[SegmentGroup]:
        """Return the files by schema version, each looked at before it is computed from."""
        by_schema: dict[int, list[File]] = {}
        for file in files:
            try:
                self._log.verify(file)
            except CorruptSegment as error:
                error.facts = {**error.facts, "table": file.table, "position": str(at)}
                raise
            if file.unsent:
                refuse_unknown(self._log, file, self._prepared, table.schema)
            by_schema.setdefault(file.schema, []).append(file)
        return [
            SegmentGroup(
                self._log.schema(table.name, schema_id),
                tuple(self._log.path(file) for file in listed),
                tuple(file.rows for file in listed),
                sum(file.marked for file in listed),
                table.schema,
                tuple(file.bytes for file in listed),
            )
            for schema_id, listed in by_schema.items()
        ]

    def _tell(self, position: Position) -> None:
        (rows, changes), (of_rows, of_changes) = self._read, self._of
        self._on_progress(ReplayProgress(rows, of_rows, changes, of_changes, position))


def _truncates(segments: Segments) -> list[Position]:
    """Return where a table was emptied."""
    if not any(file.truncates for file in segments.files):
        return []
    return [
        Position(
            segments.epoch, rows["_commit"][int(at)].as_py(), rows["_ordinal"][int(at)].as_py()
        )
        for _, rows in segments.read()
        for at in np.flatnonzero(rows["_op"].to_numpy() == Op.TRUNCATE)
    ]


def _place(position: Position) -> RowReference:
    return position.commit, position.ordinal


# --- starting a replay ----------------------------------------------------------------------------

OnProgress = Callable[[ReplayProgress], None]


def replay_pipeline(
    state: EngineState,
    pipeline: str,
    target: Target | str,
    start: Moment | None,
    end: Moment | None,
    on_progress: OnProgress,
) -> Replayed:
    """Replay from the log that a running engine has open; see `Engine.replay`."""
    run = state.run_of(pipeline)
    if run.stopped:
        raise NotRunning("The engine has stopped", pipeline=pipeline)
    if any(target is each.target for each in state.pipelines):
        raise BadTransform(
            "The target is one that a pipeline keeps up to date",
            remedy="Give another one: hr.memory().",
            pipeline=pipeline,
        )
    context = run.context
    return _replayed(
        run.name, run.pipeline, target, context.log, context.runner, start, end, on_progress
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
    return _replayed(name, pipeline, target, log, runner, start, end, on_progress)


def _replayed(
    name: str,
    pipeline: Pipeline,
    target: Target | str,
    log: LogReader,
    runner: Runner,
    start: Moment | None,
    end: Moment | None,
    on_progress: OnProgress,
) -> Replayed:
    from headrace.targets.files import target_named

    made = target_named(target) if isinstance(target, str) else target
    if isinstance(made, TakesFrames):
        raise BadTransform(
            "A replay has no frames for a target",
            remedy="Replay into memory, a RowTarget, parquet:DIR or jsonl:FILE.",
            pipeline=name,
        )
    prepared = runner.prepare(pipeline, pipeline.source.traits, f"{name}.replay")
    with closing(prepared):
        return Replay(name, pipeline, made, log, prepared, on_progress).run(start, end)
