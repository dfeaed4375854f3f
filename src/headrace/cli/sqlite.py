"""
`headrace sqlite`: capture from a SQLite file without an engine, to lines or to a URL.

`handler_for` decides where records are written. `dead-letters` shows and delivers those that a URL
refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.common import as_seconds, json_option, printable
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


def _as_size(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    from headrace.config.units import size

    if value is None:
        return None
    try:
        return int(size(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a size like 512MiB or 1GB.") from error


def _as_limit(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    return None if value is None else as_seconds(context, option, value)


def _as_time(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise click.BadParameter(f"{value!r} is not a time like 2026-11-19T12:00:00Z.")
    return found


_dead_letters = click.option(
    "--dead-letters",
    metavar="FILE",
    help="Store records that the URL refuses in this file, and continue.",
)

_subsec = click.option("--disable-subsec", is_flag=True, help="Timestamps in whole seconds.")
_blobs = click.option("--blobs", is_flag=True, help="Include BLOB columns, as hexadecimal text.")


def _what_to(command: _F) -> _F:
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
        click.option(
            "--envelope",
            type=click.Choice(["plain", "headrace"]),
            default="plain",
            show_default=True,
            help="plain: the five fields. headrace: also position, key, commit group, schema and"
            " source, and the end of a bootstrap.",
        ),
        _subsec,
        _blobs,
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


def _what(command: _F) -> _F:
    """Add the options for the output, its format, its batches, and what it refuses."""
    batch_size = click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=_BATCH_SIZE,
        show_default=True,
        metavar="N",
        help="Number of records written and acknowledged together.",
    )
    return _what_to(_dead_letters(batch_size(command)))


@sqlite.command("setup", short_help="Start logging the changes of tables.")
@_where
@_subsec
@_blobs
@click.option(
    "--keep",
    callback=_as_size,
    metavar="SIZE",
    help="Size of unread changes that the log may keep for this reader. [default: 1GiB]",
)
@click.option(
    "--keep-for",
    callback=_as_limit,
    metavar="DURATION",
    help="Age that unread changes of this reader may have. [default: no limit]",
)
@click.option(
    "--history",
    callback=_as_limit,
    metavar="DURATION",
    help="Also keep changes after they were read, for cdc --from-position and --from-time.",
)
@json_option
def set_up(
    disable_subsec: bool,
    blobs: bool,
    keep: int | None,
    keep_for: float | None,
    history: float | None,
    as_json: bool,
    **where: Any,
) -> None:
    """
    Create the log and the triggers of each table, in one transaction.

    Can be repeated: existing triggers stay, and a table whose columns changed gets new ones. The
    journal mode is not changed. --blobs and --disable-subsec have no effect here: the log always
    contains every value and every millisecond.

    With --keep, --keep-for or --history, all three are stored for this reader. A reader above its
    limits expires: its changes are removed, and it has to copy its tables again.
    """
    retention = None
    if (keep, keep_for, history) != (None, None, None):
        from headrace.capture.sqlite import Retention

        retention = Retention(Retention().bytes if keep is None else keep, keep_for, history or 0.0)
    done = _capture(lambda batch: None, retention=retention, **where).setup()
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


@sqlite.command("readers", short_help="List readers, and what the log keeps for them.")
@click.option("--db", required=True, metavar="FILE", help="Database file; it must exist.")
@click.option(
    "--log-table", default=_LOG, show_default=True, metavar="NAME", help="Table of changes."
)
@json_option
def list_readers(db: str, log_table: str, as_json: bool) -> None:
    """
    List the readers of a log with their tables, unread rows of the log, and limits.

    Rows that belong to other tables count as well, because they stay in the log, too.
    """
    from dataclasses import asdict

    from headrace.capture.sqlite import Capture

    found = Capture(db, None, print, log_table=log_table).readers()
    if as_json:
        for each in found:
            click.echo(json.dumps(asdict(each)))
        return
    if not found:
        click.echo("No readers.")
    for each in found:
        limit = "" if each.limit_bytes is None else f" of {each.limit_bytes:,}"
        words = [
            f"{each.unread:,} unread rows of the log, {each.bytes:,}{limit} bytes,"
            f" {each.age_seconds:.0f} s old",
            *(["running"] if each.running else []),
            *(["ephemeral"] if each.ephemeral else []),
            *(["expired"] if each.expired else []),
        ]
        click.echo(printable(f"{each.reader}, table {each.table}: {', '.join(words)}"))


@sqlite.command("prune", short_help="Apply the limits of readers, and remove what was read.")
@click.option("--db", required=True, metavar="FILE", help="Database file; it must exist.")
@click.option(
    "--log-table", default=_LOG, show_default=True, metavar="NAME", help="Table of changes."
)
@json_option
def prune(db: str, log_table: str, as_json: bool) -> None:
    """
    Let readers expire that are above their limits, and remove what no reader needs.

    cdc does this by itself. If no reader may be running for a long time, run prune regularly.
    """
    from headrace.capture.sqlite import Capture

    removed = Capture(db, None, print, log_table=log_table).prune()
    changes = "1 row" if removed == 1 else f"{removed:,} rows"
    click.echo(json.dumps({"removed": removed}) if as_json else f"Removed {changes}.")


@sqlite.command("bootstrap", short_help="Print all current rows.")
@_where
@_what
def bootstrap(**options: Any) -> int | None:
    """
    Print every row of the tables as an INSERT, after one BOOTSTRAP record for each table.

    Writes nothing to the database, needs no setup, and does not affect what cdc prints.
    """
    return INTERRUPTED if _run("bootstrap", {}, **options) else None


@sqlite.command("cdc", short_help="Print changes until Ctrl-C.")
@_where
@_what
@click.option("--bootstrap", is_flag=True, help="Print all current rows first.")
@click.option(
    "--resume",
    is_flag=True,
    help="With --bootstrap: leave out rows that an earlier run has printed.",
)
@click.option(
    "--from-position",
    metavar="POSITION",
    help="Begin after this position; earliest begins with the oldest change in the log.",
)
@click.option(
    "--from-time",
    callback=_as_time,
    metavar="TIME",
    help="Begin with the first change at this time or later: 2026-11-19T12:00:00Z.",
)
@click.option(
    "--on-expired",
    type=click.Choice(["fail", "copy"]),
    default="fail",
    show_default=True,
    help="If changes that this reader had not read were removed: stop, or print all rows again.",
)
@click.option(
    "--ephemeral", is_flag=True, help="Set up at the start, and remove everything at the end."
)
@click.option("--standby", is_flag=True, help="Wait while another process uses this reader name.")
def cdc(
    bootstrap: bool,
    resume: bool,
    from_position: str | None,
    from_time: datetime | None,
    **options: Any,
) -> None:
    """
    Print every change since setup that was not printed yet, then continue until Ctrl-C.

    A batch is acknowledged once it is written, or once the URL answers with a status from 200 to
    299. The next start continues with the first batch that was not acknowledged. Ctrl-C and
    SIGTERM stop after a complete batch.
    """
    if resume and not bootstrap:
        raise click.UsageError("--resume needs --bootstrap.")
    start = from_position or from_time
    if bootstrap and start:
        raise click.UsageError("--bootstrap begins with all rows: leave out the position.")
    if bootstrap:
        _run("bootstrap_and_cdc", {"resume": resume}, **options)
    else:
        _run("cdc", {"from_position": from_position, "from_time": from_time}, **options)


# --- dead letters ---------------------------------------------------------------------------------


@sqlite.group("dead-letters", short_help="Show and deliver records that a URL refused.")
def dead_letters() -> None:
    """
    Show, deliver or remove records that a URL refused, and later ones of the same keys.

    cdc --dead-letters FILE stores them.
    """


def _stored(command: _F) -> _F:
    """Add the options that select stored records."""
    for option in (
        click.option("--reader", default=_READER, show_default=True, metavar="NAME"),
        click.option(
            "--dead-letters", required=True, metavar="FILE", help="The file of cdc --dead-letters."
        ),
        click.option("--db", required=True, metavar="FILE", help="Database file; it must exist."),
    ):
        command = option(command)
    return command


@dead_letters.command("list", short_help="List stored records.")
@_stored
@click.option("--blobs", is_flag=True, help="Include BLOB columns, as hexadecimal text.")
def list_stored(db: str, dead_letters: str, reader: str, blobs: bool) -> None:
    """Print a line of JSON for each record: id, kind, reason, and the record in its envelope."""
    from headrace.capture.sqlite import Capture

    for each in Capture(db, None, print, reader=reader, dead_letters=dead_letters).dead_records():
        line = each.batch.json_lines(blobs=blobs, envelope=True).decode().rstrip()
        head = json.dumps({"id": each.id, "kind": each.kind, "reason": each.reason})
        click.echo(f'{head[:-1]}, "record": {line}}}')


@dead_letters.command("replay", short_help="Deliver stored records again.")
@_stored
@_what_to
def replay_stored(
    db: str, dead_letters: str, reader: str, output: str, retry_for: float, **form: Any
) -> None:
    """Send stored records to the output in their order, and remove those that it takes."""
    from headrace.capture.sqlite import Capture

    with handler_for(output, _form(**form), retry_for) as handler:
        capture = Capture(db, None, handler, reader=reader, dead_letters=dead_letters)
        taken = capture.redeliver()
        left = len(capture.dead_records())
    click.echo(f"{taken} delivered, {left} left.", err=True)


@dead_letters.command("purge", short_help="Remove stored records.")
@_stored
@click.option("--id", "ids", type=int, multiple=True, help="Only this record; can be repeated.")
def purge_stored(db: str, dead_letters: str, reader: str, ids: tuple[int, ...]) -> None:
    """Remove stored records without delivering them."""
    from headrace.capture.sqlite import Capture

    capture = Capture(db, None, print, reader=reader, dead_letters=dead_letters)
    click.echo(f"{capture.purge(ids or None)} removed.")


# --- a run ----------------------------------------------------------------------------------------


def _capture(
    handler: Handler,
    *,
    db: str,
    tables: tuple[str, ...],
    reader: str,
    ephemeral: bool = False,
    **options: Any,
) -> Capture:
    # Imported here: `--help` needs no SQLite.
    from headrace.capture.sqlite import Capture

    name = None if ephemeral and reader == _READER else reader
    return Capture(db, tables or None, handler, reader=name, ephemeral=ephemeral, **options)


def _form(*, blobs: bool, disable_subsec: bool, positions: bool, envelope: str) -> RecordFormat:
    from headrace.capture.sqlite.library.records import RecordFormat

    return RecordFormat(
        blobs=blobs,
        subsec=not disable_subsec,
        positions=positions,
        envelope=envelope == "headrace",
    )


def _run(
    method: str,
    start: dict[str, Any],
    *,
    output: str,
    blobs: bool,
    disable_subsec: bool,
    positions: bool,
    envelope: str,
    retry_for: float,
    **options: Any,
) -> bool:
    """Run the capture; return whether a signal ended it."""
    from headrace.cli.signals import EndOnRequest

    form = _form(blobs=blobs, disable_subsec=disable_subsec, positions=positions, envelope=envelope)
    with handler_for(output, form, retry_for) as handler:
        capture = _capture(handler, **options)
        with EndOnRequest(on_end=capture.close) as ending:
            getattr(capture, method)(**start)
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
