"""`headrace run`: an engine from a configuration, in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.reaching import DEFAULT_FILE

if TYPE_CHECKING:
    from headrace.control.engine import Engine
    from headrace.interfaces.cli.run_views import BarsView, JsonView, LinesView
    from headrace.interfaces.control.handlers import Verb


@click.command(short_help="Run the engine of a configuration.")
@engine_options
@json_option
def run(config: Path | None, sets: tuple[str, ...], data: Path | None, as_json: bool) -> int:
    """
    Start every source and pipeline of the configuration, and keep them at work.

    Shows how far tables are copied, and then every change of state. Ctrl-C or SIGTERM stops
    everything in order: what was recorded and applied stays, and the next run goes on there.
    Ends with exit code 1 if a pipeline or source stood still on an error then. With --json
    each line is an event: step, ready, changed, stopped.
    """
    from headrace.interfaces.cli.demo.ending import EndOnRequest
    from headrace.interfaces.cli.reading import read_configuration
    from headrace.interfaces.cli.running import Run
    from headrace.interfaces.control.applying import Applying

    configured = read_configuration(config, sets, warn=not as_json)
    folder = (configured.data if data is None else data).expanduser().absolute()
    options = _repeated(config, sets, data)
    file = (config or DEFAULT_FILE).expanduser().absolute().resolve()
    again = partial(read_configuration, config, sets, warn=False)

    def verbs(engine: Engine) -> Mapping[str, Verb]:
        return {"Apply": Applying(engine, configured, again, file).verb}

    with EndOnRequest(keys=False) as ending, _view(options, as_json=as_json) as view:
        return Run(configured, folder, view, ending, verbs).run()


def next_commands(options: tuple[str, ...], told: Mapping[str, Any]) -> list[str]:
    """Return what to type next, as it can be pasted where the engine was started."""
    import shlex

    from headrace.interfaces.cli.demo.next_steps import program

    def line(*words: str) -> str:
        return shlex.join([*program(), *words, *options])

    readable = [each["name"] for each in told["pipelines"] if each["target"] == "indexed-memory"]
    lines = [line("status")]
    if readable:
        lines += [line("query", readable[0]), line("watch", readable[0])]
    return lines


def _repeated(config: Path | None, sets: tuple[str, ...], data: Path | None) -> tuple[str, ...]:
    """Return the options that say which engine is meant, for the next commands."""
    if data is not None:
        return ("--data", str(data))
    chosen = () if config is None else ("--config", str(config))
    named = [each for each in sets if each.partition("=")[0].strip() == "data"]
    return (*chosen, *(word for each in named for word in ("--set", each)))


def _view(options: tuple[str, ...], *, as_json: bool) -> BarsView | JsonView | LinesView:
    from headrace.interfaces.cli import run_views

    if as_json:
        return run_views.JsonView()
    commands = partial(next_commands, options)
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return run_views.BarsView(commands)
    return run_views.LinesView(commands)
