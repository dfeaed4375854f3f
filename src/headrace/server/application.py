"""
HTTP/1.1: the Connect protocol, health, metrics, events and the files of the console.

An ASGI application. Requests and answers of the services are protobuf or JSON; protobuf goes to the
engine as it came, JSON is converted here. See https://connectrpc.com/docs/protocol. Requests may be
compressed by gzip; answers are not.

`http_request` has what is below a request: its connection, body and forms.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mimetypes
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from headrace.api import connect
from headrace.api.methods import LAREDO_PATHS, METHODS, Method
from headrace.api.services import Caller
from headrace.errors import (
    BadRequest,
    Forbidden,
    HeadraceError,
    Unauthenticated,
)
from headrace.server.audit import OK
from headrace.server.channel import CallFailure, Clients
from headrace.server.http_request import (
    FORMS,
    HttpRequest,
    MessageForm,
    Receive,
    Scope,
    Send,
    StalledReader,
    envelope,
    from_engine,
    inflated,
    last_envelope,
    to_engine,
    unwrapped,
)
from headrace.server.link import ended, failure, out_of_time
from headrace.server.security import Gate, request_headers

if TYPE_CHECKING:
    from headrace.server.link import EngineLink
    from headrace.server.settings import ServerSettings

_LONG = 64 << 10
"""Bytes; protobuf's library takes milliseconds to write so many as JSON."""

_MOST_PASSED = 1_000
_LONGEST_TIMEOUT = 10
"""Digits of the header `Connect-Timeout-Ms`."""

_LARGEST_LOGIN = 16 << 10
"""In bytes."""

_TEXT = "text/plain; charset=utf-8"
_POST = b"Send a POST request, with a message as its body.\n"

