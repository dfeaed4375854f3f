"""What a verb reads by itself, where it needs no engine: a data directory, a log elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from headrace.errors import BadDataDirectory, StorageError
from headrace.interfaces.cli.reaching import data_directory

if TYPE_CHECKING:
    from headrace.storage.files import Files

_OURS = ("control.sqlite", "log", "dead-letters", "storage")
"""What an engine's data directory has at least one of."""


class Place(NamedTuple):
    """Where logs are read."""

    files: Files
    folder: Path | None
    """The data directory; None where only the storage was named."""


def place_of(
    config: Path | None, sets: tuple[str, ...], data: Path | None, storage: str | None
) -> Place:
    """Return the storage that was named, or that of the data directory."""
    # Here and not above: `--help` needs no Arrow, and is slow with it.
    from headrace.storage.opening import opened, storage_of

    if storage is None:
        folder = used_folder(data_directory(config, sets, data))
        return Place(storage_of(folder), folder)
    if config is not None or sets or data is not None:
        raise click.UsageError("--storage goes without --data, --config and --set.")
    return Place(opened(storage), None)


def recorded(files: Files) -> list[str]:
    """Return the sources that have a log there."""

    def begun(name: str) -> bool:
        try:
            return bool(files.list(f"log/{name}/index"))
        except StorageError:
            # On a disk, what lies between the logs may be no folder, or not ours to look into.
            if files.local:
                return False
            raise

    return [name for name in files.list("log") if begun(name)]


def used_folder(data: Path) -> Path:
    """Return the whole path of a data directory; `BadDataDirectory`: no engine has used it."""
    folder = data.expanduser().absolute()
    if not any((folder / name).exists() for name in _OURS):
        raise BadDataDirectory(
            "No engine has used this data directory",
            data=str(folder),
            remedy="Give the engine's own with --data, or as data in the configuration; an engine"
            " makes it when it starts: headrace run.",
        )
    return folder
