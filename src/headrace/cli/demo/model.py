"""
Model of the demo: its shop, what it shows as frozen values, and what a run is put together from.

A `Shop` is the demo's shop, in whichever database it is kept. What the two kinds do differently
is in `sqlite_shop` and `postgres_shop`; the rest of the demo knows a `Shop` only.

Everything a view needs is in a `Snapshot`, a `Step` or a `Summary`, gathered at one moment, so
that views are pure functions and can be tested without an engine.

What a run is put together from is given as protocols, as the demo sees it: the real engine and
target fit them, and so do small ones made for tests.
"""

from __future__ import annotations

import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Protocol

from headrace.cli.demo import goods
from headrace.cli.demo.goods import BARCODE, Till
from headrace.errors import BadDataDirectory, FellBehind, HeadraceError, StorageError, StorageFull
from headrace.observe import logs

if TYPE_CHECKING:
    from headrace.capture.source import Recordable
    from headrace.deadletters.letter import DeadLetter
    from headrace.runtime.info import CopyInfo, PipelineInfo, SourceInfo


# --- the shop, in either database -----------------------------------------------------------------

DEFAULT = "sqlite"
FOLDERS = {"sqlite": "headrace-demo", "postgres": "headrace-demo-postgres"}
"""By what `--source` takes, where each is kept: a log goes on with the database it began with."""

_LITTLE_ROOM = 256 << 10
"""A database may say "I/O error" for a full disk: with less room than this it is one."""


class Shop(ABC):
    """
    One shop, in the demo's folder.

    `open` comes first and `close` last, which may be called again and at any time. Whatever
    the database or the system has against it is a `StorageError`.
    """

    kind: ClassVar[str]
    """Its name for `--source`."""

    place: ClassVar[str]
    """Where the orders are, for people."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def open(self, on_step: Callable[[str], None]) -> None:
        """Make the shop, or find the one of an earlier run; refuse a folder of others."""

    @abstractmethod
    def close(self) -> str | None:
        """End what was started; return what to say of it, if there is something."""

    @abstractmethod
    def connected(self) -> AbstractContextManager[Till]:
        """Return a connection of its own, closed when it is left."""

    @abstractmethod
    def writer(self) -> Sequence[str]:
        """Return the arguments for Python that run the writer, but for its rate."""

    @abstractmethod
    def source(self, name: str) -> Recordable:
        """Return the source that captures the shop."""

    @abstractmethod
    def asking(self, folder: str, query: str) -> str:
        """Return a Python program that prints what `query` finds; `folder` is as one types it."""

    def count(self) -> int:
        """Return how many orders the shop holds."""
        with self.connected() as till:
            [(found,)] = till.execute("select count(*) from orders").fetchall()
        return int(found)

    def orders(self) -> dict[int, dict[str, object]]:
        """Return the orders as they are, by id."""
        with self.connected() as till:
            found = till.execute("select * from orders")
            names = [column[0] for column in found.description]
            return {row[0]: dict(zip(names, row, strict=True)) for row in found.fetchall()}

    def place_last_order(self) -> int:
        """Place one more order and return its id: who sees it has seen all before it."""
        with self.connected() as till, till.transaction():
            return goods.place_last(till)

    def spoilt_order(self) -> int | None:
        """Return the order with a barcode for a quantity, if there is one."""
        with self.connected() as till:
            found = till.execute("select id from orders where qty = ?", (BARCODE,)).fetchone()
        return None if found is None else int(found[0])

    def place_spoilt_order(self) -> int:
        """Place an order with a barcode for a quantity; return its id."""
        with self.connected() as till, till.transaction():
            return goods.place_spoilt(till)

    def move_on(self, order: int) -> str | None:
        """Pay an order, or ship one that is paid; return its new status, None if it stays."""
        with self.connected() as till, till.transaction():
            return goods.move_on(till, order)


def refuse_others(folder: Path, ours: str) -> None:
    """Raise where a folder without such a shop holds anything but a shop's leftovers."""
    # Leftovers of a demo that was killed while it made its shop are ours.
    if any(not path.name.startswith(ours) for path in folder.iterdir()):
        raise BadDataDirectory(
            "The folder holds other things and no such demo",
            remedy="Name a new or empty folder with --data; a demo that was begun there goes on"
            " with its own --source.",
            path=str(folder),
        )


def unusable(path: Path, why: str, *, full: bool, failed: bool = False) -> StorageError:
    """Return the error for a shop that could not be used; `failed`: its disk did not obey."""
    try:
        no_room = shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    except OSError:
        no_room = False
    if full or (no_room and failed):
        return StorageFull("No room left for the demo's shop", path=str(path))
    return StorageError("The demo's shop cannot be used", path=str(path), why=why)


