"""
The demo as lines of text, as lines of JSON, and as a live view on a terminal.

All of them show the same: steps, snapshots and the summary, as plain fields (see `session`). The
live view is that of `top`, and below it what only the demo has: the path of a change from the shop
to memory, the latency of each hop, and the last changes. Nothing is wrapped: long lines are cut
with an ellipsis, and a small terminal shows fewer changes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.common import as_typed
from headrace.cli.query import OPS
from headrace.cli.run import print_event
from headrace.cli.status import copy_text, live_view
from headrace.observe.counters import HOPS

Fields = Mapping[str, Any]

EVERY_SECONDS = {"starting": 2.0, "running": 1.0, "closing": 2.0}
"""Seconds between two lines with a snapshot, in each phase."""

KINDS = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
MOST_CHANGES = 12


# --- lines of text --------------------------------------------------------------------------------


def is_right(summary: Fields) -> bool:
    """Return whether source and target were compared and are equal."""
    return summary["comparison"] is not None and bool(summary["comparison"]["equal"])


def step_line(step: Fields) -> str:
    """Return the line of a step: its time and its text."""
    return f"{step['seconds']:6.1f} s  {step['text']}"


def snapshot_line(shown: Fields) -> str:
    """Return everything that changes, on one line."""
    at = f"{shown['seconds']:6.1f} s  "
    if shown["phase"] != "running":
        return at + waiting_text(shown)
    parts = [
        f"{shown['captured']:,} captured ({shown['captured_rate']:.0f}/s), "
        f"{shown['applied']:,} applied ({shown['applied_rate']:.0f}/s), "
        f"{shown['rows'] or 0:,} rows"
    ]
    parts += [f"latency {_quantiles(hop)}" for hop in shown["hops"] if hop["name"] == "total"]
    if shown["letters"]:
        parts.append(dead_letters_text(shown["letters"]))
    if shown["restarts"]:
        parts.append(f"recorder {shown['source_state']}, {_count(shown['restarts'], 'restart')}")
    parts += [f"{each['op']} {each['key']}: {each['text']}" for each in shown["changes"][:1]]
    if shown["lookup"]:
        parts.append(lookup_text(shown["lookup"]))
    return at + " · ".join(parts)


def waiting_text(shown: Fields) -> str:
    """Return what the demo waits for, and how much was captured meanwhile."""
    captured = f"{_count(shown['captured'], 'change')} captured"
    if shown["phase"] == "closing":
        return f"closing, {captured}"
    if shown["source_state"] == "waiting":
        return str(shown["source_reason"])
    if shown["copies"]:
        return f"{'; '.join(map(copy_text, shown['copies']))}, {captured}"
    if shown["spark"] is None:
        return f"waiting for Spark, {captured}"
    return f"orders: {shown['state'].replace('_', ' ')}, {captured}"


def summary_lines(summary: Fields) -> list[str]:
    """Return the totals, the result of the comparison, and what to try next."""
    last, batch = summary["last"], summary["last_batch"]
    jobs = ""
    if spark := last["spark"]:
        jobs = f", {spark['direct']:,} direct batches, {spark['jobs']:,} Spark jobs"
    log = f"{last['flushes']:,} flushes, {size(last['log_bytes'])}"
    # Short lines, for a terminal of 60 columns.
    lines = [
        "",
        f"written   {summary['written']:,} changes",
        f"captured  {last['captured']:,} changes in {log}",
        f"applied   {last['applied']:,} changes{jobs}",
    ]
    if last["applied"] < last["captured"]:
        # Captured while Spark was starting, and then copied with the table.
        lines.append(
            f"          ({last['captured'] - last['applied']:,} more were part of the copy)"
        )
    hops = {hop["name"]: hop for hop in last["hops"]}
    if total := hops.pop("total", None):
        each = ", ".join(f"{name} {_few(hop['p50_ms'])}" for name, hop in hops.items())
        lines += [f"latency   {_quantiles(total)}, commit to visible", f"p50/hop   {each} ms"]
    if last["lookup"]:
        lines.append(f"lookup    {lookup_text(last['lookup'])}")
    if batch:
        out = "" if batch["rows_out"] is None else f", {batch['rows_out']:,} out"
        way = "directly" if batch["way"] == "direct" else "by a Spark job"
        rows = f"{_count(batch['rows_in'], 'row')} in{out}"
        lines.append(f"last      {rows}, {millis(batch['ms'])}, {way}")
        # Full names of operators, in the order in which rows pass them.
        lines += textwrap.wrap(f"plan      {batch['plan']}", 60, subsequent_indent=" " * 10)
    lines += [f"held      {dead_letter_text(dead_letter)}" for dead_letter in last["letters"]]
    lines += [*_killed_lines(summary), "", *comparison_lines(summary["comparison"])]
    if batch and batch["whole"]:
        lines += ["", *batch["whole"].splitlines()]
    lines += ["", "try next"]
    for command in summary["commands"]:
        lines += [f"  # {command['about']}", f"  {command['line']}"]
    return lines


def comparison_lines(comparison: Fields | None) -> list[str]:
    """Return the result; if rows differ, which ones and in which columns."""
    if comparison is None:
        return ["target = source: unknown, the target did not catch up in time"]
    held, rows = comparison["held"], f"{comparison['rows']:,} rows compared"
    some = ", ".join(str(key) for key in held[:3]) + (", …" if len(held) > 3 else "")
    lines = [f"target = source: yes, {rows}"]
    if not comparison["equal"]:
        lines = [f"target = source: NO, {rows}, these differ:"]
    lines += [f"  order {each['key']} {_wrong(each)}" for each in comparison["differences"]]
    if len(held) == 1:
        lines.append(f"  (1 row is held by a dead letter: order {some})")
    elif held:
        lines.append(f"  ({len(held):,} rows are held by dead letters: orders {some})")
    return lines


def dead_letters_text(dead_letters: Sequence[Fields]) -> str:
    """Return the number of dead letters, and of later changes that wait for them."""
    waiting = sum(dead_letter["behind"] for dead_letter in dead_letters)
    text = _count(len(dead_letters), "dead letter")
    return f"{text}, {_count(waiting, 'change')} waiting" if waiting else text


def dead_letter_text(dead_letter: Fields) -> str:
    """Return why a row is held, and how many changes wait."""
    waiting = (
        f", {_count(dead_letter['behind'], 'change')} waiting" if dead_letter["behind"] else ""
    )
    return f"order {dead_letter['key']}: {dead_letter['code']}{waiting}"


def lookup_text(lookup: Fields) -> str:
    """Return the lookup as a sentence."""
    paid = f"{lookup['paid_cents'] / 100:,.2f}"
    return f"customer {lookup['customer']}: {lookup['orders']:,} orders, {paid} paid"


def millis(value: float) -> str:
    """Return milliseconds, with one decimal below 10."""
    return f"{_few(value)} ms"


def size(count: int) -> str:
    """Return bytes, in the unit that fits."""
    return f"{count / 1_000:.0f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def _killed_lines(summary: Fields) -> list[str]:
    healed = summary["healed"]
    if not healed:
        return []
    times = "once" if len(healed) == 1 else f"{len(healed)} times"
    if None in healed:
        return [f"recorder  killed {times}, not back by the end"]
    back = ", ".join(f"{seconds:.1f}" for seconds in healed[:5])
    # Only if it was verified: every row was compared after the last change.
    lost = ", nothing lost" if is_right(summary) else ""
    return [f"recorder  killed {times}, back after {back} s{lost}"]


def _wrong(difference: Fields) -> str:
    match difference["kind"]:
        case "missing":
            return "is missing in the target"
        case "extra":
            return "is in the target but should not be"
        case "causeless":
            return "is held by a dead letter but can be computed"
        case "letterless":
            return "cannot be computed but has no dead letter"
        case _:
            return f"differs in {', '.join(difference['columns'])}"


def _quantiles(hop: Fields) -> str:
    return f"p50 {millis(hop['p50_ms'])}, p95 {millis(hop['p95_ms'])}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _few(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


class DemoLines:
    """Prints a line for each step and some snapshots: text, or JSON for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._phase = ""
        self._next = 0.0

    def step(self, step: Fields) -> None:
        """Print the step."""
        self._print("step", step, [step_line(step)])

    def show(self, shown: Fields, _report: Fields) -> None:
        """Print the snapshot, if a line is due."""
        every = EVERY_SECONDS[shown["phase"]]
        if shown["phase"] != self._phase:
            # The step that starts the phase was just printed, so the first line comes later.
            self._phase, self._next = shown["phase"], shown["seconds"] + every
        if shown["seconds"] >= self._next:
            self._next = shown["seconds"] + every
            self._print("snapshot", shown, [snapshot_line(shown)])

    def summary(self, summary: Fields) -> None:
        """Print the summary."""
        self._print("summary", summary, summary_lines(summary))

    def _print(self, event: str, fields: Fields, lines: Sequence[str]) -> None:
        if self._as_json:
            print_event(event, **fields)
        else:
            click.echo("\n".join(lines))


