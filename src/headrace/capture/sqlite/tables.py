"""
The user's tables: their columns, what identifies a row, and whether they are captured exactly.

Triggers see every row that a statement writes, with these exceptions, which decide which triggers
a table needs (`triggers`):

* REPLACE removes rows that collide on a unique index without firing a delete trigger. On the key
  itself this is harmless, since the new row has the same key. For any other unique index
  (`SourceTable.collisions`), the rows that collide are kept aside before the statement, and are
  logged as deleted afterwards. A key with a collation is one of these: it treats several spellings
  as one key, and here they are several.
* Foreign keys and triggers of the application may write the same row again before our trigger
  runs, so that changes are logged in the wrong order (`SourceTable.tangled`). These are put in
  order when they are read. SQLite runs the newest trigger first, so triggers of the application
  matter only if they are newer than ours (`overtaking`).

A table without a declared key is captured by its rowid, which is its first column then. VACUUM
gives such rows other numbers, which is noticed (`triggers`).

What cannot be captured exactly is refused, by `inspect`. `readable` describes every table whose
rows can be read.

Two things are not detected: writers that turn triggers off, and writes with an explicit rowid into
a table that has no unique index except its key, if that is another column (R45).

Long because unique indexes, triggers and foreign keys all decide how the same table is captured.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.capture.sqlite.database import PREFIX, folded, is_ours, quoted
from headrace.errors import SourceRefused, TableRefused

if TYPE_CHECKING:
    from headrace.changelog.schema import TableSchema

MOST_COLUMNS = 1996
"""One image and four columns of ours fit into SQLite's limit of 2,000 columns."""

MOST_FILTERED = 998
"""Of a table with a filter: an update has to fit into one row of the log."""

MOST_TERMS = 100
"""Of a filter: SQLite limits how deep an expression may be, and the application can lower that."""

KINDS = ("int64", "float64", "text", "bytes", "variant")
"""The types a column may have; SQLite stores no others."""

ROWID_NAMES = ("rowid", "_rowid_", "oid")
"""What a rowid is called, unless a column has that name."""

BUILT_IN = ("BINARY", "NOCASE", "RTRIM")
"""Collations that every connection has."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as SQLite declares it."""

    name: str
    declared: str
    nullable: bool
    key: int
    """Its position in the primary key, from 1; 0 if it is not part of the key."""

    generated: bool = False
    expression: str = ""
    """What a generated column is computed from, as SQL text; or what REPLACE stores for a null."""


@dataclass(frozen=True, slots=True)
class Collision:
    """When another row of a table cannot exist together with a new one, as SQL text."""

    same: str
    """Whether a row of the table collides with NEW."""

    columns: tuple[str, ...]
    """The columns on which this depends; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as SQLite describes it."""

    name: str
    columns: tuple[SourceColumn, ...]
    """All columns; first the rowid, if the table has no declared key."""

    key: tuple[str, ...]
    collations: tuple[str | None, ...]
    """The collation of each key column; None for an alias of the rowid, and for the rowid."""

    rowid: str | None
    """What the rowid is called, which may be a column; None for a table without one."""

    by_rowid: bool = False
    """Whether the key is the rowid, because none is declared."""

    collisions: tuple[Collision, ...] = ()
    """Why REPLACE may remove rows with another key; empty: it cannot."""

    tangled: bool = False
    """Whether a change of a row may lead to another one of the same row that is logged before."""

    where: str = ""
    """Which rows are captured, as SQL text; empty: all of them."""

    @property
    def has_rowid(self) -> bool:
        """Whether rows have a rowid that can be named."""
        return self.rowid is not None

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [column.name for column in self.columns]

    @property
    def fingerprint(self) -> list[tuple[str, str, int]]:
        """What triggers and types depend on; if it changes, a new plan is needed."""
        return [(column.name, column.declared, column.key) for column in self.columns]


