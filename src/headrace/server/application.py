"""
HTTP/1.1: the Connect protocol, health, metrics, events and the files of the console.

An ASGI application. Requests and answers of the services are protobuf or JSON; protobuf goes to the
engine as it came, JSON is converted here. See https://connectrpc.com/docs/protocol. Compressed
messages are refused, as the protocol allows: a small message may be a large one.

A reader that takes nothing for a while is disconnected. uvicorn would wait for it for ever; see
`AbortableProtocol`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mimetypes
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs

from google.protobuf import json_format
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.api import connect
from headrace.api.methods import LAREDO_PATHS, METHODS, Method
from headrace.api.services import Caller
from headrace.errors import (
    BadRequest,
    Forbidden,
    HeadraceError,
    LimitReached,
    RequestTimeout,
    Unauthenticated,
)
from headrace.server.audit import OK
from headrace.server.channel import Failure
from headrace.server.link import ended, failure, out_of_time
from headrace.server.security import Gate, certificate_name, request_headers

if TYPE_CHECKING:
    from headrace.server.link import EngineLink
    from headrace.server.settings import ServerLimits, ServerSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LONGEST_TIMEOUT = 10
"""Digits of the header `Connect-Timeout-Ms`."""

_HEARTBEAT_SECONDS = 15.0
"""Time between two lines of an idle stream of events: proxies end silent connections."""


@dataclass(frozen=True, slots=True)
class Page:
    """A file of the console."""

    body: bytes
    type: str
    tag: str


def pages(folder: Path) -> dict[str, Page]:
    """
    Return the files of the console by their paths in a URL.

    All are read once: a path that is not among them is not served, whatever it contains.
    """
    found = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file() and not any(part.startswith(".") for part in file.parts[-2:]):
            body = file.read_bytes()
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            if kind.startswith("text/") or kind.endswith(("javascript", "json")):
                kind += "; charset=utf-8"
            tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
            found[f"/{file.relative_to(folder).as_posix()}"] = Page(body, kind, tag)
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found


PAGE_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none';"
        b" form-action 'self'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


class AbortableProtocol(HttpToolsProtocol):
    """
    uvicorn's protocol, with limits for what comes before a request is handed to the application.

    It also hands the end of the connection to the application.
    """

    limits: ClassVar[ServerLimits]
    """Those of this process, set before the first connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = 0
        self._in_head = True
        self._head_timer = self.loop.call_later(self.limits.head_seconds, transport.abort)
        if len(self.connections) > self.limits.connections:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > self.limits.largest_head:
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._in_head, self._head = True, 0
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_timer.cancel()
        # The scope is handed to the application in `super`.
        peer = self.transport.get_extra_info("peercert")
        handed: Any = {"abort": self.transport.abort, "certificate": certificate_name(peer)}
        self.scope["extensions"] = handed
        super().on_headers_complete()


