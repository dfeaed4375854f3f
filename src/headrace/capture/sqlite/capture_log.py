"""
The capture log as its readers see it: the readers, the position of each, and the next rows.

A reader remembers the last row that it has read. Whether the history continues after that row
depends on the database, and there are four cases: it continues; what follows was pruned, or a
table's triggers were missing for a while, so that changes are lost (a gap); the capture log was
emptied or comes from a copy, so that its numbers have no meaning any more (a new lineage); or this
is another capture (R1, R39, R40).

`CaptureLog` reads what follows: `cursor … max(seq)` in one short read transaction, which always
ends between two transactions of the application, because SQLite never shows a reader half of one
(R41). Engine and library both use it, and differ in what they do when the history is interrupted.

`CursorPruner` removes what all readers have read: rows strictly below the lowest cursor, never the
newest row, and only in small steps at moments when the write lock is free: the application must not
notice (R42). A step is limited by time, and by how many rows earlier steps could remove in that
time. Pruning must not disturb the reader either, so if the lock is taken, or on any other error, it
is retried later.

Long because cursors decide both where reading continues and which rows can be removed.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Literal

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import (
    DELETE,
    INSERT,
    OURS,
    UPDATE,
    CaptureNames,
    CapturePosition,
    ReadLimits,
    Row,
    fetch,
    has_wal,
    reading,
    row_facts,
    writing,
)
from headrace.capture.sqlite.trigger_sql import HALF, PAIRED
from headrace.capture.sqlite.triggers import REPLANNED, CapturedColumns

# --- reading the log ------------------------------------------------------------------------------

READ_BYTES = 16 << 20
READ_SECONDS = 0.1
READ_SECONDS_ROLLBACK = 0.004
"""The limits of one read transaction, with a WAL and without; more is read in parts (R42, R44)."""


class CaptureLog:
    """Reads rows after `at`, the last one taken; call all methods within a read transaction."""

    def __init__(
        self, database: sqlite3.Connection, at: CapturePosition, names: CaptureNames = OURS
    ) -> None:
        self.at = at
        self.missing = False
        """Whether numbers were missing among the rows that were read last."""
        self.unclear: set[int] = set()
        """The plans of rows that could not be put in order: their tables have to be copied."""
        self._database = database
        self._names = names
        self._seconds = READ_SECONDS if has_wal(database) else READ_SECONDS_ROLLBACK
        self._end = at.seq
        self.last = at
        """The last row that was read, which `advance` moves to."""
        self._before: dict[int, CapturePosition] = {}

    @property
    def complete(self) -> bool:
        """Whether `at` is the end of a transaction of the application."""
        return self.at.seq >= self._end

    @property
    def end(self) -> int:
        """The last row of the group that is being read: the end of a transaction."""
        return self._end

    def goes_on(self) -> bool:
        """Whether the row at `at` still exists unchanged: otherwise reading cannot continue."""
        return compare(self._database, self.at, self._names) == "same"

    def read(
        self, most: int, width: int, every: Mapping[int, CapturedColumns] | None = None
    ) -> list[Row]:
        """
        Return the next rows, [] if there are none; `advance` moves past them.

        A row consists of seq, ts, tbl, op and both images, each `width` columns wide. `every` has
        the plans, without which rows stay as they are in the log. Rows of one statement are
        returned together if any is of a tangled table.
        """
        every = every or {}
        tangled = {number for number, plan in every.items() if plan.tangled}
        self.missing = False
        self._before.clear()
        if self.complete:
            (self._end,) = self._database.execute(
                f"select max(seq) from {self._names.log}"
            ).fetchone()
        while not self.complete:
            after = self.at
            found = self._fetch(most, min(width, PAIRED), tangled)
            self.last = CapturePosition.of(after.capture, found[-1])
            self.missing |= self.last.seq - after.seq != len(found)
            rows = found
            if width > PAIRED:
                rows = list(_joined(found, width, every))
            if tangled:
                rows = self._ordered(rows, width, every, tangled)
            if rows:
                return rows
            self.at = self.last  # nothing was left of them
        return []

    def advance(self, last: Row | None = None) -> None:
        """Move past all rows that were read, or past those up to this one."""
        self.at = self.last if last is None else self.position(last)

    def position(self, row: Row) -> CapturePosition:
        """Return from where to read after `row`; rows that belong together may come again."""
        return self._before.get(int(str(row[0]))) or CapturePosition.of(self.at.capture, row)

    def _fetch(self, most: int, width: int, tangled: Collection[int]) -> list[Row]:
        """Return the next rows as they are in the log, without a part of what belongs together."""
        images = ", ".join(f"{side}{number}" for side in "ba" for number in range(width))
        rows: list[Row] = []
        while True:
            after = rows[-1][0] if rows else self.at.seq
            part, _ = fetch(
                self._database,
                f"select seq, ts, tbl, op, {images} from {self._names.log} "
                f"where seq > ? and seq <= ? order by seq limit {most}",
                (after, self._end),
                ReadLimits(most, READ_BYTES, time.monotonic() + self._seconds),
            )
            rows += part
            if not part or rows[-1][0] == self._end:
                return rows
            if whole := _whole(rows, tangled):
                return rows[:whole]

    def _ordered(
        self,
        rows: Sequence[Row],
        width: int,
        every: Mapping[int, CapturedColumns],
        tangled: Collection[int],
    ) -> list[Row]:
        """Return rows with those of tangled tables in the order of what happened."""
        made: list[Row] = []
        for _, group in groupby(rows, key=itemgetter(1)):
            statement = list(group)
            for plan in {row[2] for row in statement if row[2] in tangled}:
                own = [row for row in statement if row[2] == plan and row[3] <= DELETE]  # type: ignore[operator]
                if len(own) < 2:
                    continue
                order = _RowOrder(every[plan].fingerprint, width)  # type: ignore[index]
                changed = order.repaired(own)
                if changed is None:
                    continue
                if order.unclear:
                    self.unclear.add(int(str(plan)))
                before = CapturePosition.of(self.at.capture, made[-1]) if made else self.at
                before = self._before.get(before.seq, before)
                others = [row for row in statement if row[2] != plan or row[3] > DELETE]  # type: ignore[operator]
                self._before |= {int(str(row[0])): before for row in statement}
                statement = sorted([*others, *changed], key=itemgetter(0))
            made += statement
        return made


def _whole(rows: Sequence[Row], tangled: Collection[int]) -> int:
    """Return how many of `rows` are not separated from later ones that belong to them; may be 0."""
    if tangled:
        # All rows of one statement have the same time, which others may have, too.
        time_of_last = rows[-1][1]
        begin = len(rows)
        while begin and rows[begin - 1][1] == time_of_last:
            begin -= 1
        if any(row[2] in tangled for row in rows[begin:]):
            return begin
    return len(rows) - (rows[-1][3] == HALF)


def _joined(rows: Sequence[Row], width: int, every: Mapping[int, CapturedColumns]) -> Iterator[Row]:
    """Yield rows with images of `width` columns, from those of tables of any width."""
    half: Row = ()
    for row in rows:
        plan = every.get(row[2])  # type: ignore[call-overload]
        count = 0 if plan is None else len(plan.fingerprint)
        image = row[4:]
        if count <= PAIRED:
            none = (None,) * (width - PAIRED)
            yield (*row[:4], *image[:PAIRED], *none, *image[PAIRED:], *none)
            continue
        if row[3] == HALF:
            half = image
            continue
        full = (*image[:count], *(None,) * (width - count))
        none = (None,) * width
        old = (*half[:count], *(None,) * (width - count)) if half else none
        half = ()
        if row[3] == DELETE:
            yield (*row[:4], *full, *none)
        else:
            yield (*row[:4], *old, *full)


# --- the order of changes in a tangled table ------------------------------------------------------


_Image = tuple[object, ...] | None


@dataclass(slots=True)
class _Step:
    """A change of one key: to the row that has it, or to the one that had it."""

    row: int
    before: _Image
    after: _Image


class _RowOrder:
    """
    Puts the changes of one table by one statement in order.

    A change that led to another one may come after it. For each key, a change leads from an image
    to an image, where none is one, too. What the first change begins with, and the last one ends
    with, is the image that occurs once more on that side than on the other. In between, each
    change begins with what the previous one ended with. If there are several ways, only the first
    and the last image are kept; if they are equal, nothing.
    """

    def __init__(self, fingerprint: Sequence[tuple[str, str, int]], width: int) -> None:
        self._count = len(fingerprint)
        self._key = [at for at, column in enumerate(fingerprint) if column[2]]
        self._width = width
        self.unclear = False
        """Whether some changes do not fit together."""

    def repaired(self, rows: Sequence[Row]) -> list[Row] | None:
        """Return the rows in order, with ascending numbers; None if they are as they should be."""
        steps = self._steps(rows)
        wrong = {key for key, own in steps.items() if not _in_order(own)}
        if not wrong:
            return None
        self.unclear = any(_begins_twice(steps[key]) for key in wrong)
        moved = {step.row for key in wrong for step in steps[key]}
        kept = [step for key in wrong for step in self._put_in_order(steps[key])]
        kept += [
            step
            for key, own in steps.items()
            if key not in wrong
            for step in own
            if step.row in moved
        ]
        made = {number: row for number, row in enumerate(rows) if number not in moved}
        fused = _one_for_each_row(kept)
        if fused is None:
            # Each key has one change, so that their order does not matter.
            made = {}
            net = _fused([step for own in steps.values() for step in self._net(own)], len(rows))
            self.unclear |= len(net) > len(rows)
            net = net[: len(rows)]
            fused = dict(enumerate(net, len(rows) - len(net)))
        made |= {number: self._row(rows[number], step) for number, step in fused.items()}
        return [made[number] for number in sorted(made)]

    def _steps(self, rows: Sequence[Row]) -> dict[_Image, list[_Step]]:
        steps: dict[_Image, list[_Step]] = {}
        for number, row in enumerate(rows):
            op = row[3]
            before = None if op == INSERT else row[4 : 4 + self._count]
            first = 4 + self._width
            after = None if op == DELETE else row[first : first + self._count]
            old, new = self._key_of(before), self._key_of(after)
            if old is None or new is None or old == new:
                steps.setdefault(old if new is None else new, []).append(
                    _Step(number, before, after)
                )
            else:
                steps.setdefault(old, []).append(_Step(number, before, None))
                steps.setdefault(new, []).append(_Step(number, None, after))
        return steps

    def _key_of(self, image: _Image) -> _Image:
        # Keys that are equal as numbers are one, as in a target.
        return None if image is None else tuple(image[at] for at in self._key)

    def _ends(self, steps: Sequence[_Step]) -> tuple[_Image, _Image] | None:
        """Return the first and the last image of a key; None if they are equal."""
        images: dict[_Image, _Image] = {}
        degree: Counter[_Image] = Counter()
        for step in steps:
            before, after = _exactly(step.before), _exactly(step.after)
            images[before], images[after] = step.before, step.after
            degree[before] -= 1
            degree[after] += 1
        first = [image for image, count in degree.items() if count < 0]
        last = [image for image, count in degree.items() if count > 0]
        if not first and not last:
            return None
        if len(first) != 1 or len(last) != 1 or degree[last[0]] != 1:
            self.unclear = True
            return steps[0].before, steps[-1].after
        return images[first[0]], images[last[0]]

    def _net(self, steps: Sequence[_Step]) -> list[_Step]:
        ends = self._ends(steps)
        return [] if ends is None else [_Step(steps[-1].row, *ends)]

    def _put_in_order(self, steps: Sequence[_Step]) -> list[_Step]:
        ends = self._ends(steps)
        if ends is None or self.unclear:
            return self._net(steps)
        following = {_exactly(step.before): step for step in steps}
        if len(following) < len(steps):
            return self._net(steps)
        made: list[_Step] = []
        here = _exactly(ends[0])
        for row in sorted(step.row for step in steps):
            step = following.get(here)
            if step is None:
                return self._net(steps)
            made.append(_Step(row, step.before, step.after))
            here = _exactly(step.after)
        return made

    def _row(self, row: Row, step: _Step) -> Row:
        none = (None,) * self._width
        rest = (None,) * (self._width - self._count)
        before = none if step.before is None else (*step.before, *rest)
        after = none if step.after is None else (*step.after, *rest)
        op = INSERT if step.before is None else DELETE if step.after is None else UPDATE
        return (*row[:3], op, *before, *after)


def _in_order(steps: Sequence[_Step]) -> bool:
    """Whether each change begins with what the previous one ended with."""
    if len(steps) == 1:
        return True
    images = [(_exactly(step.before), _exactly(step.after)) for step in steps]
    # If it ends as it began, each change may be the first one.
    return images[0][0] != images[-1][1] and all(
        one[1] == next_[0] for one, next_ in pairwise(images)
    )


def _begins_twice(steps: Sequence[_Step]) -> bool:
    """
    Whether a change begins with an image that another one has left, as far as the log shows.

    If an UPDATE OR REPLACE removes a row, and foreign keys then change the row that is updated, the
    image before the update is from before that. The images no longer show what came last.
    """
    left = set()
    for step in steps:
        before, after = _exactly(step.before), _exactly(step.after)
        if before is not None and before in left:
            return True
        left.add(before)
        left.discard(after)
    return False


def _one_for_each_row(steps: Sequence[_Step]) -> dict[int, _Step] | None:
    """Return the steps by row, if a deletion and an insertion can be an update of the key."""
    found: dict[int, _Step] = {}
    for step in steps:
        other = found.get(step.row)
        if other is None:
            found[step.row] = step
        elif step.before is None and other.after is None:
            found[step.row] = _Step(step.row, other.before, step.after)
        elif step.after is None and other.before is None:
            found[step.row] = _Step(step.row, step.before, other.after)
        else:
            return None
    return found


def _fused(steps: Sequence[_Step], most: int) -> list[_Step]:
    """Return at most `most` steps: a deletion and an insertion become an update of the key."""
    removed = [step for step in steps if step.after is None]
    added = [step for step in steps if step.before is None]
    kept = [step for step in steps if step.before is not None and step.after is not None]
    while removed and added and len(kept) + len(removed) + len(added) > most:
        old, new = removed.pop(), added.pop()
        kept.append(_Step(max(old.row, new.row), old.before, new.after))
    return sorted([*removed, *kept, *added], key=lambda step: step.row)


def _exactly(image: _Image) -> _Image:
    """Return an image that equals another one only if both have the same values and types."""
    if image is None:
        return None
    return tuple((value.hex(),) if isinstance(value, float) else value for value in image)


SAMPLED_ROWS = 8
"""The newest rows, whose sizes stand for all: counting every byte would read the whole log."""


def row_bytes(database: sqlite3.Connection, names: CaptureNames = OURS) -> float:
    """Return the approximate size of a row of the log, the average of the newest ones."""
    _, last = triggers.log_ends(database, names)
    limits = ReadLimits(SAMPLED_ROWS, READ_BYTES, math.inf)
    query = f"select * from {names.log} where seq > ? order by seq desc"
    rows, _ = fetch(database, query, (last - SAMPLED_ROWS,), limits)
    return sum(map(_stored_bytes, rows)) / len(rows) if rows else 0.0


def _stored_bytes(row: Row) -> int:
    """Return about how many bytes SQLite stores for a row: a null has only its header."""
    values = (len(each) if isinstance(each, str | bytes) else 6 for each in row if each is not None)
    return len(row) + sum(values)


def compare(
    database: sqlite3.Connection, position: CapturePosition, names: CaptureNames = OURS
) -> Literal["same", "pruned", "reset"]:
    """Return whether the row that `position` names still exists unchanged (R40)."""
    row = database.execute(
        f"select ts, tbl, op from {names.log} where seq = ?", (position.seq,)
    ).fetchone()
    if row is not None:
        return "same" if row_facts(*row) == position.row_facts else "reset"
    (first,) = database.execute(f"select min(seq) from {names.log}").fetchone()
    return "pruned" if first is not None and first > position.seq else "reset"


def end_of(
    database: sqlite3.Connection, capture: str, names: CaptureNames = OURS
) -> CapturePosition:
    """Return the last row of the log."""
    row = database.execute(
        f"select seq, ts, tbl, op from {names.log} order by seq desc limit 1"
    ).fetchone()
    return CapturePosition(capture, 0) if row is None else CapturePosition.of(capture, row)


# --- readers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """One row of the table of readers."""

    name: str
    capture: str
    cursor: int
    """Rows after this one stay in the log."""

    tables: Mapping[str, object]
    """
    The tables that it reads. An engine has one row, with True for each table, or False for a table
    that it no longer reads. A reader of the library has a row for each table, with the `row_facts`
    of its cursor, or None.
    """


def reader_rows(database: sqlite3.Connection, names: CaptureNames = OURS) -> Iterator[ReaderRow]:
    """Iterate over the rows of all readers, by name."""
    for name, capture, cursor, tables in database.execute(
        f"select name, capture, cursor, tables from {names.readers} order by name"
    ).fetchall():
        yield ReaderRow(name, capture, cursor, json.loads(tables))


def put_reader(database: sqlite3.Connection, row: ReaderRow, names: CaptureNames = OURS) -> None:
    """Register a reader, or replace its row; within a transaction."""
    database.execute(
        f"insert or replace into {names.readers} values (?, ?, ?, ?)",
        (row.name, row.capture, row.cursor, json.dumps(row.tables)),
    )


# --- where an engine continues --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaptureReader:
    """A reader of a capture log, and what it reads."""

    name: str
    tables: tuple[str, ...]
    removed_before: CapturePosition | None = None
    """A row before which rows were found to be missing: reading cannot continue from there."""


def resume(
    database: sqlite3.Connection,
    capture: str,
    wanted: CapturePosition | None,
    reader: CaptureReader,
) -> tuple[CapturePosition, list[str]]:
    """
    Return `wanted` if the history continues there, else another position; register it.

    Also return the tables that this reader has left out for a while: it has skipped their changes.
    """
    with reading(database):
        row = next((row for row in reader_rows(database) if row.name == reader.name), None)
        position = _following(database, capture, wanted, reader)
    before = {} if row is None else row.tables
    now = {**dict.fromkeys(before, False), **dict.fromkeys(reader.tables, True)}
    lapsed = [name for name in reader.tables if before.get(name) is False]
    if position is not None and row is not None and _protects(row, position, now):
        return position, lapsed
    with writing(database):
        if position is None:
            # The log was emptied or comes from a copy: its numbers have no meaning now.
            capture = triggers.renew(database)
            position = end_of(database, capture)
        put_reader(database, ReaderRow(reader.name, capture, position.seq, now))
    return position, lapsed


def _protects(row: ReaderRow, position: CapturePosition, tables: Mapping[str, object]) -> bool:
    """Whether a reader's row keeps what follows `position` from being removed."""
    return row.capture == position.capture and row.cursor <= position.seq and row.tables == tables


