"""
`headrace query`, `schema` and `watch`: rows in a running engine's memory, and their changes.

`schema` shows the columns, and by what rows are found. `watch` prints the changes of a table as
they become visible. Values are row data: nothing in them may move the cursor of a terminal or be
taken for markup.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import errors
from headrace.cli.common import (
    caution,
    json_option,
    one_of,
    output_console,
    printable,
    value_text,
)
from headrace.cli.connection import EngineChoice, pipeline_names, running_engine
from headrace.cli.status import NOT_READY
from headrace.errors import (
    BadRequest,
    NoEngine,
    NotRunning,
    UnknownPipeline,
    UnknownTable,
    Unreachable,
)

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from headrace.api.client import Control


# --- `headrace query` -----------------------------------------------------------------------------

FIRST_ROWS = 20


@click.command(short_help="Look up rows of a table in memory.")
@click.argument("pipeline", shell_complete=pipeline_names)
@click.argument("values", nargs=-1)
@running_engine
@click.option("--key", multiple=True, metavar="VALUE", help="The row with this key.")
@click.option(
    "--lookup", multiple=True, metavar="VALUE", help="The row with this value in the unique lookup."
)
@click.option("--index", metavar="NAME", help="The rows with VALUES in this index.")
@click.option("--all", "every", is_flag=True, help="All rows.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Maximum number of rows (default 20; no limit with --index or --all).",
)
@click.option("--count", is_flag=True, help="Print the number of rows.")
@click.option("--table", metavar="TABLE", help="Which table, if the pipeline has several.")
@json_option
def query(
    pipeline: str,
    values: tuple[str, ...],
    engine: EngineChoice,
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
    Print the current rows of PIPELINE. Its target must be in memory.

    Prints the first rows, or those selected by an option. For a key or index of several columns,
    give the VALUES in column order: --key 7 2026, --index by_day 7 2026. Put a value that begins
    with a dash after --. Exits with code 1 if no row has the key or lookup value. If the
    pipeline is not ready, the rows are printed with a warning on stderr.

    With --json each line is a row. Integers beyond 2^53 and decimals are strings, bytes are
    base64. With --count the output is one object.
    """
    chosen = [bool(key), bool(lookup), index is not None, every, count]
    if sum(chosen) > 1:
        raise click.UsageError("Choose one of --key, --lookup, --index, --all and --count.")
    if values and not (key or lookup or index is not None):
        raise click.UsageError("VALUES can only be given with --key, --lookup or --index.")
    if limit is not None and (key or lookup or count):
        raise click.UsageError("--limit cannot be used with --key, --lookup or --count.")
    control = engine.reach()
    if count:
        answer = control.call("Query", pipeline=pipeline, table=table)
        caution(pipeline, answer)
        click.echo(json.dumps({"count": answer["count"]}) if as_json else f"{answer['count']:,}")
        return errors.DONE
    if key or lookup:
        asked: dict[str, Any] = {"key" if key else "lookup": [*(key or lookup), *values]}
        answer = control.call("Query", pipeline=pipeline, table=table, **asked)
        caution(pipeline, answer)
        return _one(answer, as_json=as_json)
    if index is not None:
        answer = control.call(
            "Query", pipeline=pipeline, table=table, index=index, values=[*values], limit=limit
        )
        caution(pipeline, answer)
        _many(answer["columns"], iter(answer["rows"]), as_json=as_json)
        return errors.DONE
    most = limit if limit is not None or every else FIRST_ROWS
    _listed(control, pipeline, table, most, as_json=as_json)
    return errors.DONE


def _one(answer: Mapping[str, Any], *, as_json: bool) -> int:
    if not answer["rows"]:
        click.echo("No such row.", err=True)
        return errors.FAILED
    (row,) = answer["rows"]
    if as_json:
        click.echo(json.dumps(row, ensure_ascii=False))
        return errors.DONE

    output_console().print(row_page(answer["columns"], row))
    return errors.DONE


