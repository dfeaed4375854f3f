"""
What the log keeps for readers: how much there is, and what happens to a reader that needs more.

Rows that a reader has not read stay in the application's file, so they are limited: by default to
1 GiB for each reader. A reader above its limit expires (R28). Its row then protects nothing, the
rows are removed when the others have read them, and the reader has to copy its tables again. What
it does when it comes back is its own policy: by default `cdc` raises `CaptureExpired`, because all
rows again are more than its handler may expect.

Whoever works with the file applies the limits of all readers: a run every few seconds, except to
its own tables, which it is reading; `setup`; and `prune`, for times at which no reader runs.

A history can be kept as well, for readers that go back. It is a cursor of its own that stays some
time after what was read, and gives way where it would be above the limit.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.capture_log import ReaderRow, reader_rows, row_bytes
from headrace.capture.sqlite.database import CaptureNames, CapturePosition, reading, writing
from headrace.capture.sqlite.library.leases import lease_texts
from headrace.capture.sqlite.library.readers import EXPIRED, ReaderCursors
from headrace.errors import BadPosition, CaptureExpired, SourceRefused

BYTES = 1 << 30
"""The default limit: as much as an engine may keep in a file."""

HISTORY_ROWS = 20_000
"""How many rows of the history are passed at once."""

SEARCH_ROWS = 20_000
"""How many rows are looked at in one read, in search of a time (R44)."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What the log may keep for a reader that does not read."""

    bytes: int | None = BYTES
    """The approximate size of unread changes; None: no limit."""

    seconds: float | None = None
    """The age of the oldest unread change; None: no limit."""

    history_seconds: float = 0.0
    """How long changes are kept after they were read, as far as `bytes` allows."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 0:
                raise SourceRefused(
                    "A limit of the retention is negative",
                    limit=name,
                    value=value,
                    remedy="Use 0 or more, or None for no limit.",
                )

    def text(self) -> str:
        """Return it as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | None) -> Retention:
        """Read back what `text` wrote; the default if nothing is stored."""
        return cls() if text is None else cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """A reader and one of its tables, and what the log keeps for it."""

    reader: str
    table: str
    position: str
    unread: int
    """Number of rows of the log after the position, those of other tables included."""

    bytes: int
    """Their approximate size."""

    age_seconds: float
    """The age of the oldest of them; 0 if there is none."""

    limit_bytes: int | None
    expired: bool
    running: bool
    ephemeral: bool


def set_retention(cursors: ReaderCursors, retention: Retention) -> None:
    """Store what may be kept for a reader; within a transaction."""
    cursors.put_limits(retention.text())
    if not retention.history_seconds:
        cursors.put_history("", None)
    elif cursors.history() is None:
        # Before anything else is read and removed.
        lowest = min(cursors.positions().values(), key=lambda at: at.seq)
        cursors.put_history(lowest.capture, lowest.seq)


# --- what is kept ---------------------------------------------------------------------------------


