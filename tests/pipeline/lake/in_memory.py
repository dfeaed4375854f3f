"""A table of a lake in memory, with commits as a format keeps them, and one writer's side of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableSchema
from headrace.lake.history import CommitNote, TableCommit, TableHistory, TableLocation, looked_at
from headrace.lake.memory import Memory
from headrace.lake.rows import Mode, shaped
from headrace.lake.table import LakeTable
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.target import TargetContext
from headrace.testing.source import THINGS, State

KEEPING = frozenset({"OPTIMIZE", "ADD COLUMNS"})


class Frame:
    """Rows, where Spark would have a frame."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def toDF(self, *names: str) -> Frame:  # As Spark calls it.
        return Frame(self.rows.rename_columns(list(names)))

    def state(self) -> State:
        ids, names = (self.rows.column(at).to_pylist() for at in range(2))
        return dict(zip(ids, names, strict=True))


@dataclass
class Lake:
    """One folder: a table, or none."""

    rows: State = field(default_factory=dict)
    commits: list[TableCommit] = field(default_factory=list)
    """The oldest first."""

    columns: list[Any] = field(default_factory=list)
    given_out: int = 0
    created: int = 0
    statements: list[str] = field(default_factory=list)
    """Of every MERGE; what it says is left to the frame's rows."""

    has_identity: bool = False
    """Whether each load makes another table of it, which its versions do not tell."""

    def commit(self, operation: str, note: CommitNote | None = None) -> None:
        """Make a commit of whomever."""
        version = self.commits[-1].version + 1 if self.commits else 0
        self.created += version == 0
        self.commits.append(TableCommit(version, operation, note))

    def remove(self) -> None:
        """Let there be no table."""
        self.rows, self.commits, self.given_out, self.columns = {}, [], 0, []

    def forget_history(self) -> None:
        """Let a clean-up of the log leave one commit that is not ours."""
        self.commit("OPTIMIZE")
        del self.commits[:-1]


class KeptInMemory:
    """What `Commits` is."""

    table = "t"

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def found(self, since: int | None = None) -> TableHistory | None:
        commits = list(reversed(self._lake.commits))
        return looked_at(commits, since, KEEPING, self._lake.given_out) if commits else None

    def committed(self) -> int:
        return self._lake.commits[-1].version

    def identity(self) -> str:
        return str(self._lake.created)

    def is_still(self, identity: str) -> bool:
        return not self._lake.has_identity or self.identity() == identity

    def schema(self) -> Any:
        from pyspark.sql.types import StructType

        return StructType(self._lake.columns)

    def merge(self, statement: str, frame: Frame, note: CommitNote) -> bool:
        self._lake.statements.append(statement)
        if not self._claim("MERGE", note):
            return False
        for row in frame.rows.to_pylist():
            self._lake.rows.pop(row["c0"], None)
            if not row["gone"]:
                self._lake.rows[row["c0"]] = row["c1"]
        return True

    def replace(self, frame: Frame, note: CommitNote) -> bool:
        if not self._claim("WRITE", note):
            return False
        self._lake.rows = frame.state()
        self._lake.created += self._lake.has_identity and note.loads
        return True

    empty = replace

    def append(self, frame: Frame, note: CommitNote) -> bool:
        if not self._claim("WRITE", note):
            return False
        self._lake.rows |= frame.state()
        return True

    def add_columns(self, fields: Sequence[Any]) -> None:
        self._lake.commit("ADD COLUMNS")
        self._lake.columns += fields

    def compact(self) -> None:
        self._lake.commit("OPTIMIZE")

    def check_name(self) -> None: ...

    def register(self) -> None: ...

    @staticmethod
    def kept(type: Any) -> Any:
        return type

    def _claim(self, operation: str, note: CommitNote) -> bool:
        if note.number <= self._lake.given_out:
            return False
        self._lake.given_out = note.number
        self._lake.commit(operation, note)
        return True


class InMemory:
    """What `Sessions` is."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def session(self) -> None: ...

    def table(self, where: TableLocation) -> KeptInMemory:
        return KeptInMemory(self._lake)

    def frame(self, rows: pa.Table) -> Frame:
        return Frame(rows)


class Writer:
    """Opens the one table as often as needed, each time as another life of the engine."""

    def __init__(self, folder: Path, mode: Mode = "merge") -> None:
        self.lake = Lake()
        self.folder = folder
        self.mode = mode

    def opened(
        self,
        at: Position = ORIGIN,
        schema: TableSchema = THINGS,
        check: Callable[[], None] = lambda: None,
        *,
        adopt: bool = False,
        compact_every: int = 0,
        data: str = "data",
        lineage: str = "",
    ) -> LakeTable:
        (self.folder / data).mkdir(exist_ok=True)
        files = Files(RealDisk(), str(self.folder / data))
        context = TargetContext(
            lambda: None,  # type: ignore[arg-type, return-value]
            "orders",
            files,
            time.time,
            lineage=lambda: lineage,
            check=check,
        )
        made = LakeTable(
            shaped(self.mode, schema, None),
            TableLocation((), "/lake"),
            context,
            Memory(files, "orders"),
            InMemory(self.lake),  # type: ignore[arg-type]
            adopt=adopt,
            compact_every=compact_every,
        )
        made.open(at)
        return made

    def load(self, table: LakeTable, rows: pa.Table, at: Position, baseline: int) -> None:
        """Load rows as a baseline, and make them the table."""
        table.switch(rows, at, baseline)

    def begun(self, rows: pa.Table) -> LakeTable:
        table = self.opened()
        self.load(table, rows, Position(1, 1), 1)
        return table


def staged_commit(table: LakeTable, rows: Any, *about: Any) -> Any:
    """Return the commit of a load, as `switching` does, without its frames of Spark."""
    from pyspark.sql.types import StructField

    from headrace.pipeline.plan.types import spark_type

    def commit(kept: KeptInMemory, note: CommitNote) -> bool:
        if table.ours and table.shape.mode != "merge":
            table.check_fit()
            return kept.append(Frame(rows), note)
        done = kept.replace(Frame(rows), note)
        fields = [StructField(name, spark_type(type)) for name, type in table.shape.columns]
        kept._lake.columns = fields
        return done

    return commit