def _listed(
    control: Control, pipeline: str, table: str | None, most: int | None, *, as_json: bool
) -> None:
    # One more than is shown, to find out whether there are more.
    limit = None if most is None else most + 1
    messages = control.stream("Rows", pipeline=pipeline, table=table, limit=limit)
    first = next(messages)
    caution(pipeline, first)
    rows = (row for each in messages for row in each["rows"])
    shown = _many(first["columns"], rows, as_json=as_json, most=most)
    if most is not None and shown > most:
        click.echo(f"There are more rows than {most:,}. Use --limit N or --all.", err=True)


def _many(
    columns: list[dict[str, str]],
    rows: Iterator[dict[str, Any]],
    *,
    as_json: bool,
    most: int | None = None,
) -> int:
    """Print at most `most` rows; return how many there were."""
    if as_json:
        seen = 0
        for row in rows:
            seen += 1
            if most is None or seen <= most:
                click.echo(json.dumps(row, ensure_ascii=False))
        return seen

    found = list(rows)
    shown = found if most is None else found[:most]
    if shown:
        output_console().print(row_table(columns, shown))
    click.echo(f"{len(shown):,} row{'' if len(shown) == 1 else 's'}", err=True)
    return len(found)


# --- `headrace schema` ----------------------------------------------------------------------------


@click.command(short_help="Show the columns of a table in memory.")
@click.argument("pipeline", shell_complete=pipeline_names)
@running_engine
@click.option("--table", metavar="TABLE", help="Only this table, if the pipeline has several.")
@json_option
def schema(pipeline: str, engine: EngineChoice, table: str | None, as_json: bool) -> None:
    """
    Show the columns of PIPELINE's rows, their types, and by what headrace query finds rows.

    Its target must be in memory. With --json each line is a table.
    """
    answer = engine.reach().call("Tables", pipeline=pipeline)
    if not answer["readable"]:
        raise BadRequest(
            f"The target of pipeline {pipeline} cannot be queried",
            remedy="Look at the columns where the target stores them; headrace status shows its"
            " type.",
        )
    names = [each["table"] for each in answer["tables"]]
    if table is not None and table not in names:
        raise UnknownPipeline(f"Pipeline {pipeline} has no table {table}", remedy=one_of(names))
    for number, each in enumerate(answer["tables"]):
        if table not in (None, each["table"]):
            continue
        if as_json:
            click.echo(json.dumps(each, ensure_ascii=False))
            continue
        if number and table is None:
            click.echo()
        output_console().print(_schema_view(each))