class Application:
    """The ASGI application."""

    def __init__(
        self,
        link: EngineLink,
        gate: Gate,
        settings: ServerSettings,
        files: Mapping[str, Page],
    ) -> None:
        self._link = link
        self._gate = gate
        self._limits = settings.limits
        self._files = files
        self._aliases = LAREDO_PATHS if settings.compat == "laredo" else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        assert scope["type"] == "http"
        request = _Request(scope, receive, send, self._limits.stalled_seconds)
        try:
            request.headers = request_headers(scope["headers"])
            await self._answer(request)
        except HeadraceError as error:
            why = failure(error)
            if isinstance(error, Unauthenticated | Forbidden):
                about = request.method or f"{scope['method']} {scope['path'][:100]}"
                self._link.audit(about, error.code, request.caller, request.address)
            await request.fail(why)
        except _Stalled:
            # Its reader takes nothing: a polite end would wait for it.
            self._link.stalled += 1
            scope["extensions"]["abort"]()

    async def _answer(self, request: _Request) -> None:
        path = request.scope["path"]
        match request.scope["method"]:
            case "POST" if path == "/session":
                await self._log_in(request)
            case "DELETE" if path == "/session":
                await self._log_out(request)
            case "POST":
                await self._call(request, self._aliases.get(path, path))
            case "GET" | "HEAD" if path in METHODS or path == "/session":
                await request.answer(405, b"", headers=[(b"allow", b"POST")])
            case "GET" | "HEAD":
                await self._get(request, path)
            case _:
                await request.answer(405, b"", headers=[(b"allow", b"GET, HEAD, POST")])

    # --- who calls --------------------------------------------------------------------------------

    def _check(self, request: _Request, *, page: bool = False) -> None:
        """Refuse what another site makes a browser send."""
        headers = request.headers
        self._gate.check_request(
            headers.get("host"), headers.get("origin"), headers.get("sec-fetch-site"), page=page
        )

    def _caller(self, request: _Request) -> Caller:
        certificate = request.scope["extensions"]["certificate"]
        return self._gate.caller(request.headers, request.address, certificate)

    async def _log_in(self, request: _Request) -> None:
        self._check(request)
        try:
            token = json.loads(await self._body(request))["token"]
        except (ValueError, KeyError, TypeError, RecursionError):
            token = None
        if not isinstance(token, str):
            raise BadRequest('The request must be {"token": "…"}', remedy="Send a token as JSON.")
        login = self._gate.log_in(token, request.address)
        self._link.audit("Login", OK, login.caller, request.address)
        body = connect.message({"name": login.caller.name, "role": login.caller.role})
        await request.answer(200, body, headers=[(b"set-cookie", login.cookie.encode())])

    async def _log_out(self, request: _Request) -> None:
        self._check(request)
        cookie = self._gate.log_out(request.headers).encode()
        await request.answer(200, b"{}", headers=[(b"set-cookie", cookie)])

    async def _body(self, request: _Request) -> bytes:
        return await request.body(self._limits.largest_request, self._limits.body_seconds)

    # --- the services -----------------------------------------------------------------------------

    async def _call(self, request: _Request, path: str) -> None:
        self._check(request)
        request.method = method = METHODS.get(path)
        if method is None:
            await request.fail(_unimplemented(BadRequest(f"Unknown method {path[:200]}")))
            return
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        form = _FORMS.get(kind)
        if (
            form is None
            or form.streams is not method.streams
            or (form.is_protobuf and method.request is None)
        ):
            kinds = ", ".join(
                name
                for name, each in _FORMS.items()
                if each.streams is method.streams
                and not (each.is_protobuf and method.request is None)
            )
            await request.answer(415, b"", headers=[(b"accept-post", kinds.encode())])
            return
        request.form = form
        request.caller = caller = self._caller(request)
        self._gate.allow(caller, method)
        seconds = _seconds(request.headers.get("connect-timeout-ms"))
        coding = "connect-content-encoding" if method.streams else "content-encoding"
        if (named := request.headers.get(coding, "identity").lower()) != "identity":
            error = BadRequest(
                f"Unknown compression {named[:32]}: only identity is supported",
                remedy="Send requests without compression.",
            )
            await request.fail(_unimplemented(error))
            return
        body = await self._body(request)
        if method.streams:
            await self._stream(request, method, form, caller, body, seconds)
        else:
            await self._unary(request, method, form, caller, body, seconds)

    async def _unary(
        self,
        request: _Request,
        method: Method,
        form: _Form,
        caller: Caller,
        body: bytes,
        seconds: float | None,
    ) -> None:
        answer = await self._link.ask(method.path, caller, _asked(method, form, body), seconds)
        if isinstance(answer, Failure):
            await request.fail(answer)
        else:
            await request.answer(200, _answered(method, form, answer), form.kind)

    async def _stream(
        self,
        request: _Request,
        method: Method,
        form: _Form,
        caller: Caller,
        body: bytes,
        seconds: float | None,
    ) -> None:
        asked = _asked(method, form, _unwrapped(body))
        stream = self._link.open(method.path, caller, asked)
        if isinstance(stream, Failure):
            await request.fail(stream)
            return
        await request.start(200, form.kind)
        gone = asyncio.ensure_future(request.disconnect())
        due = None if seconds is None else asyncio.get_running_loop().time() + seconds
        try:
            end = None
            while True:
                taking = asyncio.ensure_future(stream.messages())
                left = None if due is None else due - asyncio.get_running_loop().time()
                await asyncio.wait((taking, gone), timeout=left, return_when="FIRST_COMPLETED")
                if gone.done() or not taking.done():
                    taking.cancel()
                    if gone.done():
                        return
                    end = out_of_time()
                    break
                if not (messages := taking.result()):
                    end = stream.failure
                    break
                if not self._gate.is_valid(caller):
                    end = failure(ended(caller))
                    break
                await request.write(
                    b"".join(_envelope(_answered(method, form, each)) for each in messages)
                )
            await request.write(_last(end), more=False)
        finally:
            stream.close()
            gone.cancel()

    # --- what is asked for with GET ---------------------------------------------------------------

    async def _get(self, request: _Request, path: str) -> None:
        if path.startswith("/health/"):
            await self._health(request, path.removeprefix("/health/"))
        elif path == "/metrics":
            self._check(request)
            await self._metrics(request)
        elif path == "/events":
            self._check(request)
            await self._events(request)
        elif (page := self._files.get(path)) is not None:
            self._check(request, page=True)
            headers = [*PAGE_HEADERS, (b"etag", page.tag.encode())]
            if request.headers.get("if-none-match") == page.tag:
                await request.answer(304, b"", None, headers)
            else:
                await request.answer(200, page.body, page.type, headers)
        else:
            await request.answer(404, b"There is nothing here.\n", "text/plain; charset=utf-8")

    async def _health(self, request: _Request, name: str) -> None:
        link, state = self._link, self._link.state
        fields: dict[str, Any]
        check = state.health.get(name, {})
        match name:
            case "live":
                # A process that hangs for a moment must not be killed for it: see `ready`.
                ok = not link.hangs and bool(check.get("ok", True))
                fields = {"status": "ok" if ok else "failed"}
            case "ready":
                ok = link.is_ready
                fields = {"ready": ok}
            case "startup":
                ok = bool(check.get("ok"))
                fields = {"status": "started" if ok else "starting"}
            case _:
                await request.answer(404, b"There is nothing here.\n", "text/plain; charset=utf-8")
                return
        with suppress(HeadraceError):
            # Reasons have names of tables: they are for callers who may see them.
            self._check(request)
            self._caller(request)
            fields |= {
                "phase": "stopping" if link.draining is not None else state.phase,
                "reasons": self._reasons(check),
            }
        await request.answer(200 if ok else 503, connect.message(fields))

    def _reasons(self, check: Mapping[str, Any]) -> list[Any]:
        if self._link.hangs:
            message = "The server has not heard of the engine for some seconds"
            silent = {"part": "engine", "name": "", "code": "engine_hangs", "message": message}
            return [{**silent, "since": None}]
        return list(check.get("reasons", ()))

    async def _metrics(self, request: _Request) -> None:
        method = METHODS[f"{connect.SERVICE}Metrics"]
        caller = self._caller(request)
        self._gate.allow(caller, method)
        query = parse_qs(request.scope["query_string"].decode("latin-1"))
        asked = connect.message({"compat": query.get("compat") in (["1"], ["true"])})
        answer = await self._link.ask(method.path, caller, asked)
        if isinstance(answer, Failure):
            await request.fail(answer)
            return
        text = json.loads(answer)["text"].encode()
        await request.answer(200, text, "text/plain; version=0.0.4; charset=utf-8")

    async def _events(self, request: _Request) -> None:
        caller = self._caller(request)
        if caller.tables:
            # Events name tables, and a list of rights for them would have to be kept everywhere.
            raise BadRequest(
                "Events are of all tables, and this token is for some",
                remedy="Use a token without tables.",
            )
        events = self._link.events
        place = events.place(request.headers.get("last-event-id"))
        await request.start(200, "text/event-stream", [(b"cache-control", b"no-store")])
        await request.write(b": events of the engine\n\n")
        gone = asyncio.ensure_future(request.disconnect())
        try:
            while not gone.done() and self._gate.is_valid(caller):
                taking = asyncio.ensure_future(events.after(place))
                await asyncio.wait(
                    (taking, gone), timeout=_HEARTBEAT_SECONDS, return_when="FIRST_COMPLETED"
                )
                if not taking.done():
                    taking.cancel()
                    await request.write(b":\n\n")
                    continue
                if not (found := taking.result()):
                    break
                await request.write(b"".join(_lines(events, place, found)))
                place = found[-1][0]
            await request.write(b"", more=False)
        finally:
            gone.cancel()


