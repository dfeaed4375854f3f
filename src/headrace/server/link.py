"""
The engine, as its server child sees it: what it answers, and whether it does.

The engine sends its state each second. If none has come for `SILENT_SECONDS`, the engine hangs:
what waits for it ends, what comes is refused at once, and the server is not ready until it is heard
of again. The child counts its own ticks, so that a child that was suspended does not blame the
engine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.api import connect
from headrace.errors import (
    HeadraceError,
    LimitReached,
    NoAnswer,
    NoEngine,
    RequestTimeout,
    Unauthenticated,
)
from headrace.server.audit import OK, AuditEntry, Refusals, entry_of
from headrace.server.channel import (
    CREDIT,
    Ask,
    CallFailure,
    ChannelProtocol,
    Clients,
    Drain,
    EngineReport,
    FrameKind,
    ServerFrame,
    read,
)

if TYPE_CHECKING:
    from headrace.api.methods import Method
    from headrace.api.services import Caller
    from headrace.server.copies import HeldTables
    from headrace.server.settings import ServerLimits

SILENT_SECONDS = 5
"""So long without its state, and the engine hangs."""

WAITING_BYTES = 64 << 20
"""Bytes of all requests that wait for the engine."""

MOST_EVENTS = 1_000
"""Events that are kept for readers that come later, or come back."""


class EngineLink:
    """The engine. Used on the child's event loop alone."""

    def __init__(
        self,
        limits: ServerLimits,
        server: str,
        lost: Callable[[], None],
        changed: Callable[[], None],
        renewed: Callable[[bytes], None] = lambda settings: None,
    ) -> None:
        """
        `lost` is called when the engine ends, `changed` when its state may be another, and
        `renewed` when there are other tokens.
        """
        self.calls = ChannelProtocol(self._take, lost)
        self.bulk = ChannelProtocol(self._take, lost)
        self.state = EngineReport("starting", {})
        self.draining: Drain | None = None
        self.events = EventHistory(server)
        self.parent = os.getppid()
        self._limits = limits
        self._lost = lost
        self._changed = changed
        self._renewed = renewed
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes | CallFailure]] = {}
        self._waiting_bytes = 0
        self._streams: dict[int, EngineStream] = {}
        self._refusals = Refusals()
        self._silent = 0
        self._connections = self._answered = self._failed = 0
        self.stalled = 0
        """Connections that were ended because their reader took nothing."""
        self.copies: HeldTables | None = None
        """What is answered here, and not by the engine; None without `server.hold`."""

    # --- its state --------------------------------------------------------------------------------

    @property
    def hangs(self) -> bool:
        """Whether it has not been heard of for too long."""
        return self._silent >= SILENT_SECONDS

    @property
    def is_ready(self) -> bool:
        """Whether all is applied, as far as the engine knows, and it goes on."""
        return (
            not self.hangs
            and self.draining is None
            and self.state.phase == "running"
            and bool(self.state.health.get("ready", {}).get("ok"))
        )

    def audit(self, method: Method | str, outcome: str, caller: Caller | None, at: str) -> None:
        """Record a login; or a refusal, unless there are too many of the same."""
        entry = entry_of(method, outcome, caller, at)
        self._record([entry] if outcome == OK else self._refusals.take(entry))

    def _record(self, entries: Sequence[AuditEntry]) -> None:
        if entries:
            self.calls.send(FrameKind.AUDIT, body=msgspec.msgpack.encode(list(entries)))

    def tick(self, connections: int) -> None:
        """Note that a second has passed, and tell the engine who is served."""
        self._record(self._refusals.due())
        if os.getppid() != self.parent:
            # Another process has inherited the engine's end, so there was no end of file.
            self._lost()
            return
        self._silent += 1
        if self._silent == SILENT_SECONDS:
            self._end_all(self._hanging())
            self._changed()
        self._connections = connections
        self.calls.send(FrameKind.CLIENTS, body=self.clients)

    @property
    def clients(self) -> Clients:
        """Who is served; the number of connections is that of the last second."""
        return Clients(
            self._connections,
            len(self._waiting),
            len(self._streams),
            self._answered,
            self._failed,
            self.stalled,
        )

    def end(self) -> None:
        """End all that waits, because the engine is gone or going."""
        reason = "The server ended before it answered"
        if self.draining is not None:
            reason = self.draining.reason
        self._end_all(failure(NoEngine(reason, remedy="Try again in a moment.")))

    def _end_all(self, why: CallFailure) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_result(why)
        for stream in list(self._streams.values()):
            stream.finish(why)
            stream.close()  # an engine that hangs may go on later

    def _hanging(self) -> CallFailure:
        return failure(NoAnswer(f"The engine was silent for {SILENT_SECONDS} seconds"))

    # --- requests ---------------------------------------------------------------------------------

    async def ask(
        self, path: str, caller: Caller, body: bytes, seconds: float | None = None
    ) -> bytes | CallFailure:
        """Return the engine's answer, or the error instead; `seconds` is how long to wait."""
        if (refused := self._refused(len(body))) is not None:
            return refused
        if self.copies is not None:
            held = self.copies.answer(path, caller, body)
            if held is not None:
                self._answered += 1
                self._failed += isinstance(held, CallFailure)
                return held
        number = next(self._numbers)
        future: asyncio.Future[bytes | CallFailure] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._waiting_bytes += len(body)
        self.calls.send(FrameKind.ASK, number, _ask(path, caller, body))
        try:
            if seconds is None:
                answer = await future
            else:
                async with asyncio.timeout(seconds):
                    answer = await future
        except TimeoutError:
            answer = out_of_time()
        finally:
            del self._waiting[number]
            self._waiting_bytes -= len(body)
        self._answered += 1
        self._failed += isinstance(answer, CallFailure)
        return answer

    def open(self, path: str, caller: Caller, body: bytes) -> EngineStream | CallFailure:
        """Return a stream of the engine's messages, or the error instead."""
        mine = sum(stream.caller == caller.name for stream in self._streams.values())
        if mine >= self._limits.streams_per_token:
            most = self._limits.streams_per_token
            return failure(LimitReached(f"{caller.name} has {most} open streams", most=most))
        if (refused := self._refused(len(body))) is not None:
            return refused
        number = next(self._numbers)
        stream = EngineStream(number, caller.name, self)
        self._streams[number] = stream
        self.calls.send(FrameKind.OPEN, number, _ask(path, caller, body))
        return stream

    def _refused(self, size: int) -> CallFailure | None:
        if self.draining is not None and self.draining.now:
            return failure(NoEngine(self.draining.reason, remedy="Try again in a moment."))
        if self.hangs:
            return self._hanging()
        most = self._limits.open_requests
        if len(self._waiting) >= most or self._waiting_bytes + size > WAITING_BYTES:
            return failure(
                LimitReached(f"{len(self._waiting)} requests wait for the engine", most=most)
            )
        return None

    def end_streams(self, names: Collection[str]) -> None:
        """End the streams of these callers, because their tokens are not valid any more."""
        for stream in list(self._streams.values()):
            if stream.caller in names:
                stream.finish(failure(ended(stream.caller)))
                stream.close()

    def closed(self, stream: EngineStream) -> None:
        """Tell the engine that nobody reads a stream any more."""
        if self._streams.pop(stream.number, None) is not None:
            self.calls.send(FrameKind.CANCEL, stream.number)

    def taken(self, stream: EngineStream, size: int) -> None:
        """Tell the engine that a reader has taken so many bytes."""
        if stream.number in self._streams:
            self.calls.send(FrameKind.CREDIT, stream.number, CREDIT.pack(size))

    # --- what comes -------------------------------------------------------------------------------

    def _take(self, frames: Sequence[ServerFrame]) -> None:
        for kind, number, body in frames:
            match kind:
                case FrameKind.ANSWER:
                    self._answer(number, body)
                case FrameKind.FAILURE:
                    why = read(body, CallFailure)
                    if (stream := self._streams.pop(number, None)) is not None:
                        stream.finish(why)
                    else:
                        self._answer(number, why)
                case FrameKind.MESSAGE:
                    if (stream := self._streams.get(number)) is not None:
                        stream.add(body)
                case FrameKind.END:
                    if (stream := self._streams.pop(number, None)) is not None:
                        stream.finish(None)
                case FrameKind.EVENT:
                    self.events.add(number, body)
                case FrameKind.STATE:
                    self._silent = 0
                    self.state = read(body, EngineReport)
                    self._changed()
                case FrameKind.TOKENS:
                    self._renewed(body)
                case FrameKind.DRAIN:
                    self.draining = read(body, Drain)
                    if self.draining.now:
                        self.end()
                    self._changed()

    def _answer(self, number: int, answer: bytes | CallFailure) -> None:
        # Whoever asked may have left, or may have been told that the engine hangs.
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(answer)


