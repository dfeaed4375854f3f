"""`headrace try`: a pipeline's filters and transforms on a few real rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.options import config_options, json_option
from headrace.interfaces.cli.reading import read_configuration
from headrace.interfaces.cli.replay import chosen, spark_alone

if TYPE_CHECKING:
    from headrace.control.trying import TriedTable
    from headrace.pipeline.definition import Pipeline

ROWS = 20
MOST_ROWS = 10_000
_WAITS = "Spark starts and computes …"


@click.command("try", short_help="Run a pipeline's steps over a few rows, and show them.")
@click.argument("pipeline")
@config_options
@click.option(
    "--rows",
    "most",
    type=click.IntRange(1, MOST_ROWS),
    default=ROWS,
    metavar="N",
    help=f"So many rows of each table at most; {ROWS} by default.",
)
@click.option("--table", metavar="TABLE", help="Of this table alone.")
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
    Run the filters and transforms of a PIPELINE over a few rows of its tables, and show both.

    Nothing is started or delivered and nothing is left behind: no slot, publication or trigger
    at the database, no data directory. The rows are read once, and computed by a Spark of its
    own on this machine, which takes a few seconds to start. Ends with exit code 1 where a row
    cannot be computed: in a run it would be a dead letter.

    With --json each line is a row: table, outcome (passed, filtered, failed), before, after,
    failed (the code) and facts. Values are as headrace log read has them.
    """
    from headrace.control.trying import take_samples, try_rows

    found = read_configuration(config, sets, warn=not as_json)
    asked = chosen(found, pipeline)
    samples = take_samples(asked, most, table)
    for error in samples.left_out.values():
        show.print_warning(error)
    if not samples.tables:
        click.echo("No table to try.", err=True)
        return show.DONE
    failed = 0
    conf = _on_this_machine(found.spark.conf)
    with _waiting(as_json=as_json) as over, spark_alone(conf) as runner:
        for tried in try_rows(asked, samples.tables, runner):
            over()
            _print(tried, as_json=as_json)
            failed += tried.count("failed")
    if failed and not as_json:
        click.echo(f"! {_consequence(asked, failed)}", err=True)
    return show.FAILED if failed else show.DONE


def _on_this_machine(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Leave a cluster out of it: its machines do not see a temporary folder of this one."""
    return {
        name: value
        for name, value in conf.items()
        if name != "spark.master" or value.startswith("local")
    }


@contextmanager
def _waiting(*, as_json: bool) -> Iterator[Callable[[], None]]:
    """Show on stderr what is waited for; the function given ends that."""
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
    from headrace.interfaces.cli.try_views import console, title, view

    out = console()
    out.print(title(tried))
    if tried.rows:
        out.print(view(tried, out.width))


def _print_lines(tried: TriedTable) -> None:
    from headrace.interfaces.cli.change_json import as_line

    for row in tried.rows:
        told = {
            "table": tried.table,
            "outcome": row.outcome,
            "before": row.row_before,
            "after": row.row_after,
            "failed": row.failed,
            "facts": dict(row.facts),
        }
        click.echo(as_line(told).decode(), nl=False)


def _consequence(pipeline: Pipeline, failed: int) -> str:
    """Return what a run would make of rows that fail."""
    allowed = pipeline.most_failures
    if not allowed:
        return "In a run the pipeline would stop at the first row that fails."
    if failed > allowed:
        return f"In a run the pipeline would stop: {allowed:,} rows of a batch may fail."
    one = failed == 1
    return f"In a run {'it' if one else 'each'} would be a dead letter, and its row held."
