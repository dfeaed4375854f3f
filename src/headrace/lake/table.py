"""
One lake table and its writer: its position, and one commit for each batch.

```
 batch ─▶ after the table's position ─▶ net ─▶ commit number n+1, with the position in it
                                                └─ unknown outcome ─▶ read back before anything else
```

A commit whose number another writer used first has no effect. Then the table is read back as well,
and the batch comes again. So nothing is applied twice, and nothing from a superseded writer is
applied at all. After each commit it is known whether another writer committed between it and our
last one. If so, the rows are not ours any more, and are loaded again at the next start.

Each writer of tables has its own Spark session (`Sessions`).
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
    RECREATED,
    CommitNote,
    Commits,
    TableHistory,
    TableLocation,
    followed,
    further,
    judged,
    kept_by,
    loaded_as,
    mismatch,
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
    appended_rows,
    bounds,
    emptyings,
    ended,
    fresh,
    history_rows,
    net,
    net_rows,
    source_names,
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
"""The class that commits to tables, by format."""


class Sessions:
    """Provides the writer's session; a new one if Spark was restarted meanwhile."""

    def __init__(self, spark: Callable[[], SparkAccess], format: Format) -> None:
        self._spark = spark
        self._format = format
        self._writer = _WRITERS[format.name]
        self._on: SparkAccess | None = None
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return the session; `SparkGone` if Spark is dead."""
        spark = self._spark()
        if not spark.alive:
            raise SparkGone("Spark's JVM has ended")
        if self._session is None or self._on is not spark:
            check_session(self._format, spark.setting, own=spark.own)
            self._session, self._on = spark.another(self._writer.SETTINGS), spark
        return self._session

    def table(self, where: TableLocation) -> Commits:
        """Return a table in this session."""
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
        """Return Arrow rows as a frame."""
        from pyspark.sql.types import StructField, StructType

        schema = StructType([StructField(each.name, spark_type(each.type)) for each in rows.schema])
        return self.session().createDataFrame(rows, schema)


# --- the table ------------------------------------------------------------------------------------

_log = logger(__name__)
_ENDS = (VALID[1][0], VALID[3][0])

_JOINED_BY_FILE = 1_000
_ADDED_BY_FILE = 20_000
"""
From this number of rows on, Spark reads them from a file instead of from memory.

