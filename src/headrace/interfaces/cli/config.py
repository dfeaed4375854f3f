"""`headrace config`: what is in effect, and where each value comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.interfaces.cli.options import config_options, json_option
from headrace.interfaces.cli.reading import read_configuration

if TYPE_CHECKING:
    from headrace.config.dumping import Setting

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
    settings = [each for each in found.settings() if each.place.origin or not given]
    if not as_json:
        _print(settings)
    elif origins:
        listed = [
            {"key": each.name, "value": each.value, "from": str(each.place) or _DEFAULT}
            for each in settings
        ]
        click.echo(json.dumps({"settings": listed}, ensure_ascii=False))
    else:
        from headrace.config.dumping import as_tree

        click.echo(json.dumps(as_tree(settings), ensure_ascii=False))


def _print(settings: list[Setting]) -> None:
    lines = [
        (f"{each.name} = {_written(each.value)}", str(each.place) or _DEFAULT) for each in settings
    ]
    width = min(60, max((len(line) for line, _ in lines), default=0))
    for line, origin in lines:
        click.echo(f"{line:<{width}}  # {origin}")


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
