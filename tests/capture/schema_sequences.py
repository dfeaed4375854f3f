"""
`python -m tests.capture.schema_sequences --sequences 100 --seed 1`: SQLite files that change.

A sequence is drawn from a seed: changes of rows, of the schema and of the file, while an engine
reads, lags behind and is stopped. Again and again everything settles. Then each table in memory is
equal to its source, or its pipeline has failed and names the table, and is equal after the cause
was undone. As soon as the engine says that all is applied that was committed by the time of the
last write, a difference is a failure. One that fails is printed statement by statement.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.capture import recorder, table_selection
from headrace.capture.sqlite import database
from headrace.capture.sqlite.capture_log import CaptureLog
from headrace.capture.sqlite.database import Row
from headrace.capture.sqlite.source import sqlite
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError
from headrace.pipeline.definition import Pipeline
from headrace.runtime import source_run
from headrace.targets.memory import IndexedMemory, memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience, slowness
from tests.support.shop import await_that

TABLES = ("a", "b", "p", "k")
"""The tables that are captured: k has rows of p. c is like a, and is not captured."""

SETUP = """
pragma journal_mode = wal;
create table a (id integer primary key, n, note text);
create table b (id integer primary key, n, note text);
create table c (id integer primary key, n, note text);
create table p (id integer, n, note text, primary key (id, n)) without rowid;
create table k (
    id integer primary key, n, note text, p_id, p_n,
    foreign key (p_id, p_n) references p on delete cascade on update cascade
);
with recursive i (i) as (select 1 union all select i + 1 from i where i < 20)
insert into a select i, 0, 'a' from i;
insert into b select id, n, 'b' from a;
insert into c select id, n, 'c' from a;
insert into p select id, n, 'p' from a;
insert into k select id, n, 'k', id % 7 + 1, 0 from a;
"""


class NotEqual(AssertionError):
    """Said to be applied, and not equal to the source; or neither ready nor failed."""


class SchemaSequence:
    """One sequence on a file of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.said: list[str] = []
        """What was done, for the report of a failure."""

        self._draw = random.Random(seed)
        self._folder = folder
        self._data = folder / "data"
        self._path = folder / "shop.db"
        self._linked = seed % 3 == 0
        if self._linked:
            self._path.symlink_to(folder / "file0.db")
        self._files = 0
        self._copies: list[Path] = []
        """Copies of the file that were made earlier."""

        self._columns = 0
        self._wounds: list[str] = []
        """Statements that undo what the engine must not be ready with."""

        self._lagging = False
        self._pause = threading.Event()
        self._engine: Engine | None = None
        self._memories: dict[str, IndexedMemory] = {}
        self._app = self._connect()
        self._app.executescript(SETUP)

    # --- the engine -----------------------------------------------------------------------

    @contextmanager
    def gate(self) -> Iterator[None]:
        """Have the engine read a row at a time while it is to lag, and look often."""
        read = CaptureLog.read

        def slow(own: CaptureLog, most: int, *others: Any) -> list[Row]:
            if not self._lagging:
                return read(own, most, *others)
            self._pause.wait(0.01)
            return read(own, 1, *others)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CaptureLog, "read", slow)
            patch.setattr(database, "LOOK_SECONDS", 0.05)
            patch.setattr(table_selection, "LOOK_SECONDS", 0.05)
            patch.setattr(recorder, "FIRST_PAUSE_SECONDS", 0.01)
            patch.setattr(recorder, "LAG_SECONDS", 0.05)
            patch.setattr(source_run, "_CONFIRMED_SECONDS", 0.02)
            yield

    def start(self) -> HeadraceError | None:
        """Start an engine, if there is none; return why it cannot be started."""
        if self._engine is not None:
            return None
        self.said.append("-- start")
        source = sqlite(self._path, name="shop")
        self._memories = {name: memory() for name in TABLES}
        engine = Engine(
            *(Pipeline(source, name, each, name=name) for name, each in self._memories.items()),
            data=self._data,
            runner=ArrowRunner(),
            recorder="thread",
        )
        try:
            engine.start()
        except HeadraceError as error:
            with suppress(HeadraceError):
                engine.stop()
            return error
        self._engine = engine
        return None

    def stop(self) -> None:
        """Stop the engine, if there is one."""
        if self._engine is not None:
            self.said.append("-- stop")
            self._lagging = False
            self._engine.stop()
            self._engine = None

    def close(self) -> None:
        """Stop the engine, and close the file."""
        self.stop()
        self._app.close()

    def _failed(self) -> HeadraceError | None:
        """Return why the source, or a pipeline, has failed; None: neither has."""
        assert self._engine is not None
        source = self._engine.source_info("shop")
        if source.state == "failed":
            return source.error
        infos = (self._engine.pipeline_info(name) for name in TABLES)
        return next((each.error for each in infos if each.state == "failed"), None)

    def _vouched(self, since: float) -> bool:
        """Whether the engine says that all is applied that was committed at `since`."""
        assert self._engine is not None
        state = self._engine._state
        confirmed = state.recordings["shop"]._confirmed
        end = next((end for at, end in confirmed if at >= since), None)
        return (
            end is not None
            and self._engine.is_ready()
            and all(run.applied(end) for run in state.runs)
        )

    def _differences(self) -> str:
        """Return how the memory differs from the source; empty: it does not."""
        for name, target in self._memories.items():
            rows = self._app.execute(f"select * from {name}")
            names = [column for column, *_ in rows.description]
            truth = {repr(dict(zip(names, row, strict=True))) for row in rows}
            seen = {repr({column: row.get(column) for column in names}) for row in target.all()}
            if truth != seen:
                only, lost = sorted(seen - truth), sorted(truth - seen)
                return f"{name}: only in memory {only[:4]}; missing {lost[:4]}"
        return ""

    def settle(self) -> None:
        """Let everything be read, and compare; undo what the engine refuses."""
        self.said.append("-- settle")
        self._lagging = False
        error = self.start() or self._outcome()
        if error is not None and self._is_elsewhere(error):
            # A link to a copy of long ago, from before the capture began anew.
            self.said.append(f"-- failed: {error}; without the data directory:")
            self.stop()
            shutil.rmtree(self._data)
            error = self.start() or self._outcome()
        if error is None:
            if self._wounds:
                raise NotEqual(f"Ready, although it must not be: undone by {self._wounds}")
            return
        self.said.append(f"-- failed: {error.code}: {error} {error.facts}")
        if not self._wounds:
            raise NotEqual(f"Failed without a cause: {error.code}: {error} {error.facts}")
        if not (error.code.startswith("capture.") and "table" in error.facts):
            raise NotEqual(f"Failed without a name: {error.code}: {error} {error.facts}")
        self._run(*self._wounds)
        self._wounds.clear()
        if (error := self.start() or self._outcome()) is not None:
            raise NotEqual(f"Failed for ever: {error.code}: {error} {error.facts}")

    def _is_elsewhere(self, error: HeadraceError) -> bool:
        return self._linked and error.code == "capture.other_database"

    def _outcome(self) -> HeadraceError | None:
        """Wait until all is applied, or something has failed; return why it failed."""
        engine = self._engine
        assert engine is not None
        # A report takes a moment to arrive.
        since = time.monotonic() + 0.1 * slowness()
        found: list[HeadraceError | None] = []

        def settled() -> bool:
            error = self._failed()
            # A table that can be captured again is followed again after a moment.
            if error is not None and (self._wounds or self._is_elsewhere(error)):
                found.append(error)
            return bool(found) or self._vouched(since)

        if not await_that(engine, settled, patience()):
            source = engine.source_info("shop")
            states = {name: engine.pipeline_info(name).state for name in TABLES}
            said = f"source {source.state} {source.reason} {source.copies}, {self._failed()}"
            raise NotEqual(f"Not ready: {states}, {said}, {self._differences()}")
        if found:
            return found[0]
        if not self._wounds and (difference := self._differences()):
            raise NotEqual(f"Said to be applied: {difference}")
        return None

    # --- what is done ---------------------------------------------------------------------

    def step(self) -> None:
        """Do one thing: to rows, to the schema, to the file or to the engine."""
        if self._draw.random() < 0.5:
            self._rows()
            return
        what: tuple[Callable[[], None], ...] = (
            self._replace,
            self._rebuild,
            self._swap,
            self._away,
            self._column,
            self._triggers,
            self._file,
            self._copy,
            self._other,
            self._wound,
            self._decorate,
            self._turn,
            self._turn,
        )
        self._draw.choice(what)()
        if self._draw.random() < 0.3:
            self._pause.wait(0.05)  # let the engine look, or not

    def _connect(self) -> sqlite3.Connection:
        app = sqlite3.connect(self._path, isolation_level=None, timeout=patience())
        app.execute("pragma foreign_keys = on")
        app.execute("pragma synchronous = off")
        return app

    def _run(self, *statements: str) -> None:
        """Run statements in one transaction, which may have begun."""
        self.said += [f"{statement};" for statement in ("begin", *statements, "commit")]
        if not self._app.in_transaction:
            self._app.execute("begin immediate")
        for statement in statements:
            self._app.execute(statement)
        self._app.execute("commit")

    def _read(self, query: str, *values: str) -> list[str]:
        return [str(value) for (value,) in self._app.execute(query, values)]

    def _plain(self) -> str:
        return self._draw.choice(("a", "b"))

    def _any(self) -> str:
        return self._draw.choice(TABLES)

    def _change(self, name: str) -> str:
        draw, key = self._draw, self._draw.randrange(1, 40)
        note = f"'n{draw.randrange(1000)}'"
        verb = draw.choice(("insert or ignore", "insert or replace", "replace"))
        return draw.choice(
            (
                f"{verb} into {name} (id, n, note) values ({key}, 0, {note})",
                f"{verb} into {name} (id, n, note) values ({key}, 1, {note})",
                f"update {name} set note = {note} where id % 5 = {key % 5}",
                f"update {name} set note = null where id % 3 = {key % 3}",
                f"update or replace {name} set n = n + 1 where id % 3 = {key % 3}",
                f"delete from {name} where id = {key}",
                f"update or replace {name} set id = id + {draw.randrange(1, 9)} where id = {key}",
                f"delete from {name} where id > {draw.choice((10, 0))}",
                f"insert or replace into {name} (id, n, note) select id + 50, n, note from c",
            )
        )

    def _rows(self) -> None:
        name = self._draw.choice((*TABLES, "c"))
        if self._draw.random() < 0.1:
            self._run("savepoint s", self._change(name), "rollback to s", self._change("p"))
            return
        self._run(self._change(name))

    def _turn(self) -> None:
        """Stop the engine, start it, or let it lag."""
        if self._engine is None:
            if (error := self.start()) is not None:
                self.said.append(f"-- it could not be started: {error}")
        elif self._draw.random() < 0.5:
            self.stop()
        else:
            self._lagging = not self._lagging
            self.said.append(f"-- lagging: {self._lagging}")

    def _definition(self, name: str, other: str) -> str:
        """Return the statement that creates a table like `name`, with another name."""
        [sql] = self._read("select sql from sqlite_master where type = 'table' and name = ?", name)
        return re.sub(r'^CREATE TABLE "?\w+"?', f"create table {other}", sql)

    def _created_triggers(self, name: str) -> list[str]:
        query = "select sql from sqlite_master where type = 'trigger' and tbl_name = ?"
        return self._read(f"{query} order by rowid", name)

    def _dropped_triggers(self, name: str) -> list[str]:
        query = "select name from sqlite_master where type = 'trigger' and tbl_name = ?"
        return [f'drop trigger "{trigger}"' for trigger in self._read(query, name)]

    def _replace(self) -> None:
        """Drop a table and create it again."""
        name = self._plain()
        made = self._definition(name, name)
        kept = f"insert into {name} (id, n, note) select id, n, note from c where id % 2 = 0"
        self._run(f"drop table {name}", made, *([kept] if self._draw.random() < 0.7 else []))

    def _rebuild(self) -> None:
        """Alter a table as SQLite's documentation says, with or without its triggers."""
        name = self._any()
        self._app.execute("pragma foreign_keys = off")
        self._app.execute("begin immediate")
        triggers = self._created_triggers(name)
        self._run(
            self._definition(name, "fresh"),
            f"insert into fresh select * from {name}",
            f"update fresh set note = note || '!' where id % 2 = {self._draw.randrange(2)}",
            f"drop table {name}",
            f"alter table fresh rename to {name}",
            *(triggers if self._draw.random() < 0.7 else []),
        )
        self._app.execute("pragma foreign_keys = on")

    def _swap(self) -> None:
        one, other = self._draw.choice((("a", "b"), ("a", "c"), ("c", "b")))
        self._run(
            f"alter table {one} rename to third",
            f"alter table {other} rename to {one}",
            f"alter table third rename to {other}",
        )

    def _away(self) -> None:
        """Have a table under another name for a moment, with changes there."""
        name = self._any()
        there, back = f"alter table {name} rename to gone", f"alter table gone rename to {name}"
        if self._draw.random() < 0.5:
            self._run(there, self._change("gone"), back)
            return
        self._run(there)
        self._run(self._change("gone"))
        if self._draw.random() < 0.5:
            self._pause.wait(0.1)
        self._run(back)

    def _column(self) -> None:
        name = self._any()
        self._app.execute("begin immediate")
        extra = [
            column
            for column in self._read("select name from pragma_table_info(?)", name)
            if column.startswith("x")
        ]
        self._columns += 1
        new = f"x{self._columns}"
        ways = [
            [f"alter table {name} add column {new}"],
            [f"alter table {name} add column {new} int default 7"],
        ]
        if extra:
            old = self._draw.choice(extra)
            ways += [
                [f"alter table {name} rename column {old} to {new}"],
                # It fails while a trigger names the column.
                [*self._dropped_triggers(name), f"alter table {name} drop column {old}"],
            ]
        self._run(*self._draw.choice(ways), self._change(name))

    def _triggers(self) -> None:
        """Have triggers away while rows change, and create them again or not."""
        name = self._any()
        self._app.execute("begin immediate")
        drops, creates = self._dropped_triggers(name), self._created_triggers(name)
        if self._draw.random() < 0.3:
            every = [table for table in TABLES if table != name]
            drops += [drop for table in every for drop in self._dropped_triggers(table)]
            creates += [create for table in every for create in self._created_triggers(table)]
            drops.append("drop trigger if exists __headrace_seal")
        self._run(
            *drops, self._change(name), *(creates if self._draw.random() < 0.7 else ["select 1"])
        )

    def _copy(self) -> None:
        """Keep a copy of the file, for later."""
        self._files += 1
        copy = self._folder / f"copy{self._files}.db"
        self.said.append(f"vacuum into '{copy.name}';")
        self._app.execute("vacuum into ?", (str(copy),))
        self._copies.append(copy)

    def _file(self) -> None:
        """Put a copy into the place of the file, or into the file."""
        if not self._copies or self._draw.random() < 0.3:
            self._copy()
        chosen = self._draw.choice(self._copies)
        how = self._draw.choice(("replace", "backup"))
        self.said.append(f"-- {how} by {chosen.name}{', a link' if self._linked else ''}")
        if how == "backup":
            with closing(sqlite3.connect(chosen)) as source:
                source.backup(self._app)
            return
        self._app.close()
        self._files += 1
        fresh = self._folder / f"file{self._files}.db"
        shutil.copy(chosen, fresh)
        if self._linked:
            link = self._folder / "link"
            link.symlink_to(fresh)
            link.replace(self._path)
        else:
            # Otherwise SQLite itself would apply the old WAL to the new file.
            for left in ("-wal", "-shm"):
                self._path.with_name(self._path.name + left).unlink(missing_ok=True)
            fresh.replace(self._path)
        self._app = self._connect()

    def _other(self) -> None:
        """Do what changes nothing of the schema."""
        match self._draw.choice(("vacuum", "attach", "journal", "checkpoint", "analyze")):
            case "attach":
                change = self._change("shop." + self._any())
                self.said.append(f"-- through another database: {change}")
                with closing(sqlite3.connect(":memory:", isolation_level=None)) as other:
                    other.execute("attach ? as shop", (str(self._path),))
                    other.execute("pragma foreign_keys = on")
                    other.execute(change.replace("from c", "from shop.c"))
            case "journal":
                mode = self._draw.choice(("delete", "wal"))
                self._pragma(f"pragma journal_mode = {mode}")
            case "checkpoint":
                self._pragma("pragma wal_checkpoint(truncate)")
            case statement:
                self._pragma(statement)

    def _pragma(self, statement: str) -> None:
        self.said.append(f"{statement};")
        self._app.execute("pragma busy_timeout = 300")
        try:
            self._app.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            self.said.append(f"-- {error}")
        self._app.execute(f"pragma busy_timeout = {int(patience() * 1000)}")

    def _decorate(self) -> None:
        """Create what other triggers are needed for, or drop it again."""
        name = self._plain()
        [there] = self._read("select count(*) from sqlite_master where name = 'extra'")
        if there != "0":
            [kind] = self._read("select type from sqlite_master where name = 'extra'")
            self._run(f"drop {kind} extra", self._change(name))
            return
        rewrite = f"update {name} set note = note || '.' where id = new.id and length(note) < 5"
        extra = self._draw.choice(
            (
                f"create unique index extra on {name} (coalesce(note, n), n, id)",
                f"create trigger extra after insert on {name} begin {rewrite}; end",
            )
        )
        self._run(extra, self._change(name))

    def _wound(self) -> None:
        """Do what the engine must not be ready with, until it is undone."""
        name = self._any()
        away, back = f"alter table {name} rename to gone", f"alter table gone rename to {name}"
        ways: list[tuple[list[str], list[str]]] = [
            ([away], [back]),
            ([f"drop table {name}"], [self._definition(name, name)]),
            ([away, f"create view {name} as select * from gone"], [f"drop view {name}", back]),
            (
                [
                    f"create trigger wound before update on {name} begin"
                    f" update {name} set note = 'x' where id = 0; end"
                ],
                ["drop trigger wound"],
            ),
        ]
        done, self._wounds = self._draw.choice(ways)
        if done[0].startswith("drop table"):
            self._app.execute("pragma foreign_keys = off")
        self._run(*done)
        self._app.execute("pragma foreign_keys = on")


def run(folder: Path, seed: int, steps: int) -> None:
    """Run one sequence; raises `NotEqual` with its statements."""
    sequence = SchemaSequence(folder, seed)
    with sequence.gate():
        try:
            sequence.settle()
            for number in range(steps):
                sequence.step()
                # A table that is not there is not written to, altered or swapped.
                if sequence._wounds or number % 8 == 7:
                    sequence.settle()
            sequence.settle()
        except (NotEqual, sqlite3.Error) as error:
            said = "\n".join(sequence.said)
            raise NotEqual(f"seed {seed}: {type(error).__name__}: {error}\n{said}") from error
        finally:
            sequence.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run many sequences, and report those that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=24)
    asked = parser.parse_args(arguments)
    failed: list[int] = []
    for seed in range(asked.seed, asked.seed + asked.sequences):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                run(Path(folder), seed, asked.steps)
                outcome = "equal"
            except NotEqual as error:
                failed.append(seed)
                outcome = f"FAILED\n{error}"
        print(f"seed {seed}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{asked.sequences} sequences, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
