"""What is known of pipelines at work, put together for people and programs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.changelog.log import LogReader
from headrace.control.info import CopyInfo, PipelineInfo, TableInfo
from headrace.control.member import Member
from headrace.control.run import PipelineRun
from headrace.targets.target import Target


def pipeline_info(
    run: PipelineRun, log: LogReader, copies: Sequence[CopyInfo] = ()
) -> PipelineInfo:
    """Return what is known of a pipeline now; `copies` are those of its source under way."""
    tables = tuple(_table_info(member, run.target, copies) for member in run.members)
    counts = [table.rows for table in tables]
    delivery = run.delivery
    return PipelineInfo(
        name=run.name,
        source=run.source,
        table=", ".join(run.tables),
        target=run.target.traits.type,
        state=str(run.state),
        tables=tables,
        rows=None if None in counts else sum(count or 0 for count in counts),
        changes=delivery.changes,
        batches=delivery.batches,
        jobs=delivery.jobs,
        position=run.reached,
        lag_seconds=_lag(run, log),
        dead_letters=delivery.letter_count,
        error=run.error or (None if run.ready else run.yielding.why),
        hops=delivery.hops.quantiles(),
        set_aside=run.yielding.why,
        left_out=run.growing.left_out,
    )


def _table_info(member: Member, target: Target, copies: Sequence[CopyInfo]) -> TableInfo:
    return TableInfo(
        table=member.table,
        state=str(member.state),
        position=member.reached,
        baseline=member.baseline,
        rows=target.row_count(member.table),
        copy=next((copy for copy in copies if copy.table == member.table), None),
    )


def _lag(run: PipelineRun, log: LogReader) -> float:
    """Return the age of the oldest change in the log that is not yet applied."""
    found = [
        log.oldest_after(member.table, member.reached) for member in run.members if member.following
    ]
    waiting = [since for since in found if since is not None]
    return max(0.0, time.time() - min(waiting) / 1_000_000) if waiting else 0.0
