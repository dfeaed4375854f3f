"""
`QueryService`: rows of the tables that pipelines hold in memory, for clients on the network.

A call takes one version of a table, and everything that it answers is of this version, also the
position. So a call never waits for the pipeline, and the pipeline never waits for a call.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import xxhash

from headrace.api import table_reads
from headrace.api.row_forms import (
    MOST_BYTES,
    NUMBERS,
    STRUCTS,
    KeyReader,
    columns_of,
    fill,
    given_value,
    mixed_columns,
    put_form,
    put_json,
    put_rows,
    rows_arrow,
)
from headrace.api.table_reads import shown_value
from headrace.changelog.schema import BATCH_META
from headrace.errors import (
    BadRequest,
    FellBehind,
    NotRunning,
    NotUnique,
    TooManyRows,
    UnknownIndex,
    UnknownPipeline,
    UnknownTable,
)
from headrace.tables import RowChanges
from headrace.v1 import query_pb2 as v1

if TYPE_CHECKING:
    from headrace.api.handlers import ControlService
    from headrace.api.services import Caller, ProtoStream, StreamCall, UnaryCall
    from headrace.changelog.schema import TableSchema
    from headrace.engine.engine import Engine
    from headrace.tables import TableChange
    from headrace.tables.version import TableVersion
    from headrace.targets.target import ReadableTable

MOST_ROWS: Final = 10_000
"""Rows, or keys, of one answer."""

MOST_OF_PAGE: Final = 1_000
USUAL_PAGE: Final = 100

_PATH: Final = "/headrace.v1.QueryService/"


# --- the calls ------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """The table that a call is about, as it is now."""

    pipeline: str
    name: str
    lineage: str
    table: ReadableTable
    version: TableVersion


_Answer = TypeVar(
    "_Answer",
    v1.LookupResponse,
    v1.LookupAllResponse,
    v1.GetRowResponse,
    v1.ListRowsResponse,
    v1.BatchLookupResponse,
)


class QueryCalls:
    """The calls of `QueryService` of one engine. Safe to call from several threads."""

    def __init__(self, engine: Engine, control: ControlService) -> None:
        self._engine = engine
        self._control = control
        self.unary: Mapping[str, UnaryCall] = {
            f"{_PATH}Lookup": self._lookup,
            f"{_PATH}LookupAll": self._lookup_all,
            f"{_PATH}GetRow": self._get_row,
            f"{_PATH}ListRows": self._list_rows,
            f"{_PATH}CountRows": self._count_rows,
            f"{_PATH}BatchLookup": self._batch_lookup,
        }
        self.streams: Mapping[str, StreamCall] = {
            f"{_PATH}Subscribe": self._subscribe,
            f"{_PATH}Follow": self._follow,
        }

    def _get_row(self, asked: v1.GetRowRequest, caller: Caller) -> v1.GetRowResponse:
        found = self._found(asked, caller)
        answer = v1.GetRowResponse()
        version = found.version
        key: Sequence[object] = (asked.primary_key,)
        if asked.key:
            key = [given_value(value) for value in asked.key]
        elif version.schema.column(found.table.key[0]).type.kind not in NUMBERS:
            # Only an integer fits into the field. That it finds nothing would say nothing.
            raise BadRequest(
                f"The key of {found.name} is not an integer",
                remedy="Give its values in the field `key`.",
                table=found.name,
                key=list(found.table.key),
            )
        for each in KeyReader(version.schema, found.table.key).meanings(key):
            if (row := version.get(each)) is not None:
                answer.found = True
                if asked.form in STRUCTS:
                    fill(answer.row, row, mixed_columns(version.schema))
                else:
                    put_form(answer, version, version.find([each]).tolist(), asked.form)
                break
        return _completed(answer, found, asked)

    def _lookup(self, asked: v1.LookupRequest, caller: Caller) -> v1.LookupResponse:
        found = self._found(asked, caller)
        answer = v1.LookupResponse()
        version = found.version
        given = [given_value(value) for value in asked.key_values]
        index, unique = asked.index_name or None, False
        if index is None:
            try:
                found.table.columns_of(None)
                unique = True
            except UnknownIndex:  # then the key is what finds one row
                pass
        if index is None and not unique:
            keys = KeyReader(version.schema, found.table.key).meanings(given)
            numbers = [at for at in version.find(keys).tolist() if at >= 0][:1]
        else:
            numbers = _indexed(found, index, given)
        if unique and len(numbers) > 1:
            raise NotUnique("Lookup found several rows", table=found.name, rows=len(numbers))
        answer.more = len(numbers) > 1
        if numbers:
            answer.found = True
            if asked.form in STRUCTS:
                fill(answer.row, version.row(numbers[0]), mixed_columns(version.schema))
            else:
                put_form(answer, version, numbers[:1], asked.form)
        return _completed(answer, found, asked)

    def _lookup_all(self, asked: v1.LookupAllRequest, caller: Caller) -> v1.LookupAllResponse:
        found = self._found(asked, caller)
        if not asked.index_name:
            raise BadRequest("index_name is required", table=found.name)
        if asked.limit < 0:
            raise BadRequest("The limit must not be negative")
        answer = v1.LookupAllResponse()
        given = [given_value(value) for value in asked.key_values]
        numbers = _indexed(found, asked.index_name, given)
        if asked.limit and len(numbers) > asked.limit:
            numbers, answer.more = numbers[: asked.limit], True
        _check_size(found, len(numbers))
        _put_all(answer, found, numbers, asked.form)
        return _completed(answer, found, asked)

    def _list_rows(self, asked: v1.ListRowsRequest, caller: Caller) -> v1.ListRowsResponse:
        found = self._found(asked, caller)
        if asked.page_size < 0:
            raise BadRequest("The page size must not be negative")
        size = min(asked.page_size or USUAL_PAGE, MOST_OF_PAGE)
        token = _PageToken(found)
        version, after = found.version, None
        by_key = version.ordered
        if asked.page_token:
            # A listing keeps its order, also if the table grows meanwhile.
            by_key, after = token.read(asked.page_token)
        page = version.page_by_key(after, size) if by_key else version.page(after, size)
        answer = v1.ListRowsResponse(total_count=version.count)
        given = put_rows(answer, version, page.rows.tolist(), asked.form)
        if given < len(page.rows):
            page = page.first(given)
        if page.after is not None:
            answer.next_page_token = token.text(page.after, by_key=by_key)
        return _completed(answer, found, asked)

    def _count_rows(self, asked: v1.CountRowsRequest, caller: Caller) -> v1.CountRowsResponse:
        found = self._found(asked, caller)
        return v1.CountRowsResponse(
            count=found.version.count,
            position=str(found.version.position),
            lineage=found.lineage,
            pipeline=found.pipeline,
        )

    def _batch_lookup(self, asked: v1.BatchLookupRequest, caller: Caller) -> v1.BatchLookupResponse:
        found = self._found(asked, caller)
        _check_size(found, len(asked.keys))
        answer = v1.BatchLookupResponse()
        given = [[given_value(value) for value in each.values] for each in asked.keys]
        if not asked.index_name and not asked.unique_lookup:
            numbers, counts = _by_keys(found, given)
        else:
            if asked.index_name and asked.unique_lookup:
                raise BadRequest("Give index_name or unique_lookup, not both")
            numbers, counts = [], []
            for values in given:
                some = _indexed(found, asked.index_name or None, values)
                numbers += some
                counts.append(len(some))
                _check_size(found, len(numbers))
        answer.counts.extend(counts)
        _put_all(answer, found, numbers, asked.form)
        return _completed(answer, found, asked)

    def _subscribe(self, asked: v1.SubscribeRequest, caller: Caller) -> ProtoStream:
        _, _, lineage, table = self._table(asked, caller)
        return Subscription(table, asked, lineage)

    def _follow(self, asked: v1.FollowRequest, caller: Caller) -> ProtoStream:
        return TableFeed(self._found(asked, caller))

    # --- the table that is meant --------------------------------------------------------------

    def _found(self, asked: Any, caller: Caller) -> _Found:
        pipeline, name, lineage, table = self._table(asked, caller)
        return _Found(pipeline, name, lineage, table, table.version())

    def _table(self, asked: Any, caller: Caller) -> tuple[str, str, str, ReadableTable]:
        """Return pipeline, name, lineage and table that a request names."""
        if self._control.phase == "starting":
            # Targets may not be open, and must not be read.
            raise NotRunning("The engine is still starting", remedy="Try again in a moment.")
        pipeline, name = asked.pipeline, asked.table
        if not name and not pipeline:
            raise BadRequest("Schema and table are required")
        if name and asked.schema:
            name = f"{asked.schema}.{name}"
        if name:
            # Before anything else: who may not see a table does not learn whether it is there.
            caller.check_table(name)
        targets = self._engine.readable_targets()
        for each in targets:
            if pipeline in ("", each.pipeline):
                if not name:
                    name, _ = table_reads.table_of(pipeline, each.target, None)
                    caller.check_table(name)
                try:
                    table = each.target.table(name)
                except UnknownTable:
                    continue
                return each.pipeline, name, each.lineage(name), table
        if pipeline and pipeline not in [each.pipeline for each in targets]:
            self._refuse(pipeline, name)
        raise UnknownPipeline(
            f"No indexed target found for {name}",
            remedy="Use a table of a pipeline whose target is indexed-memory: headrace status lists"
            " all. A table of a source that names its tables without a schema has none.",
            table=name,
        )

    def _refuse(self, pipeline: str, name: str) -> None:
        """Raise the error for a pipeline without tables that can be read."""
        try:
            target = self._engine.target(pipeline)
        except NotRunning:
            raise UnknownPipeline(f"There is no pipeline {pipeline}", pipeline=pipeline) from None
        table_reads.table_of(pipeline, target, name or None)


def _completed(answer: _Answer, found: _Found, asked: Any) -> _Answer:
    """Return an answer, with what every answer says about the table."""
    answer.position = str(found.version.position)
    answer.lineage = found.lineage
    answer.pipeline = found.pipeline
    if asked.with_columns:
        answer.columns.extend(columns_of(found.version.schema, found.table.key))
    return answer


def _check_size(found: _Found, count: int) -> None:
    if count > MOST_ROWS:
        raise TooManyRows(
            f"An answer has at most {MOST_ROWS:,} rows, and at most as many keys are asked for",
            table=found.name,
            count=count,
        )


def _put_all(answer: Any, found: _Found, numbers: Sequence[int], form: int) -> None:
    if put_rows(answer, found.version, numbers, form) < len(numbers):
        raise TooManyRows(
            f"An answer has at most {MOST_BYTES:,} bytes of rows",
            table=found.name,
            count=len(numbers),
        )


def _indexed(found: _Found, index: str | None, given: Sequence[object]) -> list[int]:
    """Return the rows with these values in an index, or in the unique lookup."""
    columns = table_reads.columns_of(found.table, index)
    number = found.table.index_number(index)
    version = found.version
    return [
        at
        for each in KeyReader(version.schema, columns).meanings(given)
        for at in version.find_all(number, each)
    ]


def _by_keys(found: _Found, given: Sequence[Sequence[object]]) -> tuple[list[int], Sequence[int]]:
    """Return the rows with these keys, and how many each of them has."""
    reader = KeyReader(found.version.schema, found.table.key)
    keys: list[tuple[object, ...]] = []
    ends: list[int] = []
    for values in given:
        keys += reader.meanings(values)
        ends.append(len(keys))
    numbers = found.version.find(keys)
    if len(keys) == len(given):
        there = numbers >= 0
        return numbers[there].tolist(), there.astype(np.int32).tolist()
    rows, counts, start = [], [], 0
    for end in ends:
        some = [at for at in numbers[start:end].tolist() if at >= 0][:1]
        rows += some
        counts.append(len(some))
        start = end
    return rows, counts


# --- pages ----------------------------------------------------------------------------------------

_TOKEN: Final = struct.Struct(">BqI")
_BY_HASH, _BY_KEY = 1, 2
"""Orders of a listing: the first byte of a token."""


class _PageToken:
    """
    Where the next page of a table begins, as text.

    Not a secret: it gives no right that the caller does not have. Its checksum only finds a token
    of another table, or of a table whose key has changed since.
    """

    def __init__(self, found: _Found) -> None:
        schema = found.version.schema
        key = [(name, str(schema.column(name).type)) for name in found.table.key]
        self._whose = repr((found.pipeline, found.name, key)).encode()

    def text(self, after: int, *, by_key: bool) -> str:
        order = _BY_KEY if by_key else _BY_HASH
        signed = after if by_key else after - 2**63
        data = _TOKEN.pack(order, signed, self._sum(order, signed))
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    def read(self, text: str) -> tuple[bool, int]:
        """Return whether the order is that of the keys, and what was last."""
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            order, signed, sum = _TOKEN.unpack(data)
        except (ValueError, struct.error):
            order = signed = sum = 0
        if order not in (_BY_HASH, _BY_KEY) or sum != self._sum(order, signed):
            raise BadRequest(
                "The page token does not belong to this table",
                remedy="Use next_page_token of an answer for the same table as it is, or begin"
                " again without a token: the key of the table may have changed.",
            )
        return order == _BY_KEY, signed if order == _BY_KEY else signed + 2**63

    def _sum(self, order: int, signed: int) -> int:
        return xxhash.xxh32_intdigest(self._whose + b"%d %d" % (order, signed))


# --- changes --------------------------------------------------------------------------------------


class Subscription:
    """
    The changes of a table, as messages. The reader begins when this is created.

    `close`, from any thread, ends it. A subscriber that does not keep up costs the pipeline
    nothing: its changes wait here, and if they are too many, it ends with an error.
    """

    def __init__(self, table: ReadableTable, asked: v1.SubscribeRequest, lineage: str) -> None:
        self._table = table
        self._asked = asked
        self._lineage = lineage
        self._reader = table.changes("rows" if asked.replay_existing else "now")
        self._schema: TableSchema | None = None
        self._mixed: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[v1.SubscribeResponse]:
        reader, markers = self._reader, self._asked.markers
        last, left = reader.begins, reader.existing
        if markers:
            yield self._message("BEGIN", str(last))
            if not left:
                yield self._message("LIVE", str(last))
        try:
            for change in reader:
                left -= 1
                last = change.position
                yield self._change(change, existing=left >= 0)
                if markers and left == 0:
                    yield self._message("LIVE", str(reader.begins))
        except FellBehind as error:
            raise FellBehind(
                "The subscriber is too slow",
                remedy="Subscribe again with replay_existing: the rows come first, and then every"
                " change. All changes up to the position were sent.",
                position=str(last),
                **error.facts,
            ) from None

    def close(self) -> None:
        self._reader.close()

    def _message(self, action: str, position: str) -> v1.SubscribeResponse:
        message = v1.SubscribeResponse(action=action, position=position, lineage=self._lineage)
        if self._table.schema is not self._schema:
            self._schema = schema = self._table.schema
            self._mixed = mixed_columns(schema)
            if self._asked.with_columns:
                message.columns.extend(columns_of(schema, self._table.key))
        return message

    def _change(self, change: TableChange, *, existing: bool) -> v1.SubscribeResponse:
        message = self._message(change.op.upper(), str(change.position))
        if existing:
            message.existing = True
        elif change.time is not None:
            message.timestamp.FromDatetime(change.time)
        if change.before is not None:
            fill(message.old_values, change.before, self._mixed)
        if change.after is not None:
            fill(message.new_values, change.after, self._mixed)
        for name, value in zip(self._table.key, change.key, strict=False):
            put_json(message.key.add(), shown_value(value, mixed=name in self._mixed))
        return message


_ROWS_A_MESSAGE: Final = 8_192


class TableFeed:
    """All rows of a table, and then the changes of each batch, as Arrow. See `Subscription`."""

    def __init__(self, found: _Found) -> None:
        self._table = found.table
        # Not `found` itself: its version would be kept in memory.
        self._names = found.pipeline, found.name, found.lineage
        while True:
            self._schema = self._table.schema
            self._reader = self._table.changes("rows")
            if self._table.schema is self._schema:
                break
            self._reader.close()  # loaded again with other columns, in between

    def __iter__(self) -> Iterator[v1.FollowResponse]:
        schema, reader = self._schema, self._reader
        key = self._table.key
        begin = v1.FollowResponse(action="BEGIN", columns=columns_of(schema, key), key=key)
        begin.pipeline, begin.table, begin.lineage = self._names
        indexes = dict(self._table.indexes)
        with suppress(UnknownIndex):
            indexes[""] = self._table.columns_of(None)
        for name, columns in indexes.items():
            begin.indexes.add(name=name, columns=columns)
        yield begin
        batches = reader.batches()
        rows = next(batches, None) if reader.existing else RowChanges.none()
        if rows is None:
            return  # closed
        for start in range(0, len(rows), _ROWS_A_MESSAGE):
            piece = rows.arrow(schema, start, start + _ROWS_A_MESSAGE)
            own = piece.select(range(BATCH_META, piece.num_columns))
            yield v1.FollowResponse(action="ROWS", arrow=rows_arrow(own))
        yield v1.FollowResponse(action="LIVE", position=str(reader.begins))
        for changes in batches:
            if changes.net:
                return  # loaded again: the difference has no positions of its own
            truncate = changes.truncate
            yield v1.FollowResponse(
                action="CHANGES",
                position=str(changes[-1].position),
                arrow=rows_arrow(changes.arrow(schema)),
                truncate="" if truncate is None else str(truncate),
            )

    def close(self) -> None:
        self._reader.close()
