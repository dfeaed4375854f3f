"""What is known of pipelines at work, put together for people and programs."""

from __future__ import annotations

import time

from headrace.changelog.log import LogReader
from headrace.control.info import PipelineInfo, TableInfo
from headrace.control.member import Member
from headrace.control.run import PipelineRun
from headrace.targets.target import Target


def pipeline_info(run: PipelineRun, log: LogReader) -> PipelineInfo:
    """Return what is known of a pipeline now."""
    tables = tuple(_table_info(member, run.target) for member in run.members)
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
        error=run.error,
        hops=delivery.hops.quantiles(),
    )


def _table_info(member: Member, target: Target) -> TableInfo:
    return TableInfo(
        table=member.table,
        state=str(member.state),
        position=member.reached,
        baseline=member.baseline,
        rows=target.row_count(member.table),
    )


def _lag(run: PipelineRun, log: LogReader) -> float:
    """Return the age of the oldest change in the log that is not yet applied."""
    found = [
        log.oldest_after(member.table, member.reached) for member in run.members if member.following
    ]
    waiting = [since for since in found if since is not None]
    return max(0.0, time.time() - min(waiting) / 1_000_000) if waiting else 0.0
