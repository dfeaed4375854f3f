"""Files that a verb is asked to write: none that is there is lost, and errors are told as such."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from headrace.errors import AlreadyStored
from headrace.storage.private import create_output, not_written

force_option = click.option("--force", is_flag=True, help="Replace a file that is there.")
"""Adds `--force`: `force: bool`."""


def refuse_taken(path: Path, *, force: bool) -> None:
    """Refuse a file that is there, before any work is done for it; with `force` none."""
    if path.is_file() and not force:
        raise _taken(path)


@contextmanager
def opened_output(path: Path, *, force: bool, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a file to write, and turn what the system says against it into an error of ours."""
    try:
        stream = create_output(path, replace=force, mode=mode)
    except AlreadyStored:
        raise _taken(path) from None
    try:
        with stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise not_written(path, error) from error


def _taken(path: Path) -> click.UsageError:
    return click.UsageError(f"{path} is there already; --force replaces it.")
