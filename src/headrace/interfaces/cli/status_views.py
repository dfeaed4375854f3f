"""
The state of an engine as a person reads it: a table, and what is to be said beneath it.

What is shown are the fields of the verb `Status`; nothing is made greener than they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headrace.interfaces.cli.copies import copy_bar, copy_text, time_text
from headrace.interfaces.cli.remarks import Remark, remarks, state_text

_COLUMNS = ("PIPELINE", "SOURCE", "TARGET", "STATE", "ROWS", "LAG", "RATE", "POSITION")
_NUMBERS = ("ROWS", "LAG", "RATE")
_FIRST_TO_GO = ("POSITION", "TARGET", "SOURCE")
_ANY_WIDTH = 10_000
_GREEN = ("streaming", "complete")
_RED = ("failed", "stopped")

UNKNOWN = "-"


def status_view(told: Mapping[str, Any]) -> RenderableType:
    """Return everything: the table, copies under way, what is wrong, and whether all is ready."""
    parts: list[RenderableType] = []
    if told["pipelines"]:
        parts.append(status_table(told))
    for source in told["sources"]:
        parts += [Text(copy_text(copy), "cyan") for copy in source["copies"]]
    parts += map(remark_text, remarks(told))
    parts.append(ready_line(told))
    return Group(*parts)


def live_view(told: Mapping[str, Any]) -> RenderableType:
    """Return the same for a picture that is drawn again and again, with bars for copies."""
    parts: list[RenderableType] = []
    if told["pipelines"]:
        parts.append(status_table(told))
    for source in told["sources"]:
        parts += [copy_bar(copy) for copy in source["copies"]]
    parts += map(remark_text, remarks(told))
    parts.append(ready_line(told))
    return Group(*parts)


def status_table(told: Mapping[str, Any]) -> RenderableType:
    """Return the table of pipelines, with those columns that there is room for."""
    return _Fitted(told["pipelines"])


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table that leaves columns out, because a figure that is cut is a wrong one."""

    pipelines: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for count in range(len(_FIRST_TO_GO) + 1):
            shown = [name for name in _COLUMNS if name not in _FIRST_TO_GO[:count]]
            table = self._table(shown)
            wide = Measurement.get(console, options.update(max_width=_ANY_WIDTH), table)
            if wide.maximum <= options.max_width:
                break
        else:
            # No room for the figures either, unless a long name goes on in the next line.
            table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
        yield table

    def _table(self, columns: Sequence[str]) -> Table:
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in columns:
            right = name in _NUMBERS
            shown.add_column(name, justify="right" if right else "left", no_wrap=True)
        for each in self.pipelines:
            cells = _cells(each)
            shown.add_row(*(cells[name] for name in columns))
        return shown


def _cells(pipeline: Mapping[str, Any]) -> dict[str, RenderableType]:
    return {
        "PIPELINE": pipeline["name"],
        "SOURCE": pipeline["source"],
        "TARGET": pipeline["target"],
        "STATE": Text(state_text(pipeline), _style(pipeline)),
        "ROWS": UNKNOWN if pipeline["rows"] is None else f"{pipeline['rows']:,}",
        "LAG": lag_text(pipeline["lag_seconds"]),
        "RATE": rate_text(pipeline["rate_per_s"]),
        "POSITION": pipeline["position"],
    }


def lag_text(seconds: float | None) -> str:
    """Return a lag in the unit that fits."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else time_text(seconds)


def rate_text(rate: float | None) -> str:
    """Return changes a second."""
    if rate is None:
        return UNKNOWN
    return f"{rate:,.0f}/s" if rate >= 10 or rate == int(rate) else f"{rate:.1f}/s"


def remark_text(remark: Remark) -> Text:
    """Return what the table has no column for, with what to do about it."""
    line = f"• {remark.what}{f': {remark.why}' if remark.why else ''}"
    if remark.wrong:
        return Text(f"{line}\n  → {remark.remedy}\n  {remark.code}", "red")
    return Text(f"{line} → {remark.remedy}" if remark.remedy else line, "yellow")


def ready_line(told: Mapping[str, Any]) -> Text:
    """Return whether everything is ready, or how far the engine is."""
    since = f"pid {told['pid']}, up {time_text(told['seconds'])}"
    if told["ready"]:
        return Text(f"✓ ready ({since})", "green")
    if told["phase"] != "running":
        step = f": {told['step']}" if told["step"] else ""
        return Text(f"… {told['phase']}{step} ({since})", "yellow")
    waits = [each["name"] for each in told["pipelines"] if not each["ready"]]
    names = f": {', '.join(waits)}" if waits else ""
    return Text(f"✗ not ready{names} ({since})", "bold red")


def _style(pipeline: Mapping[str, Any]) -> str:
    if pipeline["state"] in _RED or pipeline["state"] == "not_ready":
        return "bold red"
    return "green" if pipeline["state"] in _GREEN and pipeline["ready"] else "yellow"
