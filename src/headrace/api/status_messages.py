"""
The status of an engine as messages of `headrace.v1`.

The words of states are those of the command line, next to the few that Laredo's messages have. As
in `messages`, nothing looks better than it is: a number that is not known is absent, and a pipeline
that is not ready is never just streaming.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from headrace.api.messages import source_fields
from headrace.changelog.position import ORIGIN
from headrace.engine.health import AT_WORK, CHECKS, pipeline_state, sentence, visible_lag
from headrace.errors import HeadraceError, InvalidConfiguration, TableError, UnknownIndex
from headrace.runtime.pipeline_run import MOST_ROWS
from headrace.targets.target import Readable
from headrace.v1 import oam_pb2, query_pb2
from headrace.v1.error_pb2 import Error

if TYPE_CHECKING:
    from headrace.changelog.position import Position
    from headrace.changelog.schema import TableSchema
    from headrace.engine.health import Health, HealthReason, ShownState
    from headrace.observe.counters import BatchTimes, OperationCounts
    from headrace.runtime.info import CopyInfo, PipelineInfo, SourceInfo, TableInfo
    from headrace.targets.target import ReadableTable


# --- plain values ---------------------------------------------------------------------------------


def timestamp(seconds: float | None) -> Timestamp | None:
    """Return a time given in seconds since 1970; None, which leaves a field absent, for None."""
    if seconds is None:
        return None
    whole = math.floor(seconds)
    # In microseconds: a float has no more digits than that.
    return Timestamp(seconds=whole, nanos=min(999_999, round((seconds - whole) * 1e6)) * 1_000)


def moment(time: datetime | None) -> Timestamp | None:
    """Return a time as a message."""
    if time is None:
        return None
    found = Timestamp()
    found.FromDatetime(time)
    return found


def duration(seconds: float | None) -> Duration | None:
    """Return a time span as a message; None, which leaves a field absent, for None."""
    if seconds is None:
        return None
    found = Duration()
    found.FromMicroseconds(round(seconds * 1e6))
    return found


def struct(fields: Mapping[str, Any]) -> Struct:
    """Return values of JSON as a message; integers must be exact as floats."""
    found = Struct()
    found.update(fields)
    return found


def plain(value: Value) -> Any:
    """Return a value of JSON; numbers without a fraction are integers."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "struct_value":
        return plain_fields(value.struct_value)
    if kind == "list_value":
        return [plain(each) for each in value.list_value.values]
    return None if kind in (None, "null_value") else getattr(value, kind)


def plain_fields(fields: Struct) -> dict[str, Any]:
    """Return the fields of a struct as values of JSON."""
    return {name: plain(value) for name, value in fields.fields.items()}


def text(value: object) -> str:
    """Return a text that a message can hold: half of a surrogate pair cannot be encoded."""
    return str(value).encode(errors="backslashreplace").decode()


def error_message(error: HeadraceError | None) -> Error | None:
    """Return an error, with all its errors if it stands for several."""
    if error is None:
        return None
    several = error.errors if isinstance(error, InvalidConfiguration) else ()
    return Error(
        code=error.code,
        message=text(error.message),
        remedy=text(error.remedy),
        facts={name: text(value) for name, value in error.facts.items()},
        errors=[found for each in several if (found := error_message(each))],
    )


def names(table: str) -> tuple[str, str]:
    """Return schema and table of a name such as `public.orders`; the schema may be empty."""
    schema, _, name = table.rpartition(".")
    return schema, name


def log_position(position: Position, source: SourceInfo | None) -> oam_pb2.LogPosition:
    """Return a position with its lineage, if it is one of the source's current epoch."""
    current = source is not None and position.epoch == source.end.epoch
    lineage = source.lineage if source is not None and current else None
    return oam_pb2.LogPosition(position=str(position), lineage=lineage or "")


def reason_message(reason: HealthReason) -> oam_pb2.Reason:
    """Return a part that is not as it should be."""
    return oam_pb2.Reason(
        part=reason.part,
        name=reason.name,
        code=reason.code,
        message=text(reason.message),
        since=timestamp(reason.since),
    )


