"""
`headrace sqlite`: capture from a SQLite file without an engine, to lines or to an address.

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
"""The library's defaults, which cannot be imported without SQLite; a test compares them."""


@click.group("sqlite", short_help="Capture a SQLite file without an engine.")
def sqlite() -> None:
    """
    Capture changes of a SQLite file: to lines of JSON, or to an address by HTTP.

    Begin with setup; from then on every change is logged in the file itself. bootstrap prints
    the rows that are there, cdc the changes, until Ctrl-C. No Spark is needed for any of these.
    """


def _where(command: _F) -> _F:
    """Add the options that say which database, which tables, which log, which reader."""
    for option in (
        click.option(
            "--reader",
            default=_READER,
            show_default=True,
            metavar="NAME",
            help="Who reads: each name has its own place in the log.",
        ),
        click.option(
            "--log-table",
            default=_LOG,
            show_default=True,
            metavar="NAME",
            help="The table that changes are logged in.",
        ),
        click.option(
            "--table",
            "tables",
            multiple=True,
            metavar="TABLE",
            help="A table; again for each other one. None: all of them.",
        ),
        click.option(
            "--db", required=True, metavar="FILE", help="The database; it is never created."
        ),
    ):
        command = option(command)
    return command


_subsec = click.option(
    "--disable-subsec", is_flag=True, help="Whole seconds in timestamps; no writer needs it."
)
_blobs = click.option(
    "--blobs", is_flag=True, help="With columns declared BLOB, as hexadecimal text."
)


def _what(command: _F) -> _F:
    """Add the options that say where records go, and in which form."""
    for option in (
        click.option(
            "--retry-for",
            default="5m",
            show_default=True,
            callback=as_seconds,
            metavar="DURATION",
            help="How long an address may refuse a batch before this gives up.",
        ),
        click.option("--positions", is_flag=True, help="With a sixth field, position: epoch/seq."),
        _subsec,
        _blobs,
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            default=_BATCH_SIZE,
            show_default=True,
            metavar="N",
            help="Records that are handed over, and acknowledged, at once.",
        ),
        click.option(
            "--output",
            default="-",
            show_default=True,
            metavar="-|json|URL",
            help="Lines for people, lines of JSON, or POST to an address.",
        ),
    ):
        command = option(command)
    return command


@sqlite.command("setup", short_help="Begin to log the changes of tables.")
@_where
@_subsec
@_blobs
@json_option
def set_up(disable_subsec: bool, blobs: bool, as_json: bool, **where: Any) -> None:
    """
    Make the log and three triggers a table, in one transaction.

    It may be repeated: what is in place stays, a table whose columns changed gets new triggers.
    The journal mode is left alone. --blobs and --disable-subsec change nothing here, because the
    log always holds every value and every millisecond.
    """
    done = _capture(lambda batch: None, **where).setup()
    if as_json:
        click.echo(json.dumps({"tables": done, "log_table": where["log_table"]}))
    else:
        click.echo(f"Changes of {', '.join(done)} are logged in {where['log_table']}.")


@sqlite.command("teardown", short_help="Stop logging, and take out what setup made.")
@_where
@_subsec
@_blobs
@json_option
def tear_down(disable_subsec: bool, blobs: bool, as_json: bool, **where: Any) -> None:
    """
    Take out the triggers, and with the last reader the log, in one transaction.

    Other tables go on as before, and so do those that another reader of the same log has.
    """
    done = _capture(lambda batch: None, **where).teardown()
    if as_json:
        click.echo(json.dumps({"unread": done.unread, "kept": done.kept}))
        return
    if done.kept:
        click.echo(f"Still logged, because others read them: {', '.join(done.kept)}.")
    changes = "1 change was" if done.unread == 1 else f"{done.unread} changes were"
    click.echo(f"Taken out; {changes} not read." if done.unread else "Taken out.")


@sqlite.command("bootstrap", short_help="Print all rows as they are now.")
@_where
@_what
def bootstrap(**options: Any) -> int | None:
    """
    Print every row of the tables as an INSERT, after one BOOTSTRAP record a table.

    It writes nothing into the database, needs no setup, and leaves all changes to cdc.
    """
    return INTERRUPTED if _run("bootstrap", **options) else None


@sqlite.command("cdc", short_help="Print changes until Ctrl-C.")
@_where
@_what
@click.option("--bootstrap", is_flag=True, help="First all rows as they are now.")
def cdc(bootstrap: bool, **options: Any) -> None:
    """
    Print every change since setup that was not printed yet, and go on until Ctrl-C.

    A batch is acknowledged once it was written, or taken by the address with a status from 200
    to 299: whatever happens, the next start goes on with the first that was not. Ctrl-C and
    SIGTERM end it after a whole batch.
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
    # Here and not above: `--help` needs no SQLite.
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
    """Run to its end; return whether a signal ended it before."""
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
        "Use -, json, or an address with http:// or https://.", param_hint="--output"
    )
