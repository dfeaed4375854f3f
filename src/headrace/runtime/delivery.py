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

`TableJobs` computes the rows of one table and stores nothing; replay uses it, too.

A target that is a user's function of DataFrames receives batches and baselines as frames
(`FrameDelivery`). Nothing is collected: what the function does with a frame is its effect. Each
frame has an id; after a crash the same rows come again with the same id (R25).

The rows of large batches and baselines are not sent to the driver: executors prepare them
(`StagedBatches`; R24, S4). The target receives the frame, writes parts of it in tasks, and then
commits the parts that are named by receipts. A row that cannot be computed is found and left out
as for any other target.

A change that lacks a value which its target needs stops the pipeline (R21).

Long because rows, frames and staged parts must all be delivered in the same safe order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.entries import Baseline, File
from headrace.changelog.history import BaselineWindow
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.ranges import Span
from headrace.changelog.reader import LogBatch, LogReader
from headrace.changelog.schema import TableSchema
from headrace.deadletters.hold import (
    Held,
    HeldChanges,
    Segments,
    baseline_dead_letters,
    beyond,
    keep,
    parked_in,
    without,
)
from headrace.deadletters.letter import NewDeadLetter
from headrace.deadletters.store import DeadLetterStore, Figures, open_store
from headrace.errors import (
    BadTransform,
    EvaluationTimeout,
    NotRunning,
    RefusedRow,
    RowRefused,
    RowsRefused,
    TargetError,
    UnknownValue,
)
from headrace.pipeline.batch import (
    BatchFacts,
    GivesFrames,
    LoadedRows,
    PreparedPipeline,
    SegmentGroup,
)
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.failed_rows import limit_refused, names_no_row
from headrace.pipeline.result import Failure, JobResult, RowReference
from headrace.runtime.counters import DeliveryReport, Received
from headrace.runtime.model import Load, Member, TableState
from headrace.runtime.run_context import RunContext
from headrace.runtime.store import Intent
from headrace.storage.killpoints import (
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
    FrameBatch,
    Loading,
    StagesFrames,
    StagesRows,
    TakesFrames,
    Target,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# --- the rows of one table ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """One table's share of a batch, in the form that the target takes."""

    rows: pa.Table
    truncate: RowReference | None = None
    dead_letters: tuple[NewDeadLetter, ...] = ()
    failed: int = 0
    """Changes that could not be computed; one that a later truncate covers has no dead letter."""

    staged: object = None
    """What the target made of the rows on the executors; `rows` is empty then."""

    check: Callable[[], None] | None = None
    """As in `JobResult`."""


def target_batch(
    batch_id: str,
    epoch: int,
    first: Position,
    last: Position,
    computed: Mapping[str, ComputedRows],
) -> Batch:
    """Return computed tables as the batch that a target takes."""
    return Batch(
        id=batch_id,
        epoch=epoch,
        first=first,
        last=last,
        tables={table: each.rows for table, each in computed.items()},
        truncates={
            table: Position(epoch, *each.truncate)
            for table, each in computed.items()
            if each.truncate is not None
        },
        staged={t: each.staged for t, each in computed.items() if each.staged is not None},
    )


class TableJobs:
    """
    Computes batches and baselines of one table at a time, by jobs of the pipeline's runner.

    Used by `Delivery` and by replay. It stores nothing: dead letters are returned.
    """

    def __init__(
        self, log: LogReader, prepared: PreparedPipeline, *, every_change: bool = False
    ) -> None:
        self.count = 0
        """Jobs that were run."""
        self.direct = 0
        """Batches that were computed without a job."""
        self.abandoned = 0
        """Direct batches that were given up because a row took too long."""
        self._log = log
        self._prepared = prepared
        self._every_change = every_change

    def changes(
        self,
        member: Member,
        batch: LogBatch,
        held: Held,
        since: Position = ORIGIN,
        window: BaselineWindow | None = None,
        part: Span | None = None,
    ) -> ComputedRows:
        """
        Run one table's job for a batch; changes that fail or are held are parked.

        Changes up to `since`, those that `window` says are in the baseline, and those outside
        `part` are left out.
        """
        files = batch.files_of(member.table)
        if not files:
            return ComputedRows(member.nothing)
        dead_letters: tuple[NewDeadLetter, ...] = ()
        segments: Segments | None = None
        parts = self.parts(member, files)
        facts = BatchFacts.of(files, batch.first, batch.last, every_change=self._every_change)
        if held or window is not None or part is not None:
            segments = self.segments(batch, files, window, part)
            left_out, dead_letters = self._left_out(segments, held)
            if part is not None and len(left_out) >= facts.rows:
                return ComputedRows(member.nothing, None, dead_letters)
            facts = replace(facts, without=left_out)
        try:
            result = self._prepared.rows(parts, facts)
        except EvaluationTimeout:
            self.abandoned += 1
            raise
        if result.direct:
            self.direct += 1
        else:
            self.count += 1
        if batch.first <= since:
            result = _beyond(result, (since.commit, since.ordinal))
        rows = result.rows
        if result.failures:
            segments = segments or self.segments(batch, files, window, part)
            parked = parked_in(segments, held, result.failures, self._log.lineage or "")
            rows, dead_letters = without(rows, parked.references), parked.dead_letters
        return ComputedRows(
            rows, result.truncate, dead_letters, len(result.failures), check=result.check
        )

    def baseline(self, parts: Sequence[SegmentGroup]) -> Iterator[LoadedRows]:
        """Yield the rows of a baseline; failures refer to (file, row) of the whole baseline."""
        before = 0
        for part in parts:
            for loaded in self._prepared.baseline(part):
                self.count += 1
                yield replace(loaded, failures=tuple(within_baseline(loaded.failures, before)))
            before += len(part.paths)

    def refuse(
        self,
        computed: ComputedRows,
        refused: Sequence[RefusedRow],
        segments: Segments,
        held: Held,
    ) -> ComputedRows:
        """Return the rows without refused ones and later ones of their keys, which are parked."""
        commits, ordinals = (computed.rows.column(at) for at in (1, 2))
        failures = [
            Failure((commits[row].as_py(), ordinals[row].as_py()), each.code, each.facts)
            for row, each in zip(_indexes(refused), refused, strict=True)
        ]
        parked = parked_in(segments, held, failures, self._log.lineage or "")
        rows = without(computed.rows, parked.references)
        return replace(computed, rows=rows, dead_letters=parked.dead_letters)

    def refuse_loaded(
        self, member: Member, files: Sequence[File], rows: pa.Table, refused: Sequence[RefusedRow]
    ) -> list[Failure]:
        """
        Return refused rows of a baseline as failures.

        Its rows come without their reference. That is found by the key, which no step changes.
        """
        keys = rows.select(list(member.output.key)).take(_indexes(refused))
        wanted = dict(
            zip((repr([*key.values()]) for key in keys.to_pylist()), refused, strict=True)
        )
        found = []
        for number, file in enumerate(files):
            names = self._log.schema(file.table, file.schema).names
            after = self._log.rows(file).column("after")
            columns = (pc.struct_field(after, names.index(name)) for name in member.input.key)
            for row, key in enumerate(zip(*(each.to_pylist() for each in columns), strict=True)):
                if (one := wanted.get(repr([*key]))) is not None:
                    found.append(Failure((number, row), one.code, one.facts))
        if len(found) != len(refused):
            raise RowRefused(
                "The target refused a row that has no key to know it by", table=member.table
            )
        return found

    def parts(self, member: Member, files: Sequence[File]) -> list[SegmentGroup]:
        """Return the files by schema version, each verified before Spark reads it."""
        log = self._log
        by_schema: dict[int, list[File]] = {}
        for file in files:
            # Spark would read a damaged file as far as it goes; the index has its checksum.
            log.verify(file)
            if file.unsent:
                refuse_unknown(log, file, self._prepared, member.input)
            by_schema.setdefault(file.schema, []).append(file)
        return [
            SegmentGroup(
                log.schema(files[0].table, schema_id),
                tuple(log.path(file) for file in of_schema),
                tuple(file.rows for file in of_schema),
                sum(file.marked for file in of_schema),
                member.input,
                tuple(file.bytes for file in of_schema),
            )
            for schema_id, of_schema in by_schema.items()
        ]

    def segments(
        self,
        batch: LogBatch,
        files: Sequence[File],
        window: BaselineWindow | None = None,
        part: Span | None = None,
    ) -> Segments:
        """Return one table's files of a batch, to be read on the driver if need be."""
        return Segments(self._log, batch.epoch, files, window, self._every_change, part)

    def window(self, table: str, baseline: int, batch: LogBatch) -> BaselineWindow | None:
        """Return which changes of a batch the baseline's rows may hold; None if it holds none."""
        window = self._log.window(table, baseline)
        return window if window is not None and window.overlaps(batch.first) else None

    def _left_out(
        self, segments: Segments, held: Held
    ) -> tuple[frozenset[RowReference], tuple[NewDeadLetter, ...]]:
        """Return the changes that a job must not read, and the dead letters of held ones."""
        known = segments.known()
        if not held:
            return known, ()
        parked = parked_in(segments, held, (), self._log.lineage or "")
        return known | parked.references, parked.dead_letters


def _beyond(result: JobResult, reference: RowReference) -> JobResult:
    """
    Return what a batch that begins before F adds to the baseline.

    Changes up to F are in its rows. Applying them again is only harmless if all of them can be
    computed: a failed one would leave an earlier state of its row.
    """
    truncate = result.truncate
    return replace(
        result,
        rows=beyond(result.rows, reference),
        truncate=truncate if truncate is not None and truncate > reference else None,
        failures=tuple(failure for failure in result.failures if failure.reference > reference),
    )


def refused_rows(error: RowsRefused, given: Mapping[str, pa.Table]) -> dict[str, list[RefusedRow]]:
    """Return refused rows by table; raise `TargetError` if the target was not given one of them."""
    if not error.rows:
        raise names_no_row() from error
    found: dict[str, list[RefusedRow]] = {}
    for each in error.rows:
        count = given[each.table].num_rows if each.table in given else 0
        if not (isinstance(each.row, int) and 0 <= each.row < count):
            named: dict[str, Any] = {"row": each.row} if isinstance(each.row, int) else {}
            raise TargetError(
                "The target refused a row that it was not given", table=each.table, **named
            ) from error
        found.setdefault(each.table, []).append(each)
    return found


def _indexes(refused: Sequence[RefusedRow]) -> list[int]:
    """Return the indexes of rows that `refused_rows` has checked."""
    return [each.row for each in refused if isinstance(each.row, int)]


def within_baseline(failures: Sequence[Failure], before: int) -> list[Failure]:
    """Return failures of a part with their file counted from the baseline's first file."""
    return [
        replace(failure, reference=(failure.reference[0] + before, failure.reference[1]))
        for failure in failures
    ]


def refuse_unknown(
    log: LogReader, file: File, prepared: PreparedPipeline, schema: TableSchema
) -> None:
    """
    Raise `UnknownValue` if a change of a segment lacks a value that the pipeline needs.

    The value would become null at the target. A column that the pipeline drops, and that no
    step reads, may be missing.
    """
    if not file.unsent:
        return
    rows = log.rows(file)
    lacking = {number for each in rows["_unsent"].drop_null().to_pylist() for number in each}
    if unknown := lacking & prepared.needs(schema):
        raise UnknownValue(
            "A value that did not change was not sent by the source",
            table=file.table,
            columns=[column.name for column in schema.columns if column.field in unknown],
        )


# --- delivery -------------------------------------------------------------------------------------

T = TypeVar("T")

_ALL = 1 << 40
"""No limit: an intended batch is cut at the same position again."""


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
        self._jobs = TableJobs(context.log, prepared, every_change=traits.every_change)
        self.tried = ORIGIN
        """The position that a durable target may have: a write without an answer may be done."""
        self.dead_letters_stale = False
        """Whether a superseded engine has written dead letters since they were read (R31)."""
        self._checks: list[Callable[[], None]] = []
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
        log = self._context.log
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
        if self.intends:
            self._intend(start, batch)
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
        self.report.batch_seconds.observe(context.clock() - began)
        times = context.flush_times(batch.entries[1])
        if times is not None:
            self.report.hop(batch.begun / 1_000_000, *times, computed_at)

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
        held = self._held(member) if self.dead_letters.written else {}
        return self._jobs.changes(member, batch, held)

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
                self._keep(new if load is None else self.dead_letters.not_emptied(new))
                computed[member.table] = rest

    def _held_in(
        self, member: Member, batch: LogBatch, load: Load | None
    ) -> tuple[Segments, Mapping[bytes, Position]]:
        """Return a table's changes of a batch, and the keys that are held in them."""
        files = batch.files_of(member.table)
        if load is None:
            return self._jobs.segments(batch, files), self._held(member)
        window = None if self._keyed else self._jobs.window(member.table, load.baseline, batch)
        held = self.dead_letters.held(member.table, since=load.first, baseline=load.baseline)
        return self._jobs.segments(batch, files, window), held

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
        self.counters.recall(store.counts(self.name))
        store.count_with(self.counters)
        if self._target.traits.durable:
            self.tried = self._context.log.end

    def open(self) -> None:
        """Read the dead letters of the previous run."""
        context = self._context
        self._dead_letters, self._records = open_store(
            context.files, self.name, context.wall, self._pipeline.on_error, self._records
        )

    def reopen_dead_letters(self) -> None:
        """Read dead letters that another engine wrote; raise if that engine is the newer one."""
        if self.dead_letters_stale:
            self._context.check()
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

    def _held(self, member: Member) -> dict[bytes, Position]:
        if member.state != TableState.RELOADING:
            return self.dead_letters.held(member.table)
        # Dead letters of the baseline that is being loaded are for other rows than the table has.
        # Those of its own baseline count, whatever number the new one must exceed.
        return self.dead_letters.held(member.table, newest=max(member.newer_than, member.baseline))

    def _keep(self, new: Sequence[NewDeadLetter]) -> None:
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

    def supersede_dead_letters(self, member: Member, first: Position, baseline: int) -> None:
        """Clear dead letters that a newer baseline covers, and release their keys (R30)."""
        self._context.check_run()
        self.dead_letters.clear(member.table, first, "reload", keep_baseline=baseline)

    def drop_dead_letters(self) -> None:
        """Clear all dead letters: the pipeline was dropped, and holds no keys."""
        if self._dead_letters is not None:
            self._dead_letters.drop()

    # -- baselines --------------------------------------------------------------------

    def load(self, member: Member, baseline: Baseline, first: Position, loading: Loading) -> None:
        """Load a baseline's rows into the target; readers do not see them yet."""
        self._disown(member)
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
            refused += self._load_rows(member, baseline, loading, loaded.rows, len(refused))
            failures += loaded.failures
            taken += loaded.rows.num_rows
            self.report.loaded(baseline, taken - len(refused))
        self._keep_of_baseline(baseline, [*failures, *refused], first)
        self.report.baseline(baseline)

    def give_baseline(self, member: Member, baseline: Baseline, first: Position) -> None:
        """Pass a baseline's rows to the user's function, in pieces."""
        assert self._giving is not None
        self._disown(member)
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
        received = self._received([member], batch, catching_up=True)
        held = self.dead_letters.held(member.table, since=load.first, baseline=load.baseline)
        # With one row per key a repeated change is harmless; others must not get commits that
        # the baseline contains (R11).
        window = None if self._keyed else self._jobs.window(member.table, load.baseline, batch)
        computed = self._jobs.changes(member, batch, held, load.first, window)
        self._keep(self.dead_letters.not_emptied(computed.dead_letters))
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

    def _keep_of_baseline(
        self, baseline: Baseline, failures: Sequence[Failure], first: Position
    ) -> None:
        if failures:
            log = self._context.log
            new = baseline_dead_letters(log, baseline.files, failures, baseline.baseline, first)
            self._keep(new)

    # -- frames, and rows that executors prepare --------------------------------------

    @property
    def takes_frames(self) -> bool:
        """Whether the target takes DataFrames instead of rows."""
        return self._giving is not None

    def _give(self, giving: FrameDelivery, taking: Sequence[Member], batch: LogBatch) -> Position:
        """Pass each table's share to the user's function as a frame."""
        for member in taking:
            files = batch.files_of(member.table)
            if not files:
                continue
            window = self._jobs.window(member.table, member.baseline, batch)
            segments = Segments(self._context.log, batch.epoch, files, window)
            held = self._held(member)
            parked = giving.changes(member, batch, self._jobs.parts(member, files), segments, held)
            self._jobs.count += 1
            self._keep(parked.dead_letters)
            if (emptied := segments.truncated_at()) is not None:
                self._context.check_run()
                self.dead_letters.clear(member.table, emptied, "truncate")
        return batch.last

    def _stages(self, files: Sequence[File]) -> bool:
        """Whether executors prepare these rows, without sending them to the driver."""
        return self._staging is not None and self._staging.wants(sum(file.rows for file in files))

    def _stage(self, member: Member, batch: LogBatch) -> ComputedRows:
        """Have executors prepare one table's share; changes that fail are parked."""
        assert self._staging is not None
        files = batch.files_of(member.table)
        segments = self._jobs.segments(batch, files)
        parts, held = self._jobs.parts(member, files), self._held(member)
        staged, emptied, parked = self._staging.changes(member, batch, parts, segments, held)
        self._jobs.count += 1
        truncate = None if emptied is None else (emptied.commit, emptied.ordinal)
        return ComputedRows(member.nothing, truncate, parked.dead_letters, staged=staged)


# --- frames for a user's function -----------------------------------------------------------------


class FrameDelivery:
    """
    Passes frames to the user's function of one pipeline.

    `check` raises if the run was abandoned: nothing may reach the target any more. `keep` stores
    the dead letters of rows that failed or were refused, before the target is called without them.
    """

    def __init__(
        self,
        name: str,
        target: TakesFrames,
        prepared: GivesFrames,
        check: Callable[[], None],
        keep: Callable[[Sequence[NewDeadLetter]], None] = lambda new: None,
    ) -> None:
        self._name = name
        self._target = target
        self._prepared = prepared
        self._check = check
        self._keep = keep

    def baseline(
        self,
        member: Member,
        number: int,
        first: Position,
        parts: Sequence[SegmentGroup],
        keep: Callable[[Sequence[Failure]], None] = lambda failures: None,
    ) -> list[Failure]:
        """
        Pass a baseline's rows, in pieces; return those that cannot be computed or were refused.

        These go to `keep` before a piece comes again without them.
        """
        given = before = files = 0
        table = member.table

        def take(frame: DataFrame, piece: int) -> None:
            nonlocal given
            given = before + piece  # the pieces of each part are counted from 1
            stem = f"{self._name}/{table}/baseline-{number}/{given}"
            key = member.output.key
            about = FrameBatch(stem, self._name, table, first, first, number, given, key)
            self._check()
            self._target.write_frame(frame, about)
            reach(EFFECT_DONE)

        def blocked(found: Sequence[Failure]) -> frozenset[RowReference]:
            keep(within_baseline(found, files))
            return frozenset()  # the changes that follow are not part of a baseline

        failures: list[Failure] = []
        for part in parts:
            found = self._prepared.give_baseline(part, take, blocked)
            failures += within_baseline(found, files)
            files += len(part.paths)
            before = given
        return failures

    def changes(
        self,
        member: Member,
        batch: LogBatch,
        parts: Sequence[SegmentGroup],
        segments: Segments,
        held: Held,
    ) -> HeldChanges:
        """Pass one table's share of a batch; return the changes that were parked."""
        lineage = segments.log.lineage or ""
        parked = parked_in(segments, held, (), lineage) if held else HeldChanges()
        seen = segments.known()
        if batch.first <= member.reached:
            seen |= segments.upto(member.reached)  # they are in the baseline that it received

        def blocked_by(failures: Sequence[Failure]) -> frozenset[RowReference]:
            nonlocal parked
            parked = parked_in(segments, held, failures, lineage)
            self._keep(parked.dead_letters)
            # Changes before a truncate have no dead letters, but they fail all the same.
            return seen | parked.references | {failure.reference for failure in failures}

        about = FrameBatch(
            # With the baseline: after a reload the same range is another batch.
            f"{self._name}/{member.table}/{member.baseline}/{batch.first}/{batch.last}",
            self._name,
            member.table,
            batch.first,
            batch.last,
            key=member.output.key,
        )
        facts = BatchFacts.of(segments.files, batch.first, batch.last)
        facts = replace(facts, without=seen | parked.references)

        def take(frame: DataFrame) -> None:
            self._check()
            self._target.write_frame(frame, about)

        self._prepared.give(parts, facts, blocked_by, take)
        return parked


# --- frames that executors prepare ----------------------------------------------------------------


class StagedBatches:
    """Stages frames for the target of one pipeline. Only for the run's thread."""

    def __init__(
        self, name: str, target: StagesFrames, prepared: GivesFrames, check: Callable[[], None]
    ) -> None:
        self._target = target
        self._giving = FrameDelivery(name, self, prepared, check)
        self._loading: StagesRows | None = None
        self._emptied: Position | None = None
        self._staged: object = None

    def wants(self, rows: int) -> bool:
        """Whether this number of rows is too large for the driver."""
        return rows >= self._target.staged_from

    def changes(
        self,
        member: Member,
        batch: LogBatch,
        parts: Sequence[SegmentGroup],
        segments: Segments,
        held: Held,
    ) -> tuple[object, Position | None, HeldChanges]:
        """Stage one table's share of a batch; return it, its last truncate, and parked changes."""
        self._loading, self._emptied, self._staged = None, segments.truncated_at(), None
        parked = self._giving.changes(member, batch, parts, segments, held)
        return self._staged, self._emptied, parked

    def baseline(
        self,
        member: Member,
        number: int,
        first: Position,
        parts: Sequence[SegmentGroup],
        loading: StagesRows,
    ) -> list[Failure]:
        """Stage a baseline's rows; return those that cannot be computed."""
        self._loading = loading
        return self._giving.baseline(member, number, first, parts)

    def write_frame(self, frame: DataFrame, batch: FrameBatch) -> None:
        """Take a frame; the same frame without failed rows replaces it."""
        try:
            if self._loading is not None:
                self._loading.stage(frame, batch.piece or 0)
            else:
                epoch = batch.first.epoch
                self._staged = self._target.stage(batch.table, frame, epoch, self._emptied)
        except RowsRefused as error:
            raise TargetError(
                "The target refused rows that executors prepare",
                table=batch.table,
                remedy="A target that implements StagesFrames takes every row of a frame. To refuse"
                " rows, do not implement it, and raise RowsRefused in write.",
            ) from error


def staged_batches(
    name: str, target: Target, prepared: PreparedPipeline, check: Callable[[], None]
) -> StagedBatches | None:
    """Return the staging of a pipeline; None if its target or the runner cannot stage."""
    if isinstance(target, StagesFrames) and isinstance(prepared, GivesFrames):
        return StagedBatches(name, target, prepared, check)
    return None


def stages(loading: Loading) -> StagesRows | None:
    """Return the loading if frames can be staged for it, else None."""
    return loading if isinstance(loading, StagesRows) else None
