"""
One run of the demo: shop, engine, writer, view, comparison, in that order.

The view gets a snapshot a few times a second: plain fields, as `--json` prints them, made from the
engine's `Status` and from what only the demo has (changes, a lookup, Spark, dead letters).

The comparison reads source and target and compares every row. It repeats in Python, on the rows
that SQL returns, what the pipeline does, and shares no code with the pipeline: a mistake in one of
them is found by the other. A row that a dead letter holds is compared with its state before. A dead
letter must have a cause: a dead letter for a row that can be computed is a difference, and so is a
row that cannot be computed but has no dead letter.

Long because everything that a run of the demo does is here, next to the session that does it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.api.messages import Rates
from headrace.cli.common import as_typed, command_line
from headrace.cli.demo.goods import FAVOURITE
from headrace.cli.demo.shops import DEFAULT, Shop, Writer
from headrace.cli.run import RunningEngine
from headrace.errors import ControlError, FellBehind, HeadraceError, NotRunning
from headrace.observe.counters import HOPS
from headrace.observe.logs import logger
from headrace.targets.memory import IndexedMemory

if TYPE_CHECKING:
    from headrace.cli.demo.view import DemoLines, DemoScreen
    from headrace.cli.signals import EndOnRequest
    from headrace.deadletters.letter import DeadLetter
    from headrace.engine.engine import Engine
    from headrace.runtime.info import PipelineInfo, SourceInfo
    from headrace.tables.changes import TableChange

Row = Mapping[str, object]


# --- the comparison of source and target ----------------------------------------------------------

MOST_SHOWN = 20
"""Maximum number of differences kept: one is enough to fail, a few are enough to see why."""

LARGEST = 2**63 - 1
"""A larger total cannot be computed; the shop has no negative totals."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs between source and target."""

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
    """Orders that dead letters hold: compared with their state before."""

    @property
    def equal(self) -> bool:
        """Whether every row is as expected."""
        return not self.differences

    def fields(self) -> dict[str, Any]:
        """Return the fields that `--json` prints."""
        return {**asdict(self), "equal": self.equal}


@dataclass(frozen=True, slots=True)
class ExpectedRows:
    """What the target must hold, by order id."""

    rows: Mapping[int, Row]
    held: tuple[int, ...] = ()
    """The orders that dead letters hold, in `rows` or missing from them."""

    wrong: tuple[RowDifference, ...] = ()
    """Differences that are known before the target is read."""


def as_in_target(order: Row) -> dict[str, object] | None:
    """
    Return the row that the target must have for an order: filter, derive and drop, in Python.

    None if it is filtered out. Raises `ValueError` if the total cannot be computed.
    """
    if order["status"] == "cancelled":
        return None
    total = _number(order["qty"]) * _number(order["price_cents"])
    if total > LARGEST:
        raise ValueError("beyond a 64-bit integer")
    row = {name: value for name, value in order.items() if name != "card_number"}
    return {**row, "total_cents": total}


def expect(orders: Mapping[int, Row], dead_letters: Iterable[DeadLetter]) -> ExpectedRows:
    """Return the rows that the target must have; `dead_letters` are in position order."""
    first: dict[int, DeadLetter] = {}
    for dead_letter in dead_letters:
        first.setdefault(_number(dead_letter.key[0]), dead_letter)
    rows: dict[int, Row] = {}
    wrong: list[RowDifference] = []

    def add(key: int, order: Row, otherwise: str) -> None:
        try:
            row = as_in_target(order)
        except ValueError:
            wrong.append(RowDifference(key, otherwise))
            return
        if row is not None:
            rows[key] = row

    for key, order in orders.items():
        if key not in first:
            add(key, order, "letterless")
    for key, dead_letter in first.items():
        if not _has_cause(dead_letter):
            wrong.append(RowDifference(key, "causeless"))
        if dead_letter.before is not None:
            add(key, dead_letter.before, "causeless")
    return ExpectedRows(rows, tuple(sorted(first)), tuple(wrong))


def compare(expected: ExpectedRows, found: Iterable[Row]) -> Comparison:
    """Compare row by row and column by column; a value of another type is another value."""
    differences = list(expected.wrong)
    seen: set[object] = set()
    for row in found:
        key = row["id"]
        wanted = expected.rows.get(key) if isinstance(key, int) else None
        if wanted is None or key in seen:
            differences.append(RowDifference(_number(key), "extra"))
        elif columns := _differing(wanted, row):
            differences.append(RowDifference(_number(key), "columns", columns))
        seen.add(key)
    differences += [RowDifference(key, "missing") for key in expected.rows.keys() - seen]
    differences.sort(key=lambda difference: difference.key)
    compared = len(expected.rows.keys() | seen)
    return Comparison(compared, tuple(differences[:MOST_SHOWN]), expected.held)


