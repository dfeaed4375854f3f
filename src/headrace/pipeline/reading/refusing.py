"""
What somebody must decide on before a stream or a part goes on: each names the option that does.

A truncate, columns that changed, rows from before an update that the source does not send, a
gap, and rows that changed without a change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from headrace.changelog.change import Op
from headrace.changelog.entry import File, Gap
from headrace.changelog.log import LogBatch
from headrace.changelog.position import Position
from headrace.changelog.ranges import Span, inside
from headrace.errors import (
    ChangesMissing,
    ColumnsChanged,
    HeadraceError,
    Truncated,
    UnknownValue,
)
from headrace.pipeline.reading.starting import Asked

_PLACE: Final = ("_commit", "_ordinal")


def has_trouble(asked: Asked, file: File) -> bool:
    """Whether somebody must decide on something before a segment is read, by the index alone."""
    return any(True for _ in _troubles(asked, file))


def trouble_within(asked: Asked, file: File, flush: LogBatch, part: Span) -> HeadraceError | None:
    """Return what somebody must decide on in a part, with the first place of it in a segment."""
    found = list(_troubles(asked, file))
    if not found:
        return None
    rows = asked.log.rows(file)
    kept, ops = inside(rows, flush.epoch, part), rows["_op"].to_numpy()
    for op, error in found:
        places = np.flatnonzero(kept if op is None else kept & (ops == op))
        if len(places):
            commit, ordinal = (rows[name][int(places[0])].as_py() for name in _PLACE)
            error.facts = {**error.facts, "position": str(Position(flush.epoch, commit, ordinal))}
            return error
    return None


def _troubles(asked: Asked, file: File) -> Iterator[tuple[Op | None, HeadraceError]]:
    """Yield each with the changes that it is about; None: about all."""
    options = asked.options
    if file.truncates and options.on_truncate == "fail":
        yield (
            Op.TRUNCATE,
            Truncated(
                "The table was emptied at the source",
                table=asked.table,
                remedy="Go on with onTruncate=row, which gives a row of the type truncate, or"
                " onTruncate=ignore.",
            ),
        )
    whole_before = asked.log.schema(asked.table, file.schema).whole_before
    if file.updates and options.images == "both" and not whole_before:
        yield (
            Op.UPDATE,
            UnknownValue(
                "The source does not send rows as they were before an update",
                table=asked.table,
                remedy="Run ALTER TABLE … REPLICA IDENTITY FULL for the table, or use"
                " images=after.",
            ),
        )
    try:
        asked.fits(file)
    except ColumnsChanged as error:
        yield None, error


def readable(asked: Asked, file: File) -> bool:
    """Whether a segment can be brought into the frame; one that cannot has no row in the part."""
    try:
        asked.fits(file)
    except ColumnsChanged:
        return False
    return True


def refuse_gap(asked: Asked, gap: Gap) -> None:
    """Raise at a place where history begins anew, unless that was agreed to."""
    if asked.options.on_gap == "fail":
        raise ChangesMissing(
            "History begins anew here: what happened just before at the source is not known",
            table=asked.table,
            position=gap.at,
            reason=gap.reason,
            remedy="Begin anew from the baseline that follows, with a new checkpoint and"
            " startingPosition=baseline; or go on without what is missing: onGap=continue.",
        )


def unseen_after(asked: Asked, at: Position) -> Position | None:
    """Return where rows changed without a change, if somebody must be told of that."""
    if asked.options.on_gap != "fail":
        return None
    owed = asked.log.owed_after(asked.table, at)
    return None if owed is None else Position.parse(owed.at)


def refuse_unseen(asked: Asked, part: Span) -> None:
    """Raise where rows changed without a change, and no gap says so."""
    if asked.options.on_gap != "fail":
        return
    owed = asked.log.owed_after(asked.table, part.after)
    if owed is not None and part.holds(Position.parse(owed.at)):
        raise ChangesMissing(
            "Rows of the table changed without a change",
            table=asked.table,
            position=owed.at,
            reason=owed.reason,
            remedy="Begin anew from the baseline that follows, with a new checkpoint and"
            " startingPosition=baseline; or go on without what is missing: onGap=continue.",
        )
