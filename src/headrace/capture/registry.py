"""
The kinds of sources, and how a source is built again in its own process.

Other packages provide kinds by entry points of the group `headrace.sources`: the entry's name
is the kind, and the object it refers to is called as our classes are, with a spec and a reader.

`findings` returns what a user should know about a source, before or long after it is captured. A
problem keeps capture from starting, and every start reports it. Everything else is a finding:
settings with a consequence, and objects that an engine left at the source.

`objects` returns what a recorder created at a source, and `remove_objects` removes it. Objects that
are not known to be this engine's, or that others use, are named with the reason, and stay.

`sample` returns a few rows of a table, read without capturing it. Nothing is set up at the source,
and nothing stays there. The rows have the same types as in a baseline, so results computed from
them are the ones that a baseline will give.
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

_MODULES = {
    "postgres": "headrace.capture.postgres.server.doctor",
    "sqlite": "headrace.capture.sqlite.source",
}
"""The module of each kind that has all functions below."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a user should know about a source."""

    about: str
    """A setting, a slot, a table."""

    says: str
    remedy: str = ""
    """Empty if it is information only."""


def findings(source: Recordable, tables: Sequence[str], reader: str) -> list[Finding]:
    """
    Return the findings about a source; `reader` is the name of this engine there.

    Some kinds of sources have none. Raises an error if the source cannot be read.
    """
    module = _MODULES.get(source.spec.kind)
    if module is None:
        return []
    found: list[Finding] = importlib.import_module(module).findings(source, tables, reader)
    return found


# --- what capture created at a source -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One object at a source that Headrace created, or that has a name of ours."""

    kind: str
    """`replication slot`, `publication`, `trigger` or `table`."""

    name: str
    says: str = ""
    """What it costs, or what it is on; may be empty."""

    kept: str = ""
    """Why it is not removed; empty if it is."""


def objects(source: Recordable, reader: str, claim: str) -> list[SourceObject]:
    """
    Return the objects that the engine called `reader` has at a source.

    `claim` is what the source's log notes that it created, empty if there is no log. Raises an
    error if the source cannot be read.
    """
    found: list[SourceObject] = _objects(source, "objects", reader, claim)
    return found


def remove_objects(source: Recordable, reader: str, claim: str) -> list[SourceObject]:
    """Remove these objects, except those to be kept, and return them; no engine may be running."""
    removed: list[SourceObject] = _objects(source, "remove_objects", reader, claim)
    return removed


def _objects(source: Recordable, function: str, reader: str, claim: str) -> list[SourceObject]:
    module = _MODULES.get(source.spec.kind)
    if module is None:
        return []
    made: list[SourceObject] = getattr(importlib.import_module(module), function)(
        source, reader, claim
    )
    return made


# --- kinds ----------------------------------------------------------------------------------------

KINDS = {
    "postgres": "headrace.capture.postgres.source:PostgresSource",
    "sqlite": "headrace.capture.sqlite.source:SQLiteSource",
}
"""The class of each kind; imported only when it is used, with its dependencies."""

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
    if (path := KINDS.get(kind)) is not None:
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name)
    for entry in metadata.entry_points(group=GROUP, name=kind):
        return entry.load()
    return None


# --- samples --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableSample:
    """Some rows of one table as they are now; the database chooses which."""

    schema: TableSchema
    rows: pa.RecordBatch
    """In the shape of `schema.arrow`."""

    exact: pa.Array | None = None
    """Exact texts of values that the types cannot hold, in the shape of a segment's `_exact`."""


def sample(source: Recordable, table: TableName, most: int) -> TableSample:
    """
    Return at most `most` rows of a table, as a baseline would contain them.

    Raises an error if the table cannot be described or read, and `SourceRefused` for a kind of
    source that does not support this.
    """
    module = _MODULES.get(source.spec.kind)
    if module is None:
        raise SourceRefused(
            "This kind of source cannot return sample rows before it is captured",
            remedy="Start an engine: rows that fail in the pipeline become dead letters.",
            source=source.name,
            kind=source.spec.kind,
        )
    found: TableSample = importlib.import_module(module).sample(source, table, most)
    return found