Spark knows the size of a file, reads only what it needs, and a MERGE reads its rows twice.
"""


class LakeTable:
    """One table in a format whose commits have our notes. For the thread that writes."""

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
        """Everything up to here is in the table, or had no rows for it."""
        self.lost: str | None = None
        """Why its rows are not those that we left there; None if they are."""
        self._context = context
        self._memory = memory
        self._sessions = sessions
        self._adopt = adopt
        self._compact_every = compact_every
        self._writer = uuid.uuid4().hex
        self._number = 0
        self._version: int | None = None
        """The version up to which its history was checked, with commits of other writers."""
        self._baseline = 0
        self._other: CommitNote | None = None
        """The newest commit that another run made during this one."""
        self._filed = False
        """Whether rows of a batch are in a file."""
        self._unknown = True
        """Whether it must be read back before anything else."""
        self.ours = False
        """Whether the table exists and has a commit of ours."""

    @property
    def name(self) -> str:
        """The source's table."""
        return self.shape.schema.table

    @property
    def staging_folder(self) -> Workspace:
        """The folder in which rows of a baseline are staged, the same in every run."""
        return Workspace(
            self._context.files.path(f"tables/staging/{self._context.pipeline}/{self._safe}")
        )

    @property
    def _parts_folder(self) -> Workspace:
        """The folder in which executors prepare batches, in the one that every start empties."""
        return self.staging_folder.within("batches")

    @property
    def _safe(self) -> str:
        # A table's name may not be valid in a path, may be too long, or a pattern for Spark.
        return hashlib.sha256(self.name.encode()).hexdigest()

    def open(self, at: Position) -> None:
        """Find the table and its position; `at` is the engine's position."""
        self.lost = None
        self._version = self._memory.version(self.name)
        with self._running():
            self._take(self._table().found(self._version), at)
            if self.ours and self.lost is None:
                self.lost = self._memory.lost(self.name) or mismatch(self._table(), self.shape)
            if self.ours:
                self._table().register()
            else:
                self._table().check_name()
        if self.lost is not None:
            _log.warning("table will be loaded again", table=self.name, why=self.lost)

    def write(self, batch: Batch, rows: pa.Table, staged: StagedParts | None = None) -> Position:
        """Write a batch's rows of this table in one commit; `staged` replaces the rows."""
        self.settle()
        if batch.last <= self.position:
            return self.position
        if staged is not None and staged.after != self.position:
            # Read back since: it has some of these changes, and they must not be added twice.
            raise TargetError(
                "The table has changed since the batch was prepared; the batch is retried",
                table=self.name,
            )
        rows = fresh(rows, batch.epoch, self.position)
        emptied = batch.truncates.get(self.name)
        if emptied is not None and emptied <= self.position:
            emptied = None
        if not (rows.num_rows or (staged and staged.row_count)) and emptied is None:
            # The batch has no rows of this table: the engine stores the position, not the table.
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
        """Let executors prepare a batch; readers do not see it before `write`."""
        self.settle()
        if emptied is not None and emptied <= self.position:
            emptied = None  # the table has it, and later rows must not be ended again
        # Remove what an earlier attempt left: only the last one counts.
        self._parts_folder.clear()
        folder = self._parts_folder.within(uuid.uuid4().hex)
        with self._running():
            return stage_changes(frame, self.shape, folder, epoch, self.position, emptied)

    def stage_rows(self, frame: DataFrame, folder: Workspace) -> StagedParts:
        """Let executors prepare rows of a baseline."""
        with self._running():
            return stage_rows(frame, self.shape, folder)

    def settle(self) -> None:
        """Read the table back if its position is not known; raise if its rows are not ours."""
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
                # Another run of the engine has committed since. It is the newer one, unless it
                # was about to end when this one began; the engine's check decides.
                self._context.check()
                self._other = note if self._is_mine(note) else None
                before = self.position
                self._take(found, before)
                self._check_other(before)
            else:
                self._take(found, self.position)

    def _check_other(self, before: Position) -> None:
        """Mark the table as lost if another run set it back."""
        if self._other is None or self.lost is not None:
            return
        self.lost = put_back(self._other, self._context.lineage(), before)
        if self.lost is not None:
            # The history looks right from now on: only this stored note shows it at the next start.
            self._memory.give_up(self.name, self.lost)

    def switch(self, staging: StagedLoad, at: Position, baseline: int) -> None:
        """Make staged rows the table, in one commit."""
        from headrace.lake.staged_load import staged_commit

        self._read_back()
        if self._other is not None and further(self._other, self._context.lineage(), at):
            # Whichever engine is newer: readers and the other engine would be set back (R24).
            raise TargetError(
                "Another engine has written newer rows to the table, which are not replaced",
                table=self.where.shown,
            )
        with self._running(baseline=baseline):
            if self.ours and self.shape.mode != "merge":
                # Rows are added, and columns may be missing that came while the table was lost.
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
        Add columns; existing ones stay. A lost table gets them when it is loaded.

        An existing column may have another type, from before the source dropped it. Then raise
        `BadTable`, or return False if the table can be replaced.
        """
        shape = self.shape.with_schema(schema)
        self._read_back()
        if self.ours and self.lost is None:
            with self._running():
                self._widen(shape)
                if shape.mode == "merge" and mismatch(self._table(), shape) is not None:
                    return False
                self.check_fit(shape)
        self.shape = shape
        return True

    def frame_of(self, rows: pa.Table) -> DataFrame:
        """Return Arrow rows as a frame of this writer's session."""
        return self._sessions.frame(rows)

    def _frame_of_many(self, rows: pa.Table, by_file: int) -> DataFrame:
        """Return the rows for a commit; from `by_file` rows on, read from a file."""
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
            # One commit: all rows are removed, and those that came since are added.
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
        added = appended_rows(rows, self.shape, batch.epoch, emptied, self.time())
        frame = self._frame_of_many(added, _ADDED_BY_FILE)
        return partial(self._table().append, self._named(frame))

    def _keep(
        self, batch: Batch, rows: pa.Table, emptied: Position | None
    ) -> Callable[[CommitNote], bool]:
        shape, table = self.shape, self._table()
        truncates = emptyings(rows, emptied, self.time())
        found = versions(ended(rows, shape.schema, shape.key, truncates), shape.schema, shape.key)
        first = truncates[0] if truncates else None
        reference = first.reference if first else None
        made = history_rows(found, shape, batch.epoch, emptied=reference)
        within = bounds(found.rows, shape.schema, shape.key)
        keeping = self._keeping(table, within, first.for_history(batch.epoch) if first else None)
        return partial(table.merge, keeping, self._frame_of_many(made, _JOINED_BY_FILE))

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
        """Return the commit of what executors prepared; None if they prepared nothing."""
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
        # The identity stays the same until a load replaces the table.
        known = self._memory.identity(self.name) if self.ours and not note.loads else None
        identity = known or loaded_as(table, note)
        if identity is None:
            raise not_last(self.where)
        version, lost = (
            followed(table, self._version, known) if self.ours else (table.committed(), None)
        )
        if note.loads:
            # It may have replaced the table of an engine that took over. That engine detects it
            # by the identity that it has stored.
            self._context.check()
        self._number, self.position = note.number, at
        self._unknown, self.ours = False, True
        self._version, self.lost = version, lost
        self._memory.remember(self.name, note.number, identity, version)
        if lost is not None:
            raise not_ours(lost, self.where)

    def _take(self, found: TableHistory | None, at: Position) -> None:
        """Update the state from the table's history."""
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
                self.lost = "the table was restored to an earlier version"
            elif self.lost is None and not self._is_known(note, last):
                self.lost = RECREATED
            # Detected before, and there was no commit of ours since.
            self.lost = self.lost or why
        elif found is not None and cut_off and not other:
            # A load must continue from its rows, and not replace them.
            self.ours = True
            self._number = max(last, found.number)
            self.lost = CUT_OFF
        else:
            if found is not None and not self._adopt:
                raise taken(note, self._memory.owner, self.where)
            self.ours = False
            self._number = 0 if found is None else found.number
            why = "the table was removed or created again, or had another mode"
            self.lost = why if known else None
        self._unknown = False

    def _is_mine(self, note: CommitNote) -> bool:
        return note.owner == self._memory.owner and note.table in ("", self.name)

    def _is_known(self, note: CommitNote, last: int) -> bool:
        """Whether it is the same table as before, or one from a load that was not stored yet."""
        if not note.loads or note.number <= last:
            return self._same_as_before()
        if (identity := loaded_as(self._table(), note)) is not None:
            self._memory.remember(self.name, note.number, identity, self._version)
        return identity is not None

    def _same_as_before(self) -> bool:
        """Whether it is the table of our last commit, by its identity."""
        known = self._memory.identity(self.name)
        return known is None or known == self._table().identity()

    def check_fit(self, shape: LakeShape | None = None) -> None:
        """Raise `BadTable` if the table cannot hold rows of this shape (default: its own)."""
        if (why := mismatch(self._table(), shape or self.shape)) is not None:
            raise BadTable(
                f"Rows cannot be added to the table: {why}",
                remedy="Use another table, which is created with the right columns.",
                table=self.where.shown,
            )

    def _tidy(self) -> None:
        # By the table's own count: short runs with few commits leave small files as well.
        if self._compact_every and self._number % self._compact_every == 0:
            self._table().compact()
            reach(TABLE_COMPACTED)

    def time(self) -> datetime:
        """Return the current time."""
        return datetime.fromtimestamp(self._context.clock(), UTC)

    def _running(self, **facts: object) -> Any:
        return running(pipeline=self._context.pipeline, table=self.name, **facts)