_HEARTBEAT_SECONDS = 15.0
"""Time between two lines of an idle stream of events: proxies end silent connections."""


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A file of the console."""

    body: bytes
    type: str
    tag: str


def pages(folder: Path) -> dict[str, ConsolePage]:
    """
    Return the files of the console by their paths in a URL.

    All are read once: a path that is not among them is not served, whatever it contains.
    """
    found = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        inside = file.resolve().is_relative_to(folder.resolve())  # not so a link to elsewhere
        if file.is_file() and inside and not file.name.startswith("."):
            body = file.read_bytes()
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            if kind.startswith("text/") or kind.endswith(("javascript", "json")):
                kind += "; charset=utf-8"
            tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
            found[f"/{file.relative_to(folder).as_posix()}"] = ConsolePage(body, kind, tag)
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


class Application:
    """The ASGI application."""

    def __init__(
        self,
        link: EngineLink,
        gate: Gate,
        settings: ServerSettings,
        files: Mapping[str, ConsolePage],
    ) -> None:
        self._link = link
        self._gate = gate
        self._limits = settings.limits
        self._files = files
        self._passed: set[tuple[object, ...]] = set()
        """The headers that say where a request comes from, as far as they are right."""

        self._aliases = LAREDO_PATHS if settings.compat == "laredo" else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        assert scope["type"] == "http"
        request = HttpRequest(scope, receive, send, self._limits.stalled_seconds)
        try:
            try:
                request.headers = request_headers(scope["headers"])
                await self._answer(request)
            except HeadraceError as error:
                if isinstance(error, Unauthenticated | Forbidden):
                    about = request.method or f"{scope['method']} {scope['path'][:100]}"
                    self._link.audit(about, error.code, request.caller, request.address)
                await request.fail(failure(error))
        except StalledReader:
            # Its reader takes nothing: a polite end would wait for it.
            self._link.stalled += 1
            request.connection.abort()

    async def _answer(self, request: HttpRequest) -> None:
        path = request.scope["path"]
        match request.scope["method"]:
            case "POST" if path == "/session":
                await self._log_in(request)
            case "DELETE" if path == "/session":
                await self._log_out(request)
            case "POST":
                await self._call(request, self._aliases.get(path, path))
            case "GET" | "HEAD" if path in METHODS or path == "/session":
                await request.answer(405, _POST, _TEXT, [(b"allow", b"POST")])
            case "GET" | "HEAD":
                await self._get(request, path)
            case _:
                await request.answer(405, b"", headers=[(b"allow", b"GET, HEAD, POST")])

    # --- who calls --------------------------------------------------------------------------------

    def _check(self, request: HttpRequest, *, page: bool = False) -> None:
        """Refuse what another site makes a browser send."""
        headers = request.headers
        named = (headers.get("host"), headers.get("origin"), headers.get("sec-fetch-site"))
        # A caller sends the same with each request, and to read them takes a while.
        if (*named, page) not in self._passed:
            self._gate.check_request(*named, page=page)
            if len(self._passed) >= _MOST_PASSED:
                self._passed.clear()
            self._passed.add((*named, page))

    def _caller(self, request: HttpRequest) -> Caller:
        certificate = request.connection.certificate
        return self._gate.caller(request.headers, request.address, certificate)

    async def _log_in(self, request: HttpRequest) -> None:
        self._check(request)
        try:
            # Not larger, because it is read before it is known who calls.
            body = await request.body(_LARGEST_LOGIN, self._limits.body_seconds)
            token = json.loads(body)["token"]
        except (ValueError, KeyError, TypeError, RecursionError):
            token = None
        if not isinstance(token, str):
            raise BadRequest('The request must be {"token": "…"}', remedy="Send a token as JSON.")
        login = self._gate.log_in(token, request.address)
        self._link.audit("Login", OK, login.caller, request.address)
        body = connect.message({"name": login.caller.name, "role": login.caller.role})
        await request.answer(200, body, headers=[(b"set-cookie", login.cookie.encode())])

    async def _log_out(self, request: HttpRequest) -> None:
        self._check(request)
        cookie = self._gate.log_out(request.headers).encode()
        await request.answer(200, b"{}", headers=[(b"set-cookie", cookie)])

    async def _body(self, request: HttpRequest) -> bytes:
        return await request.body(self._limits.largest_request, self._limits.body_seconds)

    # --- the services -----------------------------------------------------------------------------

    async def _call(self, request: HttpRequest, path: str) -> None:
        self._check(request)
        request.method = method = METHODS.get(path)
        if method is None:
            await request.fail(_unimplemented(BadRequest(f"Unknown method {path[:200]}")))
            return
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        form = FORMS.get(kind)
        if (
            form is None
            or form.streams is not method.streams
            or (form.is_protobuf and method.request is None)
        ):
            kinds = ", ".join(
                name
                for name, each in FORMS.items()
                if each.streams is method.streams
                and not (each.is_protobuf and method.request is None)
            )
            said = f"The header Content-Type must be one of: {kinds}\n".encode()
            await request.answer(415, said, _TEXT, [(b"accept-post", kinds.encode())])
            return
        request.form = form
        request.caller = caller = self._caller(request)
        self._gate.allow(caller, method)
        seconds = _seconds(request.headers.get("connect-timeout-ms"))
        coding = "connect-content-encoding" if method.streams else "content-encoding"
        named = request.headers.get(coding, "identity").lower()
        if named not in ("identity", "gzip"):
            error = BadRequest(
                f"Unknown compression {named[:32]}: identity and gzip are supported",
                remedy="Send requests without compression.",
            )
            await request.fail(_unimplemented(error))
            return
        body = await self._body(request)
        if method.streams:
            body, compressed = unwrapped(body)
            if compressed and named != "gzip":
                raise BadRequest("A message is compressed, and no header says how")
        else:
            compressed = named == "gzip"
        if compressed:
            body = inflated(body, self._limits.largest_request)
        if method.streams:
            await self._stream(request, method, form, caller, body, seconds)
        else:
            await self._unary(request, method, form, caller, body, seconds)

    async def _unary(
        self,
        request: HttpRequest,
        method: Method,
        form: MessageForm,
        caller: Caller,
        body: bytes,
        seconds: float | None,
    ) -> None:
        asked = await _converted(to_engine, method, form, body)
        task = asyncio.current_task()
        assert task is not None
        # A call that hangs must not be kept for a caller who has left.
        request.connection.when_lost(task.cancel)
        try:
            answer = await self._link.ask(method.path, caller, asked, seconds)
        except asyncio.CancelledError:
            if request.connection.is_lost:
                return
            raise
        finally:
            request.connection.when_lost(None)
        if isinstance(answer, CallFailure):
            await request.fail(answer)
        else:
            shown = await _converted(from_engine, method, form, answer)
            await request.answer(200, shown, form.kind)

    async def _stream(
        self,
        request: HttpRequest,
        method: Method,
        form: MessageForm,
        caller: Caller,
        body: bytes,
        seconds: float | None,
    ) -> None:
        asked = await _converted(to_engine, method, form, body)
        stream = self._link.open(method.path, caller, asked)
        if isinstance(stream, CallFailure):
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
                    end = failure(ended(caller.name))
                    break
                shown = [await _converted(from_engine, method, form, each) for each in messages]
                await request.write(b"".join(map(envelope, shown)))
            await request.write(last_envelope(end), more=False)
        finally:
            stream.close()
            gone.cancel()

    # --- what is asked for with GET ---------------------------------------------------------------

    async def _get(self, request: HttpRequest, path: str) -> None:
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
            await request.answer(404, b"There is nothing here.\n", _TEXT)

    async def _health(self, request: HttpRequest, name: str) -> None:
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
                await request.answer(404, b"There is nothing here.\n", _TEXT)
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
            message = "The server has received nothing from the engine for some seconds"
            silent = {"part": "engine", "name": "", "code": "engine_hangs", "message": message}
            return [{**silent, "since": None}]
        return list(check.get("reasons", ()))

    async def _metrics(self, request: HttpRequest) -> None:
        method = METHODS[f"{connect.SERVICE}Metrics"]
        caller = self._caller(request)
        self._gate.allow(caller, method)
        query = parse_qs(request.scope["query_string"].decode("latin-1"))
        asked = connect.message({"compat": query.get("compat") in (["1"], ["true"])})
        answer = await self._link.ask(method.path, caller, asked)
        if isinstance(answer, CallFailure):
            await request.fail(answer)
            return
        text = json.loads(answer)["text"] + "".join(_own_metrics(self._link.clients))
        kind = "text/plain; version=0.0.4; charset=utf-8"
        await request.answer(200, text.encode(), kind)

    async def _events(self, request: HttpRequest) -> None:
        caller = self._caller(request)
        caller.check_events()
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


OWN_METRICS = (
    ("connections", "gauge", "Connections over HTTP.", "connections"),
    ("requests_waiting", "gauge", "Requests that wait for the engine.", "requests"),
    ("streams", "gauge", "Open streams.", "streams"),
    ("requests_total", "counter", "Requests that the engine answered.", "answered"),
    ("request_errors_total", "counter", "Those of them that ended with an error.", "failed"),
    ("stalled_total", "counter", "Readers that took nothing and were disconnected.", "stalled"),
)
"""The metrics of the server's process: name, type, help, and the field of `Clients`."""


