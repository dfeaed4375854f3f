"""
The relations that the server has described, and the changes that speak of them.

A change names its table by a number, and what the columns are was said before, by a
Relation message. One that says something new counts from its place on: the changes before
it, in the same flush, perhaps in the same transaction, have other columns than those after.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.capture.postgres.images import Stamps, Version, chunks, segment
from headrace.capture.postgres.layout import Layouts, Relation
from headrace.capture.postgres.pgoutput import RELATION, TRUNCATE, read_relation, read_truncate
from headrace.capture.postgres.tuples import Flags, Ints, Messages
from headrace.changelog.change import TableChanges
from headrace.errors import SchemaChanged


@dataclass(slots=True)
class Relations:
    """What is known of relations: in the session, or in one stream of it."""

    versions: dict[int, Version] = field(default_factory=dict)
    _received: dict[int, int] = field(default_factory=dict)

    def differs(self, version: Version) -> bool:
        """Return whether this version is another than the one known."""
        return self.versions.get(version.relation.oid) != version

    def learn(self, version: Version, number: int) -> None:
        """Take a version; `number` says when its message was received."""
        oid = version.relation.oid
        if self.differs(version):
            self.versions[oid] = version
        self._received[oid] = number

    def relearn(self, oid: int, decoder: Decoder) -> None:
        """Take a relation that is known as the decoder has it now."""
        if (known := self.versions.get(oid)) is not None:
            # If it was altered since it was described, it will be described again.
            with suppress(SchemaChanged):
                self.versions[oid] = decoder.version(known.relation)

    def merge(self, other: Relations) -> None:
        """Take what another one knows, where its message was received later than ours."""
        for oid, version in other.versions.items():
            number = other._received[oid]
            if number > self._received.get(oid, -1):
                self.learn(version, number)


@dataclass(slots=True)
class _Group:
    """Changes of one relation while it stays as it is."""

    version: Version
    batches: list[pa.RecordBatch] = field(default_factory=list)


class Decoder:
    """Makes changes of tables out of messages."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._count = 0

    def count(self) -> int:
        """Return the number of a Relation message that has just been received."""
        self._count += 1
        return self._count

    def version(self, relation: Relation) -> Version:
        """Return what a relation is from here on."""
        # The layout is asked for each time: the same names and types may be new columns.
        return Version(relation, self._layouts.layout(relation))

    def decode(
        self,
        run: Messages,
        wanted: Flags,
        stamps: Stamps,
        known: Relations,
        announced: Iterator[tuple[Relation, int]] | None = None,
    ) -> list[TableChanges]:
        """
        Return the wanted changes by table, each in position order.

        `known` learns what the Relation messages among them say; `announced` gives these
        where they have been read before, in the same order.
        """
        groups: list[_Group] = []
        begin = 0
        for index in np.flatnonzero(run.kinds == RELATION).tolist():
            if announced is not None:
                relation, number = next(announced)
            else:
                relation, number = read_relation(run.one(index)), self.count()
            version = self.version(relation)
            if known.differs(version):
                _span(groups, run, wanted, stamps, known, begin, index)
                begin = index
            known.learn(version, number)
        _span(groups, run, wanted, stamps, known, begin, len(run.kinds))
        return [
            TableChanges(group.version.schema, pa.Table.from_batches(group.batches))
            for group in groups
        ]


def _span(
    groups: list[_Group],
    run: Messages,
    wanted: Flags,
    stamps: Stamps,
    known: Relations,
    begin: int,
    end: int,
) -> None:
    """Read changes between two places at which relations change."""
    rows = np.flatnonzero(wanted[begin:end]) + begin
    if not len(rows):
        return
    if (wrong := run.sizes()[rows] < run.lead + 4).any():
        run.wrong("Message ends too early", wrong, run.stops[rows], rows)
    rows, oids = _tables(run, rows)
    # Mostly there is one table, and to find that out is cheaper than to sort.
    alone = bool((oids == oids[0]).all())
    for oid in oids[:1].tolist() if alone else np.unique(oids).tolist():
        version = known.versions.get(oid)
        if version is None:
            run.wrong("Change of an unknown relation", oids == oid, run.starts[rows] + 1, rows)
        if version.layout is None:
            continue
        mine = rows if alone else rows[oids == oid]
        found = run.at(mine)
        group = next((group for group in groups if group.version is version), None)
        if group is None:
            group = _Group(version)
            groups.append(group)
        for chunk in chunks(found):
            group.batches.append(segment(version, found.at(chunk), stamps.at(mine[chunk])))


def _tables(run: Messages, rows: Ints) -> tuple[Ints, Ints]:
    """Return for each change its table's oid; a TRUNCATE stands once for each of its tables."""
    oids = run.bytes.numbers(run.starts[rows] + run.lead, ">u4")
    truncates = np.flatnonzero(run.kinds[rows] == TRUNCATE)
    if not len(truncates):
        return rows, oids
    parts_rows, parts_oids = [np.delete(rows, truncates)], [np.delete(oids, truncates)]
    for at in truncates.tolist():
        named = read_truncate(run.one(int(rows[at])), streamed=run.lead > 1)
        parts_rows.append(np.full(len(named), rows[at]))
        parts_oids.append(np.array(named, np.int64))
    all_rows, all_oids = np.concatenate(parts_rows), np.concatenate(parts_oids)
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], all_oids[order]
