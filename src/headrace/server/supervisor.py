"""
The engine's side of its server: the listening sockets, the child, and what a status says of them.

The engine opens the HTTP socket and keeps it. A child that dies takes its connections with it, and
no more: who connects meanwhile waits in the socket until the next child is there. A child that does
not answer for `SILENT_SECONDS` is ended. The pauses between two starts grow from 0.1 to 10 seconds,
until a child has served for a while.

Nothing here stops an engine. A port that is taken is tried again, and the status names it.

Threads: one runs the child and receives from it, one sends it the state of the engine each second.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

import headrace
from headrace.api.methods import CONTROL, METHODS
from headrace.api.services import Caller
from headrace.errors import PortTaken, ServerFailed
from headrace.observe.logs import logger
from headrace.server.answers import Answers
from headrace.server.audit import AuditEntry, AuditLog, entry_of
from headrace.server.channel import (
    Clients,
    Drain,
    EngineReport,
    FrameChannel,
    FrameKind,
    Hello,
    Ready,
    ServerFrame,
    framed,
    read,
)
from headrace.storage.permissions import make_private_folder, open_private

if TYPE_CHECKING:
    from headrace.api.handlers import ControlService, Verb
    from headrace.api.services import Services
    from headrace.engine.engine import Engine
    from headrace.errors import HeadraceError
    from headrace.observe.events import Event
    from headrace.server.settings import ServerSettings

_log = logger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
PROVED_SECONDS = 10.0
"""A child that has served for this long has worked: the next pause is short again."""

STATE_SECONDS = 1.0
QUIET_SECONDS = 5.0
"""A child that was silent for so long is said not to answer."""

SILENT_SECONDS = 10.0
"""One that was silent for so long is ended."""

START_SECONDS = 120.0
"""The same for one that starts: on a busy machine its imports alone may take some of them."""

LEAVE_SECONDS = 3.0
"""How long a child may take to end the streams of its readers."""

MOST_EVENTS = 1_000
"""Events that a new child is given, so that readers can continue after it."""

BACKLOG = 2_048

LONGEST_LOG = 4 << 20
"""Bytes of the log file of children; a new child begins another one, and one more is kept."""

_OWN = (FrameKind.READY, FrameKind.CLIENTS, FrameKind.AUDIT)
"""The kinds of frames for the supervisor; others are requests."""

ServerState = Literal[
    "starting", "serving", "port_taken", "restarting", "not_answering", "stopping", "stopped"
]


NO_CLIENTS = Clients()

_LOCAL = Caller("local", "admin", "local socket")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server, as a status shows it."""

    state: ServerState
    reason: str = ""
    """Why it does not serve, or not all; empty if it does."""

    since: float = 0.0
    """When the state began, in seconds since 1970."""

    error: HeadraceError | None = None
    http: str = ""
    """`http://127.0.0.1:4080`; empty while it is not served."""

    grpc: str = ""
    """`127.0.0.1:4081`; empty while it is not served."""

    pid: int | None = None
    restarts: int = 0
    clients: Clients = NO_CLIENTS


