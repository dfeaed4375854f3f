"""
What a format must be able to do for a table to be a target with its position inside.

Delta does it with application transactions, Iceberg with properties of a snapshot and a branch. A
new format is a class of this shape, an entry in `sessions`, and a `Format` in `formats`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from headrace.pipeline.lake.naming import Where
from headrace.pipeline.lake.note import Note

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True, slots=True)
class Found:
    """What a table's history says."""

    note: Note | None
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

    def __init__(self, session: SparkSession, where: Where, *, persistent: bool) -> None: ...

    def found(self, since: int | None = None) -> Found | None:
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

    def merge(self, statement: str, frame: DataFrame, note: Note) -> bool:
        """Run a MERGE over a frame."""
        ...

    def replace(self, frame: DataFrame, note: Note) -> bool:
        """Put a frame's rows and columns in place of all there is; make it where there is none."""
        ...

    def empty(self, frame: DataFrame, note: Note) -> bool:
        """Put a frame's rows in place of all there is; columns stay."""
        ...

    def append(self, frame: DataFrame, note: Note) -> bool:
        """Add a frame's rows."""
        ...

    def append_from(self, frame: DataFrame, column: str, least: str, note: Note) -> bool:
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