# --- the live view --------------------------------------------------------------------------------


def picture(shown: Fields, report: Fields, data: str, console: Console) -> RenderableType:
    """Return the whole view; `report` has the fields of `Status`, `data` is the folder as typed."""
    top = live_view(report, ("--data", data))
    if shown["phase"] == "starting":
        # `top` already shows a bar for each copy.
        return Group(top, _line(waiting_text({**shown, "copies": []}), "dim"))
    blank = Text()
    head = Group(_title(shown), blank, top, blank, *_flow(shown), blank, _hops(shown), blank)
    room = console.height - len(console.render_lines(head)) - 1
    return Group(head, *map(_change, shown["changes"][: max(1, min(room, MOST_CHANGES))]))


def _title(shown: Fields) -> RenderableType:
    keys = "k kills the recorder, q to quit" if shown["killable"] else "q to quit"
    left = "ending" if shown["left"] is None else f"{shown['left']:.0f} s left, {keys}"
    row = Table.grid(expand=True)
    row.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    row.add_column(no_wrap=True, justify="right")
    row.add_row(Text("headrace demo", "bold"), Text(left, "dim"))
    return row


def _flow(shown: Fields) -> Iterator[Text]:
    """Yield a line for each of the four stages that a change passes."""
    spark, lookup = shown["spark"], shown["lookup"]
    again = f", {_count(shown['restarts'], 'restart')}" if shown["restarts"] else ""
    kind = KINDS.get(shown["kind"], shown["kind"])
    yield _stage("shop", f"{kind}, {shown['captured_rate']:.0f} changes/s{again}")
    log = f"{shown['flushes']:,} flushes, {size(shown['log_bytes'])}"
    yield _stage("change log", f"{shown['captured']:,} captured, {log}")
    if spark is None:
        yield _stage("Spark", "starting")
    else:
        # The URL first, so that it is not cut.
        pages = f"{spark['ui']}, " if spark["ui"] else ""
        jobs = f"{spark['jobs']:,} jobs, last {millis(spark['last_job_ms'])}: {spark['plan']}"
        yield _stage(
            f"Spark {spark['version']}", f"{pages}{spark['direct']:,} direct batches, {jobs}"
        )
    yield _stage("memory", f"{shown['applied']:,} applied at {shown['position']}")
    if lookup is not None:
        yield _stage("lookup", f"{lookup_text(lookup)}, found in {lookup['took_us']:,.0f} µs")


