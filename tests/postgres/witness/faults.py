"""What is done to an engine that is watched, and how each is undone."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Protocol

import psycopg

from headrace.embedded.postgres import PostgresServer
from headrace.storage import killpoints
from tests.postgres.catalog_sequences import PUBLICATION
from tests.postgres.rounds.nemesis import Nemesis
from tests.postgres.rounds.plan import ENGINE_POINTS, OF_BEGINNING, OF_STREAMING, Act
from tests.postgres.witness.catalog import Catalog
from tests.postgres.witness.plan import DRAWN, Fault
from tests.postgres.witness.testimony import FILE, MEMORY, Beat, FileWriter
from tests.rounds import processes
from tests.rounds.killing import kill, until
from tests.rounds.line import END_SECONDS, Line
from tests.rounds.source import connected
from tests.support.patience import slowness
from tests.support.proxy import Carried, Proxy

STRIKE_SECONDS = 15.0 * slowness()
"""How long a named point is waited for; then it counts as not reached."""

ACTS = {
    Fault.SENDER_ENDED: Act.SENDER_ENDED,
    Fault.SENDER_KILLED: Act.SENDER_KILLED,
    Fault.HOLDER_ENDED: Act.HOLDER_ENDED,
    Fault.HOLDER_KILLED: Act.HOLDER_KILLED,
    Fault.RECORDER_KILLED: Act.RECORDER,
    Fault.SERVER_KILLED: Act.SERVER_KILLED,
    Fault.SERVER_STOPPED: Act.SERVER_STOPPED,
    Fault.SLOT_DROPPED: Act.SLOT_DROPPED,
}
"""What the other rounds do, too."""

SILENCES: dict[Fault, tuple[tuple[str, ...], Callable[[Carried], bool]]] = {
    Fault.TO_US: (("to_client",), lambda each: each.replicates),
    Fault.TO_SERVER: (("to_server",), lambda each: each.replicates),
    Fault.STREAM: (("to_client", "to_server"), lambda each: each.replicates),
    Fault.QUERIES: (("to_client", "to_server"), lambda each: not each.replicates),
    Fault.ALL: (("to_client", "to_server"), lambda each: True),
}
"""Which directions are lost, and of which connections."""

FLAGS = {Fault.TARGET_HANGS: "hang", Fault.TARGET_REFUSES: "refuse"}
"""The file that makes the durable target do so."""


class Engine(Protocol):
    """The engine's process, as far as it can be started again."""

    line: Line | None

    def start(self, armed: str | None = None) -> None:
        """Start it, with a point armed at which somebody dies."""
        ...


