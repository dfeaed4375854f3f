"""
What the log keeps for readers: how much there is, and what happens to a reader that needs more.

Rows that a reader has not read stay in the application's file, so they are limited: by default to
1 GiB for each reader. A reader above its limit expires (R28). Its row then protects nothing, the
rows are removed when the others have read them, and the reader has to copy its tables again. What
it does when it comes back is its own policy: by default `cdc` raises `CaptureExpired`, because all
rows again are more than its handler may expect.

A process that works with the file applies the limits of all readers: a run every few seconds,
except to its own tables, which it is reading; `setup`; and `prune`, for times at which no reader
runs.

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

from headrace.capture.sqlite import capture_log, triggers
from headrace.capture.sqlite.capture_log import (
    ReaderRow,
    RowRemoval,
    lowest_cursor,
    reader_rows,
    row_bytes,
)
from headrace.capture.sqlite.database import (
    CaptureNames,
    CapturePosition,
    Row,
    reading,
    writing,
)
from headrace.capture.sqlite.library.leases import lease_texts
from headrace.capture.sqlite.library.readers import EXPIRED, ReaderCursors
from headrace.capture.sqlite.trigger_sql import HALF
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
                    "A retention limit is negative",
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
    _, last = triggers.log_ends(database, names)
    size = row_bytes(database, names)
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
    first, last = triggers.log_ends(database, names)
    at = min(read, max(0 if at is None else at, first - 1, 0))
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
        to = min(read, max(to, last - int(most)))
    if to != cursors.history():
        with writing(database):
            cursors.put_history(capture, to)
    return to


def remove_read(database: sqlite3.Connection, names: CaptureNames) -> int:
    """Remove all rows that no reader needs, in small steps; return how many."""
    capture = str(triggers.capture_id(database, names))
    removal = RowRemoval(database, names)
    removed = 0
    while True:
        with removal.step():
            lowest = lowest_cursor(database, capture, names)
            # Without any reader only the newest row has to stay: numbers must not come again.
            _, last = triggers.log_ends(database, names)
            more = removal.remove(last if lowest is None else lowest)
        removed += removal.removed
        if not more:
            return removed
        time.sleep(capture_log.STEP_SECONDS)


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
    search = _Search(database, names, capture)
    with reading(database):
        row = search.earliest()
    first = CapturePosition.of(capture, row)
    if wanted == "earliest":
        return first
    if isinstance(wanted, datetime):
        return search.by_time(wanted, first, int(str(row[1])))
    epoch, _, number = wanted.partition("/")
    if not number.isascii() or not number.isdigit():
        raise BadPosition(
            "The text is not a position in a SQLite capture log",
            text=wanted,
            remedy="Use record.position, `epoch/number`, or earliest.",
        )
    _, last = triggers.log_ends(database, names)
    if epoch == capture and int(number) > last:
        raise BadPosition(
            "The position is after the end of the capture log",
            text=wanted,
            remedy=f"Use a position up to {capture}/{last}.",
        )
    found = None
    if epoch == capture:
        with reading(database):
            found = search.at_or_before(int(number))
    if found is None:
        raise CaptureExpired(
            "The capture log does not reach back to this position",
            position=wanted,
            earliest=f"{capture}/{first.seq}",
        )
    return found


class _Search:
    """
    Finds rows after which reading can begin.

    It cannot begin between the two rows of a wide update, nor within a statement that changed a
    tangled table: its rows are put in order together. All rows of a statement have the same time.
    """

    def __init__(self, database: sqlite3.Connection, names: CaptureNames, capture: str) -> None:
        self._database = database
        self._names = names
        self._capture = capture
        every = triggers.plans(database, names)
        self._tangled = ", ".join(str(plan.id) for plan in every.values() if plan.tangled)

    def earliest(self) -> Row:
        """Return the first row of the log, or the end of what cannot be divided there."""
        row = self._row("order by seq")
        together = self._together(row)
        return row if together is None else self._row("where seq = ?", together[1])

    def at_or_before(self, seq: int) -> CapturePosition | None:
        """Return this row, or the last one before what cannot be divided there; None: removed."""
        row = self._row("where seq = ?", seq)
        if row and (together := self._together(row)) is not None:
            row = self._row("where seq = ?", together[0] - 1)
        return CapturePosition.of(self._capture, row) if row else None

    def by_time(self, wanted: datetime, first: CapturePosition, ts: int) -> CapturePosition:
        """Return the last row before the first one with this time or a later one."""
        if wanted.tzinfo is None:
            raise BadPosition(
                "The time has no time zone",
                text=wanted.isoformat(),
                remedy="Use a time with an offset, such as 2026-11-19T12:00:00Z.",
            )
        ms = wanted.timestamp() * 1000
        before = first.seq
        if ts > ms:
            raise CaptureExpired(
                "The capture log does not reach back to this time",
                time=wanted.isoformat(),
                earliest=f"{self._capture}/{before}",
            )
        # From row to row: the clock may have been set back.
        while True:
            rows = self._database.execute(
                f"select seq, ts from {self._names.log} where seq > ? order by seq limit ?",
                (before, SEARCH_ROWS),
            ).fetchall()
            for seq, ts in rows:
                if ts >= ms:
                    return self.at_or_before(before) or first
                before = seq
            if len(rows) < SEARCH_ROWS:
                return self.at_or_before(before) or first

    def _row(self, where: str, *values: object) -> Row:
        """Return the first such row as seq, ts, tbl and op; () if there is none."""
        query = f"select seq, ts, tbl, op from {self._names.log} {where} limit 1"
        return self._database.execute(query, values).fetchone() or ()

    def _together(self, row: Row) -> tuple[int, int] | None:
        """Return the first and the last row of what would be divided after `row`, if anything."""
        seq, ts, _, op = row
        after = self._row("where seq > ? order by seq", seq)
        if not after or after[1] != ts:
            return None
        if self._tangled:
            before = self._row("where seq < ? and ts is not ? order by seq desc", seq, ts)
            beyond = self._row("where seq > ? and ts is not ? order by seq", seq, ts)
            first = int(str(before[0])) + 1 if before else 0
            _, end = triggers.log_ends(self._database, self._names)
            last = int(str(beyond[0])) - 1 if beyond else end
            if self._row(f"where seq between ? and ? and tbl in ({self._tangled})", first, last):
                return first, last
        return (int(str(seq)), int(str(after[0]))) if op == HALF else None
