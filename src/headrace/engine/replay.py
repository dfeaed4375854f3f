"""
Replay: part of the log is delivered to another target while the pipeline continues.

```
 plan (index only) ─▶ baselines, if it begins with them ─▶ batches ─▶ the target shows them
```

A replay runs the pipeline's own filters and transforms, in jobs of its own (`TableJobs`). It does
not touch the live pipeline: neither its progress, nor its dead letters, nor its target. It ends at
the given end, or where the log ended when the replay began. Rows that have expired are left out.

Without a start, it begins with the table's baseline, and the result is what the pipeline's target
held at the end. With a start, it has changes only. A row that cannot be computed is left out and
counted, with all later changes of its key, as in the pipeline (R30).

The plan is made from the index only, before the target is opened. A batch of the log is cut where
the part begins and ends. For a target that records every change, it is also cut at each truncate:
the target of a pipeline does not need rows that are deleted in the same batch, but this one does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.changelog.change import Op
from headrace.changelog.entries import Baseline, Gap
from headrace.changelog.history import BaselineWindow
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.ranges import (
    Moment,
    Span,
    after,
    before,
    flushes,
    missing,
    span,
)
from headrace.changelog.reader import LogBatch, LogReader
from headrace.changelog.schema import TableName, TableSchema
from headrace.corrections.expiry import ExpiryWatermark
from headrace.deadletters.hold import Segments, baseline_dead_letters
from headrace.deadletters.letter import NewDeadLetter
from headrace.errors import (
    BadTransform,
    ChangesMissing,
    CorruptSegment,
    HeadraceError,
    NotRunning,
    PositionExpired,
    RowsRefused,
    TooManyFailed,
)
from headrace.pipeline.batch import PreparedPipeline, Runner
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.result import Failure
from headrace.runtime.model import Member
from headrace.runtime.new_tables import own_tables
from headrace.runtime.table_jobs import ComputedRows, TableJobs, refused_rows, target_batch
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
    """The progress of a replay; changes are counted by whole flushes."""

    rows: int
    of_rows: int
    """Rows of baselines read so far, and in total."""

    changes: int
    of_changes: int
    """Changes read so far, and in total."""

    position: Position


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    pipeline: str
    tables: tuple[TableName, ...]
    target: Target
    first: Position
    """The first position of the replayed part."""

    position: Position
    """Where it ended: the target has the state of this position."""

    baseline_rows: int
    changes: int
    """Rows that the target received from baselines and from changes, after filters."""

    failed: int
    """Changes that could not be computed, and later ones of their keys: not in the target."""

    rows: int | None
    """Rows in the target; None if the target cannot count them."""

    seconds: float


@dataclass(slots=True)
class ReplayTable:
    """One table of a replay."""

    member: Member
    baseline: Baseline | None
    since: Position
    """Changes up to here are skipped: they are in the baseline, or were not asked for."""

    loading: Loading | None = None
    held: dict[bytes, Position] = field(default_factory=dict)
    """Keys whose changes are left out from there on: one of them could not be computed (R30)."""

    def emptied(self, at: Position) -> None:
        """Forget the keys that were held before a truncate."""
        self.held = {key: since for key, since in self.held.items() if since > at}


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A part of the log, and the tables in it."""

    part: Span
    tables: dict[TableName, ReplayTable]
    rows: int
    """In the baselines that it begins with."""

    changes: int
    """In the flushes that it has to read."""


