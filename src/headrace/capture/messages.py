"""
The messages between engine and recorder.

Both run on one machine and in one version, so the format is simple: a length of four bytes, then
JSON with a tag that names the kind. Commands go to the recorder, reports come back. If one end
closes or dies, the other end reads an end of file: the one signal that cannot get lost, and on
which a recorder exits (R31).
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
from headrace.errors import HeadraceError, RecorderFailed, WrongValue, all_errors, fact_text

_HEAD = struct.Struct(">I")
LONGEST = 256 << 20
"""The longest frame; a larger size means that it is not one of ours."""

SEND_SECONDS = 10
"""The other end has a thread that only reads: if it takes no frame for this long, it is stuck."""


class FlushNow(msgspec.Struct, frozen=True, tag="flush"):
    """The engine is idle: flush pending changes, or the next one soon after it arrives (R10)."""


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """Nothing at or before this position of the log is needed from the source any more (R8)."""

    position: str


class TakeBaseline(msgspec.Struct, frozen=True, tag="baseline"):
    """Copy this table; if `shared`, only plan the copy and let the engine do it."""

    table: str
    shared: bool = False


class CopyDone(msgspec.Struct, frozen=True, tag="copied"):
    """A planned copy is done: these segments contain its rows."""

    table: str
    stem: str
    """Identifies the plan: there may be a newer one."""

    files: tuple[File, ...]


class CopyFailed(msgspec.Struct, frozen=True, tag="not_copied"):
    """A planned copy failed: copy the table in the recorder or, if `shared`, plan it again."""

    table: str
    stem: str
    shared: bool


class MaintainLog(msgspec.Struct, frozen=True, tag="maintain_log"):
    """What may be removed from the log, and how to maintain it (R19, R27, R28); the last counts."""

    known_entry: int
    """The last entry that the engine knew when it decided this."""

    prune: str
    """Nothing at or before this position is needed."""

    settled: str
    """Every reader is past this position: flushes up to it may be merged."""

    fences: tuple[str, ...] = ()
    """Positions at which a reader may begin: no merged flush may span one."""

    drop: tuple[int, ...] = ()
    """Baselines that no pipeline loads or will load."""

    fold: str = ""
    """Baselines may be folded up to this position; empty: do not fold."""

    compact: bool = True
    lease: float = 600.0
    """Seconds between dropping a file and deleting it."""

    cap: int | None = None
    """Maximum size of the log in bytes; None: no limit."""

    needed: str = ""
    """Everything that is needed apart from baselines is after it; empty: not known."""


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Remove what we set up at the source and start over: every table is copied again."""

    drop_publication: bool = False


class StopRecorder(msgspec.Struct, frozen=True, tag="stop"):
    """Flush complete commits and exit."""


SHORTEST_PAUSE_SECONDS = 0.01


class Retries(msgspec.Struct, frozen=True):
    """How often, and with what pauses in seconds, a pipeline or a source is tried again."""

    max_attempts: int | None = None
    """After this many failures in a row it stops, until it is resumed; None: never."""

    first_pause: float | None = None
    """The first pause; each later one is twice as long. None: less than a second."""

    longest_pause: float | None = None
    """The limit of the pauses; None: 30 seconds."""

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise WrongValue("max_attempts must be at least 1", given=self.max_attempts)
        for pause in (self.first_pause, self.longest_pause):
            if pause is not None and pause < SHORTEST_PAUSE_SECONDS:
                raise WrongValue("A pause must be at least 10 ms: it limits the load", given=pause)
        first, longest = self.first_pause, self.longest_pause
        if first is not None and longest is not None and first > longest:
            raise WrongValue("first_pause must not be longer than longest_pause", given=first)

    def exhausted(self, attempts: int) -> bool:
        """Whether this number of failures in a row is the limit."""
        return self.max_attempts is not None and attempts >= self.max_attempts


ENDLESS = Retries()
"""The default: it is tried again until it succeeds."""


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """The first frame to a recorder, with everything it needs."""

    kind: str
    name: str
    options: dict[str, object]
    tables: tuple[str, ...]
    """The tables that are named."""

    storage: str
    """The location of the log: the data directory, or another storage."""

    writer: str
    term: int
    reader: str
    """The name of the reader, for sources that keep a position for each reader."""

    baselines: int = 0
    """The highest baseline number that the engine knows, perhaps from a log that was lost."""

    reset: Reset | None = None
    """Done before anything else, also before the checks that could refuse the source."""

    selections: tuple[tuple[str, ...], ...] = ()
    """Lists of patterns: tables that match one of them are recorded, too."""

    reconnect: Retries = ENDLESS


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A new recorder has started: it does not know baselines that were requested before."""

    pid: int


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    """An entry of the index is durable."""

    entry: int
    buffered_seconds: float = 0.0
    """Seconds from reading its first change to this report."""


class LagReport(msgspec.Struct, frozen=True, tag="lag"):
    """The lag of reading, and how many changes this recorder has read since it started."""

    changes: int | None
    seconds: float | None
    captured: int
    bytes: int | None = None
    room: Room | None = None
    """None if it was not measured again."""

    age: float | None = None
    """How many seconds ago everything had been committed that is certain to be in the log."""

    silence: float | None = None
    """Seconds since anything was received on the source's stream."""

    at: float | None = None
    """
    When all of this was measured, by the monotonic clock, which processes of a machine share.

    The engine may read a report much later. None: not known.
    """


