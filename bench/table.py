"""
Tables of a lake: what our commits cost beside those that somebody would write by hand.

The floor of a MERGE is the body of a hand-written `foreachBatch`: the same net rows from Parquet,
`UPDATE SET *` and `INSERT *`, into a table of the same rows; that of an append is `df.write`. Both
lack our number, our note and the way back to them. A number alone makes Delta look through its own
log before every commit, so an append is held against a numbered `df.write` as well.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import Result, Rounds, ratio_at_least
from bench.session import delta_session
from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.lake.target import TableTarget, table
from headrace.pipeline.result import result_schema
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.target import Batch, TargetContext

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

NAME = "orders"
SCHEMA = TableSchema(
    NAME,
    (
        Column("id", ValueType("int64"), 1),
        Column("customer", ValueType("int64"), 2),
        Column("status", ValueType("text"), 3),
        Column("total", ValueType("float64"), 4),
        Column("note", ValueType("text"), 5),
        Column("at", ValueType("timestamptz"), 6),
    ),
    key=("id",),
)
_SEED = 7


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rows: int
    batch: int
    rounds: int


FULL, QUICK = Size(1_000_000, 100_000, 5), Size(100_000, 20_000, 2)


def run(*, quick: bool) -> list[Result]:
    """Measure commits of `merge` and `append`."""
    size = QUICK if quick else FULL
    with delta_session() as (spark, folder):
        return [_merge(spark, folder, size), *_append(spark, folder, size)]


def _merge(spark: Spark, folder: Path, size: Size) -> Result:
    target, by_hand = _loaded(spark, folder, "merge", size), folder / "merge-by-hand"
    hand = spark.session.newSession()
    spark.bulk.read.format("delta").load(str(folder / "merge")).write.format("delta").save(
        str(by_hand)
    )
    rounds, chance = Rounds(), np.random.default_rng(_SEED)
    for number in range(1, size.rounds + 2):
        keys = np.sort(chance.choice(size.rows + size.batch // 10, size.batch, replace=False))
        rows = _rows(keys, number)
        staged = folder / f"merge-{number}.parquet"
        pq.write_table(rows, staged)
        began = time.perf_counter()
        target.write(_batch(rows, number))
        ours = time.perf_counter() - began
        began = time.perf_counter()
        hand.read.parquet(str(staged)).createOrReplaceTempView("batch")
        hand.sql(
            f"MERGE INTO delta.`{by_hand}` AS t USING batch AS s ON t.id = s.id"
            " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()
        _note(rounds, number, size.batch, ours, time.perf_counter() - began)
    found = rounds.result(
        "table.merge.rows_per_s", "rows/s", ratio_at_least(0.8), "a hand-written foreachBatch MERGE"
    )
    return replace(
        found, note=f"{size.batch:,} rows a batch into {size.rows:,}, spread over all", seed=_SEED
    )


def _append(spark: Spark, folder: Path, size: Size) -> list[Result]:
    target = _loaded(spark, folder, "append", size)
    plain, numbered = Rounds(), Rounds()
    for number in range(1, size.rounds + 2):
        rows = _rows(np.arange(size.batch) + number * size.batch, number)
        staged = folder / f"append-{number}.parquet"
        pq.write_table(rows, staged)
        began = time.perf_counter()
        target.write(_batch(rows, number))
        ours = time.perf_counter() - began
        for rounds, name, options in (
            (plain, "append-plain", {}),
            (numbered, "append-numbered", {"txnAppId": "bench", "txnVersion": str(number)}),
        ):
            began = time.perf_counter()
            written = spark.bulk.read.parquet(str(staged)).write.format("delta").options(**options)
            written.mode("append").save(str(folder / name))
            _note(rounds, number, size.batch, ours, time.perf_counter() - began)
    note = f"{size.batch:,} rows a batch, with four columns of ours more"
    goal = ratio_at_least(0.8)
    return [
        replace(
            plain.result("table.append.rows_per_s", "rows/s", goal, "plain df.write"), note=note
        ),
        replace(
            numbered.result(
                "table.append.numbered.rows_per_s",
                "rows/s",
                goal,
                "df.write with a number of Delta's own (txnAppId, txnVersion)",
            ),
            note=note,
        ),
    ]


def _note(rounds: Rounds, number: int, rows: int, ours: float, floor: float) -> None:
    if number > 1:  # the first compiles, on both sides
        rounds.ours.append(rows / ours)
        rounds.floor.append(rows / floor)


def _loaded(spark: Spark, folder: Path, mode: str, size: Size) -> TableTarget:
    data = folder / f"data-{mode}"
    data.mkdir()
    target = table(path=str(folder / mode), mode=mode, compact_every=0)
    target.use(TargetContext(lambda: spark, mode, Files(RealDisk(), str(data)), time.time))
    target.check({NAME: SCHEMA})
    target.open({NAME: SCHEMA}, {NAME: ORIGIN})
    loading = target.load(NAME, 1)
    loading.write(_rows(np.arange(size.rows if mode == "merge" else 0), 0))
    loading.switch(Position(1, 0))
    return target


def _rows(keys: np.ndarray[tuple[int, ...], np.dtype[np.int64]], number: int) -> pa.Table:
    count = len(keys)
    return pa.table(
        [
            pa.array(keys),
            pa.array(keys % 1000),
            pa.array(np.where(keys % 3 == number % 3, "paid", "new"), pa.utf8()),
            pa.array(keys * 0.01 + number),
            pa.array([f"order {key} of round {number}" for key in keys.tolist()], pa.utf8()),
            pa.array(np.full(count, number * 1_000_000), pa.timestamp("us", "UTC")),
        ],
        schema=SCHEMA.arrow,
    )


def _batch(rows: pa.Table, number: int) -> Batch:
    count = rows.num_rows
    columns = [
        pa.array(np.full(count, Op.UPDATE, np.int8)),
        pa.array(np.full(count, number, np.int64)),
        pa.array(np.arange(count, dtype=np.int32)),
        pa.array(np.full(count, number * 1_000_000), pa.timestamp("us", "UTC")),
    ]
    told = pa.Table.from_arrays([*columns, *rows.columns], schema=result_schema(SCHEMA))
    at = Position(1, number)
    return Batch(f"bench/{number}", 1, at, Position(1, number, count), {NAME: told})
