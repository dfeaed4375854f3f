"""
Partitions that come and go (R23c).

Changes of partitions are published under the name of the partitioned table. That a partition was
emptied, dropped or detached is not, nor that one was attached and brought rows with it. So the log
keeps as a note which partitions its account of a table is right for, and what the catalogue says
is compared with that, time and again. Where rows came or went without a change the table requires
a baseline.

Most new partitions do not: `CREATE TABLE … PARTITION OF` makes them, and whatever is in them came
when they were part of the table. The catalogue shows the difference. Their columns are inherited
from the beginning, while ATTACH and DETACH write each of these entries again. Numbers of
transactions would not do: one that attaches a table may be older than one whose rows are in it. No
transaction needs to be waited for, though: an ATTACH itself waits for all that have written to
what it attaches, and keeps others from it until it has ended.

A partition with another file was emptied, or rewritten by VACUUM FULL or CLUSTER, which keep rows
as they are. If a row is in it that was there when it was last looked at, it was not emptied.
TRUNCATE of the whole table empties partitions, too: that is a change, and a copy is taken that
would not be needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import class_row

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.copy.snapshot import record_end
from headrace.capture.postgres.options import PostgresOptions, quoted
from headrace.capture.postgres.server import preflight, slot
from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.capture.source import News
from headrace.errors import PublicationRefused, SourceUnreachable

Connection = psycopg.Connection[Any]

REASON = "partitions"

GLANCE = "set local statement_timeout = '1s'; set local lock_timeout = '200ms'"
"""For a look into a partition: changes are read by the same thread, and have to wait for it."""

NOTICES_SINCE = 150000
"""
Before, a sender that has met a table once goes on to send it, or not, as it did then, whatever
it is attached to or detached from; until a publication is altered.
"""

_KIND = "tree1"
"""What a note begins with, and its version."""

_COMPARABLE = 1 << 30
"""Numbers of transactions come round again: further apart, they are not compared."""

_QUERY = """
with recursive tree as (
    select r.oid as root, r.oid, null::oid as parent, null::xid as edge
    from unnest(%s::oid[]) as r(oid)
    union all
    select t.root, i.inhrelid, i.inhparent, i.xmin
    from tree t
    join pg_catalog.pg_inherits i on i.inhparent = t.oid and not i.inhdetachpending
)
select t.root::int8, t.oid::int8, t.parent::int8, coalesce(t.edge::text, '0')::int8 as edge,
       c.relkind::text as kind, c.relpersistence::text as persistence,
       c.relfilenode::int8 as filenode, n.nspname as namespace, c.relname as table,
       pg_snapshot_xmin(pg_current_snapshot())::text::int8 as horizon,
       (pg_current_wal_insert_lsn() - '0/0')::int8 as written
from tree t
join pg_catalog.pg_class c on c.oid = t.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
order by t.root, t.oid
"""
# pg_class is asked for the file, not pg_relation_filenode(): all of it is of one moment. How far
# the server has written is read later than that, so it lies behind whatever is seen here.

_BORN = """
select distinct a.attrelid::int8
from pg_catalog.pg_attribute a
join pg_catalog.pg_attribute s on s.attrelid = a.attrelid and s.attnum = -1
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
  and a.attinhcount > 0 and not a.attislocal
  and a.xmin = s.xmin and a.cmin = s.cmin and a.xmax = '0'::xid
