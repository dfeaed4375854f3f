"""Two engines that take each other's commits for their own: no table is put back in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.errors import TableTaken, TargetError
from headrace.lake import staged_load
from headrace.lake.table import LakeTable
from headrace.testing.contracts import batch, loaded
from headrace.testing.source import TABLE
from tests.pipeline.lake.in_memory import Writer, staged_commit

ROWS = loaded({1: "one"})


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_load, "staged_commit", staged_commit)


def write(kept: LakeTable, commit: int, id: int | None) -> Position:
    """Write one change, or a batch that has none of the table's."""
    changes = [] if id is None else [(Op.INSERT, commit, id, "new")]
    made = batch(changes, commit, first=commit)
    return kept.write(made, made.tables[TABLE])


def quicker(writer: Writer, table: LakeTable, at: Position) -> None:
    """Load a table again that another writer has committed to; the first attempt has no effect."""
    with pytest.raises(TargetError, match="committed first"):
        writer.load(table, ROWS, at, 2)


@pytest.mark.meets("R24")
def test_an_engine_that_wakes_up_does_not_load_a_table_that_another_brought_further(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path)
    old = writer.begun(ROWS)
    new = writer.opened()
    writer.load(new, loaded({1: "one", 2: "two"}), Position(1, 2), 1)
    write(new, 3, 13)
    write(new, 4, 14)
    quicker(writer, old, Position(1, 1))
    for _ in range(2):
        with pytest.raises(TargetError, match="written newer rows"):
            writer.load(old, ROWS, Position(1, 3), 2)
    write(new, 5, 15)
    assert new.lost is None
    assert writer.lake.rows == {1: "one", 2: "two", 13: "new", 14: "new", 15: "new"}


@pytest.mark.meets("R24")
def test_who_has_come_as_far_as_the_other_loads_the_table(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    old = writer.begun(ROWS)
    new = writer.opened(Position(1, 1))
    write(old, 2, 12)
    quicker(writer, new, Position(1, 2))
    writer.load(new, loaded({7: "seven"}), Position(1, 2), 2)
    assert (new.lost, writer.lake.rows) == (None, {7: "seven"})


@pytest.mark.meets("R1")
@pytest.mark.parametrize(
    ("lineage", "at", "more"),
    [("ours", 3, False), ("ours", 3, True), ("theirs", 3, False), ("theirs", 9, False)],
)
def test_a_table_that_another_engine_has_put_back_is_loaded_anew(
    tmp_path: Path, lineage: str, at: int, more: bool
) -> None:
    writer = Writer(tmp_path)
    old = writer.opened(lineage=lineage)
    new = writer.opened(lineage="ours")
    writer.load(new, loaded({1: "one", 2: "two"}), Position(1, 2), 1)
    write(new, 6, None)
    quicker(writer, old, Position(1, at))
    writer.load(old, ROWS, Position(1, at), 1)
    if more:
        write(old, 4, 14)
    with pytest.raises(TargetError, match="committed first"):
        write(new, 7, 17)
    before = dict(writer.lake.rows)
    for _ in range(2):
        with pytest.raises(TableTaken):
            write(new, 7, 17)
    assert writer.lake.rows == before
    for _ in range(2):
        again = writer.opened(Position(1, 6), lineage="ours")
        assert "another engine" in str(again.lost)
    writer.load(again, loaded({5: "five"}), Position(1, 7), 2)
    assert write(again, 8, 18) == Position(1, 8)
    assert writer.opened(Position(1, 8), lineage="ours").lost is None


def test_a_table_without_changes_for_long_is_not_lost_at_the_next_start(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.begun(ROWS)
    again = writer.opened(Position(1, 50))
    assert (again.lost, again.position) == (None, Position(1, 50))
    write(again, 51, 7)
    assert writer.lake.rows == {1: "one", 7: "new"}