def _own_metrics(clients: Clients) -> Iterable[str]:
    for name, kind, about, field in OWN_METRICS:
        full = f"headrace_server_{name}"
        value = getattr(clients, field)
        yield f"# HELP {full} {about}\n# TYPE {full} {kind}\n{full} {value}\n"


def _lines(events: Any, place: int, found: Iterable[tuple[int, bytes]]) -> Iterable[bytes]:
    """Yield events as lines; before a gap, how many are missing."""
    for number, event in found:
        if number > place + 1:
            yield b'event: skipped\ndata: {"count": %d}\n\n' % (number - place - 1)
        yield b"id: %b\ndata: %b\n\n" % (events.name(number).encode(), event)
        place = number


async def _converted(
    convert: Callable[[Method, MessageForm, bytes], bytes],
    method: Method,
    form: MessageForm,
    data: bytes,
) -> bytes:
    """Convert a message; a long one on a thread, because other callers would wait for it."""
    if len(data) < _LONG or form.is_protobuf or method.request is None:
        return convert(method, form, data)
    return await asyncio.to_thread(convert, method, form, data)


def _unimplemented(error: HeadraceError) -> CallFailure:
    status, fields = connect.error_fields(error, "unimplemented")
    return CallFailure(status, connect.message(fields))


def _seconds(header: str | None) -> float | None:
    """Return how long a caller waits; None if it does not say."""
    if header is None:
        return None
    if not header.isdecimal() or len(header) > _LONGEST_TIMEOUT:
        raise BadRequest("The header Connect-Timeout-Ms must be a number of milliseconds")
    return int(header) / 1000
