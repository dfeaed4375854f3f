"""
Random schemas and random statements: what is read from the capture log makes the table.

A seed draws a schema, with unique indexes of every kind, triggers of the application, foreign keys,
generated columns, collations, with and without a rowid or a key. Then it draws statements, in
transactions with savepoints, of which many fail. Each is also run in a second database without
capture: it must have the same effect and the same error there (R42). What the log says is applied
to copies of the tables, which must be equal to these after each transaction.

    python -m tests.capture.sqlite_fuzz --seeds 20000 --from 0 --jobs 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.capture_log import CaptureLog, end_of
from headrace.capture.sqlite.copy import Pages
from headrace.capture.sqlite.database import DELETE, INSERT, UPDATE, Row
from headrace.capture.sqlite.tables import SourceTable, inspect
from headrace.errors import TableRefused

Image = tuple[object, ...]

STATEMENTS = 60


class Wrong(AssertionError):
    """A copy differs from its table, or a statement has another effect because of capture."""


# --- schemas --------------------------------------------------------------------------------------

KEYS = {
    "alias": ("id integer primary key", ["id"], ""),
    "autoincrement": ("id integer primary key autoincrement", ["id"], ""),
    "text": ("k text not null primary key", ["k"], ""),
    "nocase": ("k text collate nocase not null primary key", ["k"], ""),
    "rtrim": ("k text collate rtrim not null primary key", ["k"], ""),
    "numeric": ("k not null primary key", ["k"], ""),
    "both": ("k text not null, id int not null", ["id", "k"], ""),
    "no rowid": ("k text not null, id int not null", ["id", "k"], "without rowid"),
    "no rowid, nocase": ("k text collate nocase primary key", ["k"], "without rowid"),
    "none": ("id int", [], ""),
    "none, named": ('"rowid" int, id int', [], ""),
}

INDEXES = [
    "create unique index i{} on t (u)",
    "create unique index i{} on t (w)",
    "create unique index i{} on t (u, w desc)",
    "create unique index i{} on t (w) where v > 3",
    "create unique index i{} on t (lower(u))",
    "create unique index i{} on t (u collate nocase)",
    "create unique index i{} on t (w % 5, u /* , ( */) where u <> 'x)' and w is not null",
    "create unique index i{} on t (coalesce(w, 0) + 1 desc, length(u)) where t.w > 2",
    "create unique index i{} on t (g)",
    "create unique index i{} on t (u) where w > '3'",
    "create unique index i{} on t (w) where v = '5' or v < 'X'",
    "create unique index i{} on t (case when w in ('1', '2') then u when v = '1' then w end)",
    "create index i{} on t (v)",
]

TRIGGERS = [
    "create trigger a{} after insert on t begin update t set w = NEW.w % 7 where {same}; end",
    "create trigger a{} after update of w on t begin update t set v = 1 where {same}; end",
    "create trigger a{} after update of v on t when NEW.w % 5 = 0 begin"
    " delete from t where {same}; end",
    "create trigger a{} after delete on t begin update t set w = w + 1 where w = OLD.w + 1; end",
    "create trigger a{} after insert on t when NEW.w = 3 and {once} begin"
    " insert into audit values ('r', 1);"
    " insert or replace into t ({cols}) select {cols} from t where {same}; end",
    "create trigger a{} after insert on t begin insert into audit values ('i', NEW.w); end",
    "create trigger a{} before update on t when NEW.w = 2 begin select raise(ignore); end",
    "create trigger a{} after insert on t when NEW.w = 4 begin select raise(ignore); end",
    "create trigger a{} before delete on t begin insert into audit values ('d', OLD.w); end",
    "create trigger a{} after update on t begin update c set n = n + 1 where n < 3; end",
    "create trigger a{} after delete on c begin update t set v = OLD.n where w = OLD.n; end",
    "create trigger a{} after update on c begin update or replace t set w = NEW.n"
    " where w = OLD.n; end",
]

ACTIONS = ("no action", "restrict", "cascade", "set null", "set default")


class Schema:
    """What a seed creates."""

    def __init__(self, draw: random.Random) -> None:
        self.kind = draw.choice(list(KEYS))
        columns, self.key, without = KEYS[self.kind]
        nocase = draw.choice(["", "", "collate nocase"])
        self.nocase = bool(nocase)
        generated = draw.choice(
            [
                "",
                "g as (coalesce(w, 0) % 6) virtual",
                "g as (u || w) stored",
                "g text as (upper(u))",
                "g as (case when w between '2' and '5' then w else u end)",
            ]
        )
        parts = [
            columns,
            f"u text {nocase} {draw.choice(['', '', '', 'unique', 'unique on conflict replace'])}",
            f"w int {draw.choice(['', '', '', 'not null default 1'])}",
            draw.choice(["v", "v blob", "v real", "v numeric", "v any"]),
        ]
        self.selfish = ""
        """The foreign key to the table itself."""
        if self.kind in ("alias", "autoincrement", "text", "nocase") and draw.random() < 0.3:
            self.selfish = (
                f"p references t on delete {draw.choice(ACTIONS)} on update {draw.choice(ACTIONS)}"
            )
            parts.append(self.selfish)
        if generated:
            parts.append(generated)
        if self.key and self.kind in ("both", "no rowid"):
            parts.append(f"primary key ({', '.join(self.key)})")
        self.statements = [
            "create table audit (what, n)",
            f"create table t ({', '.join(parts)}) {without}",
        ]
        target = draw.choice(ACTIONS), draw.choice(ACTIONS)
        if self.kind in ("alias", "autoincrement", "text", "nocase") and draw.random() < 0.6:
            link = f"t_key references t on delete {target[0]} on update {target[1]}"
        else:
            link = "t_key"
        unique = draw.choice(["", "", "unique"])
        self.statements.append(f"create table c (id integer primary key, n int {unique}, {link})")
        for number in range(draw.choice([0, 0, 1, 1, 2])):
            index = draw.choice(INDEXES)
            if "(g)" not in index or generated:
                self.statements.append(index.format(number))
        self.columns = [
            name
            for name in ("rowid", "id", "k", "u", "w", "v", "p")
            if any(part.replace('"', "").startswith(f"{name} ") or part == name for part in parts)
            or f", {name} " in columns
        ]
        same = " and ".join(f"{name} is NEW.{name}" for name in self.key) or "w is NEW.w"
        self.triggers = [
            draw.choice(TRIGGERS).format(
                number,
                same=same,
                cols=", ".join(self.columns),
                once="not exists (select 1 from audit where what = 'r')",
            )
            for number in range(draw.choice([0, 0, 0, 1, 2]))
        ]


# --- statements -----------------------------------------------------------------------------------


class Writer:
    """Draws statements for a schema."""

    def __init__(self, draw: random.Random, schema: Schema) -> None:
        self._draw = draw
        self._schema = schema
        self.rowids = "no rowid" not in schema.kind
        self._rowid = "_rowid_" if schema.kind == "none, named" else "rowid"

    def value(self, column: str) -> object:
        draw = self._draw
        match column:
            case "id" | "rowid":
                return draw.randrange(1, 9)
            case "k" if self._schema.kind == "numeric":
                return draw.choice([1, 1.0, 2, "1", b"1", "a", 0.0, -0.0])
            case "k":
                return draw.choice(["a", "A", "a ", "b", "B", "", "c"])
            case "u":
                return draw.choice([None, "a", "A", "b", "B", "x)", "c", "dd", "ee"])
            case "w":
                return draw.choice([None, *range(8)])
            case "p" | "t_key":
                return draw.choice([None, 1, 2, 3, "a", "A", "b"])
            case "n":
                return draw.randrange(6)
        return draw.choice([None, 0.0, -0.0, 0, 1, 1.0, 5, "x", b"x", "X", 2**53 + 1, float("inf")])

    def row(self, columns: Sequence[str]) -> list[object]:
        return [self.value(column) for column in columns]

    def statement(self) -> tuple[str, list[object]]:
        draw, columns = self._draw, self._schema.columns
        if draw.random() < 0.15:
            return self._of_child()
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        some = draw.choice(columns)
        other = draw.choice(columns)
        how = draw.choice(["", "or replace", "or replace", "or ignore", "or fail", "or abort"])
        kinds: list[Callable[[], tuple[str, list[object]]]] = [
            lambda: (f"insert {how} into t ({names}) values ({marks})", self.row(columns)),
            lambda: (f"insert {how} into t ({names}) values ({marks})", self.row(columns)),
            lambda: (
                f"insert {how} into t ({names}) values ({marks}), ({marks})",
                self.row(columns) + self.row(columns),
            ),
            lambda: (
                f"insert into t ({names}) values ({marks}) on conflict do nothing",
                self.row(columns),
            ),
            lambda: (
                f"insert into t ({names}) values ({marks}) on conflict do update"
                f" set w = excluded.w, u = coalesce(excluded.u, u)",
                self.row(columns),
            ),
            lambda: (
                f"update {how} t set {some} = ? where {other} is ?",
                [self.value(some), self.value(other)],
            ),
            lambda: (
                f"update {how} t set {some} = ?, {other} = ? where w > ?",
                [self.value(some), self.value(other), self.value("id")],
            ),
            lambda: (f"update {how} t set w = (w + 1) % 8", []),
            lambda: (f"update t set {some} = {some}", []),
            lambda: (f"delete from t where {some} is ?", [self.value(some)]),
            lambda: ("delete from t where w < ?", [draw.randrange(4)]),
            lambda: (
                f"insert {how} into t ({names}) select {self._moved()} from t where w < ?",
                [draw.randrange(5)],
            ),
        ]
        if self.rowids:
            mine = [name for name in columns if name != "rowid"]
            if "id" in mine and self._schema.kind in ("alias", "autoincrement"):
                mine.remove("id")
            kinds += [
                lambda: (
                    f"update {how} t set {self._rowid} = ? where w is ?",
                    [draw.randrange(1, 9), self.value("w")],
                ),
                lambda: (
                    f"insert {how} into t ({self._rowid}, {', '.join(mine)})"
                    f" values ({', '.join('?' * (len(mine) + 1))})",
                    [draw.randrange(1, 9), *self.row(mine)],
                ),
            ]
        return draw.choice(kinds)()

    def _moved(self) -> str:
        made = []
        for name in self._schema.columns:
            made.append({"id": "id + 1", "w": "w + 1", "k": "upper(k)"}.get(name, f'"{name}"'))
        return ", ".join(made)

    def _of_child(self) -> tuple[str, list[object]]:
        draw = self._draw
        how = draw.choice(["", "or replace", "or ignore"])
        return draw.choice(
            [
                (
                    f"insert {how} into c values (?, ?, ?)",
                    [draw.randrange(6), self.value("n"), self.value("t_key")],
                ),
                (f"update {how} c set n = ? where id = ?", [self.value("n"), draw.randrange(6)]),
                ("delete from c where n = ?", [self.value("n")]),
            ]
        )


# --- filters --------------------------------------------------------------------------------------


Truth = bool | None


def _compared(one: object, other: object) -> int | None:
    """Return which value is greater, as SQLite compares values without an affinity."""
    if one is None or other is None:
        return None
    classes = [
        0 if isinstance(each, int | float) else 1 if isinstance(each, str) else 2
        for each in (one, other)
    ]
    left, right = (one, other) if classes[0] == classes[1] else classes
    if isinstance(left, str) and isinstance(right, str):
        left, right = left.encode(), right.encode()
    return int(left > right) - int(left < right)  # type: ignore[operator]


def _is(one: object, other: object, *signs: int) -> Truth:
    found = _compared(one, other)
    return None if found is None else found in signs


def _or(*terms: Truth) -> Truth:
    return True if True in terms else None if None in terms else False


def _and(*terms: Truth) -> Truth:
    return False if False in terms else None if None in terms else True


def _folded(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


FILTERS: list[tuple[str, Callable[[dict[str, object], bool], Truth]]] = [
    ("w > 3", lambda row, _: _is(row["w"], 3, 1)),
    ("w IN (1, 2, +5)", lambda row, _: _or(*(_is(row["w"], each, 0) for each in (1, 2, 5)))),
    (
        "v < 'X' or w = 2 AND \"v\" >= -1",
        lambda row, _: _or(
            _is(row["v"], "X", -1), _and(_is(row["w"], 2, 0), _is(row["v"], -1, 0, 1))
        ),
    ),
    (
        "not (w between 2 and 5)",
        lambda row, _: _or(_is(row["w"], 2, -1), _is(row["w"], 5, 1)),
    ),
    ("u is null or w = '3' or v = 5", lambda row, _: _or(row["u"] is None, _is(row["v"], 5, 0))),
    ("typeof(v) = 'real' or v >= 2", lambda row, _: _or(_real(row["v"]), _is(row["v"], 2, 0, 1))),
    ("coalesce(w, 0) = 0", lambda row, _: _is(row["w"] or 0, 0, 0)),
    (
        "u <> 'a'",
        lambda row, nocase: _is(_folded(row["u"]) if nocase else row["u"], "a", -1, 1),
    ),
    (
        "u collate nocase in ('A', 'x)') or w is v",
        lambda row, _: _or(
            *(_is(_folded(row["u"]), each, 0) for each in ("a", "x)")),
            (row["w"] is row["v"] is None) or bool(_is(row["w"], row["v"], 0)),
        ),
    ),
]
"""Conditions, and what they mean; the second argument: whether `u` has the collation NOCASE."""


def _real(value: object) -> bool:
    return isinstance(value, float)


# --- a run ----------------------------------------------------------------------------------------


Step = tuple[str, Sequence[object]]

LOOK = "-- look"
"""A step that compares; its value is how many rows are read at once."""


class Fuzz:
    """The schema and the steps of one seed."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.schema = schema = Schema(draw)
        writer = Writer(draw, schema)
        recursive = draw.choice(("on", "off"))
        self.before: list[Step] = [
            (statement, ())
            for statement in (
                f"pragma recursive_triggers = {recursive}",
                f"pragma foreign_keys = {draw.choice(('on', 'on', 'off'))}",
                *schema.statements,
                *schema.triggers,
            )
        ]
        self.before += [writer.statement() for _ in range(draw.randrange(6))]
        self.steps: list[Step] = []
        within = False
        for _ in range(STATEMENTS):
            chance = draw.random()
            if chance < 0.12:
                end = draw.choice(["commit", "commit", "rollback"])
                self.steps.append((end if within else "begin", ()))
                within = not within
            elif chance < 0.2 and within:
                what = draw.choice(["savepoint s", "rollback to s", "release s"])
                self.steps.append((what, ()))
            else:
                self.steps.append(writer.statement())
            if not within and draw.random() < 0.6:
                self.steps.append((LOOK, [draw.choice([1, 2, 3, 7, 4096])]))
        self.steps += [("commit", ()), (LOOK, [draw.choice([1, 5])])]


