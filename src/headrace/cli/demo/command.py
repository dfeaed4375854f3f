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


@click.command()
@click.option(
    "--source",
    type=click.Choice(list(FOLDERS)),
    default=DEFAULT,
    show_default=True,
    help="The shop's database; postgres starts a server of its own.",
)
@click.option(
    "--for",
    "run_seconds",
    default="30s",
    show_default=True,
    metavar="DURATION",
    callback=as_seconds,
    help="How long to run once the first row is visible: 30s, 2m.",
)
@click.option(
    "--data",
    default=None,
    show_default=" or ".join(FOLDERS.values()),
    metavar="FOLDER",
    help="Folder of the shop and the change log; use it again to continue.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=1, max=1_000),
    default=40,
    show_default=True,
    metavar="N",
    help="Changes a second made to the shop.",
)
@click.option("--kill", is_flag=True, help="Let k kill the recorder, to see it come back.")
@click.option("--spark-ui", is_flag=True, help="Serve Spark's own pages, on 127.0.0.1.")
@click.option("--explain", is_flag=True, help="Print at the end how Spark ran the last batch.")
@click.option("--plain", is_flag=True, help="Print lines (default without a terminal).")
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

    Creates a small shop in SQLite or PostgreSQL, keeps changing it, and replicates its
    orders through a change log and Spark into indexed memory. One order is broken on
    purpose: it becomes a dead letter, and all other rows go on. At the end source and
    target are compared row by row. q or Ctrl-C ends it early.
    """
    from headrace.cli.demo.session import DemoSession, DemoSettings
    from headrace.cli.demo.view import DemoLines, demo_screen, is_right
    from headrace.cli.signals import EndOnRequest

    if kill and not sys.stdin.isatty():
        raise click.UsageError("--kill needs a terminal, to read the key from.")
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
        # Not before the folder is known to be ours: nothing is written into another's.
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
