"""
`headrace apply`, `explain`, `pause`, `resume`, `reload` and `reset`: commands to a running engine.

`apply` applies an edited configuration without a restart. `explain` shows how Spark ran a
pipeline's last batch. The others pause or resume pipelines, copy their tables again, or start
over with a source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from headrace.api.connect import sentence_of
from headrace.cli import errors
from headrace.cli.common import (
    as_optional_seconds,
    caution,
    command_line,
    json_option,
)
from headrace.cli.connection import EngineChoice, pipeline_names, running_engine
from headrace.cli.status import NOT_READY
from headrace.engine.health import state_phrase

# --- `headrace apply` -----------------------------------------------------------------------------

_SYMBOLS = {"add": ("+", "green"), "drop": ("-", "red"), "change": ("~", "yellow")}
_LATER = ("·", "white")


@click.command(short_help="Apply an edited configuration to the running engine.")
@running_engine
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def apply(
    engine: EngineChoice,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """
    Apply an edited configuration to the running engine, without a restart.

    Shows what would be added, changed and dropped, and asks before doing it. The engine reads
    the same files again that it was started with: --config and --set only select the engine.
    Pipelines that did not change keep running. If the configuration has errors, they are
    reported and nothing changes. --json does not ask, and changes something only with --yes.
    """
    control = engine.reach()
    answer = control.call("Apply")
    _same_file(engine.config, answer["config"])
    if not as_json:
        _show(answer)
    do_it = (
        answer["now"]
        and not dry_run
        and (yes or (not as_json and engine.confirmed("Apply these changes")))
    )
    if do_it:
        answer = control.call("Apply", plan=answer["plan"])
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    elif answer["done"]:
        click.echo("✓ applied")
        for each in answer["in_error"]:
            click.echo(f"  pipeline {each['name']}: {each['reason']}", err=True)
        click.echo(f"  next: {_next(engine, 'status')}", err=True)
    return errors.DONE


def _show(answer: Mapping[str, Any]) -> None:
    if not answer["steps"]:
        click.echo("Nothing has changed.")
    width = max((len(step["what"]) for step in answer["steps"]), default=0)
    for step in answer["steps"]:
        mark, colour = _SYMBOLS.get(step["kind"], _LATER)
        keys = f"  ({', '.join(step['keys'])})" if step["keys"] else ""
        line = f"{click.style(mark, fg=colour)} {step['what']:<{width}}  {step['brings']}{keys}"
        click.echo(line)


def _same_file(config: Path | None, read: str) -> None:
    """Refuse a file that the engine does not read: it would seem to have been applied."""
    if config is not None and config.expanduser().absolute().resolve() != Path(read):
        raise click.UsageError(
            f"The engine uses {read}, not {config}. Edit that file, or start an engine with"
            " this one."
        )


# --- `headrace explain` ---------------------------------------------------------------------------


@click.command(short_help="Show how Spark ran a pipeline's last batch.")
@click.argument("pipeline", shell_complete=pipeline_names)
@running_engine
@json_option
def explain(pipeline: str, engine: EngineChoice, as_json: bool) -> None:
    """Print the rows, time, jobs and plan of the last batch of PIPELINE."""
    answer = engine.reach().call("Explain", pipeline=pipeline)
    if as_json:
        click.echo(json.dumps({k: v for k, v in answer.items() if k != "text"}, ensure_ascii=False))
    else:
        click.echo(answer["text"])


# --- `headrace pause`, `resume`, `reload` and `reset` ---------------------------------------------

_source = click.option("--source", metavar="SOURCE", help="All pipelines of this source.")
_all = click.option("--all", "every", is_flag=True, help="All pipelines.")


@click.command(short_help="Pause pipelines; capture continues.")
@click.argument("pipeline", required=False, shell_complete=pipeline_names)
@running_engine
@_source
@_all
@json_option
def pause(
    pipeline: str | None,
    engine: EngineChoice,
    source: str | None,
    every: bool,
    as_json: bool,
) -> int:
    """
    Pause PIPELINE until it is resumed; it stays paused if the engine restarts.

    A running Spark job is cancelled. Capture continues, so nothing is lost. Readers see the
    rows as they were when the pipeline was paused.
    """
    chosen = _chosen(pipeline, source, every=every)
    answer = engine.reach().call("Pause", **chosen)
    _print_pipelines(answer["pipelines"], as_json=as_json)
    return errors.DONE


@click.command(short_help="Resume pipelines that are paused or failed.")
@click.argument("pipeline", required=False, shell_complete=pipeline_names)
@running_engine
@_source
@_all
@json_option
def resume(
    pipeline: str | None,
    engine: EngineChoice,
    source: str | None,
    every: bool,
    as_json: bool,
) -> int:
    """
    Resume a PIPELINE that is paused or failed.

    With --source or --all, a failed source is started again, too. Fix the cause of a failure
    first. Exits with code 3 if something is still failed afterwards.
    """
    chosen = _chosen(pipeline, source, every=every)
    answer = engine.reach().call("Resume", **chosen)
    _print_pipelines(answer["pipelines"], as_json=as_json)
    _print_sources(engine, answer["sources"], as_json=as_json)
    failed = any(each["state"] == "failed" for each in (*answer["pipelines"], *answer["sources"]))
    return NOT_READY if failed else errors.DONE


@click.command(short_help="Copy tables again.")
@click.argument("pipeline", required=False, shell_complete=pipeline_names)
@running_engine
@click.option("--source", metavar="SOURCE", help="All tables of this source.")
@click.option("--all", "every", is_flag=True, help="All tables.")
@click.option("--table", metavar="TABLE", help="Only this table of the pipeline or source.")
@click.option(
    "--wait",
    metavar="DURATION",
    callback=as_optional_seconds,
    help="Wait up to this long; exit code 3 if it is not done.",
)
@json_option
def reload(
    pipeline: str | None,
    engine: EngineChoice,
    source: str | None,
    every: bool,
    table: str | None,
    wait: float | None,
    as_json: bool,
) -> int:
    """
    Copy the tables of PIPELINE again, for every pipeline that uses them.

    With --source, all tables of a source; with --all, all tables; with --table, one of them.
    Readers see the old rows, kept up to date, until the copy is complete and replaces them in one
    step. Without --wait the command returns at once; headrace status shows the progress.
    """
    chosen = _chosen(pipeline, source, every=every)
    if every and table is not None:
        raise click.UsageError("--table needs a PIPELINE or --source SOURCE.")
    answer = engine.reach().call(
        "Reload",
        answer_seconds=60.0 + (wait or 0.0),
        **chosen,
        table=table,
        wait_seconds=wait or 0.0,
    )
    done = all(each["done"] for each in answer["tables"])
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        for each in answer["tables"]:
            word = "was copied again" if each["done"] else "will be copied again"
            click.echo(f"{each['table']} {word}")
        for each in answer["pipelines"]:
            if not done and not each["ready"]:
                caution(each["name"], each)
    return NOT_READY if wait is not None and not done else errors.DONE


@click.command(short_help="Start over with a source: copy all its tables again.")
@click.argument("source")
@running_engine
@click.option("--drop-publication", is_flag=True, help="PostgreSQL: drop the publication, too.")
@click.option("--dry-run", is_flag=True, help="Show what would be copied again, and reset nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--wait",
    metavar="DURATION",
    callback=as_optional_seconds,
    help="Wait up to this long; exit code 3 if it is not done.",
)
@json_option
def reset(
    source: str,
    engine: EngineChoice,
    drop_publication: bool,
    dry_run: bool,
    yes: bool,
    wait: float | None,
    as_json: bool,
) -> int:
    """
    Remove Headrace's objects from SOURCE and start over.

    For PostgreSQL these are the slot, and the publication with --drop-publication; for SQLite the
    triggers and their tables. All tables are copied again. Readers see the old rows until the new
    ones replace them; a failed source is started again. Shows what would be copied, and asks
    before doing it. --json does not ask, and resets only with --yes.
    """
    control = engine.reach()
    answer = control.call("Reset", source=source, dry_run=True)
    if not as_json:
        for table in answer["tables"]:
            click.echo(f"{table} would be copied again")
    asks = not as_json and not yes and not dry_run
    if engine.confirmed(f"Reset source {source}") if asks else yes and not dry_run:
        answer = control.call(
            "Reset",
            answer_seconds=60.0 + (wait or 0.0),
            source=source,
            drop_publication=drop_publication,
            wait_seconds=wait or 0.0,
        )
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    elif answer["asked"]:
        click.echo(f"source {source} {'was reset' if answer['done'] else 'is being reset'}")
        click.echo(f"  next: {_next(engine, 'status')}", err=True)
    return NOT_READY if wait is not None and answer["asked"] and not answer["done"] else errors.DONE


def _chosen(pipeline: str | None, source: str | None, *, every: bool) -> dict[str, Any]:
    if (pipeline is not None) + (source is not None) + every != 1:
        raise click.UsageError("Give a PIPELINE, --source SOURCE or --all.")
    return {"pipeline": pipeline, "source": source}


def _print_pipelines(pipelines: list[dict[str, Any]], *, as_json: bool) -> None:
    for each in pipelines:
        if as_json:
            click.echo(json.dumps(each, ensure_ascii=False))
        else:
            click.echo(f"{each['name']} {state_phrase(each['state'])}")
            if each["reason"]:
                click.echo(f"  {each['reason']}", err=True)


def _print_sources(engine: EngineChoice, sources: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the state of the sources that had failed, or fail now."""
    for each in sources:
        if as_json:
            click.echo(json.dumps({"source": each["name"], **each}, ensure_ascii=False))
            continue
        click.echo(f"source {each['name']} {state_phrase(each['state'])}")
        if each["state"] == "failed":
            why = each["reason"] or sentence_of(each["error"], each["name"])
            again = _next(engine, "resume", "--source", each["name"])
            click.echo(f"  {why}\n  → {again}", err=True)


def _next(engine: EngineChoice, *words: str) -> str:
    """Return a command to type next, for the same engine."""
    return command_line(*words, *engine.again())
