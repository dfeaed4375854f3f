"""Frames between an engine and its server."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.channel import (
    LONGEST,
    FrameChannel,
    FrameKind,
    FrameParser,
    ServerFrame,
    framed,
)
from tests.support.patience import patience
from tests.support.tiers import examples

FRAMES = st.lists(
    st.builds(
        ServerFrame,
        st.sampled_from(list(FrameKind)),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=200),
    )
)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1))
@examples(100)
def test_frames_are_the_same_however_their_bytes_come(
    frames: list[ServerFrame], sizes: list[int]
) -> None:
    data = b"".join(framed(FrameKind(kind), number, body) for kind, number, body in frames)
    parser, found, turn = FrameParser(), [], 0
    while data:
        size = sizes[turn % len(sizes)]
        found += parser.frames(data[:size])
        data, turn = data[size:], turn + 1
    assert found == frames


def test_a_frame_that_claims_too_much_is_not_one_of_ours() -> None:
    with pytest.raises(ValueError, match="frame"):
        FrameParser().frames(b"\1" + bytes(4) + (LONGEST + 1).to_bytes(4, "big"))


def test_the_end_of_a_connection_is_seen_and_nothing_is_sent_after_it() -> None:
    ours, theirs = socket.socketpair()
    channel = FrameChannel(ours)
    theirs.sendall(framed(FrameKind.ASK, 1, b"a"))
    assert channel.receive(patience()) == [ServerFrame(FrameKind.ASK, 1, b"a")]
    assert channel.receive(0) == []
    theirs.close()
    assert channel.receive(patience()) is None
    assert not channel.send(framed(FrameKind.ANSWER, 1))
    assert not channel.offer(framed(FrameKind.EVENT, 1))
    channel.close()


def test_a_receiver_is_woken_by_a_close() -> None:
    ours, theirs = socket.socketpair()
    channel, found = FrameChannel(ours), []
    thread = threading.Thread(target=lambda: found.append(channel.receive(patience())))
    thread.start()
    channel.close()
    thread.join(patience())
    assert found == [None]
    theirs.close()


def test_an_offer_does_not_wait_for_an_end_that_takes_nothing() -> None:
    ours, theirs = socket.socketpair()
    channel, event = FrameChannel(ours), framed(FrameKind.EVENT, 1, bytes(300))
    sent = 0
    while channel.offer(event):
        sent += 1
    assert sent > 0
    theirs.setblocking(False)
    got = 0
    while got < sent * len(event):
        got += len(theirs.recv(1 << 20))
    assert got == sent * len(event)
    channel.close()
    theirs.close()
