"""
What capture creates in the user's database, and how it is removed again.

One log table has the changes of all captured tables: `seq`, time, a number that names
table and columns, the operation, and both images in generic columns without a type. So
every value keeps its storage class, bit for bit, and no value can make a trigger fail:
capture must never make a statement of the application fail (R42).

`seq` is a plain rowid: SQLite has one writer at a time, so its order is commit order, and
as long as the newest row is never removed, numbers only grow. The first row is a marker,
so that there is a newest row from the beginning.

A plan records a table's columns. When they change, or when one of the table's triggers was
missing, changes may have been missed: the new plan writes a marker to the log, and each reader
that reaches it starts over with that table (R39). `trigger_sql` has the text of the triggers. What
an older version created is upgraded in place if it was complete: then nothing was missed.

A table without a declared key is known by its rowids, and VACUUM gives other ones. So each plan of
such a table has a row in a table of ours whose rowid VACUUM would change, too: if that row has
another one, the plan does not match any more.

Triggers that were dropped and created again with the same text leave a gap as well. The procedure
that SQLite's documentation gives for altering a table does that, and so do tools, and a dump of a
table that is loaded. So one more trigger, the *seal*, which never does anything, is created
after all others: the schema lists objects in the order of their creation, also after VACUUM, and a
trigger that is listed after the seal counts as missing. That there is a seal is noted, so that all
triggers count as missing if it is gone. If the seal is created again, too, nothing shows it.

The log records the file system and the inode of the file in which it was created. A file that is
restored from a copy contains its log and every reader's position, so nothing inside it shows that
it went back in time: positions would be used again for other changes (R40). Only the file itself
is another one. A copy that is written over the same file has the same inode, and is not noticed.

SQLite refuses to drop a column that a trigger names. `alter` removes the triggers of every capture
log in the file, runs ALTER TABLE and creates the triggers for the new columns, in one transaction.
Nobody can write in between, so no change is missing, and the table need not be copied again.

Long because everything here depends on which triggers there are, and what they were created for.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from headrace.capture.sqlite.database import (
    OURS,
    PREFIX,
    CaptureNames,
    folded,
    opened,
    quoted,
    writing,
)
from headrace.capture.sqlite.tables import (
    SourceTable,
    WriteGraph,
    inspect,
    not_found,
    sql_words,
    table_names,
    unquoted,
)
from headrace.capture.sqlite.trigger_sql import NOW, PAIRED, texts_of_format_1, trigger_texts
from headrace.errors import SourceRefused, TableRefused

# --- the file in which a log was created ----------------------------------------------------------

_NAME = "file"


def remember(database: sqlite3.Connection, names: CaptureNames) -> None:
    """Record that the log belongs to this file; within a transaction."""
    if (identity := _identity(database)) is not None:
        put_fact(database, names, _NAME, identity)


def known(database: sqlite3.Connection, names: CaptureNames) -> bool:
    """Whether the log records the file in which it was created; older logs do not."""
    return _remembered(database, names) is not None


def elsewhere(database: sqlite3.Connection, names: CaptureNames) -> bool:
    """Whether the log was created in another file than this one."""
    identity, remembered = _identity(database), _remembered(database, names)
    return None not in (identity, remembered) and identity != remembered


def _remembered(database: sqlite3.Connection, names: CaptureNames) -> str | None:
    row = database.execute(f"select value from {names.meta} where name = ?", (_NAME,)).fetchone()
    return None if row is None else str(row[0])


def _identity(database: sqlite3.Connection) -> str | None:
    (path,) = database.execute(
        "select file from pragma_database_list where name = 'main'"
    ).fetchone()
    try:
        # Not the device number, which may change when the machine is restarted.
        return f"{os.statvfs(path).f_fsid}/{os.stat(path).st_ino}"  # noqa: PTH116 - of one file
    except OSError:
        return None  # the next read reports that the file is missing


# --- log table, triggers and plans ----------------------------------------------------------------

FORMAT = 2
_OLDER = (1,)
"""Formats that are upgraded in place."""

LOG = OURS.log
META = OURS.meta
TABLES = OURS.tables
READERS = OURS.readers

REPLANNED = 8
"""The `op` of a marker: changes of a table may be missing before it."""

STARTED = 9
"""The `op` of a marker that only keeps the log from being empty."""

LIBRARY = "capture/"
"""The prefix of readers of `Capture`; a source's name has no slash, so no engine's has it."""

_SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class CapturedColumns:
    """One set of columns of a table, to which the log's rows refer by number."""

    id: int
    table: str
    fields: Mapping[str, int]
    """Each column's field id, in the order of the images; never reused within a table."""

    fingerprint: Sequence[tuple[str, str, int]]

    tangled: bool = False
    """Whether its changes may have to be put in order when they are read."""


