"""
The rows of one table: its share of a batch, or a baseline, by jobs of the pipeline's runner.

`TableJobs` computes and stores nothing: dead letters are returned. Delivery and replay use it.

`FrameDelivery` passes frames to a user's function. Nothing is collected: what the function does
with a frame is its effect. The rows of large batches and baselines are not sent to the driver: the
target receives the frame, writes parts of it in tasks, and then commits the parts that are named by
receipts (`StagedBatches`; R24, S4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.changelog.position import (
    Position,
)
from headrace.changelog.reader import LogBatch
from headrace.deadletters.hold import (
    Held,
    HeldChanges,
    Segments,
    parked_in,
)
from headrace.deadletters.letter import NewDeadLetter
from headrace.errors import (
    RowsRefused,
    TargetError,
)
from headrace.pipeline.batch import (
    BatchFacts,
    GivesFrames,
    PreparedPipeline,
    SegmentGroup,
)
from headrace.pipeline.result import Failure, RowReference
from headrace.runtime.model import Member
from headrace.storage.killpoints import (
    EFFECT_DONE,
    reach,
)
from headrace.targets.target import (
    FrameBatch,
    Loading,
    StagesFrames,
    StagesRows,
    TakesFrames,
    Target,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.entries import File
from headrace.changelog.history import BaselineWindow
from headrace.changelog.position import (
    ORIGIN,
)
from headrace.changelog.ranges import Span
from headrace.changelog.reader import SegmentReader
from headrace.changelog.schema import TableSchema
from headrace.deadletters.hold import (
    beyond,
    without,
)
from headrace.errors import (
    EvaluationTimeout,
    RefusedRow,
    RowRefused,
    UnknownValue,
)
from headrace.pipeline.batch import (
    LoadedRows,
)
from headrace.pipeline.failed_rows import names_no_row
from headrace.pipeline.result import JobResult
from headrace.targets.target import (
    Batch,
)

if TYPE_CHECKING:
    pass


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
        self, log: SegmentReader, prepared: PreparedPipeline, *, every_change: bool = False
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

    def use(self, log: SegmentReader) -> None:
        """Read segments through `log` from now on."""
        self._log = log

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
        # A correction is no commit of the source's: no baseline holds it.
        window = None if batch.corrects else self._log.window(table, baseline)
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
    log: SegmentReader, file: File, prepared: PreparedPipeline, schema: TableSchema
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


# --- frames ---------------------------------------------------------------------------------------


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