def reader_statuses(
    database: sqlite3.Connection, names: CaptureNames, alive: Callable[[str], bool]
) -> list[ReaderStatus]:
    """Return all readers of `Capture` with their tables."""
    if not triggers.complete(database, names):
        return []
    with reading(database):
        leases = lease_texts(database, names)
        ephemeral = set(ReaderCursors(database, names, "").ephemeral())
        found = []
        for held in _held(database, names):
            run = leases.get(held.row.name, "").partition("/")[2]
            found.append(
                ReaderStatus(
                    reader=held.reader,
                    table=held.table,
                    position=f"{held.row.capture}/{held.row.cursor}",
                    unread=held.unread,
                    bytes=held.bytes,
                    age_seconds=held.age_seconds,
                    limit_bytes=held.limits.bytes,
                    expired=held.row.capture == EXPIRED,
                    running=alive(run),
                    ephemeral=held.row.name in ephemeral,
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class _Held:
    row: ReaderRow
    reader: str
    table: str
    unread: int
    bytes: int
    age_seconds: float
    limits: Retention

    @property
    def is_over(self) -> bool:
        limits = self.limits
        return (limits.bytes is not None and self.bytes > limits.bytes) or (
            limits.seconds is not None and self.age_seconds > limits.seconds
        )


def _held(database: sqlite3.Connection, names: CaptureNames) -> Iterator[_Held]:
    """Yield what is kept for each row of a reader of `Capture`."""
    (last,) = database.execute(f"select max(seq) from {names.log}").fetchone()
    last, size = int(last or 0), row_bytes(database, names)
    known: dict[str, Retention] = {}
    for row in reader_rows(database, names):
        if not row.name.startswith(triggers.LIBRARY) or not row.tables:
            continue
        reader, _, table = row.name.removeprefix(triggers.LIBRARY).partition("/")
        if reader not in known:
            known[reader] = Retention.parse(ReaderCursors(database, names, reader).limits())
        unread = max(0, last - row.cursor)
        yield _Held(
            *(row, reader, table, unread, int(unread * size)),
            *(_age(database, names, row.cursor), known[reader]),
        )


def _age(database: sqlite3.Connection, names: CaptureNames, cursor: int) -> float:
    row = database.execute(
        f"select ts from {names.log} where seq > ? order by seq limit 1", (cursor,)
    ).fetchone()
    return 0.0 if row is None else max(0.0, time.time() - float(row[0]) / 1000)


# --- limits ---------------------------------------------------------------------------------------


def expire(
    database: sqlite3.Connection, names: CaptureNames, own: Collection[str] = ()
) -> list[str]:
    """Let readers above their limits expire, except the rows in `own`; return their rows."""
    if not triggers.complete(database, names):
        return []
    capture = triggers.capture_id(database, names)

    def over() -> list[_Held]:
        return [
            held
            for held in _held(database, names)
            if held.is_over and held.row.capture == capture and held.row.name not in own
        ]

    with reading(database):
        if not over():
            return []
    with writing(database):
        found = over()
        for held in found:
            # A cursor of another capture protects nothing, in every version.
            database.execute(
                f"update {names.readers} set capture = ?, tables = ? where name = ?",
                (EXPIRED, json.dumps({held.table: EXPIRED}), held.row.name),
            )
    return [held.row.name for held in found]


def advance_history(
    database: sqlite3.Connection, names: CaptureNames, cursors: ReaderCursors, read: int
) -> int | None:
    """
    Move the cursor of the history after what is old enough; return it, None without a history.

    `read` is the last row that the reader has read.
    """
    limits = Retention.parse(cursors.limits())
    at = cursors.history()
    if not limits.history_seconds:
        return None
    capture = str(triggers.capture_id(database, names))
    (first,) = database.execute(f"select min(seq) from {names.log}").fetchone()
    at = min(read, max(0 if at is None else at, int(first or 0) - 1, 0))
    until = time.time() * 1000 - limits.history_seconds * 1000
    to = at
    for seq, ts in database.execute(
        f"select seq, ts from {names.log} where seq > ? and seq <= ? order by seq limit ?",
        (at, read, HISTORY_ROWS),
    ):
        if ts >= until:
            break
        to = seq
    if limits.bytes is not None:
        most = limits.bytes / max(1.0, row_bytes(database, names))
        (last,) = database.execute(f"select max(seq) from {names.log}").fetchone()
        to = min(read, max(to, int(last or 0) - int(most)))
    if to != cursors.history():
        with writing(database):
            cursors.put_history(capture, to)
    return to


def remove_read(database: sqlite3.Connection, names: CaptureNames) -> int:
    """Remove all rows that no reader needs, in small steps; return how many."""
    capture = triggers.capture_id(database, names)
    removed = 0
    while True:
        with writing(database):
            (lowest,) = database.execute(
                f"select min(cursor) from {names.readers} where capture = ?", (capture,)
            ).fetchone()
            (first,) = database.execute(f"select min(seq) from {names.log}").fetchone()
            (last,) = database.execute(f"select max(seq) from {names.log}").fetchone()
            # Without any reader only the newest row has to stay: numbers must not come again.
            end = last if lowest is None else min(lowest, last)
            stop = min(end, first + triggers.STEP_ROWS)
            done = database.execute(f"delete from {names.log} where seq < ?", (stop,))
            removed += done.rowcount
        if stop >= end:
            return removed
        time.sleep(triggers.STEP_SECONDS)


# --- going back -----------------------------------------------------------------------------------


def position_at(
    database: sqlite3.Connection, names: CaptureNames, wanted: str | datetime
) -> CapturePosition:
    """
    Return where to read from: after a position `epoch/seq`, or from a time on.

    `earliest` is the beginning of what is kept. Raises `CaptureExpired` for what is older.
    """
    capture = triggers.capture_id(database, names)
    assert capture is not None
    (first,) = database.execute(f"select min(seq) from {names.log}").fetchone()
    earliest = f"{capture}/{first}"
    if wanted == "earliest":
        return _position(database, names, capture, int(first))
    if isinstance(wanted, datetime):
        return _at_time(database, names, capture, wanted)
    epoch, _, number = wanted.partition("/")
    if not number.isascii() or not number.isdigit():
        raise BadPosition(
            "The text is not a position in a SQLite capture log",
            text=wanted,
            remedy="Use record.position, `epoch/number`, or earliest.",
        )
    (last,) = database.execute(f"select max(seq) from {names.log}").fetchone()
    if epoch != capture or int(number) < first:
        raise CaptureExpired(
            "The capture log does not reach back to this position",
            position=wanted,
            earliest=earliest,
        )
    if int(number) > last:
        raise BadPosition(
            "The capture log has not come to this position yet",
            text=wanted,
            remedy=f"Use a position up to {capture}/{last}.",
        )
    return _position(database, names, capture, int(number))


def _position(
    database: sqlite3.Connection, names: CaptureNames, capture: str, seq: int
) -> CapturePosition:
    row = database.execute(
        f"select seq, ts, tbl, op from {names.log} where seq = ?", (seq,)
    ).fetchone()
    return CapturePosition.of(capture, row)


def _at_time(
    database: sqlite3.Connection, names: CaptureNames, capture: str, wanted: datetime
) -> CapturePosition:
    """Return the last row before the first one with this time or a later one."""
    if wanted.tzinfo is None:
        raise BadPosition(
            "The time has no time zone",
            text=wanted.isoformat(),
            remedy="Use a time with an offset, such as 2026-11-19T12:00:00Z.",
        )
    ms = wanted.timestamp() * 1000
    first, ts = database.execute(f"select seq, ts from {names.log} order by seq limit 1").fetchone()
    if ts > ms:
        raise CaptureExpired(
            "The capture log does not reach back to this time",
            time=wanted.isoformat(),
            earliest=f"{capture}/{first}",
        )
    before = first
    while True:
        # From row to row: the clock may have been set back.
        rows = database.execute(
            f"select seq, ts from {names.log} where seq > ? order by seq limit ?",
            (before, SEARCH_ROWS),
        ).fetchall()
        for seq, ts in rows:
            if ts >= ms:
                return _position(database, names, capture, before)
            before = seq
        if len(rows) < SEARCH_ROWS:
            return _position(database, names, capture, before)
