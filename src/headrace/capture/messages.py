"""
What engine and recorder say to each other.

Both are on one machine and of one version, so the form is plain: a length of four bytes,
then JSON with a tag that names the kind. Commands go to the recorder, reports come back.
Either end that closes, or dies, is an end of file at the other: the one signal that
cannot get lost, and what a recorder lives and dies by (R31).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Generic, TypeAlias, TypeVar

import msgspec

from headrace.capture.source import Room
from headrace.changelog.entries import File, SchemaColumn
from headrace.changelog.history import as_columns
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import HeadraceError, RecorderFailed, all_errors

_HEAD = struct.Struct(">I")
LONGEST = 256 << 20
"""More than this is not a frame of ours."""

SEND_SECONDS = 10
"""The other end has a thread that only reads: whoever does not take a frame so long is stuck."""


class FlushNow(msgspec.Struct, frozen=True, tag="flush"):
    """The engine is idle: flush what there is, or the next change soon after it comes (R10)."""


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """Nothing at or before this position of the log is needed from the source any more (R8)."""

    position: str


class TakeBaseline(msgspec.Struct, frozen=True, tag="baseline"):
    """Copy this table; where it is shared, plan it and let the engine copy it."""

    table: str
    shared: bool = False


class CopyDone(msgspec.Struct, frozen=True, tag="copied"):
    """What was planned is copied: these segments hold its rows."""

    table: str
    stem: str
    """Of the plan: there may be a newer one."""

    files: tuple[File, ...]


class CopyFailed(msgspec.Struct, frozen=True, tag="not_copied"):
    """What was planned could not be copied; take the baseline yourself, or plan it anew."""

    table: str
    stem: str
    shared: bool


class MaintainLog(msgspec.Struct, frozen=True, tag="maintain_log"):
    """What the log may let go of, and how it is to be kept (R19, R27, R28); the last one counts."""

    heard: int
    """The last entry that was known when this was decided."""

    prune: str
    """Nothing at or before it is needed by anybody."""

    settled: str
    """Nobody stands before it: flushes up to there may become fewer."""

    fences: tuple[str, ...] = ()
    """Places where somebody may begin: no flush is to reach over one."""

    drop: tuple[int, ...] = ()
    """Baselines that nobody loads, or will."""

    fold: str = ""
    """Baselines may be brought up to there; empty: none is to be."""

    compact: bool = True
    lease: float = 600.0
    """Seconds from being dropped to being deleted."""

    cap: int | None = None
    """The most bytes that the log may have; None: any."""

    needed: str = ""
    """Whatever is needed besides baselines lies after it; empty: nobody knows."""


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Remove what is ours at the source and begin anew there: every table is copied again."""

    drop_publication: bool = False


class StopRecorder(msgspec.Struct, frozen=True, tag="stop"):
    """Flush what is complete and end."""


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """The first frame to a recorder: all it needs to know."""

    kind: str
    name: str
    options: dict[str, object]
    tables: tuple[str, ...]
    """Those that are named."""

    storage: str
    """Where the log lies: the data directory, or elsewhere."""

    writer: str
    term: int
    reader: str
    """Who reads, for sources that keep a place for each reader."""

    baselines: int = 0
    """The highest number of a baseline that the engine knows, perhaps of a log that was lost."""

    reset: Reset | None = None
    """To be obeyed before anything else, also before what the source would be refused for."""

    selections: tuple[tuple[str, ...], ...] = ()
    """Lists of patterns: what one of them chooses is recorded, too."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A new recorder began its life: it knows of no baseline that was asked for before."""

    pid: int


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    """An entry of the index is durable."""

    entry: int
    gathered: float = 0.0
    """Seconds from its first change being read to this."""


class LagReport(msgspec.Struct, frozen=True, tag="lag"):
    """How far reading is behind, and how many changes this recorder has read in its life."""

    changes: int | None
    seconds: float | None
    captured: int
    bytes: int | None = None
    room: Room | None = None
    """Where it was measured anew."""


class StateReport(msgspec.Struct, frozen=True, tag="state"):
    """
    The recorder moved to another state, or has another reason to be in it.

    States are connecting, waiting (for others at the source), streaming, full (the log is, and
    nothing is read), reconnecting, resetting, failed and closed.
    """

    state: str
    reason: str = ""


class BaselineProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Rows of a baseline so far; done once it is in the index."""

    table: str
    rows: int
    done: bool = False
    expected: int | None = None
    """About how many there are in all; None where that is not known."""

    waits: str = ""
    """Whom the copy waits for before it can begin; empty: for nobody."""


class CopyPlanned(msgspec.Struct, frozen=True, tag="planned"):
    """A baseline is ready to be copied, in parts that the source can read anywhere."""

    table: str
    stem: str
    """How the names of its segments begin."""

    schema: int
    parts: tuple[bytes, ...]
    expected: int | None = None
    """About how many rows there are in all; None where that is not known."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """An error that a person should see; the recorder tries again unless it stops."""

    code: str
    message: str
    remedy: str
    facts: dict[str, str]
    stops: bool = False

    @classmethod
    def of(cls, error: HeadraceError, *, stops: bool) -> Failed:
        """Return the error as a report."""
        facts = {name: str(value) for name, value in error.facts.items()}
        return cls(error.code, error.message, error.remedy, facts, stops)

    def error(self) -> HeadraceError:
        """Return the error, of its own class again."""
        found = {kind.code: kind for kind in all_errors()}.get(self.code, RecorderFailed)
        return found(self.message, remedy=self.remedy, **self.facts)


class Warned(msgspec.Struct, frozen=True, tag="warned"):
    """Something that a person should know, while recording goes on."""

    problem: Failed


class FoundTable(msgspec.Struct, frozen=True):
    """A table that a pattern stands for, with its columns."""

    table: str
    columns: tuple[SchemaColumn, ...]
    key: tuple[str, ...]
    whole_before: bool
    unsent: tuple[int, ...] = ()
    """Ids of the columns that a change may come without (R21)."""

    @classmethod
    def of(cls, schema: TableSchema) -> FoundTable:
        """Return the table as a report has it."""
        unsent = tuple(column.field for column in schema.columns if column.may_be_unsent)
        return cls(schema.table, as_columns(schema), schema.key, schema.whole_before, unsent)

    @property
    def schema(self) -> TableSchema:
        """The table's schema again."""
        columns = tuple(
            Column(
                each.name,
                ValueType.parse(each.type),
                each.field,
                each.nullable,
                each.declared,
                each.missing,
                may_be_unsent=each.field in self.unsent,
            )
            for each in self.columns
        )
        return TableSchema(self.table, columns, self.key, self.whole_before)


class TablesFound(msgspec.Struct, frozen=True, tag="tables"):
    """Every table that is recorded because of a pattern, and those that match and are not."""

    tables: tuple[FoundTable, ...]
    left_out: dict[str, Failed]


Command: TypeAlias = (
    FlushNow
    | Acknowledge
    | TakeBaseline
    | CopyDone
    | CopyFailed
    | MaintainLog
    | Reset
    | StopRecorder
)
Report: TypeAlias = (
    Started
    | Flushed
    | LagReport
    | StateReport
    | BaselineProgress
    | CopyPlanned
    | TablesFound
    | Warned
    | Failed
)

COMMANDS: msgspec.json.Decoder[Command | Setup] = msgspec.json.Decoder(Command | Setup)
REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)

T = TypeVar("T")


class Channel(Generic[T]):
    """One end of the line: any thread sends, one thread receives."""

    def __init__(self, end: socket.socket, decoder: msgspec.json.Decoder[T]) -> None:
        self._end = end
        self._decoder = decoder
        self._sending = threading.Lock()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))

    def send(self, frame: Command | Report | Setup) -> bool:
        """Send one frame; False when there is nobody to take it."""
        body = msgspec.json.encode(frame)
        with self._sending:
            try:
                self._end.sendall(_HEAD.pack(len(body)) + body)
            except OSError:
                # Half a frame may be out: nothing after it could be understood.
                self.close()
                return False
        return True

    def receive(self) -> T | None:
        """Return the next frame, or None when the other end is gone."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        (size,) = _HEAD.unpack(head)
        if size > LONGEST or (body := self._exactly(size)) is None:
            return None
        return self._decoder.decode(body)

    def close(self) -> None:
        """Close this end; a thread that is receiving gets its end of file."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._end.recv(size - len(parts))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
