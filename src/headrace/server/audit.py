"""
The audit log: who changed what, and who was refused. One JSON object a line.

The engine writes it (`logs/audit.log` in the data directory), because it outlives its child. It has
calls over the network, and commands over the local socket. A line is written when a call that
changes something ends, with its outcome: `ok`, or the code of its error. It has the names of what
was asked for (pipeline, source, table), and never a value of a row.

Whoever is refused is recorded, too, and could fill a disk by that. So equal refusals are counted
and become one line a minute (`Refusals`), of which there are a limited number; those beyond are
counted without their names. The child counts before it tells the engine.

A line is one write. It is not synced: what a power cut takes is at most the last seconds. An action
is never held up by its line; if the file cannot be written, the log of the engine says so, once.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from google.protobuf.message import DecodeError

from headrace.observe.logs import logger
from headrace.storage.permissions import make_private_folder, open_private

if TYPE_CHECKING:
    from headrace.api.methods import Method
    from headrace.api.services import Caller

_log = logger(__name__)

FILE = "audit.log"

KEEP_BYTES = 16 << 20
KEEP_FILES = 10
"""The current one included: `audit.log`, `audit.log.1` …"""

WINDOW_SECONDS = 60.0
MOST_REFUSALS = 60
"""Lines about refusals in a window."""

OK = "ok"
OTHERS = "others"
"""The name of the callers whose refusals are only counted."""

_NAMES = frozenset(
    {
        *("pipeline", "pipeline_id", "source", "source_id", "schema", "table", "tables"),
        *("snapshot_id", "target_pipeline_id", "replay_id", "position", "plan", "code", "dry_run"),
    }
)
"""Fields of requests that say what was asked for; none of them has values of rows."""

_LONGEST_NAME = 200
_MOST_NAMES = 20


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """One line, without its time."""

    method: str
    """`OAMService/PauseSync`; `Login` and `Logout` of the console."""

    outcome: str
    """`ok`, or the code of the error."""

    caller: str = ""
    """Empty if it is not known."""

    role: str = ""
    address: str = ""
    about: dict[str, Any] = {}
    count: int = 1


def entry_of(
    method: Method | str, outcome: str, caller: Caller | None, address: str = "", body: bytes = b""
) -> AuditEntry:
    """Return the entry for a call; `body` is its request, as the engine takes it."""
    named = method if isinstance(method, str) else f"{_short(method.service)}/{method.name}"
    about = {} if isinstance(method, str) else names_in(method, body)
    if caller is None:
        return AuditEntry(named, outcome, address=address, about=about)
    return AuditEntry(named, outcome, caller.name, caller.role, caller.address, about)


def names_in(method: Method, body: bytes) -> dict[str, Any]:
    """Return the names in a request: of pipelines, sources and tables, never values of rows."""
    fields: Mapping[str, Any] = {}
    # A request that is not valid is refused, and its line says so.
    with suppress(DecodeError, msgspec.DecodeError, RecursionError):
        if method.request is None:
            decoded = msgspec.json.decode(body or b"{}")
            fields = decoded if isinstance(decoded, dict) else {}
        else:
            message = method.request.FromString(body)
            fields = dict(_set_fields(message))
    return {
        name: short
        for name, value in fields.items()
        if name in _NAMES and (short := _shortened(value)) not in (None, "", [])
    }


def _set_fields(message: Any) -> Iterable[tuple[str, Any]]:
    for field, value in message.ListFields():
        if field.message_type is None:
            yield field.name, list(value) if field.is_repeated else value
        elif field.name == "selection" and not field.is_repeated:
            yield from _set_fields(value)


def _shortened(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:_LONGEST_NAME]
    if isinstance(value, list):
        return [each[:_LONGEST_NAME] for each in value[:_MOST_NAMES] if isinstance(each, str)]
    return None


def _short(service: str) -> str:
    return service.rpartition(".")[2]


# --- refusals -------------------------------------------------------------------------------------


class Refusals:
    """
    Counts refusals, so that they become a limited number of entries. Used by one thread.

    The first of a kind in a window is given out at once, the others as a count at the end of the
    window. `due` gives out what has ended; call it now and then.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = 0.0
        self._counts: dict[AuditKey, int] = {}
        self._others = 0

    def take(self, entry: AuditEntry) -> list[AuditEntry]:
        """Count a refusal; return what is to be written now."""
        found = self.due()
        if not self._counts:
            self._ends = self._clock() + WINDOW_SECONDS
        key = AuditKey(entry.method, entry.outcome, entry.caller, entry.role, entry.address)
        if key in self._counts:
            self._counts[key] += 1
        elif len(self._counts) < MOST_REFUSALS:
            self._counts[key] = 0
            found.append(entry)
        else:
            self._others += 1
        return found

    def due(self, *, all: bool = False) -> list[AuditEntry]:
        """Return the counts of a window that has ended; with `all`, of any."""
        if not self._counts or not (all or self._clock() >= self._ends):
            return []
        found = [
            AuditEntry(key.method, key.outcome, key.caller, key.role, key.address, count=count)
            for key, count in self._counts.items()
            if count
        ]
        if self._others:
            found.append(AuditEntry("", "refused", OTHERS, count=self._others))
        self._counts, self._others = {}, 0
        return found


