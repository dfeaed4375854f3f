"""
What a lake table is to one writer: its location, its commits, and whether it is as it was left.

A table is located by its name in a catalog, by its folder, or both. `{table}` and `{schema}` in
either stand for the source's table, so that one target takes several: `lake.{table}` makes
`lake.orders` of `public.orders`.

A `CommitNote` is what a commit of ours says about itself, in the table's own history. It is the
only record of how far the table is: read back at every start, and after every commit whose outcome
is not known.

`Commits` is what a format must be able to do for a table to be a target with its position inside.
Delta does it with application transactions, Iceberg with properties of a snapshot and a branch. A
new format is a class of this shape, an entry in `_WRITERS` of `table`, and a `Format` in `formats`.

A table's own history says, commit by commit, how far it is, and which other writers were there.
Everything up to a version that was looked at before is known. After it there may be commits of
ours, and of others only such that leave every row as it is. Anything else means that the rows are
not those that were left there (R1), and a commit of ours on top of it does not make them so; a load
does, which begins again from a baseline.

The judgements at the end say whether a table is what was left there, and what error is raised where
it is not. They decide nothing further: the consequences are up to `table`.
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
    """One table: its parts of a name, its folder, or both."""

    parts: tuple[str, ...]
    """Catalog, schema and table, as far as they are given; none: it has a folder alone."""

    path: str | None

    @property
    def name(self) -> str:
        """The name as SQL takes it; empty where it has none."""
        return ".".join(quoted(part) for part in self.parts)

    @property
    def shown(self) -> str:
        """What it is called for people."""
        return ".".join(self.parts) or str(self.path)

    @property
    def in_session_catalog(self) -> bool:
        """Whether the name is one of Spark's own catalog, which may forget it."""
        return len(self.parts) < _MOST_PARTS or self.parts[0] == SESSION_CATALOG

    @property
    def schema(self) -> str:
        """The schema of the name, `default` where none is given."""
        return self.parts[-2] if len(self.parts) > 1 else "default"


def check_name(name: str | None, path: str | None) -> None:
    """Raise `BadTable` where this names no table."""
    if name is None and path is None:
        raise BadTable("A table needs a name or a path")
    if name is not None:
        parts = name.split(".")
        if len(parts) > _MOST_PARTS or not all(_PLAIN.fullmatch(part) for part in parts):
            raise BadTable(
                "This is no name of a table",
                remedy="Write table, schema.table or catalog.schema.table; for a folder, path=.",
                name=name,
            )


def places(
    name: str | None, path: str | None, tables: Collection[TableName]
) -> dict[str, TableLocation]:
    """Return where each of the source's tables goes; `BadTable` where two would go to one."""
    found: dict[TableName, TableLocation] = {}
    taken: dict[object, TableName] = {}
    for table in tables:
        where = TableLocation(
            tuple(_filled(name, table).split(".")) if name else (), _path(path, table)
        )
        # No catalog of Spark's tells names apart by case alone.
        folded = tuple(part.casefold() for part in where.parts)
        for place in [each for each in (folded, where.path) if each]:
            if (other := taken.setdefault(place, table)) != table:
                raise BadTable(
                    "Two tables would become one",
                    remedy="Write {table}, or {schema} and {table}, where their names are to stand:"
                    ' hr.table("lake.{table}"). Where they differ by case alone, give each a'
                    " pipeline and a name of its own.",
                    table=where.shown,
                    of=sorted([other, table]),
                )
        found[table] = where
    return found


def _path(path: str | None, table: TableName) -> str | None:
    return None if path is None else _filled(path, table)


def _filled(pattern: str, table: TableName) -> str:
    schema, _, name = table.rpartition(".")
    # A name of the source may hold a dot itself; here dots part schema from table.
    return pattern.replace("{table}", name).replace("{schema}", schema or "main")


# --- the note of a commit -------------------------------------------------------------------------

APPLICATION = "headrace"
"""
Whose transactions the numbers count.

The same for every pipeline: a writer that was taken over from, by whomever, asks for a number
that is given out already, and its commit has no effect (R24).
"""

FORMAT = 1

LOAD = "baseline-"
"""What the batch of a commit is called that loads the table."""


