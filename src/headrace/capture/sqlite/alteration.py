"""
Columns of a captured table that are added, dropped or renamed without a gap.

SQLite refuses to drop a column that a trigger names. `alter` removes the triggers of every capture
log in the file, runs the statements and creates the triggers for the new columns, in one
transaction. Nobody can write in between, so no change is missing, and the table need not be copied
again. Only `ALTER TABLE` with `ADD`, `DROP` or `RENAME COLUMN` is accepted: other statements could
change rows that no trigger sees.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import PREFIX, CaptureNames, folded, opened, writing
from headrace.capture.sqlite.tables import SourceTable, inspect, sql_words, table_names, unquoted
from headrace.errors import SourceRefused

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
            triggers.make(database, [], names)  # upgrades it, if an older version created it
        tables = {_spelled(database, each.table) for each in asked}
        captured = {
            names: [table for table in tables if _is_captured(database, table, names)]
            for names in logs
        }
        sound = {
            (names, table)
            for names, own in captured.items()
            for table in own
            if not triggers.amiss(database, [inspect(database, table)], names)
        }
        for names, own in captured.items():
            for table in own:
                triggers.drop_triggers(database, table, names)
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
                triggers.make(
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
    return [names for names in logs if triggers.complete(database, names)]


def _spelled(database: sqlite3.Connection, name: str) -> str:
    return next((each for each in table_names(database) if folded(each) == folded(name)), name)


def _is_captured(database: sqlite3.Connection, table: str, names: CaptureNames) -> bool:
    return triggers.latest(triggers.plans(database, names), table) is not None and bool(
        triggers.has_triggers(database, table, names)
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
