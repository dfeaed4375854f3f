"""A baseline on its way into a table of a lake; see `staging` and `switching`."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.pipeline.lake.emptying import since_emptied
from headrace.pipeline.lake.net import fresh, net
from headrace.pipeline.lake.rows import first_of, net_rows, own_columns, told_rows
from headrace.pipeline.lake.staging import Staging
from headrace.pipeline.lake.statements import value
from headrace.pipeline.lake.table import LakeTable
from headrace.targets.target import BaselineId, Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableLoading:
    """Rows beside the table, in files, until one commit makes them the table."""

    def __init__(self, table: LakeTable, baseline: BaselineId) -> None:
        self._table = table
        self._baseline = baseline
        self._shape = table.shape
        self._staging = Staging(table.staging_folder.within(uuid.uuid4().hex), table.shape)
        # Without a baseline there are changes alone, and a table of changes keeps each of them;
        # so it does where no key tells which row of the baseline a change is of.
        self._tells = self._shape.mode == "append" and not (baseline and self._shape.key)
        self._reached = ORIGIN

    def write(self, rows: pa.Table) -> None:
        columns = own_columns(rows, self._shape, start=0)
        self._staging.rows(pa.table(columns, names=[value(at) for at in range(len(columns))]))

    def stage(self, frame: DataFrame, piece: int) -> None:
        self._staging.piece(piece, self._table.stage_rows(frame, self._staging.folder))

    def catch_up(self, batch: Batch) -> None:
        # What came before is told already: batches may begin anywhere before.
        rows = fresh(batch.tables[self._shape.schema.table], batch.epoch, self._reached)
        emptied = batch.truncates.get(self._shape.schema.table)
        if emptied is not None and emptied <= self._reached:
            emptied = None
        self._reached = max(self._reached, batch.last)
        if self._tells:
            self._staging.began = self._staging.began or first_of(batch, rows, emptied)
            now = self._table.time()
            self._staging.told(told_rows(rows, self._shape, batch.epoch, emptied, now))
            return
        if emptied is not None:
            self._staging.forget()
            rows = since_emptied(rows)
        if rows.num_rows:
            found = net(rows, self._shape.schema, self._shape.key)
            self._staging.changes(net_rows(found, self._shape))

    def switch(self, at: Position) -> None:
        self._table.switch(self._staging, at, self._baseline)
        self._staging.forget()

    def discard(self) -> None:
        self._staging.forget()
