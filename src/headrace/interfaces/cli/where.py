"""The data directory that a verb reads by itself, where it needs no engine."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import BadDataDirectory

_OURS = ("control.sqlite", "log", "dead-letters")
"""What an engine's data directory has at least one of."""


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
