"""
One pipeline at work, as a machine of small steps.

A step loads a baseline, or takes the next batch of the log through one Spark job to the
target, or finds nothing to do. Time, log, runner, store and target come in by argument
and no thread is started here, so the whole of it runs under simulation, where a seed
decides every interleaving. The engine drives it from a thread of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.capture.source import SourceTraits
from headrace.changelog.entry import Baseline, File
from headrace.changelog.log import LogBatch, LogReader
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableSchema
from headrace.control.acknowledge import Watermark
from headrace.control.hops import Hops, Sample
from headrace.control.retry import Again, decide
from headrace.control.states import TableState, may_move
from headrace.control.store import Store
from headrace.errors import Fenced, HeadraceError
from headrace.pipeline.batch import BatchFacts, Part, Runner
from headrace.pipeline.definition import Pipeline
from headrace.storage.points import BASELINE_LOADED, JOB_DONE, TARGET_WRITTEN, reach
from headrace.targets.target import Batch, Target

MOST_ROWS = 400_000
"""A batch's limit: about what one job brings back within a 1 g heap without a pause."""

STORE_EVERY = 10.0
"""Seconds between stored progress of a volatile target, which is rebuilt anyway (R34)."""

IDLE = math.inf
"""Nothing to do until somebody gives a sign."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run needs of the world around it."""

    log: LogReader
    runner: Runner
    store: Store
    clock: Callable[[], float]
    """Monotonic seconds."""

    wall: Callable[[], float]
    """Seconds since 1970."""

    ask_baseline: Callable[[str], None]
    """Tell the recorder that a baseline of this table is owed."""

    flush_times: Callable[[int], tuple[float, float] | None]
    """When an index entry's first change was read, and when it was flushed."""


