"""`headrace pause`, `resume` and `reload`: what a running engine can be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from headrace.interfaces.cli import show
from headrace.interfaces.cli.durations import as_optional_seconds
from headrace.interfaces.cli.options import engine_options, json_option
from headrace.interfaces.cli.reaching import caution, pipeline_names, reach
from headrace.interfaces.cli.status import NOT_READY

_source = click.option("--source", metavar="SOURCE", help="All pipelines of this source.")
_all = click.option("--all", "every", is_flag=True, help="All pipelines.")


@click.command(short_help="Let pipelines rest; recording goes on.")
@click.argument("pipeline", required=False, shell_complete=pipeline_names)
@engine_options
@_source
@_all
@json_option
def pause(
    pipeline: str | None,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    source: str | None,
    every: bool,
    as_json: bool,
) -> int:
    """
    Let a PIPELINE rest until resume; a restart of the engine keeps to it.

    A running job is cancelled. Recording goes on, and nothing is lost; readers see the rows
    as they were.
    """
    chosen = _chosen(pipeline, source, every=every)
    told = reach(config, sets, data).call("Pause", **chosen)
    _told(told["pipelines"], as_json=as_json)
    return show.DONE


@click.command(short_help="Let pipelines go on that were paused, or that failed.")
@click.argument("pipeline", required=False, shell_complete=pipeline_names)
@engine_options
@_source
@_all
@json_option
def resume(
    pipeline: str | None,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    source: str | None,
    every: bool,
    as_json: bool,
) -> int:
    """
    Let a PIPELINE go on that was paused, or that stopped on an error.

    With --source or --all a source that stopped for good is read again, too: mend first what
    it stopped on. Ends with exit code 3 where something is failed all the same.
    """
    chosen = _chosen(pipeline, source, every=every)
    told = reach(config, sets, data).call("Resume", **chosen)
    _told(told["pipelines"], as_json=as_json)
    _told_of_sources(told["sources"], as_json=as_json)
    failed = any(each["state"] == "failed" for each in (*told["pipelines"], *told["sources"]))
    return NOT_READY if failed else show.DONE


@click.command(short_help="Copy tables anew.")
@click.argument("pipeline", shell_complete=pipeline_names)
@engine_options
@click.option("--table", metavar="TABLE", help="This table alone.")
@click.option(
    "--wait",
    metavar="DURATION",
    callback=as_optional_seconds,
    help="Wait so long for it; else exit code 3.",
)
@json_option
def reload(
    pipeline: str,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    table: str | None,
    wait: float | None,
    as_json: bool,
) -> int:
    """
    Take new baselines of a PIPELINE's tables, for every pipeline that has them.

    Readers see the old rows, kept up to date, until the new ones take their place in one
    step. Without --wait it is asked for, and status shows how far it is.
    """
    told = reach(config, sets, data).call(
        "Reload",
        answer_seconds=60.0 + (wait or 0.0),
        pipeline=pipeline,
        table=table,
        wait_seconds=wait or 0.0,
    )
    done = all(each["done"] for each in told["tables"])
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        for each in told["tables"]:
            word = "is copied anew" if each["done"] else "will be copied anew"
            click.echo(f"{each['table']} {word}")
        if not done and not told["ready"]:
            caution(pipeline, told)
    return NOT_READY if wait is not None and not done else show.DONE


def _chosen(pipeline: str | None, source: str | None, *, every: bool) -> dict[str, Any]:
    if (pipeline is not None) + (source is not None) + every != 1:
        raise click.UsageError("Name a PIPELINE, or a --source, or say --all.")
    return {"pipeline": pipeline, "source": source}


def _told(pipelines: list[dict[str, Any]], *, as_json: bool) -> None:
    for each in pipelines:
        if as_json:
            click.echo(json.dumps(each, ensure_ascii=False))
        else:
            click.echo(f"{each['name']} is {str(each['state']).replace('_', ' ')}")
            if each["reason"]:
                click.echo(f"  {each['reason']}", err=True)


def _told_of_sources(sources: list[dict[str, Any]], *, as_json: bool) -> None:
    """Say what became of sources that had stopped, or have."""
    for each in sources:
        if as_json:
            click.echo(json.dumps({"source": each["name"], **each}, ensure_ascii=False))
            continue
        click.echo(f"source {each['name']} is {each['state']}")
        if each["state"] == "failed":
            why = each["reason"] or (each["error"] or {}).get("message", "")
            click.echo(f"  {why}\n  → headrace resume --source {each['name']}", err=True)
