"""`headrace replay`: part of the log through a pipeline, into another target."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli import common, errors
from headrace.cli.common import (
    config_options,
    data_option,
    json_option,
    read_configuration,
    used_folder,
)
from headrace.cli.errors import force_option, refuse_taken
from headrace.errors import UnknownPipeline
from headrace.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.changelog.ranges import Moment
    from headrace.engine.from_config import EngineConfig
    from headrace.engine.replay import Replayed, ReplayProgress
    from headrace.pipeline.batch import Runner
    from headrace.pipeline.definition import Pipeline


@click.command(short_help="Replay part of the log into another target.")
@click.argument("pipeline")
@config_options
@data_option
@click.option("--from", "start", callback=common.as_moment, metavar="WHEN", help=common.FROM_HELP)
@click.option("--to", "end", callback=common.as_moment, metavar="WHEN", help=common.TO_HELP)
@click.option(
    "--into",
    required=True,
    metavar="TARGET",
    help="parquet:DIR, jsonl:FILE (- for stdout), or memory to count the resulting rows.",
)
@force_option
@json_option
def replay(
    pipeline: str,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    start: Moment | None,
    end: Moment | None,
    into: str,
    force: bool,
    as_json: bool,
) -> int:
    """
    Replay part of a PIPELINE's log into another target, through its filters and transforms.

    Without --from, the replay begins with the table's baseline; with it, only changes are
    replayed. Without --to, it ends at the current end of the log. The command starts its own
    Spark; a running engine and its pipelines are not affected. Rows that cannot be computed are
    left out, and the exit code is then 1.
    """
    from headrace.engine.replay import replay_log
    from headrace.targets.files import target_named

    require("spark", "A replay")
    found = read_configuration(config, sets)
    folder = used_folder(data or found.data)
    asked = chosen(found, pipeline)
    target = target_named(into, replace=_replaces(into, force=force))
    with _shown() as on_progress, spark_alone(reads(found.spark.conf, folder)) as runner:
        done = replay_log(
            folder,
            pipeline,
            asked,
            target,
            runner,
            start=start,
            end=end,
            on_progress=on_progress,
        )
    _print_result(done, into, as_json=as_json)
    return errors.FAILED if done.failed else errors.DONE


def _replaces(into: str, *, force: bool) -> bool:
    """Refuse an existing file before Spark is started; return whether to overwrite it."""
    kind, _, path = into.partition(":")
    if kind == "jsonl" and path not in ("", "-"):
        refuse_taken(Path(path).expanduser(), force=force)
    elif force:
        raise click.UsageError("--force can only be used with --into jsonl:FILE.")
    return force


def reads(conf: Mapping[str, str], data: Path) -> Mapping[str, str]:
    """Return Spark settings, with those that the storage of the data directory needs."""
    from headrace.spark_session.s3a import s3_needs
    from headrace.spark_session.settings import merged
    from headrace.storage.s3 import storage_of

    return conf if storage_of(data).local else merged(conf, [s3_needs(conf)])


@contextmanager
def spark_alone(conf: Mapping[str, str]) -> Iterator[Runner]:
    """Run a Spark that shares nothing with an engine: neither scratch files nor logs."""
    from headrace.pipeline.runner import SparkRunner
    from headrace.spark_session.session import start_session

    runner = SparkRunner(start_session(None, conf=conf))
    try:
        yield runner
    finally:
        runner.stop()


def chosen(found: EngineConfig, name: str) -> Pipeline:
    """Build the configuration and return the pipeline with this id."""
    if name not in found.pipelines:
        raise UnknownPipeline(
            f"The configuration has no pipeline {name}",
            pipeline=name,
            pipelines=[*found.pipelines],
        )
    return next(each for each in found.build().pipelines if each.name == name)


@contextmanager
def _shown() -> Iterator[Callable[[ReplayProgress], None]]:
    """Show the progress on stderr, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("starting Spark", total=None)

        def show(progress: ReplayProgress) -> None:
            bar.update(
                task,
                description=str(progress.position),
                completed=progress.rows + progress.changes,
                total=progress.of_rows + progress.of_changes,
            )

        yield show


def _print_result(done: Replayed, into: str, *, as_json: bool) -> None:
    # If stdout has the data, this goes to stderr.
    to_stderr = into == "jsonl:-"
    if as_json:
        fields = {
            "pipeline": done.pipeline,
            "tables": list(done.tables),
            "into": into,
            "first": str(done.first),
            "position": str(done.position),
            "baseline_rows": done.baseline_rows,
            "changes": done.changes,
            "failed": done.failed,
            "rows": done.rows,
            "seconds": round(done.seconds, 3),
        }
        click.echo(json.dumps(fields, ensure_ascii=False), err=to_stderr)
        return
    parts = (
        [f"{done.baseline_rows:,} baseline row{'' if done.baseline_rows == 1 else 's'}"]
        if done.baseline_rows
        else []
    )
    parts.append(f"{done.changes:,} change{'' if done.changes == 1 else 's'}")
    if done.rows is not None:
        parts.append(f"{done.rows:,} row{'' if done.rows == 1 else 's'} in the target")
    click.echo(f"{', '.join(parts)}, up to {done.position}, in {done.seconds:.1f} s", err=to_stderr)
    if done.failed:
        rows, were = ("row", "was") if done.failed == 1 else ("rows", "were")
        click.echo(f"! {done.failed:,} {rows} could not be computed and {were} left out.", err=True)
