"""
Parts of a planned baseline, from the source into segments: in any process, one by one.

A part's segments are written under names that no other attempt has, and synced. They
count once the recorder names them in the index; those of an attempt that failed, or was
made twice, are swept (R20, S4).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from headrace.capture.pacing import Pacing
from headrace.capture.registry import build
from headrace.capture.source import Recordable, Shares, SourceSpec
from headrace.changelog.baseline import PART_BYTES, as_baseline
from headrace.changelog.entry import File
from headrace.changelog.schema import TableSchema
from headrace.changelog.segment import describe, segment_bytes
from headrace.storage.opening import opened


@dataclass(frozen=True, slots=True)
class Order:
    """What to copy, and where to; goes to other processes as it is."""

    source: str
    kind: str
    options: Mapping[str, object]
    table: str
    folder: str
    """Where the log keeps its segments."""

    stem: str
    schema: int
    """The number of the table's schema in the log."""

    parts: Sequence[bytes]
    at_once: int = 1
    """How many parts are read at the same time, and share what a limit allows."""

    def __repr__(self) -> str:
        # The options hold the way into a database: they are printed nowhere.
        return f"Order({self.source!r}, {self.table!r}, {self.stem!r}, {len(self.parts)} parts)"


def copy_parts(order: Order, numbers: Iterable[int]) -> Iterator[File]:
    """Copy parts one after the other, and say of each segment what the index has to know."""
    source = build(SourceSpec(order.kind, order.source, order.options), "")
    with closing(source):
        for number in numbers:
            yield from _copy_part(order, source, number)


def _copy_part(order: Order, source: Recordable, number: int) -> Iterator[File]:
    limit = source.traits.copy_rows_per_s
    # From now on: of many small parts none may count time that another one took.
    pacing = Pacing(None if limit is None else limit / order.at_once, time.monotonic())
    files = opened(order.folder)
    attempt = uuid.uuid4().hex[:12]
    gathered = _gathered(cast(Shares, source), order.parts[number], pacing)
    for count, (schema, rows) in enumerate(gathered):
        data = segment_bytes(rows)
        name = f"{order.stem}-{number + 1}-{attempt}-{count}.parquet"
        files.create(name, data, settle=False)
        yield describe(name, order.table, order.schema, schema, rows, data)


def _gathered(
    source: Shares, part: bytes, pacing: Pacing
) -> Iterator[tuple[TableSchema, pa.Table]]:
    """Yield a part's rows in the shape of segments, as many as make one."""
    waiting: list[pa.Table] = []
    size = 0
    for schema, rows, exact in source.read_part(part):
        if rows.num_rows:
            waiting.append(as_baseline(schema, rows, exact))
            # Of the rows alone: what every segment has besides is next to nothing in the file.
            size += rows.nbytes
        pacing.took(rows.num_rows, time.monotonic())
        time.sleep(pacing.rest(time.monotonic()))
        if size >= PART_BYTES:
            yield schema, pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield schema, pa.concat_tables(waiting)
