"""The shipped fakes keep the contracts they stand in for."""

import contextlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.errors import StorageError, TargetError
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.target import Target
from headrace.testing.contracts import (
    TABLE,
    THINGS,
    SourceContract,
    State,
    Step,
    TargetContract,
    batch,
)
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.support.file_target import FileTarget
from tests.support.watched_target import WatchedTarget


class MemoryHarness:
    def __init__(self) -> None:
        self.source = MemorySource()
        self.source.set_supports_resume(True)
        self.source.chunk_rows = 7
        self.source.set_schema(TABLE, {"id": "int64", "name": "text"}, key=["id"])

    def make(self) -> MemorySource:
        return self.source

    def commit(self, steps: Sequence[Step]) -> None:
        with self.source.transaction():
            for op, key, name in steps:
                if op == "insert":
                    self.source.emit_insert(TABLE, {"id": key, "name": name})
                elif op == "update":
                    self.source.emit_update(TABLE, {"id": key, "name": name})
                else:
                    self.source.emit_delete(TABLE, key)

    def all_read(self, upto: int) -> bool:
        return True

    def truth(self) -> State:
        return {
            int(str(row["id"])): None if row["name"] is None else str(row["name"])
            for row in self.source.rows(TABLE).values()
        }


class TestMemorySource(SourceContract):
    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.harness = MemoryHarness()


class ScriptedHarness:
    def __init__(self) -> None:
        self.disk = TargetDisk()

    def make(self) -> ScriptedTarget:
        return ScriptedTarget(self.disk)

    def rows(self, target: Target, table: str = TABLE) -> State:
        assert isinstance(target, ScriptedTarget)
        return {
            int(str(row["id"])): None if row["name"] is None else str(row["name"])
            for row in target.rows(table).values()
        }


class TestScriptedTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.harness = ScriptedHarness()

    def test_a_rejected_batch_leaves_no_effect(self) -> None:
        target = self._opened()
        assert isinstance(target, ScriptedTarget)
        target.reject(TargetError("Refused"))
        with pytest.raises(TargetError):
            target.write(batch([(Op.INSERT, 1, 1, "a")], 1))
        assert target.disk.effects == []

    def test_a_write_whose_answer_is_lost_has_its_effect_once(self) -> None:
        target = self._opened()
        assert isinstance(target, ScriptedTarget)
        target.fail_after_write(StorageError("Lost"))
        rows = batch([(Op.INSERT, 1, 1, "a")], 1)
        with pytest.raises(StorageError):
            target.write(rows)
        target.write(rows)
        assert len(target.disk.effects) == 1
        assert target.disk.duplicates() == []


class MemoryTargetHarness:
    def make(self) -> IndexedMemory:
        return memory()

    def rows(self, target: Target, table: str = TABLE) -> State:
        assert isinstance(target, IndexedMemory)
        return {
            int(str(row["id"])): None if row["name"] is None else str(row["name"])
            for row in target.table(table).all()
        }


class TestIndexedMemory(TargetContract):
    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.harness = MemoryTargetHarness()


def test_a_target_without_transactions_does_what_it_is_told_as_often_as_it_is_told() -> None:
    target = ScriptedTarget(transactional=False)
    assert not target.traits.transactional
    target.open({TABLE: THINGS}, {TABLE: ORIGIN})
    target.load(TABLE, 1).switch(Position(1, 0))
    first = batch([(Op.INSERT, 1, 1, "a")], 1)
    target.fail_after_write(StorageError("Lost"))
    with pytest.raises(StorageError):
        target.write(first)
    assert target.write(first) == Position(1, 1)
    target.write(batch([(Op.INSERT, 1, 1, "b")], 1))
    assert len(target.disk.duplicates()) == 1
    one, again, other = target.disk.batches
    assert one == again
    assert one[:3] == ("1-1", Position(1, 1), Position(1, 1))
    assert one[3] != other[3]
    assert target.position(TABLE) == ORIGIN


class FileHarness:
    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> FileTarget:
        return FileTarget(self.path)

    def rows(self, target: Target, table: str = TABLE) -> State:
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            found = database.execute("select body from rows where name = ?", (table,))
            rows = [json.loads(body) for (body,) in found]
        assert target.row_count(table) == len(rows)
        return {row["id"]: row["name"] for row in rows}


class TestFileTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _made(self, tmp_path: Path) -> None:
        self.harness = FileHarness(tmp_path / "target.db")


class WatchedHarness(MemoryTargetHarness):
    def make(self) -> WatchedTarget:  # type: ignore[override]
        return WatchedTarget(memory())

    def rows(self, target: Target, table: str = TABLE) -> State:
        assert isinstance(target, WatchedTarget)
        return super().rows(target.inner, table)


class TestWatchedTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.harness = WatchedHarness()

    def test_it_is_as_far_as_the_last_of_its_tables(self) -> None:
        target = self._with_two()
        assert isinstance(target, WatchedTarget)
        target.write(batch([(Op.INSERT, 1, 1, "a")], 1))
        assert target.reached == Position(1, 0)
        target.write(batch([], 2, first=2, others=[(Op.INSERT, 2, 1, "b")]))
        assert target.wait(2, timeout=0)
        assert not target.wait(3, timeout=0)


def test_a_source_in_memory_resumes_only_if_it_is_told_to() -> None:
    source = MemorySource()
    source.set_schema("orders", {"id": "int64"}, ["id"])
    first = str(source.open(None))
    source.close()
    source.emit_insert("orders", {"id": 1})
    assert str(source.open(first)) != first
    source.close()
    source.set_supports_resume(True)
    assert str(source.open(first)) == first
