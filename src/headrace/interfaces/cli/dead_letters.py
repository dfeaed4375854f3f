"""`headrace dead-letters`: what pipelines set aside, read from their data directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.interfaces.cli.known import check_names
from headrace.interfaces.cli.options import engine_options
from headrace.interfaces.cli.reaching import data_directory
from headrace.interfaces.cli.where import used_folder

if TYPE_CHECKING:
    from headrace.pipeline.letter import DeadLetter


@click.group("dead-letters", short_help="Look at the changes that could not be applied.")
def dead_letters() -> None:
    """
    Look at dead letters: changes that could not be computed, and those behind them.

    A letter holds its row: later changes of the same key are kept behind it, until a
    truncate or a reload of the table makes them history. Engines are not disturbed.
    """


@dead_letters.command("list", short_help="List the letters.")
@click.argument("pipeline", required=False)
@engine_options
@click.option("--table", metavar="TABLE", help="Of this table alone.")
@click.option("--all", "superseded", is_flag=True, help="With those that are history.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, every value exact.")
def list_letters(
    pipeline: str | None,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    table: str | None,
    superseded: bool,
    as_json: bool,
) -> None:
    """
    List the dead letters of all pipelines, or of one, by position.

    With --json each line is a letter with both images. Null, booleans, text, whole numbers
    up to 2^53 and finite floats stand for themselves; any other value is an object with its
    kind: {"kind": "decimal", "value": "1.50"}, and so int (beyond 2^53), float (nan, inf),
    bytes and text_bytes (base64), uuid, date, timestamp, timestamptz and time (ISO 8601),
    timetz, interval, struct.
    """
    folder = used_folder(data_directory(config, sets, data))
    letters = _read(folder, pipeline, superseded=superseded)
    found = [letter for letter in letters if table in (None, letter.table)]
    if not found:
        _check_names(folder, config, pipeline, table)
    if as_json:
        from headrace.interfaces.cli.letter_json import letter_line

        _echo(letter_line(letter) for letter in found)
        return
    if not found:
        click.echo("No dead letters.")
        return
    from headrace.interfaces.cli import letter_views as views

    console = views.console()
    console.print(views.letter_list(found, _now(), console.width, superseded=superseded))
    console.print(views.count_line(found))


@dead_letters.command("show", short_help="Show a letter in full, and what to do about it.")
@click.argument("position")
@engine_options
@click.option("--pipeline", metavar="PIPELINE", help="Of this pipeline alone.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as list gives them.")
def show_letter(
    position: str,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    pipeline: str | None,
    as_json: bool,
) -> None:
    """
    Show the dead letters at a POSITION: why, both images, and what is behind each.

    There are several where pipelines share a table, or rows of a baseline failed: these
    have the position at which the baseline begins. With --json the positions of the letters
    behind are given as "behind".
    """
    folder = used_folder(data_directory(config, sets, data))
    letters = _read(folder, pipeline, superseded=True)
    if not letters:
        _check_names(folder, config, pipeline, None)
    found = _at(position, letters)
    if as_json:
        from headrace.interfaces.cli.letter_json import letter_line
        from headrace.pipeline.letter import behind

        _echo(
            letter_line(letter, behind=[str(each.position) for each in behind(letter, letters)])
            for letter in found
        )
        return
    from headrace.interfaces.cli import letter_views as views

    console = views.console()
    for number, letter in enumerate(found):
        if number:
            console.rule()
        for part in views.letter_page(letter, letters, _now()):
            console.print(part)


def _read(folder: Path, pipeline: str | None, *, superseded: bool) -> tuple[DeadLetter, ...]:
    # Here and not above: `--help` needs no Arrow, and is slow with it.
    from headrace.pipeline.letters import read_letters
    from headrace.storage.opening import storage_of

    return read_letters(storage_of(folder), pipeline, superseded=superseded)


def _check_names(
    folder: Path, config: Path | None, pipeline: str | None, table: str | None
) -> None:
    """Raise where nobody knows the names: that there are no letters would be no answer."""
    if pipeline is not None or table is not None:
        check_names(folder, config, _read(folder, None, superseded=True), pipeline, table)


def _at(position: str, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    from headrace.changelog.position import Position
    from headrace.errors import BadPosition

    try:
        wanted = Position.parse(position)
    except BadPosition as error:
        raise click.BadParameter(
            f"{position!r} is not a position like 0001-00000000000004b4-00000000.",
            param_hint="POSITION",
        ) from error
    found = [letter for letter in letters if letter.position == wanted]
    if not found:
        raise click.BadParameter(
            f"There is no dead letter at {position}; headrace dead-letters list names them.",
            param_hint="POSITION",
        )
    return found


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _now() -> datetime:
    return datetime.now(UTC)
