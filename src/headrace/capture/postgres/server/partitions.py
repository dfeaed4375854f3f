"""
Partitions that are added and removed (R23c).

Changes of partitions are published under the name of the partitioned table. The stream does not
report that a single partition was truncated, dropped or detached, or that one was attached and
brought rows with it. So the log has a note of the partitions that its rows of a table belong to,
and the catalog is compared with the note every ten seconds. If rows were added or removed without
a change, the table needs a new baseline.

Most new partitions do not need one: they are created by `CREATE TABLE … PARTITION OF`, and all
their rows were written when they were part of the table. The catalog shows the difference. Their
columns are inherited from the beginning, while ATTACH and DETACH rewrite these catalog entries.
Transaction ids would not show it: a transaction that attaches a table may be older than one whose
rows are in it. But no transaction needs to be waited for: ATTACH itself waits for all transactions
that have written to the table it attaches, and blocks others until it has ended.

A partition with a new file was truncated, or rewritten by VACUUM FULL or CLUSTER, which keep the
rows as they are. If it still has a row that it had at the last look, it was not truncated.
TRUNCATE of the whole table truncates its partitions, too: that is a change, and the table is then
copied without need.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import class_row

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.copy.snapshot import record_end
from headrace.capture.postgres.options import PostgresOptions, quoted
from headrace.capture.postgres.server import preflight, publication, slot
from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.capture.postgres.server.publication import Alterations
from headrace.capture.source import SourceNotice
from headrace.errors import PublicationRefused, Reopening

Connection = psycopg.Connection[Any]

REASON = "partitions"

GLANCE = "set local statement_timeout = '1s'; set local lock_timeout = '200ms'"
"""Limits of a statement here: the same thread reads changes, which wait meanwhile."""

SENDER_UPDATES_SINCE = 150000
"""
An older sender continues to send a table, or not, as it did when it first met it, whatever the
table is attached to or detached from, until a publication is altered.
"""

_KIND = "tree1"
"""How a note begins: its kind, with its version."""

_COMPARABLE = 1 << 30
"""Transaction ids wrap around: those that are further apart are not compared."""

_QUERY = f"""
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
       ({slot.WRITTEN})::int8 as written
from tree t
join pg_catalog.pg_class c on c.oid = t.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
order by t.root, t.oid
"""
# The file is read from pg_class, not by pg_relation_filenode(), so that all is from one snapshot.
# The end of the WAL is read later than that, so it lies after everything that is seen here.

_BORN = """
select distinct a.attrelid::int8
from pg_catalog.pg_attribute a
join pg_catalog.pg_attribute s on s.attrelid = a.attrelid and s.attnum = -1
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
  and a.attinhcount > 0 and not a.attislocal
  and a.xmin = s.xmin and a.cmin = s.cmin and a.xmax = '0'::xid
"""
# The entries of system columns are as old as the table. If the same command created an inherited
# column, the table was never attached.


@dataclass(frozen=True, slots=True)
class Branch:
    """A table below a partitioned one, as a note has it."""

    filenode: int
    """Changes when it is truncated or rewritten; 0: it has no rows itself."""

    edge: int
    """The transaction that put it below its parent; changes if it was detached in between."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The tables below a partitioned one, by their oids, at one point in time."""

    horizon: int
    """Every transaction with a smaller id had ended."""

    branches: Mapping[int, Branch]

    def __str__(self) -> str:
        branches = sorted(self.branches.items())
        texts = (f"{oid:x}:{each.filenode:x}:{each.edge:x}" for oid, each in branches)
        return " ".join((_KIND, f"{self.horizon:x}", *texts))

    @classmethod
    def parse(cls, text: str) -> Tree:
        """Read what `str()` wrote; any other text gives a tree that requires a baseline."""
        kind, _, rest = text.partition(" ")
        if kind != _KIND:
            return cls(0, {0: Branch(1, 0)})
        horizon, *texts = rest.split(" ")
        parts = ([int(part, 16) for part in each.split(":")] for each in texts)
        return cls(int(horizon, 16), {oid: Branch(file, edge) for oid, file, edge in parts})


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A table in a tree, as the catalog has it now."""

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
    """The end of the server's WAL, read after everything else."""


