import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from headrace.v1 import error_pb2 as _error_pb2
from headrace.v1 import query_pb2 as _query_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServiceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVICE_STATE_UNSPECIFIED: _ClassVar[ServiceState]
    SERVICE_STATE_STARTING: _ClassVar[ServiceState]
    SERVICE_STATE_BASELINING: _ClassVar[ServiceState]
    SERVICE_STATE_STREAMING: _ClassVar[ServiceState]
    SERVICE_STATE_PAUSED: _ClassVar[ServiceState]
    SERVICE_STATE_RELOADING: _ClassVar[ServiceState]
    SERVICE_STATE_ERROR: _ClassVar[ServiceState]

class PipelineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIPELINE_STATE_UNSPECIFIED: _ClassVar[PipelineState]
    PIPELINE_STATE_INITIALIZING: _ClassVar[PipelineState]
    PIPELINE_STATE_BASELINING: _ClassVar[PipelineState]
    PIPELINE_STATE_STREAMING: _ClassVar[PipelineState]
    PIPELINE_STATE_PAUSED: _ClassVar[PipelineState]
    PIPELINE_STATE_ERROR: _ClassVar[PipelineState]
    PIPELINE_STATE_STOPPED: _ClassVar[PipelineState]
SERVICE_STATE_UNSPECIFIED: ServiceState
SERVICE_STATE_STARTING: ServiceState
SERVICE_STATE_BASELINING: ServiceState
SERVICE_STATE_STREAMING: ServiceState
SERVICE_STATE_PAUSED: ServiceState
SERVICE_STATE_RELOADING: ServiceState
SERVICE_STATE_ERROR: ServiceState
PIPELINE_STATE_UNSPECIFIED: PipelineState
PIPELINE_STATE_INITIALIZING: PipelineState
PIPELINE_STATE_BASELINING: PipelineState
PIPELINE_STATE_STREAMING: PipelineState
PIPELINE_STATE_PAUSED: PipelineState
PIPELINE_STATE_ERROR: PipelineState
PIPELINE_STATE_STOPPED: PipelineState

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("state", "sources", "pipelines", "started_at", "last_change_at", "snapshot_status", "service", "pid", "version", "phase", "step", "ready", "spark_down", "observers", "health")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_CHANGE_AT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_STATUS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SPARK_DOWN_FIELD_NUMBER: _ClassVar[int]
    OBSERVERS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    state: ServiceState
    sources: _containers.RepeatedCompositeFieldContainer[SourceStatus]
    pipelines: _containers.RepeatedCompositeFieldContainer[PipelineStatus]
    started_at: _timestamp_pb2.Timestamp
    last_change_at: _timestamp_pb2.Timestamp
    snapshot_status: SnapshotSummary
    service: str
    pid: int
    version: str
    phase: str
    step: str
    ready: bool
    spark_down: _duration_pb2.Duration
    observers: _containers.RepeatedCompositeFieldContainer[ObserverStatus]
    health: _containers.RepeatedCompositeFieldContainer[HealthCheck]
    def __init__(self, state: _Optional[_Union[ServiceState, str]] = ..., sources: _Optional[_Iterable[_Union[SourceStatus, _Mapping]]] = ..., pipelines: _Optional[_Iterable[_Union[PipelineStatus, _Mapping]]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_change_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., snapshot_status: _Optional[_Union[SnapshotSummary, _Mapping]] = ..., service: _Optional[str] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., phase: _Optional[str] = ..., step: _Optional[str] = ..., ready: _Optional[bool] = ..., spark_down: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., observers: _Optional[_Iterable[_Union[ObserverStatus, _Mapping]]] = ..., health: _Optional[_Iterable[_Union[HealthCheck, _Mapping]]] = ...) -> None: ...

class ObserverStatus(_message.Message):
    __slots__ = ("name", "delivered", "dropped")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    name: str
    delivered: int
    dropped: int
    def __init__(self, name: _Optional[str] = ..., delivered: _Optional[int] = ..., dropped: _Optional[int] = ...) -> None: ...

class HealthCheck(_message.Message):
    __slots__ = ("name", "ok", "reasons")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ok: bool
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    def __init__(self, name: _Optional[str] = ..., ok: _Optional[bool] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("part", "name", "code", "message", "since")
    PART_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    part: str
    name: str
    code: str
    message: str
    since: _timestamp_pb2.Timestamp
    def __init__(self, part: _Optional[str] = ..., name: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SourceStatus(_message.Message):
    __slots__ = ("source_id", "source_type", "supports_resume", "ordering_guarantee", "current_position", "acked_position", "lag_bytes", "lag_time", "source_details", "state", "phase", "since", "reason", "error", "error_since", "end", "acknowledged", "captured", "rate_per_second", "lag_changes", "current", "silence", "recorder_pid", "restarts", "newest", "started_at", "log_bytes", "copies", "retained", "left_out", "notices", "resets", "ready", "flushes")
    class LeftOutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _error_pb2.Error
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_RESUME_FIELD_NUMBER: _ClassVar[int]
    ORDERING_GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACKED_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DETAILS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_SINCE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LAG_CHANGES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    RECORDER_PID_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    FLUSHES_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    source_type: str
    supports_resume: bool
    ordering_guarantee: str
    current_position: str
    acked_position: str
    lag_bytes: int
    lag_time: _duration_pb2.Duration
    source_details: _struct_pb2.Struct
    state: str
    phase: str
    since: _timestamp_pb2.Timestamp
    reason: str
    error: _error_pb2.Error
    error_since: _timestamp_pb2.Timestamp
    end: LogPosition
    acknowledged: LogPosition
    captured: int
    rate_per_second: float
    lag_changes: int
    current: _duration_pb2.Duration
    silence: _duration_pb2.Duration
    recorder_pid: int
    restarts: int
    newest: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    log_bytes: int
    copies: _containers.RepeatedCompositeFieldContainer[TableCopy]
    retained: Retained
    left_out: _containers.MessageMap[str, _error_pb2.Error]
    notices: _containers.RepeatedCompositeFieldContainer[Notice]
    resets: bool
    ready: bool
    flushes: int
    def __init__(self, source_id: _Optional[str] = ..., source_type: _Optional[str] = ..., supports_resume: _Optional[bool] = ..., ordering_guarantee: _Optional[str] = ..., current_position: _Optional[str] = ..., acked_position: _Optional[str] = ..., lag_bytes: _Optional[int] = ..., lag_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., source_details: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., state: _Optional[str] = ..., phase: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., error_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[LogPosition, _Mapping]] = ..., acknowledged: _Optional[_Union[LogPosition, _Mapping]] = ..., captured: _Optional[int] = ..., rate_per_second: _Optional[float] = ..., lag_changes: _Optional[int] = ..., current: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., silence: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., recorder_pid: _Optional[int] = ..., restarts: _Optional[int] = ..., newest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., log_bytes: _Optional[int] = ..., copies: _Optional[_Iterable[_Union[TableCopy, _Mapping]]] = ..., retained: _Optional[_Union[Retained, _Mapping]] = ..., left_out: _Optional[_Mapping[str, _error_pb2.Error]] = ..., notices: _Optional[_Iterable[_Union[Notice, _Mapping]]] = ..., resets: _Optional[bool] = ..., ready: _Optional[bool] = ..., flushes: _Optional[int] = ...) -> None: ...

class LogPosition(_message.Message):
    __slots__ = ("position", "lineage")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    position: str
    lineage: str
    def __init__(self, position: _Optional[str] = ..., lineage: _Optional[str] = ...) -> None: ...

class TableCopy(_message.Message):
    __slots__ = ("table", "rows", "expected", "elapsed", "rows_per_second", "left", "waits")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    table: str
    rows: int
    expected: int
    elapsed: _duration_pb2.Duration
    rows_per_second: float
    left: _duration_pb2.Duration
    waits: str
    def __init__(self, table: _Optional[str] = ..., rows: _Optional[int] = ..., expected: _Optional[int] = ..., elapsed: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rows_per_second: _Optional[float] = ..., left: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., waits: _Optional[str] = ...) -> None: ...

class Retained(_message.Message):
    __slots__ = ("used", "limit", "pinned_by")
    USED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PINNED_BY_FIELD_NUMBER: _ClassVar[int]
    used: int
    limit: int
    pinned_by: str
    def __init__(self, used: _Optional[int] = ..., limit: _Optional[int] = ..., pinned_by: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("number", "time", "problem")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: _timestamp_pb2.Timestamp
    problem: _error_pb2.Error
    def __init__(self, number: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., problem: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class PipelineStatus(_message.Message):
    __slots__ = ("pipeline_id", "source_id", "schema", "table", "target_type", "state", "row_count", "inserts_applied", "updates_applied", "deletes_applied", "truncates_applied", "last_change_at", "error_message", "buffer_depth", "buffer_capacity", "dead_letter_count", "state_name", "ready", "reason", "condition", "since", "error", "error_since", "rows", "position", "lag", "rate_per_second", "changes", "batches", "jobs", "direct", "abandoned", "hops", "tables", "counts", "counted_since", "started_at", "held_keys", "rows_given_up", "notices", "set_aside", "releases", "opening", "applying", "left_out", "queryable")
    class RowsGivenUpEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LeftOutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _error_pb2.Error
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TARGET_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    INSERTS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    UPDATES_APPLIED_FIELD_NUMBER: _ClassVar[int]
    DELETES_APPLIED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATES_APPLIED_FIELD_NUMBER: _ClassVar[int]
    LAST_CHANGE_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BUFFER_DEPTH_FIELD_NUMBER: _ClassVar[int]
    BUFFER_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_NAME_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_SINCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_SINCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    HELD_KEYS_FIELD_NUMBER: _ClassVar[int]
    ROWS_GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    APPLYING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    QUERYABLE_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    source_id: str
    schema: str
    table: str
    target_type: str
    state: PipelineState
    row_count: int
    inserts_applied: int
    updates_applied: int
    deletes_applied: int
    truncates_applied: int
    last_change_at: _timestamp_pb2.Timestamp
    error_message: str
    buffer_depth: int
    buffer_capacity: int
    dead_letter_count: int
    state_name: str
    ready: bool
    reason: str
    condition: str
    since: _timestamp_pb2.Timestamp
    error: _error_pb2.Error
    error_since: _timestamp_pb2.Timestamp
    rows: int
    position: LogPosition
    lag: _duration_pb2.Duration
    rate_per_second: float
    changes: int
    batches: int
    jobs: int
    direct: int
    abandoned: int
    hops: _containers.RepeatedCompositeFieldContainer[HopLatency]
    tables: _containers.RepeatedCompositeFieldContainer[TableStatus]
    counts: OperationCounts
    counted_since: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    held_keys: int
    rows_given_up: _containers.ScalarMap[str, int]
    notices: _containers.RepeatedCompositeFieldContainer[_error_pb2.Error]
    set_aside: _error_pb2.Error
    releases: int
    opening: _duration_pb2.Duration
    applying: RunningBatch
    left_out: _containers.MessageMap[str, _error_pb2.Error]
    queryable: bool
    def __init__(self, pipeline_id: _Optional[str] = ..., source_id: _Optional[str] = ..., schema: _Optional[str] = ..., table: _Optional[str] = ..., target_type: _Optional[str] = ..., state: _Optional[_Union[PipelineState, str]] = ..., row_count: _Optional[int] = ..., inserts_applied: _Optional[int] = ..., updates_applied: _Optional[int] = ..., deletes_applied: _Optional[int] = ..., truncates_applied: _Optional[int] = ..., last_change_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error_message: _Optional[str] = ..., buffer_depth: _Optional[int] = ..., buffer_capacity: _Optional[int] = ..., dead_letter_count: _Optional[int] = ..., state_name: _Optional[str] = ..., ready: _Optional[bool] = ..., reason: _Optional[str] = ..., condition: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., error_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rows: _Optional[int] = ..., position: _Optional[_Union[LogPosition, _Mapping]] = ..., lag: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rate_per_second: _Optional[float] = ..., changes: _Optional[int] = ..., batches: _Optional[int] = ..., jobs: _Optional[int] = ..., direct: _Optional[int] = ..., abandoned: _Optional[int] = ..., hops: _Optional[_Iterable[_Union[HopLatency, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[TableStatus, _Mapping]]] = ..., counts: _Optional[_Union[OperationCounts, _Mapping]] = ..., counted_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., held_keys: _Optional[int] = ..., rows_given_up: _Optional[_Mapping[str, int]] = ..., notices: _Optional[_Iterable[_Union[_error_pb2.Error, _Mapping]]] = ..., set_aside: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., releases: _Optional[int] = ..., opening: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., applying: _Optional[_Union[RunningBatch, _Mapping]] = ..., left_out: _Optional[_Mapping[str, _error_pb2.Error]] = ..., queryable: _Optional[bool] = ...) -> None: ...

class HopLatency(_message.Message):
    __slots__ = ("hop", "p50_ms", "p95_ms", "p99_ms")
    HOP_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P95_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    hop: str
    p50_ms: float
    p95_ms: float
    p99_ms: float
    def __init__(self, hop: _Optional[str] = ..., p50_ms: _Optional[float] = ..., p95_ms: _Optional[float] = ..., p99_ms: _Optional[float] = ...) -> None: ...

class OperationCounts(_message.Message):
    __slots__ = ("inserts", "updates", "deletes", "truncates", "baseline_rows", "errors", "dead_letters")
    INSERTS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATES_FIELD_NUMBER: _ClassVar[int]
    BASELINE_ROWS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    inserts: int
    updates: int
    deletes: int
    truncates: int
    baseline_rows: int
    errors: int
    dead_letters: int
    def __init__(self, inserts: _Optional[int] = ..., updates: _Optional[int] = ..., deletes: _Optional[int] = ..., truncates: _Optional[int] = ..., baseline_rows: _Optional[int] = ..., errors: _Optional[int] = ..., dead_letters: _Optional[int] = ...) -> None: ...

class RunningBatch(_message.Message):
    __slots__ = ("changes", "elapsed")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    changes: int
    elapsed: _duration_pb2.Duration
    def __init__(self, changes: _Optional[int] = ..., elapsed: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TableStatus(_message.Message):
    __slots__ = ("table", "state", "reason", "position", "baseline", "rows", "rows_age", "copy", "counts", "last_change_at", "indexes")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_AGE_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LAST_CHANGE_AT_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    table: str
    state: str
    reason: str
    position: LogPosition
    baseline: int
    rows: int
    rows_age: _duration_pb2.Duration
    copy: TableCopy
    counts: OperationCounts
    last_change_at: _timestamp_pb2.Timestamp
    indexes: _containers.RepeatedCompositeFieldContainer[IndexInfo]
    def __init__(self, table: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., position: _Optional[_Union[LogPosition, _Mapping]] = ..., baseline: _Optional[int] = ..., rows: _Optional[int] = ..., rows_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., copy: _Optional[_Union[TableCopy, _Mapping]] = ..., counts: _Optional[_Union[OperationCounts, _Mapping]] = ..., last_change_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., indexes: _Optional[_Iterable[_Union[IndexInfo, _Mapping]]] = ...) -> None: ...

class GetTableStatusRequest(_message.Message):
    __slots__ = ("schema", "table")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class GetTableStatusResponse(_message.Message):
    __slots__ = ("pipelines", "indexes")
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    pipelines: _containers.RepeatedCompositeFieldContainer[PipelineStatus]
    indexes: _containers.RepeatedCompositeFieldContainer[IndexInfo]
    def __init__(self, pipelines: _Optional[_Iterable[_Union[PipelineStatus, _Mapping]]] = ..., indexes: _Optional[_Iterable[_Union[IndexInfo, _Mapping]]] = ...) -> None: ...

class IndexInfo(_message.Message):
    __slots__ = ("name", "fields", "unique", "entry_count", "pipeline", "table", "kind")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    fields: _containers.RepeatedScalarFieldContainer[str]
    unique: bool
    entry_count: int
    pipeline: str
    table: str
    kind: str
    def __init__(self, name: _Optional[str] = ..., fields: _Optional[_Iterable[str]] = ..., unique: _Optional[bool] = ..., entry_count: _Optional[int] = ..., pipeline: _Optional[str] = ..., table: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class GetPipelineStatusRequest(_message.Message):
    __slots__ = ("pipeline_id", "batches")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    batches: int
    def __init__(self, pipeline_id: _Optional[str] = ..., batches: _Optional[int] = ...) -> None: ...

class GetPipelineStatusResponse(_message.Message):
    __slots__ = ("status", "indexes", "batches")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    status: PipelineStatus
    indexes: _containers.RepeatedCompositeFieldContainer[IndexInfo]
    batches: _containers.RepeatedCompositeFieldContainer[BatchSample]
    def __init__(self, status: _Optional[_Union[PipelineStatus, _Mapping]] = ..., indexes: _Optional[_Iterable[_Union[IndexInfo, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[BatchSample, _Mapping]]] = ...) -> None: ...

class BatchSample(_message.Message):
    __slots__ = ("time", "rows", "ms", "way", "latency_ms")
    TIME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    WAY_FIELD_NUMBER: _ClassVar[int]
    LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    rows: int
    ms: float
    way: str
    latency_ms: float
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rows: _Optional[int] = ..., ms: _Optional[float] = ..., way: _Optional[str] = ..., latency_ms: _Optional[float] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("tables", "pipeline_ids", "initial", "states_only")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_IDS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    STATES_ONLY_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedScalarFieldContainer[str]
    pipeline_ids: _containers.RepeatedScalarFieldContainer[str]
    initial: bool
    states_only: bool
    def __init__(self, tables: _Optional[_Iterable[str]] = ..., pipeline_ids: _Optional[_Iterable[str]] = ..., initial: _Optional[bool] = ..., states_only: _Optional[bool] = ...) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("timestamp", "service_state_change", "pipeline_state_change", "row_change", "source_state_change", "skipped")
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SERVICE_STATE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_STATE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    ROW_CHANGE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_STATE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    timestamp: _timestamp_pb2.Timestamp
    service_state_change: ServiceStateChange
    pipeline_state_change: PipelineStateChangeEvent
    row_change: RowChange
    source_state_change: SourceStateChange
    skipped: int
    def __init__(self, timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., service_state_change: _Optional[_Union[ServiceStateChange, _Mapping]] = ..., pipeline_state_change: _Optional[_Union[PipelineStateChangeEvent, _Mapping]] = ..., row_change: _Optional[_Union[RowChange, _Mapping]] = ..., source_state_change: _Optional[_Union[SourceStateChange, _Mapping]] = ..., skipped: _Optional[int] = ...) -> None: ...

class ServiceStateChange(_message.Message):
    __slots__ = ("old_state", "new_state", "ready")
    OLD_STATE_FIELD_NUMBER: _ClassVar[int]
    NEW_STATE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    old_state: ServiceState
    new_state: ServiceState
    ready: bool
    def __init__(self, old_state: _Optional[_Union[ServiceState, str]] = ..., new_state: _Optional[_Union[ServiceState, str]] = ..., ready: _Optional[bool] = ...) -> None: ...

class PipelineStateChangeEvent(_message.Message):
    __slots__ = ("pipeline_id", "old_state", "new_state", "old_name", "new_name", "error")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    OLD_STATE_FIELD_NUMBER: _ClassVar[int]
    NEW_STATE_FIELD_NUMBER: _ClassVar[int]
    OLD_NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    old_state: PipelineState
    new_state: PipelineState
    old_name: str
    new_name: str
    error: _error_pb2.Error
    def __init__(self, pipeline_id: _Optional[str] = ..., old_state: _Optional[_Union[PipelineState, str]] = ..., new_state: _Optional[_Union[PipelineState, str]] = ..., old_name: _Optional[str] = ..., new_name: _Optional[str] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class SourceStateChange(_message.Message):
    __slots__ = ("source_id", "event_type", "message", "old_state", "new_state")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OLD_STATE_FIELD_NUMBER: _ClassVar[int]
    NEW_STATE_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    event_type: str
    message: str
    old_state: str
    new_state: str
    def __init__(self, source_id: _Optional[str] = ..., event_type: _Optional[str] = ..., message: _Optional[str] = ..., old_state: _Optional[str] = ..., new_state: _Optional[str] = ...) -> None: ...

class RowChange(_message.Message):
    __slots__ = ("pipeline_id", "schema", "table", "action", "position", "xid", "count")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    schema: str
    table: str
    action: str
    position: str
    xid: int
    count: int
    def __init__(self, pipeline_id: _Optional[str] = ..., schema: _Optional[str] = ..., table: _Optional[str] = ..., action: _Optional[str] = ..., position: _Optional[str] = ..., xid: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class CheckReadyRequest(_message.Message):
    __slots__ = ("source", "table", "pipeline_id")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    source: str
    table: str
    pipeline_id: str
    def __init__(self, source: _Optional[str] = ..., table: _Optional[str] = ..., pipeline_id: _Optional[str] = ...) -> None: ...

class CheckReadyResponse(_message.Message):
    __slots__ = ("ready", "not_ready_reasons", "reasons")
    READY_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_REASONS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    not_ready_reasons: _containers.RepeatedScalarFieldContainer[str]
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    def __init__(self, ready: _Optional[bool] = ..., not_ready_reasons: _Optional[_Iterable[str]] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ...) -> None: ...

class GetSourceInfoRequest(_message.Message):
    __slots__ = ("source_id",)
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    def __init__(self, source_id: _Optional[str] = ...) -> None: ...

class GetSourceInfoResponse(_message.Message):
    __slots__ = ("sources",)
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[SourceInfo]
    def __init__(self, sources: _Optional[_Iterable[_Union[SourceInfo, _Mapping]]] = ...) -> None: ...

class SourceInfo(_message.Message):
    __slots__ = ("source_id", "source_type", "supports_resume", "ordering_guarantee", "current_position", "acked_position", "lag_bytes", "lag_time", "details", "status", "tables", "pipelines")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_RESUME_FIELD_NUMBER: _ClassVar[int]
    ORDERING_GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACKED_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_TIME_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    source_type: str
    supports_resume: bool
    ordering_guarantee: str
    current_position: str
    acked_position: str
    lag_bytes: int
    lag_time: _duration_pb2.Duration
    details: _struct_pb2.Struct
    status: SourceStatus
    tables: _containers.RepeatedScalarFieldContainer[str]
    pipelines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source_id: _Optional[str] = ..., source_type: _Optional[str] = ..., supports_resume: _Optional[bool] = ..., ordering_guarantee: _Optional[str] = ..., current_position: _Optional[str] = ..., acked_position: _Optional[str] = ..., lag_bytes: _Optional[int] = ..., lag_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., details: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., status: _Optional[_Union[SourceStatus, _Mapping]] = ..., tables: _Optional[_Iterable[str]] = ..., pipelines: _Optional[_Iterable[str]] = ...) -> None: ...

class ReloadTableRequest(_message.Message):
    __slots__ = ("source_id", "schema", "table", "wait")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    schema: str
    table: str
    wait: _duration_pb2.Duration
    def __init__(self, source_id: _Optional[str] = ..., schema: _Optional[str] = ..., table: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReloadTableResponse(_message.Message):
    __slots__ = ("accepted", "message", "tables")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    tables: _containers.RepeatedCompositeFieldContainer[TableReload]
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[TableReload, _Mapping]]] = ...) -> None: ...

class TableReload(_message.Message):
    __slots__ = ("source", "table", "done")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    source: str
    table: str
    done: bool
    def __init__(self, source: _Optional[str] = ..., table: _Optional[str] = ..., done: _Optional[bool] = ...) -> None: ...

class ReloadAllRequest(_message.Message):
    __slots__ = ("source_id", "wait", "pipeline")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    wait: _duration_pb2.Duration
    pipeline: str
    def __init__(self, source_id: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., pipeline: _Optional[str] = ...) -> None: ...

class ReloadAllResponse(_message.Message):
    __slots__ = ("accepted", "message", "tables")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    tables: _containers.RepeatedCompositeFieldContainer[TableReload]
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[TableReload, _Mapping]]] = ...) -> None: ...

class PauseSyncRequest(_message.Message):
    __slots__ = ("source_id", "pipeline")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    pipeline: str
    def __init__(self, source_id: _Optional[str] = ..., pipeline: _Optional[str] = ...) -> None: ...

class PauseSyncResponse(_message.Message):
    __slots__ = ("state", "pipelines")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    state: ServiceState
    pipelines: _containers.RepeatedCompositeFieldContainer[PipelineStatus]
    def __init__(self, state: _Optional[_Union[ServiceState, str]] = ..., pipelines: _Optional[_Iterable[_Union[PipelineStatus, _Mapping]]] = ...) -> None: ...

class ResumeSyncRequest(_message.Message):
    __slots__ = ("source_id", "pipeline")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    pipeline: str
    def __init__(self, source_id: _Optional[str] = ..., pipeline: _Optional[str] = ...) -> None: ...

class ResumeSyncResponse(_message.Message):
    __slots__ = ("state", "pipelines", "sources")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    state: ServiceState
    pipelines: _containers.RepeatedCompositeFieldContainer[PipelineStatus]
    sources: _containers.RepeatedCompositeFieldContainer[SourceStatus]
    def __init__(self, state: _Optional[_Union[ServiceState, str]] = ..., pipelines: _Optional[_Iterable[_Union[PipelineStatus, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[SourceStatus, _Mapping]]] = ...) -> None: ...

class ResetSourceRequest(_message.Message):
    __slots__ = ("source_id", "confirm", "drop_publication", "dry_run", "wait")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    DROP_PUBLICATION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    confirm: bool
    drop_publication: bool
    dry_run: bool
    wait: _duration_pb2.Duration
    def __init__(self, source_id: _Optional[str] = ..., confirm: _Optional[bool] = ..., drop_publication: _Optional[bool] = ..., dry_run: _Optional[bool] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ResetSourceResponse(_message.Message):
    __slots__ = ("accepted", "message", "details", "tables", "pipelines", "done")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    details: _struct_pb2.Struct
    tables: _containers.RepeatedScalarFieldContainer[str]
    pipelines: _containers.RepeatedScalarFieldContainer[str]
    done: bool
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ..., details: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., tables: _Optional[_Iterable[str]] = ..., pipelines: _Optional[_Iterable[str]] = ..., done: _Optional[bool] = ...) -> None: ...

class DrainReplicationRequest(_message.Message):
    __slots__ = ("schema", "table", "drain_deadline_seconds")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    drain_deadline_seconds: int
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., drain_deadline_seconds: _Optional[int] = ...) -> None: ...

class DrainReplicationResponse(_message.Message):
    __slots__ = ("accepted", "message", "drained_targets")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_TARGETS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    drained_targets: int
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ..., drained_targets: _Optional[int] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableConfig]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableConfig, _Mapping]]] = ...) -> None: ...