"""
# Entries of system columns are as old as the table. An inherited column that one command made
# together with them was never attached.


@dataclass(frozen=True, slots=True)
class Branch:
    """A table below a partitioned one, as it is kept in a note."""

    filenode: int
    """Another one means that it was emptied or written anew; 0: it holds no rows itself."""

    edge: int
    """Who put it below the table above: another one means that it was away in between."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The tables below a partitioned one, by their oids, at one moment."""

    horizon: int
    """Every transaction with a smaller number had ended."""

    branches: Mapping[int, Branch]

    def __str__(self) -> str:
        branches = sorted(self.branches.items())
        texts = (f"{oid:x}:{each.filenode:x}:{each.edge:x}" for oid, each in branches)
        return " ".join((_KIND, f"{self.horizon:x}", *texts))

    @classmethod
    def parse(cls, text: str) -> Tree:
        """Read what `str()` wrote. What it did not write stands for a tree that is gone."""
        kind, _, rest = text.partition(" ")
        if kind != _KIND:
            return cls(0, {0: Branch(1, 0)})
        horizon, *texts = rest.split(" ")
        parts = ([int(part, 16) for part in each.split(":")] for each in texts)
        return cls(int(horizon, 16), {oid: Branch(file, edge) for oid, file, edge in parts})


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A table in a tree, as the catalogue has it now."""

    root: int
    oid: int
    parent: int | None
    """None: it is the root."""

    edge: int
    kind: str
    persistence: str
    filenode: int
    namespace: str
    table: str
    horizon: int
    written: int
    """How far the server had written, after all of this was so."""


class Trees:
    """The partitioned tables of one source, over all its connections. For one thread."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._noted: dict[str, Tree] = {}
        """What the log's account of each is right for, once all news are told."""

        self._floors: dict[str, int] = {}
        self._moved: set[str] = set()
        self._news: list[tuple[int, News]] = []
        """With how far the stream must have come before each is told."""

    def recall(self, notes: Mapping[str, str]) -> None:
        """Take the log's notes; what was not told to it is found again."""
        self._noted = {name: Tree.parse(text) for name, text in notes.items() if name}
        self._news = []

    def begin(self, tables: Mapping[str, CatalogTable]) -> None:
        """Compare at a new beginning, before there is a slot and its snapshot."""
        self._floors = {}
        if any(each.kind == "p" for each in tables.values()):
            with connect(self._options) as connection:
                self._compare(connection, tables)
        self._moved = set()

    def look(self, connection: Connection, tables: Mapping[str, CatalogTable]) -> None:
        """
        Compare once more; `tables` as the catalogue has them now.

        A partition that makes the application's writes fail is told of as a problem (R23a).
        Raises `SourceUnreachable` for one that changes cannot come from: opened anew, the
        source is refused, with the reason.
        """
        for name in self._compare(connection, tables):
            for problem in preflight.check(connection, self._options, [tables[name]]):
                if problem.facts.get("table") == name:
                    self._news.append((0, News(name, problem=problem)))

    def unknown(self, tables: Iterable[CatalogTable]) -> bool:
        """Whether one of these is partitioned and was never looked at."""
        return any(each.kind == "p" and each.name not in self._noted for each in tables)

    def moved(self, table: str) -> bool:
        """Whether partitions came or went since the slot was made, if there is a new one."""
        return table in self._moved

    def floor(self, table: str) -> int:
        """
        Return how far the stream must have come before the table is copied.

        What it says of rows from before they went without a word would bring them back.
        """
        return self._floors.get(table, 0)

    @property
    def news_from(self) -> float:
        """How far the stream must have come before there is any news; infinity: none waits."""
        return min((at for at, _ in self._news), default=math.inf)

    def news(self, given: int) -> list[News]:
        """Return what the log should know; `given` is how far the stream has come."""
        told: list[News] = []
        kept: list[tuple[int, News]] = []
        for at, news in self._news:
            # In their order: a later note without what was owed before it would be wrong.
            if at <= given and not any(news.table == held.table for _, held in kept):
                told.append(news)
            else:
                kept.append((at, news))
        self._news = kept
        return told

    def _compare(self, connection: Connection, tables: Mapping[str, CatalogTable]) -> list[str]:
        """Find what has changed; return the tables that have new partitions."""
        roots = {each.oid: name for name, each in tables.items() if each.kind == "p"}
        if not roots:
            return []
        with connection.cursor(row_factory=class_row(PartitionRow)) as cursor:
            found = cursor.execute(_QUERY, [list(roots)]).fetchall()
        grown = []
        for oid, name in roots.items():
            if not (rows := [row for row in found if row.root == oid]):
                continue  # gone, which others notice
            below = [row for row in rows if row.parent is not None]
            written = record_end(rows[0].written)
            now = Tree(rows[0].horizon, {row.oid: Branch(row.filenode, row.edge) for row in below})
            old = self._noted.get(name)
            if old is not None and old.branches == now.branches:
                self._noted[name] = replace(old, horizon=now.horizon)
                self._floors.setdefault(name, written)
                continue
            self._noted[name] = now
            self._floors[name] = written
            self._moved.add(name)
            if old is None:
                self._news.append((0, News(name, note=str(now))))
                continue
            owed = REASON if _owes(connection, old, now, below) else ""
            if owed and connection.info.server_version < NOTICES_SINCE:
                self._floors[name] = written = self._make_it_notice(connection, name)
            # Later, so that the stream has come far enough when the table is to be copied.
            self._news.append((written, News(name, note=str(now), owed=owed)))
            if now.branches.keys() - old.branches.keys():
                grown.append(name)
                _check_logged(name, [row for row in below if row.oid not in old.branches])
        return grown

    def _make_it_notice(self, connection: Connection, table: str) -> int:
        """Make the sender look anew at what it sends; return where in the stream it does."""
        publication = quoted(self._options.publication)
        statement = f"alter publication {publication} set (publish_via_partition_root = true)"
        try:
            connection.execute(statement.encode())
        except psycopg.Error:
            if connection.closed:
                raise
            problem = PublicationRefused(
                "The server still sends the partitions as they were before",
                table=table,
                remedy=f"{statement};",
            )
            self._news.append((0, News(table, problem=problem)))
        return record_end(slot.written(connection))


