"""`headrace apply`: a changed configuration, without a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.reaching import reach

_MARKS = {"add": ("+", "green"), "drop": ("-", "red"), "change": ("~", "yellow")}
_LATER = ("·", "white")


@click.command(short_help="Bring a changed configuration to the running engine.")
@engine_options
@click.option("--dry-run", is_flag=True, help="Show what would happen, and do nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@json_option
def apply(
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """
    Show what the changed configuration would add, change and drop; then do it.

    The running engine reads the files anew that it was started with. Pipelines that are as
    they were go on untouched; whatever is wrong is told, and then nothing has changed. With
    --json nothing is asked: it does it with --yes only.
    """
    control = reach(config, sets, data)
    told = control.call("Apply")
    if not as_json:
        _show(told)
    do_it = told["now"] and not dry_run and (yes or (not as_json and _confirmed()))
    if do_it:
        told = control.call("Apply", plan=told["plan"])
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    elif told["done"]:
        click.echo("✓ applied")
        click.echo("  next: headrace status", err=True)
    return show.DONE


def _show(told: Mapping[str, Any]) -> None:
    if not told["steps"]:
        click.echo("Nothing has changed.")
    width = max((len(step["what"]) for step in told["steps"]), default=0)
    for step in told["steps"]:
        mark, colour = _MARKS.get(step["kind"], _LATER)
        keys = f"  ({', '.join(step['keys'])})" if step["keys"] else ""
        line = f"{click.style(mark, fg=colour)} {step['what']:<{width}}  {step['brings']}{keys}"
        click.echo(line)


def _confirmed() -> bool:
    return click.confirm("Do this?", default=False)
