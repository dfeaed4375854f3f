"""
The connection between an engine and its server: frames on socket pairs.

A frame is its kind, a number and its bytes. Two socket pairs join the two processes. On `calls` go
requests, answers and what supervises the child. On `bulk` go the messages of streams and events, so
that a thousand rows for one reader never delay the answer to another.

The number of a frame is that of the request or stream that it belongs to; 0 for all others. The
child numbers requests and streams.

`FrameChannel` is the engine's end, with threads; `ChannelProtocol` is the child's, on its event
loop. Both write what has collected in one call.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

_HEAD = struct.Struct(">BII")

CREDIT = struct.Struct(">I")
"""The body of a credit."""

LONGEST = 256 << 20
"""In bytes. A frame that claims to be longer is not one of ours."""

SEND_SECONDS = 10
"""How long the other end may take nothing before the connection counts as broken."""

_PIECE = 256 << 10


class FrameKind(IntEnum):
    """The kinds of frames."""

    HELLO = 1
    """Engine → child, once: `Hello`."""

    READY = 2
    """Child → engine, whenever the ports it serves have changed: `Ready`."""

    ASK = 3
    """Child → engine: `Ask`, for one answer."""

    ANSWER = 4
    """Engine → child: the answer's bytes."""

    FAILURE = 5
    """Engine → child: the error instead of an answer, or at the end of a stream; `CallFailure`."""

    OPEN = 6
    """Child → engine: `Ask`, for a stream."""

    MESSAGE = 7
    """Engine → child: the bytes of one message of a stream."""

    END = 8
    """Engine → child: the end of a stream, without an error."""

    CREDIT = 9
    """Child → engine: a reader has taken this many bytes, four of them."""

    CANCEL = 10
    """Child → engine: nobody reads this stream any more."""

    STATE = 11
    """Engine → child, each second: `EngineReport`."""

    CLIENTS = 12
    """Child → engine, each second: `Clients`. It shows that the child's loop runs."""

    EVENT = 13
    """Engine → child: an event as JSON; its number is that of the event."""

    DRAIN = 14
    """Engine → child: `Drain`. The engine stops."""

    AUDIT = 15
    """Child → engine: entries of the audit log about who was refused, and logins."""

    TOKENS = 16
    """Engine → child: `ServerSettings` as plain values, with other tokens than before."""


class ServerFrame(NamedTuple):
    """One frame."""

    kind: int
    number: int
    body: bytes


class Hello(msgspec.Struct, frozen=True):
    """What the child has to know. It contains no secret of a database, and no token."""

    server: str
    """A name for this server, new with each engine: it belongs to the numbers of events."""

    settings: dict[str, Any]
    """`ServerSettings`, as plain values."""

    grpc_port: int
    """The one to serve; another than in the settings if that is 0 and was chosen already."""


class Ready(msgspec.Struct, frozen=True):
    """The ports that the child serves."""

    pid: int
    grpc_port: int = 0
    grpc_error: str = ""
    """Why gRPC is not served; empty if it is."""


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A request for the engine, from a caller that may make it."""

    path: str
    name: str
    role: str
    address: str
    tables: tuple[str, ...]
    body: bytes


class CallFailure(msgspec.Struct, frozen=True):
    """An error as the Connect protocol has it."""

    status: int
    """Of HTTP."""

    error: bytes
    """The error's JSON, with its code, message and details."""


class EngineReport(msgspec.Struct, frozen=True):
    """What the child answers by itself."""

    phase: str
    """`starting`, `running` or `stopping`."""

    health: dict[str, Any]
    """The three checks, as the verb `Health` returns them; empty while they are not known."""


class Clients(msgspec.Struct, frozen=True):
    """Who is served, and how much waits."""

    connections: int = 0
    requests: int = 0
    """Requests that wait for the engine."""

    streams: int = 0
    answered: int = 0
    """Requests answered since the child started."""

    failed: int = 0
    """Those of them that ended with an error."""

    stalled: int = 0
    """Connections that were ended because their reader took nothing."""


class Drain(msgspec.Struct, frozen=True):
    """The engine stops; with `now`, it has stopped."""

    reason: str
    now: bool = False


