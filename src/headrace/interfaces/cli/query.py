"""`headrace query`: rows that a running engine holds in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.reaching import caution, pipeline_names, reach

if TYPE_CHECKING:
    from headrace.interfaces.control.client import Control

FIRST_ROWS = 20


@click.command(short_help="Look up rows: by key, by index, or all.")
@click.argument("pipeline", shell_complete=pipeline_names)
@click.argument("values", nargs=-1)
@engine_options
@click.option("--key", multiple=True, metavar="VALUE", help="The row with this key.")
@click.option(
    "--lookup", multiple=True, metavar="VALUE", help="The row with this in the unique lookup."
)
@click.option("--index", metavar="NAME", help="The rows with VALUES in this index.")
@click.option("--all", "every", is_flag=True, help="Every row.")
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="So many rows at most; 20 by default."
)
@click.option("--count", is_flag=True, help="How many rows there are.")
@click.option("--table", metavar="TABLE", help="Of a pipeline with several tables.")
@json_option
def query(
    pipeline: str,
    values: tuple[str, ...],
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    key: tuple[str, ...],
    lookup: tuple[str, ...],
    index: str | None,
    every: bool,
    limit: int | None,
    count: bool,
    table: str | None,
    as_json: bool,
) -> int:
    """
    Print rows of a PIPELINE whose target is in memory, as they are now.

    A key or index of several columns takes its VALUES in their order: --key 7 2026, --index
    by_day 7 2026; one that begins with a dash stands after --. Without a choice the first
    rows are shown. A key or lookup that has no row ends with exit code 1. Rows of a pipeline
    that is not ready are shown with a word about it on stderr.

    With --json each line is a row. Whole numbers beyond 2^53 and decimals are text, bytes
    are base64; with --count it is one object.
    """
    chosen = [bool(key), bool(lookup), index is not None, every, count]
    if sum(chosen) > 1:
        raise click.UsageError("Choose one of --key, --lookup, --index, --all and --count.")
    if values and not (key or lookup or index is not None):
        raise click.UsageError("VALUES are those of --key, --lookup or --index.")
    if limit is not None and (key or lookup or count):
        raise click.UsageError("--limit is for --index, --all and the first rows.")
    control = reach(config, sets, data)
    if count:
        told = control.call("Query", pipeline=pipeline, table=table)
        caution(pipeline, told)
        click.echo(json.dumps({"count": told["count"]}) if as_json else f"{told['count']:,}")
        return show.DONE
    if key or lookup:
        asked: dict[str, Any] = {"key" if key else "lookup": [*(key or lookup), *values]}
        told = control.call("Query", pipeline=pipeline, table=table, **asked)
        caution(pipeline, told)
        return _one(told, as_json=as_json)
    if index is not None:
        told = control.call(
            "Query", pipeline=pipeline, table=table, index=index, values=[*values], limit=limit
        )
        caution(pipeline, told)
        _many(told["columns"], iter(told["rows"]), as_json=as_json)
        return show.DONE
    most = limit if limit is not None or every else FIRST_ROWS
    _listed(control, pipeline, table, most, as_json=as_json)
    return show.DONE


def _one(told: Mapping[str, Any], *, as_json: bool) -> int:
    if not told["rows"]:
        click.echo("No such row.", err=True)
        return show.FAILED
    (row,) = told["rows"]
    if as_json:
        click.echo(json.dumps(row, ensure_ascii=False))
        return show.DONE
    from headrace.interfaces.cli.letter_views import console
    from headrace.interfaces.cli.row_views import row_page

    console().print(row_page(told["columns"], row))
    return show.DONE


def _listed(
    control: Control, pipeline: str, table: str | None, most: int | None, *, as_json: bool
) -> None:
    # One more than is shown: then it is known whether there are more.
    limit = None if most is None else most + 1
    messages = control.stream("Rows", pipeline=pipeline, table=table, limit=limit)
    first = next(messages)
    caution(pipeline, first)
    rows = (row for each in messages for row in each["rows"])
    shown = _many(first["columns"], rows, as_json=as_json, most=most)
    if most is not None and shown > most:
        click.echo(f"More rows than these {most:,}: --limit N, or --all.", err=True)


def _many(
    columns: list[dict[str, str]],
    rows: Iterator[dict[str, Any]],
    *,
    as_json: bool,
    most: int | None = None,
) -> int:
    """Print rows, `most` of them; return how many there were."""
    if as_json:
        seen = 0
        for row in rows:
            seen += 1
            if most is None or seen <= most:
                click.echo(json.dumps(row, ensure_ascii=False))
        return seen
    from headrace.interfaces.cli.letter_views import console
    from headrace.interfaces.cli.row_views import row_table

    found = list(rows)
    shown = found if most is None else found[:most]
    if shown:
        console().print(row_table(columns, shown))
    click.echo(f"{len(shown):,} row{'' if len(shown) == 1 else 's'}", err=True)
    return len(found)
