"""
The state of an engine as a person reads it: a table, and what is to be said beneath it.

What is shown are the fields of the verb `Status`; nothing is made greener than they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.interfaces.cli.copies import copy_bar, copy_text, time_text

_COLUMNS = ("PIPELINE", "SOURCE", "TARGET", "STATE", "ROWS", "LAG", "RATE", "POSITION")
_NUMBERS = ("ROWS", "LAG", "RATE")
_GREEN = ("streaming", "complete")
_RED = ("failed", "stopped")
_WELL = ("streaming", "watching")

UNKNOWN = "-"


def status_view(told: Mapping[str, Any]) -> RenderableType:
    """Return everything: the table, copies under way, what is wrong, and whether all is ready."""
    parts: list[RenderableType] = []
    if told["pipelines"]:
        parts.append(status_table(told))
    for source in told["sources"]:
        parts += [Text(copy_text(copy), "cyan") for copy in source["copies"]]
    parts += list(remarks(told))
    parts.append(ready_line(told))
    return Group(*parts)


def live_view(told: Mapping[str, Any]) -> RenderableType:
    """Return the same for a picture that is drawn again and again, with bars for copies."""
    parts: list[RenderableType] = []
    if told["pipelines"]:
        parts.append(status_table(told))
    for source in told["sources"]:
        parts += [copy_bar(copy) for copy in source["copies"]]
    parts += list(remarks(told))
    parts.append(ready_line(told))
    return Group(*parts)


def status_table(told: Mapping[str, Any]) -> Table:
    """Return the table of pipelines."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in _COLUMNS:
        right = name in _NUMBERS
        shown.add_column(name, justify="right" if right else "left", no_wrap=True)
    for each in told["pipelines"]:
        shown.add_row(
            each["name"],
            each["source"],
            each["target"],
            Text(state_text(each), _style(each)),
            UNKNOWN if each["rows"] is None else f"{each['rows']:,}",
            lag_text(each["lag_seconds"]),
            rate_text(each["rate_per_s"]),
            each["position"],
        )
    return shown


def state_text(pipeline: Mapping[str, Any]) -> str:
    """Return a pipeline's state in plain words."""
    return str(pipeline["state"]).replace("_", " ")


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


def remarks(told: Mapping[str, Any]) -> Iterator[Text]:
    """Yield what the table has no column for: whatever is wrong or waits, with the remedy."""
    for source in told["sources"]:
        if source["state"] not in _WELL or source["error"]:
            why = source["reason"] or (source["error"] or {}).get("message", "")
            yield _remark(f"source {source['name']} is {source['state']}", why, source["error"])
        yield from _left_out(f"source {source['name']}", source["left_out"])
    for each in told["pipelines"]:
        name = f"pipeline {each['name']}"
        if each["error"]:
            yield _remark(f"{name} is {state_text(each)}", each["error"]["message"], each["error"])
        elif each["reason"] and not each["reason"].startswith("source "):
            yield _remark(f"{name} is {state_text(each)}", each["reason"], None)
        if each["state"] == "paused":
            yield Text(f"• {name} is paused → headrace resume {each['name']}", "yellow")
        if each["set_aside"] and not each["error"]:
            yield _remark(name, each["set_aside"]["message"], each["set_aside"])
        if count := each["dead_letters"]:
            plural = "" if count == 1 else "s"
            yield Text(
                f"• {name} has {count:,} dead letter{plural} →"
                f" headrace dead-letters list {each['name']}",
                "yellow",
            )
        yield from _left_out(name, each["left_out"])


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


def _remark(what: str, why: str, error: Mapping[str, Any] | None) -> Text:
    line = f"• {what}{f': {why}' if why else ''}"
    if error is not None:
        line += f"\n  → {error['remedy']}\n  {error['code']}"
    return Text(line, "red" if error is not None else "yellow")


def _left_out(of: str, errors: Mapping[str, Mapping[str, Any]]) -> Iterator[Text]:
    for table, error in errors.items():
        yield _remark(f"{of} leaves out {table}", error["message"], error)


def _style(pipeline: Mapping[str, Any]) -> str:
    if pipeline["state"] in _RED or pipeline["state"] == "not_ready":
        return "bold red"
    return "green" if pipeline["state"] in _GREEN and pipeline["ready"] else "yellow"