def health_checks(health: Health) -> Iterator[oam_pb2.HealthCheck]:
    """Yield the three checks of an engine."""
    for name in CHECKS:
        check = getattr(health, name)
        yield oam_pb2.HealthCheck(
            name=name, ok=check.ok, reasons=map(reason_message, check.reasons)
        )


# --- sources --------------------------------------------------------------------------------------


def source_status(source: SourceInfo, *, ready: bool, rate: float | None) -> oam_pb2.SourceStatus:
    """Return one source; `rate` is in changes per second."""
    return oam_pb2.SourceStatus(
        source_id=source.name,
        source_type=source.kind,
        supports_resume=source.resumes,
        ordering_guarantee=source.ordering,
        current_position=source.source_position or "",
        acked_position=source.acknowledged_position or "",
        lag_bytes=source.lag_bytes or 0,
        lag_time=duration(source.lag_seconds),
        source_details=struct(source_fields(source)),
        state=source.state,
        phase=source.phase,
        since=timestamp(source.since),
        reason=text(source.reason),
        error=error_message(source.error),
        error_since=timestamp(source.error_since),
        end=log_position(source.end, source),
        acknowledged=None
        if source.acknowledged is None
        else log_position(source.acknowledged, source),
        captured=source.captured,
        rate_per_second=rate,
        lag_changes=source.lag_changes,
        current=duration(source.current_seconds),
        silence=duration(source.silence_seconds),
        recorder_pid=source.recorder_pid or 0,
        restarts=source.restarts,
        newest=timestamp(source.newest),
        started_at=timestamp(source.started),
        log_bytes=source.bytes,
        copies=map(table_copy, source.copies),
        retained=None
        if source.room is None
        else oam_pb2.Retained(
            used=source.room.used, limit=source.room.limit, pinned_by=source.room.pinned_by
        ),
        left_out=_errors(source.left_out),
        notices=[
            oam_pb2.Notice(
                number=each.number, time=timestamp(each.at), problem=error_message(each.problem)
            )
            for each in source.notices
        ],
        resets=source.resets,
        ready=ready,
        flushes=source.flushes,
    )


def table_copy(copy: CopyInfo) -> oam_pb2.TableCopy:
    """Return the progress of the copy of a table."""
    return oam_pb2.TableCopy(
        table=copy.table,
        rows=copy.rows,
        expected=copy.expected,
        elapsed=duration(copy.seconds),
        rows_per_second=copy.rows_per_s,
        left=duration(copy.left_seconds),
        waits=text(copy.waits),
    )


def _errors(errors: Mapping[str, HeadraceError]) -> dict[str, Error]:
    return {text(name): found for name, each in errors.items() if (found := error_message(each))}


# --- pipelines ------------------------------------------------------------------------------------

_STATES = {
    "waiting": oam_pb2.PIPELINE_STATE_INITIALIZING,
    "loading": oam_pb2.PIPELINE_STATE_BASELINING,
    "catching_up": oam_pb2.PIPELINE_STATE_BASELINING,
    "reloading": oam_pb2.PIPELINE_STATE_STREAMING,
    "streaming": oam_pb2.PIPELINE_STATE_STREAMING,
    "complete": oam_pb2.PIPELINE_STATE_STREAMING,
    "not_ready": oam_pb2.PIPELINE_STATE_STREAMING,
    "paused": oam_pb2.PIPELINE_STATE_PAUSED,
    "failed": oam_pb2.PIPELINE_STATE_ERROR,
    "stopped": oam_pb2.PIPELINE_STATE_STOPPED,
}


def laredo_state(state: str, *, error: bool = False, away: bool = False) -> oam_pb2.PipelineState:
    """
    Return the state of a pipeline in Laredo's words, given ours.

    `error` is whether it has an error of its own; `away`, whether its source is not read.
    """
    if state == "not_ready" and (error or away):
        return oam_pb2.PIPELINE_STATE_ERROR if error else oam_pb2.PIPELINE_STATE_INITIALIZING
    return _STATES[state]


