"""
A batch as one DataFrame, for a target that takes frames.

The row's columns under their names, then `_op`, `_position`, `_commit`, `_ordinal`, `_time`. By
place: a column of the row may have one of these names, too, unless whoever takes it refuses that.
Rows are in no order; `_position` and then `_op` give it: the delete of an old key stands at
the position of its row, and "delete" sorts before "insert" and "update".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.changelog.change import Op
from headrace.changelog.schema import TableSchema
from headrace.pipeline.jobs import Piece
from headrace.pipeline.literals import quoted
from headrace.pipeline.result import POSITIONS
from headrace.pipeline.scan import Shape
from headrace.pipeline.shapes import spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def as_one(parts: Sequence[tuple[Piece, DataFrame]], output: TableSchema, epoch: int) -> DataFrame:
    """Return the frames of a batch's pieces as one, in the shape of `output`."""
    made = [_changes(piece, frame, output, epoch) for piece, frame in parts]
    return reduce(lambda frame, other: frame.union(other), made)


def as_inserts(parts: Sequence[tuple[Piece, DataFrame]], output: TableSchema) -> DataFrame:
    """Return the frames of a baseline's piece as one: inserts without positions."""
    made = []
    for piece, frame in parts:
        start = 1
        if piece.shape is not Shape.BASELINE:
            # Copied with numbers for positions, which say nothing outside.
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


def _changes(piece: Piece, frame: DataFrame, output: TableSchema, epoch: int) -> DataFrame:
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
        # A delete holds its key alone: a row that left the filter still has all its values.
        name: value if name in output.key else F.when(~gone, value)
        for name, value in columns.items()
    }
    told = _struct(row, {"_op": word, **where})
    if piece.shape is not Shape.MOVES:
        return frame.select(F.inline(F.array(told)))
    at = len(POSITIONS) + len(piece.plan.output.columns)
    moved, *old = (F.col(quoted(name)) for name in frame.columns[at : at + 1 + len(output.key)])
    key = dict(zip(output.key, old, strict=True))
    left = {
        column.name: key.get(column.name, F.lit(None)).cast(spark_type(column.type.arrow))
        for column in output.columns
    }
    before = _struct(left, {"_op": F.lit("delete"), **where})
    # One pass over the files, however many keys changed.
    return frame.select(F.inline(F.when(moved, F.array(before, told)).otherwise(F.array(told))))


def _row(
    piece: Piece, frame: DataFrame, output: TableSchema, start: int
) -> Iterator[tuple[str, Column]]:
    """Yield the columns of `output`; null those that an older version does not have."""
    places = {name: at for at, name in enumerate(piece.plan.output.names, start)}
    for column in output.columns:
        at = places.get(column.name)
        value = F.lit(None) if at is None else F.col(quoted(frame.columns[at]))
        yield column.name, value.cast(spark_type(column.type.arrow))


def _struct(*columns: dict[str, Column]) -> Column:
    return F.struct(*(value.alias(name) for each in columns for name, value in each.items()))


def _position(epoch: int, commit: Column, ordinal: Column) -> Column:
    """Return the text of a position, as `str(Position(…))` gives it."""
    return F.concat(
        F.lit(f"{epoch:04x}-"),
        F.lpad(F.lower(F.hex(commit)), 16, "0"),
        F.lit("-"),
        F.lpad(F.lower(F.hex(ordinal.cast("bigint"))), 8, "0"),
    )
