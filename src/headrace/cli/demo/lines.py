"""
The demo as lines of text, and as lines of JSON.

Functions from frozen values to text, and two views that print what they return. How far the copy
of a table is, is given as a text and as a bar.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import click

from headrace.cli.demo.model import (
    Comparison,
    CustomerLookup,
    HeldRow,
    LastBatch,
    RowDifference,
    Snapshot,
    Step,
    Summary,
    as_fields,
)
from headrace.runtime.info import CopyInfo

if TYPE_CHECKING:
    from rich.console import RenderableType


# --- how far the copy of a table is ---------------------------------------------------------------

_BAR = 16
"""Narrow enough for a terminal of 60 columns."""

_INDENT = 10
"""As wide as the time before a line."""


def rows_text(copy: CopyInfo) -> str:
    """Return how many rows of how many are copied."""
    of = "" if copy.expected is None else f" of about {copy.expected:,}"
    return f"{copy.table}: {copy.rows:,}{of} rows copied"


def speed_text(copy: CopyInfo) -> str:
    """Return how fast it goes and how long it takes; empty before that is known."""
    parts = []
    if copy.rows_per_s > 0:
        parts.append(f"{copy.rows_per_s:,.0f} rows/s")
    if copy.left_seconds is not None:
        parts.append(f"{time_text(copy.left_seconds)} left")
    return ", ".join(parts)


def copy_text(copy: CopyInfo) -> str:
    """Return all of it, for a line of its own."""
    return ", ".join(part for part in (rows_text(copy), speed_text(copy)) if part)


def time_text(seconds: float) -> str:
    """Return a time, no finer than anybody could know it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def copy_bar(copy: CopyInfo) -> RenderableType:
    """Return a bar with its speed; one that only moves where nobody knows how long it is."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_column(min_width=_INDENT - 1)
    row.add_column(min_width=_BAR)
    row.add_column(no_wrap=True, justify="right", min_width=4)
    row.add_column(no_wrap=True, overflow="ellipsis")
    known = copy.expected is not None and copy.expected > 0
    share = copy.rows / copy.expected if copy.expected else 0.0
    bar = ProgressBar(total=copy.expected if known else None, completed=copy.rows, width=_BAR)
    row.add_row("", bar, f"{share:.0%}" if known else "", Text(speed_text(copy), "dim"))
    return row


# --- lines, and the views that print them ---------------------------------------------------------

EVERY_SECONDS = {"starting": 2.0, "running": 1.0, "closing": 2.0}
"""How often a snapshot becomes a line."""


def step_line(step: Step) -> str:
    """Return the line of something reached: its time, and what it was."""
    return f"{step.seconds:6.1f} s  {step.text}"


def snapshot_line(snapshot: Snapshot) -> str:
    """Return everything that moves, on one line."""
    at = f"{snapshot.seconds:6.1f} s  "
    if snapshot.phase != "running":
        return f"{at}{waiting_text(snapshot)}"
    parts = [
        f"{snapshot.captured:,} captured ({snapshot.captured_rate:.0f}/s), "
        f"{snapshot.applied:,} applied ({snapshot.applied_rate:.0f}/s), "
        f"{snapshot.rows or 0:,} rows"
    ]
    if total := snapshot.hop("total"):
        parts.append(f"p50 {millis(total.p50_ms)}, p95 {millis(total.p95_ms)}")
    if snapshot.letters:
        parts.append(letters_text(snapshot.letters))
    if snapshot.restarts:
        parts.append(f"recorder {snapshot.source_state}, {_count(snapshot.restarts, 'restart')}")
    if snapshot.changes:
        newest = snapshot.changes[0]
        parts.append(f"{newest.op} {newest.key}: {newest.text}")
    if snapshot.lookup:
        parts.append(lookup_text(snapshot.lookup))
    return at + " · ".join(parts)


def waiting_text(snapshot: Snapshot, *, whole: bool = True) -> str:
    """Return what is waited for, with what was captured meanwhile; `whole`: and how fast."""
    captured = f"{_count(snapshot.captured, 'change')} captured"
    if snapshot.phase == "closing":
        return f"closing, {captured}"
    if snapshot.source_state == "waiting":
        return snapshot.source_reason
    if snapshot.copies:
        copies = [copy_text(copy) if whole else rows_text(copy) for copy in snapshot.copies]
        return f"{'; '.join(copies)}, {captured}"
    if snapshot.spark is None:
        return f"Spark is starting, {captured}"
    return f"orders are {snapshot.state.replace('_', ' ')}, {captured}"


def summary_lines(summary: Summary) -> list[str]:
    """Return what was done, whether it was right, and what to try next."""
    last = summary.last
    jobs = f" by {last.spark.jobs:,} Spark jobs" if last.spark else ""
    # Short lines: they are also read on a terminal of 60 columns.
    lines = [
        "",
        f"written   {summary.written:,} changes",
        f"captured  {last.captured:,} changes in {last.flushes:,} flushes, {size(last.log_bytes)}",
        f"applied   {last.applied:,} changes{jobs}",
    ]
    if last.applied < last.captured:
        # Captured while Spark was starting, and then copied with the table.
        lines.append(
            f"          ({last.captured - last.applied:,} more came with the copy of the table)"
        )
    if total := last.hop("total"):
        hops = [f"{hop.name} {_few(hop.p50_ms)}" for hop in last.hops if hop.name != "total"]
        lines += [
            f"latency   p50 {millis(total.p50_ms)}, p95 {millis(total.p95_ms)}, commit to visible",
            f"p50 each  {', '.join(hops)} ms",
        ]
    if last.lookup:
        lines.append(f"lookup    {lookup_text(last.lookup)}")
    if summary.last_batch:
        lines += _batch_lines(summary.last_batch)
    lines += [f"letter    {letter_text(letter)}" for letter in last.letters]
    lines += _killed_lines(summary)
    lines += ["", *comparison_lines(summary.comparison)]
    if summary.last_batch and summary.last_batch.whole:
        lines += ["", *summary.last_batch.whole.splitlines()]
    if summary.commands:
        lines += ["", "try next"]
        for command in summary.commands:
            lines += [f"  # {command.about}", f"  {command.line}"]
    return lines


def comparison_lines(comparison: Comparison | None) -> list[str]:
    """Return the verdict; where rows differ, which ones and in what."""
    if comparison is None:
        return ["target = source: not known, the target did not reach the source's end in time"]
    held = [f"  ({held_text(comparison.held)})"] if comparison.held else []
    if comparison.equal:
        return [f"target = source: yes, {comparison.rows:,} rows compared", *held]
    return [
        f"target = source: NO, {comparison.rows:,} rows compared, these differ:",
        *(f"  order {each.key} {_wrong(each)}" for each in comparison.differences),
        *held,
    ]


def held_text(held: Sequence[int]) -> str:
    """Return which rows are not as in the source, because dead letters hold them."""
    some = ", ".join(str(key) for key in held[:3]) + (", …" if len(held) > 3 else "")
    if len(held) == 1:
        return f"1 row is held by a dead letter: order {some}"
    return f"{len(held):,} rows are held by dead letters: orders {some}"


def letters_text(letters: Sequence[HeldRow]) -> str:
    """Return how many letters there are, and how much is behind them."""
    behind = sum(letter.behind for letter in letters)
    text = _count(len(letters), "dead letter")
    return f"{text}, {_count(behind, 'change')} behind" if behind else text


def letter_text(letter: HeldRow) -> str:
    """Return why a row is held, and what waits with it."""
    behind = f", {_count(letter.behind, 'change')} behind it" if letter.behind else ""
    return f"order {letter.key}: {letter.code}{behind}"


def lookup_text(lookup: CustomerLookup) -> str:
    """Return the lookup as a sentence."""
    return f"customer {lookup.customer}: {lookup.orders:,} orders, {money(lookup.paid_cents)} paid"


def money(cents: int) -> str:
    """Return an amount as people write it."""
    return f"{cents / 100:,.2f}"


def millis(value: float) -> str:
    """Return milliseconds, with a digit more where they are few."""
    return f"{_few(value)} ms"


def size(count: int) -> str:
    """Return bytes, in the unit that fits."""
    if count < 1_000_000:
        return f"{count / 1_000:.0f} kB"
    return f"{count / 1_000_000:.1f} MB"


def _batch_lines(batch: LastBatch) -> list[str]:
    out = "" if batch.rows_out is None else f", {batch.rows_out:,} out"
    lines = [f"last job  {_count(batch.rows_in, 'row')} in{out}, {millis(batch.ms)}"]
    # Whole names of operators only, the way they are passed from the files to the result.
    return lines + textwrap.wrap(
        batch.plan,
        60,
        initial_indent="plan      ",
        subsequent_indent=" " * 10,
        break_on_hyphens=False,
    )


def _killed_lines(summary: Summary) -> list[str]:
    if not summary.healed:
        return []
    times = "once" if len(summary.healed) == 1 else f"{len(summary.healed)} times"
    if None in summary.healed:
        return [f"recorder  killed {times}, not back by the end"]
    back = ", ".join(f"{seconds:.1f}" for seconds in summary.healed[:5] if seconds is not None)
    # Said only where it was looked at: every row was compared after the last change.
    lost = ", nothing lost" if summary.right else ""
    return [f"recorder  killed {times}, back after {back} s{lost}"]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _few(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _wrong(difference: RowDifference) -> str:
    match difference.kind:
        case "missing":
            return "is missing in the target"
        case "extra":
            return "is in the target and should not be"
        case "causeless":
            return "is held by a dead letter, and can be computed"
        case "letterless":
            return "cannot be computed, and no dead letter says so"
        case _:
            return f"differs in {', '.join(difference.columns)}"


class _Lines:
    """A view that prints a line for some of what it is shown."""

    def __init__(self) -> None:
        self._phase = ""
        self._next = 0.0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def _is_due(self, snapshot: Snapshot) -> bool:
        if snapshot.phase != self._phase:
            # The step that began the phase was just told; the first line comes after a while.
            self._phase = snapshot.phase
            self._next = snapshot.seconds + EVERY_SECONDS[snapshot.phase]
        if snapshot.seconds < self._next:
            return False
        self._next = snapshot.seconds + EVERY_SECONDS[snapshot.phase]
        return True


class PlainView(_Lines):
    """For people without a terminal: pipes, files, CI."""

    def __enter__(self) -> PlainView:
        return self

    def step(self, step: Step) -> None:
        """Print the step."""
        click.echo(step_line(step))

    def show(self, snapshot: Snapshot) -> None:
        """Print the snapshot, if a line is due."""
        if self._is_due(snapshot):
            click.echo(snapshot_line(snapshot))

    def summary(self, summary: Summary) -> None:
        """Print the end."""
        click.echo("\n".join(summary_lines(summary)))


class DemoJsonView(_Lines):
    """For programs: one object a line, each with its `event`."""

    def __enter__(self) -> DemoJsonView:
        return self

    def step(self, step: Step) -> None:
        """Print the step."""
        self._print(step)

    def show(self, snapshot: Snapshot) -> None:
        """Print the snapshot, if a line is due."""
        if self._is_due(snapshot):
            self._print(snapshot)

    def summary(self, summary: Summary) -> None:
        """Print the end."""
        self._print(summary)

    def _print(self, shown: Step | Snapshot | Summary) -> None:
        click.echo(json.dumps(as_fields(shown), ensure_ascii=False))