def value_kind(declared: str) -> str:
    """
    Return the type for a declared one, whatever values the column has today (S6).

    A declaration is used only if its values have one storage class. DATETIME, BOOLEAN and
    DECIMAL columns contain mixtures in practice.
    """
    word = declared.upper()
    if "INT" in word:
        return "int64"
    if any(part in word for part in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in word:
        return "bytes"
    if any(part in word for part in ("REAL", "FLOA", "DOUB")):
        return "float64"
    return "variant"


def table_schema(
    table: SourceTable, fields: Mapping[str, int], overrides: Mapping[str, str]
) -> TableSchema:
    """Return the schema of `table`; `overrides` by column, or by `table.column`."""
    # Imported here: they import Arrow, which the library does not need.
    from headrace.changelog.schema import Column, TableSchema
    from headrace.changelog.values import ValueType

    columns = []
    for column in table.columns:
        kind = overrides.get(f"{table.name}.{column.name}") or overrides.get(column.name)
        columns.append(
            Column(
                name=column.name,
                type=ValueType(kind or value_kind(column.declared)),
                field=fields[column.name],
                nullable=column.nullable,
                declared=column.declared,
                # If a column is added later, older rows get its default: read them again.
                rewritten=True,
            )
        )
    return TableSchema(table.name, tuple(columns), table.key)


def table_names(database: sqlite3.Connection) -> list[str]:
    """Return the names of the application's tables."""
    found = [
        name
        for (name,) in database.execute(
            "select name from pragma_table_list "
            "where schema = 'main' and type = 'table' order by name"
        )
    ]
    every = frozenset(name.lower() for name in found)
    return [name for name in found if not name.startswith("sqlite_") and not is_ours(name, every)]


def virtual_names(database: sqlite3.Connection) -> list[str]:
    """Return the names of the application's virtual tables, which cannot be captured."""
    return [
        name
        for (name,) in database.execute(
            "select name from pragma_table_list "
            "where schema = 'main' and type = 'virtual' order by name"
        )
    ]


# --- describing a table ---------------------------------------------------------------------------


def readable(database: sqlite3.Connection, name: str) -> SourceTable:
    """Describe the table called `name`; raise `TableRefused` if its rows cannot be read."""
    listed = database.execute(
        "select type, wr from pragma_table_list where schema = 'main' and name = ?", (name,)
    ).fetchone()
    if listed is None:
        raise not_found(database, name)
    kind, without_rowid = listed
    if kind == "shadow" or (kind == "table" and name not in table_names(database)):
        raise TableRefused(
            "Internal tables of SQLite and of Headrace cannot be captured", table=name
        )
    if kind != "table":
        noun = "virtual table" if kind == "virtual" else kind
        raise TableRefused(
            f"A {noun} cannot be captured",
            table=name,
            remedy="Leave it out, and capture the tables that it reads from.",
        )
    rows = database.execute(
        'select name, type, "notnull", pk, hidden, dflt_value from pragma_table_xinfo(?)', (name,)
    ).fetchall()
    (sql,) = database.execute(
        "select sql from sqlite_master where type = 'table' and name = ?", (name,)
    ).fetchone()
    generations = _generations(sql) if any(hidden for *_, hidden, _ in rows) else {}
    names = frozenset(folded(column) for column, *_ in rows)
    # An INTEGER PRIMARY KEY is the rowid itself: it has no index, and no nulls.
    alias = not without_rowid and not _key_index(database, name)
    columns = tuple(
        SourceColumn(
            column,
            declared,
            not (notnull or (pk and (without_rowid or alias))),
            pk,
            bool(hidden),
            _with_texts(generations.get(folded(column), ""), names)
            if hidden
            else _default(default or "")
            if notnull
            else "",
        )
        for column, declared, notnull, pk, hidden, default in rows
    )
    key = tuple(
        column.name for column in sorted(columns, key=lambda column: column.key) if column.key
    )
    rowid = None if without_rowid else _rowid_name(columns, key if alias else ())
    by_rowid = not key
    if by_rowid:
        if rowid is None:
            raise TableRefused(
                "The table has no primary key, and its columns have all names of the rowid",
                table=name,
                remedy="Declare a primary key, or leave the table out.",
            )
        columns = (SourceColumn(rowid, "INTEGER", nullable=False, key=1), *columns)
        key = (rowid,)
    collations = (None,) if by_rowid or alias else _key_collations(database, name, key)
    if rowid is None and any(each not in (None, *BUILT_IN) for each in collations):
        raise TableRefused(
            "The key has a collation that only the application has",
            table=name,
            collation=", ".join(map(str, collations)),
            remedy="Declare the key with BINARY, NOCASE or RTRIM, or leave the table out.",
        )
    table = SourceTable(name, columns, key, collations, rowid, by_rowid)
    try:
        database.execute(f"select {column_list(table.names)} from {quoted(name)} limit 0")
    except sqlite3.OperationalError as error:
        if "no such function" not in str(error):
            raise
        raise TableRefused(
            "A generated column uses a function that only the application has",
            table=name,
            remedy="Leave the table out, or replace the function by one of SQLite's own.",
        ) from error
    return table


def inspect(database: sqlite3.Connection, name: str, where: str = "") -> SourceTable:
    """
    Describe the table called `name`; raise `TableRefused` if it cannot be captured.

    With `where`, only rows for which this condition is true are captured.
    """
    table = readable(database, name)
    if len(table.columns) > MOST_COLUMNS:
        raise TableRefused(
            f"The table has more than {MOST_COLUMNS} columns",
            table=name,
            columns=len(table.columns),
        )
    graph = WriteGraph(database)
    if (trigger := graph.rewriting_before(name)) is not None:
        raise TableRefused(
            "A BEFORE trigger of the application writes to the table itself, so that it is not"
            " known which rows a REPLACE removes",
            table=name,
            trigger=trigger,
            remedy="Create it as an AFTER trigger, or leave the table out.",
        )
    indexes = tuple(_unique_indexes(database, table))
    others = tuple(index.collision(table) for index in indexes if not index.is_key(table))
    if not table.by_rowid and any(
        index.computed_from(table, table.rowid) for index in indexes if not index.is_key(table)
    ):
        raise TableRefused(
            "A unique index is computed from the INTEGER PRIMARY KEY, so that it is not known which"
            " rows a REPLACE removes: SQLite chooses the key later",
            table=name,
            remedy="Drop the index, or leave the table out.",
        )
    tangled = graph.tangled(name, replaces=bool(others or where))
    if where:
        check_filter(database, table, where)
        if tangled:
            raise TableRefused(
                "Foreign keys may change a row of the table several times in one statement, so that"
                " its changes cannot be filtered",
                table=name,
                remedy="Capture all rows of the table, and filter in the handler.",
            )
    if not others and not tangled and not where:
        return table
    if table.rowid is None and not _is_without_rowid(database, name):
        raise TableRefused(
            "The table's columns have all names of the rowid",
            table=name,
            remedy="Rename one of rowid, _rowid_ and oid, or leave the table out.",
        )
    keys = tuple(index.collision(table) for index in indexes if index.is_key(table))
    own = () if table.rowid is None else (_rowid_collision(table.rowid),)
    if not tangled and not where:
        # A row with the same key is replaced here as well.
        keys = ()
        own = () if table.rowid in table.key else own
    return replace(table, collisions=(*own, *keys, *others), tangled=tangled, where=where)


def described(database: sqlite3.Connection, name: str) -> SourceTable:
    """Describe a table whose rows can be read, whether it can be captured or not."""
    try:
        return inspect(database, name)
    except TableRefused:
        return readable(database, name)


def capturable(
    database: sqlite3.Connection, names: Sequence[str] | None
) -> tuple[list[SourceTable], dict[str, TableRefused]]:
    """
    Describe the named tables; without names, all that can be captured, and why others cannot.

    Raises `TableRefused` if a named table cannot be captured, or if there is no other, and
    `SourceRefused` if there is no table at all.
    """
    found: list[SourceTable] = []
    refused: dict[str, TableRefused] = {}
    if names is not None:
        found = [inspect(database, name) for name in names]
    else:
        for name in (*table_names(database), *virtual_names(database)):
            try:
                found.append(inspect(database, name))
            except TableRefused as why:
                refused[name] = why
    if not found:
        raise next(iter(refused.values()), SourceRefused("No tables to capture"))
    return found, refused


def not_found(database: sqlite3.Connection, name: str) -> TableRefused:
    """Return the error for a table that does not exist."""
    names = table_names(database)
    # SQLite ignores the case of names, but every later stage compares them exactly.
    alike = [found for found in names if found.lower() == name.lower()]
    listed = f"Tables in this database: {', '.join(names) or 'none'}."
    remedy = f"Did you mean {alike[0]}?" if alike else listed
    return TableRefused("Table not found", table=name, remedy=remedy)


def _rowid_name(columns: Sequence[SourceColumn], alias: Sequence[str]) -> str | None:
    if alias:
        return alias[0]
    # A column may have one of the rowid's names, and then hides it.
    taken = {folded(column.name) for column in columns}
    return next((name for name in ROWID_NAMES if name not in taken), None)


def _rowid_collision(rowid: str) -> Collision:
    return Collision(f"{quoted(rowid)} = NEW.{quoted(rowid)}", (rowid,))


def _is_without_rowid(database: sqlite3.Connection, name: str) -> bool:
    return bool(
        database.execute(
            "select wr from pragma_table_list where schema = 'main' and name = ?", (name,)
        ).fetchone()[0]
    )


def _key_index(database: sqlite3.Connection, name: str) -> str | None:
    row = database.execute(
        "select name from pragma_index_list(?) where origin = 'pk'", (name,)
    ).fetchone()
    return None if row is None else str(row[0])


def _key_collations(
    database: sqlite3.Connection, name: str, key: Sequence[str]
) -> tuple[str | None, ...]:
    collations: dict[str, str] = dict(
        database.execute(
            "select name, coll from pragma_index_xinfo(?) where key = 1",
            (_key_index(database, name),),
        ).fetchall()
    )
    return tuple(collations[column].upper() for column in key)


# --- which rows are captured ----------------------------------------------------------------------

_FILTER_WORDS = frozenset(
    {"AND", "OR", "NOT", "IS", "NULL", "ISNULL", "NOTNULL", "IN", "BETWEEN", "TRUE", "FALSE"}
    | {"COLLATE", "BINARY", "NOCASE", "RTRIM", "COALESCE", "IFNULL", "NULLIF", "TYPEOF"}
)
_FILTER_SIGNS = frozenset("=<>!(),")


def check_filter(database: sqlite3.Connection, table: SourceTable, where: str) -> None:
    """
    Raise `TableRefused` unless `where` is a condition that every SQLite evaluates alike.

    It is evaluated by triggers, in the application's connections, and by us. So it may only compare
    columns and literals: functions can be replaced, may fail, and differ between versions.
    """

    def refused(why: str, **facts: str) -> TableRefused:
        return TableRefused(
            f"The filter {why}",
            table=table.name,
            where=where,
            **facts,
            remedy="Compare columns with each other or with literals, by =, <>, <, >, IN, BETWEEN"
            " and IS, joined by AND, OR and NOT. Filter by anything else in the handler.",
        )

    if len(table.columns) > MOST_FILTERED:
        raise refused(f"is of a table with more than {MOST_FILTERED} columns")
    if any(each[0].startswith(("--", "/*")) for each in _TOKEN.finditer(where)):
        raise refused("has a comment")
    columns = {folded(name) for name in table.names}
    depth = 0
    before = "("
    tokens = [token for token, _ in _tokens(where)]
    if sum(token.upper() in ("AND", "OR", "NOT", "(") for token in tokens) > MOST_TERMS:
        raise refused(f"has more than {MOST_TERMS} conditions")
    for token, after in zip(tokens, [*tokens, ""][1:], strict=True):
        depth += (token == "(") - (token == ")")
        quote = token[0]
        if depth < 0:
            raise refused("has unbalanced parentheses")
        if quote in "+-":
            # The sign of a number: sums are not needed, and -> is something else.
            if not after[:1].isdigit() or not (
                before in "=<>(," or before.upper() in _FILTER_WORDS
            ):
                raise refused("uses an operator that is not supported", operator=token)
        elif quote == "'" or quote.isdigit():
            if len(token) == 1 and quote == "'":
                raise refused("has a text without an end")
        elif (
            token not in _FILTER_SIGNS
            and token.upper() not in _FILTER_WORDS
            and not ((quote.isalpha() or quote in '_"`[') and folded(unquoted(token)) in columns)
        ):
            raise refused("has a word that is neither a column nor supported", word=token)
        before = token
    if depth:
        raise refused("has unbalanced parentheses")
    if not _filtered_columns(table, where):
        raise refused("names no column")
    try:
        database.execute(
            f"select 1 from {quoted(table.name)} "
            f"where {filter_text(table, f'+{quoted(table.name)}.', where)} limit 0"
        )
    except sqlite3.OperationalError as error:
        raise refused("is not a valid condition", reason=str(error)) from error


def filter_text(table: SourceTable, row: str, where: str = "") -> str:
    """
    Return whether a row is captured, as SQL text; `row` precedes the names of its columns.

    Values are compared as they are stored. In a trigger, NEW and OLD have no affinity; so that
    triggers and copies agree, columns have none here either: the 5 of a column n is not '5'.
    """
    where = where or table.where
    fields = ", ".join(
        f"{row}{quoted(name)} as {quoted(name)}" for name in _filtered_columns(table, where)
    )
    return f"exists (select 1 from (select {fields}) as {quoted(table.name)} where ({where}))"


def _filtered_columns(table: SourceTable, where: str) -> list[str]:
    words = _names(where)
    return [name for name in table.names if folded(name) in words]


# --- unique indexes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _UniqueIndex:
    """A unique index: its terms, each with its collation, and its WHERE clause."""

    terms: tuple[tuple[str | None, str, str], ...]
    """Of each term: the column, or None and the SQL text of an expression; its collation."""

    where: str

    def is_key(self, table: SourceTable) -> bool:
        """Whether two rows that collide have the same key, byte by byte."""
        exact = {column for column, _, collation in self.terms if collation == "BINARY"}
        return exact.issuperset(table.key)

    def computed_from(self, table: SourceTable, column: str | None) -> bool:
        """Whether a term is computed from `column`: an expression, or a generated column."""
        expressions = {
            folded(each.name): each.expression for each in table.columns if each.generated
        }
        left = [text for name, text, _ in self.terms if name is None]
        left += [expressions.pop(folded(name), "") for name, _, _ in self.terms if name is not None]
        while left:
            words = _names(left.pop())
            if folded(column or "") in words:
                return True
            left += [expressions.pop(word) for word in words & expressions.keys()]
        return False

    def collision(self, table: SourceTable) -> Collision:
        """Return when a row of the table collides with NEW."""
        # Names in an expression mean columns of the table; in the subquery they mean those of NEW.
        # So the text of the expression need not be changed.
        new, scope = _values_of_new(table, [text for _, text, _ in self.terms])
        same = []
        for column, text, collation in self.terms:
            if column is not None:
                same.append(f"{quoted(column)} collate {quoted(collation)} = {new[column]}")
            else:
                same.append(f"({text}) collate {quoted(collation)} = (select {text} {scope})")
        if self.where:
            # Whether NEW itself is in the index is not asked: it only saves a look at the row.
            same.append(f"({self.where})")
        columns = [column for column, _, _ in self.terms if column is not None]
        known = len(columns) == len(self.terms) and not self.where
        return Collision(" and ".join(same), tuple(columns) if known else ())


_COMPARISONS = frozenset("<>=!") | {"IN", "IS", "ISNULL", "NOTNULL", "NOT", "BETWEEN", "CASE"}


def _values_of_new(table: SourceTable, texts: Sequence[str]) -> tuple[dict[str, str], str]:
    """
    Return the values that NEW will have, and a FROM clause with them as columns, as SQL text.

    In a BEFORE trigger, columns that are NOT NULL may have a null, which REPLACE will make the
    default, and generated columns may not be computed. Unlike a column, NEW has no affinity: with
    `n int`, n = '5' is true of a 5, and NEW.n = '5' is not. So if `texts` compare anything, the
    columns of the FROM clause get the affinities of the table's columns.
    """
    everything = [*texts, *(column.expression for column in table.columns if column.generated)]
    compares = any(word.upper() in _COMPARISONS for text in everything for word, _ in _tokens(text))
    new = {}
    generated = []
    for column in table.columns:
        value = f"NEW.{quoted(column.name)}"
        if column.generated:
            generated.append(column)
        elif column.expression:
            new[column.name] = f"coalesce({value}, ({column.expression}))"
        else:
            new[column.name] = value

    def scope() -> str:
        fields = ", ".join(f"{value} as {quoted(name)}" for name, value in new.items())
        if compares:
            columns = ", ".join(f"{quoted(name)} as {quoted(name)}" for name in new)
            fields = f"{columns} from {quoted(table.name)} where 0 union all select {fields}"
        return f"from (select {fields}) as {quoted(table.name)}"

    # One may depend on another one, in any order.
    while generated:
        left = {folded(column.name) for column in generated}
        ready = [column for column in generated if left.isdisjoint(_names(column.expression))]
        here = scope()
        new |= {column.name: f"(select {column.expression} {here})" for column in ready}
        if not ready:
            break
        generated = [column for column in generated if column not in ready]
    return new, scope()


def _unique_indexes(database: sqlite3.Connection, table: SourceTable) -> Iterator[_UniqueIndex]:
    names = frozenset(map(folded, table.names))
    for (name,) in database.execute(
        'select name from pragma_index_list(?) where "unique"', (table.name,)
    ).fetchall():
        found = database.execute(
            "select cid, name, coll from pragma_index_xinfo(?) where key = 1 order by seqno",
            (name,),
        ).fetchall()
        sql = database.execute(
            "select sql from sqlite_master where type = 'index' and name = ?", (name,)
        ).fetchone()
        texts, where = ((), "") if sql is None or sql[0] is None else _index_parts(str(sql[0]))
        texts, where = tuple(_with_texts(text, names) for text in texts), _with_texts(where, names)
        yield _UniqueIndex(
            tuple(
                (None, texts[number], coll.upper()) if cid == -2 else (column, "", coll.upper())
                for number, (cid, column, coll) in enumerate(found)
            ),
            where,
        )


_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]"""
    r"""|[^\W\d][\w$]*|\d[\w.]*|\s+|.""",
    re.DOTALL,
)
"""SQL as far as it is needed here: comments, quoted texts, words, and single characters."""


def _tokens(sql: str) -> list[tuple[str, int]]:
    """Return the tokens of `sql` without spaces and comments, each with its offset."""
    return [
        (found[0], found.start())
        for found in _TOKEN.finditer(sql)
        if not found[0].isspace() and not found[0].startswith(("--", "/*"))
    ]


def _names(sql: str) -> set[str]:
    """Return the words of `sql` that may be names of columns, folded."""
    return {folded(unquoted(word)) for word, _ in _tokens(sql) if word[0] != "'"}


def _index_parts(sql: str) -> tuple[tuple[str, ...], str]:
    """Return the terms of CREATE INDEX and its WHERE clause, as they are written."""
    depth = begins = 0
    terms: list[str] = []
    last, at = "", 0
    for token, offset in _tokens(sql):
        depth += token == "("
        if token == "(" and depth == 1:
            begins = offset + 1
        elif token in (",", ")") and depth == 1:
            terms.append(sql[begins : at if last.upper() in ("ASC", "DESC") else offset])
            begins = offset + 1
            if token == ")":
                rest = sql[begins:]
                where = next((at for word, at in _tokens(rest) if word.upper() == "WHERE"), None)
                return tuple(terms), "" if where is None else rest[where + len("where") :]
        depth -= token == ")"
        last, at = token, offset
    return tuple(terms), ""


def _default(sql: str) -> str:
    """Return a column's default as SQL text that means the same in a trigger."""
    tokens = [token for token, _ in _tokens(sql)]
    if len(tokens) == 1 and re.match(r"""[^\W\d]|["`[]""", tokens[0]):
        # DEFAULT followed by a name is the text of that name.
        constants = ("TRUE", "FALSE", "NULL", "CURRENT_TIME", "CURRENT_DATE", "CURRENT_TIMESTAMP")
        return tokens[0] if tokens[0].upper() in constants else _text(unquoted(tokens[0]))
    return sql


