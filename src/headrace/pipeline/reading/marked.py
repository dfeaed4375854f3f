"""
Values that are not what they seem: null in their column, and named in a mark.

The source did not send one because it did not change (R21), or its column cannot hold it and
its exact text stands beside it (R23f). Passing such a null on would be a silent change, so it
is an error where the column is wanted; unless somebody asked for the marks, and gets both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import BadValue, UnknownValue
from headrace.pipeline.reading.columns import EXACT, MARKS, UNSENT, Fit
from headrace.pipeline.reading.rows import Expanded


@dataclass(frozen=True)
class Marks:
    """The marks of the changes in a segment, by their numbers; most have none."""

    unsent: dict[int, list[int]]
    exact: dict[int, list[tuple[int, str]]]

    @classmethod
    def of(cls, unsent: pa.Array | None, exact: pa.Array | None) -> Marks | None:
        """Return them; None where there are none."""
        found = cls(_listed(unsent), _listed(exact))
        return found if found.unsent or found.exact else None

    def columns(self, rows: Expanded, fits: Sequence[Fit]) -> dict[str, pa.Array]:
        """Return the two columns that tell of marks on these columns."""
        unsent: list[list[str] | None] = [None] * len(rows.index)
        exact: list[list[tuple[str, str]] | None] = [None] * len(rows.index)
        names = {fit.field: fit.column.name for fit in fits}
        for at, index, sign in self._rows(rows):
            if sign > 0 and (left := [names[f] for f in self.unsent.get(index, ()) if f in names]):
                unsent[at] = left
            texts = ((sign * field, text) for field, text in self.exact.get(index, ()))
            exact[at] = [(names[f], text) for f, text in texts if f in names] or None
        return {
            UNSENT: pa.array(unsent, MARKS[UNSENT]),
            EXACT: pa.array(exact, MARKS[EXACT]),
        }

    def _rows(self, rows: Expanded) -> list[tuple[int, int, int]]:
        """Return the rows that may have marks: their number, their change's, and which image."""
        marked = np.array(sorted({*self.unsent, *self.exact}), np.int64)
        found = np.flatnonzero(np.isin(rows.index, marked))
        return [(int(at), int(rows.index[at]), -1 if rows.before[at] else 1) for at in found]

    def first(self, rows: Expanded, fits: Sequence[Fit]) -> tuple[int, Fit, bool] | None:
        """Return the first row with a mark on one of these columns; and whether it was not sent."""
        by_field = {fit.field: fit for fit in fits}
        for at, index, sign in self._rows(rows):
            if sign > 0:
                for field in self.unsent.get(index, ()):
                    if field in by_field:
                        return at, by_field[field], True
            for field, _ in self.exact.get(index, ()):
                if sign * field in by_field:
                    return at, by_field[sign * field], False
        return None


def refuse_marked(
    marks: Marks,
    rows: Expanded,
    fits: Sequence[Fit],
    ours: dict[str, pa.Array],
    *,
    decides: bool = False,
) -> None:
    """
    Raise `UnknownValue` or `BadValue` where one of these rows has a mark on these columns.

    `decides`: they decide which rows there are.
    """
    found = marks.first(rows, fits)
    if found is None:
        return
    at, fit, unsent = found
    facts = {"column": fit.column.name, "position": ours["_position"][at].as_py()}
    go_on = "Or go on: marks=true gives null and tells so beside it; columns= leaves it out."
    if decides:
        go_on = "Or leave it out of the option where, and filter behind load(): .where(…)."
    if unsent:
        raise UnknownValue(
            "A value that did not change was not sent by the source",
            **facts,
            remedy=f"Run ALTER TABLE … REPLICA IDENTITY FULL for the table. {go_on}",
        )
    raise BadValue(
        "A value that its column cannot hold",
        **facts,
        remedy=f"Declare the column with a wider type at the source. {go_on}",
    )


def _listed(column: pa.Array | None) -> dict[int, Any]:
    if column is None or column.null_count == len(column):
        return {}
    return {at: marks for at, marks in enumerate(column.to_pylist()) if marks}
