"""`headrace top`: all pipelines of a running engine, live."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.reaching import reach

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SECONDS = 1.0


@click.command(short_help="Watch all pipelines, live.")
@engine_options
@click.option("--once", is_flag=True, help="Look once, and end.")
@json_option
def top(
    config: Path | None, sets: tuple[str, ...], data: Path | None, once: bool, as_json: bool
) -> int:
    """
    Show every pipeline, copies under way and what is wrong, anew each second.

    Ends with q or Ctrl-C. Without a terminal, or with --json, one picture follows another.
    """
    control = reach(config, sets, data)
    if once:
        with _lines(as_json) as show_status:
            show_status(control.call("Status"))
        return show.DONE
    from headrace.interfaces.cli.demo.ending import EndOnRequest

    live = not as_json and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    with (
        EndOnRequest(keys=live and sys.stdin.isatty()) as ending,
        _picture() if live else _lines(as_json) as show_status,
    ):
        while not ending.asked:
            show_status(control.call("Status"))
            ending.wait(_LOOK_SECONDS)
            ending.pressed("")
    return show.DONE


@contextmanager
def _lines(as_json: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    from headrace.interfaces.cli.letter_views import console
    from headrace.interfaces.cli.status_views import status_view

    out = console()

    def show_status(told: dict[str, Any]) -> None:
        if as_json:
            click.echo(json.dumps(told, ensure_ascii=False))
        else:
            out.print(status_view(told))

    yield show_status


@contextmanager
def _picture() -> Iterator[Callable[[dict[str, Any]], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from headrace.interfaces.cli.status_views import live_view

    with Live(console=Console(highlight=False), auto_refresh=False, screen=True) as live:

        def show_status(told: dict[str, Any]) -> None:
            live.update(Group(live_view(told), Text("q ends it", "dim")), refresh=True)

        yield show_status
