"""
One request over HTTP: its connection, its body, its answer, and the forms of their messages.

`AbortableProtocol` is uvicorn's, with the limits for what comes before a request is there; and the
way to disconnect a reader that takes nothing, which uvicorn would wait for without end.
`HttpRequest` reads and writes within the limits. `MessageForm` is how a method's messages are
written: protobuf or JSON, alone or in the envelopes of a stream.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from math import copysign
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from google.protobuf import json_format
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.api import connect
from headrace.errors import BadRequest, LimitReached, RequestTimeout
from headrace.server.security import certificate_name

if TYPE_CHECKING:
    from headrace.api.methods import Method
    from headrace.api.services import Caller
    from headrace.server.channel import CallFailure
    from headrace.server.settings import ServerLimits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_GZIP = 16 + zlib.MAX_WBITS

_LARGEST_INTEGER = 2**53
"""Up to it, a double has every integer."""

# --- a connection ---------------------------------------------------------------------------------


class ClientConnection(Protocol):
    """What a request needs of its connection, besides ASGI."""

    def abort(self) -> None: ...

    @property
    def certificate(self) -> str | None: ...
    @property
    def is_whole(self) -> bool: ...
    @property
    def is_free(self) -> bool: ...
    @property
    def is_lost(self) -> bool: ...
    def when_lost(self, call: Callable[[], object] | None) -> None: ...


class AbortableProtocol(HttpToolsProtocol):
    """
    uvicorn's protocol, with limits for what comes before a request is handed to the application.

    The application gets it with each request, as a `ClientConnection`.
    """

    limits: ClassVar[ServerLimits]
    """Those of this process, set before the first connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = 0
        self._in_head = True
        self._answered: RequestResponseCycle | None = None
        self._in_body = False
        self._body_ticks = self._unsent = self._quiet_ticks = 0
        self._certificate: tuple[str | None] | None = None
        self._when_lost: Callable[[], object] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._await_head()
        if len(self.connections) > self.limits.connections:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over_head()
        super().connection_lost(exc)
        if self._when_lost is not None:
            self._when_lost()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > self.limits.largest_head:
            self.send_400_response("The head of the request is too large.")
        elif self._in_head:
            # Only now: most requests come whole, and a timer costs as much as they do.
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._in_head, self._head = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._over_head()
        # The scope is handed to the application in `super`.
        handed: Any = {"connection": self}
        self.scope["extensions"] = handed
        self._in_body, self._body_ticks = True, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def tick(self) -> bool:
        """
        End a connection that has stopped; to be called each second.

        Returns whether its reader had taken nothing for too long.
        """
        if self._in_body:
            # The application has a limit for a body that it reads, and says so to the caller.
            # This one is for a body that nobody reads, because its request was refused.
            self._body_ticks += 1
            # The first tick may have come just after the headers.
            if self._body_ticks - 1 > 2 * self.limits.body_seconds:
                self.abort()
        unsent = self.transport.get_write_buffer_size()
        quiet = 0 < self._unsent <= unsent
        self._unsent, self._quiet_ticks = unsent, self._quiet_ticks + 1 if quiet else 0
        if self._quiet_ticks < self.limits.stalled_seconds:
            return False
        self.abort()
        return True

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self.abort)

    def _over_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def abort(self) -> None:
        """End the connection at once."""
        self._leave()
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, and close."""
        self._leave()
        super().send_400_response(msg)

    def _leave(self) -> None:
        """Let the answer that is being written end: the connection is closed before it is."""
        self.pipeline.clear()
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def certificate(self) -> str | None:
        """The common name of the caller's certificate."""
        if self._certificate is None:
            self._certificate = (certificate_name(self.transport.get_extra_info("peercert")),)
        return self._certificate[0]

    @property
    def is_lost(self) -> bool:
        """Whether the caller has left."""
        return self.transport.is_closing()

    def when_lost(self, call: Callable[[], object] | None) -> None:
        """Call this when the caller leaves; None to call nothing."""
        self._when_lost = call

    @property
    def is_whole(self) -> bool:
        """Whether the request has come as a whole."""
        return self.cycle is not None and not self.cycle.more_body

    @property
    def is_free(self) -> bool:
        """Whether all that was written has been taken, so that the next write does not wait."""
        return self.transport.get_write_buffer_size() == 0


# --- a request ------------------------------------------------------------------------------------


class StalledReader(Exception):
    """The reader of an answer takes nothing."""


