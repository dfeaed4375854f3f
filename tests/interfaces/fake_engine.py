"""
An engine without log and Spark, for the demo's own tests.

It reads the whole shop again and again and gives the differences as changes: slow, simple
and right, and of the same shape as the real one. `python -m tests.interfaces.fake_engine`
takes the arguments of `headrace demo` and runs the command line with it.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.changelog.position import Position
from headrace.cli.demo.model import Shop
from headrace.cli.demo.session import as_in_target
from headrace.deadletters.letter import DeadLetter
from headrace.errors import HeadraceError, StorageFull, UnknownTable
from headrace.runtime.info import Hop, PipelineInfo, SourceInfo, TableInfo

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
    ui: str | None = None


@dataclass(frozen=True)
class FakeExplanation:
    rows_in: int = 3
    rows_out: int | None = 2
    last_job_ms: float = 48.2

    def __str__(self) -> str:
        return "Pipeline orders\n\n== Physical Plan ==\nProject (2)"


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

    shop: Shop
    on_step: Callable[[str], None]
    start_seconds: float = 0.2
    begun: threading.Event = field(default_factory=threading.Event)
    """Ends the start before its seconds are over."""

    refuses: HeadraceError | None = None
    """Raised by `start`."""

    fails_after: int | None = None
    """Changes after which the source reports a full disk."""

    plant: Callable[[dict[int, Row]], None] = lambda rows: None
    """Called with the target's rows after every pass: to make some of them wrong."""

    blame: frozenset[int] = frozenset()
    """Orders that get a dead letter although nothing is wrong with them."""

    recorder: subprocess.Popen[bytes] | None = None
    """A process in the recorder's place; killed, it is started again."""

    ui: bool = False
    letters: list[DeadLetter] = field(default_factory=list)
    restarts: int = 0
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
        before = self.shop.orders()
        self._start_recorder()
        self.state = "streaming"
        self.on_step("recording shop")
        self.copier = threading.Thread(target=self._copy, args=(before,), daemon=True)
        self.copier.start()
        self.begun.wait(self.start_seconds)
        self.on_step("spark is up")
        self.orders.shown = True

    def stop(self) -> None:
        self.stops += 1
        self.ended.set()
        if self.copier is not None:
            self.copier.join()
        if self.recorder is not None:
            self.recorder.kill()
            self.recorder.communicate()
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
                kind=self.shop.kind,
                state="failed" if full else self.state,
                captured=self.captured,
                flushes=self.captured // 2,
                bytes=self.captured * 300,
                end=Position(1, self.captured),
                acknowledged=None,
                lag_changes=0,
                lag_seconds=0.0,
                lag_bytes=None,
                recorder_pid=self.recorder.pid if self.recorder else None,
                restarts=self.restarts,
                error=StorageFull("No room left", path="log/shop") if full else None,
            ),
        )

    def pipelines(self) -> tuple[PipelineInfo, ...]:
        state = "live" if self.orders.shown else "waiting"
        rows = len(self.orders.rows) if self.orders.shown else None
        position = Position(1, self.applied)
        return (
            PipelineInfo(
                name="orders",
                source="shop",
                table="orders",
                target="indexed-memory",
                state=state,
                tables=(TableInfo("orders", state, position, 1, rows),),
                rows=rows,
                changes=self.applied,
                batches=self.applied,
                jobs=self.applied,
                position=position,
                lag_seconds=0.0,
                dead_letters=len(self.letters),
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
        ui = "http://127.0.0.1:4040" if self.ui else None
        return FakeSpark(jobs=self.applied, ui=ui) if self.orders.shown else None

    def explain(self, pipeline: str) -> FakeExplanation:
        assert pipeline == "orders"
        return FakeExplanation()

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        return tuple(self.letters)

    def _start_recorder(self) -> None:
        if self.recorder is not None:
            self.recorder.communicate()
        # Ends with its input, which ends with us, however we end.
        self.recorder = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def _copy(self, seen: dict[int, dict[str, object]]) -> None:
        for key, order in seen.items():
            try:
                made = as_in_target(order)
            except ValueError:
                self._set_aside(key, None, order, "ARITHMETIC_OVERFLOW")
            else:
                if made is not None:
                    self.orders.rows[key] = made
        while True:
            last = self.ended.is_set()
            fresh = self.shop.orders()
            for key in sorted(seen.keys() | fresh.keys()):
                if seen.get(key) != fresh.get(key):
                    self._take(key, seen.get(key), fresh.get(key))
            seen = fresh
            self.plant(self.orders.rows)
            if last or self.ended.wait(0.02):
                return
            self._mind_recorder()

    def _mind_recorder(self) -> None:
        if self.recorder is not None and self.recorder.poll() is not None:
            self.state = "reconnecting"
            self.restarts += 1
            self._start_recorder()
        else:
            self.state = "streaming"

    def _take(self, key: int, old: Row | None, new: Row | None) -> None:
        try:
            made = None if new is None else as_in_target(new)
            code = "ARITHMETIC_OVERFLOW" if key in self.blame else ""
        except ValueError:
            made, code = None, "ARITHMETIC_OVERFLOW"
        behind = any(letter.key == (key,) for letter in self.letters)
        if behind or code:
            self._set_aside(key, old, new, "" if behind else code)
        elif (self.orders.rows.get(key), made) != (None, None):
            self._apply(key, self.orders.rows.get(key), made)

    def _set_aside(self, key: int, old: Row | None, new: Row | None, code: str) -> None:
        self.captured += 1
        self.applied += 1
        now = datetime.now(UTC)
        self.letters.append(
            DeadLetter(
                pipeline="orders",
                table="orders",
                lineage="a",
                position=Position(1, self.applied),
                baseline=None,
                op="insert" if old is None else "update",
                kind="failed" if code else "behind",
                code=code,
                facts={},
                key=(key,),
                before=old,
                after=new,
                time=now,
                parked=now,
                superseded=None,
                keys=(str(key).encode(),),
            )
        )

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
    shop: Shop, on_step: Callable[[str], None], *, spark_ui: bool = False
) -> tuple[FakeEngine, FakeOrders]:
    engine = FakeEngine(shop, on_step, ui=spark_ui)
    return engine, engine.orders


if __name__ == "__main__":
    from headrace.cli.demo import command
    from headrace.cli.main import run

    setattr(command, "build", fake_build)  # noqa: B010 - mypy minds the assignment to a function
    sys.argv[1:1] = ["demo"]
    run()
