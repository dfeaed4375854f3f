"""
Rows that executors prepare: each task writes one part, and returns a receipt.

Each attempt of a task writes its part under a new name, and the commit only reads the parts named
in receipts (S4). So a late task, which Spark has given up or lost, writes a file that is never read
(R24).
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.errors import BadCluster
from headrace.lake.rows import (
    LakeShape,
    Truncation,
    bounds,
    change_rows,
    ended,
    history_rows,
    net,
    net_rows,
    own_columns,
    versions,
)
from headrace.lake.sql import value
from headrace.pipeline.failed_rows import Workspace
from headrace.pipeline.foreach import OURS
from headrace.pipeline.result import result_schema, shaped
from headrace.storage.killpoints import PART_WRITTEN, reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_RECEIPT = "receipt string"
_NO_HEADRACE = "No module named 'headrace'"
_OPS = {
    "insert": Op.INSERT,
    "update": Op.UPDATE,
    "delete": Op.DELETE,
    "truncate": Op.TRUNCATE,
}


class Receipt(msgspec.Struct, frozen=True):
    """A part that was written."""

    path: str
    rows: int
    bounds: dict[str, tuple[int, int]] = {}
    """The smallest and largest value of each integer key column."""


@dataclass(frozen=True, slots=True)
class StagedParts:
    """One table's rows of a batch, prepared by executors and ready to be committed."""

    receipts: tuple[Receipt, ...]
    after: Position = ORIGIN
    """The table's position: the parts only have changes after it."""

    emptied: tuple[int, str] | None = None
    """In mode `history`: time and position of the first truncate after that."""

    @property
    def row_count(self) -> int:
        """The rows of all parts."""
        return sum(each.rows for each in self.receipts)

    @property
    def paths(self) -> list[str]:
        """The only files to read."""
        return [each.path for each in self.receipts]

    @property
    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """The smallest and largest value of each key column, over all parts."""
        found: dict[str, tuple[int, int]] = {}
        for receipt in self.receipts:
            for name, (least, most) in receipt.bounds.items():
                known = found.get(name, (least, most))
                found[name] = (min(known[0], least), max(known[1], most))
        return found


def stage_changes(
    frame: DataFrame,
    shape: LakeShape,
    folder: Workspace,
    epoch: int,
    after: Position,
    emptied: Position | None,
) -> StagedParts:
    """
    Let executors prepare the rows of a commit from the changes after `after`, with truncates.

    `emptied` is the last truncate. Modes that keep old rows also get the changes before it.
    """
    from pyspark.sql import functions as F

    beyond = max(after, emptied) if emptied is not None and shape.mode == "merge" else after
    frame = _by_index(frame, shape)
    changes = frame.where(F.col("_position") > F.lit(str(beyond)))
    found: tuple[Truncation, ...] = ()
    if shape.mode != "append":
        if shape.mode == "history" and emptied is not None and emptied > after:
            found = _emptyings(changes)
        changes = changes.where(F.col("_op") != "truncate")
    op = F.lit(None).cast("tinyint")
    for word, number in _OPS.items():
        op = F.when(F.col("_op") == word, F.lit(int(number)).cast("tinyint")).otherwise(op)
    changes = changes.select(
        op.alias("p0"),
        F.col("_commit").alias("p1"),
        F.col("_ordinal").alias("p2"),
        F.col("_time").alias("p3"),
        *(value(at) for at in range(len(shape.schema.names))),
    )
    if shape.mode != "append":
        # All changes of a key in one task, which then knows the last of them.
        by_key = (value(shape.schema.names.index(name)) for name in shape.key)
        changes = changes.repartition(*by_key)
    write = partial(_changes_part, shape, folder, epoch, found)
    first = found[0].for_history(epoch) if found else None
    return replace(_collected(changes, write), after=after, emptied=first)


def stage_rows(frame: DataFrame, shape: LakeShape, folder: Workspace) -> StagedParts:
    """Let executors write rows of a baseline, with columns named by index."""
    own = _by_index(frame, shape).drop(*OURS)
    return _collected(own, partial(_rows_part, shape, folder))


