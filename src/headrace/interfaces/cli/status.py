"""`headrace status`: how every pipeline of a running engine stands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from headrace.errors import NoEngine
from headrace.interfaces.cli import show
from headrace.interfaces.cli.durations import as_optional_seconds
from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.reaching import reach

NOT_READY = 3
_LOOK_SECONDS = 0.25


@click.command(short_help="Show how every pipeline stands.")
@engine_options
@click.option("--ready", is_flag=True, help="End with exit code 3 unless everything is ready.")
@click.option(
    "--wait",
    metavar="DURATION",
    callback=as_optional_seconds,
    help="Wait so long for everything to be ready, an engine that starts included.",
)
@json_option
def status(
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    ready: bool,
    wait: float | None,
    as_json: bool,
) -> int:
    """
    Show state, rows, lag, rate and position of every pipeline, and what keeps any from ready.

    LAG is the age of the oldest change that readers do not see yet, and - where that is not
    known; RATE counts changes, over the last five seconds. With --json it is one object.
    """

    def asked() -> dict[str, Any]:
        return reach(config, sets, data).call("Status")

    told = asked() if wait is None else _awaited(asked, wait)
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        from headrace.interfaces.cli.letter_views import console
        from headrace.interfaces.cli.status_views import status_view

        console().print(status_view(told))
    wanted = ready or wait is not None
    return NOT_READY if wanted and not told["ready"] else show.DONE


def _awaited(asked: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while True:
        try:
            if (told := asked())["ready"] or time.monotonic() >= until:
                return told
        except NoEngine:
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK_SECONDS)
