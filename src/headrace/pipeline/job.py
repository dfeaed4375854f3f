"""
One table's batch, or a piece of its baseline, as Spark jobs over all of its rows or some.

If a typed column cannot hold a value of the source, it is null, and the exact text of the value is
in the marker `_exact` under the column's field id, negative for the image before (R23f). Passing on
the null would change data silently (invariant 6), so a row whose result depends on such a value
fails. These rows are found on the driver, in the segments that have markers according to the index.

The rows of a baseline have no positions, and need none until one of them fails. Then they are
copied with segment and row numbers instead of positions, and are handled like changes.

A target that takes frames gets a batch as one DataFrame: the row's columns under their names, then
`_op`, `_position`, `_commit`, `_ordinal`, `_time`. These are identified by index: a column of the
row may have one of these names, too, unless the target refuses that. Rows are in no order. To order
them, sort by `_position` and then by `_op`: the delete of an old key has the same position as the
row, and "delete" sorts before "insert" and "update". Rows that the target refuses are looked up in
the frame it was given, so a row that was filtered out cannot be refused.

Long because rows, baselines and frames have the same marked values and the same search for rows
that fail.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StructField, StructType

from headrace.changelog.change import Op
from headrace.changelog.schema import TableSchema
from headrace.errors import (
    EvaluationTimeout,
    JobFailed,
    RefusedRow,
    RowFailed,
    StorageError,
    TargetError,
)
from headrace.pipeline.failed_rows import (
    Scratch,
    SegmentCopies,
    readable,
    references_in,
    rows_in,
)
from headrace.pipeline.plan.plan import PipelinePlan
from headrace.pipeline.plan.projection import ChangeImages
from headrace.pipeline.plan.types import arrow_type, spark_type
from headrace.pipeline.result import FUNCTION_FAILED, OUTSIDE_TYPE, POSITIONS, Failure, RowReference
from headrace.pipeline.sql import quoted
from headrace.spark_session.direct import EvaluatedRows, Evaluator, RaisedRow
from headrace.spark_session.errors import is_row_level, running
from headrace.spark_session.session import Spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# --- the job --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobInput:
    """Segments of one schema, and the plan that reads them."""

    schema: TableSchema
    plan: PipelinePlan
    paths: tuple[str, ...]
    shape: ChangeImages

    def over(self, paths: Sequence[str]) -> JobInput:
        """Return the same input over other files."""
        return replace(self, paths=tuple(paths))


class Job:
    """
    The `SplittableJob` on Spark, for one thread; for a baseline, with `copies` of segments.

    If it is `direct`, `collect` runs no job for plans that can do without.
    """

    def __init__(
        self,
        spark: Spark,
        scratch: Scratch,
        pieces: Sequence[JobInput],
        row_count: int,
        facts: Mapping[str, Any],
        *,
        first: int | None = None,
        copies: SegmentCopies | None = None,
        direct: bool = False,
    ) -> None:
        self.frame: DataFrame | None = None
        """The last frame that ran over all rows, or over all without those left out."""

        self.evaluator: Evaluator | None = None
        """What computed the rows of the last piece without a job; None if a job did."""

        self._direct = direct
        self._spark = spark
        self._scratch = scratch
        self._copies = copies
        self._pieces = pieces
        self._row_count = row_count
        self._facts = facts
        self._first = first
        """The number of the first segment of a baseline; None for changes."""

        self._causes: dict[RowReference, Mapping[str, str]] = {}
        """The expressions of suspects."""

        self._placed: list[JobInput] | None = None if first is not None else list(pieces)

    # --- all of its rows ---------------------------------------------------------------------

    def collect(self, without: frozenset[RowReference]) -> tuple[list[pa.Table], list[Failure]]:
        """
        Return the rows of each piece, and the rows that users' functions refused.

        Without a job, all rows that cannot be computed are returned as failures.

        Changes have the shape of a result; rows of a baseline have only the row's columns.
        """
        if (found := self._collect_directly(without)) is not None:
            return found
        tables, failures = [], []
        with self._but(without) as pieces:
            for piece in pieces:
                rows = self._run(piece, self._row_count)
                rows, failed = self._split(rows, piece)
                failures += failed
                tables.append(_rows_alone(rows, piece.shape) if self._is_baseline else rows)
        return tables, failures

    def frames(
        self, without: frozenset[RowReference], copies: SegmentCopies, *, placed: bool = False
    ) -> Iterator[tuple[JobInput, DataFrame]]:
        """
        Yield the frame of each piece, without these rows and without failed ones.

        If `placed`, rows of a baseline have their references as positions.
        """
        session = self._spark.fit_for(self._row_count)
        for piece in self._but_in(copies, without, placed=placed):
            with running(**self._facts):
                frame = piece.plan.frame(session, piece.paths, piece.shape)
                if piece.plan.framed:
                    # The receiver of the frame cannot detect that a row is missing.
                    rows = self._spark.collect(piece.plan.row_references(frame, piece.shape))
                    piece.plan.checked(rows, piece.shape)
                frame = piece.plan.without_receipts(frame, piece.shape)
            self.frame = frame
            yield piece, frame

    @property
    def has_own_code(self) -> bool:
        """Whether it calls functions of the user, whose rows must be checked."""
        return any(piece.plan.reports_failures or piece.plan.framed for piece in self._pieces)

    def examine(self, without: frozenset[RowReference], most: int) -> list[Failure]:
        """
        Check the results of users' functions in a separate job, for targets that take frames.

        Return at most `most` rows of each piece that functions refuse. Raises `BadFrame`, as
        `collect` does.
        """
        failures = []
        session = self._spark.fit_for(self._row_count)
        with self._but(without) as pieces:
            for piece in pieces:
                plan, shape = piece.plan, piece.shape
                if not plan.reports_failures and not plan.framed:
                    continue
                with running(**self._facts):
                    frame = plan.frame(session, piece.paths, shape)
                    if plan.framed:
                        # The columns that identify rows, and show whether all are present.
                        head = frame.columns[: 1 if shape is ChangeImages.BASELINE else 3]
                        tail = [name for name in frame.columns if name in ("_failed", "_place")]
                        frame = frame.select(*(quoted(name) for name in (*head, *tail)))
                    else:
                        frame = frame.where("_failed is not null").limit(most)
                    rows = self._spark.collect(frame)
                failures += self._split(plan.checked(rows, shape), piece)[1]
        return failures

    def outside_type(self) -> list[Failure]:
        """Return the rows that depend on a value which is stored only as exact text."""
        found = []
        for piece in self._pieces:
            schema, after = piece.schema, piece.plan.fields
            # Without filters, only the key of the image before is used.
            key = {schema.column(name).field for name in schema.key}
            before = after if piece.plan.filtered else key
            found += outside_type(piece.paths, schema, after, before, first=self._first)
        return found

    # --- some of its rows: SplittableJob -----------------------------------------------------

    def suspects(self, without: frozenset[RowReference], most: int) -> list[RowReference] | None:
        found: list[RowReference] = []
        session = self._spark.fit_for(self._row_count)
        with self._but(without, placed=True) as pieces:
            for piece in pieces:
                with running(**self._facts):
                    probe = piece.plan.probe(session, piece.paths)
                    if probe is None:
                        return None
                    rows = self._spark.collect(probe.limit(most))
                references = zip(*(rows.column(at).to_pylist() for at in (0, 1)), strict=True)
                causes = map(json.loads, rows.column(2).to_pylist())
                self._causes.update(found_ := dict(zip(references, causes, strict=True)))
                found += found_
        return found

    def cause(self, reference: RowReference) -> Mapping[str, str]:
        return self._causes.get(reference, {})

    def references(self, without: frozenset[RowReference]) -> list[RowReference]:
        paths = [path for piece in self._with_references() for path in piece.paths]
        return [each for each in references_in(paths) if each not in without]

    def fails(self, only: Sequence[RowReference]) -> str | None:
        try:
            with self._scratch.copies() as copies:
                for piece in self._with_references():
                    if paths := copies.only(piece.paths, only):
                        self._run(piece.over(paths), len(only))
        except RowFailed as error:
            return str(error.facts["condition"])
        return None

    def alone(self, references: Sequence[RowReference]) -> Mapping[RowReference, str]:
        found: dict[RowReference, str] = {}
        session = self._spark.fit_for(len(references))
        with self._scratch.copies() as copies:
            for piece in self._with_references():
                if paths := copies.only(piece.paths, references):
                    with running(**self._facts):
                        found |= piece.plan.conditions(session, paths, piece.shape)
        return found

    # --- parts -------------------------------------------------------------------------------

    def _collect_directly(
        self, without: frozenset[RowReference]
    ) -> tuple[list[pa.Table], list[Failure]] | None:
        """Return what `collect` does, computed without a job; None if that is not possible."""
        self.evaluator = None
        evaluators = (piece.plan.evaluator(piece.shape) for piece in self._pieces)
        # All or none: pieces that went different ways could not be explained.
        called = [each for each in evaluators if each is not None] if self._direct else []
        if len(called) < len(self._pieces):
            return None
        tables: list[pa.Table] = []
        failures: list[Failure] = []
        for piece, evaluator in zip(self._pieces, called, strict=True):
            rows = rows_in(piece.paths, without)
            found = self._evaluated(evaluator, rows)
            if found is None or not all(is_row_level(each.causes) for each in found.raised):
                return None
            tables.append(found.rows)
            failures += self._raised(piece, rows, found.raised)
        self.evaluator = called[-1]
        return tables, failures

    def _evaluated(self, evaluator: Evaluator, rows: pa.Table) -> EvaluatedRows | None:
        try:
            columns = for_spark(rows, evaluator.schema)
        except pa.ArrowException:
            return None
        try:
            with running(**self._facts):
                return evaluator.evaluate(columns)
        except EvaluationTimeout as error:
            at = error.facts.pop("row")
            commit, ordinal = (rows.column(name)[at].as_py() for name in ("_commit", "_ordinal"))
            error.facts.update({"commit": commit, "ordinal": ordinal, **self._facts})
            raise

    def _raised(
        self, piece: JobInput, rows: pa.Table, raised: Sequence[RaisedRow]
    ) -> Iterator[Failure]:
        """Yield the failures of a piece, each with its condition and the expression that raised."""
        if not raised:
            return
        bad = rows.take([each.row for each in raised])
        references = list(
            zip(*(bad.column(name).to_pylist() for name in ("_commit", "_ordinal")), strict=True)
        )
        probe = piece.plan.probe_evaluator()
        found = None if probe is None else self._evaluated(probe, bad)
        if found is not None:
            keys = zip(*(found.rows.column(at).to_pylist() for at in (0, 1)), strict=True)
            causes = map(json.loads, found.rows.column(2).to_pylist())
            self._causes.update(zip(keys, causes, strict=True))
        for reference, each in zip(references, raised, strict=True):
            conditions = [cause.condition for cause in each.causes if cause.condition]
            yield Failure(reference, conditions[-1], dict(self.cause(reference)))

    @property
    def _is_baseline(self) -> bool:
        return self._first is not None

    def _run(self, piece: JobInput, row_count: int) -> pa.Table:
        session = self._spark.fit_for(row_count)
        with running(**self._facts):
            self.frame = piece.plan.frame(session, piece.paths, piece.shape)
            rows = self._spark.collect(self.frame)
        return piece.plan.checked(rows, piece.shape)

    def _with_references(self) -> list[JobInput]:
        """Return pieces whose rows have references; a baseline is copied as changes."""
        if self._placed is None:
            assert self._copies is not None
            self._placed, first = [], self._first or 0
            for piece in self._pieces:
                paths = self._copies.numbered(piece.paths, first)
                self._placed.append(replace(piece.over(paths), shape=ChangeImages.AFTER))
                first += len(paths)
        return self._placed

    @contextlib.contextmanager
    def _but(
        self, without: frozenset[RowReference], *, placed: bool = False
    ) -> Iterator[Sequence[JobInput]]:
        """Yield the pieces without these rows; segments are copied if necessary."""
        if not without:
            yield self._with_references() if placed else self._pieces
            return
        with self._scratch.copies() as copies:
            yield self._but_in(copies, without, placed=placed)

    def _but_in(
        self, copies: SegmentCopies, without: frozenset[RowReference], *, placed: bool = False
    ) -> Sequence[JobInput]:
        if self._first is not None:
            # Ignore rows of other pieces of the baseline.
            end = self._first + sum(len(piece.paths) for piece in self._pieces)
            without = frozenset(each for each in without if self._first <= each[0] < end)
        if not without:
            return self._with_references() if placed else self._pieces
        return [
            piece.over(copies.without(piece.paths, without)) for piece in self._with_references()
        ]

    def _split(self, rows: pa.Table, piece: JobInput) -> tuple[pa.Table, list[Failure]]:
        """Return the rows without those that a user's function refused, and these as failures."""
        if not piece.plan.reports_failures:
            return rows, []
        refused = rows.column(rows.num_columns - 1)
        kept = rows.remove_column(rows.num_columns - 1)
        if refused.null_count == len(refused):
            return kept, []
        failures = []
        for at in pc.indices_nonzero(refused.is_valid()).to_pylist():
            facts = json.loads(refused[at].as_py())
            location = facts.pop("place", None)
            if piece.shape is ChangeImages.BASELINE:
                reference = self._numbers(piece, location)
            else:
                reference = (rows.column(1)[at].as_py(), rows.column(2)[at].as_py())
            failures.append(Failure(reference, FUNCTION_FAILED, facts))
        return kept.filter(refused.is_null()), failures

    def _numbers(self, piece: JobInput, location: str) -> RowReference:
        """Return the segment and row number for a file name and a row number in the file."""
        name, _, row = location.rpartition("/")
        names = [path.rpartition("/")[2] for path in piece.paths]
        return (self._first or 0) + names.index(name), int(row)


