"""
A lake table as its writer sees it: its location, its commits, and whether others changed its rows.

A table is located by its name in a catalog, by its folder, or both. `{table}` and `{schema}` in
either are replaced by the source's, so that one target can have several tables: `lake.{table}`
becomes `lake.orders` for `public.orders`.

A `CommitNote` is the note in each commit of ours, in the table's own history. It is the only record
of the table's position: it is read at every start, and after every commit whose outcome is not
known.

`Commits` is what a format must support for a table that keeps our position. Delta uses application
transactions, Iceberg uses a snapshot property and a branch. A new format is a class of this shape,
an entry in `_WRITERS` of `table`, and a `Format` in `formats`.

A table's own history shows, commit by commit, its position and the commits of other writers.
Everything up to a version that was checked before is known. After it there may be commits of ours,
and commits of others that change no row. With any other commit, the rows are not those that we left
there (R1), and another commit of ours does not repair that. Only a load does, which begins again
from a baseline.

The checks at the end say whether the rows are those that we left there, and which error is raised
if not. They decide nothing further: `table` decides on the consequences.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from headrace.changelog.position import Position
from headrace.changelog.schema import TableName
from headrace.errors import BadPosition, BadTable, TableTaken, TargetError
from headrace.lake.rows import MODES, LakeShape, Mode, columns_of
from headrace.pipeline.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


# --- where a table is -----------------------------------------------------------------------------

_PLAIN = re.compile(r"[^\W\d]\w*|\{(table|schema)\}|[\w{}-]+")
_MOST_PARTS = 3
SESSION_CATALOG = "spark_catalog"


@dataclass(frozen=True, slots=True)
class TableLocation:
    """One table: the parts of its name, its folder, or both."""

    parts: tuple[str, ...]
    """Catalog, schema and table, as far as they are given; empty if it only has a folder."""

    path: str | None

    @property
    def name(self) -> str:
        """The quoted name for SQL; empty if it has none."""
        return ".".join(quoted(part) for part in self.parts)

    @property
    def shown(self) -> str:
        """The name for messages."""
        return ".".join(self.parts) or str(self.path)

    @property
    def in_session_catalog(self) -> bool:
        """Whether the name is in Spark's own catalog, which may be lost with Spark's process."""
        return len(self.parts) < _MOST_PARTS or self.parts[0] == SESSION_CATALOG

    @property
    def schema(self) -> str:
        """The schema of the name; `default` if none is given."""
        return self.parts[-2] if len(self.parts) > 1 else "default"


def check_name(name: str | None, path: str | None) -> None:
    """Raise `BadTable` if this is not a valid name."""
    if name is None and path is None:
        raise BadTable(
            "A table needs a name or a path",
            remedy='Write hr.table("lake.orders") or hr.table(path="/lake/orders").',
        )
    if name is not None:
        parts = name.split(".")
        if len(parts) > _MOST_PARTS or not all(_PLAIN.fullmatch(part) for part in parts):
            raise BadTable(
                f"{name!r} is not a valid table name",
                remedy="Use table, schema.table or catalog.schema.table; for a folder, use path=.",
                name=name,
            )


def locations(
    name: str | None, path: str | None, tables: Collection[TableName]
) -> dict[str, TableLocation]:
    """Return the location of each of the source's tables; `BadTable` if two would share one."""
    found: dict[TableName, TableLocation] = {}
    taken: dict[object, TableName] = {}
    for table in tables:
        where = TableLocation(
            tuple(_filled(name, table).split(".")) if name else (), _path(path, table)
        )
        # No catalog of Spark distinguishes names that differ only by case.
        folded = tuple(part.casefold() for part in where.parts)
        for location in [each for each in (folded, where.path) if each]:
            if (other := taken.setdefault(location, table)) != table:
                raise BadTable(
                    "Two source tables would be written to one lake table",
                    remedy="Use {table}, or {schema} and {table}, in the name:"
                    ' hr.table("lake.{table}"). If their names differ only by case, use two'
                    " pipelines with different names.",
                    table=where.shown,
                    of=sorted([other, table]),
                )
        found[table] = where
    return found


