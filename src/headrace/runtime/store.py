"""
The control store: the engine's term, progress, states, intents and counts, kept over a crash.

One SQLite file (`control.sqlite`), written with full synchronisation. Every write checks
the term in its own transaction (R31): an engine that was declared dead and continues later
finds a newer term and is fenced, instead of overwriting newer state with older.

`stored_progress` returns the stored progress of pipelines without an engine. It writes nothing,
takes no term, and does not disturb a running engine.

Long because everything that has to agree after a crash is in one file, with one lock and term.
"""

from __future__ import annotations

import copy
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.changelog.position import ORIGIN, Position
from headrace.errors import Fenced, StorageError, StorageFull, UnknownFormat
from headrace.observe.counters import Counters, OperationCounts, TableCounts

# --- the store ------------------------------------------------------------------------------------

FORMAT = 1

_TABLES = """
create table if not exists about (format integer not null, term integer not null);
create table if not exists progress (
  pipeline text not null, "table" text not null, lineage text not null,
  epoch integer not null, "commit" integer not null, ordinal integer not null,
  primary key (pipeline, "table")
) without rowid;
create table if not exists states (
  pipeline text not null, "table" text not null, state text not null, baseline integer,
  primary key (pipeline, "table")
) without rowid;
create table if not exists reloads (
  pipeline text not null, "table" text not null, newer_than integer not null,
  baseline integer not null, primary key (pipeline, "table")
) without rowid;
create table if not exists origins (
  pipeline text not null, "table" text not null,
  epoch integer not null, "commit" integer not null, ordinal integer not null,
  primary key (pipeline, "table")
) without rowid;
create table if not exists columns (
  pipeline text not null, "table" text not null, "schema" integer not null,
  primary key (pipeline, "table")
) without rowid;
create table if not exists intents (pipeline text primary key, intent text not null) without rowid;
create table if not exists pipelines (
  pipeline text primary key, source text not null, durable integer not null,
  changes integer not null
) without rowid;
create table if not exists paused (pipeline text primary key) without rowid;
create table if not exists highest (
  one integer primary key check (one = 1), baseline integer not null
) without rowid;
create table if not exists counters (
  pipeline text not null, "table" text not null, inserts integer not null,
  updates integer not null, deletes integer not null, truncates integer not null,
  baseline_rows integer not null, errors integer not null, dead_letters integer not null,
  since real not null, last_change real, primary key (pipeline, "table")
) without rowid;
create table if not exists expired (
  pipeline text not null, "table" text not null, rows integer not null,
  primary key (pipeline, "table")
) without rowid;
create table if not exists expiries (
  pipeline text primary key, upto integer not null
) without rowid;
create table if not exists set_aside (
  pipeline text primary key, facts text not null, taken integer not null
) without rowid;
"""

_OF_PIPELINES = (
    "progress",
    "states",
    "reloads",
    "origins",
    "columns",
    "intents",
    "set_aside",
    "counters",
    "expired",
    "expiries",
    "pipelines",
)


class Intent(msgspec.Struct, frozen=True):
    """A batch that is about to have effects on a target without transactions (R25)."""

    tables: tuple[str, ...]
    after: str
    """The position of these tables before the batch."""

    last: str
    """Where the batch ends; cut again between the two positions, it is the same batch."""

    time: float
    """When it was first stored, in seconds since 1970 (S3)."""


class Needs(NamedTuple):
    """What a durable pipeline needs of its source's log."""

    pipeline: str
    changes: bool
    """Whether it only takes changes, so that no baseline can replace missing ones."""

    position: Position
    """It needs everything after this position."""