class TableConfig(_message.Message):
    __slots__ = ("schema", "table", "primary_key", "source_id", "source_type", "source_config", "target_type", "target_config", "pipeline", "state", "rows", "queryable", "indexes", "columns")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    TARGET_TYPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    QUERYABLE_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    primary_key: str
    source_id: str
    source_type: str
    source_config: _struct_pb2.Struct
    target_type: str
    target_config: _struct_pb2.Struct
    pipeline: str
    state: str
    rows: int
    queryable: bool
    indexes: _containers.RepeatedCompositeFieldContainer[IndexInfo]
    columns: _containers.RepeatedCompositeFieldContainer[_query_pb2.Column]
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., primary_key: _Optional[str] = ..., source_id: _Optional[str] = ..., source_type: _Optional[str] = ..., source_config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., target_type: _Optional[str] = ..., target_config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., pipeline: _Optional[str] = ..., state: _Optional[str] = ..., rows: _Optional[int] = ..., queryable: _Optional[bool] = ..., indexes: _Optional[_Iterable[_Union[IndexInfo, _Mapping]]] = ..., columns: _Optional[_Iterable[_Union[_query_pb2.Column, _Mapping]]] = ...) -> None: ...

class GetTableSchemaRequest(_message.Message):
    __slots__ = ("schema", "table")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class GetTableSchemaResponse(_message.Message):
    __slots__ = ("columns", "source")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[ColumnDefinition]
    source: str
    def __init__(self, columns: _Optional[_Iterable[_Union[ColumnDefinition, _Mapping]]] = ..., source: _Optional[str] = ...) -> None: ...

