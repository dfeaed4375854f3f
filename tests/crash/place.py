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

from headrace.capture.sqlite.place import Place as SourcePlace
from headrace.capture.sqlite.setup import LOG, READERS
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.changelog.change import Op
from headrace.changelog.log import LogReader, LogWriter
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.crash.plan import Plan

_TABLES = """
create table orders (id integer primary key, customer_id integer, status text, card text);
create temp table diary (n integer primary key, op integer, before text, after text);
"""
_IMAGE = "json_array({0}.id, {0}.customer_id, {0}.status, {0}.card)"
_DIARY = (
    ("insert", Op.INSERT, None, "new"),
    ("update", Op.UPDATE, "old", "new"),
    ("delete", Op.DELETE, "old", None),
)


class Place:
    """A database that is written to, and the data directory of the engine that reads it."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.token = folder / "token"
        self.commits = 0
        self._dice = Random(f"writes {plan.seed}")
        self._next_id = 1
        self._app = sqlite3.connect(folder / "shop.db", isolation_level=None, timeout=30)
        self._app.execute(f"pragma journal_mode = {'wal' if plan.wal else 'delete'}")
        self._app.execute("pragma synchronous = off")
        self._app.executescript(_TABLES)
        for event, op, before, after in _DIARY:
            images = [_IMAGE.format(row) if row else "null" for row in (before, after)]
            self._app.execute(
                f"create temp trigger diary_{event} after {event} on main.orders begin "
                "insert into diary (op, before, after) "
                f"values ({int(op)}, {', '.join(images)}); end"
            )
        self._app.execute("begin")
        self._insert(plan.rows)
        self._app.execute("commit")
        if plan.entries:
            self._lengthen(plan.entries)

    def close(self) -> None:
        self._app.close()

    @property
    def files(self) -> Files:
        return Files(RealDisk(), str(self.folder / "data"))

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
        ids = [row[0] for row in app.execute("select id from orders")]
        if not ids:
            self._insert(dice.randint(1, 5))
            return
        one, other = dice.choice(ids), dice.choice(ids)
        status = dice.choice(["new", "paid", "sent", None])
        match dice.choices(
            [
                "insert",
                "update",
                "rows",
                "often",
                "delete",
                "move",
                "take",
                "replace",
                "all",
                "none",
            ],
            [30, 30, 5, 3, 12, 6, 4, 8, 1, 1],
        )[0]:
            case "insert":
                self._insert(dice.choice([1, 1, 2, 20]))
            case "update":
                app.execute("update orders set status = ? where id = ?", (status, one))
            case "rows":
                app.execute("update orders set status = ? where customer_id = ?", (status, one % 7))
            case "often":
                for number in range(dice.randint(2, 30)):
                    app.execute("update orders set card = ? where id = ?", (str(number), one))
            case "delete":
                app.execute("delete from orders where id = ?", (one,))
            case "move":
                app.execute("update orders set id = ? where id = ?", (self._fresh_id(), one))
            case "take":
                # The row that had this key goes without a delete being told.
                app.execute("update or replace orders set id = ? where id = ?", (other, one))
            case "replace":
                app.execute(
                    "insert or replace into orders values (?, ?, ?, 'x')", (one, one % 7, status)
                )
            case "all":
                app.execute("update orders set status = ?", (status,))
            case "none":
                app.execute("delete from orders")

    def _insert(self, count: int) -> None:
        for _ in range(count):
            status = self._dice.choice(["new", "paid", "paid", None])
            row = (self._fresh_id(), self._dice.randrange(7), status, "1234")
            self._app.execute("insert into orders values (?, ?, ?, ?)", row)

    def _fresh_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # --- what is true ---------------------------------------------------------------------

    def truth(self) -> dict[int, dict[str, object]]:
        """Return what the target should hold, with filter and transform in words of SQL."""
        found = self._app.execute(
            "select id, customer_id, status from orders where status = 'paid'"
        )
        return {
            key: {"id": key, "customer_id": customer, "status": status}
            for key, customer, status in found
        }

    def diary(self, last: int) -> list[tuple[int, object, object]]:
        """Return the application's own account of its last changes, in order."""
        found = self._app.execute(
            "select op, before, after from diary order by n desc limit ?", (last,)
        )
        made = [(op, json.loads(b or "null"), json.loads(a or "null")) for op, b, a in found]
        return made[::-1]

    def captured(self) -> int:
        """Return the number of the newest captured change; 0 before capture is set up."""
        return self._number(f"select max(seq) from {LOG}")

    def acknowledged(self) -> int:
        """Return the number up to which the database may forget."""
        return self._number(f"select min(cursor) from {READERS}")

    def kept(self, above: int) -> int:
        """Return how many captured changes above a number are still in the database."""
        return self._number(f"select count(*) from {LOG} where seq > {above}")

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
        source.describe(["orders"])
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


class _Careless(RealDisk):
    """Does not sync: what is prepared need not survive anything."""

    def sync(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None: ...