class CommitNote(msgspec.Struct, frozen=True, omit_defaults=False):
    """One commit of ours."""

    headrace: int
    """The format of this note."""

    owner: str
    """The pipeline, of one data directory: nobody else writes to the table."""

    writer: str
    """The life of the engine that committed."""

    number: int
    """Counted by the table's commits of ours, from 1."""

    position: str
    """Everything up to here is in the table."""

    lineage: str
    baseline: int
    """The number of the baseline that the rows began with; 0: none."""

    batch: str
    table: str = ""
    """The source's table; empty in notes of before there was this field."""

    mode: str = ""
    """What the table shows of it; likewise."""

    @property
    def loads(self) -> bool:
        """Whether it begins anew with a baseline, whatever was there before."""
        return self.batch.startswith(LOAD)

    @property
    def at(self) -> Position:
        """The position, as one."""
        return Position.parse(self.position)


def written(note: CommitNote) -> str:
    """Return the note as text for a commit."""
    return msgspec.json.encode(note).decode()


def read(text: str | None) -> CommitNote | None:
    """Return the note in a commit's text; None where it is none of ours."""
    if not text:
        return None
    try:
        note = msgspec.json.decode(text, type=CommitNote)
        note.at  # noqa: B018  # Raises where it is no position.
    except (msgspec.MsgspecError, BadPosition):
        return None
    return note if note.headrace == FORMAT else None


# --- what a format must be able to do -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableHistory:
    """What a table's history says."""

    note: CommitNote | None
    """Of the last commit of ours; None: there is none."""

    others: str | None
    """What somebody else has done to its rows since it was looked at; None: nothing."""

    version: int
    """The newest commit, of whomever, as the format counts them."""

    number: int
    """The highest number that is given out; also known where the note of it is gone."""


class Commits(Protocol):
    """
    One table, as its one writer sees it.

    `merge`, `replace`, `empty`, `append` and `append_from` are one commit each, with the note in
    it. They return whether that commit is in the table: not, and without any effect, where the
    note's number is given out already. What they raise leaves that open.
    """

    SETTINGS: ClassVar[Mapping[str, str]]
    """What its session is given, which nobody else uses."""

    table: str
    """What a MERGE is made into, as SQL takes it."""

    def __init__(
        self, session: SparkSession, where: TableLocation, *, persistent: bool
    ) -> None: ...

    def found(self, since: int | None = None) -> TableHistory | None:
        """
        Return what is there now; None where there is no such table.

        `since` is the version that was looked at last; None: it was the last commit of ours.
        """
        ...

    def committed(self) -> int:
        """Return the version that the last commit by this session made."""
        ...

    def identity(self) -> str:
        """Return what the format tells this table by from one that took its place."""
        ...

    def is_still(self, identity: str) -> bool:
        """Whether it is the one of this identity, as far as its versions do not tell that."""
        ...

    def schema(self) -> StructType:
        """Return the columns that it has."""
        ...

    def rows(self) -> DataFrame:
        """Return what readers see."""
        ...

    def merge(self, statement: str, frame: DataFrame, note: CommitNote) -> bool:
        """Run a MERGE over a frame."""
        ...

    def replace(self, frame: DataFrame, note: CommitNote) -> bool:
        """Put a frame's rows and columns in place of all there is; make it where there is none."""
        ...

    def empty(self, frame: DataFrame, note: CommitNote) -> bool:
        """Put a frame's rows in place of all there is; columns stay."""
        ...

    def append(self, frame: DataFrame, note: CommitNote) -> bool:
        """Add a frame's rows."""
        ...

    def append_from(self, frame: DataFrame, column: str, least: str, note: CommitNote) -> bool:
        """Add a frame's rows, in place of those that are there from `least` on by a column."""
        ...

    def add_columns(self, fields: Sequence[StructField]) -> None:
        """Add columns at the end; rows that are there have null in them."""
        ...

    def compact(self) -> None:
        """Make few files of many small ones; no row changes."""
        ...

    def check_name(self) -> None:
        """Raise `BadTable` where its name stands for another table than that in its folder."""
        ...

    def register(self) -> None:
        """Make a table that is found by its folder known by its name, in this Spark."""
        ...

    @staticmethod
    def kept(type: DataType) -> DataType:
        """Return the type that a column has in it which was given this one."""
        ...


# --- reading a table's history --------------------------------------------------------------------

