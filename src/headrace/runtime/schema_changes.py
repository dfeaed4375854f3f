"""
What a pipeline does when the columns of a table change.

The log has a new schema for the table then. The plan is compiled again for it, and older segments
are upgraded to it. The target decides what happens to its table, and the pipeline's
`on_schema_change` whether this happens automatically (R23b).

A target with only the current state takes the newest schema at once. A target with every change
takes each schema in its turn (`columns_in_turn`): a dropped column is still in the changes before.

A durable target outlives the engine, and columns may change while no engine runs. So the schema of
each table at the target is stored, and the next run begins there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema, differences
from headrace.errors import ColumnsChanged, HeadraceError
from headrace.observe.events import TableAltered
from headrace.observe.logs import logger
from headrace.pipeline.batch import PreparedPipeline
from headrace.pipeline.definition import Pipeline
from headrace.runtime.model import Member, TableState
from headrace.runtime.run_context import RunContext
from headrace.targets.target import FollowsSchema, SchemaAnswer

_log = logger(__name__)

_MAY_REQUIRE = (TableState.WAITING, TableState.RELOADING)


class SchemaChanges:
    """Follows the columns of one pipeline's tables. Only for the run's thread."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        prepared: PreparedPipeline,
        context: RunContext,
        reload: Callable[[Member, int], None],
        restart_load: Callable[[Member], None],
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._prepared = prepared
        self._reload = reload
        self._restart_load = restart_load
        self._context = context
        self._source = pipeline.source.name
        self._shown: dict[str, int] = {}
        """By table, the schema that stopped the pipeline once: a person has resumed it since."""
        self._noted: dict[str, int] = {}
        """By table of a durable target, the stored schema."""

    def recall(self, member: Member) -> None:
        """
        Set a table of a durable target to the columns that it has there.

        A target with `columns_in_turn` begins with the log's columns, not with the source's
        current ones: older changes may still have to be read.
        """
        log, traits = self._context.log, self._pipeline.target.traits
        known = self._context.store.columns(self._name, member.table) if traits.durable else None
        if known is None and traits.columns_in_turn:
            known = log.columns_in_turn(member.table, 0).schema
        if known == 0 and traits.columns_in_turn:
            member.schema_id = 0  # the log had no schema of it: the first one has its turn
        if not known:
            return
        try:
            schema = log.schema(member.table, known)
            if (known, schema) == (member.schema_id, member.input):
                return
            output = self._prepared.output(schema)
        except HeadraceError as error:
            # The log was recreated, or the steps have changed: there is nothing to compare with.
            _log.failed("previous columns are not known", error, table=member.table)
            return
        member.input, member.output, member.schema_id = schema, output, known

    def follow(self, members: Sequence[Member]) -> None:
        """Apply changed columns; raise `ColumnsChanged` if they stop the pipeline."""
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
        """Store the columns of a table before rows with them are delivered."""
        if self._pipeline.target.traits.durable:
            if self._noted.get(member.table) != member.schema_id:
                self._context.store.note_columns(self._name, member.table, member.schema_id)
            self._noted[member.table] = member.schema_id

    def _take(self, member: Member, number: int, schema: TableSchema) -> None:
        changed = differences(member.input, schema)
        described = ", ".join(map(str, changed))
        policy = self._pipeline.on_schema_change
        if changed and policy == "stop" and self._shown.get(member.table) != number:
            self._shown[member.table] = number
            raise self._stopped("The columns of the table changed", member, described)
        target = self._pipeline.target
        output = self._prepared.output(schema)
        if self._pipeline.ttl is not None:
            self._pipeline.ttl.check(output)
        answer: SchemaAnswer = "continue"
        if (output.columns, output.key) != (member.output.columns, member.output.key):
            self._context.check_run()
            target.check({member.table: output})
            answer = "reload"
            if isinstance(target, FollowsSchema):
                answer = target.schema_changed(member.table, member.output, output)
            if answer == "refuse":
                raise self._stopped("The target refuses the changed columns", member, described)
            # A running load was started with the previous columns.
            self._restart_load(member)
        if changed:
            _log.info("columns changed", pipeline=self._name, table=member.table, changes=described)
        # A requested reload is still required.
        newer_than = member.newer_than if member.state in _MAY_REQUIRE else 0
        if answer == "reload" or (changed and policy == "rebaseline"):
            member.load_reason = f"its columns changed: {described}"
        if changed and policy == "rebaseline":
            newest = self._context.log.usable_baseline(member.table)
            self._reload(member, max(newer_than, newest.baseline if newest else 0))
        elif answer == "reload":
            # From the log, if its baseline is still right; if not, the log requires a new one.
            self._reload(member, newer_than)
        # Last: if storing the reload fails, all of this is done again.
        old = member.input
        member.input, member.output, member.schema_id = schema, output, number
        if changed:
            response = "rebaseline" if policy == "rebaseline" else answer
            emit, now = self._context.emit, self._context.wall()
            emit(TableAltered(self._name, self._source, member.table, old, schema, response, now))

    def _stopped(self, message: str, member: Member, changes: str) -> ColumnsChanged:
        return ColumnsChanged(message, pipeline=self._name, table=member.table, changes=changes)
