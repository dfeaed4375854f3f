"""Whether what a source has now goes on where a log ends: pure questions, asked at each opening."""

from __future__ import annotations

import json
from collections.abc import Iterable

from headrace.capture.source import Recordable
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


def outgrown(log: LogWriter, schema: TableSchema) -> bool:
    """Whether the rows that the log has of a table are not what it holds under this schema."""
    known = log.schema(schema.table) if log.has_baseline(schema.table) else None
    return known is not None and not keeps_rows(known, schema)


def left_out(log: LogWriter, tables: Iterable[TableName]) -> list[TableName]:
    """Return those of the tables that the log knows, and that were not captured last time."""
    if (noted := log.notes.get(_CAPTURED)) is None:
        return []  # a log from before this was noted
    last = set(json.loads(noted))
    return [table for table in tables if table not in last and log.schema(table) is not None]


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