def _rows_alone(rows: pa.Table, shape: ChangeImages) -> pa.Table:
    """Return a baseline's rows without the columns that describe a change."""
    if shape is ChangeImages.BASELINE:
        # The first column only marks rows that passed.
        return rows.select(list(range(1, rows.num_columns)))
    # A row that does not pass may come as a delete, as it would for a change.
    passed = rows.filter(pc.equal(rows.column(0), int(Op.INSERT)))
    return passed.select(list(range(len(POSITIONS), rows.num_columns)))


# --- the rows of segments as Spark reads them -----------------------------------------------------


def for_spark(rows: pa.Table, schema: StructType) -> pa.Table:
    """Return the columns of a segment that a plan reads, with Arrow's types for those of Spark."""
    names = [field.name for field in schema]
    columns = [_column(rows.column(field.name), field.dataType) for field in schema]
    return pa.table(columns, names=names)


def _column(column: pa.ChunkedArray | pa.Array, type: DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(type, StructType):
        wanted = arrow_type(type)
        if column.type == wanted:
            return column
        if not (pa.types.is_fixed_size_binary(column.type) or pa.types.is_nested(column.type)):
            # A segment that is not of its schema: Spark reports it, and converts nothing.
            raise pa.ArrowTypeError(f"{column.type} is not {wanted}")
        return column.cast(wanted)
    fields = [_column(column.field(field.name), field.dataType) for field in type]
    return pa.StructArray.from_arrays(
        fields,
        fields=[pa.field(field.name, each.type) for field, each in zip(type, fields, strict=True)],
        mask=column.is_null(),
    )


# --- a batch as one DataFrame ---------------------------------------------------------------------


def as_one(
    parts: Sequence[tuple[JobInput, DataFrame]], output: TableSchema, epoch: int
) -> DataFrame:
    """Return the frames of a batch's pieces as one frame, in the shape of `output`."""
    made = [_changes(piece, frame, output, epoch) for piece, frame in parts]
    return reduce(lambda frame, other: frame.union(other), made)


def as_inserts(parts: Sequence[tuple[JobInput, DataFrame]], output: TableSchema) -> DataFrame:
    """Return the frames of a baseline's piece as one frame: inserts without positions."""
    made = []
    for piece, frame in parts:
        start = 1
        if piece.shape is not ChangeImages.BASELINE:
            # A copy with numbers for positions, which have no meaning for a target.
            frame = frame.where(F.col(quoted(frame.columns[0])) == int(Op.INSERT))
            start = len(POSITIONS)
        columns = dict(_row(piece, frame, output, start))
        made.append(
            frame.select(
                *(value.alias(name) for name, value in columns.items()),
                F.lit("insert").alias("_op"),
                F.lit(None).cast("string").alias("_position"),
                F.lit(None).cast("bigint").alias("_commit"),
                F.lit(None).cast("int").alias("_ordinal"),
                F.lit(None).cast("timestamp").alias("_time"),
            )
        )
    return reduce(lambda frame, other: frame.union(other), made)


def _changes(piece: JobInput, frame: DataFrame, output: TableSchema, epoch: int) -> DataFrame:
    op, commit, ordinal, time = (F.col(quoted(name)) for name in frame.columns[:4])
    gone = op == int(Op.DELETE)
    word = F.when(op == int(Op.INSERT), "insert").when(op == int(Op.UPDATE), "update")
    word = word.when(gone, "delete").otherwise("truncate")
    where = {
        "_position": _position(epoch, commit, ordinal),
        "_commit": commit,
        "_ordinal": ordinal,
        "_time": time,
    }
    columns = dict(_row(piece, frame, output, len(POSITIONS)))
    row = {
        # A delete has only its key; a row that no longer passes a filter has all its values.
        name: value if name in output.key else F.when(~gone, value)
        for name, value in columns.items()
    }
    after = _struct(row, {"_op": word, **where})
    if piece.shape is not ChangeImages.MOVES:
        return frame.select(F.inline(F.array(after)))
    at = len(POSITIONS) + len(piece.plan.output.columns)
    moved, *old = (F.col(quoted(name)) for name in frame.columns[at : at + 1 + len(output.key)])
    key = dict(zip(output.key, old, strict=True))
    left = {
        column.name: key.get(column.name, F.lit(None)).cast(spark_type(column.type.arrow))
        for column in output.columns
    }
    before = _struct(left, {"_op": F.lit("delete"), **where})
    # A single pass over the files, however many keys changed.
    return frame.select(F.inline(F.when(moved, F.array(before, after)).otherwise(F.array(after))))


def _row(
    piece: JobInput, frame: DataFrame, output: TableSchema, start: int
) -> Iterator[tuple[str, Column]]:
    """Yield the columns of `output`; null for those that an older version does not have."""
    indexes = {name: at for at, name in enumerate(piece.plan.output.names, start)}
    for column in output.columns:
        at = indexes.get(column.name)
        value = F.lit(None) if at is None else F.col(quoted(frame.columns[at]))
        yield column.name, value.cast(spark_type(column.type.arrow))


def _struct(*columns: dict[str, Column]) -> Column:
    return F.struct(*(value.alias(name) for each in columns for name, value in each.items()))


def _position(epoch: int, commit: Column, ordinal: Column) -> Column:
    """Return the text of a position, like `str(Position(…))`."""
    return F.concat(
        F.lit(f"{epoch:04x}-"),
        F.lpad(F.lower(F.hex(commit)), 16, "0"),
        F.lit("-"),
        F.lpad(F.lower(F.hex(ordinal.cast("bigint"))), 8, "0"),
    )


# --- rows of a frame that its receiver refuses ----------------------------------------------------


def refused_in(
    frame: DataFrame, refused: Sequence[RefusedRow], output: TableSchema, *, loaded: bool = False
) -> list[Failure]:
    """
    Return refused rows as failures, by their references in `frame`, which `as_one` made.

    A key stands for its first change in the frame: later ones of the key follow it. If `loaded`,
    these are rows of a baseline, which have no positions. Raises `TargetError` for a row that is
    not there.
    """
    table, key = output.table, output.key
    unknown = (int, str) if loaded else int
    for each in refused:
        if each.table not in ("", table) or isinstance(each.row, unknown):
            raise _not_given(each, table)
    by_position = [(at, each.row) for at, each in enumerate(refused) if isinstance(each.row, str)]
    by_key = [
        (at, *_key_of(each.row, key, table))
        for at, each in enumerate(refused)
        if isinstance(each.row, Mapping)
    ]
    positions = ["_position"] if by_position else []
    found: dict[int, RowReference] = {}
    for names, columns in ((by_position, positions), (by_key, [*key] if by_key else [])):
        for at, commit, ordinal in _joined(frame, names, columns, table) if names else ():
            found[at] = min(found.get(at, (commit, ordinal)), (commit, ordinal))
    failures: dict[RowReference, Failure] = {}
    for at, each in enumerate(refused):
        if at not in found:
            raise _not_given(each, table)
        failures.setdefault(found[at], Failure(found[at], each.code, each.facts))
    return [failures[reference] for reference in sorted(failures)]


def _joined(
    frame: DataFrame, names: Sequence[tuple[Any, ...]], columns: Sequence[str], table: str
) -> Iterator[tuple[int, int, int]]:
    """Yield the index of each name with commit and ordinal of its rows in the frame."""
    rows = frame.where("_op <> 'truncate'").select(
        F.col("_commit").alias("_0"),
        F.col("_ordinal").alias("_1"),
        *(F.col(quoted(name)).alias(f"_2_{at}") for at, name in enumerate(columns)),
    )
    given = StructType(
        [
            StructField("_3", IntegerType()),
            *(StructField(f"_4_{at}", rows.schema[at + 2].dataType) for at in range(len(columns))),
        ]
    )
    try:
        wanted = frame.sparkSession.createDataFrame(list(names), given)
    except (PySparkException, TypeError, ValueError, OverflowError):
        raise TargetError(
            "The target refused a row by a key of another type", table=table, key=[*columns]
        ) from None
    same = [F.col(f"_2_{at}").eqNullSafe(F.col(f"_4_{at}")) for at in range(len(columns))]
    for row in rows.join(F.broadcast(wanted), same).select("_3", "_0", "_1").collect():
        yield row[0], row[1], row[2]


def _key_of(row: Mapping[str, object], key: Sequence[str], table: str) -> list[object]:
    if not key or (missing := [name for name in key if name not in row]):
        raise TargetError(
            "The target refused a row without its position or its key",
            table=table,
            columns=missing if key else [],
            remedy="Name each row by _position, or by all columns of the key (batch.key).",
        )
    return [row[name] for name in key]


def _not_given(refused: RefusedRow, table: str) -> TargetError:
    named = f"row {refused.row}" if isinstance(refused.row, int) else refused.row
    # A key is not named: its values are part of the row.
    where = {"position": named} if isinstance(named, str) else {}
    return TargetError("The target refused a row that it was not given", table=table, **where)


# --- values that are stored only as exact text ----------------------------------------------------


def outside_type(
    paths: Sequence[str],
    schema: TableSchema,
    after: Collection[int],
    before: Collection[int],
    *,
    first: int | None = None,
) -> list[Failure]:
    """
    Return the rows that have a marker for one of these fields.

    For a baseline, `first` is the number of the first segment, and rows are referenced by
    segment and row number.
    """
    names = {column.field: column.name for column in schema.columns}
    found = []
    for number, path in enumerate(paths, first or 0):
        rows = _marked(path)
        for at, row in rows:
            fields = {field for field, _ in row["_exact"] if field in after}
            fields |= {-field for field, _ in row["_exact"] if -field in before}
            if fields:
                reference = (row["_commit"], row["_ordinal"]) if first is None else (number, at)
                found.append(Failure(reference, OUTSIDE_TYPE, {"column": names[min(fields)]}))
    return found


def _marked(path: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows of a segment that have markers, with their numbers."""
    try:
        with pq.ParquetFile(readable(path)) as file:
            rows = file.read(columns=["_commit", "_ordinal", "_exact"])
    except (OSError, pa.ArrowException, StorageError) as error:
        raise JobFailed("A segment cannot be read", file=path) from error
    numbered = rows.append_column("at", pa.array(range(rows.num_rows), pa.int64()))
    marked = numbered.filter(numbered["_exact"].is_valid()).to_pylist()
    return [(row["at"], row) for row in marked]
