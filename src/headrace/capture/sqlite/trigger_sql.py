"""
The text of the triggers that capture a table.

Most tables need three AFTER triggers, with one INSERT into the log each. An update that changes no
value, byte by byte, is not logged.

If REPLACE can remove rows with another key (`SourceTable.collisions`), there are two BEFORE
triggers as well. They copy the rows that collide with the new one to the *stash*. The AFTER trigger
logs those that are gone as deleted, before the row itself. The stash is touched only if rows
collide. Some of these stay, because the statement did nothing (IGNORE), updated the other row
(UPSERT) or failed for this row: these are left in the stash, and removed with the next row that
is written. If the writer has `recursive_triggers` on, the delete trigger runs for the removed rows;
it removes them from the stash, so that they are logged once. The triggers for this do not run for
an update that sets no column of such an index, which is the usual one.

In a *tangled* table, a change of one row may lead to changes of others before it is finished. So a
row that is stashed may change, which the triggers follow. While an update moves it, it is not gone.
What is left over is recognised by its time, which is that of the statement. A row that is replaced
by one with the same key is logged as deleted, too, because these changes may have to be put in
order (`capture_log`).

If a table has a filter, rows for which it is not true are neither logged nor stashed. Then rows
that are replaced by one with the same key are stashed as well: the new one may not be logged.

An image has at most 1,996 columns. If two images do not fit into a row of the log, an update is two
rows: the first one (`HALF`) has the row before, the second one the row after.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.capture.sqlite.database import DELETE, EVENTS, INSERT, UPDATE, CaptureNames, quoted
from headrace.capture.sqlite.tables import (
    Collision,
    SourceTable,
    column_list,
    differs,
    either,
    every,
    filter_text,
)

PAIRED = 998
"""The most columns of a table for which both images fit into one row of the log."""

HALF = 4
"""The `op` of a row that has only the image before an update; the next row has the other one."""

# Milliseconds in every version of SQLite: other time functions differ between versions, and
# the application may use an old one. It is the time of the statement, not of the commit.
NOW = "cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer)"


def slots(count: int, side: str) -> list[str]:
    """Return the log's columns for an image of `count` columns; `side` is b or a."""
    if count <= PAIRED:
        return [f"{side}{number}" for number in range(count)]
    return [f"{each}{number}" for each in "ba" for number in range(PAIRED)][:count]


def trigger_texts(table: SourceTable, plan: int, names: CaptureNames) -> dict[str, str]:
    """Return the triggers by name, each with exactly the text that SQLite stores."""
    return _Texts(table, plan, names).all()


def texts_of_format_1(table: SourceTable, plan: int, names: CaptureNames) -> dict[str, str]:
    """Return the triggers as versions before format 2 created them."""
    columns = table.names
    before, after = (", ".join(slots(len(columns), side)) for side in "ba")
    old, new = column_list(columns, "OLD."), column_list(columns, "NEW.")
    images = {
        INSERT: (after, new),
        UPDATE: (f"{before}, {after}", f"{old}, {new}"),
        DELETE: (before, old),
    }
    made = {}
    for event, op in EVENTS:
        name = names.trigger(plan, event)
        image, values = images[op]
        made[name] = (
            f"CREATE TRIGGER {quoted(name)} after {event} on {quoted(table.name)} begin "
            f"insert into {names.log} (ts, tbl, op, {image}) "
            f"values ({NOW}, {plan}, {op}, {values}); end"
        )
    return made


