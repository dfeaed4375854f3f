"""How far the copy of a table is, from the fields of the verb `Status`: as text and as a bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR = 24


def copy_text(copy: Mapping[str, Any]) -> str:
    """Return rows, speed and time left, in a line."""
    of = "" if copy["expected"] is None else f" of about {copy['expected']:,}"
    parts = [f"copying {copy['table']}: {copy['rows']:,}{of} rows", speed_text(copy)]
    if copy["waits"]:
        parts.append(f"waits for {copy['waits']}")
    return ", ".join(part for part in parts if part)


def speed_text(copy: Mapping[str, Any]) -> str:
    """Return how fast it goes and how long it takes; empty before that is known."""
    parts = []
    if copy["rows_per_s"]:
        parts.append(f"{copy['rows_per_s']:,.0f} rows/s")
    if copy["left_seconds"] is not None:
        parts.append(f"{time_text(copy['left_seconds'])} left")
    return ", ".join(parts)


def time_text(seconds: float) -> str:
    """Return a time, no finer than anybody could know it."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def copy_bar(copy: Mapping[str, Any]) -> RenderableType:
    """Return a bar with its speed; one that only moves where nobody knows how long it is."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True)
    row.add_column(min_width=_BAR)
    row.add_column(no_wrap=True, justify="right", min_width=4)
    row.add_column(no_wrap=True, overflow="ellipsis")
    expected = copy["expected"]
    share = f"{copy['rows'] / expected:.0%}" if expected else ""
    bar = ProgressBar(total=expected or None, completed=copy["rows"], width=_BAR)
    told = f"{copy['rows']:,} rows{', ' if speed_text(copy) else ''}{speed_text(copy)}"
    row.add_row(f"copying {copy['table']}", bar, share, Text(told, "dim"))
    return row