class ColumnDefinition(_message.Message):
    __slots__ = ("ordinal_position", "column_name", "data_type", "not_null", "is_primary_key", "primary_key_ordinal", "kind")
    ORDINAL_POSITION_FIELD_NUMBER: _ClassVar[int]
    COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NOT_NULL_FIELD_NUMBER: _ClassVar[int]
    IS_PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ordinal_position: int
    column_name: str
    data_type: str
    not_null: bool
    is_primary_key: bool
    primary_key_ordinal: int
    kind: str
    def __init__(self, ordinal_position: _Optional[int] = ..., column_name: _Optional[str] = ..., data_type: _Optional[str] = ..., not_null: _Optional[bool] = ..., is_primary_key: _Optional[bool] = ..., primary_key_ordinal: _Optional[int] = ..., kind: _Optional[str] = ...) -> None: ...

class CreateSnapshotRequest(_message.Message):
    __slots__ = ("tables", "user_meta")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    USER_META_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedScalarFieldContainer[str]
    user_meta: _struct_pb2.Struct
    def __init__(self, tables: _Optional[_Iterable[str]] = ..., user_meta: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class CreateSnapshotResponse(_message.Message):
    __slots__ = ("accepted", "snapshot_id", "message")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    snapshot_id: str
    message: str
    def __init__(self, accepted: _Optional[bool] = ..., snapshot_id: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("table", "limit")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    table: str
    limit: int
    def __init__(self, table: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotInfo]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[SnapshotInfo, _Mapping]]] = ...) -> None: ...