def capture_id(database: sqlite3.Connection, names: CaptureNames = OURS) -> str | None:
    """Return the capture's uuid; None if nothing was ever set up."""
    if not has_table(database, names.companion("meta")):
        return None
    found = dict(database.execute(f"select name, value from {names.meta}").fetchall())
    if found.get("format") not in (FORMAT, *_OLDER):
        raise SourceRefused(
            "The capture tables were created by another version, in an unknown format",
            format=found.get("format"),
            remedy="Use the version that created them, or remove all of them: headrace sqlite"
            " teardown --db FILE, without --table.",
        )
    return str(found["capture"])


def has_known_format(database: sqlite3.Connection, names: CaptureNames = OURS) -> bool:
    """Whether our tables, if there are any, can be read by this version."""
    if not has_table(database, names.companion("meta")):
        return True
    (found,) = database.execute(
        f"select max(value) from {names.meta} where name = 'format'"
    ).fetchone()
    return found in (FORMAT, *_OLDER)


def _is_older(database: sqlite3.Connection, names: CaptureNames) -> bool:
    """Whether our tables were created by an older version, and are not upgraded yet."""
    row = database.execute(f"select value from {names.meta} where name = 'format'").fetchone()
    return row is not None and row[0] in _OLDER


def plans(database: sqlite3.Connection, names: CaptureNames = OURS) -> dict[int, CapturedColumns]:
    """Return every plan that was ever created, by its number."""
    if not has_table(database, names.companion("tables")):
        return {}
    found = {}
    about = "''" if _is_older(database, names) else "about"
    for number, name, text, more in database.execute(
        f"select id, name, columns, {about} from {names.tables} order by id"
    ):
        columns = json.loads(text)
        found[number] = CapturedColumns(
            number,
            name,
            {column: field for column, _, _, field in columns},
            [(column, declared, key) for column, declared, key, _ in columns],
            bool(more and json.loads(more).get("tangled")),
        )
    return found


def latest(every: Mapping[int, CapturedColumns], table: str) -> CapturedColumns | None:
    """Return the newest plan of `table`."""
    own = [plan for plan in every.values() if plan.table == table]
    return own[-1] if own else None


