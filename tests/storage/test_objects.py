"""Objects of a bucket as files: what is tried again, what is told apart, what is refused."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from headrace.errors import AlreadyStored, StorageError, UnsafeStorage
from headrace.storage.disk import Buffer
from headrace.storage.objects import AT_ONCE, RESTS, Objects, Refused, Unanswered
from headrace.storage.simulation import SimulatedBucket
from tests.support.patience import patience


class Scripted(SimulatedBucket):
    """A bucket whose next stores fail as they are told to: before their effect, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: deque[tuple[bool, Exception]] = deque()

    def store(self, key: str, data: Buffer, *, new: bool) -> None:
        if not self.fates:
            super().store(key, data, new=new)
            return
        effect, error = self.fates.popleft()
        if effect:
            super().store(key, data, new=new)
        raise error


LOST = (True, Unanswered("ReadTimeoutError"))
PUT_OFF = (False, Unanswered("ConditionalRequestConflict"))


@pytest.fixture
def bucket() -> Scripted:
    return Scripted()


@pytest.fixture
def files(bucket: Scripted) -> Objects:
    return Objects(bucket, "bucket", "shop")


@pytest.mark.meets("R31")
def test_our_own_object_behind_a_lost_answer_is_ours(files: Objects, bucket: Scripted) -> None:
    bucket.fates.extend([LOST, PUT_OFF])
    files.create("a", b"mine")
    assert files.read("a") == b"mine"
    assert bucket.rested == pytest.approx(sum(RESTS[:2]))


@pytest.mark.meets("R31")
def test_anothers_object_behind_an_answer_that_stayed_out_is_not_ours(
    files: Objects, bucket: Scripted
) -> None:
    bucket.fates.append(PUT_OFF)
    bucket.objects["shop/a"] = b"another's"
    with pytest.raises(AlreadyStored):
        files.create("a", b"mine")


@pytest.mark.meets("R31")
def test_the_same_bytes_of_another_are_not_ours_without_a_lost_answer(
    files: Objects, bucket: Scripted
) -> None:
    bucket.objects["shop/a"] = b"same"
    with pytest.raises(AlreadyStored):
        files.create("a", b"same")


def test_tries_end_after_a_while_with_what_to_do(files: Objects, bucket: Scripted) -> None:
    bucket.fates.extend([PUT_OFF] * (len(RESTS) + 1))
    with pytest.raises(StorageError, match="does not respond") as caught:
        files.put("a", b"")
    assert caught.value.facts["reason"] == "ConditionalRequestConflict"
    assert caught.value.facts["file"] == "s3a://bucket/shop/a"
    assert "Check the network and the storage" in caught.value.remedy
    assert not bucket.fates


def test_what_is_refused_is_not_tried_again(files: Objects, bucket: Scripted) -> None:
    bucket.fates.append((False, Refused("AccessDenied", "Allow it.")))
    with pytest.raises(StorageError, match="rejected the request") as caught:
        files.create("a", b"")
    assert (caught.value.facts["reason"], caught.value.remedy) == ("AccessDenied", "Allow it.")
    assert bucket.rested == 0


@pytest.mark.meets("R31")
def test_a_storage_that_heeds_no_condition_is_refused() -> None:
    bucket = SimulatedBucket(conditions=False)
    with pytest.raises(UnsafeStorage) as caught:
        Objects(bucket, "bucket", "shop").prove()
    assert caught.value.facts["place"] == "s3a://bucket/shop"
    assert "If-None-Match" in caught.value.remedy
    assert bucket.objects == {}, "what was tried is taken away"


@pytest.mark.parametrize("step", ["list", "put", "create", "remove"])
def test_nothing_is_missing_to_who_asked_for_no_object(step: str) -> None:
    class Confused(SimulatedBucket):
        def store(self, key: str, data: Buffer, *, new: bool) -> None:
            raise FileNotFoundError(key)

        def remove(self, key: str) -> None:
            raise FileNotFoundError(key)

        def list(self, prefix: str) -> list[str]:
            raise FileNotFoundError(prefix)

    files = Objects(Confused(), "bucket", "shop")
    more = (b"",) if step in ("create", "put") else ()
    with pytest.raises(StorageError):
        getattr(files, step)("a", *more)


def test_many_are_removed_at_once() -> None:
    together = threading.Barrier(AT_ONCE)

    class Slow(SimulatedBucket):
        def remove(self, key: str) -> None:
            # Broken, and the test with it, where one waits for the one before.
            together.wait(patience())
            super().remove(key)

    bucket = Slow()
    files = Objects(bucket, "bucket", "shop")
    names = [f"log/{number}" for number in range(2 * AT_ONCE)]
    for name in names:
        files.create(name, b"")
    files.remove_many(names)
    assert bucket.objects == {}


@pytest.mark.slow
def test_a_storage_that_does_not_answer_is_not_asked_for_each_of_many() -> None:
    class Away(SimulatedBucket):
        def remove(self, key: str) -> None:
            self.steps.append(("remove", key))
            raise Refused("AccessDenied")

    bucket = Away()
    with pytest.raises(StorageError):
        Objects(bucket, "bucket", "shop").remove_many(map(str, range(10_000)))
    assert len(bucket.steps) < 10_000


@pytest.mark.parametrize("right", ["list", "read"])
def test_a_storage_that_may_only_be_written_to_is_refused(right: str) -> None:
    class Closed(SimulatedBucket):
        def list(self, prefix: str) -> list[str]:
            if right == "list":
                raise Refused("AccessDenied", "Allow it.")
            return super().list(prefix)

        def read(self, key: str) -> bytes:
            if right == "read":
                raise Refused("AccessDenied", "Allow it.")
            return super().read(key)

    bucket = Closed()
    with pytest.raises(StorageError, match="rejected the request"):
        Objects(bucket, "bucket", "shop").prove()
    assert bucket.objects == {}
