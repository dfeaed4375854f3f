"""
`headrace sqlite`: capture from a SQLite file without an engine, to lines or to a URL.

`handler_for` decides where records are written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.common import as_seconds, json_option
from headrace.cli.errors import INTERRUPTED

if TYPE_CHECKING:
    from headrace.capture.sqlite import Capture
    from headrace.capture.sqlite.library.records import Handler, RecordFormat

_F = TypeVar("_F", bound=Callable[..., Any])

_LOG = "__headrace_log"
_READER = "default"
_BATCH_SIZE = 256
"""The defaults of the library, which cannot be imported without SQLite; a test compares them."""


@click.group("sqlite", short_help="Capture changes of a SQLite file without an engine.")
def sqlite() -> None:
    """
    Capture changes of a SQLite file as lines of JSON, or send them to a URL over HTTP.

    Run setup first: from then on, triggers log every change in the database file itself.
    bootstrap prints the current rows, cdc prints changes until Ctrl-C. Spark is not needed.
    """


def _where(command: _F) -> _F:
    """Add the options for the database, the tables, the log and the reader."""
    for option in (
        click.option(
            "--reader",
            default=_READER,
            show_default=True,
            metavar="NAME",
            help="Name of the reader; each reader has its own position in the log.",
        ),
        click.option(
            "--log-table",
            default=_LOG,
            show_default=True,
            metavar="NAME",
            help="Table in which changes are logged.",
        ),
        click.option(
            "--table",
            "tables",
            multiple=True,
            metavar="TABLE",
            help="Table to capture; can be repeated (default: all tables).",
        ),
        click.option("--db", required=True, metavar="FILE", help="Database file; it must exist."),
    ):
        command = option(command)
    return command


_subsec = click.option("--disable-subsec", is_flag=True, help="Timestamps in whole seconds.")
_blobs = click.option("--blobs", is_flag=True, help="Include BLOB columns, as hexadecimal text.")


def _what(command: _F) -> _F:
    """Add the options for the output and its format."""
    for option in (
        click.option(
            "--retry-for",
            default="5m",
            show_default=True,
            callback=as_seconds,
            metavar="DURATION",
            help="Give up if the URL refuses a batch for this long.",
        ),
        click.option("--positions", is_flag=True, help="Add a sixth field, position: epoch/seq."),
        _subsec,
        _blobs,
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            default=_BATCH_SIZE,
            show_default=True,
            metavar="N",
            help="Number of records written and acknowledged together.",
        ),
        click.option(
            "--output",
            default="-",
            show_default=True,
            metavar="-|json|URL",
            help="- for readable lines, json for lines of JSON, or a URL to POST to.",
        ),
    ):
        command = option(command)
    return command


@sqlite.command("setup", short_help="Start logging the changes of tables.")
@_where
@_subsec
@_blobs
@json_option
def set_up(disable_subsec: bool, blobs: bool, as_json: bool, **where: Any) -> None:
    """
    Create the log and three triggers for each table, in one transaction.

    Can be repeated: existing triggers stay, and a table whose columns changed gets new ones. The
    journal mode is not changed. --blobs and --disable-subsec have no effect here: the log always
    contains every value and every millisecond.
    """
    done = _capture(lambda batch: None, **where).setup()
    if as_json:
        refused = {
            table: {"message": why.message, "remedy": why.remedy}
            for table, why in done.refused.items()
        }
        said = {"tables": done.tables, "log_table": where["log_table"], "refused": refused}
        click.echo(json.dumps(said))
        return
    click.echo(f"Changes of {', '.join(done.tables)} are now logged in {where['log_table']}.")
    for table, why in done.refused.items():
        click.echo(f"Not captured: {table}. {why.message}. {why.remedy}")


@sqlite.command("alter", short_help="Add, drop or rename columns of captured tables.")
@click.option("--db", required=True, metavar="FILE", help="Database file; it must exist.")
@click.argument("statements", nargs=-1, required=True, metavar="STATEMENT...")
def alter(db: str, statements: tuple[str, ...]) -> None:
    """
    Run ALTER TABLE statements that add, drop or rename columns, in one transaction.

    No change is missing afterwards, and the tables need not be copied again. SQLite itself refuses
    to drop a column that a trigger names.
    """
    from headrace.capture.sqlite import alter as alter_columns

    alter_columns(db, *statements)
    click.echo("Altered.")


@sqlite.command("teardown", short_help="Stop logging, and remove what setup created.")
@_where
@_subsec
@_blobs
@json_option
def tear_down(disable_subsec: bool, blobs: bool, as_json: bool, **where: Any) -> None:
    """
    Remove the triggers, and with the last reader also the log, in one transaction.

    Other tables are still logged, and so are tables that another reader of the log uses.
    """
    done = _capture(lambda batch: None, **where).teardown()
    if as_json:
        click.echo(json.dumps({"unread": done.unread, "kept": done.kept}))
        return
    if done.kept:
        click.echo(f"Still logged for other readers: {', '.join(done.kept)}.")
    changes = "1 change" if done.unread == 1 else f"{done.unread} changes"
    click.echo(f"Removed; {changes} had not been read." if done.unread else "Removed.")


@sqlite.command("bootstrap", short_help="Print all current rows.")
@_where
@_what
def bootstrap(**options: Any) -> int | None:
    """
    Print every row of the tables as an INSERT, after one BOOTSTRAP record for each table.

    Writes nothing to the database, needs no setup, and does not affect what cdc prints.
    """
    return INTERRUPTED if _run("bootstrap", **options) else None


@sqlite.command("cdc", short_help="Print changes until Ctrl-C.")
@_where
@_what
@click.option("--bootstrap", is_flag=True, help="Print all current rows first.")
def cdc(bootstrap: bool, **options: Any) -> None:
    """
    Print every change since setup that was not printed yet, then continue until Ctrl-C.

    A batch is acknowledged once it is written, or once the URL answers with a status from 200 to
    299. The next start continues with the first batch that was not acknowledged. Ctrl-C and
    SIGTERM stop after a complete batch.
    """
    _run("bootstrap_and_cdc" if bootstrap else "cdc", **options)


def _capture(
    handler: Handler,
    *,
    db: str,
    tables: tuple[str, ...],
    log_table: str,
    reader: str,
    batch_size: int = _BATCH_SIZE,
) -> Capture:
    # Imported here: `--help` needs no SQLite.
    from headrace.capture.sqlite import Capture

    return Capture(
        db, tables or None, handler, log_table=log_table, reader=reader, batch_size=batch_size
    )


def _run(
    method: str,
    *,
    output: str,
    blobs: bool,
    disable_subsec: bool,
    positions: bool,
    retry_for: float,
    **options: Any,
) -> bool:
    """Run the capture; return whether a signal ended it."""
    from headrace.capture.sqlite.library.records import RecordFormat
    from headrace.cli.signals import EndOnRequest

    form = RecordFormat(blobs=blobs, subsec=not disable_subsec, positions=positions)
    with handler_for(output, form, retry_for) as handler:
        capture = _capture(handler, **options)
        with EndOnRequest(on_end=capture.close) as ending:
            getattr(capture, method)()
    return ending.asked


# --- where records are written --------------------------------------------------------------------


@contextmanager
def handler_for(output: str, form: RecordFormat, retry_seconds: float) -> Iterator[Handler]:
    """Yield the handler that `--output` names."""
    from headrace.capture.sqlite.library.handlers import JsonLineHandler, Post, Words

    match output:
        case "-":
            yield Words(sys.stdout.buffer, form)
            return
        case "json":
            yield JsonLineHandler(sys.stdout.buffer, form)
            return
        case _ if output.startswith(("http://", "https://")):
            with closing(Post(output, form, retry_seconds=retry_seconds)) as post:
                yield post
            return
    raise click.BadParameter(
        "Use -, json, or a URL that begins with http:// or https://.", param_hint="--output"
    )
