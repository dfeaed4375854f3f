"""
Rows and changes as a person reads them.

Values are row data: nothing in them may move the cursor of a terminal or pass for markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

SHORT = 60
"""Characters of a value in a table of rows; `--json` has all of it."""

_OPS = {
    "insert": ("+", "green"),
    "update": ("~", "yellow"),
    "delete": ("-", "red"),
    "truncate": ("!", "magenta"),
}


def row_table(columns: Sequence[Mapping[str, str]], rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return rows as a table."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    names = [column["name"] for column in columns]
    for name in names:
        shown.add_column(Text(safe(name)), overflow="fold")
    for row in rows:
        shown.add_row(*(Text(value_text(row.get(name))) for name in names))
    return shown


def row_page(columns: Sequence[Mapping[str, str]], row: Mapping[str, Any]) -> Table:
    """Return one row, a column a line, with every value in full."""
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for column in columns:
        name = column["name"]
        shown.add_row(Text(safe(name)), Text(value_text(row.get(name), None)))
    return shown


def change_line(change: Mapping[str, Any]) -> Text:
    """Return a change in a line: what happened to which row, and what is different now."""
    sign, style = _OPS[change["op"]]
    key = ", ".join(value_text(value) for value in change["key"])
    before, after = change["before"], change["after"]
    if before is not None and after is not None:
        told = [
            f"{safe(name)} {value_text(before.get(name))} → {value_text(after.get(name))}"
            for name in after
            if name not in before or before[name] != after[name]
        ]
    else:
        row = after if after is not None else before or {}
        told = [f"{safe(name)} {value_text(value)}" for name, value in row.items()]
    return Text.assemble(
        (f"{change['position']} ", "dim"),
        (f"{sign} {change['op']:<8} ", style),
        (key, "bold"),
        f"  {', '.join(told)}" if told else "",
    )


def value_text(value: object, most: int | None = SHORT) -> str:
    """Return a value so that text, number and null can be told apart where it matters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict) and set(value) == {"kind", "value"}:
        value = f"{value['value']}"
    text = safe("'null'" if value == "null" else str(value))
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def safe(text: str) -> str:
    """Return the text with everything that a terminal would obey written out."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
