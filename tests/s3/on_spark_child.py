"""
An engine whose log lies on S3, in a process of its own with its own Spark, that may be killed.

`python -m tests.s3.on_spark_child FOLDER PLACE` follows the bank in the folder, says `ready`, and
answers each line with `right`, or with what is wrong: `check` compares a table in memory and one
of Delta with the bank, `spare` looks at what a failing row leaves of a baseline, `read` and
`stream` bring the log's changes to the bank's rows by `format("headrace")`.

With `without` behind the place, a Spark that has no connector runs in the process before: what
the engine raises then is said, and its remedy.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.errors import HeadraceError
from headrace.pipeline.definition import DeadLetters
from headrace.spark_session.errors import running
from headrace.spark_session.session import start_session
from tests.pipeline.lake.engine_stories import LONG, Bank, read, seen
from tests.pipeline.lake.kinds import KINDS

FAILS = 13
"""The account whose row cannot be computed in one of the pipelines."""


class Child:
    """The engine, its targets, and the answers to commands."""

    def __init__(self, folder: Path, place: str) -> None:
        self.folder = folder
        self.place = place
        self.bank = Bank(folder)
        self.lake = folder / "lake"
        self.memory, self.spared = hr.memory(), hr.memory()
        source = hr.sqlite(self.bank.path, name="bank")
        self.engine = hr.Engine(
            hr.Pipeline(source, "accounts", self.memory, name="memory"),
            hr.Pipeline(
                source,
                "accounts",
                # Executors prepare every batch: what they write lies on S3 meanwhile.
                hr.table(path=str(self.lake), staged_from=1),
                name="lake",
            ),
            hr.Pipeline(
                source,
                "accounts",
                self.spared,
                name="spared",
                transforms=[hr.derive(share=f"100 div (id - {FAILS})")],
                on_error=DeadLetters(max_per_batch=1_000, max_keys=1_000),
            ),
            data=self.bank.data,
            log=hr.log(storage=place),
        )

    @property
    def spark(self) -> Any:
        runner = self.engine._state.spark
        assert runner is not None
        return runner.spark

    def check(self) -> None:
        assert seen(self._equal), "a table is another"

    def _equal(self) -> bool:
        rows = self.bank.rows()
        try:
            with running():
                there = read(KINDS["delta"], self.spark, self.lake)
        except HeadraceError:
            return False
        return there == rows and sorted(map(_values, self.memory.all())) == rows

    def spare(self) -> None:
        ids = {row[0] for row in self.bank.rows()} - {FAILS}
        assert seen(lambda: {row["id"] for row in self.spared.all()} == ids), "other rows"
        assert [each.key for each in self.engine.dead_letters("spared")]

    def read(self) -> None:
        reader = self.spark.session.read.format("headrace").option("table", "accounts")
        for log in (self.place, str(self.bank.data)):
            frame = reader.option("log", log).option("startingPosition", "baseline").load()
            assert seen(partial(self._is_bank, frame))
        few = reader.option("columns", "id").option("where", "money < 0 or money >= 0").load()
        assert few.columns[0] == "id"
        assert few.count() == frame.count()

    def _is_bank(self, frame: Any) -> bool:
        return _folded(frame.collect()) == self.bank.rows()

    def stream(self) -> None:
        stream = (
            self.spark.session.readStream.format("headrace")
            .option("table", "accounts")
            .option("log", self.place)
            .option("startingPosition", "baseline")
            .option("reader", "followed")
            .load()
        )
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(self.folder / "streamed"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(LONG)
        rows = self.spark.session.read.parquet(str(self.folder / "streamed")).collect()
        rows.sort(key=lambda row: (row["_position"], row["_change_type"] != "delete"))
        assert _folded(rows) == self.bank.rows()


def _values(row: Any) -> tuple[object, ...]:
    return row["id"], row["owner"], row["money"]


def _folded(changes: Iterable[Any]) -> list[tuple[object, ...]]:
    """Return the rows that changes, in their order, leave."""
    rows: dict[object, tuple[object, ...]] = {}
    for change in changes:
        if change["_change_type"] == "delete":
            rows.pop(change["id"], None)
        else:
            rows[change["id"]] = _values(change)
    return sorted(rows.values())


def follow(folder: Path, place: str) -> None:
    child = Child(folder, place)
    with child.engine as engine:
        say("ready" if engine.await_ready(LONG) else "not ready")
        for line in sys.stdin:
            command: Callable[[], None] = getattr(child, line.strip())
            try:
                command()
            except Exception:  # noqa: BLE001  # It is told to whoever asked.
                say(repr(traceback.format_exc()))
            else:
                say("right")


def without(folder: Path, place: str) -> None:
    spark = start_session(folder / "other")
    try:
        with Child(folder, place).engine:
            say("started")
    except HeadraceError as error:
        say(repr([error.code, error.message, error.remedy]))
    finally:
        spark.stop()


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    (without if sys.argv[3:] == ["without"] else follow)(Path(sys.argv[1]), sys.argv[2])