CUT_OFF = "its history does not reach back to what was left there"


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit of whomever."""

    version: int
    operation: str
    note: CommitNote | None
    """What it says where it is one of ours."""


def settled(commits: Sequence[TableCommit], since: int | None) -> bool:
    """Whether these, the newest first, are enough to say what happened since a version."""
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
    Return what commits, the newest first, say since a version; None: since the last of ours.

    `keeping` are the operations that leave every row as it is, `number` the highest one that was
    given out where no commit tells.
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


# --- judging what was found -----------------------------------------------------------------------

MADE_ANEW = "the table was made anew"


def followed(
    table: Commits, before: int | None, identity: str | None
) -> tuple[int | None, str | None]:
    """
    Return how far a table is known after a commit of ours, and what is wrong with it.

    `before` is how far it was known, `identity` which one it is to be; None: any.
    """
    version, why = _reached(table, before)
    if why is None and identity and not table.is_still(identity):
        return before, MADE_ANEW
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
    """Return which table a load has made; None: another took its place already."""
    identity = table.identity()
    # Looked at behind it: otherwise it may be the identity of what came in between.
    found = table.found()
    return identity if found is not None and found.note == note else None


def judged(
    found: TableHistory, note: CommitNote, before: int | None, least: int
) -> tuple[int | None, str | None]:
    """
    Return how far a table of ours is known, and what is wrong with it.

    `before` is how far it was known, `least` the version that it must have reached.
    """
    # A load begins anew, whatever was there before.
    if found.version < least and not note.loads:
        return before, "the table was put back to an earlier version, or made anew"
    if found.others is not None:
        cut_off = found.others == CUT_OFF
        why = CUT_OFF if cut_off else f"somebody else changed its rows ({found.others})"
        return before, why
    return found.version, None


def put_back(note: CommitNote, lineage: str, at: Position) -> str | None:
    """
    Return what is wrong with a table that was at `at`, and that another life committed to since.

    A position beyond the last note of our own is nothing unusual, for what has no rows of a table
    is no commit. But another life that has come less far has loaded it, or knows another log.
    """
    if note.lineage != lineage:
        return "another engine wrote to it, from another log"
    if _commit(note.at) < _commit(at):
        return "another engine put it back to an earlier position"
    return None


def further(note: CommitNote, lineage: str, at: Position) -> bool:
    """Whether a commit has brought a table beyond `at` of the same log."""
    return note.lineage == lineage and _commit(note.at) > _commit(at)


def _commit(at: Position) -> tuple[int, int]:
    # Ends of a batch stand on its last change, those of a baseline behind all of a commit.
    return at.epoch, at.commit


def misfit(table: Commits, shape: LakeShape) -> str | None:
    """Return why a table of ours cannot take rows of a shape; None: it can."""
    from headrace.pipeline.plan.types import spark_type

    have = {field.name: field.dataType for field in table.schema()}
    for name, type in shape.columns:
        if name not in have:
            return f"it lacks the column {name}"
        if have[name].simpleString() != table.kept(spark_type(type)).simpleString():
            return f"its column {name} has another type"
    return None


def not_last(where: TableLocation) -> TargetError:
    """Return what is raised where a commit is not what the table ends with."""
    return TargetError(
        "Another writer was quicker: the table is read back, and the batch comes again",
        table=where.shown,
    )


def not_ours(why: str, where: TableLocation) -> TableTaken:
    """Return what is raised where a table of ours has other rows than were left there."""
    return TableTaken(
        f"The table is not what was left there: {why}",
        remedy="Let nobody else write to it, and restart the engine: it is loaded anew.",
        table=where.shown,
    )


def kept_by(note: CommitNote | None, table: Commits) -> Mode:
    """Return the mode that a table of ours is kept by; where no note says so, by its columns."""
    if note is not None and note.mode:
        return note.mode  # type: ignore[return-value]
    have = set(table.schema().names)
    return next((mode for mode in MODES if columns_of(mode) and columns_of(mode) <= have), "merge")


def other_mode(mode: Mode, where: TableLocation) -> TableTaken:
    """Return what is raised where a table of ours was kept by another mode."""
    return TableTaken(
        f"The table is kept by this pipeline, with mode {mode}",
        remedy="Go back to that mode, or name another table. With adopt=True its rows, and"
        " all that it keeps of before, are replaced.",
        table=where.shown,
    )


def taken(note: CommitNote | None, owner: str, where: TableLocation) -> TableTaken:
    """Return what is raised where there is a table that somebody else has, by its last note."""
    if note is None:
        return TableTaken("There is a table already, and it is not ours", table=where.shown)
    if note.owner == owner:
        return TableTaken(
            "Another table of this pipeline is kept here",
            table=where.shown,
            kept=note.table,
        )
    return TableTaken(
        "Another pipeline writes to this table",
        table=where.shown,
        pipeline=note.owner.partition("/")[0],
    )