def _schema_view(table: Mapping[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    found_by = {"--key": table["key"], "--lookup": table["lookup"]}
    found_by |= {f"--index {name}": columns for name, columns in table["indexes"].items()}
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column(Text(f"COLUMN OF {printable(table['table'])}"), overflow="fold")
    shown.add_column("TYPE", no_wrap=True)
    shown.add_column("FOUND BY", overflow="fold")
    for column in table["columns"]:
        options = [option for option, columns in found_by.items() if column["name"] in columns]
        shown.add_row(
            Text(printable(column["name"])), column["type"], Text(printable(", ".join(options)))
        )
    return shown


# --- the view of rows and changes -----------------------------------------------------------------

OPS = {
    "insert": ("+", "green"),
    "update": ("~", "yellow"),
    "delete": ("-", "red"),
    "truncate": ("!", "magenta"),
}


def row_table(columns: Sequence[Mapping[str, str]], rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return rows as a table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    names = [column["name"] for column in columns]
    for name in names:
        shown.add_column(Text(printable(name)), overflow="fold")
    for row in rows:
        shown.add_row(*(Text(value_text(row.get(name))) for name in names))
    return shown


def row_page(columns: Sequence[Mapping[str, str]], row: Mapping[str, Any]) -> Table:
    """Return one row, with one column on each line and every value in full."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for column in columns:
        name = column["name"]
        shown.add_row(Text(printable(name)), Text(value_text(row.get(name), None)))
    return shown


def change_line(change: Mapping[str, Any]) -> Text:
    """Return a change as one line: the operation, the key, and what changed."""
    from rich.text import Text

    sign, style = OPS[change["op"]]
    key = ", ".join(value_text(value) for value in change["key"])
    before, after = change["before"], change["after"]
    if before is not None and after is not None:
        cells = [
            f"{printable(name)} {value_text(before.get(name))} → {value_text(after.get(name))}"
            for name in after
            if name not in before or before[name] != after[name]
        ]
    else:
        row = after if after is not None else before or {}
        cells = [f"{printable(name)} {value_text(value)}" for name, value in row.items()]
    return Text.assemble(
        (f"{change['position']} ", "dim"),
        (f"{sign} {change['op']:<8} ", style),
        (key, "bold"),
        f"  {', '.join(cells)}" if cells else "",
    )


# --- `headrace watch` -----------------------------------------------------------------------------


@click.command(short_help="Follow the changes of a table.")
@click.argument("pipeline", shell_complete=pipeline_names)
@running_engine
@click.option("--rows", is_flag=True, help="Start with the current rows, as inserts.")
@click.option("--table", metavar="TABLE", help="Which table, if the pipeline has several.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Exit after this many changes."
)
@json_option
def watch(
    pipeline: str,
    engine: EngineChoice,
    rows: bool,
    table: str | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """
    Print every change of PIPELINE once readers can see it. Its target must be in memory.

    Runs until Ctrl-C. Exits with code 3 if the engine stops. If the pipeline is replaced by
    headrace apply, its new table is followed, after a warning. A reader that falls too far
    behind is disconnected with the error tables.fell_behind. With --json each line is a change
    with the row before and after.
    """
    from headrace.cli.signals import EndOnRequest, interrupt

    def subscribed(*, rows: bool = False) -> Iterator[dict[str, Any]]:
        control = engine.reach()
        if not rows:
            _must_run(control.status(), pipeline)
        messages = control.stream("Watch", pipeline=pipeline, table=table, rows=rows)
        caution(pipeline, next(messages))
        return messages

    messages = subscribed(rows=rows)
    if not as_json:
        out = output_console()
    seen = 0
    try:
        with EndOnRequest(on_end=interrupt):
            while True:
                for change in messages:
                    if "op" not in change:
                        continue  # the table got other columns
                    if as_json:
                        click.echo(json.dumps(change, ensure_ascii=False))
                    else:
                        out.print(change_line(change), soft_wrap=True)
                    seen += 1
                    if seen == limit:
                        return errors.DONE
                messages = _again(subscribed)
                click.echo(
                    f"! {pipeline} was replaced; its changes before this line may be missing.",
                    err=True,
                )
    except KeyboardInterrupt:
        return errors.DONE
    except Unreachable as error:
        # Whether the engine stopped or only the connection broke cannot be known here.
        click.echo(f"{error.message}.", err=True)
        return NOT_READY
    except (NoEngine, NotRunning):
        click.echo("The engine stopped.", err=True)
        return NOT_READY


def _must_run(report: Mapping[str, Any], pipeline: str) -> None:
    """Raise if the engine is stopping, or the pipeline has stopped with its old table."""
    states = {each["name"]: each["state"] for each in report["pipelines"]}
    if report["phase"] == "stopping" or states.get(pipeline) == "stopped":
        raise NotRunning("The pipeline has stopped", pipeline=pipeline)


_AGAIN_SECONDS = 0.25
_REPLACED_SECONDS = 10.0
"""How long a pipeline may be missing while it is replaced."""


def _again(subscribed: Callable[[], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Follow a table again whose changes ended; raises `NoEngine` if the engine stops."""
    until = time.monotonic() + _REPLACED_SECONDS
    while True:
        try:
            return subscribed()
        except (NotRunning, UnknownPipeline, UnknownTable):
            if time.monotonic() >= until:
                raise
        time.sleep(_AGAIN_SECONDS)