class SnapshotInfo(_message.Message):
    __slots__ = ("snapshot_id", "created_at", "format", "source_positions", "tables", "size_bytes", "store_type", "store_location", "user_meta")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORE_TYPE_FIELD_NUMBER: _ClassVar[int]
    STORE_LOCATION_FIELD_NUMBER: _ClassVar[int]
    USER_META_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    created_at: _timestamp_pb2.Timestamp
    format: str
    source_positions: _containers.RepeatedCompositeFieldContainer[SourcePositionEntry]
    tables: _containers.RepeatedCompositeFieldContainer[TableSnapshotSummary]
    size_bytes: int
    store_type: str
    store_location: str
    user_meta: _struct_pb2.Struct
    def __init__(self, snapshot_id: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., format: _Optional[str] = ..., source_positions: _Optional[_Iterable[_Union[SourcePositionEntry, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[TableSnapshotSummary, _Mapping]]] = ..., size_bytes: _Optional[int] = ..., store_type: _Optional[str] = ..., store_location: _Optional[str] = ..., user_meta: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SourcePositionEntry(_message.Message):
    __slots__ = ("source_id", "position")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    position: str
    def __init__(self, source_id: _Optional[str] = ..., position: _Optional[str] = ...) -> None: ...

class TableSnapshotSummary(_message.Message):
    __slots__ = ("schema", "table", "row_count", "target_type")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    TARGET_TYPE_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    row_count: int
    target_type: str
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., row_count: _Optional[int] = ..., target_type: _Optional[str] = ...) -> None: ...

class InspectSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class InspectSnapshotResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: SnapshotInfo
    def __init__(self, info: _Optional[_Union[SnapshotInfo, _Mapping]] = ...) -> None: ...

class RestoreSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id", "confirm", "skip_meta_check")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    SKIP_META_CHECK_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    confirm: bool
    skip_meta_check: bool
    def __init__(self, snapshot_id: _Optional[str] = ..., confirm: _Optional[bool] = ..., skip_meta_check: _Optional[bool] = ...) -> None: ...

class RestoreSnapshotResponse(_message.Message):
    __slots__ = ("accepted", "message", "user_meta", "warnings")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    USER_META_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    user_meta: _struct_pb2.Struct
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ..., user_meta: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class DeleteSnapshotResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: _Optional[bool] = ...) -> None: ...

