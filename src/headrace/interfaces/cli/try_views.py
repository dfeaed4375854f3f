"""
Rows before and after, as a person reads them: a table, or a line a row where that is too wide.

Values are row data: nothing in them may move the cursor of a terminal or pass for markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.control.trying import Tried, TriedTable
from headrace.interfaces.cli.letter_views import console
from headrace.interfaces.cli.row_views import value_text

__all__ = ["console", "title", "view"]

_MARKS = {"passed": ("✓", "green"), "filtered": ("-", "dim"), "failed": ("✗", "red")}
_CHANGED, _NEW = "bold yellow", "bold green"
_WIDE = 10_000


def title(tried: TriedTable) -> Text:
    """Return what became of how many rows, and of which columns."""
    count = len(tried.rows)
    parts = [
        f"{tried.count('passed'):,} pass",
        f"{tried.count('filtered'):,} left out",
        f"{tried.count('failed'):,} failed",
    ]
    told = f": {count:,} row{'' if count == 1 else 's'}, {', '.join(parts)}"
    text = Text.assemble((_words(tried.table), "bold"), told if count else ": no rows")
    if gone := [name for name in tried.before.names if name not in tried.after.names]:
        text.append(f"; without {_words(', '.join(gone))}", "dim")
    return text


def view(tried: TriedTable, width: int) -> RenderableType:
    """Return the rows: as a table if it fits."""
    table = _table(tried)
    if Console(width=_WIDE).measure(table).maximum <= width:
        return table
    return Group(*(_line(tried, row) for row in tried.rows))


def _table(tried: TriedTable) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("", no_wrap=True)
    old = set(tried.before.names)
    for name in tried.after.names:
        shown.add_column(Text(_words(name), style="" if name in old else _NEW), overflow="fold")
    why = any(row.outcome != "passed" for row in tried.rows)
    if why:
        shown.add_column("", overflow="fold")
    for row in tried.rows:
        mark, style = _MARKS[row.outcome]
        cells = [Text(mark, style=style), *(_cell(row, name) for name in tried.after.names)]
        if why:
            cells.append(_why(row))
        shown.add_row(*cells, style="dim" if row.outcome == "filtered" else None)
    return shown


def _cell(row: Tried, name: str) -> Text:
    before, after = row.row_before, row.row_after
    if after is None:
        return Text(_value(before[name]) if name in before else "")
    if name not in before:
        return Text(_value(after[name]), style=_NEW)
    if _same(before[name], after[name]):
        return Text(_value(after[name]))
    return Text.assemble(f"{_value(before[name])} → ", (_value(after[name]), _CHANGED))


def _line(tried: TriedTable, row: Tried) -> Text:
    """Return one row in a line: which it is, and what is different of it."""
    mark, style = _MARKS[row.outcome]
    key = tried.before.key or tried.before.names
    named = ", ".join(_value(row.row_before[name]) for name in key)
    line = Text.assemble((f"{mark} ", style), (named, "bold"), "  ")
    if row.row_after is None:
        return line.append_text(_why(row))
    told = list(_changes(row.row_before, row.row_after))
    return line.append_text(Text(", ").join(told) if told else Text("as it was", style="dim"))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Text]:
    for name, value in after.items():
        if name not in before:
            yield Text.assemble(f"{_words(name)} ", (_value(value), _NEW))
        elif not _same(before[name], value):
            yield Text.assemble(
                f"{_words(name)} {_value(before[name])} → ", (_value(value), _CHANGED)
            )


def _why(row: Tried) -> Text:
    if row.failed is None:
        return Text("left out by a filter" if row.row_after is None else "", style="dim")
    facts = ", ".join(f"{name} {text}" for name, text in row.facts.items())
    return Text(_words(f"{row.failed}: {facts}" if facts else row.failed), style="red")


def _words(text: str) -> str:
    return value_text(text, None)


def _value(value: object) -> str:
    # Of a value that needs its kind beside it in JSON: the value.
    if isinstance(value, dict) and len(value) == 1 and set(value) <= {"exact", "bytes", "float"}:
        (value,) = value.values()
    return value_text(value)


def _same(before: object, after: object) -> bool:
    # 1, 1.0 and true are one to Python, and not to whoever reads them.
    return type(before) is type(after) and before == after
