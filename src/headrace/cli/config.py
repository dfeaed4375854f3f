"""
`headrace config` and `headrace validate`: the effective configuration, and its errors.

`config` prints the effective values and where each of them comes from. `validate` reports all
errors of a configuration, before anything starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.api.connect import error_object
from headrace.cli.common import config_options, json_option, read_configuration

if TYPE_CHECKING:
    from headrace.config.schema import Values
    from headrace.config.show import EffectiveSetting
    from headrace.engine.from_config import EngineConfig


# --- `headrace config` ----------------------------------------------------------------------------

_DEFAULT = "default"


@click.command(short_help="Print the effective configuration.")
@config_options
@click.option(
    "--origins", is_flag=True, help="With --json: print a list of values with their origins."
)
@click.option("--given", is_flag=True, help="Leave out defaults.")
@json_option
def config(
    config: Path | None, sets: tuple[str, ...], origins: bool, given: bool, as_json: bool
) -> None:
    """
    Print the effective configuration: files, fragments, environment and --set combined.

    Each value is followed by its origin: a file and line, a variable, --set, or the default.
    Passwords and other secrets are masked, so the output can be shared.
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


@click.command(short_help="Check the configuration and its databases.")
@config_options
@click.option(
    "--offline", is_flag=True, help="Check only the configuration; connect to no database."
)
@json_option
def validate(config: Path | None, sets: tuple[str, ...], offline: bool, as_json: bool) -> None:
    """
    Check the configuration, and check that its databases can be captured.

    Reports all errors at once, each with file, line, column and remedy. Exits with code 2 if
    there are errors, or 4 if the only problem is a database that cannot be reached. Changes
    nothing and does not start Spark. Spark SQL expressions are not checked: use headrace try.
    """
    found = read_configuration(config, sets, warn=not as_json)
    if found.server is not None:
        _check_certificate(found.server)
    if offline:
        found.build()
    else:
        found.check()
    counts = {"sources": len(found.sources), "pipelines": len(found.pipelines)}
    if as_json:
        warnings = [error_object(each) for each in found.warnings]
        click.echo(json.dumps({"valid": True, **counts, "offline": offline, "warnings": warnings}))
        return
    click.echo(f"✓ {_summary(found)}{', databases not checked' if offline else ''}")


def _check_certificate(server: Values) -> None:
    """Read the files of a server's certificate, as a start does."""
    from headrace.errors import BadCertificate, InvalidConfiguration
    from headrace.server.settings import configured_server
    from headrace.server.tls import TlsFiles

    if (tls := configured_server(server).tls) is None:
        return
    try:
        TlsFiles(tls)
    except BadCertificate as error:
        raise InvalidConfiguration.of([error]) from None


def _summary(found: EngineConfig) -> str:
    return ", ".join(
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((len(found.sources), "source"), (len(found.pipelines), "pipeline"))
    )
