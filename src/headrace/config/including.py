"""Files of a configuration: how they are read, and how one includes another."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from headrace.config.scanning import Source, excerpt
from headrace.config.tree import Place
from headrace.config.written import PathOfKeys
from headrace.errors import ConfigUnreadable

Read: TypeAlias = Callable[[str, str], tuple[str, str] | None]
"""
Given a name and the origin of the text that includes it, returns origin and text; None where
there is no such file.
"""

LARGEST = 4 * 1024 * 1024
"""Characters of all files of a configuration together."""

NESTED = 20
_FILES = 1_000


@dataclass(slots=True)
class _Total:
    """What all included files of a configuration come to."""

    files: int = 0
    characters: int = 0


@dataclass(frozen=True, slots=True)
class Included:
    """Where a text stands among the files that include each other."""

    read: Read | None
    prefix: PathOfKeys = ()
    """The keys under which the text was included."""

    depth: int = 0
    """How deep in objects it was included."""

    chain: tuple[str, ...] = ()
    """The origins of the files above it."""

    total: _Total = field(default_factory=_Total)


def included(
    context: Included,
    source: Source,
    offset: int,
    name: str,
    *,
    required: bool,
    at: PathOfKeys,
    depth: int,
) -> tuple[Source, Included] | None:
    """Return the text of an included file and its context; None where it may be missing."""
    if context.read is None:
        raise source.error(offset, "No file can be included here", "Write its text instead.")
    try:
        found = context.read(name, source.origin)
    except (OSError, ValueError) as error:
        # ValueError: names that no file can have.
        raise source.error(
            offset, f"The file cannot be read: {_reason(error)}", None, ConfigUnreadable
        ) from None
    if found is None:
        if required:
            raise source.error(
                offset,
                "There is no such file",
                "Create it, or take out required( ): then it may be missing.",
                ConfigUnreadable,
            )
        return None
    origin, text = found
    chain = (*context.chain, source.origin)
    total = context.total
    total.files += 1
    total.characters += len(text)
    if origin in chain:
        way = " → ".join((*chain[chain.index(origin) :], origin))
        raise source.error(offset, f"Files include each other: {way}", "Break the circle.")
    if len(chain) > NESTED or total.files > _FILES or total.characters > LARGEST:
        raise source.error(
            offset,
            "Includes are nested too deep, or are too many or too large together",
            f"At most {NESTED} deep, {_FILES:,} files and {LARGEST:,} characters.",
        )
    return Source(text, origin), replace(context, prefix=at, depth=depth, chain=chain)


def read_beside(name: str, origin: str) -> tuple[str, str] | None:
    """Read a file that is named from the folder of the file `origin`."""
    # Not resolved further: people know their files by the names they gave.
    path = os.path.normpath(Path(origin).parent / Path(name))
    return (path, text_of(Path(path))) if Path(path).exists() else None


def text_of(path: Path) -> str:
    """Return the text of a file; raise `ConfigUnreadable` where it has none."""
    try:
        with path.open("rb") as file:
            # Not by its size: a device or a pipe has none, and may never end.
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise ConfigUnreadable(
            f"{path} cannot be read: {_reason(error)}",
            remedy="Check the path; headrace init writes a configuration to begin with.",
        ) from None
    if len(data) > LARGEST:
        raise ConfigUnreadable(
            f"{path} is larger than {LARGEST:,} bytes",
            remedy="Check the path: this is more than any configuration needs.",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_text(path, data, error.start) from None


def _no_text(path: Path, data: bytes, offset: int) -> ConfigUnreadable:
    start = data.rfind(b"\n", 0, offset) + 1
    line = data[start:].split(b"\n", 1)[0].decode("utf-8", "replace")
    column = len(data[start:offset].decode("utf-8", "replace")) + 1
    place = Place(str(path), data.count(b"\n", 0, offset) + 1, column)
    raised = ConfigUnreadable(
        f"{place}: A byte stands there that is not UTF-8",
        remedy="Save the file as UTF-8.",
        place=str(place),
    )
    raised.excerpt = excerpt(line, place)
    return raised


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
