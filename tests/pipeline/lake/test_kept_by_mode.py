"""A table of a lake goes on over lives as it was begun: in its mode, and in its count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headrace.changelog.position import Position
from headrace.errors import TableTaken
from headrace.lake import staged_load
from headrace.lake.parts import StagedParts
from headrace.lake.rows import Mode
from headrace.testing.contracts import batch, loaded
from headrace.testing.source import TABLE
from tests.pipeline.lake.in_memory import Writer, staged_commit
from tests.pipeline.lake.test_taking import ROWS, write


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_load, "staged_commit", staged_commit)


@pytest.mark.meets("R24")
def test_small_files_become_few_though_no_life_has_so_many_commits(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "append")
    writer.begun(ROWS)
    for at in range(2, 11):
        write(writer.opened(Position(1, at - 1), compact_every=4), at, at)
    operations = [commit.operation for commit in writer.lake.commits]
    assert [at for at, operation in enumerate(operations) if operation == "OPTIMIZE"] == [4, 9]


@pytest.mark.meets("R24")
@pytest.mark.parametrize("before", ["merge", "append", "history"])
@pytest.mark.parametrize("now", ["merge", "append", "history"])
def test_a_table_that_was_kept_by_another_mode_is_refused_unless_it_is_to_be_replaced(
    tmp_path: Path, before: Mode, now: Mode
) -> None:
    writer = Writer(tmp_path, before)
    writer.begun(ROWS)
    writer.mode = now
    if now == before:
        assert writer.opened(Position(1, 1)).lost is None
        return
    with pytest.raises(TableTaken, match=f"has written the table in mode {before}") as refused:
        writer.opened(Position(1, 1))
    assert "adopt=True" in refused.value.remedy
    adopted = writer.opened(Position(1, 1), adopt=True)
    assert adopted.lost is not None
    assert not adopted.ours
    writer.load(adopted, loaded({5: "five"}), Position(1, 2), 2)
    assert writer.lake.rows == {5: "five"}
    assert writer.opened(Position(1, 2)).lost is None


@pytest.mark.meets("R24")
@pytest.mark.parametrize("how", ["no mode in the note", "no note"])
@pytest.mark.parametrize("before", ["append", "history"])
def test_the_mode_of_a_table_is_known_by_its_columns_where_no_note_says_it(
    tmp_path: Path, how: str, before: Mode
) -> None:
    writer = Writer(tmp_path, before)
    writer.begun(ROWS)
    lake = writer.lake
    if how == "no note":
        lake.forget_history()
    else:
        lake.commits = [
            replace(each, note=each.note and msgspec.structs.replace(each.note, mode=""))
            for each in lake.commits
        ]
    assert writer.opened(Position(1, 1)).ours
    for now in {"merge", "append", "history"} - {before}:
        writer.mode = now  # type: ignore[assignment]
        with pytest.raises(TableTaken, match=f"in mode {before}"):
            writer.opened(Position(1, 1))


@pytest.mark.meets("R23g", "R24")
def test_a_history_of_which_executors_leave_nothing_ends_when_it_was_emptied_first(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, "history")
    kept = writer.begun(ROWS)
    made = batch([], 9, first=2, truncate=8)
    first = (1_600_000_000_000_000, str(Position(1, 6)))
    kept.write(made, made.tables[TABLE], StagedParts((), kept.position, first))
    (statement,) = writer.lake.statements
    assert first[1] in statement
    assert str(first[0]) in statement
