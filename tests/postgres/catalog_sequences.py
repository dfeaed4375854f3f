"""
`python -m tests.postgres.catalog_sequences --sequences 100 --seed 1`: catalogues that change.

A sequence is drawn from a seed: changes of rows and changes of the catalogue, while an engine
reads, lags behind and is stopped, with transactions open across them. Again and again everything
settles. Then each table in memory is equal to its source. If one cannot be captured, it is red with
its name, the others are equal, and so is it after the cause was undone, while the engine runs or is
stopped. Ready and not equal is what must never be. The publication is ours, a list of the user's,
or a schema. A sequence that fails is printed with its seed, statement by statement.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.capture import table_selection
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.server import ddl_watch
from headrace.capture.postgres.stream import stream
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError, InvalidConfiguration
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import Database, fresh_database, make_server
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

TABLES = ("a", "b", "p")
"""The tables that are captured; p is partitioned. c is like a, and is not captured."""

PUBLICATION = "shop_pub"

SETUP = """
create schema apart;
create type state as enum ('new', 'paid');
create type size as (width int, height int);
create table thing (id int);
create table p (
    id int primary key, n int default 0, note text, state state default 'new',
    size size default '(1,2)', ref regclass default 'thing'
) partition by range (id);
create table p1 partition of p for values from (0) to (20);
create table p2 partition of p for values from (20) to (100000);
create table a (
    id int primary key, other int not null unique default (random() * 1e9)::int,
    n int default 0, note text, state state default 'new', size size default '(1,2)',
    ref regclass default 'thing'
);
create table b (like a including all);
create table c (like a including all);
insert into a (id, note) select i, 'a' from generate_series(1, 20) i;
insert into b (id, note) select i, 'b' from generate_series(1, 20) i;
insert into c (id, note) select i, 'c' from generate_series(1, 20) i;
insert into p (id, note) select i, 'p' from generate_series(1, 40) i
"""

LARGE = "(select string_agg(md5(k::text || {seed}), '') from generate_series(1, 150) k)"


class NotEqual(AssertionError):
    """Ready, and not equal to the source; or neither ready nor failed."""


OURS, LISTED, SCHEMA = "ours", "listed", "schema"


def kind_of(seed: int) -> str:
    """Return the kind of publication that a sequence has."""
    return (OURS, LISTED, OURS, SCHEMA)[seed % 4]


@dataclass
class Wound:
    """What the engine must not be ready with, until it is undone."""

    undo: tuple[str, ...]
    tables: tuple[str, ...]
    """Those that cannot be captured meanwhile; empty: the source cannot."""


class Sequence_:
    """One sequence on a database of its own."""

    def __init__(self, database: Database, data: Path, seed: int, kind: str) -> None:
        self.said: list[str] = []
        """What was done, for the report of a failure."""

        self._database = database
        self._data = data
        self._draw = random.Random(seed)
        self._listed_whole = database.connect().info.server_version < 150000
        """Whether a publication has neither schemas nor row filters and column lists."""

        if kind == SCHEMA and self._listed_whole:
            kind = LISTED
        self._kind = kind
        self._ours = kind == OURS
        self._session = database.connect()
        self._session.execute("set lock_timeout = '300ms'")
        self._writer = database.connect(autocommit=False)
        # With our search path, by which the server writes names of objects.
        self._reader = database.connect(options="-c search_path=pg_catalog")
        self._names = {name: name for name in TABLES}
        """Where each table is now, by the name under which it is captured."""

        self._wound_now: Wound | None = None

        self._lagging = False
        self._columns = 0
        self._engine: Engine | None = None
        self._memories: dict[str, IndexedMemory] = {}
        for statement in SETUP.split(";"):
            database.execute(statement)
        self._published = ("a", "b", "p") if self._ours else ("a", "b", "c", "p")
        if not self._ours:
            database.execute(
                f"create publication {PUBLICATION} for"
                f" {'table a, b, c, p' if kind == LISTED else 'tables in schema public'}"
                " with (publish_via_partition_root = true)"
            )

    # --- the engine ------------------------------------------------------------------------

    @contextmanager
    def gate(self) -> Iterator[None]:
        """Have the stream give nothing while it is to lag; the catalog is still looked at."""
        receive = stream.ReplicationStream.receive

        def slow(own: stream.ReplicationStream, wait: float) -> Any:
            if self._lagging:
                time.sleep(min(wait, 0.02))
                return None
            return receive(own, wait)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream.ReplicationStream, "receive", slow)
            patch.setattr(stream, "SILENT_SECONDS", 0.3)
            patch.setattr(ddl_watch, "WATCH_SECONDS", 0.1)
            patch.setattr(table_selection, "LOOK_SECONDS", 0.2)
            yield

    def start(self) -> HeadraceError | None:
        """Start an engine, if there is none; return why it cannot be started."""
        if self._engine is not None:
            return None
        self.said.append("-- start")
        source = postgres(
            self._database.dsn,
            name="shop",
            publication=PUBLICATION,
            create_publication=self._ours,
            slot_name=f"slot_{self._database.name}",
        )
        self._memories = {name: memory() for name in TABLES}
        pipelines = [
            Pipeline(source, name, each, name=name) for name, each in self._memories.items()
        ]
        engine = Engine(*pipelines, data=self._data, runner=ArrowRunner(), recorder="thread")
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

    def failed(self) -> HeadraceError | None:
        """Return why the source, or a pipeline, has failed; None: neither has."""
        assert self._engine is not None
        source = self._engine.source_info("shop")
        if source.state == "failed":
            return source.error
        infos = (self._engine.pipeline_info(name) for name in TABLES)
        return next((each.error for each in infos if each.state == "failed"), None)

    def lost(self) -> set[str]:
        """Return the tables that are lost, and may come back by themselves."""
        assert self._engine is not None
        source = self._engine.source_info("shop")
        return set() if source.state == "failed" else set(source.left_out)

    def differences(self) -> str:
        """Return how the memory differs from the source; empty: it does not."""
        wounded = () if self._wound_now is None else self._wound_now.tables
        for name, target in self._memories.items():
            if name in wounded:
                continue
            columns = [
                column
                for (column,) in self._database.rows(
                    "select attname from pg_attribute where attrelid = %s::regclass"
                    " and attnum > 0 and not attisdropped order by 1",
                    self._names[name],
                )
            ]
            chosen = ", ".join(f"{column}::text" for column in columns)
            query = f"select {chosen} from public.{self._names[name]}"
            truth = set(self._reader.execute(query.encode()).fetchall())
            seen = {
                tuple(None if row.get(one) is None else str(row[one]) for one in columns)
                for row in target.all()
            }
            if truth != seen:
                only, lost = sorted(map(str, seen - truth)), sorted(map(str, truth - seen))
                return f"{name} {columns}: only in memory {only[:4]}; missing {lost[:4]}"
        return ""

    def settle(self) -> None:
        """Let everything be read, and compare; undo what the engine refuses."""
        self.said.append("-- settle")
        self._writer.commit()
        self._lagging = False
        refused = self.start()
        wound = self._wound_now
        if wound is None:
            error = refused or self._outcome()
            if error is not None and error.code == "capture.publication" and not self._ours:
                # It was looked at in the moment in which the user's publication was altered.
                self.said.append(f"-- failed: {error.code}: {error} {error.facts}")
                self.stop()
                error = self.start() or self._outcome()
            if error is not None:
                raise NotEqual(f"Failed without a cause: {error.code}: {error} {error.facts}")
            return
        error = refused or self._red(wound)
        self.said.append(f"-- failed: {error.code}: {error} {error.facts}")
        if isinstance(error, InvalidConfiguration):
            error = error.errors[0]
        if not error.code.startswith("capture."):
            raise NotEqual(f"A pipeline failed: {error.code}: {error} {error.facts}")
        if not {"table", "tables", "publication"} & error.facts.keys():
            raise NotEqual(f"Failed without a name: {error.code}: {error} {error.facts}")
        running = self._engine is not None and self._draw.random() < 0.6
        if not running:
            self.stop()
        self._must(*wound.undo)
        self._wound_now = None
        self._names = {name: name for name in TABLES}
        if running and not wound.tables:
            self.said.append("-- resume")
            assert self._engine is not None
            self._engine.resume(source="shop")
        error = self.start() or self._outcome()
        if error is not None:
            raise NotEqual(f"Failed for ever: {error.code}: {error} {error.facts}")

    def _outcome(self) -> HeadraceError | None:
        """Wait until it is ready and equal, or failed for good; return why it failed."""
        assert self._engine is not None
        until = time.monotonic() + patience(60.0)
        found, equal, failed = "not ready", 0, 0
        while time.monotonic() < until:
            error = self.failed()
            # A table that is lost for a moment may be back between the two questions.
            failed = 0 if error is None or self.lost() else failed + 1
            if failed == 3:
                return error
            if error is None and self._live(*TABLES) and not (found := self.differences()):
                equal += 1
                if equal == 3:  # and not by chance, before something is noticed
                    return None
            else:
                equal = 0
            time.sleep(0.1)
        raise NotEqual(f"{found}; {self._states()}")

    def _red(self, wound: Wound) -> HeadraceError:
        """Wait until what cannot be captured is red, and all else is equal; return why it is."""
        assert self._engine is not None
        until = time.monotonic() + patience(60.0)
        others = [name for name in TABLES if name not in wound.tables]
        written = False
        while time.monotonic() < until:
            source = self._engine.source_info("shop")
            if not wound.tables and source.state == "failed" and source.error is not None:
                return source.error
            infos = [self._engine.pipeline_info(name) for name in wound.tables]
            errors = [each.error for each in infos if each.error is not None]
            named = [str(error.facts.get("table")) for error in errors]
            if wound.tables and named == list(wound.tables) and self._live(*others):
                if written and not self.differences():
                    if any(self._engine.is_ready(pipeline=name) for name in wound.tables):
                        raise NotEqual(f"Ready, although it must not be: {wound}")
                    return errors[0]
                if not written and others:
                    self._run(*(self._change(name) for name in others))
                written = True
            time.sleep(0.05)
        raise NotEqual(f"Not red, until undone by {wound.undo}: {self._states()}")

    def _live(self, *tables: str) -> bool:
        assert self._engine is not None
        return all(self._engine.pipeline_info(name).state == "live" for name in tables)

    def _states(self) -> str:
        assert self._engine is not None
        source = self._engine.source_info("shop")
        states = {name: self._engine.pipeline_info(name).state for name in TABLES}
        lost = {name: str(error) for name, error in source.left_out.items()}
        return f"{states}, source {source.state} {source.reason} {source.copies} {lost}"

    # --- what is done ----------------------------------------------------------------------

    def step(self) -> None:
        """Do one thing: to rows, to the catalogue, or to the engine."""
        if self._draw.random() < 0.5:
            self._rows()
        else:
            self._draw.choice(
                (
                    self._swap,
                    self._away,
                    self._type,
                    self._publication,
                    self._identity,
                    self._column,
                    self._partition,
                    self._replace,
                    self._rewrite,
                    self._wound,
                    self._unseen,
                    self._open,
                    self._turn,
                    self._turn,
                )
            )()

    def _run(self, *statements: str) -> bool:
        """Run statements in one transaction; False: a lock was not to be had."""
        try:
            with self._session.transaction():
                for statement in statements:
                    self._session.execute(statement.encode())
        except (psycopg.errors.LockNotAvailable, psycopg.errors.ObjectInUse) as error:
            self.said.append(f"-- {type(error).__name__}: {'; '.join(statements)}")
            return False
        self.said += [f"{statement};" for statement in statements]
        return True

    def _must(self, *statements: str) -> None:
        """Run statements that have to succeed: transactions that are open are committed first."""
        if not self._run(*statements):
            self._writer.commit()
            self.said.append("-- the writer commits")
            for _ in range(50):
                if self._run(*statements):
                    return
            raise NotEqual(f"Locked for ever: {statements}")

    def _change(self, name: str, number: int | None = None) -> str:
        draw, key = self._draw, self._draw.randrange(1, 50)
        note = repr(f"n{draw.randrange(1000)}")
        if draw.random() < 0.3:
            note = LARGE.format(seed=f"'{draw.randrange(1000)}'")
        return draw.choice(
            (
                f"insert into {name} (id, note) values ({key}, {note}) on conflict do nothing",
                f"update {name} set note = {note} where id % 5 = {key % 5}",
                f"update {name} set n = n + 1 where id % 3 = {key % 3}",
                f"update {name} set n = n + 1 where id % 3 = {key % 3}",
                f"delete from {name} where id = {key}",
                f"update {name} set id = id + {draw.randrange(100, 10000)} where id = {key}",
            )
        )

    def _rows(self) -> None:
        self._run(self._change(self._names[self._draw.choice(TABLES)]))

    def _open(self) -> None:
        """Write in a transaction that stays open, or end it."""
        if self._writer.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
            self.said.append("-- the writer commits")
            self._writer.commit()
            return
        statement = f"update {self._draw.choice(TABLES)} set n = n + 10 where id % 2 = 0"
        with suppress(psycopg.Error):
            self._writer.execute("set local lock_timeout = '300ms'")
            self._writer.execute(statement.encode())
            self.said.append(f"-- the writer: {statement};")
            return
        self._writer.rollback()

    def _turn(self) -> None:
        """Stop the engine, start it, or let it lag."""
        if self._engine is None:
            if self.start() is not None:
                self.said.append("-- it could not be started")
        elif self._draw.random() < 0.5:
            self.stop()
        else:
            self._lagging = not self._lagging
            self.said.append(f"-- lagging: {self._lagging}")

    def _plain(self) -> str:
        return self._draw.choice(("a", "b"))

    def _pause(self) -> None:
        """Let the engine look, or not."""
        if self._draw.random() < 0.5:
            time.sleep(0.15)

    def _swap(self) -> None:
        one, other = self._draw.choice((("a", "b"), ("a", "c")))
        self._run(
            f"alter table {one} rename to third",
            f"alter table {other} rename to {one}",
            f"alter table third rename to {other}",
        )

    def _away(self) -> None:
        """Have a table elsewhere for a moment, with changes there."""
        name = self._plain()
        there, back, to = self._draw.choice(
            (
                (f"{name} set schema apart", f"apart.{name} set schema public", f"apart.{name}"),
                (f"{name} rename to gone", f"gone rename to {name}", "gone"),
            )
        )
        if self._run(f"alter table {there}"):
            self._run(self._change(to))
            self._pause()
            self._must(f"alter table {back}")

    def _type(self) -> None:
        labels = {label for (label,) in self._database.rows("select enumlabel from pg_enum")}
        thing = self._database.value(
            "select max(relname) from pg_class where relname like 'thing%%'"
        )
        self._columns += 1
        was, now = ("new", "fresh") if "new" in labels else ("fresh", "new")
        renamed = f"alter type state rename value '{was}' to '{now}'"
        other = "things" if thing == "thing" else "thing"
        added = [
            attribute
            for (attribute,) in self._database.rows(
                "select attname from pg_attribute where attrelid = 'size'::regclass"
                " and attname like 'x%%' and not attisdropped"
            )
        ]
        self._run(
            *self._draw.choice(
                (
                    (
                        renamed,
                        *(f"alter table {t} alter state set default '{now}'" for t in "abcp"),
                    ),
                    (f"alter type state add value 'v{self._columns}' before 'paid'",),
                    (f"alter type size add attribute x{self._columns} int",),
                    (f"alter type size drop attribute {added[-1]}",)
                    if added
                    else (f"alter type size add attribute x{self._columns} int",),
                    (f"alter table {thing} rename to {other}",),
                )
            )
        )

    def _unseen(self) -> None:
        """Have a label used, and perhaps renamed, before it was seen."""
        self._columns += 1
        label = f"v{self._columns}"
        table = self._draw.choice(TABLES)
        if self._run(f"alter type state add value '{label}' before 'paid'"):
            self._pause()
            self._run(f"update {table} set state = '{label}' where id % 4 = 1")
            self._pause()
            if self._draw.random() < 0.6:
                self._run(f"alter type state rename value '{label}' to 'w{self._columns}'")

    def _publication(self) -> None:
        """Have the publication send something else for a moment, with changes meanwhile."""
        if not self._database.rows("select from pg_publication"):
            return
        alter = f"alter publication {PUBLICATION}"
        name = self._plain()
        everything = "insert, update, delete, truncate"
        reset = f"{alter} set table {', '.join(self._published)}"
        schema = "tables in schema public"
        of_tables: tuple[tuple[str, str], ...] = (
            (f"{alter} drop table {name}", f"{alter} add table only {name}"),
            (reset.replace("a,", "a where (id > 9),"), reset),
            (reset.replace("b,", "b (id, other, n),"), reset),
        )
        if self._listed_whole:
            of_tables = of_tables[:1]
        if self._kind == SCHEMA:
            of_tables = ((f"{alter} drop {schema}", f"{alter} add {schema}"),)
        there, back = self._draw.choice(
            (
                *of_tables,
                (f"{alter} set (publish = 'insert')", f"{alter} set (publish = '{everything}')"),
                (
                    f"{alter} set (publish_via_partition_root = false)",
                    f"{alter} set (publish_via_partition_root = true)",
                ),
            )
        )
        try:
            if self._run(there):
                self._run(self._change(name), self._change("p"))
                self._pause()
                self._must(back)
        except (psycopg.errors.UndefinedObject, psycopg.errors.DuplicateObject):
            pass  # ours was put right meanwhile
        except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InvalidColumnReference):
            # A column list, or a filter, does not go with the replica identity.
            with suppress(psycopg.errors.DuplicateObject):
                self._must(back)

    def _identity(self) -> None:
        name = self._plain()
        index = self._index(name, primary=False)
        identity = self._draw.choice(("full", "default", f"using index {index}"))
        self._run(f"alter table {name} replica identity {identity}")

    def _column(self) -> None:
        name = self._plain()
        self._columns += 1
        self._run(
            self._draw.choice(
                (
                    f"alter table {name} add x{self._columns} int",
                    f"alter table {name} add x{self._columns} int default 7",
                    f"alter table {name} add x{self._columns} float default random()",
                    f"alter table {name} alter note type text using note || '!'",
                    f"alter table {name} alter n type bigint",
                )
            ),
            # A new column comes with the next change of its table.
            f"insert into {name} (id) values ({100_000 + self._columns})",
        )

    def _partition(self) -> None:
        self._columns += 1
        start = 200_000 + self._columns * 10
        bounds = f"for values from ({start}) to ({start + 10})"
        new = f"q{self._columns}"
        mine = [
            partition
            for (partition,) in self._database.rows(
                "select inhrelid::regclass::text from pg_inherits"
                " where inhparent = 'p'::regclass and inhrelid::regclass::text like 'q%%'"
            )
        ]
        self._run(
            *self._draw.choice(
                (
                    (
                        "alter table p detach partition p1",
                        "update p1 set n = n + 1",
                        "alter table p attach partition p1 for values from (0) to (20)",
                    ),
                    ("truncate p1",),
                    (f"drop table {mine[0]}",) if mine else ("truncate p1",),
                    (
                        f"create table {new} (like p including all)",
                        f"insert into {new} (id) values ({start + 1})",
                        f"alter table p attach partition {new} {bounds}",
                    ),
                    (
                        f"create table {new} partition of p {bounds}",
                        f"insert into p (id) values ({start + 1})",
                    ),
                )
            )
        )

    def _replace(self) -> None:
        """Create a table anew under the same name."""
        name = self._plain()
        self._columns += 1
        self._run(
            f"create table fresh{self._columns} (like {name} including all)",
            f"insert into fresh{self._columns} select * from {name} where id % 2 = 0",
            f"drop table {name}",
            f"alter table fresh{self._columns} rename to {name}",
        )
        self._list(name)

    def _list(self, name: str) -> None:
        """Have the user's publication list a table that was created."""
        if self._kind == LISTED and not self._database.rows(
            "select from pg_publication_rel where prrelid = %s::regclass", name
        ):
            self._must(f"alter publication {PUBLICATION} add table {name}")

    def _rewrite(self) -> None:
        name = self._plain()
        statement = self._draw.choice(
            (f"truncate {name}", f"cluster {name} using {self._index(name)}", f"vacuum full {name}")
        )
        try:
            self._session.execute(statement.encode())
            self.said.append(f"{statement};")
        except psycopg.errors.LockNotAvailable:
            self.said.append(f"-- locked: {statement}")

    def _index(self, name: str, *, primary: bool = True) -> str:
        [(index,)] = self._database.rows(
            "select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid"
            " where i.indrelid = %s::regclass and i.indisunique and i.indisprimary = %s",
            name,
            primary,
        )
        return str(index)

    def _wound(self) -> None:
        """Do what the engine must not be ready with, until it is undone."""
        if self._wound_now is not None or self._draw.random() < 0.5:
            return
        name = self._plain()
        alter, publication = f"alter table {name}", f"alter publication {PUBLICATION}"
        harms: list[tuple[tuple[str, ...], Wound, str]] = [
            (
                (f"create table child () inherits ({name})", "insert into child (id) values (-1)"),
                Wound(("drop table child",), (name,)),
                name,
            ),
            (
                (f"{alter} rename to gone",),
                Wound((f"alter table gone rename to {name}",), (name,)),
                "gone",
            ),
            (
                (f"{alter} set schema apart",),
                Wound((f"alter table apart.{name} set schema public",), (name,)),
                f"apart.{name}",
            ),
            (
                (f"drop table {name}",),
                Wound((f"create table {name} (like c including all)",), (name,)),
                name,
            ),
            (
                (f"{alter} replica identity nothing",),
                Wound((f"{alter} replica identity default",), (name,)),
                name,
            ),
        ]
        if self._kind == LISTED:
            harms += [
                (
                    (f"{publication} drop table {name}",),
                    Wound((f"{publication} add table only {name}",), (name,)),
                    name,
                ),
                (
                    (f"{publication} set (publish = 'insert')",),
                    Wound(
                        (f"{publication} set (publish = 'insert, update, delete, truncate')",), ()
                    ),
                    name,
                ),
            ]
        if self._kind == SCHEMA:
            harms += [
                ((f"{alter} set unlogged",), Wound((f"{alter} set logged",), (name,)), name),
                (
                    (f"{publication} drop tables in schema public",),
                    Wound((f"{publication} add tables in schema public",), TABLES),
                    name,
                ),
            ]
        statements, wound, now = self._draw.choice(harms)
        if self._kind == LISTED and statements[0].startswith("drop table"):
            wound.undo = (*wound.undo, f"{publication} add table only {name}")
        if self._run(*statements):
            self._wound_now = wound
            self._names[name] = now


