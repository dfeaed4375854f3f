"""`headrace explain`: how Spark ran a pipeline's last batch."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.reaching import pipeline_names, reach


@click.command(short_help="Show how Spark ran a pipeline's last batch.")
@click.argument("pipeline", shell_complete=pipeline_names)
@engine_options
@json_option
def explain(
    pipeline: str, config: Path | None, sets: tuple[str, ...], data: Path | None, as_json: bool
) -> None:
    """Print rows, time, jobs and the physical plan of a PIPELINE's last batch."""
    told = reach(config, sets, data).call("Explain", pipeline=pipeline)
    if as_json:
        click.echo(json.dumps({k: v for k, v in told.items() if k != "text"}, ensure_ascii=False))
    else:
        click.echo(told["text"])
