"""
One table of a lake and its writer: which rows it has taken, and one commit a batch.

```
 batch ─▶ behind the table's position ─▶ net ─▶ commit number n+1, with the position in it
                                                 └─ unknown outcome ─▶ read back, before anything
```

A commit whose number another writer had first did nothing; then the table is read back as well, and
the batch comes again. So nothing is applied twice, and nothing of a writer that was taken over from
is applied at all. After each commit it is known whether a commit of another writer lies between it
and our last one: then the rows are not ours any more, and are loaded again at the next start.

Each writer of tables has a Spark session to itself (`Sessions`).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableSchema
from headrace.errors import BadTable, SparkGone, TargetError
from headrace.lake.delta import DeltaTable
from headrace.lake.formats import Format, check_session
from headrace.lake.history import (
    CUT_OFF,
    FORMAT,
    LOAD,
    MADE_ANEW,
    CommitNote,
    Commits,
    TableHistory,
    TableLocation,
    followed,
    further,
    judged,
    kept_by,
    loaded_as,
    misfit,
    not_last,
    not_ours,
    other_mode,
    put_back,
    taken,
)
from headrace.lake.iceberg import IcebergTable
from headrace.lake.memory import Memory
from headrace.lake.parts import StagedParts, stage_changes, stage_rows
from headrace.lake.rows import (
    VALID,
    LakeShape,
    bounds,
    emptyings,
    ended,
    fresh,
    history_rows,
    net,
    net_rows,
    source_names,
    told_rows,
    upserts,
    versions,
)
from headrace.lake.sql import GONE, merge_history, merge_rows
from headrace.lake.staged_load import StagedLoad
from headrace.observe.logs import logger
from headrace.pipeline.failed_rows import Workspace
from headrace.pipeline.plan.types import spark_type
from headrace.spark_session.errors import running
from headrace.storage.killpoints import COLUMNS_ADDED, TABLE_COMMITTED, TABLE_COMPACTED, reach
from headrace.targets.target import Batch, SparkAccess, TargetContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- the session of one writer --------------------------------------------------------------------

_WRITERS: dict[str, type[Commits]] = {"delta": DeltaTable, "iceberg": IcebergTable}
"""By format: who commits to its tables."""


class Sessions:
    """Gives the writer's session, a new one where Spark was started again meanwhile."""

    def __init__(self, spark: Callable[[], SparkAccess], format: Format) -> None:
        self._spark = spark
        self._format = format
        self._writer = _WRITERS[format.name]
        self._on: SparkAccess | None = None
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return it; `SparkGone` where Spark is dead."""
        spark = self._spark()
        if not spark.alive:
            raise SparkGone("Spark's JVM is dead")
        if self._session is None or self._on is not spark:
            check_session(self._format, spark.setting, own=spark.own)
            self._session, self._on = spark.another(self._writer.SETTINGS), spark
        return self._session

    def table(self, where: TableLocation) -> Commits:
        """Return a table, as this session sees it."""
        spark, session = self._spark(), self.session()
        lasts = not where.in_session_catalog or (
            spark.setting("spark.sql.catalogImplementation") == "hive"
        )
        return self._writer(session, where, persistent=lasts)

    def read(self, columns: Sequence[tuple[str, pa.DataType]], paths: Sequence[str]) -> DataFrame:
        """Return the rows of these files, which have these columns."""
        from pyspark.sql.types import StructField, StructType

        schema = StructType([StructField(name, spark_type(type)) for name, type in columns])
        return self.session().read.schema(schema).parquet(*paths)

    def frame(self, rows: pa.Table) -> DataFrame:
        """Return rows of Arrow as a frame."""
        from pyspark.sql.types import StructField, StructType

        schema = StructType([StructField(each.name, spark_type(each.type)) for each in rows.schema])
        return self.session().createDataFrame(rows, schema)


# --- the table ------------------------------------------------------------------------------------

_log = logger(__name__)
_ENDS = (VALID[1][0], VALID[3][0])

_JOINED_BY_FILE = 1_000
_ADDED_BY_FILE = 20_000
"""
From so many rows on, Spark is given a file to read in place of the rows themselves.