def planned(
    name: str,
    log: LogReader,
    pipeline: Pipeline,
    prepared: PreparedPipeline,
    start: Moment | None,
    end: Moment | None,
) -> ReplayPlan:
    """
    Return what to replay from `start` to `end`; None means the baseline, and the log's end.

    Raises `PositionExpired` if the log does not go back that far, `ChangesMissing` if it has a
    gap in between, and any error in the pipeline's steps.
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
        baseline = baselines.get(table)
        since = part.after if baseline is None else baseline.window[0]
        member = Member(table, schema, prepared.output(schema))
        tables[table] = ReplayTable(member, baseline, since)
    return ReplayPlan(part, tables, sum(each.rows for each in baselines.values()), changes)


def _taken(log: LogReader, pipeline: Pipeline) -> dict[TableName, TableSchema]:
    """Return the tables of a pipeline, each with its newest schema in the log."""
    for name in pipeline.tables:
        log.schema(name)
    # A table that was only read late has no current schema, but a last one.
    known = {name: log.schema(name, log.columns(name, 0).schema or None) for name in log.tables()}
    return own_tables(pipeline, known)


def _baseline(log: LogReader, table: TableName, last: Position) -> Baseline:
    found = log.usable_baseline(table)
    if found is None:
        raise PositionExpired(
            "The log has no baseline of this table",
            remedy="Give a start to replay only changes, or run the engine to take a baseline.",
            table=table,
        )
    exact = found.window[1]
    # By commit: H may be any position within its last commit.
    if (last.epoch, last.commit) < (exact.epoch, exact.commit):
        raise PositionExpired(
            "The table's baseline is newer than the requested end",
            remedy="Give a start as well to replay only changes, or a later end.",
            table=table,
            asked=str(last),
            baseline=str(exact),
        )
    return found


def _counted(name: str, log: LogReader, taken: Mapping[TableName, TableSchema], part: Span) -> int:
    """Return the number of changes; raise if some are missing."""
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
        "The log has a gap within the requested range",
        remedy="Replay the range before the gap, or the range after it.",
        pipeline=name,
        **facts,
    )


# --- the run --------------------------------------------------------------------------------------

MOST_ROWS = 400_000
"""The limit of a batch, as in a running pipeline."""


class Replay:
    """One replay, for one thread. `prepared` is not shared with the live pipeline."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        target: Target,
        log: LogReader,
        prepared: PreparedPipeline,
        on_progress: Callable[[ReplayProgress], None],
        most_rows: int = MOST_ROWS,
        expired_upto: int = 0,
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._target = target
        self._log = log
        self._prepared = prepared
        self._on_progress = on_progress
        self._most_rows = most_rows
        self._jobs = TableJobs(log, prepared)
        self._keyed = target.traits.keyed
        ttl = pipeline.ttl if self._keyed else None
        self._expiry = None if ttl is None else ExpiryWatermark(ttl.field, expired_upto)
        """Which rows have expired; a target that records every change gets the changes."""
        self._tables: dict[TableName, ReplayTable] = {}
        self._read = self._of = (0, 0)
        """Rows of baselines and changes: read so far, and in total."""
        self._rows = self._changes = self._failed = 0

    def run(self, start: Moment | None, end: Moment | None) -> Replayed:
        """Replay from `start` to `end`; None means the baseline, and the log's end."""
        began = time.monotonic()
        plan = planned(self._name, self._log, self._pipeline, self._prepared, start, end)
        part, self._tables = plan.part, plan.tables
        self._of = (plan.rows, plan.changes)
        outputs = {name: table.member.output for name, table in self._tables.items()}
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
        read = 0
        for name, table in self._tables.items():
            number = 0 if table.baseline is None else table.baseline.baseline
            table.loading = self._target.load(name, number)
            if table.baseline is not None:
                self._read = (read, 0)
                self._load_rows(table, table.baseline, table.loading, part)
                # A filter drops rows: how many were read is only known at the end.
                read += table.baseline.rows
                self._read = (read, 0)
            if table.baseline is None or not self._keyed:
                # Only a target with one row per key has to wait until the table is exact.
                table.loading.switch(table.since)
                table.loading = None
        self._report(part.after)

    def _load_rows(
        self, table: ReplayTable, baseline: Baseline, loading: Loading, part: Span
    ) -> None:
        files, failures = baseline.files, list[Failure]()
        with _located(table.member.table, table.since):
            parts = self._jobs.parts(table.member, files)
        for loaded in self._jobs.baseline(parts):
            rows = loaded.rows if self._expiry is None else self._expiry.unexpired(loaded.rows)
            try:
                loading.write(rows)
            except RowsRefused as error:
                name = table.member.table
                refused = refused_rows(error, {name: rows})[name]
                failures += self._jobs.refuse_loaded(table.member, files, rows, refused)
            failures += loaded.failures
            self._rows += rows.num_rows
            self._read = (self._read[0] + rows.num_rows, 0)
            self._report(part.after)
        dead_letters = baseline_dead_letters(
            self._log, files, failures, baseline.baseline, table.since
        )
        self._failed += len(dead_letters)
        self._hold(table, dead_letters)

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
            for piece, emptied in self._pieces(batch, part):
                self._write(batch, piece)
                if emptied:
                    self._truncate(batch.epoch, after(piece.last), emptied)
            self._read = (self._read[0], self._read[1] + batch.rows)
            self._report(min(batch.last, part.last))

    def _batches(self, part: Span) -> Iterator[LogBatch]:
        """Yield the batches of the log that overlap a part."""
        at = part.after
        names = list(self._tables)
        while at < part.last:
            batch = self._log.next_batch(names, at, self._most_rows, upto=part.last)
            if batch is None:
                batch = self._log.next_batch(names, at, 1)  # one that extends beyond the end
                if batch is None or batch.first > part.last:
                    return
            if batch.files:
                yield batch
            at = batch.last

    def _pieces(self, batch: LogBatch, part: Span) -> Iterator[tuple[Span, list[TableName]]]:
        """Yield the parts of a batch, each with the tables that are truncated right after it."""
        first, last = max(batch.first, part.first), min(batch.last, part.last)
        if not self._keyed and batch.has_truncates:
            ends: dict[Position, list[TableName]] = {}
            for name, table in self._tables.items():
                window = self._window(table, batch)
                for at in _truncates(self._jobs.segments(batch, batch.files_of(name), window)):
                    if at > table.since and first <= at <= last:
                        ends.setdefault(at, []).append(name)
            for at, emptied in sorted(ends.items()):
                yield Span(first, before(at)), emptied
                first = after(at)
        yield Span(first, last), []

    def _write(self, batch: LogBatch, piece: Span) -> None:
        """Bring a part of a batch to the target, or to the tables that it is loading."""
        computed = {
            name: self._computed(table, batch, piece) for name, table in self._tables.items()
        }
        for name, each in computed.items():
            if each.truncate is not None:
                self._tables[name].emptied(Position(batch.epoch, *each.truncate))
        loading = {n: table.loading for n, table in self._tables.items() if table.loading}
        for name, load in loading.items():
            self._offer(batch, piece, {name: computed[name]}, load.catch_up)
        if not loading:
            self._offer(batch, piece, computed, self._target.write)

    def _offer(
        self,
        batch: LogBatch,
        piece: Span,
        computed: dict[TableName, ComputedRows],
        write: Callable[[Batch], object],
    ) -> None:
        """Write rows until the target refuses none; refused ones are left out like failed ones."""
        batch_id = f"{self._name}/replay/{piece.first}/{piece.last}"
        while True:
            try:
                write(target_batch(batch_id, batch.epoch, piece.first, piece.last, computed))
                break
            except RowsRefused as error:
                given = {name: each.rows for name, each in computed.items()}
                for name, refused in refused_rows(error, given).items():
                    table, files = self._tables[name], batch.files_of(name)
                    window = self._window(table, batch)
                    segments = self._jobs.segments(batch, files, window, piece)
                    rest = self._jobs.refuse(computed[name], refused, segments, table.held)
                    self._failed += given[name].num_rows - rest.rows.num_rows
                    self._hold(table, rest.dead_letters)
                    computed[name] = rest
        self._changes += sum(each.rows.num_rows for each in computed.values())

    def _truncate(self, epoch: int, at: Position, emptied: Sequence[TableName]) -> None:
        """Give a truncate to a target that records every change."""
        for name in emptied:
            self._tables[name].emptied(at)
        truncated = {
            name: ComputedRows(self._tables[name].member.nothing, (at.commit, at.ordinal))
            for name in emptied
        }
        self._target.write(target_batch(f"{self._name}/replay/{at}", epoch, at, at, truncated))

    def _computed(self, table: ReplayTable, batch: LogBatch, piece: Span) -> ComputedRows:
        """Compute one table's share of a part of a batch, without what is left out by key."""
        wanted = Span(max(piece.first, after(table.since)), piece.last)
        whole = wanted.first <= batch.first and batch.last <= wanted.last
        with _located(table.member.table, max(batch.first, wanted.first)):
            computed = self._jobs.changes(
                table.member,
                batch,
                table.held,
                window=self._window(table, batch),
                part=None if whole else wanted,
            )
        # A failed change that a truncate covers has no dead letter, and failed all the same.
        self._failed += computed.failed
        self._failed += sum(dead_letter.kind == "behind" for dead_letter in computed.dead_letters)
        self._hold(table, computed.dead_letters)
        if self._expiry is None:
            return computed
        return replace(computed, rows=self._expiry.applied(computed.rows, table.member.output))

    def _window(self, table: ReplayTable, batch: LogBatch) -> BaselineWindow | None:
        """Return which changes the baseline's rows hold, if the target must not get them (R11)."""
        if self._keyed or table.baseline is None:
            return None
        return self._jobs.window(table.member.table, table.baseline.baseline, batch)

    def _hold(self, table: ReplayTable, dead_letters: Sequence[NewDeadLetter]) -> None:
        """Leave out later changes of these keys; raise if the pipeline allows fewer."""
        for dead_letter in dead_letters:
            for key in dead_letter.keys:
                table.held[key] = min(
                    dead_letter.position, table.held.get(key, dead_letter.position)
                )
        policy = self._pipeline.on_error
        limit = policy.max_keys if isinstance(policy, DeadLetters) else 0
        held = sum(len(each.held) for each in self._tables.values())
        if held > limit:
            raise TooManyFailed(
                f"{held} rows cannot be computed; the limit is {limit}",
                pipeline=self._name,
                keys=held,
                limit=limit,
            )

    def _report(self, position: Position) -> None:
        (rows, changes), (of_rows, of_changes) = self._read, self._of
        self._on_progress(ReplayProgress(rows, of_rows, changes, of_changes, position))


