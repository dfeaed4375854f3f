"""Plain Parquet needs no Spark to be written: a file a batch, each of which appears whole."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName
from headrace.errors import BadTable, SparkGone, StorageError, TableTaken
from headrace.lake.parquet import ParquetTable
from headrace.lake.target import TableTarget, table
from headrace.spark_session.session import Spark
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.target import Loading, Target, TargetContext
from headrace.testing.contracts import TargetContract, batch, loaded
from headrace.testing.source import TABLE, THINGS, State


def no_spark() -> Spark:
    raise SparkGone("There is none")


def target_context(folder: Path) -> TargetContext:
    folder.mkdir(parents=True, exist_ok=True)
    return TargetContext(no_spark, "orders", Files(RealDisk(), str(folder)), time.time)


def opened(folder: Path, data: str = "data", at: Position = ORIGIN) -> TableTarget:
    target = table(path=str(folder / "lake"), format="parquet", mode="append")
    target.use(target_context(folder / data))
    target.check({TABLE: THINGS})
    target.open({TABLE: THINGS}, {TABLE: at})
    return target


def read(folder: Path) -> list[dict[str, object]]:
    return [
        row for path in folder.glob("*.parquet") for row in pq.ParquetFile(path).read().to_pylist()
    ]


def rows(folder: Path) -> list[tuple[object, ...]]:
    found = [
        (str(row["_position"])[5:21].lstrip("0"), row["_change_type"], row["id"], row["name"])
        for row in read(folder / "lake")
    ]
    return sorted(found, key=str)


def replayed(folder: Path) -> State:
    """Return what a table of changes comes to, for one who sorts by position alone."""
    found = read(folder)
    # A delete of an old key stands at the position of its row; all else has one of its own.
    random.Random(1).shuffle(found)
    there: State = {}
    for row in sorted(found, key=lambda row: (row["_position"], row["_change_type"] != "delete")):
        key, name = row["id"], row["name"]
        assert row["_commit_timestamp"] is not None
        match row["_change_type"]:
            case "truncate":
                there.clear()
            case "delete":
                there.pop(key, None)  # type: ignore[call-overload]
            case _:
                there[key] = name  # type: ignore[index, assignment]
    return there


class Harness:
    """Drives folders of one place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self) -> Target:
        path = str(self._folder / "lake" / "{table}")
        target = table(path=path, format="parquet", mode="append")
        target.use(target_context(self._folder / "data"))
        return target

    def rows(self, target: Target, table: TableName = TABLE) -> State:
        return replayed(self._folder / "lake" / table)


class TestContract(TargetContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = Harness(tmp_path)


def begun(folder: Path) -> TableTarget:
    target = opened(folder)
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "one"}))
    loading.write(loaded({2: "two"}))
    loading.catch_up(batch([(Op.UPDATE, 5, 1, "uno")], 5, first=4))
    loading.switch(Position(1, 5))
    return target


BEGUN = [
    ("4", "insert", 1, "one"),
    ("4", "insert", 2, "two"),
    ("5", "update_postimage", 1, "uno"),
]


def test_a_baseline_is_one_file_before_the_changes_that_follow_it(tmp_path: Path) -> None:
    begun(tmp_path)
    assert rows(tmp_path) == BEGUN
    assert len(list((tmp_path / "lake").glob("*.parquet"))) == 1
    assert list((tmp_path / "lake").glob("*.tmp")) == []


@pytest.mark.meets("R25")
def test_a_batch_that_comes_again_takes_the_place_of_its_own_file(tmp_path: Path) -> None:
    target = begun(tmp_path)
    change = batch([(Op.INSERT, 6, 3, "three"), (Op.DELETE, 7, 1, None)], 7, first=6)
    for again in (target, target, opened(tmp_path, at=Position(1, 5))):
        assert again.write(change) == Position(1, 7)
    assert rows(tmp_path) == [*BEGUN, ("6", "insert", 3, "three"), ("7", "delete", 1, None)]
    assert target.write(batch([], 8, first=8)) == Position(1, 8)
    assert len(list((tmp_path / "lake").glob("*.parquet"))) == 2


