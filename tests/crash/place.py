"""
The folder of a round: the application's database, and everything of ours beside it.

The application keeps a diary, by triggers of its own connection that nobody else sees:
what it says happened is compared with what our log says.
"""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from random import Random

from headrace.capture.sqlite.database import CapturePosition as SourcePlace
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.capture.sqlite.triggers import LOG, READERS
from headrace.changelog.change import Op
from headrace.changelog.reader import LogReader, LogWriter
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.crash.model import BAD_CUSTOMER, Image
from tests.crash.plan import Plan
from tests.support.patience import patience

BAD_ROW = "BAD_ROW"
"""Why a row failed, where Spark is not there to say it."""

PIPELINE = "crash"
"""The pipeline's name, which its letters and its progress are kept under."""

_TABLE = "create table {} (id integer primary key, customer_id integer, status text, card text)"
_DIARY_TABLE = (
    "create temp table diary "
    "(n integer primary key, name text, op integer, before text, after text)"
)
_IMAGE = "json_array({0}.id, {0}.customer_id, {0}.status, {0}.card)"
_DIARY = (
    ("insert", Op.INSERT, None, "new"),
    ("update", Op.UPDATE, "old", "new"),
    ("delete", Op.DELETE, "old", None),
)

_CUSTOMERS = [number for number in range(7) if number != BAD_CUSTOMER]
_STATEMENTS = {
    "insert": 30,
    "update": 30,
    "customer": 6,
    "rows": 5,
    "often": 3,
    "delete": 12,
    "move": 6,
    "take": 4,
    "replace": 8,
    "all": 1,
    "none": 1,
}
"""What the application does, and how often."""