def service_state(
    phase: str, sources: Iterable[SourceInfo], pipelines: Iterable[oam_pb2.PipelineStatus]
) -> oam_pb2.ServiceState:
    """Return the state of the engine: the worst of its parts."""
    if phase == "starting":
        return oam_pb2.SERVICE_STATE_STARTING
    shown = list(pipelines)
    states = {each.state for each in shown}
    if oam_pb2.PIPELINE_STATE_ERROR in states or any(each.state == "failed" for each in sources):
        return oam_pb2.SERVICE_STATE_ERROR
    for state, service in (
        (oam_pb2.PIPELINE_STATE_PAUSED, oam_pb2.SERVICE_STATE_PAUSED),
        (oam_pb2.PIPELINE_STATE_STOPPED, oam_pb2.SERVICE_STATE_PAUSED),
        (oam_pb2.PIPELINE_STATE_INITIALIZING, oam_pb2.SERVICE_STATE_STARTING),
        (oam_pb2.PIPELINE_STATE_BASELINING, oam_pb2.SERVICE_STATE_BASELINING),
    ):
        if state in states:
            return service
    if any(each.state_name == "reloading" for each in shown):
        return oam_pb2.SERVICE_STATE_RELOADING
    return oam_pb2.SERVICE_STATE_STREAMING


def pipeline_status(
    pipeline: PipelineInfo,
    source: SourceInfo | None,
    target: object,
    *,
    ready: bool,
    rate: float | None,
) -> oam_pb2.PipelineStatus:
    """Return one pipeline; `ready` is whether the engine says so, `rate` is per second."""
    shown = pipeline_state(pipeline, source, ready=ready)
    schema, table = names(pipeline.table) if len(pipeline.tables) == 1 else ("", pipeline.table)
    counts = pipeline.counts
    return oam_pb2.PipelineStatus(
        pipeline_id=pipeline.name,
        source_id=pipeline.source,
        schema=schema,
        table=table,
        target_type=pipeline.target,
        state=laredo_state(
            shown.state,
            error=pipeline.error is not None,
            away=source is None or source.error is not None or source.state not in AT_WORK,
        ),
        row_count=pipeline.rows or 0,
        inserts_applied=counts.inserts,
        updates_applied=counts.updates,
        deletes_applied=counts.deletes,
        truncates_applied=counts.truncates,
        last_change_at=timestamp(pipeline.last_change),
        error_message=text(sentence(pipeline.error, pipeline.name)),
        buffer_depth=0 if pipeline.applying is None else _int32(pipeline.applying.changes),
        buffer_capacity=MOST_ROWS,
        dead_letter_count=pipeline.dead_letters,
        position=log_position(pipeline.position, source),
        lag=duration(visible_lag(pipeline, source)),
        rate_per_second=rate,
        tables=[_table_status(each, source, target) for each in pipeline.tables],
        queryable=isinstance(target, Readable),
        ready=ready,
        **_why(shown),
        **_work(pipeline),
    )


def _why(shown: ShownState) -> dict[str, Any]:
    return {
        "state_name": shown.state,
        "reason": text(shown.reason),
        "condition": shown.code,
        "since": timestamp(shown.since),
    }


def _work(pipeline: PipelineInfo) -> dict[str, Any]:
    return {
        "error": error_message(pipeline.error),
        "error_since": timestamp(pipeline.error_since),
        "rows": pipeline.rows,
        "changes": pipeline.changes,
        "batches": pipeline.batches,
        "jobs": pipeline.jobs,
        "direct": pipeline.direct,
        "abandoned": pipeline.abandoned,
        "hops": [
            oam_pb2.HopLatency(hop=name, p50_ms=hop.p50_ms, p95_ms=hop.p95_ms, p99_ms=hop.p99_ms)
            for name, hop in pipeline.hops.items()
        ],
        "counts": operation_counts(pipeline.counts),
        "counted_since": timestamp(pipeline.counted_since),
        "started_at": timestamp(pipeline.started),
        "held_keys": pipeline.held_keys,
        "rows_given_up": dict(pipeline.rows_given_up),
        "notices": [error_message(each) for each in pipeline.notices],
        "set_aside": error_message(pipeline.set_aside),
        "releases": pipeline.releases,
        "opening": duration(pipeline.opening_seconds),
        "applying": None
        if pipeline.applying is None
        else oam_pb2.RunningBatch(
            changes=pipeline.applying.changes, elapsed=duration(pipeline.applying.seconds)
        ),
        "left_out": _errors(pipeline.left_out),
    }