def _owes(connection: Connection, old: Tree, now: Tree, below: Sequence[PartitionRow]) -> bool:
    """Whether rows may have come or gone without a change, between two moments."""
    for oid, was in old.branches.items():
        is_now = now.branches.get(oid)
        if is_now is None and was.filenode:
            return True
        if is_now is not None and is_now.edge != was.edge:
            return True
    new = {row.oid: row for row in below if row.oid not in old.branches}
    born = _born(connection, list(new)) if new else frozenset[int]()
    notices = connection.info.server_version >= NOTICES_SINCE
    for row in below:
        if not row.filenode:
            continue
        if row.oid in new:
            if _always_below(row.oid, new, born):
                continue
            if not notices or _has_rows(connection, row) is not False:
                return True
        elif row.filenode != old.branches[row.oid].filenode and not _kept(
            connection, row, old.horizon
        ):
            return True
    return False


def _check_logged(name: str, leaves: Sequence[PartitionRow]) -> None:
    if any(leaf.kind == "f" or leaf.persistence != "p" for leaf in leaves):
        raise SourceUnreachable(
            "A partition is a foreign, unlogged or temporary table: its changes are not in the WAL",
            table=name,
        )


def _born(connection: Connection, oids: Sequence[int]) -> frozenset[int]:
    """Return which of these tables were partitions from the beginning, and ever since."""
    return frozenset(oid for (oid,) in connection.execute(_BORN, [list(oids)]).fetchall())


def _always_below(oid: int, new: Mapping[int, PartitionRow], born: frozenset[int]) -> bool:
    """Whether a new partition was part of the table, by all that is between, from the beginning."""
    while (found := new.get(oid)) is not None and found.parent is not None:
        if oid not in born:
            return False
        oid = found.parent
    return True


def _kept(connection: Connection, leaf: PartitionRow, horizon: int) -> bool:
    """Whether a partition surely has a row that it had when everything below `horizon` ended."""
    if not 0 <= leaf.horizon - horizon < _COMPARABLE:
        return False
    older = f"age(xmin) > age('{horizon % (1 << 32)}'::xid)"
    return _has_rows(connection, leaf, f" where {older}") is True


def _has_rows(connection: Connection, leaf: PartitionRow, where: str = "") -> bool | None:
    """Whether a partition has (such) rows; None where that cannot be told soon."""
    relation = quoted(leaf.namespace, leaf.table)
    try:
        with connection.transaction():
            connection.execute(f"{GLANCE}; set local row_security = off".encode(), prepare=False)
            found = connection.execute(
                f"select 1 from only {relation}{where} limit 1".encode()
            ).fetchall()
            # Locked by now: it is still known by that name if it ever was.
            same = connection.execute("select to_regclass(%s)::oid::int8", [relation]).fetchone()
    except psycopg.Error:
        if connection.closed:
            raise
        return None
    return bool(found) if same == (leaf.oid,) else None
