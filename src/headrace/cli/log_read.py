"""`headrace log read`: the changes of a table, from one place in the log to another."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from headrace.cli import common
from headrace.cli.common import (
    config_options,
    data_option,
    json_option,
    one_of,
    place_of,
    recorded,
    storage_option,
)
from headrace.cli.errors import force_option, opened_output, refuse_taken
from headrace.errors import UnknownPipeline
from headrace.extras import DISTRIBUTION

if TYPE_CHECKING:
    from headrace.changelog.ranges import ChangeSlice, Moment, Span
    from headrace.changelog.reader import LogReader
    from headrace.storage.files import Files


@click.command("read", short_help="Print changes, by position or time.")
@click.argument("source")
@click.argument("table")
@config_options
@data_option
@storage_option
@click.option("--from", "start", callback=common.as_moment, metavar="PLACE", help=common.HELP)
@click.option("--to", "end", callback=common.as_moment, metavar="PLACE", help="The same; included.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="So many changes at most.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "table", "parquet"]),
    help="JSON lines, lines for people, or a Parquet file; by default lines on a terminal.",
)
@json_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write; to stdout by default. Parquet needs it.",
)
@force_option
@click.option(
    "--envelope", type=click.Choice(["debezium"]), help="JSON lines in that system's form."
)
def read(
    source: str,
    table: str,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    storage: str | None,
    start: Moment | None,
    end: Moment | None,
    limit: int | None,
    form: str | None,
    as_json: bool,
    output: Path | None,
    force: bool,
    envelope: str | None,
) -> None:
    """
    Print the changes of a TABLE of a SOURCE, in order, as the log has them.

    A time stands for the first change that was committed then or later, and, for --to, the
    last one committed then or before. Reading before the log's beginning is an error, and so
    is a damaged segment, after all changes before it. What JSON looks like:
    docs/reference/log-json.md. Engines are not disturbed, and none is needed.
    """
    form = _form(form, as_json=as_json, envelope=envelope, output=output)
    if output is not None:
        refuse_taken(output, force=force)
    log = _opened(place_of(config, sets, data, storage).files, source)
    if table not in (tables := sorted(log.tables())):
        raise UnknownPipeline(
            "There is no such table in the log", source=source, table=table, remedy=one_of(tables)
        )
    from headrace.changelog.ranges import span

    part = span(log, [table], start, end)
    pieces = _limited(_pieces(log, table, part), limit)
    if form == "parquet":
        from headrace.cli.log_formats import write_parquet

        assert output is not None
        count = write_parquet(output, log, table, part, pieces, force=force)
        click.echo(f"{count:,} change{'' if count == 1 else 's'} in {output}", err=True)
        return
    with _opened_output(output, force=force) as stream:
        if form == "table":
            _print_table(pieces, stream)
        elif envelope is None:
            from headrace.cli.log_formats import as_line, change_objects

            for piece in pieces:
                stream.write(b"".join(map(as_line, change_objects(piece))))
                stream.flush()
        else:
            _print_events(log, source, pieces, stream)


def _form(form: str | None, *, as_json: bool, envelope: str | None, output: Path | None) -> str:
    wanted = "json" if as_json or envelope else None
    if form not in (None, wanted) and wanted is not None:
        raise click.UsageError(f"--format {form} does not go with --json or --envelope.")
    form = form or wanted
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE.")
    return form or ("table" if output is None and sys.stdout.isatty() else "json")


def _opened(files: Files, source: str) -> LogReader:
    # Here and not above: `--help` needs no Arrow, and is slow with it.
    from headrace.changelog.reader import LogReader

    if source not in (known := recorded(files)):
        raise UnknownPipeline("There is no log of this source", source=source, remedy=one_of(known))
    return LogReader.open(files, source)


def _pieces(log: LogReader, table: str, part: Span) -> Iterator[ChangeSlice]:
    """Yield the changes; what is missing between them is told on stderr."""
    from headrace.changelog.ranges import ChangeSlice, changes, missing

    if missing(log, table, part):
        click.echo(f"! Changes of {table} are missing here: rows changed unseen.", err=True)
    for found in changes(log, table, part):
        if isinstance(found, ChangeSlice):
            yield found
        else:
            click.echo(
                f"! History begins anew at {found.at} ({found.reason}): what happened just"
                " before it at the source is not known.",
                err=True,
            )


def _limited(pieces: Iterator[ChangeSlice], limit: int | None) -> Iterator[ChangeSlice]:
    from dataclasses import replace

    for piece in pieces:
        if limit is None:
            yield piece
            continue
        yield replace(piece, rows=piece.rows.slice(0, limit))
        limit -= min(limit, piece.rows.num_rows)
        if not limit:
            return


def _print_table(pieces: Iterator[ChangeSlice], stream: IO[bytes]) -> None:
    from headrace.cli import log as log_views
    from headrace.cli.log_formats import change_objects

    # What goes to a file, or a pipe, has no colours: rich is asked on a terminal only.
    console = common.output_console() if stream.isatty() else None
    lines = itertools.chain(
        [log_views.change_header()],
        (log_views.change_line(change) for piece in pieces for change in change_objects(piece)),
    )
    for line in lines:
        if console is not None:
            console.print(line, soft_wrap=True)
        else:
            stream.write(f"{line.plain}\n".encode())


def _print_events(
    log: LogReader, source: str, pieces: Iterator[ChangeSlice], stream: IO[bytes]
) -> None:
    from headrace.cli.debezium import Envelopes
    from headrace.cli.log_formats import as_line

    made = Envelopes(
        source,
        log.lineage or "",
        log.origin.rpartition("/")[2] or source,
        metadata.version(DISTRIBUTION),
        lambda: time.time_ns() // 1000,
    )
    for piece in pieces:
        lines: list[Any] = [as_line(event) for events in made.events(piece) for event in events]
        stream.write(b"".join(lines))
        stream.flush()


def _opened_output(output: Path | None, *, force: bool) -> AbstractContextManager[IO[bytes]]:
    if output is None:
        return nullcontext(sys.stdout.buffer)
    return opened_output(output, force=force)