@dataclass(frozen=True, slots=True)
class AuditKey:
    """What equal refusals have in common."""

    method: str
    outcome: str
    caller: str
    role: str
    address: str


# --- the file -------------------------------------------------------------------------------------


class AuditLog:
    """The file. Safe to use from several threads; raises nothing after it was opened."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """`folder` is that of the logs; raises `OSError` if the file cannot be opened."""
        make_private_folder(folder)
        self._path = folder / FILE
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = False
        self._refusals = Refusals()
        self._file: IO[bytes] | None = open_private(self._path, append=True)

    def write(self, *entries: AuditEntry) -> None:
        """Write entries, one line each."""
        with self._lock:
            self._write(entries)

    def refuse(self, entry: AuditEntry) -> None:
        """Write a refusal, or count it."""
        with self._lock:
            self._write(self._refusals.take(entry))

    def close(self) -> None:
        """Write what was counted, and close the file."""
        with self._lock:
            self._write(self._refusals.due(all=True))
            if self._file is not None:
                self._file.close()
            self._file = None

    def _write(self, entries: Iterable[AuditEntry]) -> None:
        for each in entries:
            if self._file is None:
                return
            try:
                if os.fstat(self._file.fileno()).st_size >= KEEP_BYTES:
                    self._rotate()
                # Not through its buffer: a line is one write.
                os.write(self._file.fileno(), self._line(each))
            except OSError as error:
                if not self._failed:
                    _log.error("audit log cannot be written", why=error.strerror, path=FILE)
                self._failed = True
            else:
                self._failed = False

    def _line(self, entry: AuditEntry) -> bytes:
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {"at": at.replace("+00:00", "Z"), "method": entry.method}
        fields |= {
            name: value for name in ("caller", "role", "address") if (value := getattr(entry, name))
        }
        fields |= {name: entry.about[name] for name in sorted(entry.about)}
        fields["outcome"] = entry.outcome
        if entry.count > 1:
            fields["count"] = entry.count
        # ASCII: a name could contain what a terminal takes for a command, or the end of a line.
        return json.dumps(fields).encode() + b"\n"

    def _rotate(self) -> None:
        assert self._file is not None
        for number in range(KEEP_FILES - 1, 0, -1):
            before = self._path.with_name(FILE if number == 1 else f"{FILE}.{number - 1}")
            if before.exists():
                before.replace(self._path.with_name(f"{FILE}.{number}"))
        opened = open_private(self._path, append=True)
        self._file.close()
        self._file = opened
