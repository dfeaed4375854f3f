"""
The index: numbered entries, one file each, and the checkpoints that make it quick to load.

`index/<entry:012x>.json` is created exclusively, so of two writers one loses the number
and stops (R31). Numbers have no gaps: a missing one in the middle is a lost file, and is
named. There is no torn end to mend, because an entry is absent or whole (invariant 5).

After every thousandth entry a checkpoint, `<entry:012x>.checkpoint.parquet`, repeats the
thousand up to its number, byte for byte. It is only a shortcut: a lost or damaged one
costs a thousand small reads and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pyarrow as pa

from headrace.changelog.entry import AnyEntry, decode, encode
from headrace.changelog.segment import checksum, parquet_bytes, parquet_rows
from headrace.errors import AlreadyStored, CorruptIndex, LostLog, UnknownFormat
from headrace.storage.files import Files
from headrace.storage.points import BEFORE_CHECKPOINT, ENTRY_LINKED, ENTRY_SYNCED, reach

CHECKPOINT_EVERY = 1_000
"""Entries a checkpoint covers: one read instead of a thousand, and never more than 999 left."""

_ENTRY = re.compile(r"([0-9a-f]{12})\.json")
_CHECKPOINT = re.compile(r"([0-9a-f]{12})\.checkpoint\.parquet")
_CHECKSUM_KEY = b"headrace.checksum"


class Index:
    """
    The entries of one log, in order.

    `files` is rooted at the index's folder. *Threads*: one at a time.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._recent: list[bytes] = []
        """What the next checkpoint will hold: the entries since the last one."""
        self.last = 0
        """The number of the newest entry known; 0 where there is none."""
        self.owed: tuple[int, ...] = ()
        """Checkpoints that should be there and are not, or cannot be read."""

    def load(self) -> Iterator[AnyEntry]:
        """Yield every entry there is, from the first: `CorruptIndex` where one is missing."""
        names = self._files.list("")
        entries = _numbers(_ENTRY, names)
        checkpoints = _numbers(_CHECKPOINT, names)
        end = max(entries | checkpoints, default=0)
        if end:
            # A process killed before it synced the folder has left names that are not
            # durable. What is built on them must not outlive them.
            self._files.settle("")
        owed = []
        for upto in range(CHECKPOINT_EVERY, end + 1, CHECKPOINT_EVERY):
            first = upto - CHECKPOINT_EVERY + 1
            data = self._checkpoint(upto) if upto in checkpoints else None
            if data is None:
                data = [self._entry(number) for number in range(first, upto + 1)]
                owed.append(upto)
            yield from self._take(data)
        self.owed = tuple(owed)
        yield from self._take(self._entry(number) for number in range(self.last + 1, end + 1))

    def refresh(self, upto: int | None = None) -> Iterator[AnyEntry]:
        """Yield the entries that appeared since; with `upto`, those to that number, which exist."""
        while upto is None or self.last < upto:
            try:
                data = self._files.read(_entry_name(self.last + 1))
            except FileNotFoundError:
                if upto is not None:
                    raise self._missing(self.last + 1) from None
                return
            yield from self._take([data])

    def append(self, entry: AnyEntry) -> None:
        """Create the next entry, durably: `LostLog` where another writer has taken its number."""
        data = encode(entry)
        name = _entry_name(entry.entry)
        try:
            self._files.create(name, data, point=ENTRY_LINKED)
        except AlreadyStored as error:
            raise LostLog(
                "Another writer took the next number",
                file=self._files.path(name),
                writer=entry.writer,
                term=entry.term,
            ) from error
        reach(ENTRY_SYNCED)
        self._note(entry.entry, data)

    def checkpoint(self) -> None:
        """Write the checkpoint that is due at the newest entry, if one is."""
        if self.last and self.last % CHECKPOINT_EVERY == 0:
            reach(BEFORE_CHECKPOINT)
            self._write(self.last, self._recent)

    def mend(self) -> None:
        """Write the checkpoints found missing by `load`."""
        for upto in self.owed:
            self._write(
                upto, [self._entry(n) for n in range(upto - CHECKPOINT_EVERY + 1, upto + 1)]
            )
        self.owed = ()

    def _note(self, number: int, data: bytes) -> None:
        if self.last % CHECKPOINT_EVERY == 0:
            self._recent = []
        self._recent.append(data)
        self.last = number

    def _take(self, entries: Iterable[bytes]) -> Iterator[AnyEntry]:
        for data in entries:
            number = self.last + 1
            entry = self._decoded(number, data)
            self._note(number, data)
            yield entry

    def _decoded(self, number: int, data: bytes) -> AnyEntry:
        path = self._files.path(_entry_name(number))
        try:
            entry = decode(data)
        except (UnknownFormat, CorruptIndex) as error:
            error.facts = {"file": path, **error.facts}
            raise
        if entry.entry != number:
            raise CorruptIndex("Index entry has another number", file=path, number=entry.entry)
        return entry

    def _entry(self, number: int) -> bytes:
        try:
            return self._files.read(_entry_name(number))
        except FileNotFoundError:
            raise self._missing(number) from None

    def _missing(self, number: int) -> CorruptIndex:
        path = self._files.path(_entry_name(number))
        return CorruptIndex("Index entry is missing", file=path)

    def _write(self, upto: int, entries: list[bytes]) -> None:
        rows = pa.table(
            {
                "entry": pa.array(range(upto - len(entries) + 1, upto + 1), pa.int64()),
                "data": pa.array(entries, pa.binary()),
            }
        )
        facts = {_CHECKSUM_KEY: checksum(b"".join(entries)).encode()}
        self._files.put(_checkpoint_name(upto), parquet_bytes(rows, facts, compression="zstd"))

    def _checkpoint(self, upto: int) -> list[bytes] | None:
        """Return the entries of a checkpoint, or None where it cannot be trusted."""
        try:
            rows, facts = parquet_rows(self._files.read(_checkpoint_name(upto)))
            entries: list[bytes] = rows["data"].to_pylist()
        except (FileNotFoundError, KeyError, ValueError, OSError, pa.ArrowException, UnknownFormat):
            return None
        whole = len(entries) == CHECKPOINT_EVERY and None not in entries
        if not whole or facts.get(_CHECKSUM_KEY) != checksum(b"".join(entries)).encode():
            return None
        return entries


def _entry_name(number: int) -> str:
    return f"{number:012x}.json"


def _checkpoint_name(number: int) -> str:
    return f"{number:012x}.checkpoint.parquet"


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> set[int]:
    return {int(match[1], 16) for name in names if (match := pattern.fullmatch(name))}