class PruneSnapshotsRequest(_message.Message):
    __slots__ = ("keep", "table")
    KEEP_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    keep: int
    table: str
    def __init__(self, keep: _Optional[int] = ..., table: _Optional[str] = ...) -> None: ...

class PruneSnapshotsResponse(_message.Message):
    __slots__ = ("deleted_count",)
    DELETED_COUNT_FIELD_NUMBER: _ClassVar[int]
    deleted_count: int
    def __init__(self, deleted_count: _Optional[int] = ...) -> None: ...

class SnapshotSummary(_message.Message):
    __slots__ = ("enabled", "store_type", "last_snapshot_id", "last_snapshot_at", "next_scheduled_at", "snapshot_count")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    STORE_TYPE_FIELD_NUMBER: _ClassVar[int]
    LAST_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_SNAPSHOT_AT_FIELD_NUMBER: _ClassVar[int]
    NEXT_SCHEDULED_AT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    store_type: str
    last_snapshot_id: str
    last_snapshot_at: _timestamp_pb2.Timestamp
    next_scheduled_at: _timestamp_pb2.Timestamp
    snapshot_count: int
    def __init__(self, enabled: _Optional[bool] = ..., store_type: _Optional[str] = ..., last_snapshot_id: _Optional[str] = ..., last_snapshot_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_scheduled_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., snapshot_count: _Optional[int] = ...) -> None: ...

