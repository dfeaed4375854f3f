"""
The kinds of sources there are, and how each is built again in a process of its own.

Other packages provide kinds by entry points of the group `headrace.sources`: the entry's name
is the kind, and what it names is called as our classes are, with a spec and a reader.

`findings` returns what there is to know of a source before, or long after, it is captured. A
problem keeps capture from starting, and every start reports it. A finding is the rest: settings
with a consequence, and what was left at the source by an engine that is gone.

`sample` returns a few rows of a table, read without capturing it. Nothing is set up at the source,
and nothing stays there. The rows are in the very types that a baseline gives, so that what is
computed from them is what will be computed from a baseline.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import pyarrow as pa

from headrace.capture.source import Recordable, SourceSpec
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import SourceRefused

# --- findings -------------------------------------------------------------------------------------

_HOMES = {
    "postgres": "headrace.capture.postgres.server.doctor",
    "sqlite": "headrace.capture.sqlite.source",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should have read once."""

    about: str
    """A setting, a slot, a table."""

    says: str
    remedy: str = ""
    """Empty where it is information only."""


def findings(source: Recordable, tables: Sequence[str], reader: str) -> list[Finding]:
    """
    Return what is worth knowing of a source; `reader` is who this engine is to it.

    A kind of source that has nothing to say has none. Raises what keeps it from being asked.
    """
    home = _HOMES.get(source.spec.kind)
    if home is None:
        return []
    found: list[Finding] = importlib.import_module(home).findings(source, tables, reader)
    return found


# --- kinds ----------------------------------------------------------------------------------------

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


# --- samples --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableSample:
    """Rows of one table as they are now; which ones is for the database to choose."""

    schema: TableSchema
    rows: pa.RecordBatch
    """In the shape of `schema.arrow`."""

    exact: pa.Array | None = None
    """Marks of values that their columns cannot hold, in the shape of a segment's `_exact`."""


def sample(source: Recordable, table: TableName, most: int) -> TableSample:
    """
    Return at most so many rows of a table, of those that a baseline would hold.

    Raises what keeps the table from being described or read, and `SourceRefused` for a kind of
    source that has no such way.
    """
    home = _HOMES.get(source.spec.kind)
    if home is None:
        raise SourceRefused(
            "This kind of source cannot return sample rows before it is captured",
            remedy="Start an engine: rows that fail in the pipeline become dead letters.",
            source=source.name,
            kind=source.spec.kind,
        )
    found: TableSample = importlib.import_module(home).sample(source, table, most)
    return found
