"""
Both sides of a server in one process: real frames on real socket pairs, and no child.

`joined` runs a test on an event loop. The engine's side answers by the functions that a test gives,
as `Services` would.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from headrace.api.services import Caller
from headrace.server.answers import Answers
from headrace.server.application import Application, ConsolePage
from headrace.server.audit import AuditEntry
from headrace.server.channel import EngineReport, FrameChannel, FrameKind, ServerFrame, framed, read
from headrace.server.link import EngineLink
from headrace.server.security import Gate
from headrace.server.settings import ServerSettings
from tests.support.patience import patience

READY = {"live": {"ok": True}, "ready": {"ok": True}, "startup": {"ok": True}}


class StandIn:
    """Answers calls by functions; what a test does not give is not answered."""

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[bytes, Caller], bytes]] = {}
        self.streams: dict[str, Callable[[bytes, Caller], Messages]] = {}

    def call(self, path: str, body: bytes, caller: Caller) -> bytes:
        return self.calls[path](body, caller)

    def stream(self, path: str, body: bytes, caller: Caller) -> Messages:
        return self.streams[path](body, caller)


class Messages:
    """A stream that gives what an iterator gives, and says when it was closed."""

    def __init__(self, of: Iterator[bytes]) -> None:
        self._of = of
        self.given = 0
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        for each in self._of:
            self.given += 1
            yield each

    def close(self) -> None:
        self.closed.set()

    def endless(self, message: bytes) -> Messages:
        """Give one message again and again, until it is closed."""

        def until_closed() -> Iterator[bytes]:
            while not self.closed.is_set():
                yield message

        self._of = until_closed()
        return self


class Joined:
    """The child's side on this loop; the engine's on a thread."""

    def __init__(
        self, services: StandIn, settings: ServerSettings, pages: Mapping[str, ConsolePage]
    ):
        self.services = services
        self.settings = settings
        self.audited: list[AuditEntry] = []
        self.lost = asyncio.Event()
        self.changed = asyncio.Event()
        self.gate = Gate(settings)
        self.link = EngineLink(settings.limits, "engine", self.lost.set, self.changed.set)
        self.application = Application(self.link, self.gate, settings, pages)
        self._pages = pages

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        ours: list[FrameChannel] = []
        for protocol in (self.link.calls, self.link.bulk):
            engine, child = socket.socketpair()
            child.setblocking(False)
            ours.append(FrameChannel(engine))
            await loop.create_connection(lambda found=protocol: found, sock=child)  # type: ignore[misc]
        self.calls, self.bulk = ours
        self.answers = Answers(self.services, self.audited.extend, *ours)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()
        self.report(EngineReport("running", READY))
        await self.until(lambda: self.link.state.phase == "running")

    def _answer(self) -> None:
        while (frames := self.calls.receive(0.05)) is not None:
            self.answers.take(self._without_audit(frames))

    def _without_audit(self, frames: list[ServerFrame]) -> list[ServerFrame]:
        for frame in frames:
            if frame.kind == FrameKind.AUDIT:
                self.audited += read(frame.body, list[AuditEntry])
        return [frame for frame in frames if frame.kind != FrameKind.AUDIT]

    def report(self, state: EngineReport) -> None:
        self.calls.send(framed(FrameKind.STATE, body=state))

    async def until(self, seen: Callable[[], object]) -> None:
        """Wait until something is seen."""
        async with asyncio.timeout(patience()):
            while not seen():
                await asyncio.sleep(0.002)

    def close(self) -> None:
        self.answers.close()
        self.calls.close()
        self.bulk.close()
        self._thread.join(patience())

    async def ask(
        self,
        path: str,
        body: bytes = b"",
        kind: str = "application/json",
        *,
        method: str = "POST",
        **headers: str,
    ) -> Exchange:
        """Send a request, and wait for the whole answer."""
        exchange = self.begin(path, body, kind, method=method, part=False, **headers)
        async with asyncio.timeout(patience()):
            await exchange.task
        return exchange

    def begin(
        self,
        path: str,
        body: bytes = b"",
        kind: str = "application/json",
        *,
        method: str = "POST",
        part: bool = False,
        **headers: str,
    ) -> Exchange:
        """Send a request; with `part`, `body` is not all of its body."""
        named = {"host": "localhost:4080", "content-type": kind}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        where, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": where,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 50_000),
        }
        return Exchange(self.application, scope, body, part=part)


class Exchange:
    """One request and what comes back; the reader may take nothing, or leave."""

    def __init__(
        self, application: Application, scope: dict[str, Any], body: bytes, *, part: bool
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.over = False
        self.aborted = asyncio.Event()
        self.takes = asyncio.Event()
        """Cleared to be a reader that takes nothing."""

        self.takes.set()
        self._left = asyncio.Event()
        self._request: list[bytes] = [body]
        self.certificate: str | None = None
        self.is_whole = not part
        self.abort = self.aborted.set
        self._when_lost: Callable[[], object] | None = None
        scope["extensions"] = {"connection": self}
        self.task = asyncio.ensure_future(application(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._request:
            return {
                "type": "http.request",
                "body": self._request.pop(),
                "more_body": not self.is_whole,
            }
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        await self.takes.wait()
        self.body += message["body"]
        self.over = not message["more_body"]

    @property
    def is_free(self) -> bool:
        return self.takes.is_set()

    @property
    def is_lost(self) -> bool:
        return self._left.is_set()

    def when_lost(self, call: Callable[[], object] | None) -> None:
        self._when_lost = call

    def leave(self) -> None:
        """Be a reader who leaves."""
        self._left.set()
        if self._when_lost is not None:
            self._when_lost()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        """The messages of a stream so far, with their flags."""
        found, at = [], 0
        while at + 5 <= len(self.body):
            size = int.from_bytes(self.body[at + 1 : at + 5], "big")
            if at + 5 + size > len(self.body):
                break
            found.append((self.body[at], self.body[at + 5 : at + 5 + size]))
            at += 5 + size
        return found


def joined(
    test: Callable[[Joined], Awaitable[None]],
    settings: ServerSettings | None = None,
    pages: Mapping[str, ConsolePage] | None = None,
) -> None:
    """Run a test with both sides."""

    async def run() -> None:
        both = Joined(StandIn(), settings or ServerSettings(), pages or {})
        await both.open()
        try:
            await test(both)
        finally:
            both.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    asyncio.run(run())