def _path(path: str | None, table: TableName) -> str | None:
    return None if path is None else _filled(path, table)


def _filled(pattern: str, table: TableName) -> str:
    schema, _, name = table.rpartition(".")
    # A name of the source may contain a dot itself; here, dots separate schema and table.
    return pattern.replace("{table}", name).replace("{schema}", schema or "main")


# --- the note of a commit -------------------------------------------------------------------------

APPLICATION = "headrace"
"""
The application whose transactions the numbers count.

It is the same for every pipeline: a superseded writer asks for a number that is used already,
whichever writer took over, and its commit has no effect (R24).
"""

FORMAT = 1

LOAD = "baseline-"
"""Prefix of `batch` in a commit that loads the table."""


class CommitNote(msgspec.Struct, frozen=True, omit_defaults=False):
    """The note in a commit of ours."""

    headrace: int
    """The format of this note."""

    owner: str
    """The pipeline of one data directory: the only one that writes to the table."""

    writer: str
    """The run of the engine that committed."""

    number: int
    """The number of our commit to the table, from 1."""

    position: str
    """Everything up to here is in the table."""

    lineage: str
    baseline: int
    """The number of the baseline that the rows began with; 0 if there was none."""

    batch: str
    table: str = ""
    """The source's table; empty in notes that are older than this field."""

    mode: str = ""
    """The mode of the table; empty in notes that are older than this field."""

    @property
    def loads(self) -> bool:
        """Whether the commit loads a baseline, whatever was in the table before."""
        return self.batch.startswith(LOAD)

    @property
    def at(self) -> Position:
        """The position, parsed."""
        return Position.parse(self.position)


def written(note: CommitNote) -> str:
    """Return the note as text for a commit."""
    return msgspec.json.encode(note).decode()


def read(text: str | None) -> CommitNote | None:
    """Return the note in a commit's text; None if it is not one of ours."""
    if not text:
        return None
    try:
        note = msgspec.json.decode(text, type=CommitNote)
        note.at  # noqa: B018  # Raises if it is not a position.
    except (msgspec.MsgspecError, BadPosition):
        return None
    return note if note.headrace == FORMAT else None


# --- what a format must support -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableHistory:
    """What a table's history says."""

    note: CommitNote | None
    """The note of our last commit; None if there is none."""

    others: str | None
    """The operation by which another writer changed rows since the last check; None if none did."""

    version: int
    """The version of the newest commit, ours or another writer's, as the format counts them."""

    number: int
    """The highest number that is used; also known if its note is gone."""


