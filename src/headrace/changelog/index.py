"""
The index of a log: numbered entries, one file each, and checkpoints and states to load it fast.

`index/<entry:012x>.json` is created exclusively, so that of two writers one does not get the
number and stops (R31). Numbers have no gaps: a missing one in the middle is a lost file, and is
reported by name. There is no torn end to repair: an entry is absent or complete (invariant 5).

After every thousandth entry a checkpoint, `<entry:012x>.checkpoint.parquet`, repeats the
thousand up to its number, byte for byte. It is only a shortcut: a lost or damaged one costs a
thousand small reads and nothing else.

From time to time a state is written instead, `<entry:012x>.state.json`: the whole history up to
its number, which is the steps that were not pruned and the tables, and nothing else. A log is
opened from the newest state and needs no entry before it: a long log opens quickly, and a pruned
one opens without its first entries. Two states are kept, with all entries since the older one, so
that damage to one of them costs nothing but reads. Earlier entries are deleted, the oldest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headrace.changelog.entries import (
    AnyEntry,
    Flush,
    Gap,
    KnownSchema,
    KnownTable,
    RebaselineRequired,
    State,
    decode,
    encode,
)
from headrace.changelog.history import (
    BaselineWindow,
    Counts,
    History,
    LogTable,
    TransactionSnapshot,
    as_columns,
    as_table,
    pieces_of,
)
from headrace.changelog.position import Position
from headrace.changelog.segment import checksum, parquet_bytes, parquet_rows
from headrace.errors import AlreadyStored, CorruptIndex, LostLog, PositionExpired, UnknownFormat
from headrace.storage.files import Files
from headrace.storage.killpoints import BEFORE_CHECKPOINT, ENTRY_LINKED, ENTRY_SYNCED, reach

# --- a history as a state, and back ---------------------------------------------------------------


def state_of(history: History, head: dict[str, Any]) -> State:
    """Return a history as the state at an entry; `head` has the fields of all entries."""
    return State(
        **{**head, "epoch": history.epoch, "term": history.term},
        end=str(history.end),
        lineage=history.lineage,
        origin=history.origin,
        first_origin=history.first_origin,
        source=history.source_position,
        high_time=history.high_time,
        baselines=history.baselines,
        counts=(history.counts.rows, history.counts.bytes, history.counts.flushes),
        floor=history.floor,
        gap=history.gap,
        tables=tuple(_table(name, known) for name, known in history.tables.items()),
        notes=dict(history.notes),
        markers=tuple(history.markers.items()),
        steps=tuple(history.steps),
        retired=tuple(history.retired),
    )


def history_of(state: State) -> History:
    """Return the history that a state was written from."""
    history = History()
    history.epoch, history.lineage, history.term = state.epoch, state.lineage, state.term
    history.origin, history.first_origin = state.origin, state.first_origin
    history.stand_at(state.end, state.source)
    history.high_time, history.baselines = state.high_time, state.baselines
    history.counts = Counts(*state.counts)
    history.floor, history.gap = state.floor, state.gap
    history.notes, history.markers = dict(state.notes), dict(state.markers)
    history.retired = list(state.retired)
    history.steps = list(state.steps)
    for table in state.tables:
        history.tables[table.table] = known = _known(table)
        files = {f.name: f for each in known.baselines.values() for f in each.files}
        history.size += sum(file.bytes for file in files.values())
    for step in history.steps:
        match step:
            case Flush():
                history.lasts.append(step.last)
                history.size += sum(file.bytes for file in step.files)
                for name, piece in pieces_of(step):
                    history.known(name).pieces.append(piece)
            case Gap():
                history.lasts.append(step.at)
                history.gaps.append(step)
                if history.gap is not None and step.entry == history.gap.entry:
                    history.gap = step
            case RebaselineRequired():
                history.lasts.append(step.at)
                history.known(step.table).rebaselines.append(step)
            case _:
                history.lasts.append(step.last)
    return history


def _table(name: str, known: LogTable) -> KnownTable:
    return KnownTable(
        table=name,
        table_id=known.table_id,
        schemas=tuple(
            KnownSchema(
                number, as_columns(schema), schema.key, schema.whole_before, number in known.late
            )
            for number, schema in known.schemas.items()
        ),
        latest=known.latest,
        current=known.current,
        missing=known.missing,
        rebaseline_required=known.rebaseline_required,
        usable=known.baseline.baseline if known.baseline else 0,
        baselines=tuple(known.baselines.values()),
        windows=tuple(
            (number, str(window.first), str(window.last), str(window.snapshot))
            for number, window in known.windows.items()
        ),
    )


def _known(table: KnownTable) -> LogTable:
    baselines = {each.baseline: each for each in table.baselines}
    return LogTable(
        table_id=table.table_id,
        schemas={
            each.schema_id: as_table(table.table, each.columns, each.key, each.whole_before)
            for each in table.schemas
        },
        latest=table.latest,
        current=table.current,
        # An older state has no such flag: then those that must be late.
        late={
            each.schema_id for each in table.schemas if each.late or each.schema_id > table.current
        },
        missing=table.missing,
        rebaseline_required=table.rebaseline_required,
        baseline=baselines.get(table.usable),
        baselines=baselines,
        windows={
            number: BaselineWindow(
                Position.parse(first), Position.parse(last), TransactionSnapshot.parse(snapshot)
            )
            for number, first, last, snapshot in table.windows
        },
    )


# --- entries and checkpoints ----------------------------------------------------------------------

CHECKPOINT_EVERY = 1_000
"""Entries per checkpoint: one read instead of a thousand, and never more than 999 left."""

STATE_SHARE = 4
"""A state is due once its steps, divided by this, are no more than the entries since the last."""

_STATE = re.compile(r"([0-9a-f]{12})\.state\.json")
_ENTRY = re.compile(r"([0-9a-f]{12})\.json")
_CHECKPOINT = re.compile(r"([0-9a-f]{12})\.checkpoint\.parquet")
_CHECKSUM_KEY = b"headrace.checksum"


class LogIndex:
    """
    The entries of one log, in order.

    `files` is rooted at the index's folder. *Threads*: one at a time.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._recent: list[bytes] = []
        """The entries since the last checkpoint, for the next one."""
        self.last = 0
        """The number of the newest known entry; 0 if there is none."""
        self.missing_checkpoints: tuple[int, ...] = ()
        """Checkpoints that are missing or cannot be read."""
        self.states: list[int] = []
        """The numbers that have a good state, as far as is known, in order."""
        self._spoilt: list[int] = []
        """The numbers whose state cannot be read."""
        self._oldest = 1
        """The number of the oldest entry that may exist."""

    def history(self, upto: int | None = None) -> History:
        """
        Return the sum of the log's entries: `CorruptIndex` if one is missing.

        With `upto`, no entry beyond that number is read; a state beyond it is: it is durable.
        """
        names = self._listed()
        history = History()
        unknown: UnknownFormat | None = None
        for number in sorted(_numbers(_STATE, names), reverse=True):
            try:
                state = self._state(number)
            except UnknownFormat as error:
                # Damaged, or of a later version: an older state and the entries since give the
                # same, and each of those entries is checked.
                state, unknown = None, unknown or error
            if state is not None:
                history, self.last = history_of(state), number
                break
        found = sorted(_numbers(_STATE, names))
        self.states = [number for number in found if number <= self.last]
        self._spoilt = [number for number in found if number > self.last]
        self._oldest = min(_numbers(_ENTRY, names), default=1)
        try:
            for entry in self._load(names, upto):
                history.take(entry)
        except CorruptIndex as error:
            raise unknown or error from None
        return history

    def load(self) -> Iterator[AnyEntry]:
        """Yield all entries from the first: `CorruptIndex` if one is missing."""
        return self._load(self._listed())

    def _listed(self) -> list[str]:
        names = self._files.list("")
        if names:
            # A process that was killed before it synced the folder has left names that are not
            # durable. What is built on them must not survive them.
            self._files.settle("")
        return names

    def _load(self, names: list[str], upto: int | None = None) -> Iterator[AnyEntry]:
        """Yield the entries after the last known one."""
        entries = _numbers(_ENTRY, names)
        checkpoints = _numbers(_CHECKPOINT, names)
        end = max(entries | checkpoints, default=0)
        if upto is not None:
            end = min(end, upto)
        missing = []
        begin = self.last + CHECKPOINT_EVERY - self.last % CHECKPOINT_EVERY
        for upto in range(begin, end + 1, CHECKPOINT_EVERY):
            data = self._checkpoint(upto) if upto in checkpoints else None
            if data is None:
                data = list(self._entries(self.last + 1, upto))
                missing.append(upto)
            yield from self._take(data)
        self.missing_checkpoints = tuple(missing)
        yield from self._take(self._entries(self.last + 1, end))

    def refresh(self, upto: int | None = None) -> Iterator[AnyEntry]:
        """Yield the new entries; with `upto`, those up to that number, which must exist."""
        while upto is None or self.last < upto:
            try:
                data = self._files.read(_entry_name(self.last + 1))
            except FileNotFoundError:
                self._not_expired(known=upto is not None)
                if upto is not None:
                    raise self._missing(self.last + 1) from None
                return
            yield from self._take([data])

    def append(self, entry: AnyEntry) -> None:
        """Create the next entry, durably: `LostLog` if another writer has taken its number."""
        data = encode(entry)
        name = _entry_name(entry.entry)
        self._require_recent(entry)
        try:
            self._files.create(name, data, point=ENTRY_LINKED)
        except AlreadyStored as error:
            raise LostLog(
                "Another writer took the next number of the index",
                file=self._files.path(name),
                writer=entry.writer,
                term=entry.term,
            ) from error
        try:
            self._require_recent(entry)
        except LostLog:
            self._remove([name])  # otherwise a reader that far back would take it for the next
            raise
        reach(ENTRY_SYNCED)
        self._note(entry.entry, data)

    def _require_recent(self, entry: AnyEntry) -> None:
        """Raise `LostLog` if the next number is free only because its entry was deleted."""
        try:
            # Entries are deleted the oldest first, long after they were written.
            if self.last:
                self._files.size(_entry_name(self.last))
        except FileNotFoundError:
            raise LostLog(
                "Other writers of this log are far ahead",
                file=self._files.path(_entry_name(entry.entry)),
                writer=entry.writer,
                term=entry.term,
            ) from None

    def checkpoint(self, history: History | None = None) -> None:
        """Write the checkpoint, or the state of `history`, that is due at the newest entry."""
        if not self.last or self.last % CHECKPOINT_EVERY:
            return
        reach(BEFORE_CHECKPOINT)
        since = self.last - (self.states[-1] if self.states else 0)
        if history is not None and since * STATE_SHARE >= len(history.steps):
            head = {"entry": self.last, "writer": "", "term": 0, "epoch": 0}
            self._files.put(_state_name(self.last), encode(state_of(history, head)))
            self.states.append(self.last)
        else:
            self._write(self.last, self._recent)

    def forget(self, upto: int, most: int) -> int:
        """
        Remove the files of up to `most` entries at or before `upto`; return how many are left.

        `upto` is a state that has a successor: opening the log does not read them.
        """
        assert upto in self.states[:-1]
        stop = min(upto, self._oldest + most - 1)
        while self._oldest <= stop:
            # One by one: a writer checks whether the previous entry exists, to find out whether
            # it is late.
            names = [_entry_name(self._oldest)]
            if self._oldest % CHECKPOINT_EVERY == 0:
                names.append(_checkpoint_name(self._oldest))
            self._remove(names)
            self._oldest += 1
        if self._oldest > upto:
            old = [number for number in (*self.states, *self._spoilt) if number < upto]
            self._files.remove_many([_state_name(number) for number in old])
            self.states = [number for number in self.states if number >= upto]
            self._spoilt = [number for number in self._spoilt if number >= upto]
        return upto + 1 - self._oldest

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._files.remove(name)

    def write_missing_checkpoints(self) -> None:
        """Write the checkpoints that `load` found missing."""
        for upto in self.missing_checkpoints:
            self._write(upto, list(self._entries(upto - CHECKPOINT_EVERY + 1, upto)))
        self.missing_checkpoints = ()

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
            raise CorruptIndex(
                "Index entry does not have the number of its file", file=path, number=entry.entry
            )
        return entry

    def _entries(self, first: int, last: int) -> Iterator[bytes]:
        """Yield the bytes of these entries: `CorruptIndex` at one that is missing."""
        numbers = range(first, last + 1)
        # The storage decides whether reading many at once is faster.
        found = self._files.read_many(map(_entry_name, numbers))
        for number, data in zip(numbers, found, strict=True):
            if data is None:
                raise self._missing(number)
            yield data

    def _not_expired(self, *, known: bool) -> None:
        """
        Raise `PositionExpired` if the next entry is missing because it was deleted long ago.

        `known` means that it existed: only then is a listing worth its cost.
        """
        try:
            # Entries are deleted the oldest first: the last one would be gone with the next one.
            there = bool(self.last)
            if there:
                self._files.size(_entry_name(self.last))
        except FileNotFoundError:
            pass
        else:
            # The last one may have been written late, by a superseded writer.
            look = known or not there
            if not look or max(_numbers(_STATE, self._files.list("")), default=0) <= self.last:
                return
        raise PositionExpired(
            "The index does not reach back to this entry",
            file=self._files.path(_entry_name(self.last + 1)),
            remedy="Open the log again. A reader must follow it more often than once per lease.",
        )

    def _state(self, number: int) -> State | None:
        """Return a state, or None if it is damaged."""
        try:
            state = decode(self._files.read(_state_name(number)))
        except (FileNotFoundError, CorruptIndex):
            return None
        return state if isinstance(state, State) and state.entry == number else None

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
        """Return the entries of a checkpoint, or None if it is damaged."""
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


def _state_name(number: int) -> str:
    return f"{number:012x}.state.json"


def _checkpoint_name(number: int) -> str:
    return f"{number:012x}.checkpoint.parquet"


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> set[int]:
    return {int(match[1], 16) for name in names if (match := pattern.fullmatch(name))}
