"""Changes that are parked in a batch whose truncate comes before the held rows."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.entries import File
from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.changelog.schema import TableSchema
from headrace.deadletters.hold import Segments, parked_in
from headrace.deadletters.keys import packed_keys
from headrace.pipeline.result import Failure
from headrace.testing.source import TABLE, THINGS

BAD = {"id": 6, "name": "bad"}


class Given(Segments):
    """Changes that stand in no file."""

    def __init__(self, changes: Iterable[Change], *, every_change: bool = False) -> None:
        self.epoch = 1
        self.every_change = every_change
        self.files = (File("f", TABLE, 1, 3, 0, "", truncates=1),)
        self._given = as_segment(THINGS, changes)

    def read(self) -> list[tuple[TableSchema, pa.Table]]:
        return [(THINGS, self._given)]


@pytest.mark.meets("R23d", "R30")
def test_a_row_of_a_baseline_stays_held_after_a_truncate_before_it() -> None:
    changes = Given(
        [
            Change(Op.TRUNCATE, 6, 0, 0),
            Change(Op.INSERT, 6, 1, 0, after=BAD),
            Change(Op.DELETE, 7, 0, 0, before=BAD),
        ]
    )
    ((_, rows),) = changes.read()
    key = packed_keys(rows.slice(1, 1), THINGS).new[0].as_py()
    held = {key: Position(1, 6, MAX_ORDINAL)}
    assert parked_in(changes, held, (), "test/1").references == {(7, 0)}
    earlier = {key: Position(1, 5, MAX_ORDINAL)}
    assert parked_in(changes, earlier, (), "test/1").references == set()


@pytest.mark.meets("R23d", "R30")
@pytest.mark.parametrize("every_change", [False, True])
def test_what_fails_before_a_truncate_has_a_letter_where_it_is_kept(every_change: bool) -> None:
    changes = [
        Change(Op.INSERT, 5, 0, 0, after=BAD),
        Change(Op.UPDATE, 5, 1, 0, before=BAD, after=BAD),
        Change(Op.TRUNCATE, 6, 0, 0),
        Change(Op.INSERT, 7, 0, 0, after=BAD),
    ]
    segments = Given(changes, every_change=every_change)
    parked = parked_in(segments, {}, [Failure((5, 0), "X")], "test/1")
    # Behind the truncate nothing is held: it is another row.
    assert parked.references == ({(5, 0), (5, 1)} if every_change else set())
    assert [letter.kind for letter in parked.dead_letters] == ["failed", "behind"][
        : 2 * every_change
    ]
