"""What a table of a lake takes up when it is opened, read back and committed to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import Column
from headrace.changelog.values import ValueType
from headrace.errors import BadTable, Fenced, TableTaken, TargetError
from headrace.lake import staged_load, table
from headrace.lake.history import (
    CUT_OFF,
    CommitNote,
    TableCommit,
    looked_at,
    read,
    settled,
    written,
)
from headrace.lake.memory import Memory
from headrace.lake.parts import StagedParts
from headrace.lake.rows import Mode, shaped
from headrace.pipeline.failed_rows import Workspace
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.testing.contracts import batch, loaded
from headrace.testing.source import TABLE, THINGS
from tests.pipeline.lake.in_memory import KEEPING, KeptInMemory, Lake, Writer, staged_commit

ROWS = loaded({1: "one", 2: "two"})
WIDER = replace(
    THINGS, columns=(*THINGS.columns, Column("size", ValueType("int32"), 3, declared="int"))
)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_load, "staged_commit", staged_commit)


def write(kept: table.LakeTable, commit: int, id: int, name: str = "new") -> Position:
    made = batch([(Op.INSERT, commit, id, name)], commit, first=commit)
    return kept.write(made, made.tables[TABLE])


# -- commits of other writers --------------------------------------------------------------------


def restored(lake: Lake) -> None:
    lake.rows = {1: "one"}
    lake.commit("RESTORE")


def removed(lake: Lake) -> None:
    lake.remove()


@pytest.mark.meets("R1")
@pytest.mark.parametrize("how", [restored, removed])
@pytest.mark.parametrize("more", [0, 2])
def test_what_somebody_did_while_it_was_written_to_is_not_hidden_by_our_next_commit(
    tmp_path: Path, how: Callable[[Lake], None], more: int
) -> None:
    writer = Writer(tmp_path, "append")
    kept = writer.begun(ROWS)
    for commit in range(more):
        write(kept, 2 + commit, 10 + commit)
    how(writer.lake)
    with pytest.raises(TableTaken):
        write(kept, 7, 7)
    with pytest.raises(TableTaken):
        write(kept, 8, 8)
    for _ in range(2):
        again = writer.opened(Position(1, 7))
        assert again.lost is not None
    writer.load(again, loaded({5: "five"}), Position(1, 9), 2)
    assert again.lost is None
    write(again, 10, 10)
    assert writer.opened(Position(1, 10)).lost is None


@pytest.mark.meets("R1")
def test_a_table_that_was_made_anew_with_as_many_commits_is_another(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "append")
    kept = writer.begun(ROWS)
    notes = list(writer.lake.commits)
    writer.lake.remove()
    for each in notes:
        writer.lake.commit(each.operation, each.note)
    kept.position = Position(1, 1)
    assert writer.opened(Position(1, 1)).lost == "the table was dropped and created again"


def replaced_late(lake: Lake) -> None:
    """Let a load land late that was built on what was there before the last commit."""
    last = lake.commits[-1]
    assert last.note is not None
    late = msgspec.structs.replace(last.note, writer="late", batch="baseline-2")
    lake.commits[-1] = TableCommit(last.version, "WRITE", late)
    lake.rows, lake.created = {1: "late"}, lake.created + 1


@pytest.mark.meets("R1", "R24")
@pytest.mark.parametrize("loads", [True, False])
def test_a_late_load_with_the_number_and_version_of_ours_is_found_out(
    tmp_path: Path, loads: bool
) -> None:
    writer = Writer(tmp_path)
    writer.lake.has_identity = True
    kept = writer.begun(ROWS)
    if loads:
        writer.load(kept, ROWS, Position(1, 2), 2)
    else:
        write(kept, 2, 3)
    replaced_late(writer.lake)
    assert writer.opened(Position(1, 2)).lost == "the table was dropped and created again"
    with pytest.raises(TableTaken, match="created again"):
        write(kept, 3, 4)
    again = writer.opened(Position(1, 3))
    assert again.lost == "the table was dropped and created again"
    writer.load(again, ROWS, Position(1, 4), 3)
    write(again, 5, 5)
    assert writer.opened(Position(1, 5)).lost is None


@pytest.mark.meets("R24")
def test_a_late_load_does_not_change_what_who_took_over_remembers(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.lake.has_identity = True
    writer.begun(ROWS)

    def check() -> None:
        raise Fenced("Another engine took over")

    old = writer.opened(Position(1, 1), check=check)
    with pytest.raises(Fenced):
        writer.load(old, loaded({1: "late"}), Position(1, 1), 2)
    assert writer.lake.rows == {1: "late"}
    stored = Memory(Files(RealDisk(), str(tmp_path / "data")), "orders")
    assert (stored.last(TABLE), stored.identity(TABLE)) == (1, "2")


def test_a_load_that_another_one_landed_behind_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path)
    writer.lake.has_identity = True
    kept = writer.begun(ROWS)
    asked = KeptInMemory.identity

    def overtaken(self: KeptInMemory) -> str:
        monkeypatch.setattr(KeptInMemory, "identity", asked)
        replaced_late(writer.lake)
        return asked(self)

    monkeypatch.setattr(KeptInMemory, "identity", overtaken)
    with pytest.raises(TargetError, match="committed first"):
        writer.load(kept, ROWS, Position(1, 3), 2)
    assert kept._memory.last(TABLE) == 1


def test_a_load_that_was_not_remembered_is_no_other_table(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.lake.has_identity = True
    kept = writer.begun(ROWS)
    kept._memory.remember = lambda *about: None  # type: ignore[method-assign]
    writer.load(kept, ROWS, Position(1, 2), 2)
    again = writer.opened(Position(1, 1))
    assert (again.lost, again.position) == (None, Position(1, 2))
    write(again, 3, 3)
    assert writer.opened(Position(1, 3)).lost is None


def test_what_leaves_every_row_as_it_is_is_nobody_s_business(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    kept = writer.begun(ROWS)
    for commit in (2, 3):
        writer.lake.commit("OPTIMIZE")
        write(kept, commit, commit)
    assert writer.opened(Position(1, 3)).lost is None
    assert writer.lake.rows == {1: "one", 2: "new", 3: "new"}


def test_a_commit_that_was_not_remembered_is_known_at_the_next_start(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    kept = writer.begun(ROWS)
    kept._memory.remember = lambda *about: None  # type: ignore[method-assign]
    write(kept, 2, 3)
    again = writer.opened(Position(1, 1))
    assert (again.lost, again.position) == (None, Position(1, 2))
    writer.lake.commit("DELETE")
    assert "DELETE" in str(writer.opened(Position(1, 2)).lost)


def note(number: int, batch: str = "b", owner: str = "p/x") -> CommitNote:
    return CommitNote(1, owner, "w", number, str(Position(1, number)), "", 0, batch, TABLE)


def history(*commits: tuple[str, CommitNote | None], start: int = 0) -> list[TableCommit]:
    return [TableCommit(start + at, *commit) for at, commit in enumerate(commits)][::-1]


@pytest.mark.parametrize(
    ("commits", "since", "others"),
    [
        (history(("W", note(1)), ("M", note(2))), 0, None),
        (history(("W", note(1)), ("DELETE", None), ("M", note(2))), None, None),
        (history(("W", note(1)), ("DELETE", None), ("M", note(2))), 0, "DELETE"),
        (history(("W", note(1)), ("DELETE", None), ("M", note(2))), 1, None),
        (history(("W", note(1)), ("DELETE", None), ("M", note(2, "baseline-2"))), 0, None),
        (history(("W", note(1)), ("W", note(9, owner="q")), ("M", note(2))), 0, "W"),
        (history(("OPTIMIZE", None), ("M", note(2)), start=5), 4, None),
        (history(("OPTIMIZE", None), ("M", note(2)), start=5), 3, CUT_OFF),
    ],
)
def test_a_history_is_looked_at_from_where_it_is_known(
    commits: list[TableCommit], since: int | None, others: str | None
) -> None:
    found = looked_at(commits, since, KEEPING)
    assert (found.others, found.version, found.number) == (others, commits[0].version, 2)


def test_a_few_commits_are_enough_once_they_reach_what_is_known() -> None:
    commits = history(("M", note(2)), ("M", note(3)), start=5)
    assert settled(commits, None)
    assert settled(commits, 5)
    assert not settled(commits, 4)
    assert settled(history(("W", note(2, "baseline-1")), start=5), 1)
    assert not settled(history(("OPTIMIZE", None), start=5), None)


# -- who writes ---------------------------------------------------------------------------------


@pytest.mark.meets("R24")
def test_a_writer_that_was_taken_over_from_does_not_take_the_others_number(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    over: list[bool] = []

    def check() -> None:
        if over:
            raise Fenced("Another engine took over")

    writer.begun(ROWS)
    old = writer.opened(Position(1, 1), check=check)
    new = writer.opened(Position(1, 1))
    over.append(True)
    write(new, 2, 3)
    with pytest.raises(TargetError):
        write(old, 2, 3, "late")
    for _ in range(2):
        with pytest.raises(Fenced):
            write(old, 3, 4, "late")
    assert writer.lake.rows == {1: "one", 2: "two", 3: "new"}
    write(new, 3, 4)


@pytest.mark.meets("R24")
def test_a_last_commit_of_who_was_taken_over_from_does_not_stop_who_took_over(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path)
    old = writer.begun(ROWS)
    new = writer.opened(Position(1, 1))
    write(old, 2, 3)
    with pytest.raises(TargetError):
        write(new, 2, 3)
    assert write(new, 2, 3) == Position(1, 2)
    assert write(new, 3, 4) == Position(1, 3)


def test_a_table_of_another_of_the_source_s_tables_is_not_gone_on_with(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.begun(ROWS)
    other = replace(THINGS, table="others")
    with pytest.raises(TableTaken, match="another source table"):
        writer.opened(schema=other)
    adopted = writer.opened(schema=other, adopt=True)
    writer.load(adopted, loaded({7: "seven"}), Position(1, 1), 1)
    assert writer.lake.rows == {7: "seven"}


def test_a_note_of_before_it_named_the_table_is_read() -> None:
    text = written(note(3)).replace(f',"table":"{TABLE}"', "")
    assert "table" not in text
    assert read(text) == replace_table(note(3))


def replace_table(old: CommitNote) -> CommitNote:
    return msgspec.structs.replace(old, table="")


# -- loaded anew --------------------------------------------------------------------------------


@pytest.mark.meets("R1")
@pytest.mark.parametrize("mode", ["merge", "append"])
def test_a_history_that_does_not_reach_back_to_us_lets_it_be_loaded(
    tmp_path: Path, mode: Mode
) -> None:
    writer = Writer(tmp_path, mode)
    kept = writer.begun(ROWS)
    write(kept, 2, 3) if mode == "append" else None
    writer.lake.forget_history()
    again = writer.opened(Position(1, 2))
    assert again.lost == CUT_OFF
    writer.load(again, loaded({5: "five"}), Position(1, 3), 2)
    expected = {5: "five"} if mode == "merge" else {1: "one", 2: "two", 3: "new", 5: "five"}
    assert writer.lake.rows == expected
    assert writer.opened(Position(1, 3)).lost is None


def test_an_adopted_table_without_a_note_goes_on_from_the_last_number(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    write(writer.begun(ROWS), 2, 3)
    writer.lake.forget_history()
    with pytest.raises(TableTaken):
        writer.opened(data="other")
    adopted = writer.opened(data="other", adopt=True)
    writer.load(adopted, loaded({5: "five"}), Position(1, 3), 1)
    assert writer.lake.rows == {5: "five"}


@pytest.mark.parametrize("mode", ["merge", "append", "history"])
@pytest.mark.parametrize("how", [restored, removed])
def test_a_lost_table_takes_more_columns_as_it_is_loaded(
    tmp_path: Path, mode: Mode, how: Callable[[Lake], None]
) -> None:
    writer = Writer(tmp_path, mode)
    writer.begun(ROWS)
    how(writer.lake)
    again = writer.opened(Position(1, 1))
    assert again.lost is not None
    again.add_columns(WIDER)
    assert again.lost is not None
    writer.load(again, ROWS, Position(1, 3), 2)
    assert "size" in [column.name for column in writer.lake.columns]
    assert writer.opened(Position(1, 3), WIDER).lost is None


RETYPED = replace(
    THINGS, columns=(*THINGS.columns, Column("size", ValueType("text"), 4, declared="text"))
)


def test_a_table_of_rows_that_has_a_column_of_another_type_is_to_be_loaded_anew(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path)
    # Added, and not noted before the source had it as another one.
    writer.begun(ROWS).add_columns(WIDER)
    kept = writer.opened(Position(1, 1))
    target = hr.table(path="/lake")
    target._tables[TABLE] = kept
    assert target.schema_changed(TABLE, THINGS, RETYPED) == "reload"
    assert kept.shape.schema == RETYPED


@pytest.mark.parametrize("mode", ["append", "history"])
def test_a_column_that_comes_again_with_another_type_is_refused(tmp_path: Path, mode: Mode) -> None:
    writer = Writer(tmp_path, mode)
    kept = writer.begun(ROWS)
    kept.add_columns(WIDER)
    for schema in (THINGS, WIDER):
        kept.add_columns(schema)  # dropped, and there again as it was
    kept.add_columns(THINGS)
    for _ in range(2):
        with pytest.raises(BadTable, match="column size has another type") as found:
            kept.add_columns(RETYPED)
        assert "another table" in found.value.remedy
    assert kept.shape.schema == THINGS


# -- what executors prepare ---------------------------------------------------------------------


@pytest.fixture
def staged_with(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Position | None]]:
    """Note where a batch is prepared, and which truncate it is told of."""
    asked: list[tuple[Path, Position | None]] = []

    def stage(
        frame: object,
        shape: object,
        folder: Workspace,
        epoch: int,
        after: Position,
        emptied: Position | None,
    ) -> StagedParts:
        made = Path(folder.location)
        made.mkdir(parents=True)
        asked.append((made, emptied))
        return StagedParts((), after)

    monkeypatch.setattr(table, "stage_changes", stage)
    return asked


def test_a_truncate_that_the_table_has_is_not_prepared_again(
    tmp_path: Path, staged_with: list[tuple[Path, Position | None]]
) -> None:
    kept = Writer(tmp_path, "history").begun(ROWS)
    kept.position = Position(1, 5)
    for at, truncated in ((4, None), (5, None), (6, Position(1, 6))):
        kept.stage(None, 1, Position(1, at))  # type: ignore[arg-type]
        assert staged_with[-1][1] == truncated


def test_what_attempts_before_prepared_is_removed(
    tmp_path: Path, staged_with: list[tuple[Path, Position | None]]
) -> None:
    kept = Writer(tmp_path).begun(ROWS)
    for _ in range(3):
        kept.stage(None, 1, None)  # type: ignore[arg-type]
    assert [folder.exists() for folder, _ in staged_with] == [False, False, True]


def test_each_table_has_a_staging_folder_of_its_own(tmp_path: Path) -> None:
    folders = set()
    for at, name in enumerate(("x" * 300, "x" * 301, "a/b", "a*b")):
        kept = Writer(tmp_path / str(at))
        kept.folder.mkdir()
        opened = kept.opened(schema=replace(THINGS, table=name))
        name = Path(opened.staging_folder.location).name
        folders.add(name)
        assert len(name) < 200
    assert len(folders) == 4


def test_a_shape_has_the_key_of_its_columns() -> None:
    shape = shaped("append", THINGS, None)
    for key in (("id", "name"), ()):
        assert shape.with_schema(replace(THINGS, key=key)).key == key