It knows how large that is, reads of it what it needs, and a MERGE reads its rows twice.
"""


class LakeTable:
    """One table in a format that keeps our notes. For the thread that writes."""

    def __init__(
        self,
        shape: LakeShape,
        where: TableLocation,
        context: TargetContext,
        memory: Memory,
        sessions: Sessions,
        *,
        adopt: bool,
        compact_every: int,
    ) -> None:
        self.shape = shape
        self.where = where
        self.position = ORIGIN
        """Everything up to here is in the table, or was nothing for it."""
        self.lost: str | None = None
        """Why its rows are not those that were left there; None: they are."""
        self._context = context
        self._memory = memory
        self._sessions = sessions
        self._adopt = adopt
        self._compact_every = compact_every
        self._writer = uuid.uuid4().hex
        self._number = 0
        self._version: int | None = None
        """Up to which commit, of whomever, its history is known and right."""
        self._baseline = 0
        self._other: CommitNote | None = None
        """The newest commit that another life made while this one was at work."""
        self._filed = False
        """Whether rows of a batch lie in a file."""
        self._unknown = True
        """Whether it must be read back before anything else."""
        self.ours = False
        """Whether the table is there, with a commit of ours."""

    @property
    def name(self) -> str:
        """The source's table."""
        return self.shape.schema.table

    @property
    def staging_folder(self) -> Workspace:
        """Where rows of a baseline wait, of every life of this table."""
        return Workspace(
            self._context.files.path(f"tables/staging/{self._context.pipeline}/{self._safe}")
        )

    @property
    def _parts_folder(self) -> Workspace:
        """Where executors prepare batches: within the folder that every start empties."""
        return self.staging_folder.within("batches")

    @property
    def _safe(self) -> str:
        # A table's name may hold what a path may not, be longer, or Spark takes it for a pattern.
        return hashlib.sha256(self.name.encode()).hexdigest()

    def open(self, at: Position) -> None:
        """Find the table, and where it is; `at` is what the engine knows."""
        self.lost = None
        self._version = self._memory.version(self.name)
        with self._running():
            self._take(self._table().found(self._version), at)
            if self.ours and self.lost is None:
                self.lost = self._memory.lost(self.name) or misfit(self._table(), self.shape)
            if self.ours:
                self._table().register()
            else:
                self._table().check_name()
        if self.lost is not None:
            _log.warning("table is loaded anew", table=self.name, why=self.lost)

    def write(self, batch: Batch, rows: pa.Table, staged: StagedParts | None = None) -> Position:
        """Take one table's share of a batch, in one commit; `staged` is in place of the rows."""
        self.settle()
        if batch.last <= self.position:
            return self.position
        if staged is not None and staged.after != self.position:
            # Read back since: it has some of these changes, and they must not be told twice.
            raise TargetError("The table has moved: the batch comes again", table=self.name)
        rows = fresh(rows, batch.epoch, self.position)
        emptied = batch.truncates.get(self.name)
        if emptied is not None and emptied <= self.position:
            emptied = None
        if not (rows.num_rows or (staged and staged.row_count)) and emptied is None:
            # Nothing of it is ours: the engine remembers how far that was, not the table.
            self.position = batch.last
            return self.position
        with self._running(batch=batch.id):
            commit = self._staged(staged, rows, emptied) if staged else None
            if commit is None:
                make = {"merge": self._merge, "append": self._append, "history": self._keep}
                commit = make[self.shape.mode](batch, rows, emptied)
            self._commit(commit, batch.last, batch.id)
            if staged or self._filed:
                self._parts_folder.clear()
                self._filed = False
            self._tidy()
        return self.position

    def stage(self, frame: DataFrame, epoch: int, emptied: Position | None) -> StagedParts:
        """Let executors prepare a batch; nobody sees it before it is written."""
        self.settle()
        if emptied is not None and emptied <= self.position:
            emptied = None  # the table has it, and what came since must not be ended again
        # What an attempt before this one left: the last one counts.
        self._parts_folder.clear()
        folder = self._parts_folder.within(uuid.uuid4().hex)
        with self._running():
            return stage_changes(frame, self.shape, folder, epoch, self.position, emptied)

    def stage_rows(self, frame: DataFrame, folder: Workspace) -> StagedParts:
        """Let executors prepare rows of a baseline."""
        with self._running():
            return stage_rows(frame, self.shape, folder)

    def settle(self) -> None:
        """Read the table back where it is not known how far it is; raise where it is not ours."""
        self._read_back()
        if self.lost is not None:
            raise not_ours(self.lost, self.where)

    def _read_back(self) -> None:
        if not self._unknown:
            return
        with self._running():
            found = self._table().found(self._version)
            note = None if found is None else found.note
            if note is not None and note.number > self._number and note.writer != self._writer:
                # Another life of the engine has committed since. It is the later one, unless it
                # was about to end when this one began; the engine knows.
                self._context.check()
                self._other = note if self._is_mine(note) else None
                before = self.position
                self._take(found, before)
                self._mind_other(before)
            else:
                self._take(found, self.position)

    def _mind_other(self, before: Position) -> None:
        """Give the table up where another life made it less than it was."""
        if self._other is None or self.lost is not None:
            return
        self.lost = put_back(self._other, self._context.lineage(), before)
        if self.lost is not None:
            # The history looks right from now on: only this tells the next start.
            self._memory.give_up(self.name, self.lost)

    def switch(self, staging: StagedLoad, at: Position, baseline: int) -> None:
        """Make staged rows the table, in one commit."""
        from headrace.lake.staged_load import staged_commit

        self._read_back()
        if self._other is not None and further(self._other, self._context.lineage(), at):
            # Whoever is the later one: readers, and the other engine, would be put back (R24).
            raise TargetError(
                "Another engine has brought the table further: these rows do not replace it",
                table=self.where.shown,
            )
        with self._running(baseline=baseline):
            if self.ours and self.shape.mode != "merge":
                # It is added to: of columns that came while it was lost nobody has told it.
                self._widen(self.shape)
            session = self._sessions.session()
            commit = staged_commit(self, staging, at, baseline, self.time(), session)
            before, self._baseline = self._baseline, baseline
            try:
                self._commit(partial(commit, self._table()), at, f"{LOAD}{baseline}")
            except BaseException:
                self._baseline = before
                raise
            self.position, self.lost = at, None
            self._table().register()

    def add_columns(self, schema: TableSchema) -> bool:
        """
        Take more columns; those that are there already stay. A lost table is loaded so.

        One that is there may be of another type, from before the source dropped it: `BadTable`,
        or False where the table can be replaced.
        """
        shape = self.shape.with_schema(schema)
        self._read_back()
        if self.ours and self.lost is None:
            with self._running():
                self._widen(shape)
                if shape.mode == "merge" and misfit(self._table(), shape) is not None:
                    return False
                self.check_fit(shape)
        self.shape = shape
        return True

    def frame_of(self, rows: pa.Table) -> DataFrame:
        """Return rows of Arrow as a frame of this writer's session."""
        return self._sessions.frame(rows)

    def _frame_of_many(self, rows: pa.Table, by_file: int) -> DataFrame:
        """Return rows that a commit takes; from so many on by way of a file."""
        if rows.num_rows < by_file:
            return self.frame_of(rows)
        self._filed = True
        name = f"{uuid.uuid4().hex}.parquet"
        self._parts_folder.write(name, rows)
        columns = [(each.name, each.type) for each in rows.schema]
        return self._sessions.read(columns, [self._parts_folder.path(name)])

    # -- inside ---------------------------------------------------------------------------

    def _table(self) -> Commits:
        return self._sessions.table(self.where)

    def _widen(self, shape: LakeShape) -> None:
        """Add the columns that the table lacks."""
        from pyspark.sql.types import StructField

        table = self._table()
        have = set(table.schema().names)
        new = [
            StructField(name, spark_type(type)) for name, type in shape.columns if name not in have
        ]
        if new:
            table.add_columns(new)
            reach(COLUMNS_ADDED)

    def _merge(
        self, batch: Batch, rows: pa.Table, emptied: Position | None
    ) -> Callable[[CommitNote], bool]:
        shape, table = self.shape, self._table()
        found = net(rows, shape.schema, shape.key)
        if emptied is not None:
            # One commit: all rows are gone, and those that came since are there.
            frame = self._frame_of_many(upserts(found, shape), _ADDED_BY_FILE)
            return partial(table.empty, self._named(frame))
        statement = self._merging(table, bounds(found.rows, shape.schema, shape.key))
        frame = self._frame_of_many(net_rows(found, shape), _JOINED_BY_FILE)
        return partial(table.merge, statement, frame)

    def _merging(self, table: Commits, within: Mapping[str, tuple[int, int]]) -> str:
        return merge_rows(table.table, self.shape.names, self.shape.key, within)

    def _append(
        self, batch: Batch, rows: pa.Table, emptied: Position | None
    ) -> Callable[[CommitNote], bool]:
        told = told_rows(rows, self.shape, batch.epoch, emptied, self.time())
        frame = self._frame_of_many(told, _ADDED_BY_FILE)
        return partial(self._table().append, self._named(frame))

    def _keep(
        self, batch: Batch, rows: pa.Table, emptied: Position | None
    ) -> Callable[[CommitNote], bool]:
        shape, table = self.shape, self._table()
        truncates = emptyings(rows, emptied, self.time())
        found = versions(ended(rows, shape.schema, shape.key, truncates), shape.schema, shape.key)
        first = truncates[0] if truncates else None
        told = history_rows(found, shape, batch.epoch, emptied=first.place if first else None)
        within = bounds(found.rows, shape.schema, shape.key)
        keeping = self._keeping(table, within, first.told(batch.epoch) if first else None)
        return partial(table.merge, keeping, self._frame_of_many(told, _JOINED_BY_FILE))

    def _keeping(
        self,
        table: Commits,
        within: Mapping[str, tuple[int, int]],
        emptied: tuple[int, str] | None,
    ) -> str:
        names, key = self.shape.names, self.shape.key
        return merge_history(table.table, names, key, _ENDS, within, emptied)

    def _staged(
        self, staged: StagedParts, rows: pa.Table, emptied: Position | None
    ) -> Callable[[CommitNote], bool] | None:
        """Return the commit of what executors prepared; None where that is nothing."""
        shape, table = self.shape, self._table()
        if staged.row_count:
            frame = self._sessions.read(source_names(shape), staged.paths)
        elif staged.emptied is not None:
            frame = self.frame_of(pa.schema(source_names(shape)).empty_table())
        else:
            return None
        if shape.mode == "append":
            return partial(table.append, self._named(frame))
        if shape.mode == "merge":
            if emptied is not None:
                own = frame.where(f"NOT {GONE}").drop(GONE)
                return partial(table.empty, self._named(own))
            return partial(table.merge, self._merging(table, staged.bounds), frame)
        return partial(table.merge, self._keeping(table, staged.bounds, staged.emptied), frame)

    def _named(self, frame: DataFrame) -> DataFrame:
        return frame.toDF(*self.shape.names)

    def _commit(self, commit: Callable[[CommitNote], bool], at: Position, batch: str) -> None:
        note = CommitNote(
            FORMAT,
            self._memory.owner,
            self._writer,
            self._number + 1,
            str(at),
            self._context.lineage(),
            self._baseline,
            batch,
            self.name,
            self.shape.mode,
        )
        self._unknown = True
        if not commit(note):
            raise not_last(self.where)
        reach(TABLE_COMMITTED)
        table = self._table()
        # It stays the same until a load makes another table of it.
        known = self._memory.identity(self.name) if self.ours and not note.loads else None
        identity = known or loaded_as(table, note)
        if identity is None:
            raise not_last(self.where)
        version, lost = (
            followed(table, self._version, known) if self.ours else (table.committed(), None)
        )
        if note.loads:
            # It may have replaced the table of an engine that took over. What that one remembers
            # is what it is found out by.
            self._context.check()
        self._number, self.position = note.number, at
        self._unknown, self.ours = False, True
        self._version, self.lost = version, lost
        self._memory.remember(self.name, note.number, identity, version)
        if lost is not None:
            raise not_ours(lost, self.where)

    def _take(self, found: TableHistory | None, at: Position) -> None:
        """Take up what the table's history says."""
        note = None if found is None else found.note
        last = self._memory.last(self.name)
        known = last > 0 or at > ORIGIN
        mine = found is not None and note is not None and self._is_mine(note)
        cut_off = found is not None and note is None and last > 0 and self._same_as_before()
        other = (mine or cut_off) and (mode := kept_by(note, self._table())) != self.shape.mode
        if other and not self._adopt:
            raise other_mode(mode, self.where)
        if found is not None and note is not None and mine and not other:
            why = self.lost if note.number == self._number else None
            self.ours = True
            self._number, self._baseline = note.number, note.baseline
            self.position = max(note.at, at)
            known_to = -1 if self._version is None else self._version
            self._version, self.lost = judged(found, note, self._version, known_to)
            if note.number < last:
                self.lost = "the table was put back to an earlier version"
            elif self.lost is None and not self._is_known(note, last):
                self.lost = MADE_ANEW
            # Found out before, and nothing of ours came since.
            self.lost = self.lost or why
        elif found is not None and cut_off and not other:
            # Its rows are to be gone on with, as a load does it, and not to be replaced by one.
            self.ours = True
            self._number = max(last, found.number)
            self.lost = CUT_OFF
        else:
            if found is not None and not self._adopt:
                raise taken(note, self._memory.owner, self.where)
            self.ours = False
            self._number = 0 if found is None else found.number
            self.lost = "it is gone, was made anew, or had another mode" if known else None
        self._unknown = False

    def _is_mine(self, note: CommitNote) -> bool:
        return note.owner == self._memory.owner and note.table in ("", self.name)

    def _is_known(self, note: CommitNote, last: int) -> bool:
        """Whether it is the table of before, or one of a load that was not remembered yet."""
        if not note.loads or note.number <= last:
            return self._same_as_before()
        if (identity := loaded_as(self._table(), note)) is not None:
            self._memory.remember(self.name, note.number, identity, self._version)
        return identity is not None

    def _same_as_before(self) -> bool:
        """Whether it is the table that was last committed to, as its format tells tables apart."""
        known = self._memory.identity(self.name)
        return known is None or known == self._table().identity()

    def check_fit(self, shape: LakeShape | None = None) -> None:
        """Raise where rows are to be added to a table that is not of this shape, or of its own."""
        if (why := misfit(self._table(), shape or self.shape)) is not None:
            raise BadTable(
                f"The table cannot be gone on with: {why}",
                remedy="Name another table, whose columns are made as they are needed.",
                table=self.where.shown,
            )

    def _tidy(self) -> None:
        # By the table's own count: lives of few commits leave small files as well.
        if self._compact_every and self._number % self._compact_every == 0:
            self._table().compact()
            reach(TABLE_COMPACTED)

    def time(self) -> datetime:
        """Return what time it is."""
        return datetime.fromtimestamp(self._context.clock(), UTC)

    def _running(self, **facts: object) -> Any:
        return running(pipeline=self._context.pipeline, table=self.name, **facts)