def test_an_emptied_table_and_a_reload_are_told(tmp_path: Path) -> None:
    target = begun(tmp_path)
    target.write(batch([(Op.INSERT, 7, 9, "nine")], 7, first=6, truncate=6))
    assert replayed(tmp_path / "lake") == {9: "nine"}
    loading = target.load(TABLE, 2)
    loading.write(loaded({9: "nine"}))
    loading.switch(Position(1, 8))
    assert rows(tmp_path) == [
        *BEGUN,
        ("6", "truncate", None, None),
        ("7", "insert", 9, "nine"),
        ("8", "insert", 9, "nine"),
        ("8", "truncate", None, None),
    ]
    assert replayed(tmp_path / "lake") == {9: "nine"}


def test_what_was_before_a_truncate_of_the_same_batch_is_told(tmp_path: Path) -> None:
    target = begun(tmp_path)
    changes_made = [
        (Op.INSERT, 6, 3, "three"),
        (Op.TRUNCATE, 7, 0, None),
        (Op.INSERT, 8, 4, "four"),
        (Op.TRUNCATE, 9, 0, None),
    ]
    target.write(batch(changes_made, 9, first=6, truncate=9))
    assert rows(tmp_path) == [
        *BEGUN,
        ("6", "insert", 3, "three"),
        ("7", "truncate", None, None),
        ("8", "insert", 4, "four"),
        ("9", "truncate", None, None),
    ]


@pytest.mark.meets("R25")
def test_a_baseline_whose_switch_was_not_noted_takes_its_own_place(tmp_path: Path) -> None:
    for goal in (6, 8):
        loading = opened(tmp_path).load(TABLE, 1)
        loading.write(loaded({1: "one"}))
        loading.catch_up(batch([(Op.INSERT, 5, 2, "two")], goal, first=4))
        loading.switch(Position(1, goal))
    assert rows(tmp_path) == [("4", "insert", 1, "one"), ("5", "insert", 2, "two")]


def test_changes_alone_whose_switch_was_not_noted_are_told_once(tmp_path: Path) -> None:
    for goal in (6, 8):
        loading = opened(tmp_path).load(TABLE, 0)
        loading.catch_up(batch([(Op.INSERT, 5, 2, "two")], 6, first=4))
        loading.switch(Position(1, goal))
    assert rows(tmp_path) == [("5", "insert", 2, "two")]


@pytest.mark.meets("R11")
def test_what_came_while_it_was_loaded_anew_is_told_once(tmp_path: Path) -> None:
    target = begun(tmp_path)
    target.write(batch([(Op.INSERT, 6, 3, "early"), (Op.INSERT, 8, 4, "four")], 8, first=6))
    loading = target.load(TABLE, 2)
    loading.write(loaded({1: "uno", 2: "two", 3: "early"}))
    target.write(batch([(Op.INSERT, 9, 5, "five")], 9, first=9))
    # The one at 6 is in the baseline's rows, and is not told behind them.
    loading.catch_up(batch([(Op.INSERT, 8, 4, "four"), (Op.INSERT, 9, 5, "five")], 9, first=7))
    loading.switch(Position(1, 9))
    assert rows(tmp_path) == [
        *BEGUN,
        ("6", "insert", 3, "early"),
        ("7", "insert", 1, "uno"),
        ("7", "insert", 2, "two"),
        ("7", "insert", 3, "early"),
        ("7", "truncate", None, None),
        ("8", "insert", 4, "four"),
        ("9", "insert", 5, "five"),
    ]
    assert replayed(tmp_path / "lake") == {1: "uno", 2: "two", 3: "early", 4: "four", 5: "five"}


def test_what_an_interrupted_load_left_is_removed(tmp_path: Path) -> None:
    target = opened(tmp_path)
    target.load(TABLE, 1).write(loaded({1: "one"}))
    assert list((tmp_path / "lake").glob("_*.tmp"))
    discarded = opened(tmp_path).load(TABLE, 1)
    assert list((tmp_path / "lake").glob("_*.tmp")) == []
    discarded.write(loaded({1: "one"}))
    discarded.discard()
    assert list((tmp_path / "lake").glob("_*.tmp")) == []
    assert rows(tmp_path) == []


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(TableTaken):
        opened(tmp_path, "other")
    (tmp_path / "lake" / "_headrace").unlink()
    with pytest.raises(TableTaken):
        opened(tmp_path)
    with pytest.raises(TableTaken):
        opened(tmp_path, at=Position(1, 5))


