"""
The local server: HTTP/1.1 over a unix socket, one thread for each connection.

The socket is in a folder that only its user may enter. It is not in the data directory, because a
path there can be longer than the 107 bytes that a socket path may have. `run/engine.json` in the
data directory names the socket, so that clients find it. Only the engine that holds the data
directory writes that file, so an existing file belongs to an engine that is gone.

A request is `POST /headrace.v1.ControlService/<Verb>` with a message in JSON, as in the Connect
protocol; see `connect`. A process that can open the socket can use every verb. Only processes of
its user can: the socket has mode 0600, in a folder that no other user may enter.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import socketserver
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from headrace.api import connect
from headrace.api.handlers import AnswerStream, ControlService
from headrace.errors import BadRequest, ControlError, HeadraceError, NoEngine, NotRunning
from headrace.observe.logs import logger

if TYPE_CHECKING:
    from headrace.engine.engine import Engine


# --- where an engine listens, and how clients find it ---------------------------------------------

FORMAT = 1

LONGEST = 107
"""Maximum bytes of a socket path, set by the kernel."""

_FILE = Path("run", "engine.json")


@dataclass(frozen=True, slots=True)
class AnnouncedEngine:
    """An engine as `run/engine.json` describes it; it may be gone."""

    pid: int
    socket: Path


def new_socket(environment: Mapping[str, str]) -> Path:
    """Return an unused path for a new socket, in a folder that only we may enter."""
    name = f"{os.getpid()}-{secrets.token_hex(4)}.sock"
    for folder in _folders(environment):
        path = folder / name
        if len(os.fsencode(path)) <= LONGEST and _is_ours(folder):
            return path
    raise ControlError(
        "No folder can be used for the engine's socket",
        remedy="Set XDG_RUNTIME_DIR or TMPDIR to a folder with a short path that you own.",
    )


def announce(data: Path, socket: Path) -> None:
    """Write the socket's path to the data directory, replacing that of a killed engine."""
    if _holder(data) != os.getpid():
        # Another engine's file must never be replaced.
        raise NotRunning("The engine does not hold the lock of its data directory", data=str(data))
    if (left := announced(data)) is not None and left.socket != socket:
        _remove_stale(left.socket)
    file = data / _FILE
    file.parent.mkdir(mode=0o700, exist_ok=True)
    written = file.with_name(f".{file.name}.{os.getpid()}")
    fields = {"format": FORMAT, "pid": os.getpid(), "socket": str(socket)}
    written.touch(mode=0o600)
    written.write_text(json.dumps(fields) + "\n")
    written.replace(file)


def withdraw(data: Path, socket: Path) -> None:
    """Remove the announcement, unless another engine has replaced it."""
    if (found := announced(data)) is not None and found.socket == socket:
        (data / _FILE).unlink(missing_ok=True)