class Place:
    """A database that is written to, and the data directory of the engine that reads it."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.token = folder / "token"
        self.commits = 0
        self._dice = Random(f"writes {plan.seed}")
        self._next_id = 1
        self._app = sqlite3.connect(folder / "shop.db", isolation_level=None, timeout=patience())
        self._app.execute(f"pragma journal_mode = {'wal' if plan.wal else 'delete'}")
        self._app.execute("pragma synchronous = off")
        self._app.execute(_DIARY_TABLE)
        self._app.execute("begin")
        for table in plan.tables:
            self._app.execute(_TABLE.format(table))
            self._keep_diary(table)
            self._insert(table, plan.rows)
        self._app.execute("commit")
        if plan.entries:
            self._lengthen(plan.entries)

    def close(self) -> None:
        self._app.close()

    def _keep_diary(self, table: str) -> None:
        for event, op, before, after in _DIARY:
            images = [_IMAGE.format(row) if row else "null" for row in (before, after)]
            # An update that changes nothing is not captured.
            when = f"when {images[0]} is not {images[1]} "
            self._app.execute(
                f"create temp trigger {table}_{event} after {event} on main.{table} {when}begin "
                "insert into diary (name, op, before, after) "
                f"values ('{table}', {int(op)}, {', '.join(images)}); end"
            )

    @property
    def files(self) -> Files:
        return Files(RealDisk(), str(self.folder / "data"))

    @property
    def code(self) -> str:
        """What a letter of a row that failed says."""
        return "DIVIDE_BY_ZERO" if self.plan.spark else BAD_ROW

    def log(self) -> LogReader:
        return LogReader.open(self.files, "shop")

    # --- what the application does --------------------------------------------------------

    def write(self, transactions: int = 1) -> None:
        """Let the application do something."""
        for _ in range(transactions):
            self._app.execute("begin immediate")
            for _ in range(self._dice.choice([1, 1, 1, 2, 5])):
                self._statement()
            self._app.execute("rollback" if self._dice.random() < 0.1 else "commit")
            self.commits += 1

    def _statement(self) -> None:
        dice, app = self._dice, self._app
        table = dice.choice(self.plan.tables)
        ids = [row[0] for row in app.execute(f"select id from {table}")]
        if not ids:
            self._insert(table, dice.randint(1, 5))
            return
        one, other = dice.choice(ids), dice.choice(ids)
        status = dice.choice(["new", "paid", "sent", None])
        match dice.choices(list(_STATEMENTS), list(_STATEMENTS.values()))[0]:
            case "insert":
                self._insert(table, dice.choice([1, 1, 2, 20]))
            case "update":
                app.execute(f"update {table} set status = ? where id = ?", (status, one))
            case "customer":
                to = self._customer()
                app.execute(f"update {table} set customer_id = ? where id = ?", (to, one))
            case "rows":
                of = (status, one % 7)
                app.execute(f"update {table} set status = ? where customer_id = ?", of)
            case "often":
                for number in range(dice.randint(2, 30)):
                    app.execute(f"update {table} set card = ? where id = ?", (str(number), one))
            case "delete":
                app.execute(f"delete from {table} where id = ?", (one,))
            case "move":
                app.execute(f"update {table} set id = ? where id = ?", (self._fresh_id(), one))
            case "take":
                # The row that had this key goes without a delete being told.
                app.execute(f"update or replace {table} set id = ? where id = ?", (other, one))
            case "replace":
                row = (one, self._customer(), status)
                app.execute(f"insert or replace into {table} values (?, ?, ?, 'x')", row)
            case "all":
                app.execute(f"update {table} set status = ?", (status,))
            case "none":
                app.execute(f"delete from {table}")

    def _insert(self, table: str, count: int) -> None:
        for _ in range(count):
            status = self._dice.choice(["new", "paid", "paid", None])
            row = (self._fresh_id(), self._customer(), status, "1234")
            self._app.execute(f"insert into {table} values (?, ?, ?, ?)", row)

    def _customer(self) -> int:
        # Few of the bad one: a row is held for good, and most should live on. With Spark,
        # each row that fails is looked for with several jobs.
        share = 0.01 if self.plan.spark else 0.03
        return BAD_CUSTOMER if self._dice.random() < share else self._dice.choice(_CUSTOMERS)

    def _fresh_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # --- what is true ---------------------------------------------------------------------

    def truth(self, table: str) -> dict[object, dict[str, object]]:
        """Return what the target should hold, with filter and transform in words of SQL."""
        found = self._app.execute(
            f"select id, customer_id, status from {table} where status = 'paid'"
        )
        return {
            key: {"id": key, "customer_id": customer, "status": status}
            for key, customer, status in found
        }

    def diary(self, last: int) -> list[tuple[str, int, Image | None, Image | None]]:
        """Return the application's own account of its last changes, in order."""
        found = self._app.execute(
            "select name, op, before, after from diary order by n desc limit ?", (last,)
        )
        made = [(name, op, _image(before), _image(after)) for name, op, before, after in found]
        return made[::-1]

    def account(self) -> tuple[int, int, int]:
        """
        Return the newest captured change, the acknowledged one, and how many above it are kept.

        In one statement: the recorder may be at work, and moves the last two together.
        """
        acknowledged = f"(select min(cursor) from {READERS})"
        (found,) = self._app.execute(
            f"select (select max(seq) from {LOG}), {acknowledged},"
            f" (select count(*) from {LOG} where seq > {acknowledged})"
        )
        captured, told, kept = (int(number or 0) for number in found)
        return captured, told, kept

    def captured(self) -> int:
        """Return the number of the newest captured change; 0 before capture is set up."""
        return self._number(f"select max(seq) from {LOG}")

    def acknowledged(self) -> int:
        """Return the number up to which the database may forget."""
        return self._number(f"select min(cursor) from {READERS}")

    def stored(self, sql: str) -> list[tuple[object, ...]]:
        """Return what the engine's own file of progress says."""
        connection = sqlite3.connect(self.folder / "data" / "control.sqlite")
        try:
            return connection.execute(sql, (PIPELINE,)).fetchall()
        finally:
            connection.close()

    def _number(self, sql: str) -> int:
        try:
            return int(self._app.execute(sql).fetchone()[0] or 0)
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return 0
            raise

    # --- a log that is long already -------------------------------------------------------

    def _lengthen(self, entries: int) -> None:
        """Write a log of so many entries: capture is set up, and nothing has happened since."""
        files = Files(_Careless(), str(self.folder / "data"))
        reader = f"shop@{(self.folder / 'data').resolve()}"
        source = SQLiteSource(sqlite(self.folder / "shop.db").spec, reader)
        source.describe(self.plan.tables)
        at = SourcePlace.parse(str(source.open(None)))
        source.close()
        log = LogWriter.open(
            files, source="shop", origin=source.origin, writer="before", term=1, clock=time.time
        )
        log.begin(at, "start", source.origin)
        # The same place in two ways: a heartbeat that says nothing new is not written.
        blind = SourcePlace(at.capture, at.seq)
        while log.last_entry < entries:
            log.heartbeat(blind)
            log.heartbeat(at)


def _image(text: str | None) -> Image | None:
    return None if text is None else tuple(json.loads(text))


class _Careless(RealDisk):
    """Does not sync: what is prepared need not survive anything."""

    def sync(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None: ...