class Faults:
    """Does to one round what its plan says."""

    def __init__(
        self,
        engine: Engine,
        server: PostgresServer,
        proxy: Proxy,
        folder: Path,
        catalog: Catalog,
        file: FileWriter,
        seed: int,
    ) -> None:
        self._engine = engine
        self._server = server
        self._proxy = proxy
        self._folder = folder
        self._catalog = catalog
        self._file = file
        self._nemesis = Nemesis(server, folder.name)
        self._dice = Random(f"faults {seed}")
        self._changes = 0

    @contextmanager
    def at_work(self, kind: str) -> Iterator[list[str]]:
        """Do it, give what was done by name (nothing: it found nobody), and undo it."""
        if kind not in set(Fault):
            yield [kind] * self._killed_at(kind.removeprefix("killed at "))
            return
        fault = Fault(kind)
        if fault in DRAWN:
            yield self._catalog.change(fault)
            return
        with ExitStack() as undone:
            yield [kind] * self._done(fault, undone)

    def _done(self, fault: Fault, undone: ExitStack) -> bool:
        match fault:
            case _ if fault in SILENCES:
                directions, of = SILENCES[fault]
                return self._proxy.lose(*directions, of=of) > 0
            case _ if fault in ACTS:
                if fault in (Fault.HOLDER_ENDED, Fault.HOLDER_KILLED):
                    self._line.tell("reload orders")
                return self._nemesis.act(ACTS[fault])
            case _ if fault in FLAGS:
                self._flag(FLAGS[fault], undone)
            case Fault.SENDER_SUSPENDED:
                return self._suspend(self._sender(), undone)
            case Fault.RECORDER_SUSPENDED:
                return self._suspend(self._recorder(), undone)
            case Fault.JVM_SUSPENDED:
                return self._suspend(self._jvm(), undone)
            case Fault.JVM_KILLED:
                return (pid := self._jvm()) is not None and kill(pid)
            case Fault.ENGINE_SUSPENDED:
                return self._suspend(self._line.process.pid, undone)
            case Fault.ENGINE_SUSPENDED_SLOW:
                # The target stays slow when the engine goes on.
                self._flag("hang", undone)
                undone.callback(time.sleep, 6.0)  # a pace: what is said meanwhile is heard later
                return self._suspend(self._line.process.pid, undone)
            case Fault.MACHINE_SUSPENDED:
                self._suspend(self._line.process.pid, undone)
                return self._suspend(self._recorder(), undone)
            case Fault.ENGINE_KILLED:
                self._line.kill()
                self._engine.start()
            case Fault.ENGINE_STOPPED:
                self._line.stop()
                self._engine.start()
            case Fault.DISK_FULL:
                self._fill(self._folder / "data", undone)
            case Fault.LOG_FULL:
                self._fill(self._folder / "data" / "log", undone)
            case Fault.PAUSED:
                pipeline = self._dice.choice([FILE, MEMORY])
                undone.callback(self._tell, f"resume {pipeline}")
                self._tell(f"pause {pipeline}")
            case Fault.RELOADED:
                self._tell(f"reload {self._dice.choice(['orders', 'events', 'moods'])}")
            case Fault.FILE_LOCKED:
                self._lock_file(undone)
            case Fault.FILE_REPLACED:
                self._replace_file()
            case _:
                self._change(fault)
        return True

    @property
    def _line(self) -> Line:
        assert self._engine.line is not None
        return self._engine.line

    def _tell(self, command: str) -> None:
        self._line.tell(command)

    def _flag(self, name: str, undone: ExitStack) -> None:
        path = self._folder / name
        path.touch()
        undone.callback(path.unlink)

    # --- processes --------------------------------------------------------------------------

    def _sender(self) -> int | None:
        with connected(self._server.dsn) as connection:
            row = connection.execute(
                "select active_pid from pg_replication_slots where active_pid is not null"
            ).fetchone()
        return None if row is None else int(row[0])

    def _recorder(self) -> int | None:
        return next(iter(processes.recorders(self._folder.name)), None)

    def _jvm(self) -> int | None:
        found = processes.marked(self._folder.name)
        return next((pid for pid, line in found.items() if "java" in line.split(" ")[0]), None)

    @staticmethod
    def _suspend(pid: int | None, undone: ExitStack) -> bool:
        def go_on(pid: int) -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return False
        undone.callback(go_on, pid)
        return True

    def _killed_at(self, point: str) -> bool:
        """Let somebody die at a named point; False: nobody came by."""
        self._line.stop()
        if point in OF_BEGINNING:
            self._nemesis.act(Act.SLOT_DROPPED)
        nth = self._dice.choice([1, 2]) if point in OF_STREAMING else 1
        self._engine.start(f"{point}:{nth}")
        line, asked = self._line, 0.0

        def come_by() -> bool:
            nonlocal asked
            if line.struck or line.ended:
                return True
            if time.monotonic() - asked > 2:
                table = "events" if point == killpoints.COPY_PLANNED else "late"
                line.tell(f"reload {table}")
                asked = time.monotonic()
            return False

        until(come_by, STRIKE_SECONDS)
        struck = line.struck
        if not struck:
            line.token.unlink(missing_ok=True)  # from now on it is nobody's point
        elif point in ENGINE_POINTS:
            line.process.wait(END_SECONDS)
            line.close()
            self._engine.start()
        return struck

    # --- files ------------------------------------------------------------------------------

    @staticmethod
    def _fill(folder: Path, undone: ExitStack) -> None:
        filler = folder / "filler"
        undone.callback(filler.unlink)
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * (1 << 20)):
                pass

    def _lock_file(self, undone: ExitStack) -> None:
        locker = undone.enter_context(
            closing(sqlite3.connect(self._file.path, timeout=30, isolation_level=None))
        )
        with self._file.turn:
            self._file.number += 1
            locker.execute("begin exclusive")
            locker.execute("update marks set n = ?", [self._file.number])
            locker.execute("commit")
            self._file.beats.add(Beat(time.time(), self._file.number))
            locker.execute("begin exclusive")

    def _replace_file(self) -> None:
        """Put another file in the place of the one that is read: its copy, or an older one."""
        path = self._file.path
        other, older = path.with_suffix(".other"), path.with_suffix(".older")
        with self._file.turn:
            with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(other)) as copy:
                now.backup(copy)
            if self._dice.random() < 0.5 and older.exists():
                other, older = older, other
            self._file.number += 1
            with closing(sqlite3.connect(other)) as database, database:
                database.execute("update marks set n = ?", [self._file.number])
            if not older.exists():
                shutil.copyfile(other, older)
            other.replace(path)

    # --- the catalog ------------------------------------------------------------------------

    def _change(self, fault: Fault) -> None:
        """Change the catalog, and put it back where that is part of the fault."""
        self._changes += 1
        with connected(self._server.dsn) as connection:
            for statement in self._statements(fault):
                # A writer may hold a table for a moment.
                for _ in range(50):
                    try:
                        connection.execute(statement.encode())
                        break
                    except psycopg.errors.LockNotAvailable:
                        time.sleep(0.05)
                    except (psycopg.errors.UndefinedObject, psycopg.errors.DuplicateObject):
                        break  # the publication was put right meanwhile
                self._catalog.wrote()

    def _statements(self, fault: Fault) -> Sequence[str]:
        number = self._changes
        alter = f"alter publication {PUBLICATION}"
        everything = "insert, update, delete, truncate"
        return {
            Fault.PUBLICATION_DROPPED: [
                f"drop publication {PUBLICATION}",
                f"update moods set mood = 'bad' where id = {1 + number % 50}",
                self._catalog.publication,
            ],
            Fault.TABLE_LEFT_OUT: [
                f"{alter} drop table moods",
                "update moods set mood = 'bad' where id <= 10",
                f"{alter} add table moods",
            ],
            Fault.INSERTS_ONLY: [
                f"{alter} set (publish = 'insert')",
                "update moods set mood = 'good' where id > 40",
                f"{alter} set (publish = '{everything}')",
            ],
            Fault.TABLES_SWAPPED: [
                "begin; alter table left_hand rename to aside; alter table right_hand rename to"
                " left_hand; alter table aside rename to right_hand; commit",
                f"update left_hand set v = 'changed {number}' where id <= 5",
            ],
            Fault.LABEL_RENAMED: [
                "do $$ begin if exists (select from pg_enum where enumlabel = 'good') then alter"
                " type mood rename value 'good' to 'fine'; alter type mood rename value 'fine' to"
                f" 'good'; end if; end $$; alter type mood add value 'm{number}';",
                f"update moods set mood = 'm{number}' where id between 20 and 30",
                f"alter type mood rename value 'm{number}' to 'n{number}'",
            ],
            Fault.COLUMN_ADDED: [
                f"alter table left_hand add column c{number} int default {number}",
                "update left_hand set v = v || '.' where id = 1",
            ],
            Fault.UNLOGGED: [
                # Of a publication only without it.
                f"{alter} drop table right_hand",
                "alter table right_hand set unlogged",
                f"update right_hand set v = 'unlogged {number}' where id <= 3",
                "alter table right_hand set logged",
                f"{alter} add table right_hand",
            ],
            Fault.NO_IDENTITY: [
                "alter table left_hand replica identity nothing",
                f"insert into left_hand (id, v) values ({1000 + number}, 'new')",
                "alter table left_hand replica identity default",
            ],
            Fault.PARTITION_GONE: ["truncate events_1"],
        }[fault]