def _lines(events: Any, place: int, found: Iterable[tuple[int, bytes]]) -> Iterable[bytes]:
    """Yield events as lines; before a gap, how many are missing."""
    for number, event in found:
        if number > place + 1:
            yield b'event: skipped\ndata: {"count": %d}\n\n' % (number - place - 1)
        yield b"id: %b\ndata: %b\n\n" % (events.name(number).encode(), event)
        place = number


class _Stalled(Exception):
    """The reader of an answer takes nothing."""


class _Request:
    """One request, and what is sent back."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stalled_seconds: float) -> None:
        self.scope = scope
        self.headers: dict[str, str] = {}
        # As soon as they are known:
        self.method: Method | None = None
        self.caller: Caller | None = None
        self.form: _Form | None = None

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
        data = b""
        with suppress(ValueError):
            if int(self.headers.get("content-length", 0)) > most:
                raise LimitReached(f"A request may have {most} bytes", most=most)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise RequestTimeout("The caller left before it had sent its request")
                    data += message.get("body", b"")
                    if len(data) > most:
                        raise LimitReached(f"A request may have {most} bytes", most=most)
                    if not message.get("more_body"):
                        return data
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
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*named, *headers]}
        )

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body; `_Stalled` if the reader takes nothing for too long."""
        sending = self._send({"type": "http.response.body", "body": data, "more_body": more})
        try:
            async with asyncio.timeout(self._stalled_seconds):
                await sending
        except TimeoutError:
            raise _Stalled from None

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

    async def fail(self, why: Failure) -> None:
        """Send an error; of a stream, as its last message."""
        if self.form is not None and self.form.streams:
            if not self._started:
                await self.start(200, self.form.kind)
            await self.write(_last(why), more=False)
        elif not self._started:
            headers = [(b"www-authenticate", b"Bearer")] if why.status == 401 else []
            await self.answer(why.status, why.error, headers=headers)