def _with_texts(sql: str, columns: Collection[str]) -> str:
    """
    Return SQL text of a definition, with quoted names that are no columns as texts.

    SQLite reads "x" in a definition as the text 'x' if there is no column x. In a trigger, the
    application may have turned that off (`SQLITE_DBCONFIG_DQS_DML`), and its writes would fail.
    """
    tokens = _tokens(sql)
    made = ""
    end = 0
    for at, (token, offset) in enumerate(tokens):
        before = tokens[at - 1][0].upper() if at else ""
        after = tokens[at + 1][0] if at + 1 < len(tokens) else ""
        if (
            token[0] == '"'
            and folded(unquoted(token)) not in columns
            and before not in ("COLLATE", "AS", ".")
            and after not in ("(", ".")
        ):
            made += sql[end:offset] + _text(unquoted(token))
            end = offset + len(token)
    return made + sql[end:]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _generations(sql: str) -> dict[str, str]:
    """Return the expressions of the generated columns in a CREATE TABLE, by their folded names."""
    found = {}
    tokens = _tokens(sql)
    depth = begin = begins_at = 0
    name = ""
    for at, (token, offset) in enumerate(tokens):
        if token == ")":
            depth -= 1
            if depth == 1 and begin:
                found[name] = sql[begins_at:offset]
                begin = 0
        if token == "(":
            depth += 1
            if depth == 2 and tokens[at - 1][0].upper() == "AS":
                begin, begins_at = at, offset + 1
        if depth == 1 and tokens[at - 1][0] in ("(", ",") and token not in ("(", ","):
            name = folded(unquoted(token))
    return found


