"""Reading from the socket itself: whatever comes, in whatever pieces."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.stream.stream import GULP_SECONDS, Pace
from headrace.capture.postgres.stream.wire import SMALL, SocketWire, StreamEnded
from headrace.errors import BadMessage

BEGUN = b"W" + struct.pack(">IBH", 7, 0, 0)
NOTICE = b"N" + struct.pack(">I", 4 + 21) + b"SNOTICE\0C00000\0Mhello"
REFUSED = b"SERROR\0VERROR\0C55006\0Mreplication slot is active\0\0"


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content) + 4) + content


class Idle:
    """A connection of libpq's as far as one that is idle is needed."""

    def __init__(self, ours: socket.socket) -> None:
        self.socket = ours.fileno()

    def is_busy(self) -> int:
        return 0


class Ends:
    """A wire, and the server's end of it."""

    def __init__(self) -> None:
        self.server, self._ours = socket.socketpair()
        self.wire = SocketWire(cast(Any, Idle(self._ours)))

    def begin(self) -> None:
        self.server.sendall(BEGUN)
        self.wire.begin(b"GO", 5)
        assert self.server.recv(100) == message(b"Q", b"GO\0")

    def read(self, most_bytes: int = 1 << 20) -> list[bytes]:
        found = self.wire.read(most_bytes)
        if found is None:
            return []
        return [
            bytes(found.buffer[start:stop])
            for start, stop in zip(found.starts, found.stops, strict=True)
        ]

    def close(self) -> None:
        self.wire.close()
        self.server.close()
        self._ours.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_what_comes_by_the_way_is_passed_over(ends: Ends) -> None:
    ends.server.sendall(NOTICE + message(b"S", b"TimeZone\0UTC\0"))
    ends.begin()
    ends.server.sendall(message(b"d", b"one") + NOTICE + message(b"d", b"two"))
    assert ends.read() == [b"one", b"two"]
    ends.server.sendall(NOTICE)
    assert ends.read() == []


def test_a_refusal_has_the_servers_code(ends: Ends) -> None:
    ends.server.sendall(message(b"E", REFUSED))
    with pytest.raises(StreamEnded) as caught:
        ends.wire.begin(b"GO", 5)
    assert caught.value.sqlstate == "55006"


def test_a_server_that_does_not_answer_is_given_up(ends: Ends) -> None:
    with pytest.raises(StreamEnded):
        ends.wire.begin(b"GO", 0.01)


@pytest.mark.parametrize(
    ("last", "sqlstate"),
    [
        (message(b"E", REFUSED), "55006"),
        (message(b"c", b""), None),
        (message(b"C", b"COPY 0\0"), None),
        (b"", None),
    ],
    ids=["error", "copy done", "command complete", "gone"],
)
def test_what_came_before_an_end_is_given_first(
    ends: Ends, last: bytes, sqlstate: str | None
) -> None:
    ends.begin()
    ends.server.sendall(message(b"d", b"one") + last)
    ends.server.shutdown(socket.SHUT_WR)
    assert ends.read() == [b"one"]
    for _ in range(2):
        with pytest.raises(StreamEnded) as caught:
            ends.read()
        assert caught.value.sqlstate == sqlstate


def test_a_message_that_is_cut_off_by_the_end_is_not_given(ends: Ends) -> None:
    ends.begin()
    ends.server.sendall(message(b"d", b"one") + message(b"d", b"two")[:-1])
    ends.server.close()
    assert ends.read() == [b"one"]
    with pytest.raises(StreamEnded):
        ends.read()


@pytest.mark.parametrize("bytes_", [b"x\0\0\0\4", b"d\0\0\0\3abc", b"d\xff\xff\xff\xff"])
def test_what_is_no_message_is_said(ends: Ends, bytes_: bytes) -> None:
    ends.begin()
    ends.server.sendall(bytes_)
    with pytest.raises(BadMessage):
        for _ in range(2):
            ends.read()


def test_a_long_message_comes_whole_whatever_is_asked_for(ends: Ends) -> None:
    ends.begin()
    long = bytes(range(256)) * (5 * SMALL // 256)
    sent = memoryview(message(b"d", long) + message(b"d", b"short"))
    found: list[bytes] = []
    while sent or len(found) < 2:
        sent = sent[ends.server.send(sent[:SMALL]) :] if sent else sent
        found += ends.read(1000)
    assert found == [long, b"short"]


def test_a_buffer_that_was_given_out_does_not_change(ends: Ends) -> None:
    ends.begin()
    given_out = []
    for number in range(6):
        content = bytes([number]) * (SMALL // 3 if number % 2 else 10)
        ends.server.sendall(message(b"d", content) * 4 + b"d")
        found = ends.wire.read(1 << 20)
        assert found is not None
        given_out.append((found, bytes(found.buffer)))
        ends.server.sendall(struct.pack(">I", 4))
        ends.wire.read(1 << 20)
    for found, before in given_out:
        assert found.buffer == before


@given(
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12),
    st.lists(st.integers(1, 60), min_size=1),
    st.integers(1, 200),
)
def test_pieces_of_any_size_give_the_same_messages(
    contents: list[bytes], pieces: list[int], most_bytes: int
) -> None:
    ends = Ends()
    try:
        ends.begin()
        sent = b"".join(message(b"d", content) for content in contents)
        found: list[bytes] = []
        for size in pieces * len(sent):
            if not sent:
                break
            ends.server.sendall(sent[:size])
            sent = sent[size:]
            found += ends.read(most_bytes)
        while more := ends.read(most_bytes):
            found += more
        assert found == contents
    finally:
        ends.close()


@pytest.fixture
def pace() -> Iterator[Pace]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        yield Pace(client.fileno())


def test_little_traffic_is_read_at_once_and_much_in_gulps(pace: Pace) -> None:
    now = 100.0
    for _ in range(100):  # a thousand small commits a second
        pace.note(400, now := now + 0.001)
        assert pace.pause(now) == 0
    for _ in range(100):  # forty megabytes a second
        pace.note(4000, now := now + 0.0001)
    pace.note(4000, now := now + 0.001)
    assert 0 < pace.pause(now) <= GULP_SECONDS
    assert pace.pause(now + GULP_SECONDS) == 0
    for _ in range(10):
        pace.note(800_000, now := now + GULP_SECONDS)
        assert pace.busy
    pace.note(900, now := now + GULP_SECONDS)
    assert pace.pause(now) == 0


def test_one_burst_after_a_rest_is_not_yet_much(pace: Pace) -> None:
    pace.note(400, 100.0)
    pace.note(1_000_000, 200.0)
    assert pace.pause(200.0) == 0


def test_a_socket_whose_buffer_stays_small_is_always_read_at_once() -> None:
    ours, other = socket.socketpair()
    with ours, other:
        pace = Pace(ours.fileno())
        for step in range(1000):
            pace.note(1_000_000, step / 1000)
        assert not pace.busy