class Supervisor:
    """The server of one engine, from `start` to `close`."""

    def __init__(
        self,
        engine: Engine,
        control: ControlService,
        services: Services,
        settings: ServerSettings,
        folder: Path,
        *,
        on_change: Callable[[ServerInfo], None] = lambda info: None,
    ) -> None:
        """`folder` is the data directory; `on_change` is called with every new state."""
        self._engine = engine
        self._control = control
        self._services = services
        self._settings = settings
        self._folder = folder
        self._on_change = on_change
        self._name = secrets.token_hex(4)
        self._lock = threading.Condition()
        self._info = ServerInfo("starting", since=time.time())
        self._stopping = threading.Event()
        self._draining = ""
        self._socket: socket.socket | None = None
        self._grpc_port = settings.grpc_port
        self._child: _Child | None = None
        self._events: deque[tuple[int, bytes]] = deque(maxlen=MOST_EVENTS)
        self._number = 0
        self._observer: Any = None
        self._audit_log: AuditLog | None = None
        self._threads: list[threading.Thread] = []

    # --- what it says -----------------------------------------------------------------------------

    @property
    def info(self) -> ServerInfo:
        """The server as observed."""
        return self._info

    def fields(self) -> dict[str, Any]:
        """Return the server for a status."""
        from headrace.api.connect import error_object

        info = self._info
        return {
            "state": info.state,
            "reason": info.reason,
            "since": round(info.since, 3),
            "error": None if info.error is None else error_object(info.error),
            "http": info.http,
            "grpc": info.grpc,
            "pid": info.pid,
            "restarts": info.restarts,
            **msgspec.structs.asdict(info.clients),
        }

    def await_that(self, what: Callable[[ServerInfo], bool], timeout: float | None) -> bool:
        """Wait until something observed about it is true; False on time-out."""
        with self._lock:
            return self._lock.wait_for(lambda: what(self._info), timeout)

    def _set(self, state: ServerState, reason: str = "", **others: Any) -> None:
        with self._lock:
            before = self._info
            same = (before.state, before.reason) == (state, reason)
            since = before.since if same else time.time()
            self._info = replace(before, state=state, reason=reason, since=since, **others)
            self._lock.notify_all()
        if not same:
            self._on_change(self._info)

    # --- its life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the socket and start the child; does not wait for it, and does not fail."""
        try:
            self._audit_log = AuditLog(self._folder / "logs")
        except OSError as error:
            _log.error("audit log cannot be opened", why=error.strerror)
        self._control.audited = self._audit_local
        self._observer = self._engine.observe(_Events(self._take_event), name="server")
        for target, name in ((self._run, "run"), (self._report_health, "health")):
            thread = threading.Thread(target=target, name=f"headrace-server-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def renew(self, settings: ServerSettings) -> None:
        """Let the tokens of these settings call from now on, and no others."""
        self._settings = settings
        self._send(framed(FrameKind.TOKENS, body=settings))

    def drain(self, reason: str = "The engine is stopping") -> None:
        """Say that the engine stops: not ready any more, but everything is answered still."""
        self._draining = reason
        self._send(framed(FrameKind.DRAIN, body=Drain(reason)))
        self._set("stopping", reason)

    def close(self) -> None:
        """End all streams, the child and the sockets. May be called twice."""
        self._draining = self._draining or "The engine is stopping"
        self._stopping.set()
        if self._observer is not None:
            self._observer.remove()
        self._send(framed(FrameKind.DRAIN, body=Drain(self._draining, now=True)))
        run = self._threads[0] if self._threads else None
        if run is not None and run is not threading.current_thread():
            run.join(LEAVE_SECONDS)
            if (child := self._child) is not None:
                child.process.kill()
            run.join(LEAVE_SECONDS)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._audit_log is not None:
            self._audit_log.close()
            self._audit_log = None
        self._set("stopped", http="", grpc="", pid=None)

    def _send(self, frame: bytes) -> None:
        if (child := self._child) is not None:
            child.calls.send(frame)

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            if self._socket is None and not self._bind():
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                continue
            began = time.monotonic()
            try:
                why = self._serve()
            except Exception as mistake:  # noqa: BLE001 - or there would be no server, silently
                _log.failed("supervision of the server failed", mistake, code="internal")
                why = f"Internal error ({type(mistake).__name__})"
            if self._stopping.is_set():
                return
            if time.monotonic() - began >= PROVED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            error = ServerFailed(why, log=str(self._log_file))
            _log.warning("server ended", reason=why, restarts=self._info.restarts)
            self._set(
                "restarting",
                why,
                error=error,
                grpc="",
                pid=None,
                restarts=self._info.restarts + 1,
                clients=NO_CLIENTS,
            )
            self._stopping.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    # --- the sockets ------------------------------------------------------------------------------

    def _bind(self) -> bool:
        host, port = self._settings.host, self._settings.http_port
        try:
            self._socket = listening(host, port)
        except OSError as failed:
            error = not_bound(host, port, failed)
            if self._info.state != "port_taken":
                _log.error("server cannot listen", reason=error.message, remedy=error.remedy)
            self._set("port_taken", error.message, error=error)
            return False
        scheme = "http" if self._settings.tls is None else "https"
        bound = self._socket.getsockname()[1]
        self._set("starting", error=None, http=f"{scheme}://{_named(host)}:{bound}")
        return True

    def _audit(self, entries: Sequence[AuditEntry]) -> None:
        if self._audit_log is not None:
            self._audit_log.write(*entries)

    def _audit_local(self, verb: str, body: bytes, outcome: str) -> None:
        """Record a command that came over the local socket."""
        if (method := METHODS.get(f"/{CONTROL}/{verb}")) is not None and method.changes:
            self._audit([entry_of(method, outcome, _LOCAL, body=body)])

    # --- the child --------------------------------------------------------------------------------

    @property
    def _log_file(self) -> Path:
        return self._folder / "logs" / "server.log"

    def _serve(self) -> str:
        """Run a child to its end; return why it ended."""
        assert self._socket is not None
        try:
            child = _Child.spawn(self._socket, self._log_file)
        except OSError as error:
            return f"The server could not be started: {error.strerror or error}"
        answers = Answers(self._services, self._audit, child.calls, child.bulk)
        child.calls.send(framed(FrameKind.HELLO, body=self._hello()))
        with self._lock:
            events = [framed(FrameKind.EVENT, number, event) for number, event in self._events]
            self._child = child
        child.bulk.send(events)
        if self._stopping.is_set():  # `close` saw no child
            child.calls.send(framed(FrameKind.DRAIN, body=Drain(self._draining, now=True)))
        try:
            return self._listen(child, answers)
        finally:
            with self._lock:
                self._child = None
            answers.close()
            child.end()

    def _hello(self) -> Hello:
        return Hello(
            server=self._name,
            settings=msgspec.to_builtins(self._settings),
            grpc_port=self._grpc_port,
        )

    def _listen(self, child: _Child, answers: Answers) -> str:
        received_at, is_ready = time.monotonic(), False
        while True:
            frames = child.calls.receive(1.0)
            if frames is None:
                return child.why()
            if frames:
                received_at = time.monotonic()
            silent = time.monotonic() - received_at
            if silent >= (SILENT_SECONDS if is_ready else START_SECONDS):
                child.process.kill()
                return f"The server did not answer for {silent:.0f} seconds, and was ended"
            if silent >= QUIET_SECONDS and is_ready:
                self._set("not_answering", f"The server has been silent for {QUIET_SECONDS:g} s")
            own = [frame for frame in frames if frame.kind in _OWN]
            for frame in own:
                is_ready = True
                self._take(frame)
            if len(own) < len(frames):
                answers.take(frames)

    def _take(self, frame: ServerFrame) -> None:
        if frame.kind == FrameKind.AUDIT:
            self._audit(msgspec.msgpack.decode(frame.body, type=list[AuditEntry]))
            return
        if frame.kind == FrameKind.CLIENTS:
            with self._lock:
                self._info = replace(self._info, clients=read(frame.body, Clients))
                self._lock.notify_all()
            if self._info.state == "not_answering":
                self._serving(self._info.pid or 0, "", self._info.grpc)
            return
        ready = read(frame.body, Ready)
        if ready.grpc_error:
            error = not_bound(self._settings.host, self._grpc_port, ready.grpc_error)
            if self._info.error is None:
                _log.error("server cannot listen", reason=error.message, remedy=error.remedy)
            self._serving(ready.pid, error.message, "", error)
        else:
            # The next child serves the same one, if it was chosen by the system.
            self._grpc_port = ready.grpc_port
            where = f"{_named(self._settings.host)}:{ready.grpc_port}"
            self._serving(ready.pid, "", where)

    def _serving(
        self, pid: int, reason: str, grpc: str, error: HeadraceError | None = None
    ) -> None:
        if self._draining:
            return
        if self._info.state != "serving":
            _log.info("server is serving", http=self._info.http, grpc=grpc, pid=pid)
        self._set("serving", reason, pid=pid, grpc=grpc, error=error)

    # --- what the child is told -------------------------------------------------------------------

    def _report_health(self) -> None:
        health = self._control.unary["Health"]
        while not self._stopping.is_set():
            if self._child is not None:
                self._send(framed(FrameKind.STATE, body=self._report(health)))
            self._stopping.wait(STATE_SECONDS)

    def _report(self, health: Verb) -> EngineReport:
        try:
            found = health({})
        except Exception as error:  # noqa: BLE001 - not ready, then, and not silent
            _log.failed("health check of the server failed", error, code="internal")
            return EngineReport(self._control.phase, {})
        phase = found.pop("phase")
        return EngineReport("stopping" if self._draining else phase, found)

    def _take_event(self, event: bytes) -> None:
        with self._lock:
            self._number += 1
            number = self._number
            self._events.append((number, event))
            child = self._child
        if child is not None:
            # What cannot be sent without a wait is missing, and readers are told how many.
            child.bulk.offer(framed(FrameKind.EVENT, number, event))


class _Events:
    """Takes the events of the engine, as JSON."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    def on_event(self, event: Event) -> None:
        """Pass an event on."""
        fields = msgspec.to_builtins(event, enc_hook=str, str_keys=True)
        self._take(msgspec.json.encode({"event": type(event).__name__, **fields}))


class _Child:
    """One child process, and our ends of its connections."""

    def __init__(
        self, process: subprocess.Popen[bytes], calls: socket.socket, bulk: socket.socket
    ) -> None:
        self.process = process
        self.calls = FrameChannel(calls)
        self.bulk = FrameChannel(bulk)

    @classmethod
    def spawn(cls, http: socket.socket, log_file: Path) -> _Child:
        """Start a child; raises `OSError`."""
        # Python's sockets are not inherited: the child gets only its own ends, and no other
        # process gets ours. Otherwise the connection would outlive this process.
        calls, their_calls = socket.socketpair()
        bulk, their_bulk = socket.socketpair()
        descriptors = [end.fileno() for end in (their_calls, their_bulk, http)]
        with their_calls, their_bulk:
            make_private_folder(log_file.parent)
            if log_file.exists() and log_file.stat().st_size > LONGEST_LOG:
                log_file.replace(log_file.with_name(f"{log_file.name}.1"))
            with open_private(log_file, append=True) as log:
                process = subprocess.Popen(
                    # -P: a file in the user's current folder must not replace a module.
                    [sys.executable, "-P", "-m", "headrace.server.child", *map(str, descriptors)],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(),
                    start_new_session=True,
                )
        return cls(process, calls, bulk)

    def why(self) -> str:
        """Return why it has ended, after its end of file."""
        try:
            code = self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            return "The server closed its connection"
        by = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        return f"The server process {by}"

    def end(self) -> None:
        """Close the connections; a child that does not end by itself is killed."""
        self.calls.close()
        self.bulk.close()
        try:
            self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = found[0]
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)


def not_bound(host: str, port: int, why: OSError | str) -> PortTaken:
    """Return the error for a port that cannot be opened, with how to find its owner."""
    where = f"{_named(host)}:{port}"
    if isinstance(why, str):
        message = f"Port {port} is taken or not permitted: {where} cannot be opened for gRPC"
    elif why.errno == errno.EADDRINUSE:
        message = f"Port {port} is taken: another process listens on {where}"
    else:
        message = f"{where} cannot be opened: {why.strerror or why}"
    return PortTaken(
        message,
        remedy=f"Find the process: ss -ltnp 'sport = :{port}'. Stop it, or choose another port in"
        " the section server. It is tried again meanwhile.",
        port=port,
        host=host,
    )


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host


_PASSED = re.compile(r"PATH|HOME|LANG|LC_.*|TZ|TMPDIR|PYTHON.*|VIRTUAL_ENV|LD_LIBRARY_PATH|GRPC_.*")


def _environment() -> Mapping[str, str]:
    """
    Return the environment of a child, with the folder of this package first in PYTHONPATH.

    Ours may have the passwords of databases, which a process that serves the network must not have.
    """
    folder = str(Path(headrace.__path__[0]).parent)
    others = os.environ.get("PYTHONPATH")
    path = folder if not others else f"{folder}{os.pathsep}{others}"
    passed = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
    # The library for gRPC would print a line for each connection that fails.
    return {"GRPC_VERBOSITY": "NONE", **passed, "PYTHONPATH": path}