@pytest.mark.meets("R1")
def test_a_folder_that_is_gone_is_loaded_anew(tmp_path: Path) -> None:
    begun(tmp_path).close()
    shutil.rmtree(tmp_path / "lake")
    for _ in range(2):  # as often as it is asked before it is loaded
        target = opened(tmp_path, at=Position(1, 5))
        assert target.lost(TABLE) is not None
    loading = target.load(TABLE, 1)
    loading.write(loaded({1: "uno"}))
    loading.switch(Position(1, 6))
    assert target.lost(TABLE) is None
    target.close()
    assert opened(tmp_path, at=Position(1, 6)).lost(TABLE) is None
    assert rows(tmp_path) == [("6", "insert", 1, "uno")]


def test_a_folder_that_is_taken_away_is_not_written_to(tmp_path: Path) -> None:
    target = begun(tmp_path)
    change = batch([(Op.INSERT, 6, 3, "three")], 6, first=6)
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(TableTaken, match="does not have the files"):
        target.write(change)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "_headrace").write_text("another")
    with pytest.raises(TableTaken, match="Another pipeline"):
        target.write(change)
    assert rows(tmp_path) == []


class Killed(BaseException):
    """Ends it where it stands."""


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.meets("R1")
def test_a_lost_folder_is_loaded_after_kills_while_it_was(tmp_path: Path) -> None:
    begun(tmp_path).close()
    shutil.rmtree(tmp_path / "lake")
    for _ in range(2):
        target = opened(tmp_path, at=Position(1, 5))
        assert target.lost(TABLE) is not None
        loading = target.load(TABLE, 1)
        loading.write(loaded({1: "uno"}))
    loading.switch(Position(1, 6))
    assert rows(tmp_path) == [("6", "insert", 1, "uno")]


@pytest.mark.meets("R1")
def test_a_lost_folder_is_loaded_after_a_kill_right_behind_its_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path).close()
    shutil.rmtree(tmp_path / "lake")
    loading = opened(tmp_path, at=Position(1, 5)).load(TABLE, 1)
    loading.write(loaded({1: "uno"}))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ParquetTable, "switched", killed)
        loading.switch(Position(1, 6))
    assert rows(tmp_path) == [("6", "insert", 1, "uno")]
    loading = opened(tmp_path, at=Position(1, 5)).load(TABLE, 1)
    loading.write(loaded({1: "uno"}))
    loading.switch(Position(1, 7))
    assert rows(tmp_path) == [("7", "insert", 1, "uno")]


@pytest.mark.parametrize("theirs", ["theirs.parquet", "_theirs.tmp"])
@pytest.mark.parametrize("mark", [None, "", "another"])
def test_nothing_is_removed_from_a_folder_of_somebody_else(
    tmp_path: Path, theirs: str, mark: str | None
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    names = {theirs, "_baseline-00000001-0a1b2c3d.rows.tmp"}
    for name in names:
        (lake / name).touch()
    if mark is not None:
        (lake / "_headrace").write_text(mark)
    for at in (ORIGIN, Position(1, 5)):
        with pytest.raises(TableTaken):
            opened(tmp_path, at=at)
    assert {path.name for path in lake.iterdir()} - {"_headrace"} == names


@pytest.mark.meets("R36")
def test_a_mark_that_is_not_durable_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = RealDisk.sync

    def refuse(disk: RealDisk, path: str) -> None:
        if Path(path).parent.name == "lake":
            raise OSError(5, "Input/output error")
        sync(disk, path)

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "sync", refuse)
        with pytest.raises(StorageError):
            opened(tmp_path)
    assert not (tmp_path / "lake" / "_headrace").exists()
    begun(tmp_path)
    assert rows(tmp_path) == BEGUN
    assert list((tmp_path / "lake").glob("*.tmp")) == []