class PartitionedTables:
    """The partitioned tables of one source, over all its connections. For one thread."""

    def __init__(self, options: PostgresOptions, alterations: Alterations) -> None:
        """`alterations` gets what is altered here."""
        self._options = options
        self._alterations = alterations
        self._noted: dict[str, Tree] = {}
        """The partitions that the log's rows belong to, once all notices are recorded."""

        self._floors: dict[str, float] = {}
        self._outdated: dict[str, str] = {}
        """Notes of tables that the sender does not send as they are now: it has to be updated."""

        self._reported: set[str] = set()
        """Those of them of which there was a notice."""

        self._moved: set[str] = set()
        self._notices: list[tuple[int, SourceNotice]] = []
        """Each with the position that the stream must have reached before it is returned."""

    def recall(self, notes: Mapping[str, str]) -> None:
        """Take over the log's notes; notices that were not recorded are found again."""
        self._noted = {name: Tree.parse(text) for name, text in notes.items() if name}
        self._notices = []
        self._outdated, self._reported = {}, set()

    def begin(self, tables: Mapping[str, CatalogTable]) -> None:
        """Compare when the source is opened, before there is a slot with its snapshot."""
        self._floors = {}
        if any(each.kind == "p" for each in tables.values()):
            with connect(self._options) as connection:
                self._compare(connection, tables)
        self._moved = set()

    def look(self, connection: Connection, tables: Mapping[str, CatalogTable]) -> None:
        """
        Compare once more; `tables` are as the catalog has them now.

        A partition that makes the application's writes fail is reported as a problem (R23a).
        Raises `Reopening` for a partition whose changes are not in the WAL: when the
        source is opened again, it is refused with the reason.
        """
        for name in self._compare(connection, tables):
            for problem in preflight.check(connection, self._options, [tables[name]]):
                if problem.facts.get("table") == name:
                    self._notices.append((0, SourceNotice(name, problem=problem)))

    def unknown(self, tables: Iterable[CatalogTable]) -> bool:
        """Whether one of these is partitioned and was not compared yet."""
        return any(each.kind == "p" and each.name not in self._noted for each in tables)

    def moved(self, table: str) -> bool:
        """Whether partitions changed since `begin`: then the slot's first snapshot is too old."""
        return table in self._moved

    def floor(self, table: str) -> float:
        """
        Return the position that the stream must have reached before the table is copied.

        Infinity: it has to wait until the sender sends what is written from then on. Earlier
        changes of rows that were removed without a change would bring the rows back.
        """
        return self._floors.get(table, 0)

    @property
    def notices_from(self) -> float:
        """The position at which the first notice is returned; infinity: there is none."""
        return min((at for at, _ in self._notices), default=math.inf)

    def notices(self, given: int) -> list[SourceNotice]:
        """Return what the log should record; `given` is how far the stream has been read."""
        ready: list[SourceNotice] = []
        kept: list[tuple[int, SourceNotice]] = []
        for at, notice in self._notices:
            # In their order: a later note without the baseline required before would be wrong.
            if at <= given and not any(notice.table == held.table for _, held in kept):
                ready.append(notice)
            else:
                kept.append((at, notice))
        self._notices = kept
        return ready

    def _compare(self, connection: Connection, tables: Mapping[str, CatalogTable]) -> list[str]:
        """Find what has changed; return the tables that have new partitions."""
        roots = {each.oid: name for name, each in tables.items() if each.kind == "p"}
        if not roots:
            return []
        with connection.cursor(row_factory=class_row(PartitionRow)) as cursor:
            found = cursor.execute(_QUERY, [list(roots)]).fetchall()
        by_root: dict[int, list[PartitionRow]] = defaultdict(list)
        for row in found:
            by_root[row.root].append(row)
        grown = []
        for oid, name in roots.items():
            if not (rows := by_root[oid]):
                continue  # it no longer exists; `DdlWatch` reports that
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
                self._notices.append((0, SourceNotice(name, note=str(now))))
                continue
            required = name in self._outdated or _rebaseline_required(connection, old, now, below)
            reason = REASON if required else ""
            if reason and connection.info.server_version < SENDER_UPDATES_SINCE:
                self._floors[name] = math.inf
                self._outdated[name] = str(now)
            else:
                # Later, so that the stream has been read far enough when it is to be copied.
                self._notices.append(
                    (written, SourceNotice(name, note=str(now), rebaseline_reason=reason))
                )
            if now.branches.keys() - old.branches.keys():
                grown.append(name)
                _check_logged(name, [row for row in below if row.oid not in old.branches])
        if self._outdated:
            self._update_sender(connection)
        return grown

    def _update_sender(self, connection: Connection) -> None:
        """Make the sender look again at what it sends, and then have the tables copied."""
        name = quoted(self._options.publication)
        statement = f"alter publication {name} set (publish_via_partition_root = true)"
        row = "select pg_catalog.concat(oid, '.', xmin) from pg_catalog.pg_publication"
        try:
            with connection.transaction():
                connection.execute(GLANCE.encode(), prepare=False)
                # Only a superuser may lock the row: what others alter right between these two
                # statements is taken for ours.
                found = connection.execute(
                    f"{row} where pubname = %s".encode(), [self._options.publication]
                ).fetchone()
                connection.execute(statement.encode())
                if found is not None:
                    self._alterations.add(publication.current_transaction(connection), found[0])
        except psycopg.Error:
            if connection.closed:
                raise
            self._report_outdated(statement)
            return
        written = record_end(slot.written(connection))
        for table, note in self._outdated.items():
            self._floors[table] = written
            self._notices.append(
                (written, SourceNotice(table, note=note, rebaseline_reason=REASON))
            )
        self._outdated, self._reported = {}, set()

    def _report_outdated(self, statement: str) -> None:
        """Report once that tables lack changes; the next look tries to update the sender again."""
        for table in self._outdated.keys() - self._reported:
            problem = PublicationRefused(
                "The server still sends the partitions as they were before",
                table=table,
                remedy=f"{statement};",
            )
            # Without its note: then another process tries that, too.
            self._notices.append(
                (0, SourceNotice(table, rebaseline_reason=REASON, missing=True, problem=problem))
            )
        self._reported |= self._outdated.keys()