class HttpRequest:
    """One request, and what is sent back."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stalled_seconds: float) -> None:
        self.scope = scope
        self.connection: ClientConnection = scope["extensions"]["connection"]
        self.headers: dict[str, str] = {}
        # As soon as they are known:
        self.method: Method | None = None
        self.caller: Caller | None = None
        self.form: MessageForm | None = None

        self._receive = receive
        self._send = send
        self._stalled_seconds = stalled_seconds
        self._started = False

    @property
    def address(self) -> str:
        """The address of the caller's connection."""
        client = self.scope.get("client")
        return client[0] if client else ""

    async def body(self, most: int, seconds: float) -> bytes:
        """Return the body; raises `LimitReached` and `RequestTimeout`."""
        if self.connection.is_whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                # What followed the request was none, and has ended the connection.
                raise _left()
            found: bytes = message["body"]
            if len(found) > most:
                raise LimitReached(f"A request may have {most} bytes", most=most)
            return found
        data = bytearray()
        with suppress(ValueError):
            if int(self.headers.get("content-length", 0)) > most:
                raise LimitReached(f"A request may have {most} bytes", most=most)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise _left()
                    data += message["body"]
                    if len(data) > most:
                        raise LimitReached(f"A request may have {most} bytes", most=most)
                    if not message["more_body"]:
                        return bytes(data)
        except TimeoutError:
            raise RequestTimeout(
                f"The request was not there after {seconds:g} seconds", seconds=seconds
            ) from None

    async def disconnect(self) -> None:
        """Wait until the caller leaves."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(
        self, status: int, kind: str | None, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send the head of an answer."""
        self._started = True
        named = [] if kind is None else [(b"content-type", kind.encode())]
        head = {"type": "http.response.start", "status": status, "headers": [*named, *headers]}
        await self._send_in_time(head)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body; `StalledReader` if the reader takes nothing for too long."""
        await self._send_in_time({"type": "http.response.body", "body": data, "more_body": more})

    async def _send_in_time(self, message: MutableMapping[str, Any]) -> None:
        if self.connection.is_free:
            await self._send(message)  # which does not wait
            return
        try:
            async with asyncio.timeout(self._stalled_seconds):
                await self._send(message)
        except TimeoutError:
            raise StalledReader from None

    async def answer(
        self,
        status: int,
        body: bytes,
        kind: str | None = connect.UNARY,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send a whole answer."""
        length = () if status == 304 else ((b"content-length", b"%d" % len(body)),)
        await self.start(status, kind, [*length, *headers])
        await self.write(b"" if self.scope["method"] == "HEAD" else body, more=False)

    async def fail(self, why: CallFailure) -> None:
        """Send an error; of a stream, as its last message."""
        if self.form is not None and self.form.streams:
            if not self._started:
                await self.start(200, self.form.kind)
            await self.write(last_envelope(why), more=False)
        elif not self._started:
            headers = [(b"www-authenticate", b"Bearer")] if why.status == 401 else []
            await self.answer(why.status, why.error, headers=headers)


def _left() -> RequestTimeout:
    return RequestTimeout("The caller left before its request was read")


# --- the forms of messages ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How a request and its answer are written."""

    kind: str
    is_protobuf: bool
    streams: bool


FORMS = {
    form.kind: form
    for form in (
        MessageForm("application/proto", is_protobuf=True, streams=False),
        MessageForm("application/json", is_protobuf=False, streams=False),
        MessageForm("application/connect+proto", is_protobuf=True, streams=True),
        MessageForm("application/connect+json", is_protobuf=False, streams=True),
    )
}


def to_engine(method: Method, form: MessageForm, body: bytes) -> bytes:
    """Return a request as the engine takes it: protobuf, or JSON where that is the only form."""
    if form.is_protobuf or method.request is None:
        return body
    try:
        message = json_format.Parse(body or b"{}", method.request())
        data = bytes(message.SerializeToString())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        # Its first line names fields; a value is not repeated.
        text = str(error).partition(":")[0].partition("\n")[0].rstrip(" .")[:200]
        fields = ", ".join(each.json_name for each in method.request.DESCRIPTOR.fields)
        raise BadRequest(
            f"The request is not a {method.request.__name__} as JSON: {text}",
            remedy=f"Its fields are {fields}." if fields else "It has no fields: send {}.",
        ) from None
    return data


def from_engine(method: Method, form: MessageForm, data: bytes) -> bytes:
    """Return an answer of the engine in the form that was asked for."""
    if form.is_protobuf or method.response is None:
        return data
    message = method.response.FromString(data)
    # Also what is zero or empty: whoever reads JSON by eye or in a script expects every field.
    fields = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    return json.dumps(_with_integers(fields), ensure_ascii=False).encode()


def _with_integers(value: Any) -> Any:
    """
    Return a message with its whole numbers written as such: 7, not 7.0.

    The numbers of a `Struct` are doubles, also the integers of a row.
    """
    if isinstance(value, float):
        is_short = value.is_integer() and abs(value) <= _LARGEST_INTEGER
        return int(value) if is_short and not (value == 0 and copysign(1, value) < 0) else value
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return value


def envelope(data: bytes, flags: int = 0) -> bytes:
    """Return one message of a stream."""
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


def unwrapped(body: bytes) -> tuple[bytes, bool]:
    """Return the one message of a request for a stream, and whether it is compressed."""
    if len(body) < 5 or body[0] > 1 or int.from_bytes(body[1:5], "big") != len(body) - 5:
        raise BadRequest("A streaming request must be one message in an envelope")
    return body[5:], body[0] == 1


def inflated(data: bytes, most: int) -> bytes:
    """Return what was compressed, which may not be more than a request that is not."""
    inflater = zlib.decompressobj(_GZIP)
    try:
        found = inflater.decompress(data, most + 1)
    except zlib.error:
        raise BadRequest("The request is not valid gzip") from None
    if len(found) > most:
        raise LimitReached(f"A request may have {most} bytes", most=most)
    if not inflater.eof:
        raise BadRequest("The request is not valid gzip: its end is missing")
    return found


def last_envelope(why: CallFailure | None) -> bytes:
    """Return the end of a stream."""
    return envelope(b"{}" if why is None else b'{"error":' + why.error + b"}", 2)