class DeadLetterSelection(_message.Message):
    __slots__ = ("table", "code", "before", "position", "key")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    table: str
    code: str
    before: str
    position: str
    key: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    def __init__(self, table: _Optional[str] = ..., code: _Optional[str] = ..., before: _Optional[str] = ..., position: _Optional[str] = ..., key: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("pipeline_id", "limit", "selection", "ended", "page_token")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    limit: int
    selection: DeadLetterSelection
    ended: bool
    page_token: str
    def __init__(self, pipeline_id: _Optional[str] = ..., limit: _Optional[int] = ..., selection: _Optional[_Union[DeadLetterSelection, _Mapping]] = ..., ended: _Optional[bool] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("entries", "total_count", "next_page_token")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DeadLetterEntry]
    total_count: int
    next_page_token: str
    def __init__(self, entries: _Optional[_Iterable[_Union[DeadLetterEntry, _Mapping]]] = ..., total_count: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeadLetterEntry(_message.Message):
    __slots__ = ("timestamp", "action", "position", "error_message", "change_data", "table", "lineage", "kind", "code", "facts", "key", "before", "after", "columns", "committed", "baseline", "ended_by", "ended", "note", "editable")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_DATA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    ENDED_BY_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    EDITABLE_FIELD_NUMBER: _ClassVar[int]
    timestamp: _timestamp_pb2.Timestamp
    action: str
    position: str
    error_message: str
    change_data: _struct_pb2.Struct
    table: str
    lineage: str
    kind: str
    code: str
    facts: _containers.ScalarMap[str, str]
    key: _struct_pb2.Struct
    before: _struct_pb2.Struct
    after: _struct_pb2.Struct
    columns: _containers.RepeatedCompositeFieldContainer[_query_pb2.Column]
    committed: _timestamp_pb2.Timestamp
    baseline: int
    ended_by: str
    ended: _timestamp_pb2.Timestamp
    note: str
    editable: bool
    def __init__(self, timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., action: _Optional[str] = ..., position: _Optional[str] = ..., error_message: _Optional[str] = ..., change_data: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., table: _Optional[str] = ..., lineage: _Optional[str] = ..., kind: _Optional[str] = ..., code: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., key: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., before: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., after: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[_query_pb2.Column, _Mapping]]] = ..., committed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., baseline: _Optional[int] = ..., ended_by: _Optional[str] = ..., ended: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., note: _Optional[str] = ..., editable: _Optional[bool] = ...) -> None: ...

