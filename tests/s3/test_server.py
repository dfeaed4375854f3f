"""The log on a real server of S3: its promises, its refusals, writers that meet or die."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.deadletters.ledger import Selection
from headrace.deadletters.letter import in_files
from headrace.deadletters.store import DeadLetterStore
from headrace.errors import AlreadyStored, LostLog, StorageError
from headrace.storage import objects
from headrace.storage.files import Files
from headrace.storage.killpoints import (
    BEFORE_CHECKPOINT,
    ENTRY_LINKED,
    ENTRY_SYNCED,
    SEGMENT_WRITTEN,
)
from headrace.storage.records import Records
from headrace.storage.s3 import opened, s3_bucket
from headrace.testing.contracts import RecordsContract
from tests.changelog import log_making
from tests.changelog.test_log_power_cut import check, record
from tests.pipeline.letter_making import NOW, at, inserted
from tests.s3.conftest import BUCKET
from tests.s3.server import Server
from tests.storage.files_contract import FilesContract

pytestmark = pytest.mark.s3


class TestOnAServer(FilesContract):
    @pytest.fixture
    def files(self, place: str) -> Files:
        return opened(place)


class DeadLettersHarness:
    """Records of dead letters on the server."""

    def __init__(self, place: str) -> None:
        self._place = place

    def make(self, name: str) -> Records:
        return in_files(opened(self._place), name)


@pytest.mark.meets("ENG-49", "R31")
class TestDeadLettersOnAServer(RecordsContract):
    @pytest.fixture(autouse=True)
    def _made(self, place: str) -> None:
        self.harness = DeadLettersHarness(place)


@pytest.mark.meets("ENG-49", "R30")
def test_dead_letters_on_a_server_are_merged_purged_and_found_again(place: str) -> None:
    files = opened(place)
    store = DeadLetterStore.open(files, "orders", lambda: NOW, compact_files=3)
    for number in range(1, 8):
        store.add([inserted(number, number)])
    store.purge(Selection(position=at(2)), "Ada")
    assert len(files.list("dead-letters/orders")) < 7
    again = DeadLetterStore.open(opened(place), "orders", lambda: NOW)
    assert [each.position.commit for each in again.all()] == [1, 3, 4, 5, 6, 7]
    assert again.purged_keys() == {"orders": 1}
    late = DeadLetterStore.open(files, "orders", lambda: NOW)
    again.add([inserted(8, 8)])
    with pytest.raises(AlreadyStored):
        late.add([inserted(9, 9)])


def test_more_names_than_a_page_has_are_listed_in_order(place: str) -> None:
    files = opened(place)
    names = [f"{number:012x}.json" for number in range(1_100)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: files.create(f"index/{name}", b"x"), names))
    assert files.list("index") == names
    assert files.list("") == ["index"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up at once on what does not answer."""
    monkeypatch.setattr(objects, "RESTS", (0.01,))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AWS_SECRET_ACCESS_KEY", "not-the-secret", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_ACCESS_KEY_ID", "nobody", "AWS_ACCESS_KEY_ID"),
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9", "Check the network"),
    ],
)
def test_what_is_wrong_with_the_way_in_is_said_without_a_key(
    name: str, value: str, said: str, place: str, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    s3_bucket.cache_clear()
    with pytest.raises(StorageError) as caught:
        opened(place).prove()
    assert said in caught.value.remedy
    text = f"{caught.value} {caught.value.remedy} {caught.value.__cause__}"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in text


def test_without_credentials_it_is_said_where_they_come_from(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3_bucket.cache_clear()
    with pytest.raises(StorageError) as caught:
        opened(place).prove()
    assert caught.value.facts["reason"] == "NoCredentialsError"
    assert "AWS_PROFILE" in caught.value.remedy


def test_a_bucket_that_is_not_there_is_named(place: str) -> None:
    with pytest.raises(StorageError) as caught:
        opened("s3://no-such-bucket/x").list("log")
    assert caught.value.facts["reason"] == "NoSuchBucket"
    assert "s3a://no-such-bucket/x" in str(caught.value)


@pytest.mark.meets("R31")
def test_of_writers_that_meet_each_number_goes_to_one(place: str) -> None:
    files = opened(place)

    def create(writer: int) -> list[int]:
        won = []
        for number in range(60):
            try:
                files.create(f"index/{number:012x}.json", f"{writer}".encode())
            except AlreadyStored:
                continue
            won.append(number)
        return won

    with ThreadPoolExecutor(4) as threads:
        won = list(threads.map(create, range(4)))
    assert sorted(number for each in won for number in each) == list(range(60))
    for writer, numbers in enumerate(won):
        for number in numbers:
            assert files.read(f"index/{number:012x}.json") == f"{writer}".encode()


@pytest.mark.meets("R31")
def test_of_two_writers_of_a_log_the_one_from_before_is_told_so(place: str) -> None:
    files = opened(place)
    first = log_making.begun(files)
    first.append(log_making.commits(1))
    first.flush()
    second = log_making.opened(files, writer="two", term=2)
    first.append(log_making.commits(2))
    with pytest.raises(LostLog):
        first.flush()
    second.append(log_making.commits(2))
    second.flush()
    assert log_making.logged(log_making.reading(files)) == [1, 2]


PROGRAM = """
import sys
from headrace.storage.s3 import opened
from tests.changelog.test_log_power_cut import beats, record
files = opened(sys.argv[1])
record(files, 1, []) if sys.argv[2] != "before_checkpoint" else beats(files)
"""


@pytest.mark.meets("P2")
@pytest.mark.parametrize(
    "point",
    [
        *[f"{SEGMENT_WRITTEN}:{nth}" for nth in (1, 3)],
        *[f"{ENTRY_LINKED}:{nth}" for nth in (1, 2, 5)],
        *[f"{ENTRY_SYNCED}:{nth}" for nth in (1, 4)],
        BEFORE_CHECKPOINT,
    ],
)
def test_a_killed_writer_leaves_a_log_that_goes_on(point: str, place: str) -> None:
    environment = {**os.environ, "HEADRACE_KILL_POINT": point}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, place, point], env=environment, check=False
    )
    assert done.returncode == -9
    files = opened(place)
    if point == BEFORE_CHECKPOINT:
        assert log_making.reading(files).last_entry == 1_000
        log_making.opened(files, term=2)
        assert "0000000003e8.checkpoint.parquet" in files.list("log/shop/index")
        return
    record(files, 2, [])
    check(files, [], whole=True)


def test_nothing_is_left_beside_what_was_stored(place: str, storage: Server) -> None:
    files = opened(place)
    files.prove()
    record(files, 1, [])
    prefix = place.removeprefix(f"s3://{BUCKET}/")
    mine = [key for key in storage.keys(BUCKET) if key.startswith(f"{prefix}/")]
    assert mine
    assert all(key.startswith(f"{prefix}/log/shop/") for key in mine)
