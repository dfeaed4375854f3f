"""
The options that verbs share, so that one name means one thing everywhere.

Each is a decorator; the parameter it gives to the function stands in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def config_options(command: _Command) -> _Command:
    """Add `--config FILE` and `--set KEY=VALUE`: `config: Path | None, sets: tuple[str, ...]`."""
    command = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one key over what the file says; may be given again.",
    )(command)
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="The configuration; headrace.conf in this folder by default.",
    )(command)


def data_option(command: _Command) -> _Command:
    """Add `--data FOLDER`: `data: Path | None`, None for the one the configuration names."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="The engine's data directory; the one the configuration names by default.",
    )(command)


def storage_option(command: _Command) -> _Command:
    """Add `--storage PLACE`: `storage: str | None`, None for that of the data directory."""
    return click.option(
        "--storage",
        metavar="PLACE",
        help="A log elsewhere, as s3://bucket/prefix, where no data directory is at hand.",
    )(command)


def json_option(command: _Command) -> _Command:
    """Add `--json`: `as_json: bool`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="JSON to stdout, for programs to read."
    )(command)


def engine_options(command: _Command) -> _Command:
    """Add all that says which engine is meant: `--config`, `--set` and `--data`."""
    return config_options(data_option(command))
