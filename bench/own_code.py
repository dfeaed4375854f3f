"""
What rows that fail and functions of the user's own cost.

Both take the same log through the same pipeline but for one transform, so the floor is the
pipeline without them: none of the rows bad, and the same sum as an SQL expression.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import Result, Rounds
from headrace.pipeline.definition import DeadLetters
from headrace.pipeline.steps import Transform, derive, function

if TYPE_CHECKING:
    from bench.spine import BigLog

Through = Callable[..., float]
"""Takes a log to memory with transforms and limits, and returns the seconds it took."""

BATCH = 10_000
BAD = 10


def dead_letters(log: BigLog, folder: Path, through: Through, *, quick: bool) -> Result:
    """Measure ten bad rows in every batch of ten thousand, against none."""
    rounds = Rounds()
    limits = DeadLetters(max_per_batch=BAD, max_keys=1 << 30)
    for number in range(1 if quick else 3):
        for bad, figures in ((-1, rounds.floor), (7, rounds.ours)):
            # One of a thousand ids has a text that is no number.
            text = f"case when id % {BATCH // BAD} = {bad} then 'none' else '1' end"
            seconds = through(
                log,
                folder / f"letters-{number}-{bad}",
                transforms=[derive(checked=f"cast({text} as int)")],
                on_error=limits,
                most_rows=BATCH,
                missing=log.rows // BATCH * BAD if bad >= 0 else 0,
            )
            figures.append(log.rows / seconds)
    found = rounds.result("spine.dead_letters.rows_per_s", "rows/s", None, "none of the rows bad")
    return replace(found, note=f"{BAD} bad rows in every batch of {BATCH:,}; {log.rows:,} rows")


def functions(log: BigLog, folder: Path, through: Through, *, quick: bool) -> list[Result]:
    """Measure a row function and an Arrow function, against an SQL expression."""
    steps: dict[str, Transform] = {
        "sql": derive(total="n * 3L + 1"),
        "row": function(_row, columns={"total": "bigint"}, reads=["n"]),
        "arrow": function(_arrow, columns={"total": "bigint"}, reads=["n"], batch=True),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(2 if quick else 4):
        for name, step in steps.items():
            seconds = through(log, folder / f"function-{name}-{number}", transforms=[step])
            if number:  # the first pass of each compiles code and starts the workers
                times[name].append(log.rows / seconds)
    return [
        Rounds(times[name], times["sql"]).result(
            f"spine.function.{name}.rows_per_s", "rows/s", None, "the same sum as SQL"
        )
        for name in ("row", "arrow")
    ]


def _row(row: dict[str, int]) -> dict[str, int]:
    return {"total": row["n"] * 3 + 1}


def _arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    total = pc.add(pc.multiply(batch.column("n").cast(pa.int64()), 3), 1)
    return pa.record_batch({"total": total})