# --- what a change leads to -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AppTrigger:
    name: str
    on: str
    before: bool
    writes: frozenset[str]
    ignores: bool
    """Whether it can end the statement for one row, so that later triggers do not run."""

    number: int
    """Its number in the schema: newer triggers have higher ones."""


@dataclass(frozen=True, slots=True)
class _Action:
    parent: str
    child: str
    on_update: bool
    """Whether the child's rows are updated if the parent's key changes."""

    on_delete: str


class WriteGraph:
    """Which tables are written because another one is: by triggers and by foreign keys."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._triggers = [
            _read_trigger(name, on, sql, number)
            for name, on, sql, number in database.execute(
                "select name, tbl_name, sql, rowid from sqlite_master where type = 'trigger'"
            ).fetchall()
            if not name.startswith(PREFIX)
        ]
        # The child's foreign keys may be written in any case.
        self._actions = [
            _Action(
                folded(parent),
                folded(child),
                updates not in ("NO ACTION", "RESTRICT"),
                deletes,
            )
            for child, parent, updates, deletes in database.execute(
                'select m.name, f."table", f.on_update, f.on_delete '
                "from sqlite_master m, pragma_foreign_key_list(m.name) f where m.type = 'table'"
            ).fetchall()
        ]

    def overtaking(self, table: str, number: int) -> bool:
        """Whether a trigger that is newer than `number` runs before ours, and disturbs them."""
        return any(
            trigger.ignores or self._reaches(trigger.writes, table)
            for trigger in self._on(table)
            if not trigger.before and trigger.number > number
        )

    def has_triggers(self, table: str) -> bool:
        """Whether the application has a trigger on a table."""
        return bool(self._on(table))

    def rewriting_before(self, table: str) -> str | None:
        """Return a BEFORE trigger that leads to writes of its own table; None if there is none."""
        return next(
            (
                trigger.name
                for trigger in self._on(table)
                if trigger.before and self._reaches(trigger.writes, table)
            ),
            None,
        )

    def tangled(self, table: str, *, replaces: bool) -> bool:
        """
        Whether foreign keys may lead from a change of a row to another one of the same row.

        SQLite obeys foreign keys before it runs triggers. A deletion can lead back to the deleted
        row only by a trigger. But if a REPLACE removes several rows (`replaces`), it can lead to
        an update of another one that is to be removed; and if UPDATE OR REPLACE removes a row, it
        can lead to the deletion of the very row that is updated.
        """
        own = folded(table)
        for action in self._actions:
            if action.parent != own:
                continue
            if action.on_update and self._reaches({action.child}, table):
                return True
            if action.on_delete in ("NO ACTION", "RESTRICT"):
                continue
            if self._reaches({action.child}, table, by_trigger=True):
                return True
            if (replaces or action.on_delete == "CASCADE") and self._reaches({action.child}, table):
                return True
        return False

    def _on(self, table: str) -> list[_AppTrigger]:
        return [trigger for trigger in self._triggers if trigger.on == folded(table)]

    def _reaches(self, begin: Collection[str], table: str, *, by_trigger: bool = False) -> bool:
        """Whether writes of the tables `begin` lead to one of `table`, perhaps by a trigger."""
        known: set[tuple[str, bool]] = set()
        left = [(each, not by_trigger) for each in begin]
        while left:
            here, asked = left.pop()
            if (here, asked) in known:
                continue
            known.add((here, asked))
            if here == folded(table) and asked:
                return True
            for trigger in self._triggers:
                if trigger.on == here:
                    left += [(each, True) for each in trigger.writes]
            left += [
                (action.child, asked)
                for action in self._actions
                if action.parent == here
                and (action.on_update or action.on_delete not in ("NO ACTION", "RESTRICT"))
            ]
        return False


def _read_trigger(name: str, on: str, sql: str, number: int) -> _AppTrigger:
    words = sql_words(sql)
    upper = [word.upper() for word in words]
    begin = upper.index("BEGIN")
    event = next(at for at, word in enumerate(upper) if word in ("INSERT", "UPDATE", "DELETE"))
    writes = {
        folded(unquoted(words[at + 1]))
        for at in range(begin, len(words) - 1)
        if (upper[at] == "INTO" or (upper[at] == "FROM" and upper[at - 1] == "DELETE"))
        or (upper[at] == "UPDATE" and upper[at + 1] not in ("SET", "OR"))
        or (at > 1 and upper[at - 2 : at] == ["UPDATE", "OR"])
    }
    ignores = any(upper[at : at + 3] == ["RAISE", "(", "IGNORE"] for at in range(len(upper)))
    # Without BEFORE or AFTER it is BEFORE. The trigger's name may be one of these words, too.
    named = upper[event - 2] in ("TRIGGER", "EXISTS", ".")
    before = named or upper[event - 1] != "AFTER"
    return _AppTrigger(name, folded(on), before, frozenset(writes), ignores, number)


def sql_words(sql: str) -> list[str]:
    """Return the words, quoted texts and other characters of `sql`, without spaces and comments."""
    return [word for word, _ in _tokens(sql)]


def unquoted(name: str) -> str:
    """Return a name without its quotes."""
    if name[0] == "[":
        return name[1:-1]
    return name[1:-1].replace(name[0] * 2, name[0]) if name[0] in "\"'`" else name


# --- SQL text -------------------------------------------------------------------------------------


def column_list(names: Sequence[str], prefix: str = "") -> str:
    """Return quoted names, separated by commas, each after `prefix`."""
    return ", ".join(prefix + quoted(name) for name in names)


def differs(column: SourceColumn) -> str:
    """Return whether OLD and NEW have other values of a column, byte by byte, as SQL text."""
    old, new = f"OLD.{quoted(column.name)}", f"NEW.{quoted(column.name)}"
    changed = f"{old} collate binary is not {new}"
    if value_kind(column.declared) in ("int64", "text", "float64"):
        return changed
    word = column.declared.upper()
    if word and "BLOB" not in word and word != "ANY":
        return changed  # NUMERIC: what is equal is stored alike
    # 1 and 1.0 are equal, and so are 0.0 and -0.0, but without an affinity they are stored as they
    # are. Nothing in SQL tells the zeros apart in every version.
    return (
        f"{changed} or typeof({old}) is not typeof({new}) or ({new} = 0 and typeof({new}) = 'real')"
    )


def either(terms: Sequence[str]) -> str:
    """Return `terms` joined by OR, nested evenly: SQLite limits how deep an expression may be."""
    return _joined(terms, "or")


def every(terms: Sequence[str]) -> str:
    """Return `terms` joined by AND, nested evenly."""
    return _joined(terms, "and")


def _joined(terms: Sequence[str], word: str) -> str:
    if len(terms) <= 8:
        return f" {word} ".join(f"({term})" for term in terms)
    middle = len(terms) // 2
    return f"({_joined(terms[:middle], word)}) {word} ({_joined(terms[middle:], word)})"
