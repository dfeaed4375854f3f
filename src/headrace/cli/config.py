"""
`headrace config` and `headrace validate`: the configuration in effect, and what is wrong with it.

`config` prints what is in effect, and where each value comes from. `validate` reports everything
that is wrong with a configuration, before anything starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.api.connect import error_object
from headrace.cli.common import config_options, json_option, read_configuration

if TYPE_CHECKING:
    from headrace.config.show import EffectiveSetting
    from headrace.engine.from_config import EngineConfig


# --- `headrace config` ----------------------------------------------------------------------------

_DEFAULT = "default"


@click.command(short_help="Print the configuration in effect, with where each value comes from.")
@config_options
@click.option(
    "--origins", is_flag=True, help="With --json: each value with where it comes from, in a list."
)
@click.option("--given", is_flag=True, help="Without defaults.")
@json_option
def config(
    config: Path | None, sets: tuple[str, ...], origins: bool, given: bool, as_json: bool
) -> None:
    """
    Print the configuration in effect: files, fragments, environment and --set together.

    Passwords and other secrets are masked, so that it can be shown to others. Every value
    stands with where it comes from; what nobody gave is a default.
    """
    found = read_configuration(config, sets, warn=not as_json)
    settings = [each for each in found.settings() if each.location.origin or not given]
    if not as_json:
        _print(settings)
    elif origins:
        listed = [
            {"key": each.name, "value": each.value, "from": str(each.location) or _DEFAULT}
            for each in settings
        ]
        click.echo(json.dumps({"settings": listed}, ensure_ascii=False))
    else:
        from headrace.config.show import as_tree

        click.echo(json.dumps(as_tree(settings), ensure_ascii=False))


def _print(settings: list[EffectiveSetting]) -> None:
    lines = [
        (f"{each.name} = {_written(each.value)}", str(each.location) or _DEFAULT)
        for each in settings
    ]
    width = min(60, max((len(line) for line, _ in lines), default=0))
    for line, origin in lines:
        click.echo(f"{line:<{width}}  # {origin}")


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- `headrace validate` --------------------------------------------------------------------------


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


def _summary(found: EngineConfig) -> str:
    return ", ".join(
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((len(found.sources), "source"), (len(found.pipelines), "pipeline"))
    )
