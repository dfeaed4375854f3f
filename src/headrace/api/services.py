"""
The front door of an engine's services, without a transport: bytes in and out.

A server on the network receives a call, checks who asks, and hands it over with its path. Messages
are protobuf; those of `ControlService` are JSON. Laredo's paths lead to the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace.api import connect
from headrace.api.methods import LAREDO_PATHS, METHODS, Method
from headrace.errors import BadRequest, Forbidden, HeadraceError, NotAvailable
from headrace.observe.logs import logger

if TYPE_CHECKING:
    from headrace.api.handlers import ControlService
    from headrace.engine.engine import Engine

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    """The name of the token; `local` without tokens."""

    role: str
    """read, operate or admin."""

    address: str
    tables: tuple[str, ...] = ()
    """The tables whose rows it may see; all if empty."""

    def sees(self, table: str) -> bool:
        """Whether it may see the rows of a table."""
        return not self.tables or table in self.tables

    def check_table(self, table: str) -> None:
        """Raise `Forbidden` if it may not see the rows of a table."""
        if not self.sees(table):
            raise Forbidden(f"The token {self.name} has no right to {table}", table=table)

    def check_events(self) -> None:
        """Raise `Forbidden` if it may not see events, which are of all tables."""
        if self.tables:
            raise Forbidden(
                f"Events are of all tables, and the token {self.name} has a right to some only",
                remedy="Use a token without tables.",
            )


class MessageStream(Protocol):
    """A sequence of answers as bytes; `close`, from any thread, ends it."""

    def __iter__(self) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class ProtoStream(Protocol):
    """A sequence of messages; `close`, from any thread, ends it."""

    def __iter__(self) -> Iterator[Message]: ...
    def close(self) -> None: ...


UnaryCall: TypeAlias = Callable[[Any, Caller], Message]
"""Answers the request of a caller."""

StreamCall: TypeAlias = Callable[[Any, Caller], ProtoStream]


class Services:
    """The services of one engine. Safe to call from several threads."""

    def __init__(self, engine: Engine, control: ControlService) -> None:
        # Imported here: the process of the server needs `Caller` alone, and no engine.
        from headrace.api.oam import OAMCalls
        from headrace.api.queries import QueryCalls

        self._engine = engine
        self._control = control
        oam, queries = OAMCalls(engine, control), QueryCalls(engine, control)
        self._unary: dict[str, UnaryCall] = {**oam.unary, **queries.unary}
        self._streams: dict[str, StreamCall] = {**oam.streams, **queries.streams}

    def call(self, path: str, body: bytes, caller: Caller) -> bytes:
        """Answer a call with one message; raises `HeadraceError`."""
        with _ReportsMistakes(path):
            method = self._method(path, caller, streams=False)
            if method.request is None:
                fields = connect.asked(body)
                self._check_rights(method, fields, caller)
                if method.name == "Me":
                    return connect.message(_who(caller))
                return connect.message(_known(self._control.unary, method.name, method)(fields))
            request = _parsed(method.request, body)
            return _serialized(_known(self._unary, method.path, method)(request, caller))

    def stream(self, path: str, body: bytes, caller: Caller) -> MessageStream:
        """Answer a call with a stream of messages; raises `HeadraceError`, also on the way."""
        with _ReportsMistakes(path):
            method = self._method(path, caller, streams=True)
            if method.request is None:
                fields = connect.asked(body)
                self._check_rights(method, fields, caller)
                verb = _known(self._control.streams, method.name, method)
                return _Bytes(path, verb(fields), connect.message)
            request = _parsed(method.request, body)
            found = _known(self._streams, method.path, method)(request, caller)
            return _Bytes(path, found, _serialized)

    def _method(self, path: str, caller: Caller, *, streams: bool) -> Method:
        method = METHODS.get(LAREDO_PATHS.get(path, path))
        if method is None:
            raise NotAvailable(f"There is no call {path}", path=path)
        method.check(caller.role)
        if method.name in _SHOW_EVENTS:
            caller.check_events()
        if method.part:
            raise method.missing()
        if method.streams is not streams:
            kind = "a stream" if method.streams else "one message"
            raise BadRequest(f"{method.name} answers with {kind}", path=path)
        return method

    def _check_rights(self, method: Method, fields: Mapping[str, Any], caller: Caller) -> None:
        """Raise `Forbidden` if a verb would show rows of a table that the caller may not see."""
        if not caller.tables or method.name not in _SHOW_ROWS:
            return
        pipeline, table = fields.get("pipeline"), fields.get("table")
        if table is None and method.name in _OF_TARGETS and isinstance(pipeline, str):
            # Imported here: the process of the server needs `Caller` alone, and no Arrow.
            from headrace.api import table_reads

            target = self._engine.target(pipeline)
            table, _ = table_reads.table_of(pipeline, target, None)
        if not isinstance(table, str):
            raise Forbidden(
                f"{method.name} shows rows of every table, and the token {caller.name} has a right"
                " to some tables only",
                remedy="Name a table, or use a token without tables.",
            )
        caller.check_table(table)


_SHOW_EVENTS = frozenset({"ListEvents", "WatchEvents", "Events"})

_OF_TARGETS = frozenset({"Query", "Rows", "Watch"})
"""Verbs of `ControlService` that show rows of a target."""

_SHOW_ROWS = _OF_TARGETS | {
    "DeadLetters",
    "DeadLetterRecords",
    "ReplayDeadLetters",
    "PurgeDeadLetters",
}
"""Those, and verbs that show or use rows of dead letters."""


def _who(caller: Caller) -> dict[str, Any]:
    return {"name": caller.name, "role": caller.role, "tables": list(caller.tables)}


def _known(calls: Mapping[str, Any], name: str, method: Method) -> Any:
    if (call := calls.get(name)) is None:
        raise NotAvailable(f"This engine does not answer {method.name}", path=method.path)
    return call


def _parsed(kind: type[Message], body: bytes) -> Message:
    try:
        request = kind.FromString(body)
    except DecodeError:
        raise BadRequest(f"The message is not a {kind.DESCRIPTOR.name}") from None
    # A condition that is not understood must not be left out: more would be purged than was asked.
    if unknown := sorted(set(_unknown(request))):
        raise BadRequest(
            f"{kind.DESCRIPTOR.name} has fields that this version does not know",
            remedy="The client may be newer than the engine: use the same version for both.",
            numbers=unknown,
        )
    return request


def _unknown(message: Message) -> Iterator[int]:
    """Yield the numbers of fields that are not known, in messages inside, too."""
    for each in UnknownFieldSet(message):
        yield each.field_number
    for field, value in message.ListFields():
        kind = field.message_type
        # Google's own messages, the values of rows and keys, are not ours to extend.
        if kind is None or kind.full_name.startswith("google.") or kind.GetOptions().map_entry:
            continue
        for inner in value if field.is_repeated else (value,):
            yield from _unknown(inner)


def _serialized(message: Message) -> bytes:
    return bytes(message.SerializeToString())


class _ReportsMistakes:
    """Logs what is not an error of ours, and raises one in its place: it must not look like one."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HeadraceError):
            _log.failed("call failed", error, code="internal", path=self._path)
            raise connect.internal_error(error) from error


class _Bytes:
    """A stream of answers, as bytes."""

    def __init__(self, path: str, answers: Any, encoded: Callable[[Any], bytes]) -> None:
        self._path = path
        self._answers = answers
        self._encoded = encoded
        self.close = answers.close

    def __iter__(self) -> Iterator[bytes]:
        with _ReportsMistakes(self._path):
            for each in self._answers:
                yield self._encoded(each)
