"""What a replay is to do, found from the index alone: before anything is given to a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.capture.source import SourceTraits
from headrace.changelog.entry import Baseline, Gap
from headrace.changelog.log import LogReader
from headrace.changelog.position import Position
from headrace.changelog.ranges import Moment, Span, after, flushes, missing, span
from headrace.changelog.schema import TableName, TableSchema
from headrace.control.growing import own_tables
from headrace.errors import ChangesMissing, PositionExpired
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import result_schema
from headrace.targets.target import Loading, Target


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far a replay is; its changes are counted by whole flushes."""

    rows: int
    of_rows: int
    """Rows of baselines that were read, and how many there are."""

    changes: int
    of_changes: int
    """Changes that were read, and how many there are."""

    position: Position


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did."""

    pipeline: str
    tables: tuple[TableName, ...]
    target: Target
    first: Position
    """The first position that it looked at."""

    position: Position
    """Where it ended: the target is as of here."""

    baseline_rows: int
    changes: int
    """Rows of baselines, and of changes, that the target was given: filtered and transformed."""

    failed: int
    """Changes that could not be computed, and those behind them: the target has none of them."""

    rows: int | None
    """Rows that the target shows; None where that cannot be told."""

    seconds: float


@dataclass(slots=True)
class ReplayTable:
    """One table of a replay."""

    name: TableName
    schema: TableSchema
    output: TableSchema
    baseline: Baseline | None
    since: Position
    """Changes up to here are not for the target: they are in the baseline, or not asked for."""

    loading: Loading | None = None
    held: dict[bytes, Position] = field(default_factory=dict)
    """Keys whose changes are left out from there on: one of them could not be computed (R30)."""

    @property
    def nothing(self) -> pa.Table:
        return result_schema(self.output).empty_table()

    def emptied(self, at: Position) -> None:
        """Forget what was held for rows that are gone."""
        self.held = {key: since for key, since in self.held.items() if since > at}


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A part of the log, and the tables in it."""

    part: Span
    tables: dict[TableName, ReplayTable]
    rows: int
    """Of the baselines it begins with."""

    changes: int
    """Of the flushes that it has to look at."""


def planned(
    name: str,
    log: LogReader,
    pipeline: Pipeline,
    runner: Runner,
    traits: SourceTraits,
    start: Moment | None,
    end: Moment | None,
) -> ReplayPlan:
    """
    Return what is to be replayed between the two; None: the baseline, and the log's end.

    Raises `PositionExpired` where the log does not reach back so far, `ChangesMissing` where it
    has a gap in between, and what is wrong with the pipeline's steps.
    """
    taken = _taken(log, pipeline)
    part = span(log, list(taken), start, end)
    part = Span(part.first, min(part.last, log.end))
    baselines: dict[TableName, Baseline] = {}
    if start is None and pipeline.mode != "changes":
        baselines = {table: _baseline(log, table, part.last) for table in taken}
        first = min((each.window[0] for each in baselines.values()), default=part.after)
        part = Span(after(first), part.last)
    changes = _counted(name, log, taken, part)
    tables = {}
    for table, schema in taken.items():
        output = runner.prepare(pipeline, schema, traits)
        baseline = baselines.get(table)
        since = part.after if baseline is None else baseline.window[0]
        tables[table] = ReplayTable(table, schema, output, baseline, since)
    return ReplayPlan(part, tables, sum(each.rows for each in baselines.values()), changes)


def _taken(log: LogReader, pipeline: Pipeline) -> dict[TableName, TableSchema]:
    """Return the tables of a pipeline with the newest columns that the log knows of them."""
    for name in pipeline.tables:
        log.schema(name)
    # A table of which all was read late has no newest one, but a last one.
    known = {name: log.schema(name, log.columns(name, 0).schema or None) for name in log.tables()}
    return own_tables(pipeline, known)


def _baseline(log: LogReader, table: TableName, last: Position) -> Baseline:
    found = log.usable_baseline(table)
    if found is None:
        raise PositionExpired(
            "The log has no baseline of this table to begin with",
            remedy="Give a start to replay changes alone, or let an engine take a baseline.",
            table=table,
        )
    exact = found.window[1]
    # By commit: H may stand for any place within its last one.
    if (last.epoch, last.commit) < (exact.epoch, exact.commit):
        raise PositionExpired(
            "The log's baseline is newer than the end that was asked for",
            remedy="Give a start, too, to replay changes alone; or a later end.",
            table=table,
            asked=str(last),
            baseline=str(exact),
        )
    return found


def _counted(name: str, log: LogReader, taken: Mapping[TableName, TableSchema], part: Span) -> int:
    """Return how many changes there are; raise where some are missing."""
    count = 0
    for found in flushes(log, list(taken), part):
        if isinstance(found, Gap):
            raise _lost(name, position=found.at)
        count += found.rows
    for table in taken:
        if missing(log, table, part):
            raise _lost(name, table=table)
    return count


def _lost(name: str, **facts: object) -> ChangesMissing:
    return ChangesMissing(
        "The log lost changes within what is to be replayed",
        remedy="Replay what lies before that, or what lies behind it.",
        pipeline=name,
        **facts,
    )
