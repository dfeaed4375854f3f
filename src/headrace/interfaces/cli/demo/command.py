"""The verb `headrace demo`: options, the choice of a view, and the exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.durations import as_seconds
from headrace.observe import logs

if TYPE_CHECKING:
    from headrace.interfaces.cli.demo.parts import Build, View


@click.command()
@click.option(
    "--for",
    "run_seconds",
    default="30s",
    show_default=True,
    metavar="DURATION",
    callback=as_seconds,
    help="How long, counted from the first visible row: 30s, 2m.",
)
@click.option(
    "--data",
    default="headrace-demo",
    show_default=True,
    metavar="FOLDER",
    help="Where shop and change log are kept; run again on it to go on.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=1, max=1_000),
    default=40,
    show_default=True,
    metavar="N",
    help="Changes a second that the shop makes.",
)
@click.option("--plain", is_flag=True, help="Lines, no live view (default without a terminal).")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
def demo(run_seconds: float, data: str, rate: float, plain: bool, as_json: bool) -> int:
    """
    Watch a shop's changes arrive.

    Makes a small SQLite shop, keeps changing it, and replicates its orders through a
    change log and Spark into indexed memory. At the end it compares source and target
    row by row. q or Ctrl-C ends it early.
    """
    from headrace.interfaces.cli.demo.flow import build

    return run_demo(build, run_seconds, data, rate, plain=plain, as_json=as_json)


def run_demo(
    build: Build, run_seconds: float, data: str, rate: float, *, plain: bool, as_json: bool
) -> int:
    """Run a demo with the engine that `build` makes; return the exit code."""
    from headrace.control.lease import usable_folder
    from headrace.interfaces.cli.demo.ending import EndOnRequest
    from headrace.interfaces.cli.demo.session import Session, Settings

    live = not plain and not as_json and _on_terminal()
    folder = usable_folder(data)
    with EndOnRequest(keys=live and sys.stdin.isatty()) as ending, _view(live, as_json) as view:
        settings = Settings(folder, run_seconds, rate)
        session = Session(settings, build, view, ending)
        session.open_shop()
        # Not before the folder is known to be ours: nothing is written into another's.
        logs.log_into(folder / "logs")
        summary = session.run()
        view.summary(summary)
    return show.DONE if summary.right else show.FAILED


def _on_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _view(live: bool, as_json: bool) -> View:
    if live:
        from headrace.interfaces.cli.demo.screen import LiveView

        return LiveView()
    from headrace.interfaces.cli.demo.lines import JsonView, PlainView

    return JsonView() if as_json else PlainView()