class StateReport(msgspec.Struct, frozen=True, tag="state"):
    """
    The recorder changed its state, or the reason for it.

    States are connecting, waiting (for sessions at the source), streaming, full (the log is full,
    and nothing is read), watching (no table can be captured now), reconnecting, resetting, failed
    and closed.
    """

    state: str
    reason: str = ""


class BaselineProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Rows of a baseline copied so far; done once the baseline is in the index."""

    table: str
    rows: int
    done: bool = False
    expected: int | None = None
    """The approximate total number of rows; None if it is not known."""

    waits: str = ""
    """What the copy waits for before it can begin; empty: nothing."""


class CopyPlanned(msgspec.Struct, frozen=True, tag="planned"):
    """A baseline is ready to be copied, in parts that any process can read from the source."""

    table: str
    stem: str
    """The prefix of its segments' names."""

    schema: int
    parts: tuple[bytes, ...]
    expected: int | None = None
    """The approximate total number of rows; None if it is not known."""

    time: int = 0
    """When the copy began, in microseconds since 1970: the time of its rows."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """An error that the user should see; the recorder tries again unless `stops` is set."""

    code: str
    message: str
    remedy: str
    facts: dict[str, str]
    stops: bool = False

    @classmethod
    def of(cls, error: HeadraceError, *, stops: bool) -> Failed:
        """Return the error as a report."""
        facts = {name: fact_text(value) for name, value in error.facts.items()}
        return cls(error.code, error.message, error.remedy, facts, stops)

    def error(self) -> HeadraceError:
        """Return the error as an instance of its own class."""
        found = {kind.code: kind for kind in all_errors()}.get(self.code, RecorderFailed)
        return found(self.message, remedy=self.remedy, **self.facts)


class Warned(msgspec.Struct, frozen=True, tag="warned"):
    """A warning for the user, while recording continues."""

    problem: Failed


class FoundTable(msgspec.Struct, frozen=True):
    """A table that matches a pattern, with its columns."""

    table: str
    columns: tuple[SchemaColumn, ...]
    key: tuple[str, ...]
    whole_before: bool
    unsent: tuple[int, ...] = ()
    """Ids of the columns that may be missing in a change (R21)."""

    @classmethod
    def of(cls, schema: TableSchema) -> FoundTable:
        """Return the table in the form of a report."""
        unsent = tuple(column.field for column in schema.columns if column.may_be_unsent)
        return cls(schema.table, as_columns(schema), schema.key, schema.whole_before, unsent)

    @property
    def schema(self) -> TableSchema:
        """The table's schema."""
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
    """Every table that is recorded because of a pattern, and those that match but are left out."""

    tables: tuple[FoundTable, ...]
    left_out: dict[str, Failed]
    lost: dict[str, Failed] = msgspec.field(default_factory=dict)
    """Named tables that were recorded before and cannot be any more."""


class TablesDescribed(msgspec.Struct, frozen=True, tag="described"):
    """Every table that is recorded, at each connection: the engine may have started without it."""

    tables: tuple[FoundTable, ...]


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
    | TablesDescribed
    | TablesFound
    | Warned
    | Failed
)

COMMANDS: msgspec.json.Decoder[Command | Setup] = msgspec.json.Decoder(Command | Setup)
REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)

T = TypeVar("T")


class Channel(Generic[T]):
    """One end of the connection: any thread sends, one thread receives."""

    def __init__(self, end: socket.socket, decoder: msgspec.json.Decoder[T]) -> None:
        self._end = end
        self._decoder = decoder
        self._sending = threading.Lock()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))

    def send(self, frame: Command | Report | Setup) -> bool:
        """Send one frame; False if the other end does not take it."""
        body = msgspec.json.encode(frame)
        with self._sending:
            try:
                self._end.sendall(_HEAD.pack(len(body)) + body)
            except OSError:
                # Half a frame may have been sent: nothing after it could be decoded.
                self.close()
                return False
        return True

    def receive(self) -> T | None:
        """Return the next frame, or None if the other end is closed."""
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
