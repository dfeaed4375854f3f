import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RowForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_FORM_UNSPECIFIED: _ClassVar[RowForm]
    ROW_FORM_STRUCT: _ClassVar[RowForm]
    ROW_FORM_JSON: _ClassVar[RowForm]
    ROW_FORM_ARROW: _ClassVar[RowForm]
ROW_FORM_UNSPECIFIED: RowForm
ROW_FORM_STRUCT: RowForm
ROW_FORM_JSON: RowForm
ROW_FORM_ARROW: RowForm

class Column(_message.Message):
    __slots__ = ("name", "type", "key")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    key: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., key: _Optional[bool] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("schema", "table", "index_name", "key_values", "pipeline", "with_columns", "form")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    WITH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    index_name: str
    key_values: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    pipeline: str
    with_columns: bool
    form: RowForm
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., index_name: _Optional[str] = ..., key_values: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., pipeline: _Optional[str] = ..., with_columns: _Optional[bool] = ..., form: _Optional[_Union[RowForm, str]] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("found", "row", "columns", "position", "lineage", "pipeline", "json", "arrow", "more")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    row: _struct_pb2.Struct
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    position: str
    lineage: str
    pipeline: str
    json: bytes
    arrow: bytes
    more: bool
    def __init__(self, found: _Optional[bool] = ..., row: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., position: _Optional[str] = ..., lineage: _Optional[str] = ..., pipeline: _Optional[str] = ..., json: _Optional[bytes] = ..., arrow: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class LookupAllRequest(_message.Message):
    __slots__ = ("schema", "table", "index_name", "key_values", "pipeline", "with_columns", "form", "limit")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    WITH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    index_name: str
    key_values: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    pipeline: str
    with_columns: bool
    form: RowForm
    limit: int
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., index_name: _Optional[str] = ..., key_values: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., pipeline: _Optional[str] = ..., with_columns: _Optional[bool] = ..., form: _Optional[_Union[RowForm, str]] = ..., limit: _Optional[int] = ...) -> None: ...

class LookupAllResponse(_message.Message):
    __slots__ = ("rows", "columns", "position", "lineage", "pipeline", "json", "arrow", "more")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    position: str
    lineage: str
    pipeline: str
    json: bytes
    arrow: bytes
    more: bool
    def __init__(self, rows: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., position: _Optional[str] = ..., lineage: _Optional[str] = ..., pipeline: _Optional[str] = ..., json: _Optional[bytes] = ..., arrow: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class GetRowRequest(_message.Message):
    __slots__ = ("schema", "table", "primary_key", "pipeline", "key", "with_columns", "form")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WITH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    primary_key: int
    pipeline: str
    key: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    with_columns: bool
    form: RowForm
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., primary_key: _Optional[int] = ..., pipeline: _Optional[str] = ..., key: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., with_columns: _Optional[bool] = ..., form: _Optional[_Union[RowForm, str]] = ...) -> None: ...

class GetRowResponse(_message.Message):
    __slots__ = ("found", "row", "columns", "position", "lineage", "pipeline", "json", "arrow")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    found: bool
    row: _struct_pb2.Struct
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    position: str
    lineage: str
    pipeline: str
    json: bytes
    arrow: bytes
    def __init__(self, found: _Optional[bool] = ..., row: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., position: _Optional[str] = ..., lineage: _Optional[str] = ..., pipeline: _Optional[str] = ..., json: _Optional[bytes] = ..., arrow: _Optional[bytes] = ...) -> None: ...

class ListRowsRequest(_message.Message):
    __slots__ = ("schema", "table", "page_size", "page_token", "pipeline", "with_columns", "form")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    WITH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    page_size: int
    page_token: str
    pipeline: str
    with_columns: bool
    form: RowForm
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., pipeline: _Optional[str] = ..., with_columns: _Optional[bool] = ..., form: _Optional[_Union[RowForm, str]] = ...) -> None: ...

