"""`headrace apply`: a changed configuration, without a restart."""

from __future__ import annotations

import json
import sys
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
    --json nothing is asked: it does it with --yes only. --config and --set say which engine is
    meant, and change nothing of what it reads.
    """
    control = reach(config, sets, data)
    told = control.call("Apply")
    _same_file(config, told["config"])
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


def _same_file(config: Path | None, read: str) -> None:
    """Refuse a file that the engine does not read: it would look as if it had been applied."""
    if config is not None and config.expanduser().absolute().resolve() != Path(read):
        raise click.UsageError(
            f"The engine reads {read}, and not {config}: change that file, or start an engine"
            " with this one."
        )


def _confirmed() -> bool:
    try:
        return click.confirm("Do this?", default=False)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        # At the end of its input, as in a build: nobody was asked, so nobody said no.
        raise click.UsageError("Nobody is here to ask: say --yes, or --dry-run.") from None
