"""`headrace doctor`: everything that can be examined, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.outputs import force_option, refuse_taken

if TYPE_CHECKING:
    from headrace.interfaces.cli.examining import Result

_MARKS = {"well": ("✓", "green"), "note": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command(short_help="Examine everything, and say what to do about it.")
@engine_options
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write a zip file for whoever helps you: no rows, no passwords.",
)
@force_option
@json_option
def doctor(
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    bundle: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    """
    Examine the installation, the machine, the configuration, its databases and the engine.

    Changes nothing. Names what was left at a database by an engine that is gone: slots,
    publications, triggers. Ends with exit code 1 where something is wrong.
    """
    from headrace.interfaces.cli.examining import examined

    if bundle is not None:
        refuse_taken(bundle, force=force)
    found = []
    for result in examined(config, sets, data):
        found.append(result)
        if not as_json:
            _print(result)
    if bundle is not None:
        from headrace.interfaces.cli.bundling import write_bundle

        write_bundle(bundle, found, config, sets, data, force=force)
    wrong = sum(result.kind == "wrong" for result in found)
    if as_json:
        listed = [asdict(result) for result in found]
        told = {"well": not wrong, "results": listed, "bundle": str(bundle) if bundle else None}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        _print_end(found, wrong, bundle)
    return show.FAILED if wrong else show.DONE


def _print(result: Result) -> None:
    mark, colour = _MARKS[result.kind]
    click.echo(
        f"{click.style(mark, fg=colour)} {click.style(result.part, dim=True)}  {result.says}"
    )
    if result.remedy and result.kind != "well":
        click.echo(f"    → {result.remedy}")


def _print_end(found: list[Result], wrong: int, bundle: Path | None) -> None:
    notes = sum(result.kind == "note" for result in found)
    parts = [f"{wrong} wrong" if wrong else "nothing is wrong", f"{notes} to know"]
    click.echo(", ".join(parts) + ".")
    if bundle is not None:
        click.echo(f"{bundle} written; look into it before you send it.")
