"""
The demo on a terminal: one picture, redrawn a few times a second.

`picture` is a function from a snapshot and a size to something rich can draw. Nothing in
it wraps: what does not fit is cut with an ellipsis, and what a small terminal has no
room for is left out, the changes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.cli.demo.lines import (
    copy_bar,
    letters_text,
    lookup_text,
    millis,
    size,
    summary_lines,
    waiting_text,
)
from headrace.cli.demo.model import HOPS, SeenChange, Snapshot, Step, Summary

WIDE = 110
"""From this width on the flow is drawn from left to right."""

KINDS = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

OPS = {
    "insert": ("+", "green"),
    "update": ("~", "yellow"),
    "delete": ("-", "red"),
    "truncate": ("!", "magenta"),
}


def picture(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """Return the whole view, made to fit `width` columns and `height` lines."""
    wide = width >= WIDE
    flow = _flow_across(snapshot) if wide else _flow_down(snapshot)
    letters = _letters(snapshot, width)
    # Title, blank lines, hops, lookup, plan and position around the flow; one line spare.
    room = height - (5 if wide else 4) - 12 - len(letters)
    return Group(
        _title(snapshot, width),
        Text(),
        flow,
        Text(),
        _hops(snapshot),
        Text(),
        *_changes(snapshot.changes, max(1, min(room, 12))),
        Text(),
        *letters,
        _labelled("lookup", _lookup(snapshot)),
        _labelled("Spark", _spark(snapshot)),
        _labelled("at", Text(snapshot.position, "dim")),
    )


def waiting_line(snapshot: Snapshot) -> Text:
    """Return the one line that is redrawn while there is nothing to draw yet."""
    line = _line(f"{snapshot.seconds:6.1f} s  ", "dim")
    return line.append(f"{waiting_text(snapshot, whole=False)} …", "default")


def waiting(snapshot: Snapshot) -> RenderableType:
    """Return that line, with a bar for each table that is being copied."""
    return Group(waiting_line(snapshot), *(copy_bar(copy) for copy in snapshot.copies))


def _title(snapshot: Snapshot, width: int) -> RenderableType:
    keys = "k kills the recorder, q ends" if snapshot.killable else "q ends"
    left = "ending" if snapshot.left is None else f"{snapshot.left:.0f} s left, {keys}"
    row = Table.grid(expand=True)
    row.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    row.add_column(no_wrap=True, justify="right")
    row.width = width
    row.add_row(Text("headrace demo", "bold"), Text(left, "dim"))
    return row


def _boxes(snapshot: Snapshot) -> Sequence[tuple[str, str, str]]:
    """Return (title, count, rest) of the four places a change passes."""
    spark = snapshot.spark
    rows = 0 if snapshot.rows is None else snapshot.rows
    return (
        (
            f"{snapshot.source} ({KINDS.get(snapshot.kind, snapshot.kind)})",
            f"{snapshot.captured_rate:.0f} changes/s",
            _recorder(snapshot),
        ),
        (
            "change log",
            f"{snapshot.captured:,} captured",
            f"{snapshot.flushes:,} flushes, {size(snapshot.log_bytes)}",
        ),
        (
            f"Spark {spark.version}" if spark else "Spark",
            f"{spark.jobs:,} jobs" if spark else "starting",
            f"{spark.tasks:,} tasks, last {millis(spark.last_job_ms)}" if spark else "",
        ),
        (
            "memory",
            f"{rows:,} rows, {snapshot.applied_rate:.0f}/s",
            f"{snapshot.state}, {snapshot.applied:,} applied",
        ),
    )


def _recorder(snapshot: Snapshot) -> str:
    if not snapshot.restarts:
        return snapshot.source_state
    again = "once" if snapshot.restarts == 1 else f"{snapshot.restarts:,} times"
    return f"{snapshot.source_state}, restarted {again}"


def _flow_across(snapshot: Snapshot) -> RenderableType:
    row = Table.grid(expand=True)
    boxes = _boxes(snapshot)
    cells: list[RenderableType] = []
    for number, (title, count, rest) in enumerate(boxes):
        if number:
            row.add_column(no_wrap=True, width=3, vertical="middle")
            cells.append(Text("──▶", "cyan"))
        row.add_column(ratio=1)
        body = Group(_line(count, "bold"), _line(rest, "dim"))
        cells.append(Panel(body, title=Text(title, "bold cyan"), title_align="left", height=4))
    row.add_row(*cells)
    return row


def _flow_down(snapshot: Snapshot) -> RenderableType:
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(no_wrap=True, width=1)
    boxes = _boxes(snapshot)
    titles = max(13, min(17, len(boxes[0][0])))
    rows.add_column(no_wrap=True, width=titles, overflow="ellipsis")
    rows.add_column(no_wrap=True, width=17, overflow="ellipsis")
    rows.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    for number, (title, count, rest) in enumerate(boxes):
        arrow = Text("▼" if number else "●", "cyan")
        rows.add_row(arrow, Text(title, "bold cyan"), Text(count, "bold"), Text(rest, "dim"))
    return rows


def _hops(snapshot: Snapshot) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, width=6)
    for _ in HOPS:
        table.add_column(no_wrap=True, justify="right", width=9)
    names = (Text(name, "bold") if name == "total" else Text(f"→{name}", "dim") for name in HOPS)
    table.add_row(Text("commit", "dim"), *names)
    for label in ("p50", "p95"):
        cells = []
        for name in HOPS:
            hop = snapshot.hop(name)
            value = "." if hop is None else millis(hop.p50_ms if label == "p50" else hop.p95_ms)
            cells.append(Text(value, "bold" if name == "total" else ""))
        table.add_row(Text(label, "dim"), *cells)
    return table


def _changes(changes: Sequence[SeenChange], most: int) -> list[Text]:
    lines = []
    for change in changes[:most]:
        mark, colour = OPS.get(change.op, ("?", ""))
        line = _line(f"{mark} {change.key:>6}  ", colour)
        lines.append(line.append(change.text, colour))
    # As many lines from the first picture to the last, so that nothing below jumps.
    return lines + [_line("") for _ in range(most - len(lines))]


def _letters(snapshot: Snapshot, width: int) -> list[Text]:
    """Return the newest dead letter: what it is, and the command that shows it, if it fits."""
    if not snapshot.letters:
        return []
    newest = snapshot.letters[-1]
    count = f"{letters_text(snapshot.letters)}: {newest.code}"
    where = f"pipeline {newest.pipeline}, table {newest.table}, key {newest.key}"
    lines = [_labelled("letter", Text(count, "yellow")), _labelled("", Text(where, "yellow"))]
    # Half a command is none: the whole one is also told at the end.
    fits = [command for command in newest.commands if len(command) + 2 <= width]
    return lines + [_line(f"  {command}", "dim") for command in fits[:1]]


def _lookup(snapshot: Snapshot) -> Text:
    if snapshot.lookup is None:
        return Text("waiting for a change", "dim")
    text = Text(lookup_text(snapshot.lookup), "bold")
    return text.append(f"  in {snapshot.lookup.took_us:,.0f} µs", "not bold dim")


def _spark(snapshot: Snapshot) -> Text:
    spark = snapshot.spark
    if spark is None:
        return Text("starting", "dim")
    # The address first: half of it is of no use.
    pages = f"{spark.ui}, " if spark.ui else ""
    return Text(f"{pages}{spark.jobs:,} jobs, {spark.tasks:,} tasks: {spark.plan}", "dim")


def _labelled(label: str, text: Text) -> Text:
    return _line(f"{label:<7}", "dim").append_text(text)


def _line(text: str, style: str = "") -> Text:
    # The style of the text alone: what is appended has its own.
    return Text(no_wrap=True, overflow="ellipsis", end="\n").append(text, style)


class LiveView:
    """Draws the picture; steps stay above it, and the summary comes below the last one."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(
            console=self._console,
            # Drawn when there is something new, and by nobody else's thread.
            auto_refresh=False,
            vertical_overflow="crop",
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def step(self, step: Step) -> None:
        """Print the step above the picture."""
        self._console.print(_line(f"{step.seconds:6.1f} s  ", "dim").append(step.text))

    def show(self, snapshot: Snapshot) -> None:
        """Draw the picture, or the one line before there is one."""
        if snapshot.phase == "starting":
            self._live.update(waiting(snapshot), refresh=True)
            return
        width, height = self._console.size
        self._live.update(picture(snapshot, width, height), refresh=True)

    def summary(self, summary: Summary) -> None:
        """Leave the last picture, and print the end."""
        self._live.stop()
        for line in summary_lines(summary):
            style = ""
            if line.startswith("target = source"):
                style = "bold green" if summary.right else "bold red"
            # A command is pasted: the terminal may wrap it, we must not.
            self._console.print(Text(line, style), soft_wrap=True)