_encode = msgspec.msgpack.Encoder().encode
_T = TypeVar("_T")


def framed(kind: FrameKind, number: int = 0, body: bytes | msgspec.Struct = b"") -> bytes:
    """Return a frame as bytes."""
    data = body if isinstance(body, bytes) else _encode(body)
    return _HEAD.pack(kind, number, len(data)) + data


def read(body: bytes, type: type[_T]) -> _T:
    """Return the body of a frame."""
    return msgspec.msgpack.decode(body, type=type)


class FrameParser:
    """Finds frames in the bytes of a connection."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def frames(self, data: bytes) -> list[ServerFrame]:
        """Return the frames that are complete with these bytes; raises `ValueError`."""
        rest = self._rest
        rest += data
        found, at, end = [], 0, len(rest)
        while end - at >= _HEAD.size:
            kind, number, length = _HEAD.unpack_from(rest, at)
            if length > LONGEST:
                raise ValueError(f"a frame of {length} bytes")
            start = at + _HEAD.size
            if end - start < length:
                break
            at = start + length
            found.append(ServerFrame(kind, number, bytes(rest[start:at])))
        if at:
            del rest[:at]
        return found


class FrameChannel:
    """The engine's end: any thread sends, one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._parser = FrameParser()
        self._sending = threading.Lock()
        self._closed = False
        self._wait_seconds = 0.0
        # Not `select`, which knows only the first 1,024 descriptors of a process.
        self._output = select.poll()
        self._output.register(end, select.POLLOUT)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))

    def send(self, frames: Iterable[bytes] | bytes) -> bool:
        """Send frames in one write; False if the other end is gone or takes nothing."""
        data = frames if isinstance(frames, bytes) else b"".join(frames)
        with self._sending:
            if self._closed:
                return False
            try:
                self._end.sendall(data)
            except OSError:
                # Half a frame may have been sent: nothing after it could be read.
                self._shut()
                return False
        return True

    def offer(self, data: bytes) -> bool:
        """Send a frame if that needs no wait; False if it was not sent."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self._closed or not self._output.poll(0):
                return False
            # A writable stream socket has room for a small frame; a large one would wait here.
            sent = self._end.send(data, socket.MSG_DONTWAIT)
            if sent < len(data):
                self._end.sendall(data[sent:])
        except OSError:
            self._shut()
            return False
        else:
            return True
        finally:
            self._sending.release()

    def receive(self, seconds: float) -> list[ServerFrame] | None:
        """Return what has arrived, after waiting for it; empty after `seconds`, None at the end."""
        try:
            if seconds and seconds != self._wait_seconds:
                # The kernel's limit: one call less for each turn than to poll first.
                limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
                self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                self._wait_seconds = seconds
            data = self._end.recv(_PIECE, 0 if seconds else socket.MSG_DONTWAIT)
            return self._parser.frames(data) if data else None
        except BlockingIOError:
            return []
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close this end; a thread that sends or receives gets its end of file."""
        self._shut()
        with self._sending:
            self._end.close()

    def _shut(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)


class ChannelProtocol(asyncio.Protocol):
    """The child's end, on its event loop."""

    def __init__(
        self, take: Callable[[Sequence[ServerFrame]], None], lost: Callable[[], None]
    ) -> None:
        """`take` is called with the frames of one turn of the loop, `lost` when the engine ends."""
        self._take = take
        self._lost = lost
        self._parser = FrameParser()
        self._collected: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an `isinstance`: uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._parser.frames(data)
        except ValueError:
            if self._transport is not None:
                self._transport.abort()
            return
        if frames:
            self._take(frames)

    def send(self, kind: FrameKind, number: int = 0, body: bytes | msgspec.Struct = b"") -> None:
        """Send a frame, together with all others of this turn of the loop."""
        if self._transport is None:
            return
        if not self._collected:
            asyncio.get_running_loop().call_soon(self._write)
        self._collected.append(framed(kind, number, body))

    def _write(self) -> None:
        data, self._collected = b"".join(self._collected), []
        if self._transport is not None:
            self._transport.write(data)
