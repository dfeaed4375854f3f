"""How far the copy of a table is: as a text, and as a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.control.info import CopyInfo

if TYPE_CHECKING:
    from rich.console import RenderableType

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
