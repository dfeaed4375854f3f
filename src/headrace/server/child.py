"""
The server child: `python -m headrace.server.child CALLS BULK HTTP`.

The arguments are descriptors that its engine hands over: two ends of socket pairs, and the
listening socket for HTTP. Everything else comes in the first frame. The gRPC library opens its own
port; if that is taken, HTTP is served, and the port is tried again.

The child ends with its engine: at the end of file of either socket pair, all streams are told, and
the process is gone within `LEAVING_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

import headrace
from headrace.errors import BadCertificate
from headrace.server.application import Application, pages
from headrace.server.channel import FrameKind, FrameParser, Hello, Ready, read
from headrace.server.grpc_service import GrpcServer
from headrace.server.http_request import AbortableProtocol
from headrace.server.link import EngineLink
from headrace.server.security import Gate
from headrace.server.settings import ServerSettings
from headrace.server.tls import TlsFiles

LEAVING_SECONDS = 1.5
"""How long readers have to take the end of their streams."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
"""Between two attempts to open the port for gRPC."""

CONSOLE = Path(headrace.__path__[0]) / "console" / "static"


def main(arguments: Sequence[str]) -> int:
    """Run until the engine ends or asks for the end."""
    # Ctrl-C in a terminal reaches every process in it; the engine ends its server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls, bulk, http = (socket.socket(fileno=int(each)) for each in arguments)
    # uvicorn warns of each request that is not HTTP.
    logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    if (hello := _hello(calls)) is None:
        return 2
    import uvloop

    uvloop.run(_Child(hello, http).run(calls, bulk))
    return 0


def _hello(calls: socket.socket) -> Hello | None:
    """Return the first frame; nothing follows it before the child has answered."""
    parser = FrameParser()
    while data := calls.recv(64 << 10):
        for frame in parser.frames(data):
            return read(frame.body, Hello) if frame.kind == FrameKind.HELLO else None
    return None


class _Child:
    """One life of the child."""

    def __init__(self, hello: Hello, http: socket.socket) -> None:
        self._hello = hello
        self._http = http
        self._settings = msgspec.convert(hello.settings, ServerSettings)
        self._gate = Gate(self._settings)
        self._over = asyncio.Event()
        self._changed = asyncio.Event()
        limits = self._settings.limits
        _allow_files(limits.connections)
        self._link = EngineLink(limits, hello.server, self._leave, self._changed.set, self._renewed)
        self._files = None if self._settings.tls is None else TlsFiles(self._settings.tls)
        self._grpc = GrpcServer(self._link, self._gate, self._settings, self._files)
        app = Application(self._link, self._gate, self._settings, pages(CONSOLE))
        AbortableProtocol.limits = limits
        config = uvicorn.Config(
            app,
            http=AbortableProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=2048,
            timeout_keep_alive=int(limits.idle_seconds),
            timeout_graceful_shutdown=1,
        )
        config.load()
        self._server = _HttpServer(config, self._files, limits.head_seconds)

    async def run(self, calls: socket.socket, bulk: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_report)
        loop.add_signal_handler(signal.SIGTERM, self._leave)
        await loop.create_connection(lambda: self._link.calls, sock=calls)
        await loop.create_connection(lambda: self._link.bulk, sock=bulk)
        serving = asyncio.ensure_future(self._server.serve([self._http]))
        tasks = [
            asyncio.ensure_future(self._tick()),
            asyncio.ensure_future(self._follow_state()),
            asyncio.ensure_future(self._open_grpc()),
            asyncio.ensure_future(self._keep_copies()),
        ]
        await self._over.wait()
        # A task that cannot be cancelled must not keep the process.
        loop.call_later(LEAVING_SECONDS, os._exit, 0)
        for task in tasks:
            task.cancel()
        self._link.end()
        self._link.events.finish()
        self._server.should_exit = True
        stopping = asyncio.ensure_future(self._grpc.stop(LEAVING_SECONDS / 2))
        await asyncio.wait((serving, stopping))

    def _leave(self) -> None:
        self._over.set()

    def _renewed(self, settings: bytes) -> None:
        renewed = msgspec.msgpack.decode(settings, type=ServerSettings)
        self._link.end_streams(self._gate.renew(renewed))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            connections = list(self._server.server_state.connections)
            for each in connections:
                assert isinstance(each, AbortableProtocol)
                self._link.stalled += each.tick()
            self._link.tick(len(connections))
            if self._files is not None:
                self._refresh(self._files)

    async def _follow_state(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if (draining := self._link.draining) is not None and draining.now:
                self._leave()
            await self._grpc.set_ready(self._link.is_ready)

    async def _keep_copies(self) -> None:
        if not self._settings.hold:
            return
        # Arrow takes a while to be imported, and only a child with copies needs it.
        module = await asyncio.to_thread(importlib.import_module, "headrace.server.copies")
        self._link.copies = copies = module.HeldTables(self._settings.hold, self._link)
        await copies.run()

    async def _open_grpc(self) -> None:
        pid, pause = os.getpid(), FIRST_PAUSE_SECONDS
        while True:
            try:
                port = await self._grpc.start(self._hello.grpc_port)
            except OSError as error:
                why = str(error).splitlines()[0][:300]
                self._link.calls.send(FrameKind.READY, body=Ready(pid, grpc_error=why))
            else:
                self._link.calls.send(FrameKind.READY, body=Ready(pid, grpc_port=port))
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _refresh(self, files: TlsFiles) -> None:
        try:
            if files.refresh():
                print("The certificate was read again", file=sys.stderr, flush=True)  # noqa: T201
        except BadCertificate as error:
            # Until they are right, the last ones that were are used.
            print(f"{error} {error.remedy}", file=sys.stderr, flush=True)  # noqa: T201


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # What callers do must not fill the log: a handshake that fails, a connection that breaks.
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


def _allow_files(connections: int) -> None:
    """Raise the limit of open files, which is often 1,024, to what the connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + 256  # gRPC has as many again
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class _HttpServer(uvicorn.Server):
    """uvicorn without its signals, and with a limit for handshakes: the engine ends its server."""

    def __init__(
        self, config: uvicorn.Config, files: TlsFiles | None, handshake_seconds: float
    ) -> None:
        super().__init__(config)
        self._files = files
        self._handshake_seconds = handshake_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, as uvicorn does, but with our context for TLS."""
        tls: dict[str, Any] = {}
        if self._files is not None:
            tls = {
                "ssl": self._files.context,
                "ssl_handshake_timeout": self._handshake_seconds,
            }
        loop = asyncio.get_running_loop()
        await self.lifespan.startup()
        self.servers = [
            await loop.create_server(self._protocol, sock=each, backlog=self.config.backlog, **tls)
            for each in sockets or ()
        ]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        return AbortableProtocol(self.config, self.server_state, self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