class PipelineRun:
    """Brings one table of one source to one target. Driven from one thread."""

    def __init__(
        self, name: str, source: str, pipeline: Pipeline, traits: SourceTraits, around: Surroundings
    ) -> None:
        self.name = name
        self.source = source
        self.pipeline = pipeline
        self.table = pipeline.table
        self.target: Target = pipeline.target
        self.state = TableState.WAITING
        self.error: HeadraceError | None = None
        self.reached = ORIGIN
        self.changes = 0
        self.batches = 0
        self.jobs = 0
        self.hops = Hops()
        self._traits = traits
        self._around = around
        self._window: tuple[Position, Position] | None = None
        self._output: TableSchema | None = None
        self._lineage: str | None = None
        self._attempts = 0
        self._stored_at = -math.inf
        self._stored = ORIGIN

    # -- life ---------------------------------------------------------------------------

    def prepare(self, schema: TableSchema) -> TableSchema:
        """Analyse the plan on Spark and check the target; raise what is wrong with either."""
        output = self._around.runner.prepare(self.pipeline, schema, self._traits)
        self.target.check({self.table: output})
        self._output = output
        return output

    def open(self) -> None:
        """Open the target where its stored progress says; volatile ones begin anew."""
        assert self._output is not None, "prepare comes first"
        store = self._around.store
        self._stored = store.reached(self.name, self.table)
        self._lineage = store.lineage(self.name, self.table)
        if self.target.traits.durable:
            self.reached = self._stored
        self.target.open({self.table: self._output}, {self.table: self.reached})
        # A durable target goes on where it stood, unless the log has a gap since (see step).
        if self.target.traits.durable and (stored := store.state(self.name, self.table)):
            state, baseline = stored
            if state in (TableState.CATCHING_UP, TableState.LIVE):
                self._resume(TableState(state), baseline)

    def close(self) -> None:
        """Store what is known and close the target; nothing may follow."""
        try:
            self._store_progress(always=True)
        finally:
            self.state = TableState.STOPPED if self.state != TableState.FAILED else self.state
            self.target.close()

    # -- work ---------------------------------------------------------------------------

    def step(self) -> float | None:
        """
        Do one piece of work.

        Return None if there may be more at once, the seconds to pause after a failure,
        or `IDLE` when only a new index entry can bring work.
        """
        if self.state in (TableState.FAILED, TableState.STOPPED):
            return IDLE
        try:
            pause = self._work()
        except Fenced:
            raise
        except HeadraceError as error:
            self.error = error
            self._attempts += 1
            verdict = decide(error, self._attempts)
            if isinstance(verdict, Again):
                return verdict.after
            # Not stored: once a person has mended it, a start goes on where this one stood.
            self.state = TableState.FAILED
            return IDLE
        self.error = None
        self._attempts = 0
        return pause

    def fail(self, error: HeadraceError) -> None:
        """Stop on an error from outside: another engine took over."""
        self.error = error
        self.state = TableState.FAILED

    def watermark(self) -> Watermark:
        """Return what this pipeline still needs the source to keep (R8)."""
        log = self._around.log
        settled = self.reached
        loading_from = None
        if self.state == TableState.LOADING and self._window is not None:
            loading_from = self._window[0]
        if self.state == TableState.WAITING or not log.changed_between(
            self.table, self.reached, log.end
        ):
            # What follows is nothing of ours, or lies before a baseline that is owed.
            settled = log.end
        return Watermark(self.target.traits.durable, settled, loading_from)

    @property
    def ready(self) -> bool:
        """Whether readers see the table and nothing is known to be wrong (invariant 9)."""
        return self.state == TableState.LIVE and self.error is None

    def _work(self) -> float | None:
        log = self._around.log
        if self.state == TableState.LOADING:
            return self._load(log.usable_baseline(self.table))
        if self.state != TableState.WAITING and self._behind_a_gap():
            # Changes are missing, or history was replaced: only a new baseline helps (R1).
            self._move(TableState.WAITING)
        if self.state == TableState.WAITING:
            return self._load(log.usable_baseline(self.table))
        batch = log.next_batch(self.table, self.reached, MOST_ROWS)
        if batch is None:
            self._show_if_exact()
            return IDLE
        if batch.files:
            self._deliver(batch)
        else:
            self.reached = batch.last  # R34: nothing of ours in it, so no job and no write
        self._show_if_exact()
        self._store_progress(always=self.target.traits.durable and bool(batch.files))
        return None

    def _load(self, baseline: Baseline | None) -> float | None:
        if baseline is None:
            if self.state == TableState.LOADING:
                self._move(TableState.WAITING)
            self._around.ask_baseline(self.table)
            return IDLE
        around = self._around
        first, _ = self._window = self._shown_within(baseline)
        self._move(TableState.LOADING, baseline.baseline)
        loading = self.target.load(self.table, baseline.baseline)
        try:
            for part in self._parts(baseline.files):
                for rows in around.runner.baseline(self.pipeline, part):
                    self.jobs += 1
                    loading.write(rows)
        except BaseException:
            loading.discard()
            raise
        reach(BASELINE_LOADED)
        # Positions keep an old engine's rows out of a target, but not its baseline, which
        # would put the table back to where it was (invariant 4).
        around.store.check()
        loading.switch(first)
        self.reached = first
        self._lineage = around.log.lineage
        if self.target.traits.durable:
            # Also backwards: what was reached before is not in these rows.
            around.store.begin(self.name, self.table, self._lineage or "", first)
            self._stored = first
        self._move(TableState.CATCHING_UP, baseline.baseline)
        return None

    def _deliver(self, batch: LogBatch) -> None:
        around = self._around
        facts = BatchFacts.of(batch.files, batch.first, batch.last)
        result = around.runner.rows(self.pipeline, self._parts(batch.files), facts)
        computed = around.wall()
        self.jobs += 1
        reach(JOB_DONE)
        truncates = {}
        if result.truncate is not None:
            truncates[self.table] = Position(batch.epoch, *result.truncate)
        upto = self.target.write(
            Batch(
                id=f"{self.name}/{batch.first}/{batch.last}",
                epoch=batch.epoch,
                first=batch.first,
                last=batch.last,
                tables={self.table: result.rows},
                truncates=truncates,
            )
        )
        reach(TARGET_WRITTEN)
        # Invariant 2: progress speaks of the write that has returned, never ahead of it.
        self.reached = upto
        self.batches += 1
        self.changes += batch.rows
        times = around.flush_times(batch.entries[1])
        if times is not None:
            committed = batch.begun / 1_000_000
            self.hops.add(Sample(committed, *times, computed, around.wall()))

    def _parts(self, files: tuple[File, ...]) -> list[Part]:
        """Return the files by schema version, each looked at before Spark reads it."""
        around = self._around
        by_schema: dict[int, list[File]] = {}
        for file in files:
            # Spark would read a damaged file as far as it goes; the index knows better.
            around.log.verify(file)
            by_schema.setdefault(file.schema, []).append(file)
        return [
            Part(
                around.log.schema(self.table, schema_id),
                tuple(around.log.path(file) for file in of_schema),
                tuple(file.rows for file in of_schema),
                sum(file.marked for file in of_schema),
            )
            for schema_id, of_schema in by_schema.items()
        ]

    def _behind_a_gap(self) -> bool:
        """Whether what the target holds cannot go on with what the log has."""
        log = self._around.log
        if log.gap is None:
            return False
        # A log that was made anew counts its epochs from 1 again: the lineage tells, or an
        # epoch this log never had. With either, positions do not compare.
        elsewhere = self._lineage not in (None, log.lineage) or self.reached.epoch > log.epoch
        return elsewhere or self.reached < Position.parse(log.gap.at)

    def _show_if_exact(self) -> None:
        if self.state != TableState.CATCHING_UP or self._window is None:
            return
        if self.reached >= self._window[1]:
            # Invariant 7: before H the table is a mixture that never existed. Shown first:
            # if either call fails both come again, and neither minds (invariant 9).
            self.target.show(self.table)
            self._move(TableState.LIVE)

    def _resume(self, state: TableState, number: int | None) -> None:
        baseline = self._around.log.usable_baseline(self.table)
        if state == TableState.LIVE:
            self.target.show(self.table)
        elif baseline is None or baseline.baseline < (number or 0):
            return
        else:
            # Of a newer copy of the same stretch of history the end is as good: it is later.
            self._window = self._shown_within(baseline)
        self.state = state

    def _shown_within(self, baseline: Baseline) -> tuple[Position, Position]:
        """Return F, and from where on the table may be shown."""
        first, last = baseline.window
        # H makes it exact. But after a restart the log goes on far beyond H, and a reader who
        # has seen its end must not be shown the past.
        return first, max(last, self._around.log.end)

    def _move(self, new: TableState, baseline: int | None = None) -> None:
        if new == self.state:
            return
        assert may_move(self.state, new), f"{self.state} → {new}"
        self._around.store.set_state(self.name, self.table, new, baseline)
        self.state = new

    def _store_progress(self, *, always: bool = False) -> None:
        around = self._around
        due = around.clock() - self._stored_at >= STORE_EVERY
        if self.reached <= self._stored or not (always or due):
            return
        self._stored = around.store.advance(
            self.name, self.table, around.log.lineage or "", self.reached
        )
        self._stored_at = around.clock()