# --- the forms of messages ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """How a request and its answer are written."""

    kind: str
    is_protobuf: bool
    streams: bool


_FORMS = {
    form.kind: form
    for form in (
        _Form("application/proto", is_protobuf=True, streams=False),
        _Form("application/json", is_protobuf=False, streams=False),
        _Form("application/connect+proto", is_protobuf=True, streams=True),
        _Form("application/connect+json", is_protobuf=False, streams=True),
    )
}


def _asked(method: Method, form: _Form, body: bytes) -> bytes:
    """Return a request as the engine takes it: protobuf, or JSON where that is the only form."""
    if form.is_protobuf or method.request is None:
        return body
    try:
        message = json_format.Parse(body or b"{}", method.request())
        data = bytes(message.SerializeToString())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        # Its text names fields; a value is not repeated.
        text = str(error).partition(":")[0][:200]
        raise BadRequest(
            f"The request is not a {method.request.__name__} as JSON: {text}"
        ) from None
    return data


def _answered(method: Method, form: _Form, data: bytes) -> bytes:
    """Return an answer of the engine in the form that was asked for."""
    if form.is_protobuf or method.response is None:
        return data
    message = method.response.FromString(data)
    # Also what is zero or empty: whoever reads JSON by eye or in a script expects every field.
    fields = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    return json.dumps(fields, ensure_ascii=False).encode()


def _envelope(data: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


def _unwrapped(body: bytes) -> bytes:
    """Return the one message of a request for a stream."""
    if len(body) < 5 or int.from_bytes(body[1:5], "big") != len(body) - 5:
        raise BadRequest("A streaming request must be one message in an envelope")
    if body[0]:
        raise BadRequest("A streaming request must not be compressed, and have no flags")
    return body[5:]


def _last(why: Failure | None) -> bytes:
    """Return the end of a stream."""
    return _envelope(b"{}" if why is None else b'{"error":' + why.error + b"}", 2)


def _unimplemented(error: HeadraceError) -> Failure:
    status, fields = connect.error_fields(error, "unimplemented")
    return Failure(status, connect.message(fields))


def _seconds(header: str | None) -> float | None:
    """Return how long a caller waits; None if it does not say."""
    if header is None:
        return None
    if not header.isdecimal() or len(header) > _LONGEST_TIMEOUT:
        raise BadRequest("The header Connect-Timeout-Ms must be a number of milliseconds")
    return int(header) / 1000