def _following(
    database: sqlite3.Connection,
    capture: str,
    wanted: CapturePosition | None,
    reader: CaptureReader,
) -> CapturePosition | None:
    """Return the position; None if the log needs a new uuid."""
    if wanted is None or wanted.capture != capture:
        return end_of(database, capture)
    match compare(database, wanted):
        case "same" if not _is_interrupted(wanted, reader.removed_before):
            return wanted
        case "same" | "pruned":
            return end_of(database, capture)
        case "reset":
            return None


def _is_interrupted(position: CapturePosition, before: CapturePosition | None) -> bool:
    return before is not None and before.capture == position.capture and position.seq < before.seq


def gaps(
    database: sqlite3.Connection,
    position: CapturePosition,
    tables: Collection[str],
    every: Mapping[int, CapturedColumns],
) -> dict[str, int]:
    """
    Return the tables of which changes after `position` may be missing, and the last such row.

    They may be if there is a marker (R39), or a row that was logged with other columns than the
    table has now.
    """
    found = {}
    for table in tables:
        own = {number: plan for number, plan in every.items() if plan.table == table}
        newest = triggers.latest(every, table)
        old = [
            number
            for number, plan in own.items()
            if newest is not None and list(plan.fingerprint) != list(newest.fingerprint)
        ]
        (last,) = database.execute(
            f"select max(seq) from {OURS.log} where seq > ? and "
            f"((op = ? and tbl in ({_numbers(own)})) or tbl in ({_numbers(old)}))",
            (position.seq, REPLANNED),
        ).fetchone()
        if last is not None:
            found[table] = int(last)
    return found


