"""
How the rows of a relation, as the server describes it, lie in a table of the log.

The server sends a Relation message before the first change of a table, and again whenever
its columns may have changed. It names columns, but not by their lasting numbers, so the
catalogue is asked as well; what comes of both is a layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from headrace.changelog.schema import TableSchema


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as a Relation message names it."""

    name: str
    type: int
    """The oid of its type, a domain's own where it is one."""

    modifier: int
    key: bool
    """Whether it belongs to the replica identity; under FULL all do (R23)."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A Relation message."""

    oid: int
    namespace: str
    table: str
    identity: str
    """As in `pg_class.relreplident`: d, n, f or i."""

    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Layout:
    """Where each value of a relation's rows goes."""

    schema: TableSchema
    places: tuple[int | None, ...]
    """For each column of the relation its index in `schema.columns`; None: not kept."""

    @cached_property
    def image(self) -> pa.StructType:
        """A row, before or after, as the table's segments have it."""
        return self.schema.segment.field("after").type

    @cached_property
    def fields(self) -> list[pa.Field]:
        """The fields of a row."""
        return list(self.image)


class Layouts(Protocol):
    """Knows the tables that are captured."""

    def layout(self, relation: Relation) -> Layout | None:
        """
        Return how the relation's rows are kept; None where it is not one of our tables.

        Raises `SchemaChanged` where its columns cannot be brought in line with what the
        log has of the table.
        """
        ...
