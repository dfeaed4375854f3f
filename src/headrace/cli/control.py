"""
`headrace apply`, `explain`, `pause`, `resume` and `reload`: commands to a running engine.

`apply` brings it a changed configuration, without a restart. `explain` shows how Spark ran a
pipeline's last batch. The others let pipelines rest, go on, or copy their tables again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from headrace.cli import errors
from headrace.cli.common import (
    as_optional_seconds,
    caution,
    engine_options,
    json_option,
    pipeline_names,
    reach,
)
from headrace.cli.status import NOT_READY

# --- `headrace apply` -----------------------------------------------------------------------------

_MARKS = {"add": ("+", "green"), "drop": ("-", "red"), "change": ("~", "yellow")}
_LATER = ("·", "white")


@click.command(short_help="Bring a changed configuration to the running engine.")
@engine_options
@click.option("--dry-run", is_flag=True, help="Show what would happen, and do nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@json_option
def apply(
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """
    Show what the changed configuration would add, change and drop; then do it.

    The running engine reads the files anew that it was started with. Pipelines that are as
    they were go on untouched; whatever is wrong is told, and then nothing has changed. With
    --json nothing is asked: it does it with --yes only. --config and --set say which engine is
    meant, and change nothing of what it reads.
    """
    control = reach(config, sets, data)
    told = control.call("Apply")
    _same_file(config, told["config"])
    if not as_json:
        _show(told)
    do_it = told["now"] and not dry_run and (yes or (not as_json and _confirmed()))
    if do_it:
        told = control.call("Apply", plan=told["plan"])
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    elif told["done"]:
        click.echo("✓ applied")
        click.echo("  next: headrace status", err=True)
    return errors.DONE


def _show(told: Mapping[str, Any]) -> None:
    if not told["steps"]:
        click.echo("Nothing has changed.")
    width = max((len(step["what"]) for step in told["steps"]), default=0)
    for step in told["steps"]:
        mark, colour = _MARKS.get(step["kind"], _LATER)
        keys = f"  ({', '.join(step['keys'])})" if step["keys"] else ""
        line = f"{click.style(mark, fg=colour)} {step['what']:<{width}}  {step['brings']}{keys}"
        click.echo(line)


def _same_file(config: Path | None, read: str) -> None:
    """Refuse a file that the engine does not read: it would look as if it had been applied."""
    if config is not None and config.expanduser().absolute().resolve() != Path(read):
        raise click.UsageError(
            f"The engine reads {read}, and not {config}: change that file, or start an engine"
            " with this one."
        )


def _confirmed() -> bool:
    try:
        return click.confirm("Do this?", default=False)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        # At the end of its input, as in a build: nobody was asked, so nobody said no.
        raise click.UsageError("Nobody is here to ask: say --yes, or --dry-run.") from None


# --- `headrace explain` ---------------------------------------------------------------------------


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


# --- `headrace pause`, `resume` and `reload` ------------------------------------------------------

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
    return errors.DONE


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
    return NOT_READY if failed else errors.DONE


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
    return NOT_READY if wait is not None and not done else errors.DONE


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