def test_a_folder_whose_mark_a_power_loss_cut_off_is_marked_anew(tmp_path: Path) -> None:
    begun(tmp_path).close()
    mark = tmp_path / "lake" / "_headrace"
    owner = mark.read_text()
    mark.write_text("")
    with pytest.raises(TableTaken, match="did not write"):
        opened(tmp_path)  # Nothing was ever written, as far as this one knows.
    target = opened(tmp_path, at=Position(1, 5))
    assert target.lost(TABLE) is None
    assert mark.read_text() == owner
    target.write(batch([(Op.INSERT, 6, 3, "three")], 6, first=6))
    assert rows(tmp_path) == [*BEGUN, ("6", "insert", 3, "three")]


def test_a_folder_with_a_mark_cut_off_and_files_of_another_log_is_refused(tmp_path: Path) -> None:
    begun(tmp_path).close()
    lake = tmp_path / "lake"
    (lake / "_headrace").write_text("")
    (file,) = lake.glob("baseline-*.parquet")
    file.rename(lake / "baseline-00000001-0a1b2c3d.parquet")
    with pytest.raises(TableTaken, match="does not have the files"):
        opened(tmp_path, at=Position(1, 5))


BOTH = batch([(Op.INSERT, 7, 3, "three"), (Op.INSERT, 8, 4, "four")], 8, first=6)


def killed_before_the_cut(loading: Loading, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ParquetTable, "_cut", killed)
        loading.switch(Position(1, at))


def loaded_anew_at_9(folder: Path, baseline: int) -> None:
    """Start again, as one that had not noted the last batches, and load a newer baseline."""
    target = opened(folder, at=Position(1, 5))
    later = batch([(Op.INSERT, 9, 5, "five")], 9, first=9)
    target.write(BOTH)
    target.write(later)
    loading = target.load(TABLE, baseline)
    loading.write(loaded({1: "uno", 4: "four"}))
    loading.catch_up(later)
    loading.switch(Position(1, 9))


ANEW = [
    ("8", "insert", 1, "uno"),
    ("8", "insert", 4, "four"),
    ("8", "insert", 4, "four"),  # One is the change, the other the baseline's row.
    ("8", "truncate", None, None),
    ("9", "insert", 5, "five"),
]


@pytest.mark.meets("R11")
def test_changes_are_told_once_after_a_killed_switch_and_a_newer_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = begun(tmp_path)
    target.write(BOTH)
    loading = target.load(TABLE, 2)
    loading.write(loaded({1: "uno"}))
    loading.catch_up(BOTH)
    killed_before_the_cut(loading, 8, monkeypatch)
    loaded_anew_at_9(tmp_path, 3)
    assert rows(tmp_path) == [
        *BEGUN,
        ("6", "insert", 1, "uno"),
        ("6", "truncate", None, None),
        ("7", "insert", 3, "three"),
        *ANEW,
    ]


@pytest.mark.meets("R11")
def test_the_newer_of_two_baselines_keeps_what_both_have_after_a_killed_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = begun(tmp_path)
    target.write(BOTH)
    loading = target.load(TABLE, 2)
    loading.catch_up(BOTH)
    loading.switch(Position(1, 8))
    loading = target.load(TABLE, 3)
    loading.write(loaded({3: "three"}))
    loading.catch_up(batch([(Op.INSERT, 8, 4, "four")], 8, first=8))
    killed_before_the_cut(loading, 8, monkeypatch)
    loaded_anew_at_9(tmp_path, 4)
    assert rows(tmp_path) == [
        *BEGUN,
        ("6", "truncate", None, None),
        ("7", "insert", 3, "three"),
        ("7", "insert", 3, "three"),  # One is the change, the other the baseline's row.
        ("7", "truncate", None, None),
        *ANEW,
    ]


def test_what_plain_files_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTable, match="does not support adopt"):
        table(path=str(tmp_path), format="parquet", mode="append", adopt=True)
    with pytest.raises(BadTable, match="URL"):
        table(path="s3://bucket/orders", format="parquet", mode="append")
