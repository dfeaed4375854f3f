"""
The entries of the index, as they are on disk.

Only an entry makes anything visible: a segment that no entry names does not exist.
Entries are numbered without gaps and created exclusively, each with its writer's id and
term, so that of two writers one does not get a number and stops (R31). Each is a line of
JSON that ends with a checksum of all before it, and the format's number.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec
import xxhash

from headrace.changelog.position import Position
from headrace.errors import CorruptIndex, UnknownFormat

FORMAT = 1
"""The format number in every file of the log; a file with an unknown one is rejected."""


class File(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One segment, with what a planner needs to know before reading it."""

    name: str
    """Its name in the segments folder: hex digits and ids only."""

    table: str
    schema: int
    """The schema entry it was written with, by its `schema_id`."""

    rows: int
    bytes: int
    checksum: str
    """`xxh3:` and 16 hex digits over all bytes of the file."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    key_changes: int = 0
    """Updates whose key differs between the images: only these need an old key downstream."""

    unsent: int = 0
    """Changes with a column that the source did not send, named in `_unsent` (R21)."""

    marked: int = 0
    """Changes with a value that its column cannot hold; `_exact` has its text (R23f)."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", kw_only=True):
    """The fields of all entries."""

    entry: int
    """Its number, from 1, without gaps."""

    writer: str
    term: int
    epoch: int
    format: int = FORMAT


class Flush(Entry, frozen=True, tag="flush", omit_defaults=True, kw_only=True):
    """Complete commits, made visible together."""

    first: str
    last: str
    source: str
    """The source's own position after the last commit: where reading resumes."""

    begun: int
    """The earliest commit time in it, in microseconds since 1970: lag is measured from it."""

    time: int
    """The latest commit time in it."""

    high_time: int
    """The running maximum of `time` over the log: commit times are not monotonic (R37)."""

    files: tuple[File, ...]
    markers: tuple[str, ...] = ()
    """Texts written at the source before its end."""

    @property
    def span(self) -> tuple[Position, Position]:
        """First and last position."""
        return Position.parse(self.first), Position.parse(self.last)


class Baseline(Entry, frozen=True, tag="baseline", omit_defaults=True, kw_only=True):
    """A complete copy of a table, with its window (F, H)."""

    table: str
    baseline: int
    """Its number within the log, from 1."""

    first: str
    """F: changes after it are applied on top of the rows."""

    last: str
    """H: from here on the result is exact, and may be shown."""

    rows: int
    files: tuple[File, ...]
    snapshot: str = ""
    """S, in the source's format: which commits between F and H the rows hold; or empty."""

    copy: int = 0
    """The number of the copy that a folded baseline comes from; 0: it is a copy itself (R19)."""

    @property
    def window(self) -> tuple[Position, Position]:
        """F and H."""
        return Position.parse(self.first), Position.parse(self.last)


class Gap(Entry, frozen=True, tag="gap", omit_defaults=True, kw_only=True):
    """History begins or restarts here: every table needs a baseline after it."""

    lineage: str
    source: str
    at: str
    reason: str
    """`start`, `gap` or `lineage`."""

    origin: str = ""
    """The source's own name, so that the log of another source is recognised."""


class Heartbeat(Entry, frozen=True, tag="heartbeat", omit_defaults=True, kw_only=True):
    """The position moved, nothing else."""

    last: str
    source: str
    markers: tuple[str, ...] = ()
    """As in a flush."""


class RebaselineRequired(Entry, frozen=True, tag="owed", omit_defaults=True, kw_only=True):
    """
    One table needs a new baseline: its rows changed without a change in the log.

    The other tables continue. The position moves by one ordinal, to distinguish a reader that
    has read up to here from one that begins here.
    """

    table: str
    baseline: int
    """Baselines up to this number are not usable any more."""

    at: str
    source: str
    reason: str
    """For people: `partitions`, `columns`, `left out`."""

    missing: bool = False
    """Whether changes are missing, too; otherwise only rows were altered without a change."""


class Note(Entry, frozen=True, tag="note", omit_defaults=True, kw_only=True):
    """A text that the source gets back when it is next opened: for one table, or for itself."""

    text: str
    table: str = ""


