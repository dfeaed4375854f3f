"""`headrace watch`: changes of a table as they become visible."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.reaching import caution, pipeline_names, reach


@click.command(short_help="Follow the changes of a table.")
@click.argument("pipeline", shell_complete=pipeline_names)
@engine_options
@click.option("--rows", is_flag=True, help="Begin with the rows there are, as inserts.")
@click.option("--table", metavar="TABLE", help="Of a pipeline with several tables.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after so many changes.")
@json_option
def watch(
    pipeline: str,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    rows: bool,
    table: str | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """
    Print every change of a PIPELINE whose target is in memory, each after it is visible.

    Ends with Ctrl-C, or when the engine stops. Who reads too slowly is told so and let go:
    tables.fell_behind. With --json each line is a change with both images.
    """
    messages = reach(config, sets, data).stream("Watch", pipeline=pipeline, table=table, rows=rows)
    caution(pipeline, next(messages))
    if not as_json:
        from headrace.interfaces.cli.letter_views import console
        from headrace.interfaces.cli.row_views import change_line

        out = console()
    seen = 0
    try:
        for change in messages:
            if "op" not in change:
                continue  # the table got other columns
            if as_json:
                click.echo(json.dumps(change, ensure_ascii=False))
            else:
                out.print(change_line(change), soft_wrap=True)
            seen += 1
            if seen == limit:
                return show.DONE
    except KeyboardInterrupt:
        return show.DONE
    click.echo("The engine stopped.", err=True)
    return show.DONE
