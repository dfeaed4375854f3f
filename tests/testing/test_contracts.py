"""The shipped fakes keep the contracts they stand in for."""

from collections.abc import Sequence

import pytest

from headrace.changelog.change import Op
from headrace.errors import StorageError, TargetError
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.target import Target
from headrace.testing.contracts import (
    TABLE,
    SourceContract,
    State,
    Step,
    TargetContract,
    batch,
)
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget, TargetDisk


class MemoryHarness:
    def __init__(self) -> None:
        self.source = MemorySource()
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

    def rows(self, target: Target) -> State:
        assert isinstance(target, ScriptedTarget)
        return {
            int(str(row["id"])): None if row["name"] is None else str(row["name"])
            for row in target.rows(TABLE).values()
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

    def rows(self, target: Target) -> State:
        assert isinstance(target, IndexedMemory)
        return {
            int(str(row["id"])): None if row["name"] is None else str(row["name"])
            for row in target.all()
        }


class TestIndexedMemory(TargetContract):
    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.harness = MemoryTargetHarness()
