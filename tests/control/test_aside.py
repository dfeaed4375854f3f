"""What is set aside of a batch whose truncate lies before the rows that are held."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.entry import File
from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.changelog.schema import TableSchema
from headrace.control.aside import Segments, set_aside_in
from headrace.pipeline.keys import packed_keys
from headrace.testing.things import TABLE, THINGS

BAD = {"id": 6, "name": "bad"}


class Given(Segments):
    """Changes that stand in no file."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self.epoch = 1
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
    assert set_aside_in(changes, held, (), "test/1").places == {(7, 0)}
    earlier = {key: Position(1, 5, MAX_ORDINAL)}
    assert set_aside_in(changes, earlier, (), "test/1").places == set()
