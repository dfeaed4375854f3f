"""
The verbs of an engine on a TCP port, with or without TLS and a token.

It answers as the server of an engine does on its HTTP port, in a thread of the test: for what the
client does, no process is needed.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from headrace.api import connect, server
from headrace.errors import Forbidden, Unauthenticated
from tests.server.certificates import Files

CHANGING = frozenset({"Pause", "Resume", "Reload", "Reset", "Apply", "PurgeDeadLetters"})


@dataclass
class Front:
    """A server, and what it was asked."""

    port: int
    scheme: str
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    """Verbs, each with the headers of its request."""

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, service: Any, context: ssl.SSLContext | None, tokens: Mapping[str, str]):
        self.service = service
        self.tokens = tokens
        self.context = context
        self._streams: set[Any] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        scheme = "http" if context is None else "https"
        self.front = Front(self.server_address[1], scheme)

    def streaming(self, stream: Any, *, on: bool) -> None:
        with self._lock:
            (self._streams.add if on else self._streams.discard)(stream)

    def end_streams(self) -> None:
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def get_request(self) -> tuple[Any, Any]:
        found, where = super().get_request()
        if self.context is not None:
            # The handshake is done in the thread of the connection, when it first reads.
            found = self.context.wrap_socket(found, server_side=True, do_handshake_on_connect=False)
        return found, where

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: clients that leave are what some tests are about."""


class _Handler(server._Handler):
    def do_POST(self) -> None:
        mine = cast("_Server", self.server)
        verb = self.path.removeprefix(connect.SERVICE)
        mine.front.asked.append((verb, dict(self.headers)))
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        role = mine.tokens.get(given)
        if not mine.tokens or role == "admin" or (role == "read" and verb not in CHANGING):
            super().do_POST()
            return
        self.close_connection = True
        self._asked()
        error = (
            Unauthenticated("A valid token is needed")
            if role is None
            else Forbidden(f"{verb} needs the role operate", role=role)
        )
        status, fields = connect.error_fields(error)
        self._answer(status, connect.message(fields))

    def _until_gone(self, stream: Any) -> None:
        # A connection of TLS is not read while another thread writes to it.
        if cast("_Server", self.server).context is None:
            super()._until_gone(stream)


@contextmanager
def front(
    service: Any,
    context: ssl.SSLContext | None = None,
    *,
    tokens: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Front]:
    """Serve the verbs of a service; `tokens` are the roles of the tokens, if any is needed."""
    made = _Server(service, context, tokens)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    try:
        yield made.front
    finally:
        made.shutdown()
        made.server_close()
        made.end_streams()
        thread.join()


@contextmanager
def answering(data: bytes) -> Iterator[str]:
    """Answer one connection with these bytes, whatever is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            found, _ = listening.accept()
            with found:
                found.recv(65_536)
                found.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def service_of(**verbs: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return a service with these verbs, of no engine."""
    return SimpleNamespace(unary=verbs, streams={}, audited=lambda *_: None)


def served_with(files: Files, clients: Path | None = None) -> ssl.SSLContext:
    """Return what a server needs for TLS; with `clients`, it asks for certificates of theirs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context
