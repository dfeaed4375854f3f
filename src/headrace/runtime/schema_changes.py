"""
What a pipeline does when a table of it gets other columns.

The log says so: a schema that the table did not have before. The plan is made again for it and
older segments are lifted to it; what becomes of the target is the target's to say, and whether
all this is to happen by itself the pipeline's own `on_schema_change` (R23b).

A target of one state takes the newest schema at once. One that keeps every change takes each in
its turn (`columns_in_turn`): a column that is dropped is still in the changes from before.

A durable target outlives the engine, and columns may change while none runs: so it is stored in
which schema it has each table, and the next life begins there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema, differences
from headrace.errors import ColumnsChanged, HeadraceError
from headrace.observe.logs import logger
from headrace.pipeline.batch import PreparedPipeline
from headrace.pipeline.definition import Pipeline
from headrace.runtime.model import Member, TableState
from headrace.runtime.run_context import RunContext
from headrace.targets.target import FollowsSchema, SchemaAnswer

_log = logger(__name__)

_OWING = (TableState.WAITING, TableState.RELOADING)


class SchemaChanges:
    """Follows the columns of one pipeline's tables. For the run's thread alone."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        prepared: PreparedPipeline,
        context: RunContext,
        load_anew: Callable[[Member, int], None],
        load_again: Callable[[Member], None],
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._prepared = prepared
        self._load_anew = load_anew
        self._load_again = load_again
        self._context = context
        self._shown: dict[str, int] = {}
        """Of each table the schema that a person was shown, who lets the pipeline go on with it."""
        self._noted: dict[str, int] = {}
        """Of each table of a durable target the schema that is stored."""

    def recall(self, member: Member) -> None:
        """
        Put a durable target's table back to the columns it has there, if these are others.

        One that takes them in turn begins with the log's, not with those that the source has by
        now: changes from before may be still to be read.
        """
        log, traits = self._context.log, self._pipeline.target.traits
        known = self._context.store.columns(self._name, member.table) if traits.durable else None
        if known is None and traits.columns_in_turn:
            known = log.columns_in_turn(member.table, 0).schema
        if known == 0 and traits.columns_in_turn:
            member.schema_id = 0  # the log had none of it: the first that comes has its turn
        if not known:
            return
        try:
            schema = log.schema(member.table, known)
            if (known, schema) == (member.schema_id, member.input):
                return
            output = self._prepared.output(schema)
        except HeadraceError as error:
            # The log was made anew, or the steps are others by now: nothing to compare with.
            _log.failed("columns of before are not known", error, table=member.table)
            return
        member.input, member.output, member.schema_id = schema, output, known

    def follow(self, members: Sequence[Member]) -> None:
        """Take in what changed since the last look; raise `ColumnsChanged` where that stops it."""
        for member in members:
            if member.state != TableState.COMPLETE:
                self._look(member)
            self._note(member)

    def _look(self, member: Member) -> None:
        log, table, since = self._context.log, member.table, member.schema_id
        if self._pipeline.target.traits.columns_in_turn:
            after = member.reached if member.following else None
            turn = log.columns_in_turn(table, since, after)
        else:
            turn = log.columns(table, since)
        if turn.schema > member.schema_id:
            self._take(member, turn.schema, log.schema(member.table, turn.schema))
        member.columns_until = None if turn.until is None else Position.parse(turn.until)

    def _note(self, member: Member) -> None:
        """Store the columns of a table before rows are given in them."""
        if self._pipeline.target.traits.durable:
            if self._noted.get(member.table) != member.schema_id:
                self._context.store.note_columns(self._name, member.table, member.schema_id)
            self._noted[member.table] = member.schema_id

    def _take(self, member: Member, number: int, schema: TableSchema) -> None:
        changed = differences(member.input, schema)
        told = ", ".join(map(str, changed))
        policy = self._pipeline.on_schema_change
        if changed and policy == "stop" and self._shown.get(member.table) != number:
            self._shown[member.table] = number
            raise self._stopped("Columns of a table changed", member, told)
        target = self._pipeline.target
        output = self._prepared.output(schema)
        answer: SchemaAnswer = "continue"
        if (output.columns, output.key) != (member.output.columns, member.output.key):
            target.check({member.table: output})
            answer = "reload"
            if isinstance(target, FollowsSchema):
                answer = target.schema_changed(member.table, member.output, output)
            if answer == "refuse":
                raise self._stopped("The target refuses a table's other columns", member, told)
            # What is being loaded was begun in the columns of before.
            self._load_again(member)
        if changed:
            _log.info("columns changed", pipeline=self._name, table=member.table, changes=told)
        # A reload that was asked for is still owed.
        owed = member.newer_than if member.state in _OWING else 0
        if changed and policy == "rebaseline":
            newest = self._context.log.usable_baseline(member.table)
            self._load_anew(member, max(owed, newest.baseline if newest else 0))
        elif answer == "reload":
            # From the log: it knows whether its rows are still right, or else that one is owed.
            self._load_anew(member, owed)
        # Last: should it not be stored that the table is loaded anew, all this is done again.
        member.input, member.output, member.schema_id = schema, output, number

    def _stopped(self, message: str, member: Member, told: str) -> ColumnsChanged:
        return ColumnsChanged(message, pipeline=self._name, table=member.table, changes=told)