class ShowDeadLetterRequest(_message.Message):
    __slots__ = ("pipeline_id", "position", "table", "key")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    position: str
    table: str
    key: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    def __init__(self, pipeline_id: _Optional[str] = ..., position: _Optional[str] = ..., table: _Optional[str] = ..., key: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ...) -> None: ...

class ShowDeadLetterResponse(_message.Message):
    __slots__ = ("entry", "waiting")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    entry: DeadLetterEntry
    waiting: _containers.RepeatedCompositeFieldContainer[DeadLetterEntry]
    def __init__(self, entry: _Optional[_Union[DeadLetterEntry, _Mapping]] = ..., waiting: _Optional[_Iterable[_Union[DeadLetterEntry, _Mapping]]] = ...) -> None: ...

class EditDeadLetterRequest(_message.Message):
    __slots__ = ("pipeline_id", "position", "table", "values", "dry_run", "note", "wait", "key")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    position: str
    table: str
    values: _struct_pb2.Struct
    dry_run: bool
    note: str
    wait: _duration_pb2.Duration
    key: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    def __init__(self, pipeline_id: _Optional[str] = ..., position: _Optional[str] = ..., table: _Optional[str] = ..., values: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., dry_run: _Optional[bool] = ..., note: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., key: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ...) -> None: ...

class EditDeadLetterResponse(_message.Message):
    __slots__ = ("outcomes", "done")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[DeadLetterOutcome]
    done: bool
    def __init__(self, outcomes: _Optional[_Iterable[_Union[DeadLetterOutcome, _Mapping]]] = ..., done: _Optional[bool] = ...) -> None: ...

class DeadLetterOutcome(_message.Message):
    __slots__ = ("table", "position", "outcome", "now", "code", "facts")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TABLE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    table: str
    position: str
    outcome: str
    now: str
    code: str
    facts: _containers.ScalarMap[str, str]
    def __init__(self, table: _Optional[str] = ..., position: _Optional[str] = ..., outcome: _Optional[str] = ..., now: _Optional[str] = ..., code: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReplayDeadLettersRequest(_message.Message):
    __slots__ = ("pipeline_id", "selection", "dry_run", "note", "wait")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    selection: DeadLetterSelection
    dry_run: bool
    note: str
    wait: _duration_pb2.Duration
    def __init__(self, pipeline_id: _Optional[str] = ..., selection: _Optional[_Union[DeadLetterSelection, _Mapping]] = ..., dry_run: _Optional[bool] = ..., note: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReplayDeadLettersResponse(_message.Message):
    __slots__ = ("replayed", "succeeded", "failed", "outcomes", "done")
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    replayed: int
    succeeded: int
    failed: int
    outcomes: _containers.RepeatedCompositeFieldContainer[DeadLetterOutcome]
    done: bool
    def __init__(self, replayed: _Optional[int] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[DeadLetterOutcome, _Mapping]]] = ..., done: _Optional[bool] = ...) -> None: ...

class PurgeDeadLettersRequest(_message.Message):
    __slots__ = ("pipeline_id", "selection", "dry_run", "note")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    selection: DeadLetterSelection
    dry_run: bool
    note: str
    def __init__(self, pipeline_id: _Optional[str] = ..., selection: _Optional[_Union[DeadLetterSelection, _Mapping]] = ..., dry_run: _Optional[bool] = ..., note: _Optional[str] = ...) -> None: ...

class PurgeDeadLettersResponse(_message.Message):
    __slots__ = ("purged", "tables", "done")
    PURGED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    purged: int
    tables: _containers.RepeatedCompositeFieldContainer[PurgedTable]
    done: bool
    def __init__(self, purged: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[PurgedTable, _Mapping]]] = ..., done: _Optional[bool] = ...) -> None: ...

class PurgedTable(_message.Message):
    __slots__ = ("table", "dead_letters", "keys")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    table: str
    dead_letters: int
    keys: int
    def __init__(self, table: _Optional[str] = ..., dead_letters: _Optional[int] = ..., keys: _Optional[int] = ...) -> None: ...