class ProgressStore:
    """Progress and states, per pipeline and table. Safe to call from several threads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._allows: Callable[[], None] = lambda: None
        self._counters: Counters | None = None
        self._terms = [0]
        """The term, shared by the stores of all runs."""
        with self._guarded():
            connection.executescript(_TABLES)
            if (row := connection.execute("select format, term from about").fetchone()) is None:
                connection.execute("insert into about values (?, 0)", (FORMAT,))
                row = (FORMAT, 0)
        if row[0] != FORMAT:
            raise UnknownFormat("control.sqlite has an unknown format", format=row[0])

    @property
    def term(self) -> int:
        """The engine's term; 0 until `take_over`: nothing can be written before."""
        return self._terms[0]

    def count_with(self, counters: Counters) -> None:
        """
        Store the counts of one run's pipeline from now on; call it on the store of that run.

        Those of a table are stored with its progress, in the same transaction.
        """
        self._counters = counters

    def counts(self, pipeline: str) -> dict[str, TableCounts]:
        """Return the stored counts of a pipeline, by table."""
        with self._guarded():
            rows = self._connection.execute(
                'select "table", inserts, updates, deletes, truncates, baseline_rows, errors,'
                " dead_letters, coalesce(rows, 0), since, last_change from counters left join"
                ' expired using (pipeline, "table") where pipeline = ?',
                (pipeline,),
            ).fetchall()
        return {row[0]: TableCounts(OperationCounts(*row[1:9]), *row[9:]) for row in rows}

    def store_counts(self, pipeline: str) -> None:
        """Store what was counted since the last progress, before the run ends."""
        if self._counters is None or not self._counters.unstored():
            return
        with self._guarded(), self._counted(pipeline):
            self._check_term()

    @contextmanager
    def _counted(self, pipeline: str, tables: Sequence[str] | None = None) -> Iterator[None]:
        """Run a transaction that also stores the counts of these tables, or of all."""
        new = {} if self._counters is None else self._counters.unstored(tables)
        with self._transaction():
            yield
            self._connection.executemany(
                "insert or replace into counters values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (pipeline, table, *astuple(each.counts)[:7], each.since, each.last_change)
                    for table, each in new.items()
                ],
            )
            # In a table of its own, which a data directory of an earlier version can be given.
            self._connection.executemany(
                "insert or replace into expired values (?, ?, ?)",
                [
                    (pipeline, table, each.counts.expired)
                    for table, each in new.items()
                    if each.counts.expired
                ],
            )
        if self._counters is not None:
            self._counters.stored(new)

    def for_run(self, allows: Callable[[], None]) -> ProgressStore:
        """Return this store for one run; it writes only while `allows` does not raise."""
        found = copy.copy(self)  # with the same connection, lock and term
        found._allows = allows
        return found

    @classmethod
    def at(cls, path: Path) -> ProgressStore:
        """Open or create the file at `path`."""
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            path.chmod(0o600)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            return cls(connection)
        except sqlite3.Error as error:
            raise StorageError(
                "control.sqlite could not be opened", path=str(path), why=str(error)
            ) from error

    def take_over(self) -> int:
        """Raise the term and use it: every older engine is fenced from now on."""
        with self._guarded(), self._transaction():
            self._connection.execute("update about set term = term + 1")
            (term,) = self._connection.execute("select term from about").fetchone()
        self._terms[0] = term
        return self.term

    def outrank(self, term: int) -> None:
        """Raise our term above that of a log: a new store, after a lost one, begins at 1 again."""
        if term < self.term:
            return
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute("update about set term = ?", (term + 1,))
            self._terms[0] = term + 1

    def reached(self, pipeline: str, table: str) -> Position:
        """Return the position up to which everything is durable, or `ORIGIN`."""
        with self._guarded():
            row = self._connection.execute(
                'select epoch, "commit", ordinal from progress where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return Position(*row) if row else ORIGIN

    def lineage(self, pipeline: str, table: str) -> str | None:
        """Return the lineage of that position, None if there is none."""
        with self._guarded():
            row = self._connection.execute(
                'select lineage from progress where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return str(row[0]) if row else None

    def advance(self, pipeline: str, tables: Sequence[str], lineage: str, to: Position) -> Position:
        """
        Store that everything up to `to` is durable, for all these tables at once (invariant 2).

        This also completes the pipeline's intent. Returns what is stored now.
        """
        with self._guarded(), self._counted(pipeline, tables):
            self._check_term()
            # Forward only: a batch whose outcome was lost can simply be sent again.
            self._connection.executemany(
                "insert into progress values (?, ?, ?, ?, ?, ?) on conflict do update set"
                ' lineage = excluded.lineage, epoch = excluded.epoch, "commit" ='
                ' excluded."commit", ordinal = excluded.ordinal where (excluded.epoch,'
                ' excluded."commit", excluded.ordinal) > (epoch, "commit", ordinal)',
                [(pipeline, each, lineage, to.epoch, to.commit, to.ordinal) for each in tables],
            )
            self._connection.execute("delete from intents where pipeline = ?", (pipeline,))
        return min(self.reached(pipeline, each) for each in tables)

    def settle(
        self,
        pipeline: str,
        table: str,
        lineage: str,
        at: Position,
        state: str,
        baseline: int,
    ) -> None:
        """Store that a loaded baseline replaced the table: progress starts at its position."""
        with self._guarded(), self._counted(pipeline, [table]):
            self._check_term()
            # Also backwards: later changes of the previous table are not in these rows.
            self._connection.execute(
                "insert or replace into progress values (?, ?, ?, ?, ?, ?)",
                (pipeline, table, lineage, at.epoch, at.commit, at.ordinal),
            )
            self._connection.execute(
                "insert or replace into states values (?, ?, ?, ?)",
                (pipeline, table, state, baseline),
            )
            self._note_baselines([baseline])

    def origin(self, pipeline: str, table: str, now: Position) -> Position:
        """Return where a pipeline in mode `changes` began with a table: `now`, the first time."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute(
                "insert or ignore into origins values (?, ?, ?, ?, ?)",
                (pipeline, table, now.epoch, now.commit, now.ordinal),
            )
            row = self._connection.execute(
                'select epoch, "commit", ordinal from origins where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return Position(*row)

    def origins(self, pipeline: str) -> dict[str, Position]:
        """Return where a pipeline in mode `changes` began with its tables."""
        with self._guarded():
            rows = self._connection.execute(
                'select "table", epoch, "commit", ordinal from origins where pipeline = ?',
                (pipeline,),
            ).fetchall()
        return {row[0]: Position(*row[1:]) for row in rows}

    def positions(self) -> set[Position]:
        """Return every position that a pipeline may start at, including those that do not run."""
        with self._guarded():
            rows = self._connection.execute(
                'select epoch, "commit", ordinal from progress'
                ' union select epoch, "commit", ordinal from origins'
            ).fetchall()
        return {Position(*row) for row in rows}

    def note_pipeline(self, pipeline: str, source: str, *, durable: bool, changes: bool) -> None:
        """Store facts about a pipeline for the time when it does not run (R27)."""
        row = (pipeline, source, durable, changes)
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute("insert or replace into pipelines values (?, ?, ?, ?)", row)

    def knows(self, pipeline: str) -> bool:
        """Return whether a pipeline of this name has run here, and was not dropped."""
        with self._guarded():
            row = self._connection.execute(
                "select 1 from pipelines where pipeline = ?", (pipeline,)
            ).fetchone()
        return row is not None

    def needs_of(self, source: str) -> list[Needs]:
        """Return what the durable pipelines of a source need, whether they run or not."""
        with self._guarded():
            rows = self._connection.execute(
                "select pipeline, changes from pipelines where source = ? and durable", (source,)
            ).fetchall()
            found = [(name, changes, self._positions_of(name)) for name, changes in rows]
        needs = []
        for name, changes, positions in found:
            if (intent := self.intent(name)) is not None:
                positions.append(Position.parse(intent.after))
            if positions:
                needs.append(Needs(name, bool(changes), min(positions)))
        return needs

    def _positions_of(self, pipeline: str) -> list[Position]:
        # The origin only counts for tables without progress.
        rows = self._connection.execute(
            'select epoch, "commit", ordinal from progress where pipeline = ? union'
            ' select epoch, "commit", ordinal from origins where pipeline = ? and "table" not in'
            ' (select "table" from progress where pipeline = ?)',
            (pipeline, pipeline, pipeline),
        ).fetchall()
        return [Position(*row) for row in rows]

    def columns(self, pipeline: str, table: str) -> int | None:
        """Return the number, in the log, of a table's schema at the target; None if not stored."""
        with self._guarded():
            row = self._connection.execute(
                'select "schema" from columns where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return row[0] if row else None

    def note_columns(self, pipeline: str, table: str, schema: int) -> None:
        """Store that a target has, or will receive, a table in this schema."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute(
                "insert or replace into columns values (?, ?, ?)", (pipeline, table, schema)
            )

    def intend(self, pipeline: str, intent: Intent) -> None:
        """Store a batch's intent, before its first effect."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute(
                "insert or replace into intents values (?, ?)",
                (pipeline, msgspec.json.encode(intent).decode()),
            )

    def intent(self, pipeline: str) -> Intent | None:
        """Return the batch that may have had effects but is not in the progress."""
        with self._guarded():
            row = self._connection.execute(
                "select intent from intents where pipeline = ?", (pipeline,)
            ).fetchone()
        return msgspec.json.decode(row[0], type=Intent) if row else None

    def forget_intent(self, pipeline: str) -> None:
        """Delete the intent: a baseline replaces its changes."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute("delete from intents where pipeline = ?", (pipeline,))

    def forget(self, pipeline: str, *, paused: bool = True) -> None:
        """Delete all state of a pipeline; that it is paused only if `paused`."""
        with self._guarded(), self._transaction():
            self._check_term()
            for table in (*_OF_PIPELINES, *(("paused",) if paused else ())):
                self._connection.execute(f"delete from {table} where pipeline = ?", (pipeline,))

    def expire(self, pipeline: str, upto: int) -> None:
        """Store that rows whose time is not after `upto`, in microseconds, have expired."""
        with self._guarded(), self._counted(pipeline):
            self._check_term()
            # Forward only: what has expired stays so.
            self._connection.execute(
                "insert into expiries values (?, ?) on conflict do update set"
                " upto = max(upto, excluded.upto)",
                (pipeline, upto),
            )

    def expired_upto(self, pipeline: str) -> int:
        """Return up to which time rows have expired, in microseconds; 0 before the first scan."""
        with self._guarded():
            row = self._connection.execute(
                "select upto from expiries where pipeline = ?", (pipeline,)
            ).fetchone()
        return row[0] if row else 0

    def set_paused(self, pipeline: str, paused: bool) -> None:
        """Store that the pipeline was paused or resumed, for restarts."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute("delete from paused where pipeline = ?", (pipeline,))
            if paused:
                self._connection.execute("insert into paused values (?)", (pipeline,))

    def paused(self, pipeline: str) -> bool:
        """Return whether the pipeline was paused."""
        with self._guarded():
            row = self._connection.execute(
                "select 1 from paused where pipeline = ?", (pipeline,)
            ).fetchone()
        return row is not None

    def note_release(self, pipeline: str, facts: Mapping[str, object], *, taken: bool) -> None:
        """Store that the pipeline was released (R28); `taken`: its tables wait for a baseline."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute(
                "insert or replace into set_aside values (?, ?, ?)",
                (pipeline, msgspec.json.encode(facts).decode(), taken),
            )

    def release(self, pipeline: str) -> tuple[dict[str, object], bool] | None:
        """Return why it was released, and whether its tables were reset; None if it was not."""
        with self._guarded():
            row = self._connection.execute(
                "select facts, taken from set_aside where pipeline = ?", (pipeline,)
            ).fetchone()
        return (msgspec.json.decode(row[0], type=dict[str, object]), bool(row[1])) if row else None

    def forget_release(self, pipeline: str) -> None:
        """Store that its tables are exact again."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute("delete from set_aside where pipeline = ?", (pipeline,))

    def state(self, pipeline: str, table: str) -> tuple[str, int | None] | None:
        """Return the stored state and its baseline."""
        with self._guarded():
            row = self._connection.execute(
                'select state, baseline from states where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return (row[0], row[1]) if row else None

    def reloaded(self, pipeline: str, table: str, newer_than: int) -> int:
        """
        Return the baseline of the rows of a table that awaits one above `newer_than`.

        0 if it is not known: an earlier version did not store it.
        """
        with self._guarded():
            row = self._connection.execute(
                'select baseline from reloads where pipeline = ? and "table" = ?'
                " and newer_than = ?",
                (pipeline, table, newer_than),
            ).fetchone()
        return row[0] if row else 0

    def reload_after(self, pipeline: str, table: str) -> int:
        """
        Return the number that the baseline of the last reload had to exceed; 0 if there was none.

        It stays after the reload, when the table's baseline exceeds it.
        """
        with self._guarded():
            row = self._connection.execute(
                'select newer_than from reloads where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return row[0] if row else 0

    def set_state(self, pipeline: str, table: str, state: str, baseline: int | None) -> None:
        """Store a state before it takes effect (R12)."""
        self.set_states(pipeline, {table: (state, baseline)})

    def set_states(
        self,
        pipeline: str,
        states: Mapping[str, tuple[str, int | None]],
        reloads: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """
        Store the states of several tables, and their baselines, at once.

        For tables in `reloads`, also the number that the new baseline must exceed and that of the
        baseline their rows are of: the state has only one of them.
        """
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.executemany(
                "insert into states values (?, ?, ?, ?) on conflict do update set"
                " state = excluded.state, baseline = excluded.baseline",
                [(pipeline, table, *stored) for table, stored in states.items()],
            )
            self._connection.executemany(
                "insert or replace into reloads values (?, ?, ?, ?)",
                [(pipeline, table, *numbers) for table, numbers in (reloads or {}).items()],
            )
            self._note_baselines([number or 0 for _, number in states.values()])

    def highest_baseline(self) -> int:
        """
        Return the highest number of a baseline in any state ever stored.

        Dead letters and durable targets outlive the log; in a new log, numbers begin above it.
        """
        with self._guarded():
            row = self._connection.execute("select baseline from highest").fetchone()
        return row[0] if row else 0

    def _note_baselines(self, numbers: Sequence[int]) -> None:
        self._connection.execute(
            "insert into highest values (1, ?) on conflict do update set"
            " baseline = max(baseline, excluded.baseline)",
            (max(numbers, default=0),),
        )

    def check(self) -> None:
        """Raise `Fenced` if another engine has taken over."""
        with self._guarded():
            self._check_term()

    def close(self) -> None:
        """Close the file; nothing may follow."""
        with self._lock:
            self._connection.close()

    def _check_term(self) -> None:
        # Under the lock: once a run was abandoned, what others read here stays as it is.
        self._allows()
        (term,) = self._connection.execute("select term from about").fetchone()
        if term != self.term:
            raise Fenced(
                "Another engine has taken over this data directory", term=self.term, newer=term
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._connection.execute("rollback")
            raise
        self._connection.execute("commit")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
                kind = StorageFull if full else StorageError
                raise kind("control.sqlite could not be written", why=str(error)) from error


# --- reading without an engine --------------------------------------------------------------------

_PROGRESS = (
    'select p.pipeline, p."table", p.lineage, p.epoch, p."commit", p.ordinal, s.state,'
    " s.baseline, u.pipeline is not null, a.pipeline is not null from progress p"
    ' left join states s using (pipeline, "table") left join paused u using (pipeline)'
    " left join set_aside a using (pipeline) order by 1, 2"
)


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """The stored progress of a table in a pipeline."""

    pipeline: str
    table: str
    lineage: str
    position: Position
    state: str
    baseline: int
    """The baseline its rows began with; 0 for none."""

    paused: bool
    set_aside: bool


def stored_progress(data: Path) -> tuple[StoredProgress, ...]:
    """Return what is stored in a data directory; empty if no engine has run there."""
    path = data / "control.sqlite"
    if not path.exists():
        return ()
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            known = connection.execute("select format from about").fetchone()
            if known is not None and known[0] != FORMAT:
                raise UnknownFormat("control.sqlite has an unknown format", format=known[0])
            rows = connection.execute(_PROGRESS).fetchall()
    except sqlite3.Error as error:
        raise StorageError(
            "control.sqlite could not be read", path=str(path), why=str(error)
        ) from error
    return tuple(
        StoredProgress(
            pipeline=pipeline,
            table=table,
            lineage=lineage,
            position=Position(epoch, commit, ordinal),
            state=state or "",
            baseline=baseline or 0,
            paused=bool(paused),
            set_aside=bool(freed),
        )
        for pipeline, table, lineage, epoch, commit, ordinal, state, baseline, paused, freed in rows
    )