# --- what is shown --------------------------------------------------------------------------------

HOPS = ("captured", "flushed", "job", "applied", "total")
"""The way of a change after its commit; `total` is from commit to visible."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was reached while the demo started or ended."""

    seconds: float
    name: str
    """
    For programs: `server`, `shop`, `engine`, `writer`, `visible`, `closing`, `ended`; `spoilt` and
    `letter` for the order that cannot be computed, `killed` and `back` for the recorder.
    """

    text: str


@dataclass(frozen=True, slots=True)
class HopTimes:
    """Quantiles of one hop, in milliseconds."""

    name: str
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class SeenChange:
    """One change as it became visible in the target."""

    op: str
    key: str
    text: str
    position: str


@dataclass(frozen=True, slots=True)
class CustomerLookup:
    """All orders of one customer, found in memory by index."""

    customer: int
    orders: int
    paid_cents: int
    took_us: float


@dataclass(frozen=True, slots=True)
class SparkNow:
    """Spark as it stands."""

    version: str
    jobs: int
    tasks: int
    last_job_ms: float
    plan: str
    ui: str | None = None
    """The address of Spark's own pages, where they were asked for."""


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row that a dead letter holds, and how to look at it."""

    pipeline: str
    table: str
    key: str
    code: str
    position: str
    behind: int
    """Later changes of the row, kept behind the letter."""

    commands: tuple[str, ...] = ()
    """Command lines that show the letter, the most telling first."""


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What Spark did for the last batch."""

    rows_in: int
    rows_out: int | None
    ms: float
    plan: str
    """Its operators, in one line."""

    whole: str | None = None
    """The whole explanation, where it was asked for."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole flow at one moment."""

    phase: str
    """`starting`, `running` or `closing`."""

    seconds: float
    """Since the demo began."""

    left: float | None = None
    """Seconds until it ends by itself; None while it does not count yet."""

    source: str = "shop"
    kind: str = "sqlite"
    """What the source is."""

    source_state: str = "connecting"
    source_reason: str = ""
    """Why it is in that state, where that is known: whom it waits for."""

    restarts: int = 0
    """How often the source's recorder had to be started again."""

    killable: bool = False
    """Whether `k` kills the recorder."""

    captured: int = 0
    captured_rate: float = 0.0
    flushes: int = 0
    log_bytes: int = 0
    table: str = "orders"
    state: str = "waiting"
    applied: int = 0
    applied_rate: float = 0.0
    rows: int | None = None
    position: str = ""
    hops: tuple[HopTimes, ...] = ()
    spark: SparkNow | None = None
    letters: tuple[HeldRow, ...] = ()
    changes: tuple[SeenChange, ...] = ()
    """The last ones, newest first."""

    lookup: CustomerLookup | None = None
    copies: tuple[CopyInfo, ...] = ()
    """Copies of the shop's tables that are under way."""

    def hop(self, name: str) -> HopTimes | None:
        """Return the times of one hop, if there are any yet."""
        return next((hop for hop in self.hops if hop.name == name), None)


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that is not the same at both ends."""

    key: int
    kind: str
    """
    `missing` in the target, `extra` there, or `columns` that differ; `causeless`, held by a
    dead letter although it can be computed, or `letterless`, the other way round.
    """

    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Source and target, row by row."""

    rows: int
    differences: tuple[RowDifference, ...] = ()
    held: tuple[int, ...] = ()
    """Orders that dead letters hold: compared with what they were before those."""

    @property
    def equal(self) -> bool:
        """Whether no row differs from what it must be."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class Summary:
    """What was done, and whether it was right."""

    last: Snapshot
    written: int
    """Changes made to the shop meanwhile, as those who made them counted."""

    comparison: Comparison | None
    """None where the target did not reach the source's end in time."""

    commands: tuple[Command, ...] = ()
    last_batch: LastBatch | None = None
    healed: tuple[float | None, ...] = ()
    """For each time the recorder was killed, seconds until it was back; None if it was not."""

    @property
    def right(self) -> bool:
        """Whether source and target were compared, and are equal."""
        return self.comparison is not None and self.comparison.equal


@dataclass(frozen=True, slots=True)
class Command:
    """A command to try next, and what it shows."""

    about: str
    line: str


