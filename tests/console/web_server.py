"""
The console with an engine behind it, in one process: files, verbs and a token, over HTTP.

`python -m tests.console.web_server FOLDER` serves a shop at work on port 4090, to look at.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from headrace.api import connect
from headrace.api.handlers import AnswerStream, ControlService
from headrace.console import HEADERS, static_file
from headrace.errors import BadRequest, HeadraceError


class WebServer(ThreadingHTTPServer):
    """Serves one engine. With `token`, a browser must sign in; `role` is that of its token."""

    daemon_threads = True

    def __init__(
        self, control: ControlService, port: int = 0, *, token: str = "", role: str = "admin"
    ) -> None:
        self.control = control
        self.token = token
        self.role = role
        self.away = False
        """While true, every request is cut off, as by an engine that is gone."""
        self.asked: list[str] = []
        """The verbs that were asked for, but those that only read."""
        self.streams: set[AnswerStream] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def go_away(self) -> None:
        self.away = True
        for stream in list(self.streams):
            stream.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the browser left."""


@contextmanager
def web_server(control: ControlService, port: int = 0, **options: str) -> Iterator[WebServer]:
    server = WebServer(control, port, **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    control.rates.start()
    try:
        yield server
    finally:
        server.go_away()
        server.shutdown()
        server.server_close()
        thread.join()
        control.rates.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _owner(self) -> WebServer:
        return cast("WebServer", self.server)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self._owner.away:
            self.close_connection = True
        elif (found := static_file(path)) is None:
            self._send(404, b"not found", "text/plain")
        else:
            self._send(200, found.content, found.content_type, {**HEADERS, "ETag": found.etag})

    def do_DELETE(self) -> None:
        gone = "headrace=; Max-Age=0; HttpOnly; SameSite=Strict; Path=/"
        self._send(200, b"{}", connect.UNARY, {"Set-Cookie": gone})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self._owner.away:
            self.close_connection = True
        elif self.path == "/session":
            self._sign_in(body)
        elif self._owner.token and self._owner.token not in self.headers.get("Cookie", ""):
            refused = {"code": "unauthenticated", "message": "A token is needed"}
            self._send(401, connect.message(refused), connect.UNARY)
        else:
            self._call(self.path.removeprefix(connect.SERVICE), body)

    def _sign_in(self, body: bytes) -> None:
        if json.loads(body).get("token") == self._owner.token:
            cookie = f"headrace={self._owner.token}; HttpOnly; SameSite=Strict; Path=/"
            self._send(200, b"{}", connect.UNARY, {"Set-Cookie": cookie})
        else:
            refused = {"code": "unauthenticated", "message": "This token is not valid"}
            self._send(401, connect.message(refused), connect.UNARY)

    def _call(self, verb: str, body: bytes) -> None:
        control = self._owner.control
        if verb in ("Pause", "Resume", "Reload", "Reset", "PurgeDeadLetters", "ReplayDeadLetters"):
            self._owner.asked.append(verb)
        try:
            if verb in control.streams:
                self._stream(control.streams[verb](connect.opened(body)))
                return
            if verb == "Me":
                status, answer = 200, {"name": "local", "role": self._owner.role}
            elif verb in control.unary:
                status, answer = 200, control.unary[verb](connect.asked(body))
            else:
                unknown = BadRequest(f"Unknown command {verb}")
                status, answer = connect.error_fields(unknown, "unimplemented")
        except HeadraceError as error:
            status, answer = connect.error_fields(error)
        self._send(status, connect.message(answer), connect.UNARY)

    def _stream(self, stream: AnswerStream) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", connect.STREAMING)
        self.send_header("Connection", "close")
        self.end_headers()
        self._owner.streams.add(stream)
        threading.Thread(target=self._until_gone, args=(stream,), daemon=True).start()
        error: HeadraceError | None = None
        try:
            for fields in stream:
                self.wfile.write(connect.envelope(fields))
        except HeadraceError as raised:
            error = raised
        except OSError:
            return
        finally:
            stream.close()
            self._owner.streams.discard(stream)
        if not self._owner.away:
            with suppress(OSError):
                self.wfile.write(connect.last_envelope(error))

    def _until_gone(self, stream: AnswerStream) -> None:
        with suppress(OSError, ValueError):
            while self.connection.recv(1024):
                pass
        stream.close()

    def _send(
        self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
