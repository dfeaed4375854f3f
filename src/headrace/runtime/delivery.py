"""
Delivery of the log's batches to a pipeline's target: intent, jobs, dead letters, write.

```
 next_batch ─▶ (intent) ─▶ Spark job a table ─▶ dead letters ─▶ target.write ─▶ reached
               stored       rows that failed      synced                        (stored by the run)
```

A target may refuse rows. They become dead letters, too, and the batch is written without them.

The order makes it safe. An intent is stored before the first effect on a target without
transactions (R25). A dead letter is stored before the target has anything of its batch; if the
target is a function, before it is called without the row that failed or that it refused (R30). A
function may skip a batch that it has finished, and would not refuse the row again. Progress only
covers writes that have returned (invariant 2).

`table_jobs` computes the rows of one table, or passes them on as DataFrames: to a user's function,
whose batches have an id, so that after a crash the same rows come again with the same id (R25), and
to executors, which prepare large batches. A correction of the pipeline is a batch like any other
(`corrections/`).

A change that lacks a value which its target needs stops the pipeline (R21).

Long because batches, baselines, dead letters and corrections must be stored in one safe order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import TableChanges
from headrace.changelog.entries import Baseline, File
from headrace.changelog.position import (
    CHANGES_END,
    MAX_ORDINAL,
    ORIGIN,
    Position,
    before_corrections,
)
from headrace.changelog.reader import LogBatch, LogReader
from headrace.corrections.expiry import Expiry, ExpiryWatermark, after, deletes
from headrace.corrections.journal import (
    Correction,
    CorrectionRecord,
    Journal,
    SettledDeadLetter,
    as_correction,
    parts_at,
)
from headrace.corrections.overlay import CorrectedLog
from headrace.deadletters.hold import (
    Segments,
    baseline_dead_letters,
    keep,
)
from headrace.deadletters.keys import packed_keys
from headrace.deadletters.letter import DeadLetter, NewDeadLetter
from headrace.deadletters.store import DeadLetterStore, Figures, open_store
from headrace.errors import (
    AlreadyStored,
    BadTransform,
    NotRunning,
    RowsRefused,
    StorageError,
)
from headrace.observe.counters import DeliveryReport, Received
from headrace.pipeline.batch import (
    GivesFrames,
    PreparedPipeline,
    SegmentGroup,
)
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.failed_rows import limit_refused
from headrace.pipeline.result import Failure, result_schema
from headrace.runtime.model import Load, Member, TableState
from headrace.runtime.run_context import RunContext
from headrace.runtime.store import Intent
from headrace.runtime.table_jobs import (
    ComputedRows,
    FrameDelivery,
    TableJobs,
    refused_rows,
    staged_batches,
    stages,
    target_batch,
)
from headrace.storage.killpoints import (
    CORRECTION_READY,
    DEAD_LETTERS_STORED,
    EFFECT_DONE,
    INTENT_STORED,
    JOB_DONE,
    TARGET_WRITTEN,
    reach,
)
from headrace.storage.records import Records
from headrace.targets.target import (
    Batch,
    ListsLoaded,
    ListsRows,
    Loading,
    TakesFrames,
)

if TYPE_CHECKING:
    pass


T = TypeVar("T")

_ALL = 1 << 40
"""No limit: an intended batch is cut at the same position again."""

_WAYS = {
    (False, False): "",
    (True, False): "direct",
    (False, True): "job",
    (True, True): "both",
}
"""How a batch was computed: whether some of its tables without a job, and some by a job."""


class Delivery:
    """Delivers batches of one pipeline to its target. Only for the run's thread."""

    def __init__(
        self, name: str, pipeline: Pipeline, prepared: PreparedPipeline, context: RunContext
    ) -> None:
        self.name = name
        self.changes = 0
        self.batches = 0
        self.report = DeliveryReport(name, context.wall, context.emit)
        self.hops, self.counters = self.report.hops, self.report.counters
        self.applying: tuple[int, float] | None = None
        """The changes of the batch in progress, and when it began; stays if it fails."""
        self._pipeline = pipeline
        self._prepared = prepared
        self._context = context
        self._target = pipeline.target
        traits = pipeline.target.traits
        self.intends = traits.durable and not traits.transactional
        """Whether a batch must be repeated exactly (R25); a volatile target is rebuilt instead."""
        self._keyed = traits.keyed
        self._every_change = traits.every_change
        self._jobs = TableJobs(context.log, prepared, every_change=traits.every_change)
        self._journal: Journal | None = None
        self._log: CorrectedLog | None = None
        self._tidied: Position | None = None
        """Where the log began when corrections were last looked through."""
        self.tried = ORIGIN
        """The position that a durable target may have: a write without an answer may be done."""
        self.dead_letters_stale = False
        """Whether a superseded engine has written dead letters since they were read (R31)."""
        self._checks: list[Callable[[], None]] = []
        self.expiry = self._expiry_of(pipeline)
        """The expiry watermark; None if its rows never expire."""
        self.corrected: Callable[[Position, Mapping[str, ComputedRows]], None] | None = None
        """Called with the position of a correction that the target has, and what was computed."""
        self._unfinished = False
        """Whether a correction may be stored whose dead letters are not resolved."""
        self._intent: Intent | None = None
        self._dead_letters: DeadLetterStore | None = None
        self._records: Records | None = None
        """What the dead letters are kept in."""
        self._giving: FrameDelivery | None = None
        if isinstance(pipeline.target, TakesFrames):
            if not isinstance(prepared, GivesFrames):
                raise BadTransform(
                    "The runner cannot pass DataFrames to the target",
                    pipeline=name,
                    remedy="Start the engine with Spark, or use another target.",
                )
            check, keep = context.check_run, self._keep
            self._giving = FrameDelivery(name, pipeline.target, prepared, check, keep)
        self._staging = staged_batches(name, pipeline.target, prepared, context.check_run)

    def _expiry_of(self, pipeline: Pipeline) -> Expiry | None:
        context, ttl = self._context, pipeline.ttl
        if ttl is None:
            return None
        store = partial(context.store.expire, self.name)
        return Expiry(ttl.field, ttl.scan_seconds, store, context.clock, context.wall)

    @property
    def jobs(self) -> int:
        """How many jobs were run."""
        return self._jobs.count

    @property
    def direct(self) -> int:
        """How many batches of a table were computed without a job."""
        return self._jobs.direct

    @property
    def abandoned(self) -> int:
        """How many direct batches were given up because a row took too long."""
        return self._jobs.abandoned

    # -- changes ----------------------------------------------------------------------

    def next_batch(
        self, taking: Sequence[Member], start: Position, ahead: Position | None, most_rows: int
    ) -> LogBatch | None:
        """Return the batch after `start` for these tables; an intended batch is cut as before."""
        log = self.log
        tables = [member.table for member in taking]
        intent = self._intent
        if intent is not None and intent.after == str(start):
            again = [table for table in tables if table in intent.tables]
            upto = Position.parse(intent.last)
            return log.next_batch(again, start, _ALL, upto, most_files=_ALL)
        batch = log.next_batch(tables, start, most_rows, ahead)
        if batch is None and ahead is not None:
            # A flush extends past the position of the other tables: these tables go first.
            batch = log.next_batch(tables, start, 1)
        return batch

    def deliver(self, taking: Sequence[Member], start: Position, batch: LogBatch) -> None:
        """Deliver a batch to the target, for all these tables together."""
        context = self._context
        self.applying = (batch.rows, context.wall())
        began = context.clock()
        taking = [member for member in taking if member.table in batch.tables]
        received = self._received(taking, batch)
        before = self.direct, self.jobs
        if self.intends:
            self._intend(start, batch)
        self._note_overrides(taking, batch)
        if self._giving is not None:
            upto = self._give(self._giving, taking, batch)
            computed_at = context.wall()
        else:
            computed = {member.table: self._share(member, batch) for member in taking}
            computed_at = context.wall()
            reach(JOB_DONE)
            self._keep([found for each in computed.values() for found in each.dead_letters])
            self._clear_truncated(batch, computed)
            self.tried = max(self.tried, batch.last)
            # The job may have taken long: another engine, or another run, may have taken over.
            context.check() if self._target.traits.durable else context.check_run()
            upto = self._offer(taking, batch, computed, self._target.write)
            reach(TARGET_WRITTEN)
            self._checks = [each.check for each in computed.values() if each.check is not None]
            if batch.corrects and self.corrected is not None:
                self.corrected(batch.first, computed)
        if self.intends:
            reach(EFFECT_DONE)
            self._intent = None
        # Invariant 2: progress covers writes that have returned, never more.
        for member in taking:
            member.reached = upto
        self.report.applied(received, upto)
        self.batches += 1
        self.changes += batch.rows
        self.applying = None
        seconds = context.clock() - began
        self.report.batch_seconds.observe(seconds)
        times = None if batch.corrects else context.flush_times(batch.entries[1])
        if times is not None:
            self.report.hop(
                batch.begun / 1_000_000,
                *times,
                computed_at,
                changes=batch.rows,
                seconds=seconds,
                way=_WAYS[self.direct > before[0], self.jobs > before[1]],
            )

    def _received(
        self, taking: Sequence[Member], batch: LogBatch, *, catching_up: bool = False
    ) -> Received:
        tables = [(member.table, batch.files_of(member.table)) for member in taking]
        return self.report.received(tables, batch.first, batch.last, catching_up=catching_up)

    def check(self) -> None:
        """
        Compute direct batches by a job as well, if that is due; raise `ResultsDiffer`.

        Called once readers see the rows and the progress is stored, so that nobody waits for it.
        """
        while self._checks:
            self._checks.pop()()

    def _share(self, member: Member, batch: LogBatch) -> ComputedRows:
        """Return one table's share of a batch, computed or staged."""
        if self._staging is not None and self._stages(batch.files_of(member.table)):
            return self._stage(member, batch)
        return self._unexpired(member, self._jobs.changes(member, batch, self._held(member, batch)))

    def _unexpired(self, member: Member, computed: ComputedRows) -> ComputedRows:
        """Return a table's share of a batch with a delete for each row that has expired."""
        if self.expiry is None:
            return computed
        return replace(computed, rows=self.expiry.mark.applied(computed.rows, member.output))

    def _as_batch(self, batch: LogBatch, computed: dict[str, ComputedRows]) -> Batch:
        batch_id = f"{self.name}/{batch.first}/{batch.last}"
        return target_batch(batch_id, batch.epoch, batch.first, batch.last, computed)

    # -- rows that the target refuses -------------------------------------------------

    def _offer(
        self,
        taking: Sequence[Member],
        batch: LogBatch,
        computed: dict[str, ComputedRows],
        write: Callable[[Batch], T],
        load: Load | None = None,
    ) -> T:
        """Write a batch until the target refuses none of its rows; return what `write` returns."""
        count = 0
        while True:
            try:
                return write(self._as_batch(batch, computed))
            except RowsRefused as error:
                count += len(error.rows)
                if not batch.corrects:  # these are dead letters in any case
                    self._limit_refused(error, count)
                self._leave_out(error, taking, batch, computed, load)

    def _leave_out(
        self,
        error: RowsRefused,
        taking: Sequence[Member],
        batch: LogBatch,
        computed: dict[str, ComputedRows],
        load: Load | None,
    ) -> None:
        """
        Make dead letters of refused rows, and of later changes of their keys, as of failed rows.

        They are stored before the other rows are written again (R30).
        """
        refused = refused_rows(error, {table: each.rows for table, each in computed.items()})
        for member in taking:
            if rows := refused.get(member.table):
                segments, held = self._held_in(member, batch, load)
                rest = self._jobs.refuse(computed[member.table], rows, segments, held)
                new = rest.dead_letters
                if load is None:
                    self._keep(new)
                else:
                    loaded = self.copy_of(member.table, load)
                    self._keep(self.dead_letters.not_emptied(new), loaded)
                computed[member.table] = rest

    def _held_in(
        self, member: Member, batch: LogBatch, load: Load | None
    ) -> tuple[Segments, Mapping[bytes, Position]]:
        """Return a table's changes of a batch, and the keys that are held in them."""
        files = batch.files_of(member.table)
        if load is None:
            return self._jobs.segments(batch, files), self._held(member, batch)
        window = None if self._keyed else self._jobs.window(member.table, load.baseline, batch)
        return self._jobs.segments(batch, files, window), self._held_in_load(member, batch, load)

    def _load_rows(
        self, member: Member, baseline: Baseline, loading: Loading, rows: pa.Table, before: int
    ) -> list[Failure]:
        """Write rows of a baseline; return those refused, of which there were some `before`."""
        try:
            loading.write(rows)
        except RowsRefused as error:
            self._limit_refused(error, before + len(error.rows))
            refused = refused_rows(error, {member.table: rows})[member.table]
            return self._jobs.refuse_loaded(member, baseline.files, rows, refused)
        return []

    def _limit_refused(self, error: RowsRefused, count: int) -> None:
        """Raise if these are too many refused rows for one batch or baseline."""
        table = {"table": error.rows[0].table} if error.rows else {}
        most = self._pipeline.most_failures
        limit_refused(error, count, most, {"pipeline": self.name, **table})

    # -- intents ----------------------------------------------------------------------

    def _intend(self, start: Position, batch: LogBatch) -> None:
        # A superseded engine must neither begin a batch nor repeat one: the other engine has
        # done so, and has continued (R31).
        self._context.check()
        if self._intent is not None and self._intent.after == str(start):
            return  # the same batch as before: it is stored, with its time
        intent = Intent(batch.tables, str(start), str(batch.last), self._context.wall())
        self._context.store.intend(self.name, intent)
        self._intent = intent
        reach(INTENT_STORED)

    def forget_intent(self) -> None:
        """Delete an intent whose changes a baseline will replace."""
        if self._intent is not None:
            self._context.store.forget_intent(self.name)
            self._intent = None

    # -- dead letters -----------------------------------------------------------------

    def recall(self) -> None:
        """Read the intent of the previous run."""
        store = self._context.store
        self._intent = store.intent(self.name)
        if self.expiry is not None:
            self.expiry.recall(store.expired_upto(self.name))
        self.counters.recall(store.counts(self.name))
        store.count_with(self.counters)
        self._open_journal()
        if self._target.traits.durable:
            self.tried = self._context.log.end

    def _open_journal(self) -> None:
        context = self._context
        self._journal = Journal.open(context.files, self.name, context.wall)
        self._log = CorrectedLog(context.log, self.name, self._journal)
        self._tidied = None
        self._jobs.use(self._log)

    @property
    def journal(self) -> Journal:
        """The pipeline's corrections."""
        if self._journal is None:
            raise NotRunning("The corrections have not been read yet", pipeline=self.name)
        return self._journal

    @property
    def source_log(self) -> LogReader:
        """The log of the source."""
        return self._context.log

    @property
    def log(self) -> CorrectedLog:
        """The log as this pipeline reads it: with its corrections."""
        if self._log is None:
            raise NotRunning("The corrections have not been read yet", pipeline=self.name)
        return self._log

    def open(self) -> None:
        """Read the dead letters of the previous run."""
        context = self._context
        self._dead_letters, self._records = open_store(
            context.files, self.name, context.wall, self._pipeline.on_error, self._records
        )
        self._unfinished = True
        self.finish_corrections()

    def reopen_dead_letters(self) -> None:
        """Read dead letters that another engine wrote; raise if that engine is the newer one."""
        if self.dead_letters_stale:
            self._context.check()
            self._open_journal()
            self.open()
            self.dead_letters_stale = False

    @property
    def dead_letters(self) -> DeadLetterStore:
        """The pipeline's dead letters."""
        if self._dead_letters is None:
            raise NotRunning("The dead letters have not been read yet", pipeline=self.name)
        return self._dead_letters

    @property
    def dead_letter_count(self) -> int:
        """The number of dead letters that have not ended; 0 before they are read."""
        return self.dead_letter_figures.count

    @property
    def dead_letter_figures(self) -> Figures:
        """The numbers of dead letters for a status; none before they are read."""
        return self._dead_letters.figures if self._dead_letters is not None else Figures()

    def _held(self, member: Member, batch: LogBatch) -> dict[bytes, Position]:
        held = self.journal.held(member.table, batch.first)
        if not self.dead_letters.written:
            return held
        if member.state != TableState.RELOADING:
            return _earliest(held, self.dead_letters.held(member.table))
        # Dead letters of the baseline that is being loaded are for other rows than the table has.
        # Those of its own baseline count, whatever number the new one must exceed.
        newest = max(member.newer_than, member.baseline)
        return _earliest(held, self.dead_letters.held(member.table, newest=newest))

    def _held_in_load(self, member: Member, batch: LogBatch, load: Load) -> dict[bytes, Position]:
        loaded = self.copy_of(member.table, load)
        since = self.journal.begins(member.table, *loaded)
        held = self.dead_letters.held(member.table, since=since, baseline=load.baseline)
        return _earliest(held, self.journal.held(member.table, batch.first, loaded))

    def _keep(
        self, new: Sequence[NewDeadLetter], loaded: tuple[int, Position] | None = None
    ) -> None:
        new = [each for each in new if not self._corrected(each, loaded)]
        if new:
            self._context.check_run()
            count = keep(self.dead_letters, new, self._pipeline, self.name)
            self.report.dead_letters([each.table for each in new], count)
            reach(DEAD_LETTERS_STORED)

    def _clear_truncated(self, batch: LogBatch, computed: dict[str, ComputedRows]) -> None:
        for table, each in computed.items():
            if each.truncate is not None:
                self._context.check_run()
                at = Position(batch.epoch, *each.truncate)
                self.dead_letters.clear(table, at, "truncate")

    def _corrected(self, dead_letter: NewDeadLetter, loaded: tuple[int, Position] | None) -> bool:
        """Whether a correction that follows decides about the row: no dead letter is needed."""
        at = before_corrections(dead_letter.position)
        held = self.journal.held(dead_letter.table, at, loaded)
        return any(key in held and held[key] <= at for key in dead_letter.keys)

    def copy_of(self, table: str, load: Load) -> tuple[int, Position]:
        """Return the number of the copy that a load began with, and its F."""
        baseline = self._context.log.baseline(table, load.baseline)
        number = load.baseline if baseline is None else baseline.copy or load.baseline
        return number, load.first

    def _note_overrides(self, taking: Sequence[Member], batch: LogBatch) -> None:
        """Note which rows of corrections this batch decides about, before it has any effect."""
        for member in taking if not batch.corrects else ():
            watched = self.journal.watched(member.table, batch.first, batch.last)
            if not watched or not (files := batch.files_of(member.table)):
                continue
            segments = self._jobs.segments(batch, files)
            wanted = pa.array(sorted(watched), pa.binary())
            found: dict[bytes, Position] = {}
            for schema, rows in segments.read():
                for side in packed_keys(rows, schema):
                    chosen = pc.is_in(side, value_set=wanted)
                    columns = (rows["_commit"], rows["_ordinal"], side)
                    mine = (each.filter(chosen).to_pylist() for each in columns)
                    for commit, ordinal, key in zip(*mine, strict=True):
                        at = Position(batch.epoch, commit, ordinal)
                        found[key] = min(at, found.get(key, at))
            self._context.check_run()
            self.journal.override(member.table, found, segments.truncated_at())

    def meets_at(self, member: Member, load: Load, goal: Position) -> Position:
        """
        Return where a loaded table is shown that meets the others at `goal`.

        If it begins at the same commit, that is after the corrections that were moved there: the
        others may have passed their positions, by deletes of expired rows.
        """
        first = load.first
        if (first.epoch, first.commit) != (goal.epoch, goal.commit):
            return goal
        return max(goal, self.journal.moved_upto(member.table, self.copy_of(member.table, load)))

    def _move_corrections(self, member: Member, baseline: Baseline, first: Position) -> None:
        """Move corrections that rows folded up to F lack to F, before they are loaded."""
        lineage = self._context.log.lineage or ""
        known = member.stored if member.lineage == lineage else ORIGIN
        if baseline.copy:
            # The log is folded by whole commits, and only those that the pipeline had stored.
            known = Position(known.epoch, known.commit, MAX_ORDINAL)
        loaded = (baseline.copy or baseline.baseline, first)
        self._context.check_run()
        self.journal.move(member.table, loaded, lineage, known)

    def tidy_corrections(self) -> None:
        """Remove files of corrections that the log, as it begins now, makes unnecessary."""
        floor, before = self._context.log.floor, self._tidied
        if floor == before or not self.journal.written:
            return
        self._context.check()
        try:
            if self.journal.tidy(floor) or before is None:
                self.log.tidy()
        except AlreadyStored:
            raise  # by another engine: what it has written must be read first
        except StorageError:
            return  # it can wait
        self._tidied = floor

    def correct(
        self,
        kind: Literal["replay", "edit"],
        member: Member,
        dead_letters: Sequence[DeadLetter],
        changes: Sequence[TableChanges],
        note: str,
    ) -> Correction:
        """
        Add a correction that applies these dead letters where a table is now, and resolve them.

        The next batches deliver it. If this run ends between the two, `open` resolves them.
        """
        log = self._context.log
        self._context.check()
        self._unfinished = True
        usable = log.usable_baseline(member.table)
        correction = self.journal.add(
            kind,
            changes,
            keys=dict.fromkeys(key for each in dead_letters for key in each.keys),
            after=member.reached,
            settles=[
                SettledDeadLetter(each.lineage, str(each.position), each.baseline, each.keys)
                for each in dead_letters
            ],
            lineage=log.lineage or "",
            copy=max(member.baseline, 0 if usable is None else usable.baseline),
            note=note,
        )
        # Another engine that has taken over has not read it: the dead letters stay, and it ends
        # when that engine, or the next one, finds it behind the position of its table.
        self._context.check()
        self._resolve(correction, dead_letters)
        self._unfinished = False
        reach(CORRECTION_READY)
        return correction

    def finish_corrections(self) -> None:
        """Resolve the dead letters of a correction, if that failed after it was stored."""
        if self._unfinished:
            for correction in self.journal.all():
                self._complete(correction)
            self._unfinished = False

    def nothing_waits(self) -> None:
        """Note that no batch will be tried again: one that has failed was replaced by a load."""
        self.applying = None

    def settled_at(self, position: Position) -> bool:
        """Whether the target has nothing after `position`: no batch was tried in vain."""
        return self._intent is None and self.applying is None and position >= self.tried

    @property
    def most_failures(self) -> int:
        """How many rows of a batch may fail without stopping the pipeline."""
        return self._pipeline.most_failures

    def needs(self, member: Member) -> frozenset[int]:
        """Return the ids of the columns that are needed to compute a change of a table."""
        return self._prepared.needs(member.input)

    def try_changes(
        self, member: Member, changes: Sequence[TableChanges]
    ) -> tuple[Position, ComputedRows]:
        """Compute changes as a correction would be, without any effect; return its position."""
        at = member.reached
        first = Position(at.epoch, at.commit, max(at.ordinal, CHANGES_END) + 1)
        record = CorrectionRecord(
            number=0,
            pipeline=self.name,
            kind="replay",
            table=member.table,
            lineage="",
            first=str(first),
            copy=0,
            keys=(),
            settles=(),
            parts=parts_at(changes, first),
            note="",
            at=0,
        )
        batch = self.log.batch((member.table,), as_correction(record))
        return first, self._jobs.changes(member, batch, {})

    def _complete(self, correction: Correction) -> None:
        """Resolve dead letters of a correction whose run ended before it did so."""
        if correction.ended is None and (waiting := self._unresolved(correction)):
            if correction.first <= self._reached(correction.table):
                # Its run was taken over from: nobody has delivered it, or ever will.
                self.journal.drop([correction.number])
            else:
                self._resolve(correction, waiting)

    def _unresolved(self, correction: Correction) -> list[DeadLetter]:
        """Return the dead letters that a correction applies, and that have not ended."""
        if not self.dead_letters.written:
            return []
        found = {
            (each.lineage, str(each.position), each.baseline, each.keys): each
            for each in self.dead_letters.all(correction.table)
        }
        wanted = [
            (each.lineage, each.position, each.baseline, each.keys)
            for each in correction.record.settles
        ]
        return [found[each] for each in wanted if each in found]

    def _reached(self, table: str) -> Position:
        """Return how far a durable target has a table."""
        if not self._target.traits.durable:
            return ORIGIN
        return before_corrections(self._context.store.reached(self.name, table))

    def _resolve(self, correction: Correction, dead_letters: Sequence[DeadLetter]) -> None:
        """End the dead letters that a correction applies."""
        record = correction.record
        reason: Literal["replayed", "edited"] = "replayed" if record.kind == "replay" else "edited"
        self.dead_letters.resolve(dead_letters, reason, record.note)

    def supersede_dead_letters(self, member: Member, first: Position, baseline: int) -> None:
        """Clear dead letters that a newer baseline covers, and release their keys (R30)."""
        self._context.check_run()
        known = self._context.log.baseline(member.table, baseline)
        copy = baseline if known is None else known.copy or baseline
        upto = self.journal.begins(member.table, copy, first)
        self.journal.cover(member.table, copy, first)
        self.dead_letters.clear(member.table, upto, "reload", keep_baseline=baseline)

    def drop_dead_letters(self) -> None:
        """Clear all dead letters: the pipeline was dropped, and holds no keys."""
        if self._dead_letters is not None:
            self._dead_letters.drop()
            self.journal.drop()
            with suppress(StorageError):  # they are of no use to anybody
                self.log.tidy()

    # -- rows that expire -------------------------------------------------------------

    def may_insert(self, member: Member) -> bool:
        """
        Whether deletes of the pipeline's own can stand where a table is now.

        Not between two attempts of a batch: the target may have it already. Not within a commit,
        nor before a correction that stands after the same commit, and comes next.
        """
        reached, lineage = member.reached, self.source_log.lineage or ""
        end = Position(reached.epoch, reached.commit, MAX_ORDINAL)
        return (
            self.settled_at(reached)
            and self.at_a_commits_end(member)
            and self.journal.next(lineage, (member.table,), reached, end, None) is None
        )

    def at_a_commits_end(self, member: Member) -> bool:
        """Whether a table has all changes of the commit that it has reached."""
        reached = before_corrections(member.reached)
        end = Position(reached.epoch, reached.commit, CHANGES_END)
        return reached >= end or not self.source_log.changed_between(member.table, reached, end)

    def expire(self, members: Sequence[Member]) -> bool:
        """
        Delete the rows of these tables that have expired; return whether there were any.

        The deletes of tables that are at one position are one batch. It needs no journal: if it is
        lost with this process, the rows of the table that is built next are compared with the
        watermark, which is stored.
        """
        assert self.expiry is not None
        if (mark := self.expiry.begin()) is None:
            return False
        together: dict[Position | str, list[Member]] = {}
        for member in members:
            if not member.shown and member.reached < self.tried:
                # It has to be loaded again. The target may have a part of a batch that failed,
                # which readers must not see.
                continue
            # One that has to be loaded again may still be seen, at a position of its own.
            together.setdefault(member.reached if member.shown else member.table, []).append(member)
        counts: dict[str, tuple[int, Position]] = {}
        for group in together.values():
            at = after(group[0].reached)
            found = {member.table: self._deletes(member, mark, at) for member in group}
            if not any(each.rows.num_rows for each in found.values()):
                continue
            self._context.check_run()
            self._target.write(self._own_batch(at, found))
            for member in group:
                member.reached = at
                if rows := found[member.table].rows.num_rows:
                    counts[member.table] = (rows, at)
        self.expiry.done(mark)
        for table, (rows, at) in counts.items():
            self.report.expired(table, rows, at)
        return bool(counts)

    def expire_loaded(self, member: Member, load: Load, at: Position) -> None:
        """Delete rows that have expired since they were loaded, before readers see the table."""
        if self.expiry is None:
            return
        assert isinstance(load.loading, ListsLoaded)
        mark = self.expiry.mark
        found = mark.expired(load.loading.list_rows(mark.columns(member.output)))
        if found.num_rows:
            at = after(max(at, load.reached))
            computed = ComputedRows(deletes(found, at, mark.upto, member.nothing.schema))
            load.loading.catch_up(self._own_batch(at, {member.table: computed}))

    def _deletes(self, member: Member, mark: ExpiryWatermark, at: Position) -> ComputedRows:
        """Return the deletes of rows at the target that have expired by a watermark."""
        assert isinstance(self._target, ListsRows)
        # Not the member's columns: a table whose columns changed is seen as it was until it is
        # loaded again.
        columns = self._target.columns_shown(member.table)
        shape = result_schema(columns)
        if mark.field not in columns.names:
            return ComputedRows(shape.empty_table())
        found = mark.expired(self._target.list_rows(member.table, mark.columns(columns)))
        return ComputedRows(deletes(found, at, mark.upto, shape))

    def _own_batch(self, at: Position, computed: dict[str, ComputedRows]) -> Batch:
        return target_batch(f"{self.name}/{at}/{at}", at.epoch, at, at, computed)

    # -- baselines --------------------------------------------------------------------

    def load(self, member: Member, baseline: Baseline, first: Position, loading: Loading) -> None:
        """Load a baseline's rows into the target; readers do not see them yet."""
        self._disown(member)
        self._move_corrections(member, baseline, first)
        failures: list[Failure] = []
        refused: list[Failure] = []
        parts = self._jobs.parts(member, baseline.files)
        if self._stages(baseline.files) and (rows := stages(loading)) is not None:
            assert self._staging is not None
            self._jobs.count += len(parts)
            number = baseline.baseline
            failures = self._staging.baseline(member, number, first, parts, rows)
            self._keep_of_baseline(baseline, failures, first)
            self.report.loaded(baseline, baseline.rows)
            self.report.baseline(baseline)
            return
        taken = 0
        for loaded in self._jobs.baseline(parts):
            self._context.check_run()
            rows = loaded.rows if self.expiry is None else self.expiry.mark.unexpired(loaded.rows)
            refused += self._load_rows(member, baseline, loading, rows, len(refused))
            failures += loaded.failures
            taken += rows.num_rows
            self.report.loaded(baseline, taken - len(refused))
        self._keep_of_baseline(baseline, [*failures, *refused], first)
        self.report.baseline(baseline)

    def give_baseline(self, member: Member, baseline: Baseline, first: Position) -> None:
        """Pass a baseline's rows to the user's function, in pieces."""
        assert self._giving is not None
        self._disown(member)
        self._move_corrections(member, baseline, first)
        # For an empty table too: the function must learn that its previous rows are gone, since a
        # truncate that the copy has seen is not delivered again (R11).
        parts = self._jobs.parts(member, baseline.files) or [SegmentGroup(member.input, ())]
        self._jobs.count += len(parts)

        def park(failures: Sequence[Failure]) -> None:
            self._keep_of_baseline(baseline, failures, first)

        self._giving.baseline(member, baseline.baseline, first, parts, park)
        self.report.loaded(baseline, baseline.rows)
        self.report.baseline(baseline)

    def catch_up(self, member: Member, load: Load, batch: LogBatch) -> None:
        """Apply changes since F to a table that is being loaded."""
        self._note_overrides([member], batch)
        received = self._received([member], batch, catching_up=True)
        held = self._held_in_load(member, batch, load)
        # With one row per key a repeated change is harmless; others must not get commits that
        # the baseline contains (R11).
        window = None if self._keyed else self._jobs.window(member.table, load.baseline, batch)
        # A correction at F itself is not in the rows: it was made after the copy was.
        since = ORIGIN if batch.corrects else load.first
        computed = self._jobs.changes(member, batch, held, since, window)
        computed = self._unexpired(member, computed)
        loaded = self.copy_of(member.table, load)
        self._keep(self.dead_letters.not_emptied(computed.dead_letters), loaded)
        self._clear_truncated(batch, {member.table: computed})
        self._context.check_run()
        self._offer([member], batch, {member.table: computed}, load.loading.catch_up, load)
        load.reached = batch.last
        self.report.caught_up(received, batch.last)
        self.changes += batch.rows

    def _disown(self, member: Member) -> None:
        log = self._context.log
        self._context.check_run()
        self.dead_letters.disown(member.table, log.epoch, log.lineage or "")
        self.journal.disown(member.table, log.epoch, log.lineage or "")

    def _keep_of_baseline(
        self, baseline: Baseline, failures: Sequence[Failure], first: Position
    ) -> None:
        if failures:
            log = self._context.log
            new = baseline_dead_letters(log, baseline.files, failures, baseline.baseline, first)
            loaded = (baseline.copy or baseline.baseline, first)
            replaced = self.journal.replaced(baseline.table, loaded)
            self._keep([each for each in new if replaced.isdisjoint(each.keys)], loaded)

    # -- frames, and rows that executors prepare --------------------------------------

    @property
    def takes_frames(self) -> bool:
        """Whether the target takes DataFrames instead of rows."""
        return self._giving is not None

    def _give(self, giving: FrameDelivery, taking: Sequence[Member], batch: LogBatch) -> Position:
        """Pass each table's share to the user's function as a frame."""
        given: dict[str, ComputedRows] = {}
        for member in taking:
            files = batch.files_of(member.table)
            if not files:
                continue
            window = self._jobs.window(member.table, member.baseline, batch)
            segments = Segments(self.log, batch.epoch, files, window)
            held = self._held(member, batch)
            parked = giving.changes(member, batch, self._jobs.parts(member, files), segments, held)
            self._jobs.count += 1
            self._keep(parked.dead_letters)
            given[member.table] = ComputedRows(member.nothing, dead_letters=parked.dead_letters)
            if (emptied := segments.truncated_at()) is not None:
                self._context.check_run()
                self.dead_letters.clear(member.table, emptied, "truncate")
        if batch.corrects and self.corrected is not None:
            self.corrected(batch.first, given)
        return batch.last

    def _stages(self, files: Sequence[File]) -> bool:
        """Whether executors prepare these rows, without sending them to the driver."""
        return self._staging is not None and self._staging.wants(sum(file.rows for file in files))

    def _stage(self, member: Member, batch: LogBatch) -> ComputedRows:
        """Have executors prepare one table's share; changes that fail are parked."""
        assert self._staging is not None
        files = batch.files_of(member.table)
        segments = self._jobs.segments(batch, files)
        parts, held = self._jobs.parts(member, files), self._held(member, batch)
        staged, emptied, parked = self._staging.changes(member, batch, parts, segments, held)
        self._jobs.count += 1
        truncate = None if emptied is None else (emptied.commit, emptied.ordinal)
        return ComputedRows(member.nothing, truncate, parked.dead_letters, staged=staged)


def _earliest(
    one: Mapping[bytes, Position], other: Mapping[bytes, Position]
) -> dict[bytes, Position]:
    """Return the keys that either holds, each from the earlier of the two positions."""
    held = dict(one)
    for key, since in other.items():
        held[key] = min(since, held.get(key, since))
    return held
