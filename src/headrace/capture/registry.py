"""The kinds of sources there are, and how each is built again in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.capture.source import Recordable, SourceSpec
from headrace.capture.sqlite.source import SQLiteSource
from headrace.errors import SourceRefused

Builder: TypeAlias = Callable[[SourceSpec, str], Recordable]
"""Takes the source's description and the name of its reader."""

KINDS: dict[str, Builder] = {"sqlite": SQLiteSource}


def build(spec: SourceSpec, reader: str) -> Recordable:
    """Return the source that `spec` describes."""
    if (builder := KINDS.get(spec.kind)) is None:
        raise SourceRefused(
            "Unknown kind of source",
            kind=spec.kind,
            remedy=f"Use one of {', '.join(sorted(KINDS))}; test sources need recorder='thread'.",
        )
    return builder(spec, reader)
