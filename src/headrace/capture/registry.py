"""The kinds of sources there are, and how each is built again in a process of its own."""

from __future__ import annotations

import importlib

from headrace.capture.source import Recordable, SourceSpec
from headrace.errors import SourceRefused

KINDS = {
    "postgres": "headrace.capture.postgres.source:PostgresSource",
    "sqlite": "headrace.capture.sqlite.source:SQLiteSource",
}
"""Where the class of each kind lives: imported when asked for, with what it needs."""


def build(spec: SourceSpec, reader: str) -> Recordable:
    """Return the source that `spec` describes, for the reader of that name."""
    if (home := KINDS.get(spec.kind)) is None:
        raise SourceRefused(
            "Unknown kind of source",
            kind=spec.kind,
            remedy=f"Use one of {', '.join(sorted(KINDS))}; test sources need recorder='thread'.",
        )
    module, _, name = home.partition(":")
    source: Recordable = getattr(importlib.import_module(module), name)(spec, reader)
    return source
