"""
Tables of a pipeline that match a pattern: at its start, and later ones.

```
 the recorder finds one ─▶ `update` ─▶ the run's own thread: plan ─▶ target ─▶ a member, waiting
                                          └─ what does not fit is left out, and named
```

From there it is loaded like any other table (R12, H2). Nothing is stored about it before: after a
restart it is one of the tables that match. A table that only matches a pattern never stops a
pipeline: if its columns do not fit the steps, or the target cannot take it, it is left out until
its columns change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress

from headrace.capture.table_selection import chosen, split_table_name
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import BadTransform, ControlError, HeadraceError, TargetError
from headrace.observe.logs import logger
from headrace.pipeline.batch import PreparedPipeline
from headrace.pipeline.definition import Pipeline
from headrace.runtime.model import Again, Member, decide
from headrace.targets.target import TakesMore

_log = logger(__name__)


def own_tables(
    pipeline: Pipeline, known: Mapping[TableName, TableSchema]
) -> dict[TableName, TableSchema]:
    """Return the tables of a source that belong to a pipeline, the named ones first."""
    named = {table: known[table] for table in pipeline.tables}
    return named | {table: known[table] for table in _matched(pipeline, known)}


def takes(pipeline: Pipeline, table: TableName) -> bool:
    """Whether a table of this name belongs to a pipeline."""
    return table in pipeline.tables or bool(_matched(pipeline, [table]))


def _matched(pipeline: Pipeline, tables: Collection[TableName]) -> list[TableName]:
    """Return the tables that belong to the pipeline only because of a pattern."""
    named = {split_table_name(table) for table in pipeline.tables}
    return [
        each for each in chosen(tables, pipeline.patterns) if split_table_name(each) not in named
    ]


class NewTables:
    """One pipeline's tables. `update` and `left_out` are for any thread, the rest for the run's."""

    def __init__(self, pipeline: Pipeline, prepared: PreparedPipeline) -> None:
        self._pipeline = pipeline
        self._target = pipeline.target
        self._prepared = prepared
        self._opened = False
        self._found: deque[TableSchema] = deque()
        self._there: Collection[TableName] | None = None
        self._refused: dict[TableName, HeadraceError] = {}
        self._unfit: dict[TableName, tuple[TableSchema, HeadraceError]] = {}

    @property
    def left_out(self) -> dict[TableName, HeadraceError]:
        """The tables that match and are left out, each with the reason."""
        unfit = {table: error for table, (_, error) in list(self._unfit.items())}
        return {**unfit, **self._refused}

    def update(
        self,
        known: Mapping[TableName, TableSchema],
        left_out: Mapping[TableName, HeadraceError],
        have: Collection[TableName],
    ) -> bool:
        """Take the current tables of the source; return whether the pipeline has to act."""
        self._refused = {table: left_out[table] for table in _matched(self._pipeline, left_out)}
        there = _matched(self._pipeline, known)
        self._there = frozenset((*self._pipeline.tables, *there))
        new = [known[table] for table in there if table not in have]
        new = [schema for schema in new if self._may_fit(schema)]
        self._found.extend(new)
        return bool(new) or any(table not in self._there for table in have)

    def prepared(self, schemas: Mapping[TableName, TableSchema]) -> tuple[Member, ...]:
        """Compile the plans of these tables, and check the target with them."""
        members: dict[TableName, Member] = {}
        for table, schema in schemas.items():
            if table in self._pipeline.tables:
                members[table] = self._planned(schema)
        outputs = {table: member.output for table, member in members.items()}
        if outputs:
            self._target.check(outputs)
        for table, schema in schemas.items():
            if table in members:
                continue
            try:
                member = self._planned(schema)
                # Together with the previous ones: a target may limit the number of tables.
                self._target.check({**outputs, table: member.output})
            except HeadraceError as error:
                self._leave_out(schema, error)
            else:
                members[table], outputs[table] = member, member.output
        return tuple(members.values())

    def open(self, members: Collection[Member]) -> None:
        """
        Open the target; without tables, it is opened with the first one that comes.

        If it fails, the target is closed again, and can be opened once more.
        """
        if not members:
            return
        try:
            self._target.open(
                {member.table: member.output for member in members},
                {member.table: member.reached for member in members},
            )
        except Exception as error:
            with suppress(Exception):
                self._target.close()
            if isinstance(error, HeadraceError):
                raise
            raise _not_opened(self._pipeline, error) from error
        self._opened = True

    def close(self) -> None:
        """Close the target if it was opened."""
        if self._opened:
            self._opened = False
            self._target.close()

    @property
    def next(self) -> TableSchema | None:
        """The next table to add; it stays the same until `taken`."""
        return self._found[0] if self._found else None

    def taken(self) -> None:
        """Move on to the following table."""
        self._found.popleft()

    def gone(self, member: Member) -> bool:
        """Whether a table cannot be loaded because it is gone from the source."""
        there = self._there
        return there is not None and member.table not in there and not member.shown

    def planned(self, schema: TableSchema) -> Member | None:
        """Return a new table as a member of the pipeline; None if it does not fit."""
        try:
            return self._planned(schema)
        except HeadraceError as error:
            self._leave_out(schema, error)
            return None

    def add(self, member: Member) -> bool:
        """Add a table to the target; return False if it cannot take it."""
        try:
            if not self._opened:
                self._target.check({member.table: member.output})
                self.open([member])
            elif isinstance(self._target, TakesMore):
                self._target.add(member.table, member.output, member.reached)
            else:
                raise _takes_no_more(self._pipeline)
        except HeadraceError as error:
            self._leave_out(member.input, error)
            return False
        self._unfit.pop(member.table, None)
        return True

    def _planned(self, schema: TableSchema) -> Member:
        output = self._prepared.output(schema)
        if self._pipeline.ttl is not None:
            self._pipeline.ttl.check(output)
        return Member(schema.table, schema, output)

    def _may_fit(self, schema: TableSchema) -> bool:
        refused = self._unfit.get(schema.table)
        return (refused is None or refused[0] != schema) and schema not in list(self._found)

    def _leave_out(self, schema: TableSchema, error: HeadraceError) -> None:
        """Leave a table out; raise the error if the table is not its cause."""
        if isinstance(error, ControlError) or isinstance(decide(error, 1), Again):
            raise error
        self._unfit[schema.table] = (schema, error)
        _log.warning("table left out", table=schema.table, code=error.code, problem=str(error))


def _not_opened(pipeline: Pipeline, error: Exception) -> TargetError:
    # Its text may contain values or a password, so it is not part of our error.
    return TargetError(
        "The target raised an exception when it was opened",
        remedy="Make the target reachable, or fix its code. It is opened again after a pause;"
        " headrace resume tries at once.",
        target=pipeline.target.traits.type,
        error=type(error).__name__,
    )


def _takes_no_more(pipeline: Pipeline) -> BadTransform:
    return BadTransform(
        "The target cannot add tables while it is open",
        remedy="Restart the engine to add the table.",
        target=pipeline.target.traits.type,
    )
