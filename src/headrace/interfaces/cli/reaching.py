"""How a verb finds the running engine it speaks to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.interfaces.control.client import Control

DEFAULT_FILE = Path("headrace.conf")
DEFAULT_DATA = Path("headrace-data")


def reach(config: Path | None, sets: tuple[str, ...], data: Path | None) -> Control:
    """Return the engine of a data directory; raises `NoEngine` with what to type next."""
    from headrace.interfaces.control.client import Control

    return Control.connect(data_directory(config, sets, data))


def pipeline_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the pipelines of the running engine that begin so, for a shell to complete."""
    given = context.params
    try:
        control = reach(given.get("config"), given.get("sets") or (), given.get("data"))
        told = control.call("Status", answer_seconds=2.0)
    except HeadraceError:
        return []
    return [each["name"] for each in told["pipelines"] if each["name"].startswith(begun)]


def caution(pipeline: str, told: Mapping[str, Any]) -> None:
    """Say so, to stderr, where what a pipeline has may be older than its source's."""
    if not told["ready"]:
        why = f": {told['reason']}" if told["reason"] else ""
        state = str(told["state"]).replace("_", " ")
        click.echo(f"! {pipeline} is {state}{why}; rows may be behind their source.", err=True)


def data_directory(config: Path | None, sets: tuple[str, ...], data: Path | None) -> Path:
    """Return the folder that was given, or that the configuration names; it need not be there."""
    _only_data(sets)
    if data is None:
        data = _configured(config, sets)
    return data.expanduser().absolute()


def _only_data(sets: tuple[str, ...]) -> None:
    """Refuse settings that would be taken and not heeded: of all keys, one leads to an engine."""
    from headrace.config.hocon import path_of
    from headrace.config.scanning import Source

    for each in sets:
        path, _ = path_of(Source(each, "--set", located=False))
        if path != ("data",):
            raise click.UsageError(
                f"--set {'.'.join(path)}=… changes nothing here: this command reads the data"
                " directory alone from the configuration, so --set takes data=FOLDER. An engine"
                " keeps to what it was started with."
            )


def _configured(config: Path | None, sets: tuple[str, ...]) -> Path:
    # An engine made in Python has no file: it is found where its default folder is.
    if config is None and not sets and not DEFAULT_FILE.exists():
        return Path(os.environ.get("HEADRACE_DATA", DEFAULT_DATA))
    from headrace.config.kinds import FilePath
    from headrace.config.loading import load

    tree = load(config, environment=os.environ, sets=sets).value
    named = tree.get("data") if isinstance(tree, dict) else None
    return DEFAULT_DATA if named is None else FilePath().resolved(named)
