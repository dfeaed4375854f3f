"""
The engine's side of requests: it answers what the child asks.

A lookup is answered at once, on the thread that received it, and all answers of one turn go back in
one write. Other reads have a few threads. What changes something may wait for a minute,
so each such request has a thread of its own, and none delays a read.

A stream has a thread, too. It sends no more than `WINDOW` bytes that its reader has not taken: a
slow reader holds its own stream and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from headrace.api import connect
from headrace.api.methods import METHODS
from headrace.api.services import Caller
from headrace.errors import ControlError, HeadraceError, LimitReached
from headrace.observe.logs import logger
from headrace.server.audit import OK, AuditEntry, entry_of
from headrace.server.channel import (
    CREDIT,
    Ask,
    CallFailure,
    FrameChannel,
    FrameKind,
    ServerFrame,
    framed,
    read,
)

if TYPE_CHECKING:
    from headrace.api.methods import Method
    from headrace.api.services import Services

_log = logger(__name__)

MOST_READERS = 16
"""Threads for requests that only read; there are as many as were needed at a time."""

MOST_CHANGES = 32
"""Requests that change something, at the same time."""

MOST_STREAMS = 1_000

LONGEST_ANSWER = 64 << 20
"""Bytes of one answer, or of one message of a stream."""

WINDOW = 256 << 10
"""Bytes of a stream on their way to its reader; one message may be longer."""

_AT_ONCE = frozenset({"Lookup", "GetRow", "CountRows"})
"""
The queries that are answered where they are received: microseconds each. Not those with many rows,
which may take a tenth of a second.
"""


class Closable(Protocol):
    """A stream that can be ended from another thread."""

    def close(self) -> None: ...


class Answers:
    """Answers the requests of one child, until `close`."""

    def __init__(
        self,
        services: Services,
        audit: Callable[[Sequence[AuditEntry]], None],
        calls: FrameChannel,
        bulk: FrameChannel,
    ) -> None:
        self._services = services
        self._audit = audit
        self._calls = calls
        self._bulk = bulk
        # Not an executor: Python waits for its threads at the end, also for one that hangs.
        self._reads: SimpleQueue[tuple[int, Ask] | None] = SimpleQueue()
        self._readers = 0
        self._lock = threading.Lock()
        self._changes = 0
        self._streams: dict[int, _Stream] = {}
        self._closed = False

    def take(self, frames: Sequence[ServerFrame]) -> None:
        """Take the frames of one turn; does not wait."""
        answers: list[bytes] = []
        for frame in frames:
            match frame.kind:
                case FrameKind.ASK:
                    self._ask(frame.number, read(frame.body, Ask), answers)
                case FrameKind.OPEN:
                    self._open(frame.number, read(frame.body, Ask))
                case FrameKind.CREDIT:
                    if (stream := self._streams.get(frame.number)) is not None:
                        stream.credit(CREDIT.unpack(frame.body)[0])
                case FrameKind.CANCEL:
                    if (stream := self._streams.get(frame.number)) is not None:
                        stream.close()
        if answers:
            self._calls.send(answers)

    def close(self) -> None:
        """End every stream, and answer nothing more."""
        with self._lock:
            self._closed = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        for _ in range(self._readers):
            self._reads.put(None)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def _ask(self, number: int, ask: Ask, answers: list[bytes]) -> None:
        method = METHODS.get(ask.path)
        if method is not None and method.changes:
            with self._lock:
                free = self._changes < MOST_CHANGES
                self._changes += free
            if not free:
                answers.append(
                    framed(FrameKind.FAILURE, number, failure(_limit_reached("changes")))
                )
                return
            threading.Thread(
                target=self._change,
                args=(number, ask, method),
                name="headrace-server-change",
                daemon=True,
            ).start()
        elif method is not None and method.name in _AT_ONCE:
            answers.append(self._answered(number, ask))
        else:
            self._reads.put((number, ask))
            # One that hangs must not hold those that come after it.
            if self._readers < MOST_READERS and (not self._readers or not self._reads.empty()):
                self._readers += 1
                threading.Thread(
                    target=self._read, name="headrace-server-read", daemon=True
                ).start()

    def _read(self) -> None:
        while (waiting := self._reads.get()) is not None:
            if not self._closed:
                self._calls.send(self._answered(*waiting))

    def _change(self, number: int, ask: Ask, method: Method) -> None:
        try:
            answer, outcome = self._outcome(number, ask)
            self._audit([entry_of(method, outcome, _caller(ask), body=ask.body)])
            self._calls.send(answer)
        finally:
            with self._lock:
                self._changes -= 1

    def _answered(self, number: int, ask: Ask) -> bytes:
        return self._outcome(number, ask)[0]

    def _outcome(self, number: int, ask: Ask) -> tuple[bytes, str]:
        """Return the frame with the answer, and `ok` or the code of the error."""
        try:
            answer = self._services.call(ask.path, ask.body, _caller(ask))
        except Exception as error:  # noqa: BLE001 - a bug must not look like silence
            code = error.code if isinstance(error, HeadraceError) else "internal"
            return framed(FrameKind.FAILURE, number, failure(error)), code
        if len(answer) > LONGEST_ANSWER:
            refused = _too_long(len(answer))
            return framed(FrameKind.FAILURE, number, failure(refused)), refused.code
        return framed(FrameKind.ANSWER, number, answer), OK

    def _open(self, number: int, ask: Ask) -> None:
        stream = _Stream(number, self._bulk, self._ended)
        with self._lock:
            free = not self._closed and len(self._streams) < MOST_STREAMS
            if free:
                self._streams[number] = stream
        if not free:
            self._calls.send(framed(FrameKind.FAILURE, number, failure(_limit_reached("streams"))))
            return
        threading.Thread(
            target=stream.run,
            args=(self._services, ask),
            name="headrace-server-stream",
            daemon=True,
        ).start()

    def _ended(self, number: int) -> None:
        with self._lock:
            self._streams.pop(number, None)


class _Stream:
    """One stream of answers to one reader."""

    def __init__(self, number: int, bulk: FrameChannel, ended: Callable[[int], None]) -> None:
        self._number = number
        self._bulk = bulk
        self._ended = ended
        self._room = threading.Condition()
        self._unread = 0
        self._closed = False
        self._source: Closable | None = None

    def run(self, services: Services, ask: Ask) -> None:
        """Send all messages; on a thread of its own."""
        end = framed(FrameKind.END, self._number)
        try:
            stream = services.stream(ask.path, ask.body, _caller(ask))
            with self._room:
                self._source = stream
            try:
                # `close` may have come before there was anything to close.
                if not self._closed:
                    for message in stream:
                        if not self._send(message):
                            break
            finally:
                stream.close()
        except Exception as error:  # noqa: BLE001 - a bug must not look like an end
            end = framed(FrameKind.FAILURE, self._number, failure(error))
        finally:
            self._ended(self._number)
        self._bulk.send(end)

    def _send(self, message: bytes) -> bool:
        if len(message) > LONGEST_ANSWER:
            raise _too_long(len(message))
        with self._room:
            while not self._closed and self._unread and self._unread + len(message) > WINDOW:
                self._room.wait()
            if self._closed:
                return False
            self._unread += len(message)
        return self._bulk.send(framed(FrameKind.MESSAGE, self._number, message))

    def credit(self, taken: int) -> None:
        """The reader has taken so many bytes."""
        with self._room:
            self._unread = max(0, self._unread - taken)
            self._room.notify()

    def close(self) -> None:
        """End the stream from another thread."""
        with self._room:
            self._closed = True
            self._room.notify()
            source = self._source
        if source is not None:
            source.close()


def failure(error: BaseException) -> CallFailure:
    """Return an error as it is sent; a mistake of ours is logged, and told without its text."""
    if not isinstance(error, HeadraceError):
        _log.failed("request failed", error, code="internal")
        error = ControlError(
            f"Internal error ({type(error).__name__})",
            remedy="Please report this, and include the end of logs/headrace.log in the data"
            " directory.",
        )
    status, fields = connect.error_fields(error)
    return CallFailure(status, connect.message(fields))


def _caller(ask: Ask) -> Caller:
    return Caller(ask.name, ask.role, ask.address, ask.tables)


def _too_long(size: int) -> LimitReached:
    return LimitReached(
        f"The answer has {size:,} bytes, more than the {LONGEST_ANSWER:,} that are sent",
        remedy="Ask for less: with a limit, page by page, or as a stream.",
    )


def _limit_reached(what: str) -> LimitReached:
    most = MOST_CHANGES if what == "changes" else MOST_STREAMS
    return LimitReached(f"The engine has {most} open {what}, the most it takes", most=most)
