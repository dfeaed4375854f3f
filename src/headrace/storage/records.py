"""
Numbered records, created exclusively: what a store of dead letters is kept in.

`Records` is all that such a store needs of a storage: to list numbers, to create the next one if
nobody has, to read and to remove. `FileRecords` does it with files, in a folder of this machine or
under a prefix of a bucket; `MemoryRecords` is for tests and for targets that are rebuilt at every
start. Other packages provide more, as a `RecordStorage`, by the entry point group
`headrace.dead_letter_stores`; `headrace.testing.contracts.RecordsContract` tests them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from threading import Lock
from typing import Protocol, runtime_checkable

from headrace.errors import AlreadyStored
from headrace.storage.files import Files


class Records(Protocol):
    """
    Numbered records of one owner: bytes under numbers from 1 to 2^48 - 1.

    *Exclusive*: of several that create the same number, one does; the others get `AlreadyStored`,
    in other processes and on other machines, too (R31). Only one with the same bytes may be taken
    for the first: over a network, a writer may not know whether its own attempt took effect. A
    record never changes.
    *Durability*: when `create` returns, the record is durable. It is absent or whole at all times,
    and is listed and read at once. What `remove` removed may come back after a crash.
    *Failure*: `StorageError` or `StorageFull`; a record whose creation failed may exist or not.
    Before such a storage is read again, `settle` is called. *Threads*: any number.
    *Emptiness*: nothing is created before the first record, and reading never creates anything.
    """

    def numbers(self) -> list[int]:
        """Return the numbers of all records, ascending."""
        ...

    def create(self, number: int, data: bytes) -> None:
        """Store a record that must not exist: raises `AlreadyStored` if it does."""
        ...

    def read(self, number: int) -> bytes:
        """Return a record's bytes; `FileNotFoundError` if there is none."""
        ...

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove records; those that are missing are skipped."""
        ...

    def settle(self) -> None:
        """Make everything that `numbers` lists durable, and remove what interrupted writes left."""
        ...

    def path(self, number: int) -> str:
        """Return where a record is, for messages; without secrets."""
        ...


@runtime_checkable
class RecordStorage(Protocol):
    """
    A place for the records of several owners, as configured.

    `records` is called when a pipeline starts, and may raise our errors. It is called again for the
    same name after a restart, and then returns the same records, unless the storage is volatile.
    """

    @property
    def type(self) -> str:
        """Its type in a configuration: `s3`."""
        ...

    @property
    def location(self) -> str:
        """Where it is, as text without secrets; another location is another storage."""
        ...

    @property
    def volatile(self) -> bool:
        """Whether records are lost when the process ends."""
        ...

    def records(self, name: str) -> Records:
        """Return the records of the owner `name`, a name that can be one of a folder."""
        ...


class FileRecords:
    """`Records` as files `<number in hexadecimal>.<ending>` of one folder, or prefix."""

    def __init__(self, files: Files, ending: str) -> None:
        self._files = files
        self._ending = ending
        self._name = re.compile(rf"([0-9a-f]{{12}})\.{re.escape(ending)}")

    def numbers(self) -> list[int]:
        found = (self._name.fullmatch(name) for name in self._files.list(""))
        return sorted(int(match[1], 16) for match in found if match)

    def create(self, number: int, data: bytes) -> None:
        self._files.make_folder("")
        self._files.create(self._file(number), data)

    def read(self, number: int) -> bytes:
        return self._files.read(self._file(number))

    def remove(self, numbers: Iterable[int]) -> None:
        self._files.remove_many(map(self._file, numbers))

    def settle(self) -> None:
        # A process that was killed before it synced the folder leaves names that are not durable.
        self._files.settle("")
        self._files.sweep("")

    def path(self, number: int) -> str:
        return self._files.path(self._file(number))

    def _file(self, number: int) -> str:
        return f"{number:012x}.{self._ending}"


class MemoryRecords:
    """`Records` in memory: lost with the object."""

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}
        self._lock = Lock()

    def numbers(self) -> list[int]:
        with self._lock:
            return sorted(self._records)

    def create(self, number: int, data: bytes) -> None:
        with self._lock:
            if self._records.setdefault(number, data) is not data:
                raise AlreadyStored("Record already exists", file=self.path(number))

    def read(self, number: int) -> bytes:
        with self._lock:
            if number not in self._records:
                raise FileNotFoundError(self.path(number))
            return self._records[number]

    def remove(self, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                self._records.pop(number, None)

    def settle(self) -> None:
        """Do nothing: there is nothing more durable than this."""

    def path(self, number: int) -> str:
        return f"memory:{number}"