@dataclass(slots=True)
class Rate:
    """How fast a count grows, over the last few seconds."""

    window: float = 3.0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def at(self, seconds: float, count: int) -> float:
        """Take in the count at this time; return its growth a second."""
        self._seen.append((seconds, count))
        # One reading older than the window stays, so that there is a span to divide by.
        while len(self._seen) > 2 and self._seen[1][0] <= seconds - self.window:
            self._seen.popleft()
        began, before = self._seen[0]
        return (count - before) / (seconds - began) if seconds > began else 0.0


def as_fields(shown: Snapshot | Step | Summary) -> Mapping[str, object]:
    """Return the value as `--json` prints it, with its kind as `event`."""
    fields = asdict(shown)
    if isinstance(shown, Summary):
        comparison = shown.comparison
        fields["comparison"] = (
            None if comparison is None else {**asdict(comparison), "equal": comparison.equal}
        )
    return {"event": type(shown).__name__.lower(), **_rounded(fields)}


def _rounded(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields without digits that no clock of ours can tell."""
    rounded: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, float):
            value = round(value, 3)
        elif isinstance(value, tuple):
            value = tuple(_rounded(part) if isinstance(part, dict) else part for part in value)
        rounded[name] = _rounded(value) if isinstance(value, dict) else value
    return rounded


# --- the target's changes -------------------------------------------------------------------------

KEPT = 40
PAID = ("paid", "shipped")

Row = Mapping[str, object]


class TargetChange(Protocol):
    """A change as the memory target gives it."""

    @property
    def op(self) -> str: ...
    @property
    def key(self) -> tuple[object, ...]: ...
    @property
    def before(self) -> Row | None: ...
    @property
    def after(self) -> Row | None: ...
    @property
    def position(self) -> object: ...


class ChangeWatch:
    """
    Follows the target's changes on a thread, and looks up the customer that most of them concern.

    The thread ends when the target's changes do, which is when the engine stops.
    """

    def __init__(
        self,
        changes: Callable[[], Iterator[TargetChange]],
        lookup_all: Callable[..., Sequence[Row]],
        index: str,
    ) -> None:
        self._changes = changes
        self._lookup_all = lookup_all
        self._index = index
        self._last: deque[TargetChange] = deque(maxlen=KEPT)
        self._customers: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="demo-watch", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, once the engine has stopped."""
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def last(self) -> tuple[SeenChange, ...]:
        """Return the last changes, newest first."""
        with self._lock:
            seen = list(self._last)
        return tuple(described(change) for change in reversed(seen))

    def lookup(self) -> CustomerLookup | None:
        """Look up all orders of the customer with most changes so far."""
        with self._lock:
            if not self._customers:
                return None
            # Ties go to the smaller number, so that the choice does not flicker.
            customer = min(self._customers, key=lambda number: (-self._customers[number], number))
        began = time.perf_counter()
        found = self._lookup_all(self._index, customer)
        took = 1e6 * (time.perf_counter() - began)
        paid = sum(_int(row["total_cents"]) for row in found if row["status"] in PAID)
        return CustomerLookup(customer, len(found), paid, round(took, 1))

    def _follow(self) -> None:
        while True:
            try:
                for change in self._changes():
                    self._take(change)
            except FellBehind:
                continue  # A demo may skip some: it shows the last ones only.
            except HeadraceError as error:
                logs.logger("demo").failed("changes ended", error, code=error.code)
            return

    def _take(self, change: TargetChange) -> None:
        row = change.after or change.before
        with self._lock:
            self._last.append(change)
            if row is not None:
                self._customers[_int(row["customer_id"])] += 1


def described(change: TargetChange) -> SeenChange:
    """Return the change as one line of text says it."""
    key = ", ".join(str(part) for part in change.key)
    return SeenChange(change.op, key, _text(change.before, change.after), str(change.position))


def _text(before: Row | None, after: Row | None) -> str:
    if before is not None and after is not None:
        moved = [
            f"{name} {before[name]} → {after[name]}"
            for name in after
            if name in before and before[name] != after[name]
        ]
        return ", ".join(moved) or "no difference"
    row = after if after is not None else before
    if row is None:
        return ""
    total = _int(row["total_cents"]) / 100
    return (
        f"customer {row['customer_id']}, {row['qty']} {row['product']},"
        f" {total:,.2f}, {row['status']}"
    )


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


# --- what a run is put together from --------------------------------------------------------------


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


class BatchExplanation(Protocol):
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

    def explain(self, pipeline: str) -> BatchExplanation: ...

    def dead_letters(self) -> tuple[DeadLetter, ...]: ...


class DemoView(Protocol):
    """Shows a run; entered once around all of it."""

    def __enter__(self) -> DemoView: ...

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