def _by_index(frame: DataFrame, shape: LakeShape) -> DataFrame:
    """Return a frame with the row's columns named by index: one may have a name of ours."""
    from pyspark.sql import functions as F

    names = frame.columns[: -len(OURS)]
    placed = frame.toDF(*(f"of{at}" for at in range(len(names))), *OURS)
    own = (names.index(name) for name in shape.schema.names)
    return placed.select(
        *(F.col(f"of{index}").alias(value(at)) for at, index in enumerate(own)), *OURS
    )


def _emptyings(frame: DataFrame) -> tuple[Truncation, ...]:
    """Return the truncates of a frame, in order: every task needs all of them."""
    from pyspark.sql import functions as F

    rows = frame.where(F.col("_op") == "truncate").select(
        "_commit", "_ordinal", F.unix_micros("_time")
    )
    return tuple(sorted(Truncation((row[0], row[1]), row[2]) for row in rows.collect()))


def _collected(frame: DataFrame, write: partial[Iterator[pa.RecordBatch]]) -> StagedParts:
    written = frame.mapInArrow(write, _RECEIPT)
    try:
        receipts = written.toArrow().column("receipt").to_pylist()
    except (PySparkException, Py4JError) as error:
        if _NO_HEADRACE not in str(error):
            raise
        # Smaller batches do not need it on executors, and may have worked so far.
        raise BadCluster(
            "Headrace is not installed on the executors, which prepare large batches of a table",
            remedy="Give executors this environment: headrace cluster pack writes an archive of"
            " it. Or raise staged_from, so that the driver prepares all batches.",
        ) from None
    return StagedParts(tuple(msgspec.json.decode(text, type=Receipt) for text in receipts))


# -- in a task -------------------------------------------------------------------------------


def _changes_part(
    shape: LakeShape,
    folder: Workspace,
    epoch: int,
    emptied: Sequence[Truncation],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write a part with the changes of some keys."""
    found = list(batches)
    if not found:
        return
    rows = shaped(pa.Table.from_batches(found), result_schema(shape.schema))
    if not rows.num_rows:
        return
    ops, commits, ordinals = (rows.column(at).to_numpy() for at in range(3))
    # The delete of an old key has the same position as its row, and must come first.
    rows = rows.take(pa.array(np.lexsort((ops != Op.DELETE, ordinals, commits))))
    within: dict[str, tuple[int, int]] = {}
    if shape.mode == "append":
        made = change_rows(rows, shape, epoch)
    elif shape.mode == "merge":
        last = net(rows, shape.schema, shape.key)
        made, within = net_rows(last, shape), bounds(last.rows, shape.schema, shape.key)
    else:
        rows = ended(rows, shape.schema, shape.key, emptied)
        kept = versions(rows, shape.schema, shape.key)
        first = emptied[0].reference if emptied else None
        made = history_rows(kept, shape, epoch, emptied=first)
        within = bounds(kept.rows, shape.schema, shape.key)
    if made.num_rows:
        name = _new_name()
        with folder.writing(name) as file:
            pq.write_table(made, file, compression="zstd")
        yield _receipt(Receipt(folder.path(name), made.num_rows, within))


def _rows_part(
    shape: LakeShape, folder: Workspace, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write rows of a baseline as they come."""
    name, count = _new_name(), 0
    filled = (batch for batch in batches if batch.num_rows)
    if (first := next(filled, None)) is None:
        return
    with folder.writing(name) as file, contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for batch in itertools.chain([first], filled):
            rows = pa.table(
                own_columns(pa.Table.from_batches([batch]), shape, start=0),
                names=batch.schema.names,
            )
            if writer is None:
                made = pq.ParquetWriter(file, rows.schema, compression="zstd")
                writer = stack.enter_context(made)
            writer.write_table(rows)
            count += batch.num_rows
    yield _receipt(Receipt(folder.path(name), count))


def _new_name() -> str:
    return f"part-{uuid.uuid4().hex}.parquet"


def _receipt(receipt: Receipt) -> pa.RecordBatch:
    reach(PART_WRITTEN)
    text = msgspec.json.encode(receipt).decode()
    return pa.RecordBatch.from_pydict(
        {"receipt": [text]}, schema=pa.schema([("receipt", pa.string())])
    )
