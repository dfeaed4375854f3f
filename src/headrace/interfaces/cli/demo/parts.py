"""
What a run of the demo is put together from, as the demo sees it.

The real engine and target fit these, and so do small ones made for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from headrace.interfaces.cli.demo.shop import Shop
from headrace.interfaces.cli.demo.snapshot import Snapshot, Step, Summary
from headrace.interfaces.cli.demo.watch import TargetChange

if TYPE_CHECKING:
    from headrace.control.info import PipelineInfo, SourceInfo
    from headrace.pipeline.letter import DeadLetter


class Orders(Protocol):
    """The memory target, as the demo reads it."""

    def get(self, *key: object) -> Mapping[str, object] | None: ...

    def lookup_all(self, index: str, *values: object) -> Sequence[Mapping[str, object]]: ...

    def all(self) -> Iterable[Mapping[str, object]]: ...

    def count(self) -> int: ...

    def changes(self) -> Iterator[TargetChange]: ...


class SparkFacts(Protocol):
    """What the engine tells about Spark."""

    @property
    def version(self) -> str: ...
    @property
    def jobs(self) -> int: ...
    @property
    def tasks(self) -> int: ...
    @property
    def last_job_ms(self) -> float: ...
    @property
    def plan(self) -> str: ...
    @property
    def ui(self) -> str | None: ...


class Explained(Protocol):
    """What the engine tells about a pipeline's last batch; its text is the whole of it."""

    @property
    def rows_in(self) -> int: ...
    @property
    def rows_out(self) -> int | None: ...
    @property
    def last_job_ms(self) -> float: ...


class DemoEngine(Protocol):
    """The engine, as the demo uses it."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def await_ready(self, timeout: float | None = None) -> bool: ...

    def sources(self) -> tuple[SourceInfo, ...]: ...

    def pipelines(self) -> tuple[PipelineInfo, ...]: ...

    def spark_info(self) -> SparkFacts | None: ...

    def explain(self, pipeline: str) -> Explained: ...

    def dead_letters(self) -> tuple[DeadLetter, ...]: ...


class View(Protocol):
    """Shows a run; entered once around all of it."""

    def __enter__(self) -> View: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def step(self, step: Step) -> None: ...

    def show(self, snapshot: Snapshot) -> None: ...

    def summary(self, summary: Summary) -> None: ...


Build = Callable[[Shop, Callable[[str], None]], tuple[DemoEngine, Orders]]
"""From the shop and a listener for steps to an engine."""
