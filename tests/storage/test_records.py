"""The contract of records, wherever they are kept, and stores of dead letters in each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from headrace.deadletters.ledger import Selection
from headrace.deadletters.letter import in_files
from headrace.deadletters.store import DeadLetterStore
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.objects import Objects
from headrace.storage.records import MemoryRecords, Records
from headrace.storage.simulation import SimulatedBucket, SimulatedDisk
from headrace.testing.contracts import RecordsContract
from tests.pipeline.letter_making import NOW, at, inserted
from tests.support.tiers import sweep


class FilesHarness:
    """Records in files; each time through other objects, as in another process."""

    def __init__(self, files: Callable[[], Files]) -> None:
        self._files = files

    def make(self, name: str) -> Records:
        return in_files(self._files(), name)


class MemoryHarness:
    def __init__(self) -> None:
        self._made: dict[str, MemoryRecords] = {}

    def make(self, name: str) -> Records:
        return self._made.setdefault(name, MemoryRecords())


@pytest.mark.meets("ENG-49", "R31")
class TestInMemory(RecordsContract):
    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.harness = MemoryHarness()


@pytest.mark.meets("ENG-49", "R31")
class TestOnADisk(RecordsContract):
    @pytest.fixture(autouse=True)
    def _made(self, tmp_path: Path) -> None:
        self.harness = FilesHarness(lambda: Files(RealDisk(), str(tmp_path)))


@pytest.mark.meets("ENG-49", "R31")
class TestInABucket(RecordsContract):
    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        bucket = SimulatedBucket()
        self.harness = FilesHarness(lambda: Objects(bucket, "bucket", "shop"))


@pytest.mark.meets("ENG-49", "P2")
class TestInABucketWhoseAnswersGetLost(RecordsContract):
    @pytest.fixture(autouse=True, params=sweep(range(12), every=4))
    def _made(self, request: pytest.FixtureRequest) -> None:
        bucket = SimulatedBucket(Random(request.param), 0.3)
        self.harness = FilesHarness(lambda: Objects(bucket, "bucket", "shop"))


def kinds(tmp_path: Path) -> dict[str, Callable[[], Records]]:
    disk, bucket, memory = SimulatedDisk(), SimulatedBucket(Random(1), 0.2), MemoryRecords()
    return {
        "memory": lambda: memory,
        "disk": lambda: in_files(Files(RealDisk(), str(tmp_path)), "orders"),
        "simulated": lambda: in_files(Files(disk, "/data"), "orders"),
        "bucket": lambda: in_files(Objects(bucket, "bucket", "a/b"), "orders"),
    }


@pytest.mark.meets("ENG-49", "TYP-32", "R30")
@pytest.mark.parametrize("kind", ["memory", "disk", "simulated", "bucket"])
def test_a_store_says_the_same_wherever_its_records_are(kind: str, tmp_path: Path) -> None:
    records = kinds(tmp_path)[kind]

    def opened() -> DeadLetterStore:
        return DeadLetterStore(records(), "orders", lambda: NOW, compact_files=4)

    store = opened()
    for number in range(1, 10):
        assert store.add([inserted(number, number)]) == 1
    assert store.add([inserted(1, 1)]) == 0
    store.clear("orders", at(2), "truncate")
    assert store.resolve(store.all()[:1], "replayed", "Ada") == 1
    (purged,) = store.purge(Selection(position=at(9)))
    assert (purged.dead_letters, purged.keys) == (1, 1)
    for each in (store, opened()):
        assert [found.position.commit for found in each.all()] == [4, 5, 6, 7, 8]
        assert [found.superseded for found in each.all(superseded=True)] == [
            *["truncate"] * 2,
            "replayed",
            *[None] * 5,
            "purged",
        ]
        assert len(each.held("orders")) == each.keys() == each.count == 5
        assert each.purged_keys() == {"orders": 1}
    assert len(records().numbers()) < 12, "they were merged"