def _stage(name: str, text: str) -> Text:
    return _line(f"{name:<13}", "bold cyan").append(text, "default")


def _hops(shown: Fields) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, width=6)
    for _ in HOPS:
        table.add_column(no_wrap=True, justify="right", width=9)
    names = [name if name == "total" else f"→{name}" for name in HOPS]
    table.add_row("commit", *names, style="dim")
    hops = {hop["name"]: hop for hop in shown["hops"]}
    for label in ("p50", "p95"):
        cells = [millis(hops[name][f"{label}_ms"]) if name in hops else "." for name in HOPS]
        table.add_row(Text(label, "dim"), *cells[:-1], Text(cells[-1], "bold"))
    return table


def _change(change: Fields) -> Text:
    sign, colour = OPS[change["op"]]
    return _line(f"{sign} {change['key']:>6}  {change['text']}", colour)


def _line(text: str, style: str = "") -> Text:
    # The style applies to this text only: appended text has its own.
    return Text(no_wrap=True, overflow="ellipsis", end="\n").append(text, style)


class DemoScreen:
    """Draws the live view; steps stay above it, and the summary comes below the last one."""

    def __init__(self, live: Live, data: str) -> None:
        self._live = live
        self._data = data

    def step(self, step: Fields) -> None:
        """Print the step above the live view."""
        line = _line(f"{step['seconds']:6.1f} s  ", "dim").append(step["text"], "default")
        # A command in it may be pasted: the terminal may wrap it, but we must not.
        self._live.console.print(line, soft_wrap=True)

    def show(self, shown: Fields, report: Fields) -> None:
        """Draw the live view."""
        console = self._live.console
        self._live.update(picture(shown, report, self._data, console), refresh=True)

    def summary(self, summary: Fields) -> None:
        """Leave the last view on the terminal, and print the summary."""
        self._live.stop()
        for line in summary_lines(summary):
            style = ""
            if line.startswith("target = source"):
                style = "bold green" if is_right(summary) else "bold red"
            self._live.console.print(Text(line, style), soft_wrap=True)


@contextmanager
def demo_screen(folder: Path) -> Iterator[DemoScreen]:
    """Draw on the terminal, and restore it on exit."""
    # Drawn only by `show`, never by a thread of rich.
    with Live(
        console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop"
    ) as live:
        yield DemoScreen(live, as_typed(folder))
