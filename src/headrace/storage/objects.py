"""
Files as objects of a bucket: absent or whole by the storage's own guarantee.

`Bucket` has the operations of an object storage, one method each. Each is atomic and durable by
itself: an object is absent or whole, and a stored object is visible everywhere at once. Unlike on a
disk, a response can be lost: a step that raised `Unanswered` may have taken effect, or may still.
`Objects` implements files with these steps. They are a protocol because `SimulatedBucket` in
`simulation.py` implements them as well, with faults.

`create` depends on a conditional put (`If-None-Match: *`), which rejects one of two writers (R31).
Not every S3-compatible storage honours it, and one that does not would accept both; so `prove`
tries it before a log is written there.

A put whose response was lost may have taken effect, and the retry is then rejected because of our
own object. So the existing object is compared with the data: the bytes of an entry contain its
writer and its term, and no other writer stores the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

import pyarrow as pa

from headrace.errors import AlreadyStored, StorageError, UnsafeStorage
from headrace.storage.disk import Buffer
from headrace.storage.files import Files
from headrace.storage.killpoints import reach

# --- the operations of an object storage ----------------------------------------------------------


class Unanswered(Exception):
    """A step was deferred, or its response is lost: it may have taken effect. Can be retried."""


class Refused(Exception):
    """The storage rejected the step; a retry would not help."""

    def __init__(self, reason: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class Bucket(Protocol):
    """
    Steps on one bucket; a key is the whole name of an object.

    *Order*: a step sees the effects of earlier ones. *Durability*: an object is durable when
    `store` returns. *Failure*: `Unanswered` or `Refused`; nothing is retried here, because only
    the caller can tell its own object from another's. *Threads*: any number.
    """

    def store(self, key: str, data: Buffer, *, new: bool) -> None:
        """Store an object; with `new`, `FileExistsError` if the key exists."""
        ...

    def read(self, key: str) -> bytes:
        """Return all bytes; `FileNotFoundError` if there is no such object."""
        ...

    def size(self, key: str) -> int:
        """Return an object's size; `FileNotFoundError` if there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the parts of all keys after `prefix`, up to the next `/`."""
        ...

    def remove(self, key: str) -> None:
        """Remove an object, if there is one."""
        ...

    def unique(self) -> str:
        """Return a word that no other writer gets."""
        ...

    def rest(self, seconds: float) -> None:
        """Wait before a retry."""
        ...


# --- files on top of these operations -------------------------------------------------------------

RESTS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0)
"""Seconds between retries; they grow, for a storage that is overloaded."""

AT_ONCE = 16
"""Concurrent requests: each mostly waits for the network."""

_PROBE = "probe"

T = TypeVar("T")


class Objects(Files):
    """
    `Files` in a bucket, under a prefix.

    *Durability*: an object is durable and visible everywhere on return, so `settle` and
    `make_folder` have nothing to do. *Failure*: as for `Files`; if there was no response at all,
    the object may appear later. `remove` cannot detect a missing object, and does not raise.
    """

    local = False
    pace = 0.5

    def __init__(self, bucket: Bucket, name: str, prefix: str) -> None:
        self._bucket = bucket
        self._name = name
        self._prefix = prefix.strip("/")

    def within(self, folder: str) -> Objects:
        return Objects(self._bucket, self._name, self._key(folder))

    def prove(self) -> None:
        """
        Create one object twice: raises `UnsafeStorage` unless the second attempt is rejected.

        The object is also listed and read, as a log will be: these are separate permissions.
        """
        probe = self.within(f"{_PROBE}/{self._bucket.unique()}")
        probe.create(_PROBE, b"first")
        try:
            try:
                probe.create(_PROBE, b"second")
            except AlreadyStored:
                found = probe.list(""), probe._read_or_none(_PROBE)
            else:
                raise UnsafeStorage(
                    "This storage ignores If-None-Match: two writers can create the same object",
                    place=self.path(""),
                )
        finally:
            probe.remove(_PROBE)
        if found != ([_PROBE], b"first"):
            raise UnsafeStorage(
                "This storage does not return the object that was just stored", place=self.path("")
            )

    def put(self, name: str, data: Buffer) -> None:
        self._retry_present(name, lambda: self._bucket.store(self._key(name), data, new=False))

    def create(
        self, name: str, data: Buffer, *, settle: bool = True, point: str | None = None
    ) -> None:
        tries = 0

        def store() -> None:
            nonlocal tries
            tries += 1
            self._bucket.store(self._key(name), data, new=True)

        try:
            self._retry_present(name, store)
        except FileExistsError as error:
            # Rejected at the first attempt: the object is another writer's, whatever it contains.
            if tries == 1 or not self._holds(name, data):
                raise AlreadyStored("File already exists", file=self.path(name)) from error
        if point is not None:
            reach(point)

    def settle(self, folder: str) -> None:
        """Do nothing: a name is as durable as its object."""

    def make_folder(self, folder: str) -> None:
        """Do nothing: folders are only prefixes of keys."""

    def read(self, name: str) -> bytes:
        return self._retry(name, lambda: self._bucket.read(self._key(name)))

    def read_many(self, names: Iterable[str]) -> Iterator[bytes | None]:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            yield from threads.map(self._read_or_none, names)

    def reader(self, name: str) -> pa.NativeFile:
        # One request for the whole file: a segment is small, and reading its footer takes two more.
        return pa.BufferReader(self.read(name))

    def list(self, folder: str) -> list[str]:
        key = self._key(folder)
        prefix = f"{key}/" if key else ""
        return sorted(self._retry_present(folder, lambda: self._bucket.list(prefix)))

    def remove(self, name: str) -> None:
        self._retry_present(name, lambda: self._bucket.remove(self._key(name)))

    def remove_many(self, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            # A failure cancels the requests that have not begun.
            for _ in threads.map(self.remove, names):
                pass

    def size(self, name: str) -> int:
        return self._retry(name, lambda: self._bucket.size(self._key(name)))

    def sweep(self, folder: str) -> int:
        """Do nothing: an interrupted write leaves nothing."""
        return 0

    def path(self, name: str) -> str:
        key = self._key(name)
        return f"s3a://{self._name}/{key}" if key else f"s3a://{self._name}"

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._prefix, name) if part)

    def _holds(self, name: str, data: Buffer) -> bool:
        try:
            return self.read(name) == bytes(memoryview(data).cast("B"))
        except FileNotFoundError:
            return False

    def _read_or_none(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def _retry_present(self, name: str, step: Callable[[], T]) -> T:
        """Retry a step that does not need the object to exist."""
        try:
            return self._retry(name, step)
        except FileNotFoundError as error:
            raise StorageError(
                "The object storage reports a missing object for a request that needs none",
                file=self.path(name),
            ) from error

    def _retry(self, name: str, step: Callable[[], T]) -> T:
        """Do a step; retry it while there is no response, and translate its errors."""
        with self._translated(name):
            for rest in RESTS:
                try:
                    return step()
                except Unanswered:
                    self._bucket.rest(rest)
            return step()

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            raise StorageError(
                "The object storage rejected the request",
                file=self.path(name),
                reason=error.reason,
                remedy=error.remedy or None,
            ) from error
        except Unanswered as error:
            raise StorageError(
                "The object storage does not respond",
                file=self.path(name),
                reason=str(error),
                remedy="Check the network and the storage. Recorded changes are intact.",
            ) from error