class StartReplayRequest(_message.Message):
    __slots__ = ("snapshot_id", "target_pipeline_id", "speed", "tables", "pipeline", "start", "end", "target")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    target_pipeline_id: str
    speed: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    pipeline: str
    start: str
    end: str
    target: str
    def __init__(self, snapshot_id: _Optional[str] = ..., target_pipeline_id: _Optional[str] = ..., speed: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., pipeline: _Optional[str] = ..., start: _Optional[str] = ..., end: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class StartReplayResponse(_message.Message):
    __slots__ = ("accepted", "replay_id", "message", "path")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    replay_id: str
    message: str
    path: str
    def __init__(self, accepted: _Optional[bool] = ..., replay_id: _Optional[str] = ..., message: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class GetReplayStatusRequest(_message.Message):
    __slots__ = ("replay_id",)
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    replay_id: str
    def __init__(self, replay_id: _Optional[str] = ...) -> None: ...

class GetReplayStatusResponse(_message.Message):
    __slots__ = ("replay_id", "state", "rows_replayed", "elapsed", "pipeline", "target", "rows", "of_rows", "changes", "of_changes", "position", "target_rows", "failed", "error", "started_at", "path", "replays")
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_REPLAYED_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    OF_ROWS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    OF_CHANGES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TARGET_ROWS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REPLAYS_FIELD_NUMBER: _ClassVar[int]
    replay_id: str
    state: str
    rows_replayed: int
    elapsed: _duration_pb2.Duration
    pipeline: str
    target: str
    rows: int
    of_rows: int
    changes: int
    of_changes: int
    position: str
    target_rows: int
    failed: int
    error: _error_pb2.Error
    started_at: _timestamp_pb2.Timestamp
    path: str
    replays: _containers.RepeatedCompositeFieldContainer[GetReplayStatusResponse]
    def __init__(self, replay_id: _Optional[str] = ..., state: _Optional[str] = ..., rows_replayed: _Optional[int] = ..., elapsed: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., pipeline: _Optional[str] = ..., target: _Optional[str] = ..., rows: _Optional[int] = ..., of_rows: _Optional[int] = ..., changes: _Optional[int] = ..., of_changes: _Optional[int] = ..., position: _Optional[str] = ..., target_rows: _Optional[int] = ..., failed: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., path: _Optional[str] = ..., replays: _Optional[_Iterable[_Union[GetReplayStatusResponse, _Mapping]]] = ...) -> None: ...

class StopReplayRequest(_message.Message):
    __slots__ = ("replay_id",)
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    replay_id: str
    def __init__(self, replay_id: _Optional[str] = ...) -> None: ...

class StopReplayResponse(_message.Message):
    __slots__ = ("stopped",)
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    stopped: bool
    def __init__(self, stopped: _Optional[bool] = ...) -> None: ...

class ExplainPipelineRequest(_message.Message):
    __slots__ = ("pipeline_id",)
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: str
    def __init__(self, pipeline_id: _Optional[str] = ...) -> None: ...

class ExplainPipelineResponse(_message.Message):
    __slots__ = ("way", "jobs_only", "plan", "jobs", "tasks", "last_job_ms", "rows_in", "rows_out", "bytes_in", "text")
    WAY_FIELD_NUMBER: _ClassVar[int]
    JOBS_ONLY_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_MS_FIELD_NUMBER: _ClassVar[int]
    ROWS_IN_FIELD_NUMBER: _ClassVar[int]
    ROWS_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    way: str
    jobs_only: str
    plan: str
    jobs: int
    tasks: int
    last_job_ms: float
    rows_in: int
    rows_out: int
    bytes_in: int
    text: str
    def __init__(self, way: _Optional[str] = ..., jobs_only: _Optional[str] = ..., plan: _Optional[str] = ..., jobs: _Optional[int] = ..., tasks: _Optional[int] = ..., last_job_ms: _Optional[float] = ..., rows_in: _Optional[int] = ..., rows_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class GetLogRequest(_message.Message):
    __slots__ = ("source_id",)
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    def __init__(self, source_id: _Optional[str] = ...) -> None: ...

class GetLogResponse(_message.Message):
    __slots__ = ("source_id", "floor", "end", "entries", "flushes", "segments", "rows", "bytes", "baselines", "baseline_bytes", "oldest", "newest", "cap", "percent", "pins")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FLUSHES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BASELINES_FIELD_NUMBER: _ClassVar[int]
    BASELINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    source_id: str
    floor: LogPosition
    end: LogPosition
    entries: int
    flushes: int
    segments: int
    rows: int
    bytes: int
    baselines: int
    baseline_bytes: int
    oldest: _timestamp_pb2.Timestamp
    newest: _timestamp_pb2.Timestamp
    cap: int
    percent: float
    pins: _containers.RepeatedCompositeFieldContainer[LogPin]
    def __init__(self, source_id: _Optional[str] = ..., floor: _Optional[_Union[LogPosition, _Mapping]] = ..., end: _Optional[_Union[LogPosition, _Mapping]] = ..., entries: _Optional[int] = ..., flushes: _Optional[int] = ..., segments: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., baselines: _Optional[int] = ..., baseline_bytes: _Optional[int] = ..., oldest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., newest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cap: _Optional[int] = ..., percent: _Optional[float] = ..., pins: _Optional[_Iterable[_Union[LogPin, _Mapping]]] = ...) -> None: ...

class LogPin(_message.Message):
    __slots__ = ("kind", "whose", "position")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHOSE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    whose: str
    position: str
    def __init__(self, kind: _Optional[str] = ..., whose: _Optional[str] = ..., position: _Optional[str] = ...) -> None: ...

class GetConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigurationResponse(_message.Message):
    __slots__ = ("files", "settings")
    FILES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedScalarFieldContainer[str]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    def __init__(self, files: _Optional[_Iterable[str]] = ..., settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("key", "value", "origin", "default")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: _struct_pb2.Value
    origin: str
    default: bool
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., origin: _Optional[str] = ..., default: _Optional[bool] = ...) -> None: ...

class EngineEvent(_message.Message):
    __slots__ = ("id", "time", "type", "source", "pipeline", "table", "text", "fields", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    time: _timestamp_pb2.Timestamp
    type: str
    source: str
    pipeline: str
    table: str
    text: str
    fields: _struct_pb2.Struct
    error: _error_pb2.Error
    def __init__(self, id: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., type: _Optional[str] = ..., source: _Optional[str] = ..., pipeline: _Optional[str] = ..., table: _Optional[str] = ..., text: _Optional[str] = ..., fields: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("after", "limit", "types", "source", "pipeline")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    types: _containers.RepeatedScalarFieldContainer[str]
    source: str
    pipeline: str
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ..., types: _Optional[_Iterable[str]] = ..., source: _Optional[str] = ..., pipeline: _Optional[str] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[EngineEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[EngineEvent, _Mapping]]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("after", "types", "source", "pipeline")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    after: str
    types: _containers.RepeatedScalarFieldContainer[str]
    source: str
    pipeline: str
    def __init__(self, after: _Optional[str] = ..., types: _Optional[_Iterable[str]] = ..., source: _Optional[str] = ..., pipeline: _Optional[str] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("event", "skipped")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    event: EngineEvent
    skipped: int
    def __init__(self, event: _Optional[_Union[EngineEvent, _Mapping]] = ..., skipped: _Optional[int] = ...) -> None: ...