def _numbers(plans: Iterable[int]) -> str:
    return ", ".join(map(str, plans)) or "null"


# --- the removal of what was read -----------------------------------------------------------------

HELD_SECONDS = 0.002
"""The limit of one step, during which no other connection can write (R42)."""

STEP_ROWS = 500
MOST_STEP_ROWS = 64 * STEP_ROWS
"""How many rows the first step removes at most, and any step."""

STEP_SECONDS = 0.05
"""Pause between two steps while there is more to remove."""

REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 30.0


class CursorPruner:
    """Moves one reader's cursor and removes rows that no reader needs."""

    def __init__(
        self, database: sqlite3.Connection, reader: str, capture: str, names: CaptureNames = OURS
    ) -> None:
        self._database = database
        self._names = names
        self._reader = reader
        self._capture = capture
        self._removal = RowRemoval(database, names)
        self.allowed = 0
        """The last row that this reader no longer needs, since it was opened."""

        self._done = 0
        self._more = False
        self._due = 0.0
        self._rest = REST_SECONDS

    def allow(self, upto: int) -> None:
        """Note that this reader no longer needs anything at or before `upto`."""
        self.allowed = max(self.allowed, upto)

    def step(self) -> None:
        """Remove a few rows, if it is time and no other connection writes."""
        now = time.monotonic()
        if now < self._due or (self.allowed <= self._done and not self._more):
            return
        allowed = self.allowed
        (patience,) = self._database.execute("pragma busy_timeout").fetchone()
        self._database.execute("pragma busy_timeout = 0")
        try:
            self._more = self._remove(allowed)
        except sqlite3.OperationalError:
            self._due = now + self._rest
            self._rest = min(self._rest * 2, LONGEST_REST_SECONDS)
        else:
            self._done = allowed
            self._rest = REST_SECONDS
            self._due = now + (STEP_SECONDS if self._more else REST_SECONDS)
        finally:
            self._database.execute(f"pragma busy_timeout = {int(patience)}")

    def _remove(self, allowed: int) -> bool:
        with self._removal.step():
            self._database.execute(
                f"update {self._names.readers} set cursor = max(cursor, ?) "
                "where name = ? and capture = ?",
                (allowed, self._reader, self._capture),
            )
            lowest = lowest_cursor(self._database, self._capture, self._names)
            return lowest is not None and self._removal.remove(lowest)


