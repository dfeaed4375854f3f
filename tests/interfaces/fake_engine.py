"""
An engine without log and Spark, for the demo's own tests.

It reads the whole shop again and again and gives the differences as changes: slow, simple
and right, and of the same shape as the real one. `python -m tests.interfaces.fake_engine`
takes the arguments of `headrace demo` and runs the command line with it.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.changelog.position import Position
from headrace.control.hops import Hop
from headrace.control.info import PipelineInfo, SourceInfo
from headrace.errors import HeadraceError, StorageFull, UnknownTable
from headrace.interfaces.cli.demo.compare import expected_rows

Row = Mapping[str, object]


@dataclass(frozen=True)
class FakeChange:
    op: str
    key: tuple[object, ...]
    before: Row | None
    after: Row | None
    position: Position


@dataclass(frozen=True)
class FakeSpark:
    version: str = "4.2.1"
    jobs: int = 12
    tasks: int = 14
    last_job_ms: float = 48.2
    plan: str = "Scan parquet → Filter → Project"
    master: str = "local[2]"


class FakeOrders:
    """The target: rows by id."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.shown = False
        self.queue: queue.Queue[FakeChange | None] = queue.Queue()

    def get(self, *key: object) -> Row | None:
        (order,) = key
        return self.rows.get(order) if isinstance(order, int) else None

    def lookup_all(self, index: str, *values: object) -> Sequence[Row]:
        assert index == "by_customer"
        return [row for row in list(self.rows.values()) if row["customer_id"] == values[0]]

    def all(self) -> Iterator[Row]:
        return iter(list(self.rows.values()))

    def count(self) -> int:
        if not self.shown:
            raise UnknownTable("Not yet")
        return len(self.rows)

    def changes(self) -> Iterator[FakeChange]:
        while (change := self.queue.get()) is not None:
            yield change


@dataclass
class FakeEngine:
    """Copies the shop's orders every 20 ms."""

    shop: Path
    on_step: Callable[[str], None]
    start_seconds: float = 0.2
    refuses: HeadraceError | None = None
    """Raised by `start`."""

    fails_after: int | None = None
    """Changes after which the source reports a full disk."""

    plant: Callable[[dict[int, Row]], None] = lambda rows: None
    """Called with the target's rows after every pass: to make some of them wrong."""

    orders: FakeOrders = field(default_factory=FakeOrders)
    captured: int = 0
    applied: int = 0
    state: str = "connecting"
    stops: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    copier: threading.Thread | None = None

    def start(self) -> None:
        if self.refuses is not None:
            raise self.refuses
        before = expected_rows(self.shop)
        self.state = "streaming"
        self.on_step("recording shop")
        self.copier = threading.Thread(target=self._copy, args=(before,), daemon=True)
        self.copier.start()
        self.ended.wait(self.start_seconds)
        self.on_step("spark is up")
        self.orders.shown = True

    def stop(self) -> None:
        self.stops += 1
        self.ended.set()
        if self.copier is not None:
            self.copier.join()
        self.orders.queue.put(None)

    def await_ready(self, timeout: float | None = None) -> bool:
        return self.orders.shown

    def sources(self) -> tuple[SourceInfo, ...]:
        if self.state == "connecting":
            return ()
        full = self.fails_after is not None and self.captured >= self.fails_after
        return (
            SourceInfo(
                name="shop",
                kind="sqlite",
                state="failed" if full else self.state,
                captured=self.captured,
                flushes=self.captured // 2,
                bytes=self.captured * 300,
                end=Position(1, self.captured),
                acknowledged=None,
                lag_changes=0,
                lag_seconds=0.0,
                recorder_pid=None,
                restarts=0,
                error=StorageFull("No room left", path="log/shop") if full else None,
            ),
        )

    def pipelines(self) -> tuple[PipelineInfo, ...]:
        return (
            PipelineInfo(
                name="orders",
                source="shop",
                table="orders",
                target="indexed-memory",
                state="live" if self.orders.shown else "waiting",
                rows=len(self.orders.rows) if self.orders.shown else None,
                changes=self.applied,
                batches=self.applied,
                jobs=self.applied,
                position=Position(1, self.applied),
                lag_seconds=0.0,
                error=None,
                hops={
                    "captured": Hop(4.0, 9.5, 12.0),
                    "flushed": Hop(7.0, 12.0, 20.0),
                    "job": Hop(48.0, 91.0, 120.0),
                    "applied": Hop(0.4, 0.9, 1.5),
                    "total": Hop(61.0, 110.0, 150.0),
                },
            ),
        )

    def spark_info(self) -> FakeSpark | None:
        return FakeSpark(jobs=self.applied) if self.orders.shown else None

    def _copy(self, rows: dict[int, dict[str, object]]) -> None:
        self.orders.rows.update(rows)
        while True:
            last = self.ended.is_set()
            fresh = expected_rows(self.shop)
            for key in sorted(rows.keys() | fresh.keys()):
                old, new = rows.get(key), fresh.get(key)
                if old != new:
                    self._apply(key, old, new)
            rows = fresh
            self.plant(self.orders.rows)
            if last or self.ended.wait(0.02):
                return

    def _apply(self, key: int, old: Row | None, new: Row | None) -> None:
        self.captured += 1
        if new is None:
            op = "delete"
            self.orders.rows.pop(key, None)
        else:
            op = "insert" if old is None else "update"
            self.orders.rows[key] = new
        self.applied += 1
        self.orders.queue.put(FakeChange(op, (key,), old, new, Position(1, self.applied)))


def fake_build(
    shop: Path, data: Path, on_step: Callable[[str], None]
) -> tuple[FakeEngine, FakeOrders]:
    engine = FakeEngine(shop, on_step)
    return engine, engine.orders


if __name__ == "__main__":
    from headrace.interfaces.cli.demo import flow
    from headrace.interfaces.cli.main import run

    setattr(flow, "build", fake_build)  # noqa: B010 - mypy minds the assignment to a function
    sys.argv[1:1] = ["demo"]
    run()
