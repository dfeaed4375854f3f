"""
Replays and edits of dead letters: requests of other threads, carried out by the pipeline's own.

A dead letter is applied together with everything that its row waits for: all dead letters that
share a key with it, in the order of their positions. They become one correction at the position
that the table has reached (see `corrections/`), and are resolved. What cannot be computed, or is
refused, becomes a dead letter again, at its new position, and so do later changes of its key.

An edit replaces values of the row after the change. Key columns stay as they are, because later
changes of the row would not find it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Literal, TypeAlias

import pyarrow as pa

from headrace.changelog.change import Op, TableChanges
from headrace.changelog.position import Position, in_log
from headrace.changelog.schema import TableSchema
from headrace.deadletters.ledger import Selection
from headrace.deadletters.letter import DeadLetter, rows_of_changes
from headrace.errors import CannotReplay, HeadraceError, RowFailed, TooManyFailed
from headrace.pipeline.definition import Mode
from headrace.runtime.delivery import Delivery
from headrace.runtime.model import Member, TableState
from headrace.runtime.table_jobs import ComputedRows

OutcomeKind: TypeAlias = Literal["applied", "failed", "waiting"]


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What became of one dead letter."""

    dead_letter: DeadLetter
    outcome: OutcomeKind
    """applied: the target has it; failed: it failed again; waiting: behind one that failed."""

    position: Position
    """Where it is now: a new dead letter has this position."""

    code: str = ""
    """Why it failed."""

    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ReplayRequest:
    """Asks for dead letters to be applied; `answer` has the outcome of each."""

    selection: Selection
    edits: Mapping[str, object] | None = None
    """New values of the row after the change, if one dead letter is edited."""

    note: str = ""
    dry_run: bool = False
    """Only say what would happen: nothing is stored, and the target gets nothing."""

    answer: Future[tuple[ReplayOutcome, ...]] = field(default_factory=Future)

    def wanted(self, dead_letter: DeadLetter) -> bool:
        """Whether a dead letter is meant itself, and not only because it waits."""
        chosen = self.selection
        match chosen.before:
            case Position():
                early = dead_letter.position < chosen.before
            case datetime():
                early = dead_letter.parked < chosen.before
            case None:
                early = True
        return (
            early
            and chosen.table in (None, dead_letter.table)
            and chosen.code in (None, dead_letter.code)
            and chosen.position in (None, dead_letter.position)
            and (chosen.keys is None or not chosen.keys.isdisjoint(dead_letter.keys))
        )


