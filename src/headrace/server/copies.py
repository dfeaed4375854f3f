"""
Copies of tables in the server child, by `server.hold`: it answers queries of them itself.

So these queries do not wait for the engine's Python, which has other work. A copy follows its table
by the call `Follow`, as any client may, and has the same rows, key and indexes. It answers once it
has all rows. Whenever it has not, the engine answers: before that, and after the stream has failed.
If the table is loaded again, the copy stays as it is until another one has all rows.

An answer has the position of the copy, which may be a moment behind that of the engine.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from headrace.api.methods import METHODS
from headrace.api.queries import QueryCalls
from headrace.api.services import Caller
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import HeadraceError, NotRunning
from headrace.server.channel import CallFailure
from headrace.server.link import failure
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from headrace.v1 import query_pb2 as v1

if TYPE_CHECKING:
    from headrace.server.link import EngineLink
    from headrace.targets.target import Loading

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
"""Between two attempts to follow a table."""

_FOLLOW = "/headrace.v1.QueryService/Follow"
_SERVER = Caller("the server", "read", "")


class HeldTables:
    """The copies of one child. Used on its event loop alone."""

    def __init__(self, names: Sequence[str], link: EngineLink) -> None:
        """`names` are tables, as their sources name them."""
        self._names = names
        self._link = link
        self._live: dict[str, HeldTable] = {}
        # The same functions as in the engine, on the copies instead of its targets.
        engine: Any = SimpleNamespace(readable_targets=self._targets, target=self._target)
        control: Any = SimpleNamespace(phase="running")
        self._calls = QueryCalls(engine, control).unary

    async def run(self) -> None:
        """Keep all copies, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._names:
                tasks.create_task(self._keep(name))

    def answer(self, path: str, caller: Caller, body: bytes) -> bytes | CallFailure | None:
        """Answer a query of a copy; None for everything else, which is for the engine."""
        if (call := self._calls.get(path)) is None or (kind := METHODS[path].request) is None:
            return None
        try:
            asked: Any = kind.FromString(body)
        except DecodeError:
            return None
        name = f"{asked.schema}.{asked.table}" if asked.schema else asked.table
        copy = self._live.get(name)
        if copy is None or asked.pipeline not in ("", copy.pipeline):
            return None
        try:
            return bytes(call(asked, caller).SerializeToString())
        except HeadraceError as error:
            return failure(error)

    def _targets(self) -> tuple[HeldTable, ...]:
        return tuple(self._live.values())

    def _target(self, pipeline: str) -> None:
        raise NotRunning("No such pipeline", pipeline=pipeline)

    async def _keep(self, name: str) -> None:
        pause, last = FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                reason = await self._follow(name)
            except Exception as error:  # noqa: BLE001 - what is not kept up to date must not answer
                reason = f"{type(error).__name__}: {error}"
            if reason:
                self._live.pop(name, None)
                if reason != last:
                    print(f"No copy of {name}: {reason}", file=sys.stderr, flush=True)  # noqa: T201
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS
            last = reason
            await asyncio.sleep(pause)

    async def _follow(self, name: str) -> str:
        """Keep a copy until its stream ends; return why, empty if the table was loaded again."""
        asked = v1.FollowRequest(table=name).SerializeToString()
        stream = self._link.open(_FOLLOW, _SERVER, asked)
        if isinstance(stream, CallFailure):
            return _text(stream)
        copy: HeldTable | None = None
        try:
            while some := await stream.messages():
                for body in some:
                    message = v1.FollowResponse.FromString(body)
                    if copy is None:
                        copy = HeldTable(message)
                    elif copy.take(message):
                        self._live[name] = copy
                    # Each may take milliseconds, and queries are waiting.
                    await asyncio.sleep(0)
        finally:
            stream.close()
        return "" if stream.failure is None else _text(stream.failure)


class HeldTable:
    """One table, with the attributes of a `ReadableTarget`."""

    def __init__(self, begin: v1.FollowResponse) -> None:
        columns = tuple(
            Column(each.name, ValueType.parse(each.type), number)
            for number, each in enumerate(begin.columns, 1)
        )
        indexes = {each.name: tuple(each.columns) for each in begin.indexes}
        self.pipeline = begin.pipeline
        self._table = begin.table
        self._lineage = begin.lineage
        self.target = memory(lookup=indexes.pop("", None), indexes=indexes)
        self.target.open({begin.table: TableSchema(begin.table, columns, tuple(begin.key))}, {})
        self._loading: Loading | None = self.target.load(begin.table, 0)

    def lineage(self, _table: str) -> str:
        """Return the lineage of its positions."""
        return self._lineage

    def take(self, message: v1.FollowResponse) -> bool:
        """Take the next message of the stream; return whether the copy has become live."""
        if message.action == "CHANGES":
            self._write(message)
        elif self._loading is not None and message.action == "ROWS":
            self._loading.write(_arrow(message))
        elif self._loading is not None and message.action == "LIVE":
            self._loading.switch(Position.parse(message.position))
            self._loading = None
            return True
        return False

    def _write(self, message: v1.FollowResponse) -> None:
        at = Position.parse(message.position)
        truncates = {self._table: Position.parse(message.truncate)} if message.truncate else {}
        rows = {self._table: _arrow(message)}
        self.target.write(Batch(message.position, at.epoch, at, at, rows, truncates))


def _arrow(message: v1.FollowResponse) -> pa.Table:
    return pa.ipc.open_stream(message.arrow).read_all()


def _text(failure: CallFailure) -> str:
    return str(json.loads(failure.error).get("message", "")) or "the stream failed"