def lowest_cursor(
    database: sqlite3.Connection, capture: str, names: CaptureNames = OURS
) -> int | None:
    """Return the row that the slowest reader has read; None if there is no reader."""
    # Cursors of another capture refer to other numbers: those readers start over anyway.
    (lowest,) = database.execute(
        f"select min(cursor) from {names.readers} where capture = ?", (capture,)
    ).fetchone()
    return None if lowest is None else int(lowest)


class RowRemoval:
    """
    Removes rows of the log in steps, during which nobody else can write.

    A step ends after `HELD_SECONDS`. Only a statement that has begun cannot be ended, and its
    commit takes some time as well. So a statement removes only as many rows as the step has time
    for, by its own speed so far; and a step may remove twice as many as the last one if that took
    at most half of the time, commit included, or fewer if it took too long.
    """

    def __init__(self, database: sqlite3.Connection, names: CaptureNames = OURS) -> None:
        self._database = database
        self._names = names
        self._most = STEP_ROWS
        self._began = 0.0
        self.removed = 0
        """How many rows the last step has removed."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run the block, which calls `remove`, in a transaction of its own."""
        self.removed = 0
        with writing(self._database):
            self._began = time.monotonic()
            yield
        took = time.monotonic() - self._began
        if took > HELD_SECONDS:
            self._most = min(self._most, max(1, int(self.removed * HELD_SECONDS / took)))
        elif took <= HELD_SECONDS / 2 and self.removed >= self._most:
            self._most = min(2 * self._most, MOST_STEP_ROWS)

    def remove(self, before: int) -> bool:
        """Remove rows before this one; return whether there are more. The newest row stays."""
        first, last = triggers.log_ends(self._database, self._names)
        # Strictly below the cursor: the row at the cursor is checked later (R40).
        end = min(before, last)
        stop = min(end, first + self._most)
        count = 1
        while first < stop and count:
            first = min(stop, first + count)
            self.removed += self._database.execute(
                f"delete from {self._names.log} where seq < ?", (first,)
            ).rowcount
            # Twice as many each time: one may be large, and most are small.
            count *= 2
            took = time.monotonic() - self._began
            if took > 0:
                fitting = self.removed * (HELD_SECONDS - took) / took
                count = min(count, max(0, int(fitting)))
        return first < end