class Run:
    """Runs steps with and without capture, in memory or in two files."""

    def __init__(
        self,
        fuzz: Fuzz,
        file: str | Path = ":memory:",
        plain: str | Path = "",
        *,
        where: int | None = None,
    ) -> None:
        self._fuzz = fuzz
        self._where = None if where is None else FILTERS[where % len(FILTERS)]
        self.copies = 0
        """How often the order of changes was not clear."""
        self._files = str(file), str(plain or file)
        self._app, self._plain = (
            sqlite3.connect(each, isolation_level=None) for each in self._files
        )
        self._app.execute("pragma synchronous = off")
        self._plain.execute("pragma synchronous = off")

    def set_up(self, before: Sequence[Step] | None = None) -> bool:
        """Run the first steps and set up the capture; False if a table is refused."""
        for step in self._fuzz.before if before is None else before:
            self._both(*step)
        try:
            where = {} if self._where is None else {"t": self._where[0]}
            self._tables = [inspect(self._app, each, where.get(each, "")) for each in ("t", "c")]
        except TableRefused:
            return False
        for name in ("t", "c"):
            # With any trigger, SQLite may visit rows in another order, which IGNORE depends on.
            for event in ("insert", "update", "delete"):
                for when in ("before", "after"):
                    self._plain.execute(
                        f"create trigger {when}_{event}_{name} {when} {event} on {name} when 0"
                        " begin select 1; end"
                    )
        capture = triggers.install(self._app, self._tables, where=where)
        self._plans = triggers.plans(self._app)
        self._log = CaptureLog(self._app, end_of(self._app, capture))
        self._copies = {table.name: self._truth(table) for table in self._tables}
        table = self._tables[0]
        # REPLACE by the rowid is not seen in a table whose only unique index is another key.
        self._blind = table.rowid not in table.key and not table.collisions
        return True

    def run(self, steps: Sequence[Step]) -> None:
        """Run steps; raises `Wrong`."""
        for statement, values in steps:
            if statement == LOOK:
                self._look(int(str(values[0])))
            elif not (self._blind and "rowid" in statement):
                self._both(statement, values)
        self._compare()

    def jobs(self) -> list[tuple[str, list[Step]]]:
        """Return all statements for another process, for each file."""
        steps = [
            (statement, values)
            for statement, values in self._fuzz.steps
            if statement != LOOK and not (self._blind and "rowid" in statement)
        ]
        steps = [*self._fuzz.before[:2], *steps]
        self._app.close()
        self._plain.close()
        return [(file, steps) for file in self._files]

    def finish(self) -> None:
        """Read what another process has written; raises `Wrong`."""
        self._app, self._plain = (
            sqlite3.connect(each, isolation_level=None) for each in self._files
        )
        self._log = CaptureLog(self._app, self._log.at)
        self._look(5)
        self._compare()
        self._app.close()
        self._plain.close()

    def _compare(self) -> None:
        for table in self._tables:
            if self._rows(self._app, table) != self._rows(self._plain, table):
                raise Wrong(f"{table.name} has other rows because of capture")

    def _both(self, statement: str, values: Sequence[object] = ()) -> None:
        found = [_outcome(each, statement, values) for each in (self._app, self._plain)]
        if found[0] != found[1]:
            raise Wrong(f"with capture {found[0]}, without {found[1]}")

    def _rows(self, database: sqlite3.Connection, table: SourceTable) -> dict[Image, Image]:
        names = ", ".join(f'"{name}"' for name in table.names)
        key = [table.names.index(name) for name in table.key]
        return {
            tuple(row[at] for at in key): exactly(row)
            for row in database.execute(f"select {names} from {table.name}")
        }

    def _truth(self, table: SourceTable) -> dict[Image, Image]:
        """Return the rows that are captured, by key."""
        if not table.where or self._where is None:
            return self._rows(self._app, table)
        _, means = self._where
        names = ", ".join(f'"{name}"' for name in table.names)
        key = [table.names.index(name) for name in table.key]
        found = {}
        pages = Pages(self._app, "", table, lambda: None) if not self._app.in_transaction else ()
        copied = [row for page in pages for row in page]
        for row in self._app.execute(f"select {names} from {table.name}"):
            if means(dict(zip(table.names, row, strict=True)), self._fuzz.schema.nocase):
                found[tuple(row[at] for at in key)] = exactly(row)
        if pages and sorted(map(repr, map(exactly, copied))) != sorted(map(repr, found.values())):
            raise Wrong(f"a copy has {copied}, and not {found}")
        return found

    def _look(self, most: int) -> None:
        """Apply what was logged, and compare."""
        width = max(len(table.columns) for table in self._tables)
        while rows := self._log.read(most, width, self._plans):
            if self._log.missing:
                raise Wrong("numbers are missing")
            if self._log.unclear:
                # The table would be copied again.
                self._log.at = end_of(self._app, self._log.at.capture)
                self._copies = {table.name: self._truth(table) for table in self._tables}
                self.copies += 1
                return
            for row in rows:
                self._apply(row, width)
            self._log.advance()
        for table in self._tables:
            truth = self._truth(table)
            if self._copies[table.name] != truth:
                raise Wrong(f"{table.name}: {self._copies[table.name]} is not {truth}")

    def _apply(self, row: Row, width: int) -> None:
        _, _, plan, op = row[:4]
        if op not in (INSERT, UPDATE, DELETE):
            return
        name = self._plans[int(str(plan))].table
        table = next(table for table in self._tables if table.name == name)
        count = len(table.columns)
        key = [table.names.index(each) for each in table.key]
        copy = self._copies[name]
        if op != INSERT:
            old = row[4 : 4 + count]
            before = copy.pop(tuple(old[at] for at in key), None)
            # If a REPLACE leads to a change of the very row that is updated, SQLite's OLD is from
            # before that.
            strict = not self._fuzz.schema.triggers and not self._fuzz.schema.selfish
            if before is None or (strict and before != exactly(old)):
                raise Wrong(f"{name} before: {before}, and not {old}")
        if op != DELETE:
            new = row[4 + width : 4 + width + count]
            # 1 and 1.0 are one key, as in a target.
            copy[tuple(new[at] for at in key)] = exactly(new)


