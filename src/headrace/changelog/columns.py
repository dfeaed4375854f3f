"""
In which columns a table's changes are told.

A schema holds from the first flush that has changes in it. Who keeps a table as it is now takes
the newest at once; who keeps, or passes on, what was takes each in its turn, or the values of a
column that was dropped later would be missing from the changes before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.changelog.entry import File
from headrace.changelog.history import History, Known, tail
from headrace.changelog.schema import TableSchema

_LOOKED_AT = 64
"""Flushes that a turn is looked for in: a batch has no more, and a backlog may have many."""


class Turn(NamedTuple):
    """Whose turn it is behind a place."""

    schema: int
    """The schema by its id."""

    until: str | None = None
    """The last place before changes come in a later one; None: none have come."""


def newest(known: Known, since: int) -> Turn:
    """Return the newest schema, which all changes can be told in, however old they are."""
    # One from before, in which something was read late, does not count.
    return Turn(max(since, known.current))


def in_use(known: Known, since: int) -> Turn:
    """Return the newest schema that files have, of changes or of a baseline that can be loaded."""
    if known.current <= since:
        return Turn(since)
    loaded = known.baseline.files if known.baseline else ()
    schemas = {file.schema for files in (*known.files, loaded) for file in files}
    return Turn(max((since, *(min(known.current, known.rank(each)) for each in schemas))))


def in_turn(history: History, known: Known, since: int, after: str) -> Turn:
    """
    Return the schema of the changes right behind `after`, where that of id `since` is known.

    A flush with changes in several is told in the latest of them.
    """
    if known.current <= since:
        return Turn(since)
    schema, looked_at = since, 0
    for piece in tail(known, after):
        latest = min(known.current, max(known.rank(file.schema) for file in piece.files))
        if looked_at == _LOOKED_AT or (looked_at and latest > schema):
            return Turn(schema, history.lasts[history.step_of(piece.flush) - 1])
        schema, looked_at = max(schema, latest), looked_at + 1
    return Turn(schema if looked_at else _passed(known, since, after))


def _passed(known: Known, since: int, after: str) -> int:
    """
    Return the latest columns that no change from before can follow: of baselines before `after`.

    A schema that was only entered says nothing: it is when a copy begins, and changes of before
    may be still to be read.
    """
    ranks = (
        min(known.current, known.rank(file.schema))
        for baseline in known.baselines.values()
        if baseline.last <= after
        for file in baseline.files
    )
    return max((since, *ranks))


def any_later(known: Known, files: Iterable[File], since: int) -> bool:
    """Whether one of these files has columns that came after the schema of id `since`."""
    if known.current <= since:
        return False
    return any(min(known.current, known.rank(file.schema)) > since for file in files)


def identify(known: Known, schema: TableSchema) -> tuple[int, TableSchema]:
    """
    Return the id of a schema in this log, and the schema as the log has it.

    One that the log does not have is newer than all that it has.
    """
    for number in sorted(known.schemas, reverse=True):
        if known.schemas[number] == schema and number <= known.current:
            return number, known.schemas[number]
    return known.current, schema
