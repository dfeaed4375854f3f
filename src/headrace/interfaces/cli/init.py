"""`headrace init`: a configuration to begin with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.options import json_option
from headrace.interfaces.cli.outputs import force_option, opened_output, refuse_taken
from headrace.interfaces.control.connect import error_object

_DEFAULT = Path("headrace.conf")


@click.command(short_help="Write a configuration to begin with.")
@click.argument("url", required=False)
@click.option(
    "--from",
    "other",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Convert this configuration, in which tables = [{ …, targets = […] }].",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=_DEFAULT,
    metavar="FILE",
    help="Where to write it; headrace.conf in this folder by default.",
)
@force_option
@json_option
def init(url: str | None, other: Path | None, output: Path, force: bool, as_json: bool) -> int:
    """
    Write a configuration, commented, that can be run.

    URL is a database to look at: sqlite:shop.db, or postgresql://user@host/database. Each of
    its tables gets a pipeline; the result is checked as `headrace validate` does.

    With --from it is made from another engine's: what has no counterpart is named in a
    comment. A password that is written out is not taken over, from neither of them.
    """
    if (url is None) == (other is None):
        raise click.UsageError("Say what to begin with: a URL, as sqlite:shop.db, or --from FILE.")
    refuse_taken(output, force=force)
    if url is not None:
        return _look(url, output, force=force, as_json=as_json)
    assert other is not None
    _convert(other, output, force=force, as_json=as_json)
    return show.DONE


def _look(url: str, output: Path, *, force: bool, as_json: bool) -> int:
    from headrace.interfaces.cli.looking import looked_at

    found = looked_at(url, output.parent)
    _write(output, found.text, force=force)
    if as_json:
        if found.tables:
            _check(output, found.variables)
        told = {"written": str(output), "source": found.source, "tables": list(found.tables)}
        left = [error_object(each) for each in found.left_out]
        click.echo(json.dumps({**told, "left_out": left, "set": sorted(found.variables)}))
        return show.DONE
    click.echo(f"✓ {output} written: source {found.source}, {_count(len(found.tables), 'table')}")
    for each in found.left_out:
        show.print_warning(each)
    for variable in found.variables:
        click.echo(f"  the password is not in it; first: export {variable}=…", err=True)
    if not found.tables:
        click.echo("  it has no table that could be captured yet: edit it, then: headrace validate")
        return show.DONE
    _check(output, found.variables)
    click.echo("✓ checked")
    option = "" if output == _DEFAULT else f" --config {output}"
    click.echo(f"  next: headrace run{option}")
    return show.DONE


def _convert(other: Path, output: Path, *, force: bool, as_json: bool) -> None:
    # Here and not above: `--help` reads no configuration.
    from headrace.config.including import text_of
    from headrace.interfaces.cli.from_peer import converted

    made = converted(text_of(other), str(other))
    _write(output, made.text, force=force)
    if as_json:
        counts = {"sources": made.sources, "pipelines": made.pipelines}
        click.echo(json.dumps({"written": str(output), **counts, "notes": list(made.notes)}))
        return
    for note in made.notes:
        click.echo(f"! {note}", err=True)
    click.echo(f"✓ {output} written: {_count(made.sources, 'source')}, ", nl=False)
    click.echo(_count(made.pipelines, "pipeline"))
    click.echo("  next: headrace validate", err=True)


def _write(output: Path, text: str, *, force: bool) -> None:
    # For whom the user's mask says: it holds no password, and an engine may be another user's.
    with opened_output(output, force=force, mode=0o666) as stream:
        stream.write(text.encode())


def _check(output: Path, variables: Mapping[str, str]) -> None:
    from headrace.interfaces.cli.reading import read_configuration

    # For this process alone: the password was in the address, and goes nowhere else.
    os.environ.update(variables)
    read_configuration(output, ()).check()


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
