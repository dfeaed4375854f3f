"""
What the demo shows, as frozen values.

Everything a view needs stands here, gathered at one moment, so that views are pure
functions and can be tested without an engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from headrace.control.info import CopyInfo

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
class Lookup:
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

    lookup: Lookup | None = None
    copies: tuple[CopyInfo, ...] = ()
    """Copies of the shop's tables that are under way."""

    def hop(self, name: str) -> HopTimes | None:
        """Return the times of one hop, if there are any yet."""
        return next((hop for hop in self.hops if hop.name == name), None)


@dataclass(frozen=True, slots=True)
class Difference:
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
    differences: tuple[Difference, ...] = ()
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
