"""
`headrace teardown`: remove what an engine created in its databases.

Slot and publication in PostgreSQL, triggers and capture tables in SQLite. Their names follow from
the configuration and the path of the data directory, so this works when the data directory is gone.
What is not known to be this engine's, or is used by others, is shown with the reason, and stays.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli import errors
from headrace.cli.common import (
    claim_in,
    confirmed,
    engine_options,
    json_option,
    one_of,
    read_configuration,
)
from headrace.errors import UnknownPipeline

if TYPE_CHECKING:
    from headrace.capture.registry import SourceObject
    from headrace.capture.source import Recordable


@click.command(short_help="Remove what Headrace created in the databases.")
@click.argument("source", required=False)
@engine_options
@click.option("--dry-run", is_flag=True, help="Show what would be removed, without removing it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def teardown(
    source: str | None,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """
    Remove what the engine created in the database of SOURCE, or of every source.

    That is the replication slot and the publication in PostgreSQL, and the triggers and capture
    tables in SQLite. Everything is listed first. Objects that others use, or that are not known
    to be of this engine, stay. Refused while the engine runs. Works without the data directory,
    too, which is never removed; what is captured afterwards begins with new copies. --json does
    not ask, and removes something only with --yes.
    """
    # Imported here: `--help` needs no Arrow, and would be slow with it.
    from headrace.capture.registry import objects, remove_objects
    from headrace.capture.source import reader_of

    configured = read_configuration(config, sets, warn=not as_json)
    folder = (configured.data if data is None else data).expanduser().absolute()
    sources = configured.build().sources
    if source is not None and source not in sources:
        raise UnknownPipeline(f"There is no source {source}", remedy=one_of(sorted(sources)))
    chosen = {name: each for name, each in sources.items() if source in (None, name)}
    storage = configured.log["storage"]

    def claimed(each: Recordable) -> tuple[Recordable, str, str]:
        return each, reader_of(each.name, folder), claim_in(folder, storage, each.name) or ""

    with _engine_kept_away(folder):
        found = {name: objects(*claimed(each)) for name, each in chosen.items()}
        if not as_json:
            _show(found)
        some = any(not each.kept for of in found.values() for each in of)
        done = some and not dry_run and (yes or (not as_json and confirmed("Remove these?")))
        if done:
            found = {
                name: [*remove_objects(*claimed(each)), *(o for o in found[name] if o.kept)]
                for name, each in chosen.items()
            }
    if as_json:
        click.echo(json.dumps(_fields(found, done=done), ensure_ascii=False))
    elif done:
        click.echo("✓ removed")
        if folder.exists():
            click.echo(f"  The data directory stays: {folder}", err=True)
    return errors.DONE


@contextmanager
def _engine_kept_away(folder: Path) -> Iterator[None]:
    """Hold the lock of the data directory, if it exists; `Locked` while an engine has it."""
    if not (folder / "lock").exists():
        yield
        return
    from headrace.runtime.lease import Lease

    lease = Lease(folder, time.time)
    try:
        yield
    finally:
        lease.release()


def _show(found: Mapping[str, list[SourceObject]]) -> None:
    for name, objects in found.items():
        click.echo(f"source {name}{'' if objects else ': nothing to remove'}")
        for each in objects:
            mark, colour = ("·", "white") if each.kept else ("-", "red")
            says = f", {each.says}" if each.says else ""
            click.echo(f"  {click.style(mark, fg=colour)} {each.kind} {each.name}{says}")
            if each.kept:
                click.echo(f"      stays: {each.kept}")


def _fields(found: Mapping[str, list[SourceObject]], *, done: bool) -> dict[str, object]:
    listed = [
        {
            "source": name,
            "objects": [
                {"kind": each.kind, "name": each.name, "says": each.says, "kept": each.kept}
                for each in objects
            ],
        }
        for name, objects in found.items()
    ]
    return {"sources": listed, "done": done}
