"""
Files as objects of a bucket: absent or whole by the storage's own guarantee.

`Bucket` is the steps an object storage offers, one method each. Each is atomic and durable by
itself: an object is absent or whole, and what was stored is visible everywhere at once. What is
new compared with a disk is the answer that gets lost: a step that raised `Unanswered` may have
taken effect, or may still. `Objects` makes files of these steps; `SimulatedBucket` in
`simulation.py` plays what goes wrong in them, which is why they are a protocol.

`create` rests on one thing: a conditional put (`If-None-Match: *`), which of two writers refuses
one (R31). Not every storage that speaks S3 keeps to it, and one that does not would accept both;
so `prove` tries it before a log is written there.

A put whose answer was lost may have taken effect, and the next try of it is then refused because
of our own object. So what is found there is compared with what was to be stored: the bytes of an
entry hold its writer and its term, and no other writer stores the same.
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

# --- the steps of an object storage ---------------------------------------------------------------


class Unanswered(Exception):
    """A step was put off, or its answer is lost: it may have taken effect. Worth another try."""


class Refused(Exception):
    """The storage does not do this, and will not the next time either."""

    def __init__(self, reason: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class Bucket(Protocol):
    """
    Steps on one bucket; a key is the whole name of an object.

    *Order*: a step sees what those before it did. *Durability*: what `store` put is durable when
    it returns. *Failure*: `Unanswered` or `Refused`; nothing is tried twice in here, because only
    the caller can tell its own object from another's. *Threads*: any number.
    """

    def store(self, key: str, data: Buffer, *, new: bool) -> None:
        """Store an object; with `new`, `FileExistsError` where there is one of that key."""
        ...

    def read(self, key: str) -> bytes:
        """Return all bytes; `FileNotFoundError` where there is no such object."""
        ...

    def size(self, key: str) -> int:
        """Return an object's size; `FileNotFoundError` where there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return what follows `prefix` up to the next `/` in all keys that begin with it."""
        ...

    def remove(self, key: str) -> None:
        """Remove an object, if there is one."""
        ...

    def unique(self) -> str:
        """Return a word that nobody else who writes here is given."""
        ...

    def rest(self, seconds: float) -> None:
        """Wait before another try."""
        ...


# --- files made of these steps --------------------------------------------------------------------

RESTS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0)
"""Seconds between tries: a storage that is overloaded asks for growing ones."""

AT_ONCE = 16
"""Objects read at a time: each is a request that mostly waits."""

_PROBE = "probe"

T = TypeVar("T")


class Objects(Files):
    """
    `Files` in a bucket, under a prefix.

    *Durability*: what is stored is durable and seen everywhere on return, so `settle` and
    `make_folder` have nothing to do. *Failure*: as of `Files`; where no answer came at all, the
    object may appear later. `remove` cannot tell a missing object, and does not raise for it.
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
        Create one object twice, the second time in vain: `UnsafeStorage` where it is not.

        It is also listed and read, as a log will be: the rights to that are others.
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
                    "This storage lets two writers create one object", place=self.path("")
                )
        finally:
            probe.remove(_PROBE)
        if found != ([_PROBE], b"first"):
            raise UnsafeStorage("This storage does not show what it stored", place=self.path(""))

    def put(self, name: str, data: Buffer) -> None:
        self._present(name, lambda: self._bucket.store(self._key(name), data, new=False))

    def create(
        self, name: str, data: Buffer, *, settle: bool = True, point: str | None = None
    ) -> None:
        tries = 0

        def store() -> None:
            nonlocal tries
            tries += 1
            self._bucket.store(self._key(name), data, new=True)

        try:
            self._present(name, store)
        except FileExistsError as error:
            # Refused at the first try, it is another's, whatever it holds.
            if tries == 1 or not self._holds(name, data):
                raise AlreadyStored("File exists", file=self.path(name)) from error
        if point is not None:
            reach(point)

    def settle(self, folder: str) -> None:
        """Do nothing: a name is as durable as its object."""

    def make_folder(self, folder: str) -> None:
        """Do nothing: folders are no more than what keys begin with."""

    def read(self, name: str) -> bytes:
        return self._tried(name, lambda: self._bucket.read(self._key(name)))

    def read_many(self, names: Iterable[str]) -> Iterator[bytes | None]:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            yield from threads.map(self._read_or_none, names)

    def reader(self, name: str) -> pa.NativeFile:
        # One request for all of it: a segment is small, and its end alone would be another two.
        return pa.BufferReader(self.read(name))

    def list(self, folder: str) -> list[str]:
        key = self._key(folder)
        prefix = f"{key}/" if key else ""
        return sorted(self._present(folder, lambda: self._bucket.list(prefix)))

    def remove(self, name: str) -> None:
        self._present(name, lambda: self._bucket.remove(self._key(name)))

    def remove_many(self, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            # What fails calls off those that have not begun.
            for _ in threads.map(self.remove, names):
                pass

    def size(self, name: str) -> int:
        return self._tried(name, lambda: self._bucket.size(self._key(name)))

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

    def _present(self, name: str, step: Callable[[], T]) -> T:
        """Do a step that needs no object to be there, so that none can be missing."""
        try:
            return self._tried(name, step)
        except FileNotFoundError as error:
            raise StorageError(
                "The object storage misses what it was not asked for", file=self.path(name)
            ) from error

    def _tried(self, name: str, step: Callable[[], T]) -> T:
        """Do a step, again while its answer stays out, and tell refusals as our own errors."""
        with self._refusals(name):
            for rest in RESTS:
                try:
                    return step()
                except Unanswered:
                    self._bucket.rest(rest)
            return step()

    @contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            raise StorageError(
                "The object storage refused",
                file=self.path(name),
                reason=error.reason,
                remedy=error.remedy or None,
            ) from error
        except Unanswered as error:
            raise StorageError(
                "The object storage does not answer",
                file=self.path(name),
                reason=str(error),
                remedy="Check the way to it, and its state; what was recorded is intact.",
            ) from error