class Commits(Protocol):
    """
    One table, as its one writer sees it.

    `merge`, `replace`, `empty`, `append` and `append_from` are one commit each, which has the
    note. They return whether that commit is in the table. If the note's number is used already,
    they return False and have no effect. If they raise, the outcome is unknown.
    """

    SETTINGS: ClassVar[Mapping[str, str]]
    """The settings of its session, which only this writer uses."""

    table: str
    """The target of a MERGE, in SQL."""

    def __init__(
        self, session: SparkSession, where: TableLocation, *, persistent: bool
    ) -> None: ...

    def found(self, since: int | None = None) -> TableHistory | None:
        """
        Return the table's history as it is now; None if there is no such table.

        `since` is the version that was checked last; None for the last commit of ours.
        """
        ...

    def committed(self) -> int:
        """Return the version of this session's last commit."""
        ...

    def identity(self) -> str:
        """Return an id that differs from that of a table that replaced this one."""
        ...

    def is_still(self, identity: str) -> bool:
        """Whether the table has this identity, as far as its versions do not show it."""
        ...

    def schema(self) -> StructType:
        """Return the table's columns."""
        ...

    def rows(self) -> DataFrame:
        """Return the rows that readers see."""
        ...

    def merge(self, statement: str, frame: DataFrame, note: CommitNote) -> bool:
        """Run a MERGE with a frame."""
        ...

    def replace(self, frame: DataFrame, note: CommitNote) -> bool:
        """Replace all rows and columns by those of a frame; create the table if it is missing."""
        ...

    def empty(self, frame: DataFrame, note: CommitNote) -> bool:
        """Replace all rows by those of a frame; the columns stay."""
        ...

    def append(self, frame: DataFrame, note: CommitNote) -> bool:
        """Add a frame's rows."""
        ...

    def append_from(self, frame: DataFrame, column: str, least: str, note: CommitNote) -> bool:
        """Add a frame's rows, and remove existing rows with `least` or more in a column."""
        ...

    def add_columns(self, fields: Sequence[StructField]) -> None:
        """Add columns at the end; existing rows have null in them."""
        ...

    def compact(self) -> None:
        """Compact small files; no row changes."""
        ...

    def check_name(self) -> None:
        """Raise `BadTable` if the name belongs to another table than the one in the folder."""
        ...

    def register(self) -> None:
        """Register the name of a table that is located by its folder, in this Spark."""
        ...

    @staticmethod
    def kept(type: DataType) -> DataType:
        """Return the type that the format stores for a column of this type."""
        ...


# --- reading a table's history --------------------------------------------------------------------

CUT_OFF = "its history does not reach back to our last commit"


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit, ours or another writer's."""

    version: int
    operation: str
    note: CommitNote | None
    """Our note; None if the commit is another writer's."""


def settled(commits: Sequence[TableCommit], since: int | None) -> bool:
    """Whether these commits, newest first, are enough to know what happened since a version."""
    for commit in commits:
        if commit.note is not None and (
            since is None or commit.version <= since or commit.note.loads
        ):
            return True
    return False


def looked_at(
    commits: Sequence[TableCommit], since: int | None, keeping: Collection[str], number: int = 0
) -> TableHistory:
    """
    Return what commits, newest first, say since a version; None for the last of ours.

    `keeping` are the operations that change no row. `number` is the highest used number, for a
    history without a note of ours.
    """
    note = next((commit.note for commit in commits if commit.note is not None), None)
    newest = commits[0].version if commits else -1
    if note is None:
        return TableHistory(None, None, newest, number)
    others: str | None = None
    for commit in commits:
        if since is not None and commit.version <= since:
            return TableHistory(note, others, newest, note.number)
        if commit.note is not None and commit.note.owner == note.owner:
            if since is None or commit.note.loads:
                return TableHistory(note, others, newest, note.number)
        elif commit.note is not None or commit.operation not in keeping:
            others = commit.operation
    reaches = since is not None and bool(commits) and commits[-1].version <= since + 1
    return TableHistory(note, others if reaches else others or CUT_OFF, newest, note.number)


# --- checks of the history ------------------------------------------------------------------------

RECREATED = "the table was dropped and created again"


def followed(
    table: Commits, before: int | None, identity: str | None
) -> tuple[int | None, str | None]:
    """
    Return the version up to which a table is checked after our commit, and what is wrong with it.

    `before` is the version up to which it was checked. `identity` is the expected one; None for
    any.
    """
    version, why = _reached(table, before)
    if why is None and identity and not table.is_still(identity):
        return before, RECREATED
    return version, why


def _reached(table: Commits, before: int | None) -> tuple[int | None, str | None]:
    version = table.committed()
    if before is not None and version == before + 1:
        return version, None
    found = table.found(before)
    if found is None or found.note is None:
        return before, "the table is gone"
    return judged(found, found.note, before, -1 if before is None else before + 1)


