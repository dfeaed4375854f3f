"""
`headrace try`: a pipeline's filters and transforms on a few real rows.

The rows before and after are shown as a table, or one row on each line if the table is too wide.
Values are row data: nothing in them may move the cursor of a terminal or be taken for markup.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import errors
from headrace.cli.common import (
    config_options,
    json_option,
    output_console,
    printable,
    read_configuration,
    value_text,
)
from headrace.cli.replay import chosen, spark_alone
from headrace.extras import require

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from headrace.engine.preview import PreviewRow, TriedTable
    from headrace.pipeline.definition import Pipeline

__all__ = [
    "title",
    "view",
]

ROWS = 20
MOST_ROWS = 10_000
_WAITS = "Starting Spark and computing …"


@click.command("try", short_help="Try a pipeline's filters and transforms on a few rows.")
@click.argument("pipeline")
@config_options
@click.option(
    "--rows",
    "most",
    type=click.IntRange(1, MOST_ROWS),
    default=ROWS,
    metavar="N",
    help=f"Maximum number of rows of each table (default {ROWS}).",
)
@click.option("--table", metavar="TABLE", help="Only this table.")
@json_option
def try_(
    pipeline: str,
    config: Path | None,
    sets: tuple[str, ...],
    most: int,
    table: str | None,
    as_json: bool,
) -> int:
    """
    Run the filters and transforms of PIPELINE on a few rows of its tables, and show the result.

    Nothing is delivered, and nothing is left behind: no slot, publication or trigger in the
    database, and no data directory. The rows are read once and computed by a Spark on this
    machine, which takes a few seconds to start. Exits with code 1 if a row cannot be computed;
    in a run it would become a dead letter.

    With --json each line is a row: table, outcome (passed, filtered, failed), before, after,
    failed (the error code) and facts. Values have the form that headrace log read prints.
    """
    from headrace.engine.preview import take_samples, try_rows

    require("spark", "Trying a pipeline")
    found = read_configuration(config, sets, warn=not as_json)
    asked = chosen(found, pipeline)
    samples = take_samples(asked, most, table)
    for error in samples.left_out.values():
        errors.print_warning(error)
    if not samples.tables:
        click.echo("No table to try.", err=True)
        return errors.DONE
    failed = 0
    conf = _on_this_machine(found.spark.conf)
    with _waiting(as_json=as_json) as over, spark_alone(conf) as runner:
        for tried in try_rows(asked, samples.tables, runner):
            over()
            _print(tried, as_json=as_json)
            failed += tried.count("failed")
    if failed and not as_json:
        click.echo(f"! {_consequence(asked, failed)}", err=True)
    return errors.FAILED if failed else errors.DONE


def _on_this_machine(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings without a cluster, whose machines cannot see a temporary folder here."""
    return {
        name: value
        for name, value in conf.items()
        if name != "spark.master" or value.startswith("local")
    }


@contextmanager
def _waiting(*, as_json: bool) -> Iterator[Callable[[], None]]:
    """Show on stderr that Spark is working; the function that is yielded ends it."""
    if not sys.stderr.isatty():
        if not as_json:
            click.echo(_WAITS, err=True)
        yield lambda: None
        return
    from rich.console import Console

    with Console(stderr=True).status(_WAITS) as status:
        yield status.stop


def _print(tried: TriedTable, *, as_json: bool) -> None:
    if as_json:
        _print_lines(tried)
        return

    out = output_console()
    out.print(title(tried))
    if tried.rows:
        out.print(view(tried, out.width))


def _print_lines(tried: TriedTable) -> None:
    from headrace.cli.log_formats import as_line

    for row in tried.rows:
        fields = {
            "table": tried.table,
            "outcome": row.outcome,
            "before": row.row_before,
            "after": row.row_after,
            "failed": row.failed,
            "facts": dict(row.facts),
        }
        click.echo(as_line(fields).decode(), nl=False)