def _truncates(segments: Segments) -> list[Position]:
    """Return the positions of a table's truncates."""
    if not any(file.truncates for file in segments.files):
        return []
    return [
        Position(
            segments.epoch, rows["_commit"][int(at)].as_py(), rows["_ordinal"][int(at)].as_py()
        )
        for _, rows in segments.read()
        for at in np.flatnonzero(rows["_op"].to_numpy() == Op.TRUNCATE)
    ]


@contextmanager
def _located(table: TableName, at: Position) -> Iterator[None]:
    """Add table and position to the error of a damaged segment."""
    try:
        yield
    except CorruptSegment as error:
        error.facts = {**error.facts, "table": table, "position": str(at)}
        raise


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
            "The target belongs to a pipeline of this engine",
            remedy="Use a new target, such as hr.memory().",
            pipeline=pipeline,
        )
    context, expiry = run.context, run.delivery.expiry
    upto = 0 if expiry is None else expiry.mark.upto
    return _replayed(
        run.name, run.pipeline, target, context.log, context.runner, start, end, on_progress, upto
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
    """Replay from the log in a data directory, without an engine; one may be running there."""
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
    expired_upto: int | None = None,
) -> Replayed:
    from headrace.targets.files import target_named

    made = target_named(target) if isinstance(target, str) else target
    if isinstance(made, TakesFrames):
        raise BadTransform(
            "A replay cannot write DataFrames to this target",
            remedy="Replay into memory, a RowTarget, parquet:DIR or jsonl:FILE.",
            pipeline=name,
        )
    prepared = runner.prepare(pipeline, pipeline.source.traits, f"{name}.replay")
    upto = int(time.time() * 1_000_000) if expired_upto is None else expired_upto
    with closing(prepared):
        replay = Replay(name, pipeline, made, log, prepared, on_progress, expired_upto=upto)
        return replay.run(start, end)
