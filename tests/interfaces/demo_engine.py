"""
The demo's engine without Spark: all of it is real but the runner, and what Spark says of itself.

`python -m tests.interfaces.demo_engine` takes the arguments of `headrace demo`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from headrace.capture.source import SourceTraits
from headrace.changelog.schema import TableSchema
from headrace.cli.demo.command import build
from headrace.cli.demo.session import as_in_target
from headrace.cli.demo.shops import Shop
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError, StorageFull
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.runner import Explanation
from headrace.runtime.info import SourceInfo
from headrace.spark_session.session import SparkInfo
from tests.support.arrow_runner import ArrowPipeline, ArrowRunner, Row
from tests.support.patience import patience

EXPLANATION = Explanation(
    "orders", "job", "== Physical Plan ==\nProject (2)", 12, 14, 48.2, 3, 2, 900
)


class ShopRunner(ArrowRunner):
    """Computes the pipeline of the demo, and no other."""

    def __init__(
        self,
        blame: Collection[int] = (),
        wrong: Collection[int] = (),
        begun: threading.Event | None = None,
    ) -> None:
        """
        Orders in `blame` cannot be computed, without a cause; those in `wrong` have another status.

        `begun` is waited for, as for a Spark that starts slowly.
        """
        super().__init__(fails=self._code)
        self._blame, self._wrong, self._begun = blame, wrong, begun

    def prepare(
        self, pipeline: Pipeline, traits: SourceTraits, name: str | None = None
    ) -> ArrowPipeline:
        if self._begun is not None:
            self._begun.wait(patience())
        # PostgreSQL sends no row from before: one that is cancelled is deleted, known or not.
        return super().prepare(pipeline, replace(traits, inserts_replace=True), name)

    def _code(self, _pipeline: Pipeline, image: Row) -> str | None:
        try:
            as_in_target(image)
        except ValueError:
            return "ARITHMETIC_OVERFLOW"
        return "ARITHMETIC_OVERFLOW" if image["id"] in self._blame else None

    def _kept(self, _pipeline: Pipeline, image: object) -> bool:
        return isinstance(image, Mapping) and image["status"] != "cancelled"

    def _transformed(self, _pipeline: Pipeline, image: object, _change: Row) -> Row:
        assert isinstance(image, Mapping)
        if "qty" not in image:
            return dict(image)  # the key of a row that was deleted
        row = as_in_target(image) or {}
        return {**row, "status": "lost"} if row["id"] in self._wrong else row

    def _output(self, _pipeline: Pipeline, schema: TableSchema) -> TableSchema:
        columns = [column for column in schema.columns if column.name != "card_number"]
        number = max(column.field for column in schema.columns) + 1
        total = replace(schema.column("qty"), name="total_cents", field=number)
        return TableSchema(schema.table, (*columns, total), schema.key)

    def needs(self, pipeline: Pipeline, schema: TableSchema) -> frozenset[int]:
        return frozenset(column.field for column in schema.columns)


class ArrowEngine(Engine):
    """The engine of the demo, on a `ShopRunner`."""

    def __init__(
        self,
        shop: Shop,
        on_step: Callable[[str], None],
        *,
        spark_ui: bool = False,
        recorder: Literal["process", "thread"] = "thread",
        refuses: HeadraceError | None = None,
        fails_after: int | None = None,
        **runner: Any,
    ) -> None:
        """`start` raises `refuses`; the source fails after so many changes."""
        pipelines = build(shop, on_step)._state.pipelines
        super().__init__(
            *pipelines,
            data=shop.folder,
            on_step=on_step,
            recorder=recorder,
            runner=ShopRunner(**runner),
        )
        self.stops = 0
        self._ui = "http://127.0.0.1:4040" if spark_ui else None
        self._refuses = refuses
        self._fails_after = fails_after

    def start(self) -> None:
        if self._refuses is not None:
            raise self._refuses
        super().start()

    def stop(self) -> None:
        self.stops += 1
        super().stop()

    def sources(self) -> tuple[SourceInfo, ...]:
        found = super().sources()
        if self._fails_after is None or all(each.captured < self._fails_after for each in found):
            return found
        full = StorageFull("No room left", path="log/shop")
        return tuple(replace(each, state="failed", error=full) for each in found)

    def spark_info(self) -> SparkInfo | None:
        if not self.is_ready():
            return None
        plan = "Scan parquet → Filter → Project"
        return SparkInfo("4.2.1", "local[2]", "app-1", 12, 14, 48.2, plan, self._ui)

    def explain(self, pipeline: str) -> Explanation:
        assert pipeline == "orders"
        return EXPLANATION


def run_with_arrow() -> None:
    """Be the command line of `headrace demo`, with the recorder in a process of its own."""
    from headrace.cli.demo import command
    from headrace.cli.main import run

    arrow_build = partial(ArrowEngine, recorder="process")
    setattr(command, "build", arrow_build)  # noqa: B010 - mypy minds the assignment to a function
    sys.argv[1:1] = ["demo"]
    run()


if __name__ == "__main__":
    run_with_arrow()