def operation_counts(counts: OperationCounts) -> oam_pb2.OperationCounts:
    """Return what was delivered, by operation."""
    return oam_pb2.OperationCounts(
        inserts=counts.inserts,
        updates=counts.updates,
        deletes=counts.deletes,
        truncates=counts.truncates,
        baseline_rows=counts.baseline_rows,
        errors=counts.errors,
        dead_letters=counts.dead_letters,
    )


def batch_sample(batch: BatchTimes) -> oam_pb2.BatchSample:
    """Return a batch that was applied."""
    return oam_pb2.BatchSample(
        time=timestamp(batch.applied),
        rows=batch.changes,
        ms=round(1_000 * batch.seconds, 3),
        way=batch.way,
        # Not below zero: the first time is of another machine's clock.
        latency_ms=max(0.0, round(1_000 * (batch.applied - batch.committed), 3)),
    )


def _int32(number: int) -> int:
    return min(number, 2**31 - 1)


# --- tables ---------------------------------------------------------------------------------------


def _table_status(
    table: TableInfo, source: SourceInfo | None, target: object
) -> oam_pb2.TableStatus:
    return oam_pb2.TableStatus(
        table=table.table,
        state=table.state,
        reason=text(table.reason),
        position=log_position(table.position, source),
        baseline=table.baseline,
        rows=table.rows,
        rows_age=duration(table.rows_age or 0.0) if table.rows_age else None,
        copy=None if table.copy is None else table_copy(table.copy),
        counts=operation_counts(table.counts),
        last_change_at=timestamp(table.last_change),
        indexes=index_infos("", table.table, readable_table(target, table.table)),
    )


def readable_table(target: object, table: str) -> ReadableTable | None:
    """Return a table of a target; None if it cannot be read, or has no such table yet."""
    if isinstance(target, Readable) and table in target.tables:
        return target.table(table)
    return None


def index_infos(
    pipeline: str, name: str, table: ReadableTable | None
) -> Iterator[oam_pb2.IndexInfo]:
    """Yield the key, the lookup and the indexes of a table."""
    if table is None:
        return
    count = 0
    with suppress(TableError):
        count = table.count()
    found: list[tuple[str, str, Sequence[str]]] = [("key", "", table.key)]
    with suppress(UnknownIndex):
        found.append(("lookup", "", table.columns_of(None)))
    found += [("index", index, columns) for index, columns in table.indexes.items()]
    for kind, index, columns in found:
        yield oam_pb2.IndexInfo(
            name=index,
            fields=columns,
            unique=kind != "index",
            entry_count=count,
            pipeline=pipeline,
            table=name,
            kind=kind,
        )


def columns(schema: TableSchema | None, key: Sequence[str] = ()) -> list[query_pb2.Column]:
    """Return the columns of rows."""
    return [
        query_pb2.Column(name=each.name, type=str(each.type), key=each.name in key)
        for each in (schema.columns if schema else ())
    ]


def column_definitions(schema: TableSchema) -> Iterator[oam_pb2.ColumnDefinition]:
    """Yield the columns of a captured table, as its source declares them."""
    ordinals = {name: number for number, name in enumerate(schema.key, 1)}
    for number, column in enumerate(schema.columns, 1):
        yield oam_pb2.ColumnDefinition(
            ordinal_position=number,
            column_name=column.name,
            data_type=column.declared or str(column.type),
            not_null=not column.nullable,
            is_primary_key=column.name in ordinals,
            primary_key_ordinal=ordinals.get(column.name, 0),
            kind=str(column.type),
        )


def shown_position(position: Position) -> str:
    """Return a position as text; empty before every change."""
    return "" if position == ORIGIN else str(position)
