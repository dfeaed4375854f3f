"""Whether what a source has now goes on where a log ends: pure questions, asked at each opening."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from headrace.capture.source import News, Recordable
from headrace.changelog.evolution import keeps_rows
from headrace.changelog.log import LogWriter
from headrace.changelog.position import SourcePosition
from headrace.changelog.schema import TableName, TableSchema

_CAPTURED = "captured/"
"""What the note stands under, where no table's own can."""


def same_space(source: Recordable, known: str | None) -> bool:
    """Whether a source at another address is the one that the log was recorded from."""
    now = source.lineage()
    # A lineage may have branched since: then it begins as the source's own does.
    return now is not None and known is not None and f"{known}/".startswith(f"{now}/")


def owed(log: LogWriter, described: Mapping[TableName, TableSchema], *, begun: bool) -> list[News]:
    """
    Return which tables the log's rows are not right of any more.

    Where history has `begun` anew, that is said of all of them already.
    """
    found = [News(name, owed="columns") for name, now in described.items() if _outgrown(log, now)]
    if not begun:
        lapsed = (name for name in described if _left_out(log, name))
        found += [News(name, owed="left out", missing=True) for name in lapsed]
    return found


def _outgrown(log: LogWriter, schema: TableSchema) -> bool:
    """Whether the rows that the log has of a table are not what it holds under this schema."""
    known = log.schema(schema.table) if log.has_baseline(schema.table) else None
    return known is not None and not keeps_rows(known, schema)


def _left_out(log: LogWriter, table: TableName) -> bool:
    """Whether the log knows a table that was not captured last time."""
    noted = log.notes.get(_CAPTURED)
    # None: a log from before this was noted.
    return noted is not None and table not in json.loads(noted) and log.schema(table) is not None


def note_captured(log: LogWriter, tables: Iterable[TableName]) -> None:
    """Keep which tables are captured from now on; what changes in others the log does not have."""
    log.note(json.dumps(sorted(tables)), _CAPTURED)


def break_at(log: LogWriter, at: SourcePosition, resumes: bool) -> str | None:
    """Return why history does not simply go on at `at`; None when it does (R1)."""
    if log.lineage is None:
        return "start"
    if at.lineage != log.lineage:
        return "lineage"
    # A source that cannot resume may come to the same place without what lies between.
    return None if resumes and str(at) == log.source_position else "gap"