class _Texts:
    """Builds the triggers of one table."""

    def __init__(self, table: SourceTable, plan: int, names: CaptureNames) -> None:
        self._table = table
        self._plan = plan
        self._names = names
        self._on = quoted(table.name)
        self._columns = table.names
        self._stash = names.stash
        self._stashed = [f"s{number}" for number in range(len(self._columns))]
        self._mine = f"{self._stash}.tbl = {plan}"

    def all(self) -> dict[str, str]:
        table, tangled = self._table, self._table.tangled
        old, new = column_list(self._columns, "OLD."), column_list(self._columns, "NEW.")
        insert = [self._log(INSERT, new)]
        delete = [self._log(DELETE, old)]
        count = len(self._columns)
        update = (
            [self._log(UPDATE, f"{old}, {new}", both=True)]
            if count <= PAIRED
            else [self._log(HALF, old), self._log(UPDATE, new)]
        )
        changed = [differs(column) for column in table.columns if not column.generated]
        is_old, is_new = "", ""
        if table.where:
            is_old, is_new = (filter_text(table, f"{row}.") for row in ("OLD", "NEW"))
            # A row that enters the captured ones is inserted, and one that leaves them is deleted.
            update = [
                self._log_if(UPDATE, f"{old}, {new}", f"{is_old} and {is_new}", both=True),
                self._log_if(INSERT, new, f"{is_new} and not {is_old}"),
                self._log_if(DELETE, old, f"{is_old} and not {is_new}"),
            ]
            insert = [self._log_if(INSERT, new, is_new)]
            delete = [self._log_if(DELETE, old, is_old)]
        triggers: list[tuple[str, str, Sequence[str]]] = []
        if table.collisions:
            if table.rowid is not None and table.rowid not in self._columns:
                rowid = quoted(table.rowid)
                changed.append(f"OLD.{rowid} is not NEW.{rowid}")
            kept = f"{self._mine} and {self._is('OLD')}"
            if tangled:
                kept += f" and {self._image('OLD')}"
            else:
                delete.insert(0, f"delete from {self._stash} where {kept}")
            gone = f"not {self._exists()}"
            if table.where:
                # The new row with this key may not be logged.
                gone = f"({self._is('NEW')} or {gone})"
            if tangled:
                placed = f"({self._is('NEW')} or {gone})"
                finished = f"{self._stash}.moves is null and {placed}"
                insert[:0] = self._log_removed(finished)
                removed = self._log_removed(f"not ({self._is('OLD')}) and {finished}")
                update[:0] = [*removed, self._follow()]
                # The row for which others were removed may be deleted before it is written.
                delete += self._log_removed(f"{self._stash}.moves is null and {gone}")
            else:
                insert[:0] = self._log_removed(gone)[:1]
            triggers = [
                ("before insert", self._collides(None), self._fill(None)),
                (
                    f"before update{self._colliding_columns}",
                    self._collides("OLD"),
                    self._fill("OLD"),
                ),
            ]
            if tangled:
                # Before the row is deleted: what its foreign keys lead to must not log it, too.
                stashed = f"exists (select 1 from {self._stash} where {kept})"
                triggers.append(
                    ("before delete", stashed, [f"delete from {self._stash} where {kept}"])
                )
        triggers += [
            ("after insert", "", insert),
            ("after update", _both(either(changed), is_old and f"{is_old} or {is_new}"), update),
            ("after delete", "", delete),
        ]
        if table.collisions and not tangled:
            # The newer one of two triggers for an event runs first: removed rows are logged first.
            stashed = f"exists (select 1 from {self._stash} where {self._mine})"
            removed = self._log_removed(gone)[:1]
            triggers.append((f"after update{self._colliding_columns}", stashed, removed))
        made: dict[str, str] = {}
        for when, condition, body in triggers:
            timing, event = when.split()[:2]
            name = self._names.trigger(
                self._plan, event if timing == "after" else f"before_{event}"
            )
            if name in made:
                name = self._names.trigger(self._plan, f"replaced_{event}")
            guard = f" when {condition}" if condition else ""
            steps = "; ".join(body)
            made[name] = (
                f"CREATE TRIGGER {quoted(name)} {when} on {self._on}{guard} "
                f"begin /* 2 */ {steps}; end"
            )
        return made

    @property
    def _colliding_columns(self) -> str:
        """
        Return which columns an update has to set so that REPLACE can remove a row, as SQL text.

        Then other updates do not run the trigger at all. It is empty, which is any column, unless
        all of these columns are known by name, and can be set by no other name.
        """
        table = self._table
        settable = {column.name for column in table.columns if not column.generated}
        settable.discard(table.rowid or "")
        names = dict.fromkeys(name for each in table.collisions for name in each.columns)
        known = all(each.columns for each in table.collisions) and settable.issuperset(names)
        return f" of {column_list(list(names))}" if known and not table.tangled else ""

    # -- the log ------------------------------------------------------------------------------

    def _log(self, op: int, values: str, *, both: bool = False) -> str:
        return f"insert into {self._into(op, both=both)} values ({self._facts(op)}, {values})"

    def _log_if(self, op: int, values: str, condition: str, *, both: bool = False) -> str:
        into = self._into(op, both=both)
        return f"insert into {into} select {self._facts(op)}, {values} where {condition}"

    def _log_removed(self, condition: str) -> list[str]:
        """Return the statements that log rows of the stash as deleted, and remove them there."""
        values = ", ".join(self._stashed)
        where = f"where {self._mine} and {condition}"
        return [
            f"insert into {self._into(DELETE)} "
            f"select {self._facts(DELETE)}, {values} from {self._stash} {where}",
            f"delete from {self._stash} {where}",
        ]

    def _into(self, op: int, *, both: bool = False) -> str:
        sides = "ba" if both else ("b" if op in (DELETE, HALF) else "a")
        image = ", ".join(slot for side in sides for slot in slots(len(self._columns), side))
        return f"{self._names.log} (ts, tbl, op, {image})"

    def _facts(self, op: int) -> str:
        return f"{NOW}, {self._plan}, {op}"

    # -- the stash ----------------------------------------------------------------------------

    def _others(self, collision: Collision, row: str | None) -> str:
        """Return the condition for rows that collide with NEW, other than `row` itself."""
        if row is None:
            return collision.same
        if self._table.rowid is not None:
            rowid = quoted(self._table.rowid)
            return f"{collision.same} and {self._on}.{rowid} <> {row}.{rowid}"
        own = [f"{quoted(name)} collate binary is {row}.{quoted(name)}" for name in self._table.key]
        return f"{collision.same} and not ({' and '.join(own)})"

    def _collides(self, row: str | None) -> str:
        """Return whether the stash must be filled, or has something that is left over."""
        terms = []
        for collision in self._table.collisions:
            term = f"exists (select 1 from {self._on} where {self._others(collision, row)})"
            if row is not None and collision.columns:
                moved = [
                    f"{row}.{quoted(name)} collate binary is not NEW.{quoted(name)}"
                    for name in collision.columns
                ]
                term = f"({' or '.join(moved)}) and {term}"
            terms.append(term)
        terms.append(f"exists (select 1 from {self._stash} where {self._left_over})")
        if row is not None and self._table.tangled:
            terms.append(f"exists (select 1 from {self._stash} where {self._moves})")
        return either(terms)

    @property
    def _left_over(self) -> str:
        if not self._table.tangled:
            return self._mine
        return f"{self._mine} and {self._stash}.at is not {NOW}"

    @property
    def _moves(self) -> str:
        """Return whether an update moves a row that is stashed, under another rowid or key."""
        table = self._table
        names = table.key if table.rowid is None else (table.rowid,)
        moved = [f"OLD.{quoted(name)} collate binary is not NEW.{quoted(name)}" for name in names]
        return f"{self._mine} and {self._is('OLD')} and ({' or '.join(moved)})"

    def _fill(self, row: str | None) -> list[str]:
        """Return the statements that stash the rows that collide with NEW."""
        stash, table = self._stash, self._table
        into = f"insert into {stash} (tbl, at, r, {', '.join(self._stashed)})"
        rowid = "null" if table.rowid is None else f"{self._on}.{quoted(table.rowid)}"
        image = column_list(self._columns, f"{self._on}.")
        steps = [f"delete from {stash} where {self._left_over}"]
        if row is not None and table.tangled:
            steps.append(f"update {stash} set moves = 1 where {self._moves}")
        for number, collision in enumerate(table.collisions):
            where = self._others(collision, row)
            if table.tangled:
                steps.append(
                    f"delete from {stash} where {self._mine} and exists "
                    f"(select 1 from {self._on} where {where} and {self._is(self._on)})"
                )
            elif number:
                where += (
                    f" and not exists (select 1 from {stash} where {self._mine}"
                    f" and {self._is(self._on)})"
                )
            if table.where:
                where += f" and {filter_text(table, f'+{self._on}.')}"
            steps.append(
                f"{into} select {self._plan}, {NOW}, {rowid}, {image} from {self._on} where {where}"
            )
        return steps

    def _follow(self) -> str:
        """Return the statement that updates a stashed row with the row itself."""
        table = self._table
        rowid = "null" if table.rowid is None else f"NEW.{quoted(table.rowid)}"
        values = [
            f"{slot} = NEW.{quoted(name)}"
            for slot, name in zip(self._stashed, self._columns, strict=True)
        ]
        return (
            f"update {self._stash} set moves = null, r = {rowid}, {', '.join(values)} "
            f"where {self._mine} and {self._is('OLD')} and {self._image('OLD')}"
        )

    def _is(self, row: str) -> str:
        """Return whether a row of the stash is `row`: OLD, NEW, or one of the table."""
        if self._table.rowid is not None:
            return f"{self._stash}.r = {row}.{quoted(self._table.rowid)}"
        return self._has_key(row)

    def _has_key(self, row: str) -> str:
        # A column of the stash comes first: its collation is BINARY.
        return " and ".join(
            f"{self._stash}.s{self._columns.index(name)} is {row}.{quoted(name)}"
            for name in self._table.key
        )

    def _image(self, row: str) -> str:
        return every(
            [
                f"{self._stash}.{slot} is {row}.{quoted(name)}"
                for slot, name in zip(self._stashed, self._columns, strict=True)
            ]
        )

    def _exists(self) -> str:
        """Return whether a row of the stash is still in the table, or one with the same key."""
        table = self._table
        if table.rowid is None:
            found = [
                f"{self._on}.{quoted(name)} collate {collation} = "
                f"{self._stash}.s{self._columns.index(name)}"
                for name, collation in zip(table.key, table.collations, strict=True)
            ]
            found.append(self._has_key(self._on))
        else:
            found = [f"{self._on}.{quoted(table.rowid)} = {self._stash}.r"]
            if table.rowid not in table.key:
                found.append(self._has_key(self._on))
        return f"exists (select 1 from {self._on} where {' and '.join(found)})"


def _both(condition: str, other: str) -> str:
    return f"({condition}) and ({other})" if other else condition
