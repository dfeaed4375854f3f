"""
Whether publishing a table could make the application's own statements fail (R23a).

PostgreSQL refuses every UPDATE and DELETE of a published table that has no identity, or
whose row filter or column list goes beyond it. It does so when the application writes,
not when the table is published. So all of it is foreseen here, for the table and for
each of its partitions, since the server looks at the one that is written to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from headrace.capture.postgres.catalog import CatalogTable, Leaf
from headrace.capture.postgres.names import listed, quoted
from headrace.capture.postgres.options import TableOptions
from headrace.errors import HeadraceError, NoIdentity, ServerRefused, TableRefused

LISTS_SINCE = 150000
"""Column lists and row filters."""

GENERATED_SINCE = 180000
"""Generated columns can be published, and those that are not count against an identity."""

_MOST_STATEMENTS = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """What is published of a table, and by which server."""

    options: TableOptions
    publish: Sequence[str]
    version: int
    generated: bool = False
    """Whether stored generated columns are published."""

    @property
    def changing(self) -> tuple[str, ...]:
        """The published operations that need an identity."""
        return tuple(each for each in ("update", "delete") if each in self.publish)


def identity_problems(table: CatalogTable, asked: Asked) -> Iterator[HeadraceError]:
    """Yield what is wrong with the identity of a table or of its partitions."""
    if not asked.changing:
        return
    if not table.key:
        lost = table.identity_columns is None
        yield NoIdentity(
            "Rows have no primary key to know them by"
            if lost
            else "Updates and deletes would fail once the table is published: it has no identity",
            table=table.name,
            remedy=_statements([table], _give_identity),
        )
        return
    partitions = table.leaves if table.kind == "p" else ()
    without = [leaf for leaf in partitions if leaf.identity_columns == ()]
    if without:
        yield NoIdentity(
            "Updates and deletes would fail once the table is published:"
            " partitions have no identity",
            table=table.name,
            partitions=len(without),
            remedy=_statements(without, _give_identity),
        )
    # Under FULL of the root the server announces old rows as whole, also where a partition
    # sends only its key: nulls would be taken for values.
    if table.identity == "f":
        partly = [leaf for leaf in partitions if leaf.identity != "f" and leaf not in without]
        if partly:
            yield NoIdentity(
                "The table has REPLICA IDENTITY FULL, and partitions of it have not",
                table=table.name,
                partitions=len(partly),
                remedy=_statements(partly, _give_full),
            )
    elif other := [leaf for leaf in partitions if leaf not in without and not _covers(table, leaf)]:
        yield NoIdentity(
            "Partitions have another identity than the table",
            table=table.name,
            partitions=len(other),
            remedy=_statements(other, lambda leaf: _give_same(table, leaf)),
        )


def generated_problems(table: CatalogTable, asked: Asked) -> Iterator[HeadraceError]:
    """Yield where a generated column that is not published belongs to an identity."""
    unsent = {column.name for column in table.columns if column.generated}
    if asked.generated:
        unsent = {column.name for column in table.columns if column.virtual}
    unsent -= set(asked.options.columns)
    if not asked.changing or not unsent:
        return
    relations: list[CatalogTable | Leaf] = [table, *table.leaves]
    full = [each for each in relations if each.identity_columns is None]
    if full and asked.version >= GENERATED_SINCE:
        yield NoIdentity(
            "Updates and deletes would fail once the table is published:"
            " REPLICA IDENTITY FULL takes in generated columns that are not published",
            table=table.name,
            columns=sorted(unsent),
            remedy=_statements(_distinct(full), _give_key),
        )
    if keyed := unsent & set(table.key):
        yield NoIdentity(
            "The key has generated columns, which are not published",
            table=table.name,
            columns=sorted(keyed),
            remedy="Give the table a REPLICA IDENTITY USING INDEX over columns that are stored"
            " as the application wrote them.",
        )


def list_problems(table: CatalogTable, asked: Asked) -> Iterator[HeadraceError]:
    """Yield what is wrong with the columns that were asked for."""
    columns = asked.options.columns
    if not columns:
        if all(column.generated for column in table.columns):
            yield TableRefused(
                "The table has no columns to capture", table=table.name, remedy="Leave it out."
            )
        return
    if asked.version < LISTS_SINCE:
        yield ServerRefused(
            "Columns can be chosen on PostgreSQL 15 and newer only",
            table=table.name,
            remedy="Leave the list of columns out, or upgrade the server.",
        )
    there = {column.name: column for column in table.columns}
    if unknown := sorted(set(columns) - set(there)):
        yield TableRefused(
            "The table has no such columns",
            table=table.name,
            columns=unknown,
            remedy=f"Choose from {listed(there)}.",
        )
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        yield TableRefused(
            "Columns are named twice",
            table=table.name,
            columns=twice,
            remedy="Name each column once.",
        )
    unsendable = [
        name
        for name in columns
        if name in there
        and there[name].generated
        and (there[name].virtual or asked.version < GENERATED_SINCE)
    ]
    if unsendable:
        yield TableRefused(
            "Generated columns cannot be published: stored ones from PostgreSQL 18 on,"
            " virtual ones not at all",
            table=table.name,
            columns=unsendable,
            remedy=f"Leave {listed(unsendable)} out of the table's columns.",
        )
    yield from _uncovered(table, asked)


def identity_sets(table: CatalogTable) -> list[tuple[str, ...]]:
    """Return the identities that a row filter must do with; FULL has every column."""
    found = {each.identity_columns for each in (table, *table.leaves)}
    return sorted(columns for columns in found if columns)


def _uncovered(table: CatalogTable, asked: Asked) -> Iterator[HeadraceError]:
    relations: list[CatalogTable | Leaf] = [table, *table.leaves]
    full = [each for each in relations if each.identity_columns is None]
    if asked.changing and full:
        yield NoIdentity(
            "Updates and deletes would fail once the table is published:"
            " with REPLICA IDENTITY FULL no columns can be chosen",
            table=table.name,
            remedy="Leave the list of columns out, or run: "
            + _statements(_distinct(full), _give_key),
        )
    # Without the key's columns no row is known, even where nothing but inserts is published.
    needed = set(table.key)
    if asked.changing:
        needed |= {name for each in relations for name in each.identity_columns or ()}
    if missing := sorted(needed - set(asked.options.columns)):
        yield NoIdentity(
            "The columns chosen leave out some of the identity",
            table=table.name,
            columns=missing,
            remedy=f"Add {listed(missing)} to the table's columns.",
        )


def _covers(table: CatalogTable, leaf: Leaf) -> bool:
    columns = leaf.identity_columns
    return columns is None or set(table.key) <= set(columns)


def _distinct(relations: Sequence[CatalogTable | Leaf]) -> list[CatalogTable | Leaf]:
    """A table without partitions is its own leaf: once is enough."""
    return list({relation.oid: relation for relation in relations}.values())


def _statements(relations: Collection[CatalogTable | Leaf], repair: Callable[..., str]) -> str:
    made = [repair(relation) for relation in list(relations)[:_MOST_STATEMENTS]]
    more = len(relations) - len(made)
    return " ".join(made) + (f" And so on for {more} more." if more else "")


def _name(relation: CatalogTable | Leaf) -> str:
    return quoted(relation.namespace, relation.table)


def _give_identity(relation: CatalogTable | Leaf) -> str:
    """Return what gives rows something to be known by."""
    start = f"ALTER TABLE {_name(relation)}"
    if relation.identity != "f" and relation.primary_key:
        usable = any(index.primary and index.immediate for index in relation.indexes)
        return f"{start} REPLICA IDENTITY {'DEFAULT' if usable else 'FULL'};"
    for index in relation.indexes:
        if index.immediate and index.strict:
            return f"{start} REPLICA IDENTITY USING INDEX {quoted(index.name)};"
    identity = {"n": ", REPLICA IDENTITY DEFAULT", "i": ", REPLICA IDENTITY DEFAULT"}
    return f"{start} ADD PRIMARY KEY (…){identity.get(relation.identity, '')};"


def _give_full(relation: CatalogTable | Leaf) -> str:
    return f"ALTER TABLE {_name(relation)} REPLICA IDENTITY FULL;"


def _give_key(relation: CatalogTable | Leaf) -> str:
    """Return what replaces FULL."""
    start = f"ALTER TABLE {_name(relation)}"
    for index in relation.indexes:
        if index.immediate and index.strict:
            chosen = "DEFAULT" if index.primary else f"USING INDEX {quoted(index.name)}"
            return f"{start} REPLICA IDENTITY {chosen};"
    return f"{start} ADD PRIMARY KEY (…), REPLICA IDENTITY DEFAULT;"


def _give_same(table: CatalogTable, leaf: Leaf) -> str:
    for index in leaf.indexes:
        if set(index.columns) == set(table.key) and index.immediate and index.strict:
            chosen = "DEFAULT" if index.primary else f"USING INDEX {quoted(index.name)}"
            return f"ALTER TABLE {_name(leaf)} REPLICA IDENTITY {chosen};"
    return _give_full(leaf)