def _outcome(
    database: sqlite3.Connection, statement: str, values: Sequence[object]
) -> tuple[str, str]:
    try:
        database.execute(statement, values).fetchall()
    except sqlite3.Error as error:
        return type(error).__name__, str(error)
    return "", ""


def exactly(image: Sequence[object]) -> Image:
    """Return an image that equals another one only if all values and types are equal."""
    return tuple((value.hex(),) if isinstance(value, float) else value for value in image)


FINE = ("", "refused", "copied")
"""Equal, a table was refused, or the order of some changes was not clear, so that it is copied."""


def outcome(
    fuzz: Fuzz, before: Sequence[Step], steps: Sequence[Step], where: int | None = None
) -> str:
    """Run steps; return one of `FINE`, or what is wrong."""
    run = Run(fuzz, where=where)
    try:
        if not run.set_up(before):
            return "refused"
        run.run(steps)
    except (Wrong, sqlite3.Error, AssertionError) as error:
        return f"{type(error).__name__}: {error}"[:2000]
    return "copied" if run.copies else ""


def failure(seed: int, *, shorten: bool = False, filtered: bool = False) -> str:
    """Run a seed; return what is wrong with its steps, "refused", "copied", or ""."""
    fuzz = Fuzz(seed)
    before, steps = fuzz.before, fuzz.steps
    where = seed if filtered else None
    said = outcome(fuzz, before, steps, where)
    if said in FINE:
        return said
    at = 0
    while shorten and at < len(before) + len(steps):
        number = at - len(steps)
        fewer = (
            (before, [*steps[:at], *steps[at + 1 :]])
            if number < 0
            else ([*before[:number], *before[number + 1 :]], steps)
        )
        other = outcome(fuzz, *fewer, where)
        if other.partition(":")[0] == said.partition(":")[0]:
            said = other
            before, steps = fewer
        else:
            at += 1
    text = "\n".join(f"{statement}; -- {values}" for statement, values in (*before, *steps))
    kept = "" if where is None else f" where {FILTERS[where % len(FILTERS)][0]}"
    return f"seed {seed}{kept}: {said}\n{text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run many seeds, and report those that are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--print", type=int, default=1, dest="printed", help="failures to print")
    parser.add_argument("--filtered", action="store_true", help="capture only some rows of t")
    asked: Any = parser.parse_args(arguments)
    began = time.monotonic()
    seeds = range(asked.first, asked.first + asked.seeds)
    wrong: list[int] = []
    fine: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
        work = partial(failure, filtered=asked.filtered)
        for seed, said in zip(seeds, pool.imap(work, seeds, 50), strict=True):
            if said in FINE:
                fine[said] += 1
            else:
                wrong.append(seed)
                if len(wrong) <= asked.printed:
                    print(failure(seed, shorten=True, filtered=asked.filtered), flush=True)
    seconds = time.monotonic() - began
    print(
        f"{asked.seeds} seeds, {len(wrong)} wrong: {wrong[:20]}; {fine['refused']} refused,"
        f" {fine['copied']} copied again; {seconds:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
