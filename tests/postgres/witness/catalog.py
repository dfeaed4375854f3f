"""Catalog changes from the list of `tests.postgres.catalog_sequences`, drawn one at a time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg

from headrace.embedded.postgres import PostgresServer
from tests.postgres.catalog_sequences import LISTED, OURS, PUBLICATION, TABLES, Sequence_
from tests.postgres.servers import Database
from tests.postgres.witness.plan import Fault
from tests.postgres.witness.testimony import digests

KINDS: dict[str, str] = {
    r"rename to third": "tables swapped",
    r"set schema": "schema left and entered again",
    r"rename to gone": "table renamed",
    r"rename value": "label of an enum renamed",
    r"add value": "label of an enum added",
    r"(add|drop) attribute": "composite type altered",
    r"set state = 'v\d+'": "label used before it was seen",
    r"alter table things? rename": "object renamed that a regclass names",
    r"publication \w+ drop table": "table unpublished",
    r"publish = 'insert'": "publication of inserts alone",
    r"where \(": "row filter",
    r"\(id, other, n\)": "column list",
    r"via_partition_root": "publish_via_partition_root",
    r"replica identity": "replica identity",
    r"add x\d+ int$": "column added",
    r"add x\d+ (int|float) default": "column with a default added",
    r"type text using": "type altered with USING",
    r"type bigint": "type widened",
    r"detach partition": "partition detached and attached",
    r"truncate p1": "partition truncated",
    r"like p including all": "partition attached with rows",
    r"partition of p": "partition added",
    r"drop table q": "partition dropped",
    r"drop table [ab]\b": "table dropped",
    r"(?s)rename to fresh|alter table fresh\d+ rename to": "table replaced",
    r"truncate [ab]\b": "table truncated",
    r"cluster|vacuum full": "table clustered",
    r"inherits": "child that inherits",
}
"""What each change is called in the table of a run, by what its statements have."""


def kinds_of(statements: list[str]) -> list[str]:
    """Return what statements that were run are called."""
    text = [each.rstrip(";") for each in statements if not each.startswith("--")]
    return [
        f"catalog: {name}"
        for pattern, name in KINDS.items()
        if any(re.search(pattern, each) for each in text)
    ]


class Catalog(Sequence_):
    """The list at work on the database of a round; another engine reads it."""

    def __init__(
        self, server: PostgresServer, seed: int, others: tuple[str, ...], *, ours: bool
    ) -> None:
        self._server = server
        kind = OURS if ours else LISTED
        super().__init__(Database(server, "postgres"), Path(), seed, kind)
        if not ours:
            self._database.execute(f"alter publication {PUBLICATION} add table {', '.join(others)}")
        self._published = (*self._published, *others)
        every = ", ".join(self._published)
        self.publication = (
            f"create publication {PUBLICATION} for table {every}"
            " with (publish_via_partition_root = true)"
        )
        """How it is made again."""

        self.wrote: Callable[[], None] = lambda: None
        """Called after each transaction."""

    @property
    def wounded(self) -> bool:
        return self._wound_now is not None

    def change(self, fault: Fault) -> list[str]:
        """Do one of a family; return what was done, by name."""
        self._connect()
        before = len(self.said)
        # Half of a family depends on a throw: once is not always enough.
        for _ in range(20):
            getattr(self, f"_{fault.removeprefix('catalog: ')}")()
            if found := kinds_of(self.said[before:]):
                self._rows()
                return found
        return []

    def heal(self) -> None:
        """Undo what an engine must not be ready with."""
        self._connect()
        if self._wound_now is not None:
            self._must(*self._wound_now.undo)
            self._wound_now = None
        self._names = {name: name for name in TABLES}

    def contents(self) -> Iterator[tuple[str, list[int] | None]]:
        """Return what each table has now, by the name under which it is captured."""
        self._connect()
        for name in TABLES:
            try:
                yield name, self._digests(name)
            except psycopg.errors.UndefinedTable:
                yield name, None

    def close(self) -> None:
        """Close all connections."""
        for each in self._database._opened:
            each.close()

    def _digests(self, name: str) -> list[int]:
        columns = [
            column
            for (column,) in self._database.rows(
                "select attname from pg_attribute where attrelid = %s::regclass"
                " and attnum > 0 and not attisdropped order by 1",
                name,
            )
        ]
        chosen = ", ".join(f"{column}::text" for column in columns)
        rows = self._reader.execute(f"select {chosen} from public.{name}".encode()).fetchall()
        return digests(dict(zip(columns, row, strict=True)) for row in rows)

    def _run(self, *statements: str) -> bool:
        done = super()._run(*statements)
        self.said.append(f"-- {time.time():.2f}")
        if done:
            self.wrote()
        return done

    def _pause(self) -> None:
        """Give no time: the changes of others follow soon enough."""

    def _connect(self) -> None:
        """Begin anew where the server was away."""
        with suppress(psycopg.OperationalError):
            for each in (self._session, self._reader):
                each.execute("select 1")
            return
        self.close()
        self._database = Database(self._server, "postgres")
        self._session = self._database.connect()
        self._session.execute("set lock_timeout = '300ms'")
        self._reader = self._database.connect(options="-c search_path=pg_catalog")
        self._writer = self._database.connect(autocommit=False)
