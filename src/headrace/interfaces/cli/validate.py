"""`headrace validate`: everything that is wrong with a configuration, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.interfaces.cli.options import config_options, json_option
from headrace.interfaces.cli.reading import read_configuration
from headrace.interfaces.control.connect import error_object

if TYPE_CHECKING:
    from headrace.control.configured import Configured


@click.command(short_help="Check the configuration, and the databases it names.")
@config_options
@click.option("--offline", is_flag=True, help="Check the configuration alone, no database.")
@json_option
def validate(config: Path | None, sets: tuple[str, ...], offline: bool, as_json: bool) -> None:
    """
    Check the configuration, and that its databases can be captured as it says.

    Tells every error at once, with file, line, column and what to do, and ends with exit
    code 2; or 4, where all that is wrong is that a database cannot be reached. Changes
    nothing: databases are looked at as a start does before it begins, and Spark is not
    started. Expressions in Spark SQL are checked by a start, or by `try`.
    """
    found = read_configuration(config, sets, warn=not as_json)
    if offline:
        found.build()
    else:
        found.check()
    counts = {"sources": len(found.sources), "pipelines": len(found.pipelines)}
    if as_json:
        warnings = [error_object(each) for each in found.warnings]
        click.echo(json.dumps({"valid": True, **counts, "offline": offline, "warnings": warnings}))
        return
    click.echo(f"✓ {_summary(found)}{', databases not looked at' if offline else ''}")


def _summary(found: Configured) -> str:
    return ", ".join(
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((len(found.sources), "source"), (len(found.pipelines), "pipeline"))
    )