def announced(data: Path) -> AnnouncedEngine | None:
    """Return the engine that the data directory announces; None if there is none."""
    try:
        fields = json.loads((data / _FILE).read_text())
        return AnnouncedEngine(int(fields["pid"]), Path(str(fields["socket"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def not_reached(data: Path) -> NoEngine:
    """Return the error for an engine that does not answer, with what to type next."""
    holder = _holder(data)
    if holder is not None and _is_alive(holder):
        return NoEngine(
            f"Process {holder} uses {data} but does not accept commands",
            remedy="It may be starting or stopping, or it is a Python program with its own engine."
            " Try again in a moment, or see logs/headrace.log there.",
            data=str(data),
            pid=holder,
        )
    if not data.exists():
        return NoEngine(
            f"No engine is running: the data directory {data} does not exist",
            remedy="Start one: headrace run. Or give the data directory of a running engine:"
            " --data FOLDER.",
            data=str(data),
        )
    return NoEngine(f"No engine is running on {data}", data=str(data))


def _folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders to try; creates them if needed."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield from _made(Path(runtime) / "headrace")
    private = f"headrace-{os.getuid()}"
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        yield from _made(Path(base) / private)
    # Needed if these folders belong to another user, or are open to others.
    with suppress(OSError):
        yield Path(tempfile.mkdtemp(prefix=f"{private}-"))


def _made(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        yield folder


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder, not a link, that we own and that no other user may enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and private


def _remove_stale(socket: Path) -> None:
    """Remove the socket of an engine that was killed; never anything else."""
    with suppress(OSError):
        found = socket.lstat()
        if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid():
            socket.unlink()


def _holder(data: Path) -> int | None:
    """Return the process that wrote the lock; it may be gone."""
    try:
        return int(json.loads((data / "lock").read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


# --- the server -----------------------------------------------------------------------------------

_log = logger(__name__)

_IDLE_SECONDS = 60.0
"""How long a client may take to send its request before it is disconnected."""


class ControlServer:
    """A running server, until `close`."""

    def __init__(self, service: ControlService, data: Path) -> None:
        self.service = service
        self._data = data
        self.socket = new_socket(os.environ)
        self._server = _Server(str(self.socket), service)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        try:
            self.socket.chmod(0o600)
            announce(data, self.socket)
        except BaseException:
            self._server.server_close()
            self.socket.unlink(missing_ok=True)
            raise
        self._thread.start()
        service.rates.start()

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def withdraw(self) -> None:
        """Make the server invisible to new clients; connected ones continue."""
        withdraw(self._data, self.socket)

    def close(self) -> None:
        """End every stream, and remove the socket. May be called twice."""
        if not self._thread.is_alive():
            return
        self.withdraw()
        self.service.rates.stop()
        self._server.shutdown()
        self._server.server_close()
        self._server.end_streams()
        self._thread.join()
        self.socket.unlink(missing_ok=True)


def serve(engine: Engine, data: str | os.PathLike[str], *, service: str = "") -> ControlServer:
    """Serve commands for an engine that holds its data directory; close it with the engine."""
    return ControlServer(
        ControlService(engine, service=service), Path(data).expanduser().absolute()
    )


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str, service: ControlService) -> None:
        self.service = service
        self._streams: set[AnswerStream] = set()
        self._lock = threading.Lock()
        super().__init__(path, _Handler)

    def streaming(self, stream: AnswerStream, *, on: bool) -> None:
        """Register or remove a stream, so that `end_streams` can end it."""
        with self._lock:
            (self._streams.add if on else self._streams.discard)(stream)

    def end_streams(self) -> None:
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the client disconnected; no other error comes here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS

    def do_POST(self) -> None:
        self.close_connection = True
        try:
            verb, body = self._asked()
            kind = self.headers.get_content_type()
            if verb in self._service.streams:
                self._stream(verb, body, kind)
                return
            self._answer(*self._call(verb, body, kind))
        except HeadraceError as error:
            status, fields = connect.error_fields(error)
            self._answer(status, connect.message(fields))
        except (OSError, TimeoutError):
            return  # the client disconnected
        except Exception as error:  # noqa: BLE001 - a bug must not look like silence
            _log.failed("command failed", error, code="internal")
            status, fields = connect.error_fields(connect.internal_error(error))
            self._answer(status, connect.message(fields))

    def do_GET(self) -> None:
        self.close_connection = True
        self.send_error(405)

    @property
    def _service(self) -> ControlService:
        return cast("_Server", self.server).service

    def _asked(self) -> tuple[str, bytes]:
        path = self.path
        try:
            length = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            length = -1
        if not 0 <= length <= connect.LARGEST_REQUEST:
            raise BadRequest(f"Content-Length must be between 0 and {connect.LARGEST_REQUEST}")
        # Before anything is refused: a client that is still sending would not read the answer.
        body = self.rfile.read(length)
        if not path.startswith(connect.SERVICE):
            raise BadRequest(f"The path must begin with {connect.SERVICE}")
        return path.removeprefix(connect.SERVICE), body

    def _answer(self, status: int, body: bytes) -> None:
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", connect.UNARY)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

    def _call(self, verb: str, body: bytes, kind: str) -> tuple[int, bytes]:
        if (call := self._service.unary.get(verb)) is None:
            error = BadRequest(f"Unknown command {verb}", verb=verb)
            status, fields = connect.error_fields(error, "unimplemented")
            return status, connect.message(fields)
        if kind != connect.UNARY:
            raise BadRequest(f"{verb} requires content type {connect.UNARY}", content_type=kind)
        outcome = "internal"
        try:
            answer = call(connect.asked(body))
            outcome = "ok"
        except HeadraceError as error:
            outcome = error.code
            raise
        finally:
            self._service.audited(verb, body, outcome)
        return 200, connect.message(answer)

    def _stream(self, verb: str, body: bytes, kind: str) -> None:
        """Send one message after the other; an error is in the last one, as Connect defines."""
        if kind != connect.STREAMING:
            raise BadRequest(f"{verb} requires content type {connect.STREAMING}", content_type=kind)
        self.connection.settimeout(None)
        self.send_response(200)
        self.send_header("Content-Type", connect.STREAMING)
        self.send_header("Connection", "close")
        self.end_headers()
        error: HeadraceError | None = None
        try:
            stream = self._service.streams[verb](connect.opened(body))
            self._send_all(stream)
        except HeadraceError as raised:
            error = raised
        except OSError:
            return
        except Exception as raised:  # noqa: BLE001 - a bug must not look like an end
            _log.failed("command failed", raised, code="internal")
            error = connect.internal_error(raised)
        with suppress(OSError):
            self.wfile.write(connect.last_envelope(error))

    def _send_all(self, stream: AnswerStream) -> None:
        server = cast("_Server", self.server)
        server.streaming(stream, on=True)
        leaving = threading.Thread(target=self._until_gone, args=(stream,), daemon=True)
        leaving.start()
        try:
            for fields in stream:
                self.wfile.write(connect.envelope(fields))
        finally:
            stream.close()
            server.streaming(stream, on=False)

    def _until_gone(self, stream: AnswerStream) -> None:
        """End the stream when its reader disconnects: the next change may be days away."""
        with suppress(OSError):
            while self.connection.recv(1024):
                pass
        stream.close()

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal belongs to the program that runs the engine."""

    def finish(self) -> None:
        with suppress(OSError):
            # Wakes the thread that waits for the reader to disconnect.
            self.connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            super().finish()