class SchemaColumn(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column as the index keeps it."""

    name: str
    type: str
    field: int
    nullable: bool = True
    declared: str = ""
    missing: str | None = None
    """The value of rows older than the column; None: null."""


class Schema(Entry, frozen=True, tag="schema", omit_defaults=True, kw_only=True):
    """A table's schema, from here on."""

    table: str
    table_id: int
    schema_id: int
    columns: tuple[SchemaColumn, ...]
    key: tuple[str, ...] = ()
    whole_before: bool = True
    late: bool = False
    """Whether it is an earlier schema, of changes that are read late."""


class Pruned(Entry, frozen=True, tag="pruned", omit_defaults=True, kw_only=True):
    """Drops what is not needed any more (R27); its files are deleted a lease later."""

    upto: str
    """Everything that ends at or before it is dropped; empty: no changes."""

    time: int
    """When it was written, in microseconds since 1970: the lease begins."""

    baselines: tuple[int, ...] = ()
    """Numbers of the baselines that are dropped with it."""


class Compacted(Entry, frozen=True, tag="compacted", omit_defaults=True, kw_only=True):
    """Consecutive steps became one flush: the same changes in fewer files. `epoch` is theirs."""

    since: int
    """The entry of the first step."""

    upto: int
    """The entry of the last step, whose number the new flush has."""

    first: str
    last: str
    source: str
    begun: int
    time: int
    high_time: int
    files: tuple[File, ...]
    at: int
    """When it was written, in microseconds since 1970: the lease of the old files begins."""

    @property
    def flush(self) -> Flush:
        """The flush that replaces the steps."""
        return Flush(
            entry=self.upto,
            writer=self.writer,
            term=self.term,
            epoch=self.epoch,
            first=self.first,
            last=self.last,
            source=self.source,
            begun=self.begun,
            time=self.time,
            high_time=self.high_time,
            files=self.files,
        )


class KnownSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of a table's schemas, within a state."""

    schema_id: int
    columns: tuple[SchemaColumn, ...]
    key: tuple[str, ...] = ()
    whole_before: bool = True
    late: bool = False


class KnownTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table, within a state."""

    table: str
    table_id: int
    schemas: tuple[KnownSchema, ...] = ()
    latest: int = 0
    current: int = 0
    missing: RebaselineRequired | None = None
    rebaseline_required: RebaselineRequired | None = msgspec.field(default=None, name="owed")
    usable: int = 0
    """The number of the baseline that changes can be applied to; 0: there is none."""

    baselines: tuple[Baseline, ...] = ()
    windows: tuple[tuple[int, str, str, str], ...] = ()
    """Number, F, H and S of baselines, including dropped ones."""


class State(Entry, frozen=True, tag="state", omit_defaults=True, kw_only=True):
    """The sum of all entries up to this number; opening the log begins with it."""

    end: str
    """The end of the log."""

    lineage: str | None
    origin: str
    first_origin: str
    source: str | None
    high_time: int
    baselines: int
    counts: tuple[int, int, int]
    """Rows, bytes and flushes that were captured so far."""

    floor: str
    """Everything that ends at or before it was dropped."""

    gap: Gap | None
    tables: tuple[KnownTable, ...]
    notes: dict[str, str]
    markers: tuple[tuple[str, str], ...]
    steps: tuple[Flush | Gap | Heartbeat | RebaselineRequired, ...]
    retired: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Recently dropped files, with the time."""


AnyEntry: TypeAlias = (
    Flush
    | Baseline
    | Gap
    | Heartbeat
    | RebaselineRequired
    | Note
    | Schema
    | Pruned
    | Compacted
    | State
)

_DECODER: msgspec.json.Decoder[AnyEntry] = msgspec.json.Decoder(AnyEntry)
_HEAD = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TAIL = re.compile(rb',"check":"([0-9a-f]{16})","format":%d\}' % FORMAT)
_TAIL_SIZE = len(b',"check":"0123456789abcdef","format":%d}' % FORMAT)


def encode(entry: AnyEntry) -> bytes:
    """Return the entry as the bytes of its file."""
    # omit_defaults leaves the format number out of the struct's own text; it closes the file.
    body = msgspec.json.encode(entry)[:-1]
    return b'%s,"check":"%s","format":%d}' % (body, _check(body), FORMAT)


def decode(data: bytes) -> AnyEntry:
    """Read what `encode` wrote; raises `UnknownFormat`, or `CorruptIndex` for anything else."""
    body, tail = data[:-_TAIL_SIZE], data[-_TAIL_SIZE:]
    match = _TAIL.fullmatch(tail)
    if match is None:
        raise _unknown(data)
    # A flipped digit can still be read as a position or a count, so only the checksum proves
    # that the entry is intact.
    if match[1] != _check(body):
        raise CorruptIndex("Index entry does not match its checksum")
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptIndex("Index entry cannot be read") from error


def _unknown(data: bytes) -> UnknownFormat | CorruptIndex:
    try:
        number = bytes(_HEAD.decode(data).get("format") or b"none")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return CorruptIndex("Index entry cannot be read")
    if number == b"%d" % FORMAT:
        return CorruptIndex("Index entry has no checksum")
    return UnknownFormat("Index entry has an unknown format", format=number.decode())


def _check(body: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(body).encode()
