"""
The verb `headrace demo`: its options, the choice of a view, the exit code, and its pipeline.

`build` makes the pipeline, as a user would write it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click

import headrace as hr
from headrace.cli import errors
from headrace.cli.common import as_seconds, on_terminal
from headrace.cli.demo.shops import DEFAULT, FOLDERS, Shop, shop_in
from headrace.extras import require
from headrace.observe import logs

if TYPE_CHECKING:
    from headrace.engine.engine import Engine


@click.command(short_help="Watch a demo: changes flow through Spark into memory.")
@click.option(
    "--source",
    type=click.Choice(list(FOLDERS)),
    default=DEFAULT,
    show_default=True,
    help="Database of the shop; postgres starts its own server.",
)
@click.option(
    "--for",
    "run_seconds",
    default="30s",
    show_default=True,
    metavar="DURATION",
    callback=as_seconds,
    help="How long to run after the first row is visible, such as 30s or 2m.",
)
@click.option(
    "--data",
    default=None,
    show_default=" or ".join(FOLDERS.values()),
    metavar="FOLDER",
    help="Folder for the shop and the change log; use it again to continue.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=1, max=1_000),
    default=40,
    show_default=True,
    metavar="N",
    help="Changes per second.",
)
@click.option("--kill", is_flag=True, help="Press k to kill the recorder and watch it recover.")
@click.option("--spark-ui", is_flag=True, help="Serve the Spark web UI on 127.0.0.1.")
@click.option("--explain", is_flag=True, help="At the end, print how Spark ran the last batch.")
@click.option(
    "--plain", is_flag=True, help="Print lines instead of a live view (default without a terminal)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
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
    Watch changes flow from a demo shop, through Spark, into memory.

    Creates a small shop in SQLite or PostgreSQL, keeps changing it, and streams its orders
    through the change log and Spark into an indexed table in memory. One order is broken on
    purpose: it becomes a dead letter, and all other rows continue. At the end the demo compares
    source and target row by row. Press q or Ctrl-C to end it early.
    """
    from headrace.cli.demo.session import DemoSession, DemoSettings
    from headrace.cli.demo.view import DemoLines, demo_screen, is_right
    from headrace.cli.signals import EndOnRequest

    if kill and not sys.stdin.isatty():
        raise click.UsageError("--kill needs a terminal to read the key from.")
    require("spark", "The demo")
    shop = shop_in(data or FOLDERS[source], source)
    settings = DemoSettings(run_seconds, rate, kill=kill, explain=explain)
    live = not plain and not as_json and on_terminal(sys.stdout)
    with (
        EndOnRequest(keys=(live or kill) and sys.stdin.isatty()) as ending,
        demo_screen(shop.folder) if live else nullcontext(DemoLines(as_json=as_json)) as view,
        closing(shop),
    ):
        session = DemoSession(settings, shop, partial(build, spark_ui=spark_ui), view, ending)
        session.open_shop()
        # Only after the folder is known to be the demo's: nothing is written to other folders.
        logs.log_into(shop.folder / "logs")
        summary = session.run()
        view.summary(summary)
    return errors.DONE if is_right(summary) else errors.FAILED


# --- the pipeline, as a user would write it -------------------------------------------------------


def build(shop: Shop, on_step: Callable[[str], None], *, spark_ui: bool = False) -> Engine:
    """Return an engine over the shop, not yet started."""
    from headrace.cli.demo.session import INDEX, SOURCE, TABLE

    pipeline = hr.Pipeline(
        shop.source(SOURCE),
        TABLE,
        hr.memory(indexes={INDEX: ["customer_id"]}),
        filters=[hr.where("status <> 'cancelled'")],
        transforms=[hr.derive(total_cents="qty * price_cents"), hr.drop("card_number")],
    )
    return hr.Engine(pipeline, data=str(shop.folder), on_step=on_step, spark_ui=spark_ui)