def _rebaseline_required(
    connection: Connection, old: Tree, now: Tree, below: Sequence[PartitionRow]
) -> bool:
    """Whether rows may have been added or removed without a change, between two looks."""
    for oid, was in old.branches.items():
        is_now = now.branches.get(oid)
        if is_now is None and was.filenode:
            return True
        if is_now is not None and is_now.edge != was.edge:
            return True
    new = {row.oid: row for row in below if row.oid not in old.branches}
    born = _born(connection, list(new)) if new else frozenset[int]()
    updates = connection.info.server_version >= SENDER_UPDATES_SINCE
    for row in below:
        if not row.filenode:
            continue
        if row.oid in new:
            if _always_below(row.oid, new, born):
                continue
            if not updates or _has_rows(connection, row) is not False:
                return True
        elif row.filenode != old.branches[row.oid].filenode and not _kept(
            connection, row, old.horizon
        ):
            return True
    return False


def _check_logged(name: str, leaves: Sequence[PartitionRow]) -> None:
    if any(leaf.kind == "f" or leaf.persistence != "p" for leaf in leaves):
        raise Reopening(
            "A partition is a foreign, unlogged or temporary table: its changes are not in the WAL",
            table=name,
        )


def _born(connection: Connection, oids: Sequence[int]) -> frozenset[int]:
    """Return which of these tables were created as partitions, and never detached."""
    return frozenset(oid for (oid,) in connection.execute(_BORN, [list(oids)]).fetchall())


def _always_below(oid: int, new: Mapping[int, PartitionRow], born: frozenset[int]) -> bool:
    """Whether a new partition, and all between it and the table, were created as partitions."""
    while (found := new.get(oid)) is not None and found.parent is not None:
        if oid not in born:
            return False
        oid = found.parent
    return True


def _kept(connection: Connection, leaf: PartitionRow, horizon: int) -> bool:
    """Whether a partition certainly has a row of a transaction that is older than `horizon`."""
    if not 0 <= leaf.horizon - horizon < _COMPARABLE:
        return False
    older = f"age(xmin) > age('{horizon % (1 << 32)}'::xid)"
    return _has_rows(connection, leaf, f" where {older}") is True


def _has_rows(connection: Connection, leaf: PartitionRow, where: str = "") -> bool | None:
    """Whether a partition has (such) rows; None if that takes too long to find out."""
    relation = quoted(leaf.namespace, leaf.table)
    try:
        with connection.transaction():
            connection.execute(f"{GLANCE}; set local row_security = off".encode(), prepare=False)
            found = connection.execute(
                f"select 1 from only {relation}{where} limit 1".encode()
            ).fetchall()
            # It is locked now, so its name cannot change any more.
            same = connection.execute("select to_regclass(%s)::oid::int8", [relation]).fetchone()
    except psycopg.Error:
        if connection.closed:
            raise
        return None
    return bool(found) if same == (leaf.oid,) else None
