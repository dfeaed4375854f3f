"""
When the publication is brought in line, and what has to happen before and after.

*Before*: a table that comes back into the publication may have a baseline in the log, of no use
any more. The log must know that first, because afterwards nothing would tell, should we die in
between. *After*: who wrote the table before it was published has to end before it is copied (R13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from headrace.capture.postgres import publication, slots
from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.late import NotYet
from headrace.capture.postgres.locks import Writers
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.start import Begin, Reason, Resume
from headrace.errors import SourceUnreachable
from headrace.storage import points

Connection = psycopg.Connection[Any]


class Publishing:
    """The publication of one source, over all its connections."""

    def __init__(self, options: Options) -> None:
        self.unfollowed: set[str] = set()
        """Tables that are not published yet, or otherwise than they will be."""

        self._options = options
        self._behind = False
        self._known = False
        self._writers: dict[str, Writers] = {}
        """Tables that somebody may have written to before they were published."""

    def prepare(
        self, connection: Connection, decision: Resume | Begin, tables: Mapping[str, CatalogTable]
    ) -> Resume | Begin:
        """
        Say how reading begins, as far as the publication goes.

        Where all begins anew the old slot goes and the publication is made what it should be.
        Otherwise what is to be done is found, and done by `settle`.
        """
        wanted = list(tables.values())
        if isinstance(decision, Resume):
            ahead = publication.missing_changes(connection, self._options, wanted)
            if not ahead.created:
                self._behind = bool(ahead.added or ahead.removed or ahead.changed)
                self.unfollowed.update(ahead.baselines)
                # One before us may have published tables, and died before they were copied.
                for name in ahead.baselines if self._known else tables:
                    self._writers[name] = Writers()
                self._known = True
                return decision
            # It was away for a while, and what was written then cannot be had any more.
            decision = Begin(Reason.GAP, decision.at.branch, drop=True)
        if decision.drop:
            # First: a slot that outlived this would be read on as if nothing had happened.
            slots.drop(connection, self._options.slot)
        publication.ensure(connection, self._options, wanted)
        points.reach(points.PUBLICATION_ENSURED)
        self.unfollowed.clear()
        self._writers.clear()
        self._behind, self._known = False, True
        return decision

    def settle(self, connection: Connection, tables: Mapping[str, CatalogTable]) -> None:
        """Bring the publication in line; whoever reads or copies has told the log before."""
        declared, self.unfollowed = self.unfollowed, set()
        if not self._behind:
            return
        done = publication.ensure(connection, self._options, list(tables.values()))
        points.reach(points.PUBLICATION_ENSURED)
        self._behind = False
        if more := set(done.baselines) - declared:
            self.unfollowed = more
            self._writers.update((name, Writers()) for name in more)
            raise SourceUnreachable(
                "Somebody else altered the publication", publication=self._options.publication
            )

    def published_before(self, table: str) -> bool:
        """Whether the table was published before anything that matters was written to it."""
        return table not in self._writers

    def check_writers(self, connection: Connection, table: CatalogTable) -> None:
        """Raise `NotYet` while somebody goes on who wrote the table before it was published."""
        if (writers := self._writers.get(table.name)) is not None:
            if writers.left(connection, [table.oid, *table.tree]):
                raise NotYet
            del self._writers[table.name]