def _has_cause(dead_letter: DeadLetter) -> bool:
    """Whether the first dead letter of a row is a change that really cannot be computed."""
    if dead_letter.kind != "failed" or dead_letter.after is None:
        return False
    try:
        as_in_target(dead_letter.after)
    except ValueError:
        return True
    return False


def _differing(wanted: Row, row: Row) -> tuple[str, ...]:
    return tuple(
        name
        for name in sorted(wanted.keys() | set(row))
        # 1, 1.0 and True are equal in Python; a replica must not mix them up.
        if name not in wanted
        or name not in row
        or type(wanted[name]) is not type(row[name])
        or wanted[name] != row[name]
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


# --- commands to try next -------------------------------------------------------------------------


def next_steps(shop: Shop, source: str, table: str, *dead_letters: str) -> list[dict[str, str]]:
    """Return commands to paste: show a dead letter, export changes, continue, query the shop."""
    folder = as_typed(shop.folder)
    # Not the files of the log: flushes are merged and the merged files stay for a while, so only
    # the index knows which files are valid.
    changes = f"{folder}/changes.parquet"
    output = ("--format", "parquet", "--output", changes, "--force")
    read = (
        "import headrace as hr; "
        # Double quotes: the program is in single quotes for the shell.
        f"changes = hr.spark().read.parquet({json.dumps(changes, ensure_ascii=False)}); "
        'changes.groupBy("op").count().show()'
    )
    ask_shop = shop.asking(folder, "select status, count(*) from orders group by status")
    kind = () if shop.kind == DEFAULT else ("--source", shop.kind)
    commands = {
        "write the change log to a Parquet file": command_line(
            "log", "read", source, table, "--data", folder, *output
        ),
        "read that file with PySpark": _python(read),
        "continue where this run stopped": command_line("demo", *kind, "--data", folder),
        "query the shop's own database": _python(ask_shop),
    }
    return [
        *({"about": "look at the dead letter", "line": line} for line in dead_letters[:1]),
        *({"about": about, "line": line} for about, line in commands.items()),
    ]


def dead_letter_commands(data: Path, position: str) -> list[str]:
    """Return the commands that show the dead letter at a position, and list all of them."""
    folder = ("--data", as_typed(data))
    return [
        command_line("dead-letters", "show", position, *folder),
        command_line("dead-letters", "list", *folder),
    ]


def _python(program: str) -> str:
    return shlex.join([as_typed(Path(sys.executable)), "-c", program])


# --- the order that cannot be computed ------------------------------------------------------------

PLACED_SECONDS = 3.0
"""After the first visible row; earlier if the demo is too short for that."""

MOVED_SECONDS = 3.0
"""After the dead letter, likewise."""


class SpoiltOrder:
    """
    One order that cannot be computed, on purpose, to show a dead letter.

    A barcode is scanned as the quantity, so the order's total overflows. Once its dead letter
    exists, the order is paid: that change cannot be computed either, and waits for the first. A
    shop has one such order, over all runs.
    """

    def __init__(self, shop: Shop, run_seconds: float) -> None:
        self.changes = 0
        """The number of changes made to the shop so far."""

        self._shop = shop
        self._placed_at = min(PLACED_SECONDS, 0.25 * run_seconds)
        self._moved_after = min(MOVED_SECONDS, 0.15 * run_seconds)
        self._placed = self._moved = False
        self._held_since: float | None = None

    def advance(self, seconds: float, *, held: bool) -> str | None:
        """
        Take the step that is due `seconds` after the first visible row; return what was done.

        `held` says whether the order's dead letter exists.
        """
        if not self._placed and seconds >= self._placed_at:
            self._placed = True
            return self._add()
        if not held or self._moved or not self._placed:
            return None
        if self._held_since is None:
            self._held_since = seconds
        if seconds < self._held_since + self._moved_after:
            return None
        self._moved = True
        return self._move()

    def _add(self) -> str | None:
        if self._shop.spoilt_order() is not None:
            return None
        order = self._shop.add_spoilt_order()
        self.changes += 1
        return f"order {order}: a barcode was scanned as its quantity"

    def _move(self) -> str | None:
        order = self._shop.spoilt_order()
        status = None if order is None else self._shop.move_on(order)
        if status is None:
            return None
        self.changes += 1
        return f"order {order} is {status}: this change waits for the dead letter"


# --- reads of the target --------------------------------------------------------------------------

KEPT = 40
PAID = ("paid", "shipped")
INDEX = "by_customer"


class TargetReads:
    """What an application would do with the target: look rows up, and follow their changes."""

    def __init__(self, orders: IndexedMemory) -> None:
        self.orders = orders
        self._last: deque[TableChange] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Start to follow the changes, on a thread that ends when the engine stops."""
        threading.Thread(target=self._follow, name="demo-changes", daemon=True).start()

    def changes(self) -> list[dict[str, str]]:
        """Return the last changes, newest first."""
        with self._lock:
            seen = list(self._last)
        return [change_fields(change) for change in reversed(seen)]

    def lookup(self) -> dict[str, Any]:
        """Look up all orders of the customer who orders most."""
        began = time.perf_counter()
        found = self.orders.lookup_all(INDEX, FAVOURITE)
        took = 1e6 * (time.perf_counter() - began)
        paid = sum(_number(row["total_cents"]) for row in found if row["status"] in PAID)
        return {
            "customer": FAVOURITE,
            "orders": len(found),
            "paid_cents": paid,
            "took_us": round(took, 1),
        }

    def _follow(self) -> None:
        while True:
            try:
                for change in self.orders.changes():
                    with self._lock:
                        self._last.append(change)
            except FellBehind:
                continue  # The demo may skip changes: it only shows the last ones.
            except HeadraceError as error:
                logger("demo").failed("changes ended", error, code=error.code)
            return


def change_fields(change: TableChange) -> dict[str, str]:
    """Return a change as it is shown, and as `--json` prints it."""
    before, after = change.before, change.after
    row = before if after is None else after
    if before is not None and after is not None:
        moved = [name for name in after if name in before and before[name] != after[name]]
        text = ", ".join(f"{name} {before[name]} → {after[name]}" for name in moved)
    elif row is not None:
        text = (
            f"customer {row['customer_id']}, {row['qty']} {row['product']},"
            f" {_number(row['total_cents']) / 100:,.2f}, {row['status']}"
        )
    else:
        text = ""
    key = ", ".join(str(part) for part in change.key)
    return {"op": change.op, "key": key, "text": text, "position": str(change.position)}


# --- the session ----------------------------------------------------------------------------------

SOURCE = "shop"
TABLE = "orders"
KILL = "k"

TICK_SECONDS = 0.25
SPARK_SECONDS = 1.0
"""Spark answers from another process: frequent questions would slow down its jobs."""

READY_SECONDS = 300.0
"""Without a first row by then something is stuck, and a waiting script should end."""

END_SECONDS = 60.0
"""How long the target may take to reach the end of the source after the last order."""

Build = Callable[[Shop, Callable[[str], None]], "Engine"]
"""Takes the shop and a callback for steps; returns an engine, not yet started."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options of the command."""

    run_seconds: float
    rate: float
    kill: bool = False
    """`k` kills the recorder."""

    explain: bool = False
    """The whole plan is printed at the end."""


class DemoSession:
    """One run: `open_shop`, then `run`, once."""

    def __init__(
        self,
        settings: DemoSettings,
        shop: Shop,
        build: Build,
        view: DemoLines | DemoScreen,
        ending: EndOnRequest,
    ) -> None:
        self._settings = settings
        self._shop = shop
        self._build = build
        self._view = view
        self._ending = ending
        self._began = time.monotonic()
        self._visible_at: float | None = None
        self._writer: Writer | None = None
        self._spoilt = SpoiltOrder(shop, settings.run_seconds)
        self._killed: tuple[float, int] | None = None
        """When the recorder was last killed, and its number of restarts before that."""

        self._healed: list[float | None] = []
        """For each kill, the seconds until changes were recorded again; None until then."""

        self._spark: dict[str, Any] | None = None
        self._spark_due = 0.0
        self._dead_letters: tuple[DeadLetter, ...] = ()
        self._last: dict[str, Any] = {"letters": []}

    def open_shop(self) -> None:
        """Create the shop, or reuse that of an earlier run; refuse a folder that is not ours."""
        try:
            self._shop.open(partial(self._step, "server"))
            orders = self._shop.count()
        except HeadraceError:
            # Ctrl-C also reaches the programs that create a database: then it is not an error.
            if self._ending.asked:
                raise KeyboardInterrupt from None
            raise
        self._step("shop", f"shop with {orders:,} orders in {self._shop.location}")

    def run(self) -> dict[str, Any]:
        """Run to the end and return the summary that `--json` prints; raises what stopped it."""
        folder = self._shop.folder
        self._running = RunningEngine(partial(self._build, self._shop), folder, service="demo")
        self._engine = engine = self._running.engine
        (target,) = engine.targets(SOURCE, TABLE)
        assert isinstance(target, IndexedMemory)
        self._reads = TargetReads(target)
        self._captured = Rates(lambda: ((each.name, each.captured) for each in engine.sources()))
        with ExitStack() as undo:
            undo.callback(self._close_shop)
            undo.enter_context(self._running)
            undo.callback(self._stop_writer)
            self._until_visible()
            self._while_running()
            written, comparison = self._compare()
            last_batch = self._last_batch()
        dead_letters = [each["commands"][0] for each in self._last["letters"]]
        return {
            "last": self._last,
            "written": written,
            "comparison": None if comparison is None else comparison.fields(),
            "commands": next_steps(self._shop, SOURCE, TABLE, *dead_letters),
            "last_batch": last_batch,
            "healed": [each and round(each, 3) for each in self._healed],
        }

    def _until_visible(self) -> None:
        while not self._is_visible():
            if self._seconds() > READY_SECONDS:
                raise ControlError(
                    f"No row became visible within {READY_SECONDS:g} seconds",
                    seconds=int(READY_SECONDS),
                )
            # Redrawn while Spark starts; then a short wait, so the first row is not missed.
            if self._ending.wait(0.02 if self._running.started else TICK_SECONDS):
                self._step(
                    "ended", "stopped before the first row was visible; nothing was compared"
                )
                raise KeyboardInterrupt
        self._visible_at = self._seconds()
        self._reads.follow()
        self._show("starting")
        self._step("visible", f"first rows visible: {self._last['rows']:,} orders in memory")
        top = command_line("top", "--data", as_typed(self._shop.folder))
        self._step("engine", f"in another terminal: {top}")
        if self._spark is not None and self._spark["ui"] is not None:
            self._step("engine", f"Spark web UI: {self._spark['ui']}")
        if self._settings.kill:
            self._step("engine", "press k to kill the recorder, q to quit")

    def _is_visible(self) -> bool:
        ready = self._show("starting")
        if self._writer is None and self._last["source_state"] == "streaming":
            # Only now: the data directory is ours, and every change of the writer is captured.
            self._writer = Writer(self._shop, self._settings.rate)
            self._step("writer", f"writing to the shop, {self._settings.rate:g} changes per second")
        return ready and bool(self._last["rows"])

    def _while_running(self) -> None:
        assert self._visible_at is not None
        until = self._visible_at + self._settings.run_seconds
        while (left := until - self._seconds()) > 0:
            if self._ending.wait(min(TICK_SECONDS, left)):
                break
            since = self._seconds() - self._visible_at
            done = self._spoilt.advance(since, held=bool(self._last["letters"]))
            if done is not None:
                self._step("spoilt", done)
            self._show("running", until)

    def _compare(self) -> tuple[int, Comparison | None]:
        """Return the number of changes written, and the comparison; None if it took too long."""
        written = self._writer.stop().changes if self._writer else 0
        last = self._shop.add_last_order()
        written += self._spoilt.changes + 1
        self._step("closing", "writer stopped, waiting for its last change")
        until = self._seconds() + END_SECONDS
        # Changes arrive in commit order: when the last order is visible, all before it are.
        while self._reads.orders.get(last) is None:
            if self._seconds() > until:
                return written, None
            self._show("closing")
            time.sleep(0.02)
        self._spark_due = 0.0
        self._show("closing")
        self._step("closing", "comparing every row of source and target")
        # Dead letters are compared, too: each must have a cause.
        expected = expect(self._shop.orders(), self._engine.dead_letters())
        return written, compare(expected, self._reads.orders.all())

    def _stop_writer(self) -> None:
        if self._writer is not None:
            # Its error was already raised by `check` or an earlier `stop`.
            with suppress(HeadraceError):
                self._writer.stop()

    def _close_shop(self) -> None:
        if closed := self._shop.close():
            self._step("closing", closed)

    def _show(self, phase: str, until: float | None = None) -> bool:
        """Read the status and show it; return whether the engine is ready."""
        if self._writer is not None and phase != "closing":
            self._writer.check()
        report = self._running.status()
        for text in self._running.steps():
            self._step("engine", text)
        # Until the start has finished, targets may not be open, and must not be read.
        pipelines = self._engine.pipelines() if self._running.started else ()
        infos: list[SourceInfo | PipelineInfo] = [*self._engine.sources(), *pipelines]
        for info in infos:
            if info.state == "failed" and info.error is not None:
                raise info.error
        if report["sources"]:
            self._kill_if_asked(report["sources"][0])
        held = len(self._last["letters"])
        self._last = self._snapshot(phase, report, until)
        for dead_letter in self._last["letters"][held:]:
            self._step("letter", f"dead letter: order {dead_letter['key']}, {dead_letter['code']}")
        self._view.show(self._last, report)
        return bool(report["ready"])

    def _kill_if_asked(self, source: Mapping[str, Any]) -> None:
        """Kill the recorder if `k` was pressed, and notice when the next one records."""
        now, pid = self._seconds(), source["recorder_pid"]
        asked = self._ending.pressed(KILL) and self._settings.kill
        if self._killed is not None:
            at, restarts = self._killed
            if source["restarts"] > restarts and source["state"] == "streaming":
                self._killed, self._healed[-1] = None, now - at
                self._step("back", f"recorder is back after {now - at:.1f} s, continues the log")
        # Between two recorders there is none to kill. Never kill this process.
        elif asked and pid not in (None, os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._killed = (now, source["restarts"])
            self._healed.append(None)
            self._step("killed", f"recorder killed: SIGKILL to process {pid}")

    def _snapshot(
        self, phase: str, report: Mapping[str, Any], until: float | None
    ) -> dict[str, Any]:
        """Return the current snapshot, as `--json` prints it."""
        now = self._seconds()
        source: dict[str, Any] = next(iter(report["sources"]), {})
        pipeline: dict[str, Any] = next(iter(report["pipelines"]), {})
        hops = pipeline.get("hops", {})
        return {
            "phase": phase,
            "seconds": round(now, 3),
            "left": None if until is None else round(max(0.0, until - now), 3),
            "source": SOURCE,
            "kind": self._shop.kind,
            "source_state": source.get("state", "connecting"),
            "source_reason": source.get("reason", ""),
            "restarts": source.get("restarts", 0),
            "killable": self._settings.kill,
            "captured": source.get("captured", 0),
            "captured_rate": round(self._captured.look().get(SOURCE) or 0.0, 3),
            "flushes": source.get("flushes", 0),
            "log_bytes": source.get("log_bytes", 0),
            "table": TABLE,
            "state": pipeline.get("state", "waiting"),
            "applied": pipeline.get("changes", 0),
            "applied_rate": pipeline.get("rate_per_s") or 0.0,
            "rows": pipeline.get("rows"),
            "position": pipeline.get("position", ""),
            "hops": [{"name": name, **hops[name]} for name in HOPS if name in hops],
            "spark": self._spark_now(now),
            "letters": self._held(pipeline.get("dead_letters", 0)),
            "changes": self._reads.changes(),
            "lookup": None if self._visible_at is None else self._reads.lookup(),
            "copies": source.get("copies", []),
        }

    def _spark_now(self, now: float) -> dict[str, Any] | None:
        if self._running.started and (self._spark is None or now >= self._spark_due):
            self._spark_due = now + SPARK_SECONDS
            if info := self._engine.spark_info():
                self._spark = {
                    **asdict(info),
                    "last_job_ms": round(info.last_job_ms, 3),
                    "direct": sum(each.direct for each in self._engine.pipelines()),
                }
        return self._spark

    def _held(self, count: int) -> list[dict[str, Any]]:
        """Return the rows that dead letters hold, each with its first dead letter."""
        # They are read from files, so only if their number has changed.
        if count != len(self._dead_letters):
            self._dead_letters = self._engine.dead_letters()
        from headrace.deadletters.letter import waiting_changes

        first: dict[tuple[object, ...], DeadLetter] = {}
        for dead_letter in self._dead_letters:
            first.setdefault(dead_letter.key, dead_letter)
        return [
            {
                "pipeline": dead_letter.pipeline,
                "table": dead_letter.table,
                "key": ", ".join(str(part) for part in dead_letter.key),
                "code": dead_letter.code,
                "position": str(dead_letter.position),
                "behind": len(waiting_changes(dead_letter, self._dead_letters)),
                "commands": dead_letter_commands(self._shop.folder, str(dead_letter.position)),
            }
            for dead_letter in first.values()
        ]

    def _last_batch(self) -> dict[str, Any] | None:
        """Return the last batch of Spark, with the whole explanation on request."""
        try:
            last = self._engine.explain(TABLE)
        except NotRunning:
            return None
        return {
            "rows_in": last.rows_in,
            "rows_out": last.rows_out,
            "ms": round(last.last_job_ms, 3),
            "way": last.way,
            "plan": self._spark["plan"] if self._spark else "",
            "whole": str(last) if self._settings.explain else None,
        }

    def _step(self, name: str, text: str) -> None:
        self._view.step({"seconds": round(self._seconds(), 3), "name": name, "text": text})

    def _seconds(self) -> float:
        return time.monotonic() - self._began
