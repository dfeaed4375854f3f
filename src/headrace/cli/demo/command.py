"""
The verb `headrace demo`: its options, the choice of a view, the exit code, and its pipeline.

`build` makes the pipeline, as a user would write it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click

import headrace as hr
from headrace.cli import errors
from headrace.cli.common import as_seconds
from headrace.cli.demo.model import DEFAULT, FOLDERS, DemoEngine, Orders, Shop
from headrace.observe import logs

if TYPE_CHECKING:
    from headrace.cli.demo.model import Build, DemoView
    from headrace.cli.demo.session import DemoSettings


@click.command()
@click.option(
    "--source",
    type=click.Choice(list(FOLDERS)),
    default=DEFAULT,
    show_default=True,
    help="The shop's database; postgres brings a server of its own.",
)
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
    default=None,
    show_default=" or ".join(FOLDERS.values()),
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
@click.option("--kill", is_flag=True, help="k kills the recorder, to see it come back.")
@click.option("--spark-ui", is_flag=True, help="Spark's own pages, on 127.0.0.1.")
@click.option("--explain", is_flag=True, help="At the end, how Spark ran the last batch.")
@click.option("--plain", is_flag=True, help="Lines, no live view (default without a terminal).")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
def demo(
    source: str,
    run_seconds: float,
    data: str | None,
    rate: float,
    kill: bool,
    spark_ui: bool,
    explain: bool,
    plain: bool,
    as_json: bool,
) -> int:
    """
    Watch a shop's changes arrive.

    Makes a small shop in SQLite or PostgreSQL, keeps changing it, and replicates its
    orders through a change log and Spark into indexed memory. One order is spoilt on
    purpose: it becomes a dead letter, and the rest goes on. At the end source and target
    are compared row by row. q or Ctrl-C ends it early.
    """
    from headrace.cli.demo.session import DemoSettings
    from headrace.cli.demo.shops import shop_in

    if kill and not sys.stdin.isatty():
        raise click.UsageError("--kill needs a terminal, to read the key from.")
    shop = shop_in(data or FOLDERS[source], source)
    settings = DemoSettings(run_seconds, rate, kill=kill, explain=explain)
    live = not plain and not as_json and _on_terminal()
    return _run(partial(build, spark_ui=spark_ui), settings, shop, live=live, as_json=as_json)


def _run(build: Build, settings: DemoSettings, shop: Shop, *, live: bool, as_json: bool) -> int:
    from headrace.cli.demo.session import DemoSession
    from headrace.cli.signals import EndOnRequest

    keys = (live or settings.kill) and sys.stdin.isatty()
    with EndOnRequest(keys=keys) as ending, _view(live, as_json) as view, closing(shop):
        session = DemoSession(settings, shop, build, view, ending)
        session.open_shop()
        # Not before the folder is known to be ours: nothing is written into another's.
        logs.log_into(shop.folder / "logs")
        summary = session.run()
        view.summary(summary)
    return errors.DONE if summary.right else errors.FAILED


def _on_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _view(live: bool, as_json: bool) -> DemoView:
    if live:
        from headrace.cli.demo.screen import LiveView

        return LiveView()
    from headrace.cli.demo.lines import DemoJsonView, PlainView

    return DemoJsonView() if as_json else PlainView()


# --- the pipeline, as a user would write it -------------------------------------------------------


def build(
    shop: Shop, on_step: Callable[[str], None], *, spark_ui: bool = False
) -> tuple[DemoEngine, Orders]:
    """Return an engine over the shop, not yet started, and the target it fills."""
    from headrace.cli.demo.session import INDEX, SOURCE, TABLE

    orders = hr.memory(indexes={INDEX: ["customer_id"]})
    pipeline = hr.Pipeline(
        shop.source(SOURCE),
        TABLE,
        orders,
        filters=[hr.where("status <> 'cancelled'")],
        transforms=[hr.derive(total_cents="qty * price_cents"), hr.drop("card_number")],
    )
    engine = hr.Engine(pipeline, data=str(shop.folder), on_step=on_step, spark_ui=spark_ui)
    return engine, orders