class Corrections:
    """Carries out the requests of one pipeline. `ask` is for any thread, the rest for the run's."""

    def __init__(self, name: str, delivery: Delivery, mode: Mode) -> None:
        self._name = name
        self._mode = mode
        self._delivery = delivery
        self._requests: deque[ReplayRequest] = deque()
        self._awaited: list[_Awaited] = []
        delivery.corrected = self._delivered

    def ask(self, request: ReplayRequest) -> None:
        """Queue a request; the next step of the run takes it."""
        self._requests.append(request)

    @property
    def pending(self) -> bool:
        """Whether a request waits to be carried out."""
        return bool(self._requests)

    def refuse(self, error: HeadraceError) -> None:
        """Answer every request with an error: the run ends, or cannot carry them out."""
        requests = [*self._requests, *(each.request for each in self._awaited)]
        self._requests.clear()
        self._awaited.clear()
        for request in requests:
            if not request.answer.done():  # a caller that does not wait any more has cancelled it
                request.answer.set_exception(error)

    def carry_out(self, members: Sequence[Member]) -> bool:
        """Carry out the next request; return False if there is none, or not now."""
        if not self._requests:
            return False
        request = self._requests[0]
        if not request.answer.running() and not request.answer.set_running_or_notify_cancel():
            self._requests.popleft()
            return True
        try:
            done = self._carry_out(request, members)
        except HeadraceError as error:
            self._requests.popleft()
            if not isinstance(error, CannotReplay):
                request.answer.set_exception(error)
                raise
            request.answer.set_exception(error)
            return True
        if done:
            self._requests.popleft()
        return done

    def _carry_out(self, request: ReplayRequest, members: Sequence[Member]) -> bool:
        """Make corrections of a request; False if one of its tables cannot take them yet."""
        if self._mode == "baseline":
            # It has no changes that a correction could stand among, and when its target is rebuilt
            # from other rows, nobody knows whether the source has changed the row meanwhile.
            raise CannotReplay(
                "A pipeline in mode baseline cannot apply its dead letters",
                pipeline=self._name,
                remedy="Correct the cause, or the row at its source, and reload the table.",
            )
        by_table: dict[str, list[DeadLetter]] = {}
        for each in self._delivery.dead_letters.all():
            by_table.setdefault(each.table, []).append(each)
        groups = {
            table: found
            for table, dead_letters in by_table.items()
            if (found := _with_connected(dead_letters, request.wanted))
        }
        if not groups:
            raise CannotReplay(
                "No such dead letter waits", pipeline=self._name, remedy="List them again."
            )
        if request.edits is not None:
            _check_edit(groups, request)
        plans: list[tuple[Member, list[DeadLetter], list[TableChanges]]] = []
        for table, dead_letters in groups.items():
            member = next((each for each in members if each.table == table), None)
            if member is None:
                raise CannotReplay("The pipeline does not have the table", table=table)
            if not self._may_take(member, dead_letters):
                return False
            plans.append((member, dead_letters, self._changes(member, dead_letters, request)))
        if request.dry_run:
            outcomes: list[ReplayOutcome] = []
            for member, dead_letters, changes in plans:
                outcomes += self._tried(member, dead_letters, changes)
            request.answer.set_result(tuple(outcomes))
            return True
        for member, dead_letters, changes in plans:
            if len(dead_letters) > self._delivery.most_failures:
                self._tried(member, dead_letters, changes)
        pending = len(plans)
        outcomes = []

        def settled(found: list[ReplayOutcome]) -> None:
            nonlocal pending
            pending -= 1
            outcomes.extend(found)
            if not pending and not request.answer.done():
                request.answer.set_result(tuple(outcomes))

        for member, dead_letters, changes in plans:
            kind: Literal["replay", "edit"] = "replay" if request.edits is None else "edit"
            made = self._delivery.correct(kind, member, dead_letters, changes, request.note)
            self._awaited.append(_Awaited(made.first, dead_letters, request, settled))
        return True

    def _may_take(self, member: Member, dead_letters: Sequence[DeadLetter]) -> bool:
        """
        Whether a correction can stand where a table is now.

        Not while the table is loaded again: some of the dead letters may be of the new rows. Not
        if it is of a log that was lost, and has not been recorded again: it will be loaded. Not
        between two attempts of a batch: the target may have it already, and some may be of it.
        """
        lineage = self._delivery.source_log.lineage
        return (
            member.state == TableState.LIVE
            and lineage not in (None, "")
            and member.lineage == lineage
            and self._delivery.settled_at(member.reached)
            and all(
                dead_letter.baseline is not None or dead_letter.position <= in_log(member.reached)
                for dead_letter in dead_letters
            )
            and self._delivery.at_a_commits_end(member)
        )

    def _changes(
        self, member: Member, dead_letters: Sequence[DeadLetter], request: ReplayRequest
    ) -> list[TableChanges]:
        """Return the changes of dead letters, with edits, a table for each run of one schema."""
        parts: list[TableChanges] = []
        for (schema, edits), run in groupby(
            dead_letters, key=lambda each: (_schema(each), self._edits(each, request))
        ):
            rows = _as_changes(rows_of_changes([each.change for each in run if each.change]))
            if edits is not None:
                rows = with_values(TableChanges(schema, rows), edits)
            parts.append(TableChanges(schema, rows))
        needed = self._delivery.needs(member)
        for part in parts:
            unsent = {n for each in part.rows["_unsent"].drop_null().to_pylist() for n in each}
            if lacking := unsent & needed:
                names = [c.name for c in part.schema.columns if c.field in lacking]
                raise CannotReplay(
                    "The source did not send a value that the pipeline needs",
                    table=member.table,
                    columns=names,
                    remedy="Give the value with an edit, or reload the table.",
                )
        return parts

    @staticmethod
    def _edits(dead_letter: DeadLetter, request: ReplayRequest) -> Mapping[str, object] | None:
        edits = request.edits
        return edits if edits is not None and request.wanted(dead_letter) else None

    def _tried(
        self, member: Member, dead_letters: list[DeadLetter], changes: list[TableChanges]
    ) -> list[ReplayOutcome]:
        """
        Compute changes without any effect, and return what would become of them.

        Raise `CannotReplay` if more would fail than may fail in one batch.
        """
        try:
            first, computed = self._delivery.try_changes(member, changes)
        except (RowFailed, TooManyFailed) as error:
            raise CannotReplay(
                "Too many of the dead letters would fail again, which would stop the pipeline",
                pipeline=self._name,
                table=member.table,
                limit=self._delivery.most_failures,
                remedy="Correct the cause first, or replay fewer of them: by --code or --position.",
            ) from error
        return _outcomes(first, dead_letters, computed)

    def _delivered(self, first: Position, computed: Mapping[str, ComputedRows]) -> None:
        """Note the outcome of a correction that the target has now."""
        for awaited in [each for each in self._awaited if each.first == first]:
            self._awaited.remove(awaited)
            table = awaited.dead_letters[0].table
            awaited.settled(_outcomes(first, awaited.dead_letters, computed.get(table)))


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A correction that was stored and not delivered yet."""

    first: Position
    dead_letters: list[DeadLetter]
    request: ReplayRequest
    settled: Callable[[list[ReplayOutcome]], None]


def _outcomes(
    first: Position, dead_letters: Sequence[DeadLetter], computed: ComputedRows | None
) -> list[ReplayOutcome]:
    new = {} if computed is None else {each.position: each for each in computed.dead_letters}
    outcomes = []
    for index, dead_letter in enumerate(dead_letters):
        at = Position(first.epoch, first.commit, first.ordinal + index)
        if (again := new.get(at)) is None:
            outcomes.append(ReplayOutcome(dead_letter, "applied", at))
        else:
            kind: OutcomeKind = "failed" if again.kind == "failed" else "waiting"
            outcomes.append(ReplayOutcome(dead_letter, kind, at, again.code, again.facts))
    return outcomes


def _with_connected(
    dead_letters: Sequence[DeadLetter], wanted: Callable[[DeadLetter], bool]
) -> list[DeadLetter]:
    """Return the chosen dead letters of a table and all that share keys with them, in order."""
    chosen = [wanted(each) for each in dead_letters]
    keys = {
        key for each, mine in zip(dead_letters, chosen, strict=True) if mine for key in each.keys
    }
    grew = True
    while grew:
        grew = False
        for index, each in enumerate(dead_letters):
            if not chosen[index] and not keys.isdisjoint(each.keys):
                chosen[index] = grew = True
                keys.update(each.keys)
    return [each for each, mine in zip(dead_letters, chosen, strict=True) if mine]


def _check_edit(groups: Mapping[str, Sequence[DeadLetter]], request: ReplayRequest) -> None:
    """Raise `CannotReplay` unless exactly one change with a row is edited, and not its key."""
    found = [
        each for dead_letters in groups.values() for each in dead_letters if request.wanted(each)
    ]
    if len(found) != 1:
        raise CannotReplay(
            "Several dead letters match",
            found=len(found),
            remedy="Name the table and the key of the row, too.",
        )
    if found[0].after is None:
        raise CannotReplay("The change has no row to edit", op=found[0].op)


def _schema(dead_letter: DeadLetter) -> TableSchema:
    assert dead_letter.change is not None, "it was read from a store"
    return dead_letter.change.schema


def _as_changes(rows: pa.Table) -> pa.Table:
    """Return stored changes; a row of a baseline is an insert."""
    at = rows.schema.get_field_index("_op")
    return rows.set_column(at, rows.schema.field(at), rows.column(at).fill_null(int(Op.INSERT)))


def with_values(change: TableChanges, values: Mapping[str, object]) -> pa.Table:
    """Return one change with other values in its row; raise `CannotReplay` for impossible ones."""
    rows, schema = change.rows, change.schema
    for name in values:
        if name not in schema.names:
            raise CannotReplay("The table has no such column", table=schema.table, column=name)
        if name in schema.key:
            raise CannotReplay(
                "A key column cannot be edited",
                table=schema.table,
                column=name,
                remedy="Change the row at the source.",
            )
    image = rows.column("after").combine_chunks()
    image = image.chunk(0) if isinstance(image, pa.ChunkedArray) else image
    exact = dict(rows["_exact"][0].as_py() or ())
    unsent = set(rows["_unsent"][0].as_py() or ())
    children = []
    for index, column in enumerate(schema.columns):
        child = image.field(index)
        if column.name in values:
            child = _encoded(schema, column.name, values[column.name])
            exact.pop(column.field, None)
            unsent.discard(column.field)
        children.append(child)
    after = pa.StructArray.from_arrays(children, fields=list(schema.arrow))
    columns: dict[str, pa.Array] = {
        "after": after,
        "_exact": pa.array([list(exact.items()) or None], schema.segment.field("_exact").type),
        "_unsent": pa.array([sorted(unsent) or None], schema.segment.field("_unsent").type),
    }
    return pa.Table.from_arrays(
        [columns.get(each.name, rows.column(each.name)) for each in schema.segment],
        schema=schema.segment,
    )


def _encoded(schema: TableSchema, name: str, value: object) -> pa.Array:
    """Return a value as an array of its column's type; raise `CannotReplay` if it does not fit."""
    column = schema.column(name)
    try:
        array, unfit = column.type.to_arrow([value])
    except (HeadraceError, pa.ArrowException, TypeError, ValueError, ArithmeticError):
        unfit = [(0, "")]
    if unfit:
        raise CannotReplay(
            "The value does not fit its column",
            table=schema.table,
            column=name,
            type=str(column.type),
        )
    return array