class EngineStream:
    """A stream of the engine's messages; one reader."""

    def __init__(self, number: int, caller: str, link: EngineLink) -> None:
        self.number = number
        self.caller = caller
        self.failure: CallFailure | None = None
        """The error with which it ended, if it has."""
        self._link = link
        self._messages: deque[bytes] = deque()
        self._given = 0
        self._over = False
        self._bell = asyncio.Event()

    async def messages(self) -> list[bytes]:
        """Return what has come since the last call, which was taken; empty at the end."""
        if self._given:
            self._link.taken(self, self._given)
            self._given = 0
        while not self._messages and not self._over:
            self._bell.clear()
            await self._bell.wait()
        found = list(self._messages)
        self._messages.clear()
        self._given = sum(map(len, found))
        return found

    def close(self) -> None:
        """Read no more."""
        self._link.closed(self)

    def add(self, message: bytes) -> None:
        """Take a message from the engine."""
        self._messages.append(message)
        self._bell.set()

    def finish(self, failure: CallFailure | None) -> None:
        """Take the end; messages that have come are read first."""
        self._over, self.failure = True, failure
        self._bell.set()


class EventHistory:
    """The last events of an engine, for any number of readers, each at its own place."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._events: deque[tuple[int, bytes]] = deque(maxlen=MOST_EVENTS)
        self._bell = asyncio.Event()
        self.over = False

    def add(self, number: int, event: bytes) -> None:
        """Take an event; numbers ascend, and a number that was dropped is missing."""
        if self._events and number <= self._events[-1][0]:
            return
        self._events.append((number, event))
        self._ring()

    def finish(self) -> None:
        """End all readers."""
        self.over = True
        self._ring()

    def _ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    @property
    def newest(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._events[-1][0] if self._events else 0

    def place(self, name: str | None) -> int:
        """Return the number after which to continue: that of `name`, if it is one of ours."""
        server, _, number = (name or "").rpartition("-")
        if server == self._server and number.isdecimal():
            return int(number)
        # A reader of an earlier engine has seen none of these events; a new one wants none.
        return 0 if name else self.newest

    def name(self, number: int) -> str:
        """Return the name by which a reader continues after this event."""
        return f"{self._server}-{number}"

    async def after(self, place: int, most: int = 100) -> list[tuple[int, bytes]]:
        """Return the next events, after waiting for them; empty at the end."""
        while self.newest <= place and not self.over:
            await self._bell.wait()
        return [each for each in self._events if each[0] > place][:most]


def failure(error: HeadraceError) -> CallFailure:
    """Return an error as it is sent."""
    status, fields = connect.error_fields(error)
    return CallFailure(status, connect.message(fields))


def out_of_time() -> CallFailure:
    """Return the error for a caller whose time is over."""
    return failure(
        RequestTimeout(
            "The engine did not answer within the time that the caller allows",
            remedy="Allow more time. What was asked may still be done: look at the status.",
        )
    )


def ended(name: str) -> HeadraceError:
    """Return the error for a reader whose token is not valid any more."""
    return Unauthenticated(f"The token {name} is not valid any more")


def _ask(path: str, caller: Caller, body: bytes) -> bytes:
    return msgspec.msgpack.encode(
        Ask(path, caller.name, caller.role, caller.address, tuple(caller.tables), body)
    )
