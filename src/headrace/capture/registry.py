"""
The kinds of sources there are, and how each is built again in a process of its own.

Other packages provide kinds by entry points of the group `headrace.sources`: the entry's name
is the kind, and what it names is called as our classes are, with a spec and a reader.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

from headrace.capture.source import Recordable, SourceSpec
from headrace.errors import SourceRefused

KINDS = {
    "postgres": "headrace.capture.postgres.source:PostgresSource",
    "sqlite": "headrace.capture.sqlite.source:SQLiteSource",
}
"""Where the class of each kind lives: imported when asked for, with what it needs."""

GROUP = "headrace.sources"


def build(spec: SourceSpec, reader: str) -> Recordable:
    """Return the source that `spec` describes, for the reader of that name."""
    if (made := _class_of(spec.kind)) is None:
        raise SourceRefused(
            "Unknown kind of source",
            kind=spec.kind,
            remedy=f"Use one of {', '.join(sorted(KINDS))}; test sources need recorder='thread'.",
        )
    source: Recordable = made(spec, reader)
    return source


def _class_of(kind: str) -> Any:
    if (home := KINDS.get(kind)) is not None:
        module, _, name = home.partition(":")
        return getattr(importlib.import_module(module), name)
    for entry in metadata.entry_points(group=GROUP, name=kind):
        return entry.load()
    return None
