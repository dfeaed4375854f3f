"""
When the publication is brought in line, and what has to happen before and after.

*Before*: a table that comes back into the publication may have a baseline in the log, of no use
any more. The log must know that first, because afterwards nothing would tell, should we die in
between. *After*: who wrote the table before it was published has to end before it is copied (R13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import psycopg

from headrace.capture.postgres import publication, slots
from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.locks import Writers
from headrace.capture.postgres.older import whom
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.start import Begin, Reason, Resume
from headrace.capture.source import NotYet
from headrace.errors import PublicationRefused, SourceUnreachable
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

        self._later: set[str] = set()
        """Tables that were published after the slot was there: its own snapshot is too old."""

        self._tries: dict[str, int] = {}
        """How often a table could not be locked to be published."""

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
        self._later.clear()
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
            self._declare(more)

    def _declare(self, more: set[str]) -> NoReturn:
        """Have the log told of tables that were published otherwise than anybody knew."""
        self.unfollowed = more
        self._writers.update((name, Writers()) for name in more)
        raise SourceUnreachable(
            "Somebody else altered the publication", publication=self._options.publication
        )

    def widen(
        self, connection: Connection, tables: Mapping[str, CatalogTable], new: CatalogTable
    ) -> None:
        """
        Publish one more table, at once; the log was told before, where it has the table.

        Raises `PublicationRefused` where that cannot be, or the table is locked: the longer it
        is, the longer the next attempt waits.
        """
        tries = self._tries.get(new.name, 0)
        seconds = publication.LOCK_SECONDS[min(tries, len(publication.LOCK_SECONDS) - 1)]
        # First: should the answer get lost, the next connection finds the table published.
        self._writers[new.name] = Writers()
        self._later.add(new.name)
        try:
            wanted = [*tables.values(), new]
            done = publication.ensure(connection, self._options, wanted, waits=(seconds,))
        except SourceUnreachable as error:
            if connection.closed:
                raise
            self._tries[new.name] = tries + 1
            raise PublicationRefused(error.message, remedy=error.remedy, **error.facts) from error
        points.reach(points.PUBLICATION_ENSURED)
        self._tries.pop(new.name, None)
        if more := set(done.baselines) - {new.name}:
            self._declare(more)

    def published_before(self, table: str) -> bool:
        """Whether the table was published before anything that matters was written to it."""
        return table not in self._writers and table not in self._later

    def check_writers(self, connection: Connection, table: CatalogTable) -> None:
        """Raise `NotYet` while somebody goes on who wrote the table before it was published."""
        if (writers := self._writers.get(table.name)) is not None:
            if left := writers.left(connection, [table.oid, *table.tree]):
                raise NotYet(whom("A copy waits for", left))
            del self._writers[table.name]
