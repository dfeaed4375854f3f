"""
A history written down whole, and read back: what makes opening a long log quick.

It holds what the entries up to a number come to, no more: the steps that were not pruned,
and what is known of the tables. A log that is pruned can be opened without the entries that
it began with, and those can go.
"""

from __future__ import annotations

from typing import Any

from headrace.changelog.entry import Flush, Gap, KnownSchema, KnownTable, Owed, State
from headrace.changelog.history import Counts, History, Known, as_columns, as_table, pieces_of
from headrace.changelog.position import Position
from headrace.changelog.window import Snapshot, Window


def state_of(history: History, head: dict[str, Any]) -> State:
    """Return a history as the state at an entry; `head` is what all entries begin with."""
    return State(
        **{**head, "epoch": history.epoch, "term": history.term},
        end=str(history.end),
        lineage=history.lineage,
        origin=history.origin,
        first_origin=history.first_origin,
        source=history.source_position,
        high_time=history.high_time,
        baselines=history.baselines,
        counts=(history.counts.rows, history.counts.bytes, history.counts.flushes),
        floor=history.floor,
        gap=history.gap,
        tables=tuple(_table(name, known) for name, known in history.tables.items()),
        notes=dict(history.notes),
        markers=tuple(history.markers.items()),
        steps=tuple(history.steps),
        retired=tuple(history.retired),
    )


def history_of(state: State) -> History:
    """Return the history that a state was written from."""
    history = History()
    history.epoch, history.lineage, history.term = state.epoch, state.lineage, state.term
    history.origin, history.first_origin = state.origin, state.first_origin
    history.stand_at(state.end, state.source)
    history.high_time, history.baselines = state.high_time, state.baselines
    history.counts = Counts(*state.counts)
    history.floor, history.gap = state.floor, state.gap
    history.notes, history.markers = dict(state.notes), dict(state.markers)
    history.retired = list(state.retired)
    history.steps = list(state.steps)
    for table in state.tables:
        history.tables[table.table] = known = _known(table)
        files = {f.name: f for each in known.baselines.values() for f in each.files}
        history.size += sum(file.bytes for file in files.values())
    for step in history.steps:
        match step:
            case Flush():
                history.lasts.append(step.last)
                history.size += sum(file.bytes for file in step.files)
                for name, piece in pieces_of(step):
                    history.known(name).pieces.append(piece)
            case Gap():
                history.lasts.append(step.at)
                history.gaps.append(step)
                if history.gap is not None and step.entry == history.gap.entry:
                    history.gap = step
            case Owed():
                history.lasts.append(step.at)
                history.known(step.table).owes.append(step)
            case _:
                history.lasts.append(step.last)
    return history


def _table(name: str, known: Known) -> KnownTable:
    return KnownTable(
        table=name,
        table_id=known.table_id,
        schemas=tuple(
            KnownSchema(
                number, as_columns(schema), schema.key, schema.whole_before, number in known.late
            )
            for number, schema in known.schemas.items()
        ),
        latest=known.latest,
        current=known.current,
        missing=known.missing,
        owed=known.owed,
        usable=known.baseline.baseline if known.baseline else 0,
        baselines=tuple(known.baselines.values()),
        windows=tuple(
            (number, str(window.first), str(window.last), str(window.snapshot))
            for number, window in known.windows.items()
        ),
    )


def _known(table: KnownTable) -> Known:
    baselines = {each.baseline: each for each in table.baselines}
    return Known(
        table_id=table.table_id,
        schemas={
            each.schema_id: as_table(table.table, each.columns, each.key, each.whole_before)
            for each in table.schemas
        },
        latest=table.latest,
        current=table.current,
        # Of a state from before it said so, those that cannot be anything else.
        late={
            each.schema_id for each in table.schemas if each.late or each.schema_id > table.current
        },
        missing=table.missing,
        owed=table.owed,
        baseline=baselines.get(table.usable),
        baselines=baselines,
        windows={
            number: Window(Position.parse(first), Position.parse(last), Snapshot.parse(snapshot))
            for number, first, last, snapshot in table.windows
        },
    )