def _consequence(pipeline: Pipeline, failed: int) -> str:
    """Return what would happen to the failed rows in a run."""
    allowed = pipeline.most_failures
    if not allowed:
        return "In a run the pipeline would stop at the first row that fails."
    if failed > allowed:
        most = f"{allowed:,} failed row{'' if allowed == 1 else 's'}"
        return f"In a run the pipeline would stop: a batch may have at most {most}."
    which = "this row" if failed == 1 else "each of these rows"
    return f"In a run {which} would become a dead letter, and later changes of it would wait."


# --- the view of rows before and after ------------------------------------------------------------

_SYMBOLS = {"passed": ("✓", "green"), "filtered": ("-", "dim"), "failed": ("✗", "red")}
_CHANGED, _NEW = "bold yellow", "bold green"
_WIDE = 10_000


def title(tried: TriedTable) -> Text:
    """Return how many rows passed, were filtered and failed, and which columns were dropped."""
    from rich.text import Text

    count = len(tried.rows)
    parts = [
        f"{tried.count('passed'):,} passed",
        f"{tried.count('filtered'):,} filtered",
        f"{tried.count('failed'):,} failed",
    ]
    counts = f": {count:,} row{'' if count == 1 else 's'}, {', '.join(parts)}"
    text = Text.assemble((printable(tried.table), "bold"), counts if count else ": no rows")
    if gone := [name for name in tried.before.names if name not in tried.after.names]:
        text.append(f"; dropped {printable(', '.join(gone))}", "dim")
    return text


def view(tried: TriedTable, width: int) -> RenderableType:
    """Return the rows: as a table if it fits."""
    from rich.console import Console, Group

    table = _table(tried)
    if Console(width=_WIDE).measure(table).maximum <= width:
        return table
    return Group(*(_line(tried, row) for row in tried.rows))


def _table(tried: TriedTable) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("", no_wrap=True)
    old = set(tried.before.names)
    for name in tried.after.names:
        shown.add_column(Text(printable(name), style="" if name in old else _NEW), overflow="fold")
    why = any(row.outcome != "passed" for row in tried.rows)
    if why:
        shown.add_column("", overflow="fold")
    for row in tried.rows:
        mark, style = _SYMBOLS[row.outcome]
        cells = [Text(mark, style=style), *(_cell(row, name) for name in tried.after.names)]
        if why:
            cells.append(_why(row))
        shown.add_row(*cells, style="dim" if row.outcome == "filtered" else None)
    return shown


def _cell(row: PreviewRow, name: str) -> Text:
    from rich.text import Text

    before, after = row.row_before, row.row_after
    if after is None:
        return Text(value_text(before[name]) if name in before else "")
    if name not in before:
        return Text(value_text(after[name]), style=_NEW)
    if _same(before[name], after[name]):
        return Text(value_text(after[name]))
    return Text.assemble(f"{value_text(before[name])} → ", (value_text(after[name]), _CHANGED))


def _line(tried: TriedTable, row: PreviewRow) -> Text:
    """Return one row as a line: its key, and what changed."""
    from rich.text import Text

    mark, style = _SYMBOLS[row.outcome]
    key = tried.before.key or tried.before.names
    named = ", ".join(value_text(row.row_before[name]) for name in key)
    line = Text.assemble((f"{mark} ", style), (named, "bold"), "  ")
    if row.row_after is None:
        return line.append_text(_why(row))
    changes = list(_changes(row.row_before, row.row_after))
    return line.append_text(Text(", ").join(changes) if changes else Text("unchanged", style="dim"))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Text]:
    from rich.text import Text

    for name, value in after.items():
        if name not in before:
            yield Text.assemble(f"{printable(name)} ", (value_text(value), _NEW))
        elif not _same(before[name], value):
            yield Text.assemble(
                f"{printable(name)} {value_text(before[name])} → ", (value_text(value), _CHANGED)
            )


def _why(row: PreviewRow) -> Text:
    from rich.text import Text

    if row.failed is None:
        return Text("filtered out" if row.row_after is None else "", style="dim")
    facts = ", ".join(f"{name} {text}" for name, text in row.facts.items())
    return Text(printable(f"{row.failed}: {facts}" if facts else row.failed), style="red")


def _same(before: object, after: object) -> bool:
    # 1, 1.0 and true are equal in Python, but not for a reader of the output.
    return type(before) is type(after) and before == after