def loaded_as(table: Commits, note: CommitNote) -> str | None:
    """Return the identity of a loaded table; None if another table has replaced it already."""
    identity = table.identity()
    # Read after the identity: otherwise it could be the identity of a table that came in between.
    found = table.found()
    return identity if found is not None and found.note == note else None


def judged(
    found: TableHistory, note: CommitNote, before: int | None, least: int
) -> tuple[int | None, str | None]:
    """
    Return the version up to which a table of ours is checked, and what is wrong with it.

    `before` is the version up to which it was checked, `least` the version that it must have.
    """
    # A load replaces everything that was there before.
    if found.version < least and not note.loads:
        return before, "the table was restored to an earlier version, or created again"
    if found.others is not None:
        cut_off = found.others == CUT_OFF
        why = CUT_OFF if cut_off else f"another writer changed its rows ({found.others})"
        return before, why
    return found.version, None


def put_back(note: CommitNote, lineage: str, at: Position) -> str | None:
    """
    Return what is wrong with a table that was at `at`, and that another run committed to since.

    A position after our own last note is normal, because a batch without rows of the table makes
    no commit. But if the other run's position is before it, that run has loaded the table, or
    has another log.
    """
    if note.lineage != lineage:
        return "another engine wrote to it, from another log"
    if _commit(note.at) < _commit(at):
        return "another engine set it back to an earlier position"
    return None


def further(note: CommitNote, lineage: str, at: Position) -> bool:
    """Whether a commit's position is after `at`, in the same log."""
    return note.lineage == lineage and _commit(note.at) > _commit(at)


def _commit(at: Position) -> tuple[int, int]:
    # A batch ends at its last change, a baseline after all changes of a commit.
    return at.epoch, at.commit


def mismatch(table: Commits, shape: LakeShape) -> str | None:
    """Return why a table of ours cannot hold rows of a shape; None if it can."""
    from headrace.pipeline.plan.types import spark_type

    have = {field.name: field.dataType for field in table.schema()}
    for name, type in shape.columns:
        if name not in have:
            return f"it has no column {name}"
        if have[name].simpleString() != table.kept(spark_type(type)).simpleString():
            return f"its column {name} has another type"
    return None


def not_last(where: TableLocation) -> TargetError:
    """Return the error for a commit that is not the table's last one."""
    return TargetError(
        "Another writer committed first; the table is read again and the batch is retried",
        table=where.shown,
    )


def not_ours(why: str, where: TableLocation) -> TableTaken:
    """Return the error for a table of ours whose rows others changed."""
    return TableTaken(
        f"The table does not have the rows that this pipeline left in it: {why}",
        remedy="Stop other programs from writing to it, and restart the engine, which loads the"
        " table again.",
        table=where.shown,
    )


def kept_by(note: CommitNote | None, table: Commits) -> Mode:
    """Return the mode of a table of ours; by its columns if no note has it."""
    if note is not None and note.mode:
        return note.mode  # type: ignore[return-value]
    have = set(table.schema().names)
    return next((mode for mode in MODES if columns_of(mode) and columns_of(mode) <= have), "merge")


def other_mode(mode: Mode, where: TableLocation) -> TableTaken:
    """Return the error for a table of ours that has another mode."""
    return TableTaken(
        f"This pipeline has written the table in mode {mode}",
        remedy="Use that mode again, or another table. With adopt=True, all rows of the table are"
        " replaced, including its history.",
        table=where.shown,
    )


def taken(note: CommitNote | None, owner: str, where: TableLocation) -> TableTaken:
    """Return the error for an existing table that is not ours, by its last note."""
    if note is None:
        return TableTaken(
            "The table exists already, and this pipeline did not create it", table=where.shown
        )
    if note.owner == owner:
        return TableTaken(
            "This pipeline writes another source table to this table",
            table=where.shown,
            kept=note.table,
        )
    return TableTaken(
        "Another pipeline writes to this table",
        table=where.shown,
        pipeline=note.owner.partition("/")[0],
    )