class ListRowsResponse(_message.Message):
    __slots__ = ("rows", "next_page_token", "total_count", "columns", "position", "lineage", "pipeline", "json", "arrow")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    next_page_token: str
    total_count: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    position: str
    lineage: str
    pipeline: str
    json: bytes
    arrow: bytes
    def __init__(self, rows: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total_count: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., position: _Optional[str] = ..., lineage: _Optional[str] = ..., pipeline: _Optional[str] = ..., json: _Optional[bytes] = ..., arrow: _Optional[bytes] = ...) -> None: ...

class CountRowsRequest(_message.Message):
    __slots__ = ("schema", "table", "pipeline")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    pipeline: str
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., pipeline: _Optional[str] = ...) -> None: ...

class CountRowsResponse(_message.Message):
    __slots__ = ("count", "position", "lineage", "pipeline")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    count: int
    position: str
    lineage: str
    pipeline: str
    def __init__(self, count: _Optional[int] = ..., position: _Optional[str] = ..., lineage: _Optional[str] = ..., pipeline: _Optional[str] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("schema", "table", "replay_existing", "pipeline", "with_columns", "markers")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_EXISTING_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    WITH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    replay_existing: bool
    pipeline: str
    with_columns: bool
    markers: bool
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., replay_existing: _Optional[bool] = ..., pipeline: _Optional[str] = ..., with_columns: _Optional[bool] = ..., markers: _Optional[bool] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("action", "position", "xid", "timestamp", "old_values", "new_values", "columns", "existing", "key", "lineage")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    OLD_VALUES_FIELD_NUMBER: _ClassVar[int]
    NEW_VALUES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    EXISTING_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    action: str
    position: str
    xid: int
    timestamp: _timestamp_pb2.Timestamp
    old_values: _struct_pb2.Struct
    new_values: _struct_pb2.Struct
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    existing: bool
    key: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    lineage: str
    def __init__(self, action: _Optional[str] = ..., position: _Optional[str] = ..., xid: _Optional[int] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., old_values: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., new_values: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., existing: _Optional[bool] = ..., key: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., lineage: _Optional[str] = ...) -> None: ...

class BatchLookupRequest(_message.Message):
    __slots__ = ("schema", "table", "index_name", "keys", "pipeline", "unique_lookup", "with_columns", "form")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_NAME_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_LOOKUP_FIELD_NUMBER: _ClassVar[int]
    WITH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    index_name: str
    keys: _containers.RepeatedCompositeFieldContainer[_struct_pb2.ListValue]
    pipeline: str
    unique_lookup: bool
    with_columns: bool
    form: RowForm
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., index_name: _Optional[str] = ..., keys: _Optional[_Iterable[_Union[_struct_pb2.ListValue, _Mapping]]] = ..., pipeline: _Optional[str] = ..., unique_lookup: _Optional[bool] = ..., with_columns: _Optional[bool] = ..., form: _Optional[_Union[RowForm, str]] = ...) -> None: ...

class BatchLookupResponse(_message.Message):
    __slots__ = ("rows", "counts", "columns", "position", "lineage", "pipeline", "json", "arrow")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    counts: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    position: str
    lineage: str
    pipeline: str
    json: bytes
    arrow: bytes
    def __init__(self, rows: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., counts: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., position: _Optional[str] = ..., lineage: _Optional[str] = ..., pipeline: _Optional[str] = ..., json: _Optional[bytes] = ..., arrow: _Optional[bytes] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("schema", "table", "pipeline")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    pipeline: str
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., pipeline: _Optional[str] = ...) -> None: ...

class TableIndex(_message.Message):
    __slots__ = ("name", "columns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("action", "position", "arrow", "truncate", "columns", "key", "indexes", "table", "pipeline", "lineage")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    action: str
    position: str
    arrow: bytes
    truncate: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    key: _containers.RepeatedScalarFieldContainer[str]
    indexes: _containers.RepeatedCompositeFieldContainer[TableIndex]
    table: str
    pipeline: str
    lineage: str
    def __init__(self, action: _Optional[str] = ..., position: _Optional[str] = ..., arrow: _Optional[bytes] = ..., truncate: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., key: _Optional[_Iterable[str]] = ..., indexes: _Optional[_Iterable[_Union[TableIndex, _Mapping]]] = ..., table: _Optional[str] = ..., pipeline: _Optional[str] = ..., lineage: _Optional[str] = ...) -> None: ...
