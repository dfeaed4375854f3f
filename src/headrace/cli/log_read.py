"""`headrace log read`: the changes of a table between two positions of the log."""

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
    log_location,
    one_of,
    recorded,
    storage_option,
)
from headrace.cli.connection import refuse_remote_default
from headrace.cli.errors import force_option, opened_output, refuse_taken
from headrace.errors import UnknownPipeline
from headrace.extras import DISTRIBUTION

if TYPE_CHECKING:
    from headrace.changelog.ranges import ChangeSlice, Moment, Span
    from headrace.changelog.reader import LogReader
    from headrace.storage.files import Files


@click.command("read", short_help="Print or export changes by position or time.")
@click.argument("source")
@click.argument("table")
@config_options
@data_option
@storage_option
@click.option("--from", "start", callback=common.as_moment, metavar="WHEN", help=common.FROM_HELP)
@click.option("--to", "end", callback=common.as_moment, metavar="WHEN", help=common.TO_HELP)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Maximum number of changes.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "table", "parquet"]),
    help="Output format (default: table on a terminal, otherwise json).",
)
@json_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write (default: stdout); required for Parquet.",
)
@force_option
@click.option(
    "--envelope", type=click.Choice(["debezium"]), help="Print JSON lines as Debezium events."
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

    A time after --from means the first change committed at that time or later; after --to, the
    last change committed by then. Starting before the beginning of the log is an error. A
    damaged segment is an error, too, reported after all changes before it are printed. Works
    with or without a running engine. The page Changes as JSON of
    the reference describes the JSON.
    """
    form = _form(form, as_json=as_json, envelope=envelope, output=output)
    if output is not None:
        refuse_taken(output, force=force)
    refuse_remote_default("headrace log read", config, sets, data, storage)
    log = _opened(log_location(config, sets, data, storage).files, source)
    if table not in (tables := sorted(log.tables())):
        raise UnknownPipeline(
            f"The log of source {source} has no table {table}",
            source=source,
            table=table,
            remedy=one_of(tables),
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
        raise click.UsageError(f"--format {form} cannot be combined with --json or --envelope.")
    form = form or wanted
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE.")
    return form or ("table" if output is None and sys.stdout.isatty() else "json")


def _opened(files: Files, source: str) -> LogReader:
    # Imported here: `--help` needs no Arrow, and would be slow with it.
    from headrace.changelog.reader import LogReader

    if source not in (known := recorded(files)):
        raise UnknownPipeline(
            f"There is no log of source {source}", source=source, remedy=one_of(known)
        )
    return LogReader.open(files, source)


def _pieces(log: LogReader, table: str, part: Span) -> Iterator[ChangeSlice]:
    """Yield the changes; warn on stderr about those that are missing."""
    from headrace.changelog.ranges import ChangeSlice, changes, missing

    if missing(log, table, part):
        click.echo(
            f"! Changes of {table} are missing from this range: rows changed without being"
            " recorded.",
            err=True,
        )
    for found in changes(log, table, part):
        if isinstance(found, ChangeSlice):
            yield found
        else:
            click.echo(
                f"! Gap before {found.at} ({found.reason}): what changed at the source just"
                " before this position is not known.",
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

    # A file or a pipe gets no colours: rich prints to a terminal only.
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