def run(database: Database, data: Path, seed: int, steps: int, kind: str = "") -> None:
    """Run one sequence; raises `NotEqual` with its statements."""
    kind = kind or kind_of(seed)
    sequence = Sequence_(database, data, seed, kind)
    with sequence.gate():
        try:
            sequence.settle()
            for number in range(steps):
                sequence.step()
                # A table that is not there is not written to, altered or swapped.
                if sequence._wound_now or number % 8 == 7:
                    sequence.settle()
            sequence.settle()
        except (NotEqual, psycopg.Error) as error:
            said = "\n".join(sequence.said)
            raise NotEqual(f"seed {seed}, {kind}: {error}\n{said}") from error
        finally:
            sequence.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run many sequences on one server, and report those that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=24)
    asked = parser.parse_args(arguments)
    failed: list[int] = []
    with make_server() as server:
        for seed in range(asked.seed, asked.seed + asked.sequences):
            began = time.monotonic()
            with fresh_database(server) as database, tempfile.TemporaryDirectory() as folder:
                try:
                    run(database, Path(folder) / "data", seed, asked.steps)
                    outcome = "equal"
                except NotEqual as error:
                    failed.append(seed)
                    outcome = f"FAILED\n{error}"
            print(f"seed {seed}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{asked.sequences} sequences, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