def fields_for(
    every: Mapping[int, CapturedColumns],
    table: SourceTable,
    renamed: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Return field ids for the columns as they are now; new columns get new ones."""
    # An exact text in an old segment must never refer to another column.
    known: dict[str, int] = {}
    used = 0
    for plan in every.values():
        if plan.table == table.name:
            known = dict(plan.fields)
            used = max([used, *plan.fields.values()])
    before = renamed or {}
    fields = {}
    for column in table.columns:
        name = before.get(column.name, column.name)
        # A column that has the former name of a renamed one is new.
        if name not in known or (column.name not in before and name in before.values()):
            used += 1
            fields[column.name] = used
        else:
            fields[column.name] = known[name]
    return fields


def complete(database: sqlite3.Connection, names: CaptureNames = OURS) -> bool:
    """Whether all of our tables exist."""
    return capture_id(database, names) is not None and all(
        has_table(database, name)
        for name in (names.log_table, names.companion("readers"), names.companion("tables"))
    )


def amiss(
    database: sqlite3.Connection, tables: Sequence[SourceTable], names: CaptureNames = OURS
) -> list[str]:
    """Return the tables whose plan or triggers do not match them now; [] if all do."""
    if not complete(database, names):
        return [table.name for table in tables]
    every = plans(database, names)
    found = [trigger for trigger in _triggers(database, names) if not trigger.late]
    graph = WriteGraph(database)
    return [
        table.name
        for table in _filtered(database, tables, names)
        if not _matches(database, table, latest(every, table.name), found, graph, names)
    ]


def _matches(
    database: sqlite3.Connection,
    table: SourceTable,
    plan: CapturedColumns | None,
    found: Sequence[_Trigger],
    graph: WriteGraph,
    names: CaptureNames,
) -> bool:
    """Whether all that was written to a table since its plan was created is in the log."""
    if plan is None or list(plan.fingerprint) != table.fingerprint:
        return False
    own = [trigger for trigger in found if trigger.plan == plan.id]
    present = {trigger.name: trigger.sql for trigger in own}
    if _is_older(database, names):
        texts = texts_of_format_1(table, plan.id, names)
        if not _is_plain(table, graph):
            return False
    else:
        texts = trigger_texts(table, plan.id, names)
    return (
        all(present.get(name) == sql for name, sql in texts.items())
        and not graph.overtaking(table.name, min(trigger.number for trigger in own))
        and (not table.by_rowid or _keeps_rowids(database, plan.id, names))
    )


def _filtered(
    database: sqlite3.Connection, tables: Sequence[SourceTable], names: CaptureNames
) -> list[SourceTable]:
    """Return the tables as they are captured: some with a filter."""
    known = filters(database, names)
    return [
        inspect(database, table.name, known[table.name]) if table.name in known else table
        for table in tables
    ]


def _is_plain(table: SourceTable, graph: WriteGraph) -> bool:
    """Whether the triggers of format 1 were exact for a table."""
    return not (
        table.collisions
        or table.by_rowid
        or any(column.generated for column in table.columns)
        or graph.has_triggers(table.name)
    )


_SPARSE = 1 << 40
"""Added to a plan's number, to get a rowid that VACUUM would never give."""


def _keeps_rowids(database: sqlite3.Connection, plan: int, names: CaptureNames) -> bool:
    """Whether VACUUM has renumbered no rows since a plan was created."""
    return (
        has_table(database, names.companion("rowids"))
        and database.execute(
            f"select 1 from {names.rowids} where rowid = ? and plan = ?", (_SPARSE + plan, plan)
        ).fetchone()
        is not None
    )


def changed(
    database: sqlite3.Connection, tables: Collection[SourceTable], names: CaptureNames = OURS
) -> list[str]:
    """Return the tables that have other columns than these, or whose triggers do not match."""
    now = {table.name: inspect(database, table.name) for table in tables}
    wrong = amiss(database, list(now.values()), names)
    return [
        table.name
        for table in tables
        if table.name in wrong or now[table.name].fingerprint != table.fingerprint
    ]


def install(
    database: sqlite3.Connection,
    tables: Sequence[SourceTable],
    names: CaptureNames = OURS,
    where: Mapping[str, str] | None = None,
) -> str:
    """
    Set up the capture of `tables`, in one transaction, and return the capture's uuid.

    Does nothing, and takes no lock, if everything is set up already. `where` has the filters of
    these tables; if it is None, they keep those that they have.
    """
    capture = capture_id(database, names)
    if (
        capture is not None
        and (where is None or not _other_filters(database, tables, where, names))
        and not amiss(database, tables, names)
        and _sealed(database, names)
        and _noted_sealed(database, names)
        and not _is_older(database, names)
    ):
        return capture
    with writing(database):
        # Inspected again: another process may have set it up before we got the lock, and a
        # trigger that names a dropped column would make writes fail (R42).
        tables = [inspect(database, table.name) for table in tables]
        return make(database, tables, names, where=where)


def make(
    database: sqlite3.Connection,
    tables: Sequence[SourceTable],
    names: CaptureNames,
    *,
    where: Mapping[str, str] | None = None,
    exact: Collection[str] = (),
    renamed: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """
    Do the work of `install`, within a transaction of the caller.

    No changes of the tables in `exact` are missing, although they have no triggers. `renamed` has
    the old names of columns, by table and new name.
    """
    upgraded = _upgradable(database, names)
    if where is None:
        tables = _filtered(database, tables, names)
    else:
        check_filters(database, _in_use(database, tables, names), where, names)
        tables = [inspect(database, each.name, where.get(each.name, "")) for each in tables]
    capture = _make_tables(database, tables, names)
    for table in tables:
        _remove_filter(database, table.name, names)
        if table.where:
            put_fact(database, names, _FILTER + table.name, table.where)
    every = plans(database, names)
    for trigger in _triggers(database, names):
        if trigger.late:
            # Also of other tables: a new seal would hide it, while one that is missing is noticed.
            database.execute(f"drop trigger {quoted(trigger.name)}")
    wanted = {table.name: table for table in upgraded} | {table.name: table for table in tables}
    known = {*exact, *(table.name for table in upgraded)}
    for table in wanted.values():
        before = (renamed or {}).get(table.name, {})
        _capture_table(database, table, every, names, gap=table.name not in known, renamed=before)
    _seal(database, names)
    return capture


_FILTER = "where/"


def filters(database: sqlite3.Connection, names: CaptureNames) -> dict[str, str]:
    """Return the conditions for rows that are captured, by table; only of tables that have one."""
    return {table: str(where) for table, where in facts(database, names, _FILTER)}


def check_filters(
    database: sqlite3.Connection,
    tables: Collection[str],
    where: Mapping[str, str],
    names: CaptureNames,
) -> None:
    """Raise `SourceRefused` if one of these tables is captured with another filter."""
    known = filters(database, names)
    for table in tables:
        if known.get(table, "") != where.get(table, ""):
            raise SourceRefused(
                "The table is captured with another filter",
                table=table,
                log_table=names.log_table,
                where=known.get(table, "none"),
                remedy="Use the same filter (where=) for all readers of a log, or another log"
                " table. To change the filter, remove the table first (teardown).",
            )


def _other_filters(
    database: sqlite3.Connection,
    tables: Sequence[SourceTable],
    where: Mapping[str, str],
    names: CaptureNames,
) -> bool:
    known = filters(database, names)
    return any(known.get(table.name, "") != where.get(table.name, "") for table in tables)


def _in_use(
    database: sqlite3.Connection, tables: Sequence[SourceTable], names: CaptureNames
) -> list[str]:
    """Return the tables that are captured already, or have a reader."""
    if not has_table(database, names.companion("readers")):
        return []
    rows = database.execute(f"select name from {names.readers}").fetchall()
    read = {name.removeprefix(LIBRARY).partition("/")[2] for (name,) in rows}
    on = {folded(trigger.on) for trigger in _triggers(database, names)}
    return [each.name for each in tables if each.name in read or folded(each.name) in on]


def _remove_filter(database: sqlite3.Connection, table: str, names: CaptureNames) -> None:
    database.execute(f"delete from {names.meta} where name = ?", (_FILTER + table,))


def _seal(database: sqlite3.Connection, names: CaptureNames) -> None:
    if not _sealed(database, names) or any(each.late for each in _triggers(database, names)):
        database.execute(f"drop trigger if exists {quoted(names.seal)}")
        database.execute(
            f"create trigger {quoted(names.seal)} after delete on {names.meta} when 0 "
            "begin select 1; end"
        )
    put_fact(database, names, _SEALED, 1)


def _upgradable(database: sqlite3.Connection, names: CaptureNames) -> list[SourceTable]:
    """Return the tables that an older version captures, and whose log has no gap."""
    if not complete(database, names) or not _is_older(database, names):
        return []
    found = []
    for name in dict.fromkeys(plan.table for plan in plans(database, names).values()):
        try:
            found.append(inspect(database, name))
        except TableRefused:
            continue
    wrong = amiss(database, found, names)
    return [table for table in found if table.name not in wrong]


def upgrade(database: sqlite3.Connection, names: CaptureNames = OURS) -> None:
    """Upgrade what an older version has set up, so that reading continues without a copy."""
    if complete(database, names) and _is_older(database, names):
        with writing(database):
            make(database, [], names)


def _sealed(database: sqlite3.Connection, names: CaptureNames) -> bool:
    row = database.execute(
        "select 1 from sqlite_master where type = 'trigger' and name = ?", (names.seal,)
    ).fetchone()
    return row is not None


def _noted_sealed(database: sqlite3.Connection, names: CaptureNames) -> bool:
    """Whether there has to be a seal; captures that older versions set up have none."""
    return (
        has_table(database, names.companion("meta"))
        and database.execute(f"select 1 from {names.meta} where name = ?", (_SEALED,)).fetchone()
        is not None
    )


def put_fact(database: sqlite3.Connection, names: CaptureNames, name: str, value: object) -> None:
    """Store a fact about the log or a reader; within a transaction."""
    database.execute(f"insert or replace into {names.meta} values (?, ?)", (name, value))


def facts(
    database: sqlite3.Connection, names: CaptureNames, prefix: str
) -> list[tuple[str, object]]:
    """Return the facts whose names begin with `prefix`, which is left out of their names."""
    if not has_table(database, names.companion("meta")):
        return []
    return database.execute(
        f"select substr(name, ?), value from {names.meta} where substr(name, 1, ?) = ?",
        (len(prefix) + 1, len(prefix), prefix),
    ).fetchall()


def _make_tables(
    database: sqlite3.Connection, tables: Sequence[SourceTable], names: CaptureNames
) -> str:
    capture = capture_id(database, names)
    database.execute(
        f"create table if not exists {names.meta} (name text primary key, value) without rowid"
    )
    database.execute(
        f"create table if not exists {names.tables} "
        "(id integer primary key, name text, columns text, about text)"
    )
    if _is_older(database, names):
        _widen(database, names.companion("tables"), ["about"])
        database.execute(f"update {names.meta} set value = {FORMAT} where name = 'format'")
    database.execute(
        f"create table if not exists {names.readers} "
        "(name text primary key, capture text, cursor integer, tables text) without rowid"
    )
    width = min(PAIRED, max((len(table.columns) for table in tables), default=1))
    pairs = [f"{side}{number}" for number in range(width) for side in "ba"]
    if capture is None or not has_table(database, names.log_table):
        # A new log counts from 1 again: its numbers need a new uuid (R1).
        columns = ["seq integer primary key", "ts", "tbl", "op", *pairs]
        _widen(database, names.log_table, columns)
        capture = renew(database, names)
    _widen(database, names.log_table, pairs)
    stashed = max((len(table.columns) for table in tables if table.collisions), default=0)
    if stashed:
        slots = [f"s{number}" for number in range(stashed)]
        _widen(database, names.companion("stash"), ["tbl", "at", "moves", "r", *slots])
    if any(table.by_rowid for table in tables):
        # Without an index, as VACUUM keeps the rowids of tables that have one.
        database.execute(f"create table if not exists {names.rowids} (plan)")
    return capture


def _widen(database: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
    """Create a table of ours with these columns, or add those that it lacks."""
    if not has_table(database, table):
        # In one statement: SQLite reads the whole schema again for each column that is added.
        database.execute(f"create table {quoted(table)} ({', '.join(columns)})")
        return
    query = "select name from pragma_table_info(?)"
    present = {name for (name,) in database.execute(query, (table,))}
    for column in columns:
        if column not in present:
            database.execute(f"alter table {quoted(table)} add column {column}")


def renew(database: sqlite3.Connection, names: CaptureNames = OURS) -> str:
    """Give the capture a new uuid, because its numbers start again; within a transaction."""
    capture = uuid4().hex
    put_fact(database, names, "format", FORMAT)
    put_fact(database, names, "capture", capture)
    remember(database, names)
    mark(database, STARTED, names=names)
    return capture


def mark(database: sqlite3.Connection, kind: int, plan: int = 0, names: CaptureNames = OURS) -> int:
    """Write a marker to the log and return its number; within a transaction."""
    made = database.execute(
        f"insert into {names.log} (ts, tbl, op) values ({NOW}, ?, ?)", (plan, kind)
    )
    return int(made.lastrowid or 0)


def _capture_table(
    database: sqlite3.Connection,
    table: SourceTable,
    every: dict[int, CapturedColumns],
    names: CaptureNames,
    *,
    gap: bool,
    renamed: Mapping[str, str],
) -> None:
    """Create a plan and its triggers, unless they are there; `gap`: changes may be missing."""
    before = latest(every, table.name)
    # After tables were renamed, a trigger created for this table may be on another one, and a
    # trigger on this table may have been created for another one.
    present = [
        trigger
        for trigger in _triggers(database, names)
        if folded(trigger.on) == folded(table.name) or _made_for(trigger, every) == table.name
    ]
    if (
        before is not None
        and {trigger.name for trigger in present} == set(trigger_texts(table, before.id, names))
        and _matches(database, table, before, present, WriteGraph(database), names)
    ):
        return
    for trigger in present:
        database.execute(f"drop trigger {quoted(trigger.name)}")
        for companion in ("stash", "rowids"):
            if has_table(database, names.companion(companion)):
                column = "tbl" if companion == "stash" else "plan"
                database.execute(
                    f"delete from {quoted(names.companion(companion))} where {column} = ?",
                    (trigger.plan,),
                )
    # A new number even for the same columns, to distinguish rows that older triggers logged.
    fields = fields_for(every, table, renamed)
    columns = [[*facts, fields[facts[0]]] for facts in table.fingerprint]
    made = database.execute(
        f"insert into {names.tables} (name, columns, about) values (?, ?, ?)",
        (table.name, json.dumps(columns), json.dumps({"tangled": table.tangled})),
    )
    plan = CapturedColumns(
        int(made.lastrowid or 0), table.name, fields, table.fingerprint, table.tangled
    )
    every[plan.id] = plan
    for sql in trigger_texts(table, plan.id, names).values():
        database.execute(sql)
    if table.by_rowid:
        database.execute(
            f"insert into {names.rowids} (rowid, plan) values (?, ?)", (_SPARSE + plan.id, plan.id)
        )
    if before is not None and gap:
        mark(database, REPLANNED, plan.id, names)


def teardown(database: sqlite3.Connection, tables: Sequence[str] | None = None) -> None:
    """
    Remove the triggers of `tables`, or all triggers; with the last ones, remove our tables, too.

    The triggers are removed first, and all of it in one transaction: a trigger without its log
    would make every write of the application fail (R42). Changes that a reader of `Capture` has
    not read stay until that reader is removed, unless everything is removed.
    """
    with writing(database):
        out = None if tables is None else [captured_as(database, name) for name in tables]
        take_out(database, out)


def captured_as(database: sqlite3.Connection, name: str, names: CaptureNames = OURS) -> str:
    """
    Return the name under which a table was captured; `TableRefused` if there is none.

    The table may have been renamed since, and SQLite ignores the case of names.
    """
    every = plans(database, names)
    captured = [plan.table for plan in every.values()]
    if name in captured:
        return name
    for trigger in _triggers(database, names):
        if folded(trigger.on) == folded(name):
            return _made_for(trigger, every) or trigger.on
    for table in (*reversed(captured), *table_names(database)):
        if folded(table) == folded(name):
            return table
    raise not_found(database, name)


def take_out(
    database: sqlite3.Connection,
    tables: Collection[str] | None = None,
    names: CaptureNames = OURS,
    kept: Collection[str] = (),
) -> None:
    """
    Do the work of `teardown`, within a transaction of the caller.

    Triggers that were created for a table in `kept` stay, whichever table they are on now.
    """
    # Everything can be removed whatever its format.
    every = {} if tables is None else plans(database, names)
    on = {folded(table) for table in tables or ()}
    left = 0
    for trigger in _triggers(database, names):
        table = _made_for(trigger, every)
        if tables is None or table in tables or (folded(trigger.on) in on and table not in kept):
            database.execute(f"drop trigger {quoted(trigger.name)}")
        else:
            left += 1
    if tables is None or (not left and not _awaited(database, names)):
        for name in every_table(names):
            database.execute(f"drop table if exists {name}")
    elif tables is not None:
        for table in set(tables).difference(kept):
            if not has_triggers(database, table, names):
                _remove_filter(database, table, names)


def has_triggers(database: sqlite3.Connection, table: str, names: CaptureNames = OURS) -> bool:
    """Whether a table has triggers of this log."""
    return any(folded(trigger.on) == folded(table) for trigger in _triggers(database, names))


def drop_triggers(database: sqlite3.Connection, table: str, names: CaptureNames = OURS) -> None:
    """Remove the triggers of a table, within a transaction."""
    for trigger in _triggers(database, names):
        if folded(trigger.on) == folded(table):
            database.execute(f"drop trigger {quoted(trigger.name)}")


def every_table(names: CaptureNames) -> tuple[str, ...]:
    """Return our tables, as SQL text; the log first."""
    return (names.log, names.readers, names.tables, names.stash, names.rowids, names.meta)


def _awaited(database: sqlite3.Connection, names: CaptureNames) -> bool:
    """Whether a reader of `Capture` is left; an engine notices that a log was removed."""
    return (
        has_table(database, names.log_table)
        and has_table(database, names.companion("readers"))
        and database.execute(
            f"select 1 from {names.readers} where substr(name, 1, ?) = ?",
            (len(LIBRARY), LIBRARY),
        ).fetchone()
        is not None
    )


def drop_log(database: sqlite3.Connection) -> None:
    """Remove all triggers and the log, within a transaction; the next log gets a new uuid."""
    # The triggers first: a trigger without its log would make every write fail (R42).
    for trigger in _triggers(database, OURS):
        database.execute(f"drop trigger {quoted(trigger.name)}")
    database.execute(f"drop table if exists {LOG}")


@dataclass(frozen=True, slots=True)
class _Trigger:
    name: str
    on: str
    sql: str
    plan: int
    late: bool
    """Whether it was created after the seal, or the seal is gone."""

    number: int
    """Its number in the schema: newer triggers have higher ones, and run first."""


def _triggers(database: sqlite3.Connection, names: CaptureNames) -> list[_Trigger]:
    broken = not _sealed(database, names) and _noted_sealed(database, names)
    return [
        _Trigger(name, on, sql, plan, broken or bool(late), number)
        for name, on, sql, late, number in database.execute(
            "select name, tbl_name, sql, rowid > "
            "(select rowid from sqlite_master where type = 'trigger' and name = ?), rowid "
            "from sqlite_master where type = 'trigger'",
            (names.seal,),
        ).fetchall()
        if (plan := names.plan_of(name)) is not None
    ]


def _made_for(trigger: _Trigger, every: Mapping[int, CapturedColumns]) -> str | None:
    plan = every.get(trigger.plan)
    return None if plan is None else plan.table


def log_ends(database: sqlite3.Connection, names: CaptureNames = OURS) -> tuple[int, int]:
    """Return the numbers of the first and the last row of the log; 0 if there is none."""
    # Two queries: with both in one query, SQLite reads the whole table.
    (first,) = database.execute(f"select min(seq) from {names.log}").fetchone()
    (last,) = database.execute(f"select max(seq) from {names.log}").fetchone()
    return int(first or 0), int(last or 0)


def has_table(database: sqlite3.Connection, table: str) -> bool:
    """Whether the file has this table, in any case of its name."""
    row = database.execute(
        "select 1 from sqlite_master where type = 'table' and name = ? collate nocase", (table,)
    ).fetchone()
    return row is not None


# --- columns that are altered while a table is captured ------------------------------------------

_META = re.compile(rf"{PREFIX}_(?:(.+)_)?meta", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Alteration:
    sql: str
    table: str
    renamed: tuple[str, str] | None
    """The old and the new name of a column; the new one of a dropped column is empty."""


def alter(path: str | Path, *statements: str) -> None:
    """
    Add, drop or rename columns of tables that are captured, so that no change is missing.

    Each statement is an `ALTER TABLE` with `ADD`, `DROP` or `RENAME COLUMN`. All of them are one
    transaction. Captured changes from before keep their columns. If a table could not be captured
    afterwards, this raises `TableRefused` and changes nothing.
    """
    asked = [_read(statement) for statement in statements]
    with opened(str(Path(path).expanduser().absolute())) as database, writing(database):
        logs = _logs(database)
        for names in logs:
            make(database, [], names)  # upgrades it, if an older version created it
        tables = {_spelled(database, each.table) for each in asked}
        captured = {
            names: [table for table in tables if _is_captured(database, table, names)]
            for names in logs
        }
        sound = {
            (names, table)
            for names, own in captured.items()
            for table in own
            if not amiss(database, [inspect(database, table)], names)
        }
        for names, own in captured.items():
            for table in own:
                drop_triggers(database, table, names)
        for each in asked:
            try:
                database.execute(each.sql)
            except sqlite3.OperationalError as error:
                raise SourceRefused(
                    "SQLite refuses to alter the table", table=each.table, reason=str(error)
                ) from error
        for names, own in captured.items():
            found = [inspect(database, table) for table in own]
            if found:
                make(
                    database,
                    found,
                    names,
                    exact=[table.name for table in found if (names, table.name) in sound],
                    renamed={table.name: _renamed(table, asked) for table in found},
                )


def _read(sql: str) -> _Alteration:
    words = sql_words(sql)
    upper = [word.upper() for word in words]
    while upper and upper[-1] == ";":
        upper.pop()
    at = 4 if upper[3:4] == ["."] else 2
    name = unquoted(words[at]) if len(upper) > at + 1 else ""
    action, rest = upper[at + 1 : at + 2], words[at + 2 :]
    if rest and rest[0].upper() == "COLUMN":
        rest = rest[1:]
    if (
        upper[:2] != ["ALTER", "TABLE"]
        or ";" in upper
        or action not in (["ADD"], ["DROP"], ["RENAME"])
        or len(rest) < (3 if action == ["RENAME"] else 1)
        or (action == ["RENAME"] and rest[0].upper() == "TO")
    ):
        raise SourceRefused(
            "Only columns can be added, dropped or renamed",
            remedy="Use ALTER TABLE with ADD, DROP or RENAME COLUMN, one statement at a time. Run"
            " other statements on your own connection: the table is then copied again.",
        )
    renamed = None
    if action == ["RENAME"]:
        renamed = (unquoted(rest[0]), unquoted(rest[2]))
    elif action == ["DROP"]:
        renamed = (unquoted(rest[0]), "")
    return _Alteration(sql, name, renamed)


def _logs(database: sqlite3.Connection) -> list[CaptureNames]:
    """Return the names of all capture logs in the file that are complete."""
    found = database.execute("select name from sqlite_master where type = 'table'").fetchall()
    matches = [match for (name,) in found if (match := _META.fullmatch(name))]
    logs = [CaptureNames.of(match[1]) if match[1] else CaptureNames() for match in matches]
    return [names for names in logs if complete(database, names)]


def _spelled(database: sqlite3.Connection, name: str) -> str:
    return next((each for each in table_names(database) if folded(each) == folded(name)), name)


def _is_captured(database: sqlite3.Connection, table: str, names: CaptureNames) -> bool:
    return latest(plans(database, names), table) is not None and bool(
        has_triggers(database, table, names)
    )


def _renamed(table: SourceTable, asked: list[_Alteration]) -> Mapping[str, str]:
    """Return the old names of renamed columns, by their present ones; "": it is another column."""
    names: dict[str, str] = {}
    for each in asked:
        if each.renamed is not None and folded(each.table) == folded(table.name):
            old, new = each.renamed
            before = names.pop(old, old)
            if new:
                names[new] = before
            else:
                names[old] = ""
    return names
