"""No bytes can do more harm than a `BadMessage`."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.stream import transactions as module
from headrace.errors import BadMessage, HeadraceError
from tests.postgres import messages as m
from tests.postgres.naive import History, cut, made, relation, rows, taken
from tests.support.tiers import examples

LENGTHS = (0, 1, 2**31 - 1, -1, -(2**31), 2**31 - 6, 0x7FFF, 256)


def mutated(source: random.Random, messages: Sequence[bytes]) -> list[bytes]:
    """Return the messages with some of them broken, lost, doubled or in another order."""
    found = list(messages)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(found))
        message = bytearray(found[at])
        way = source.randrange(8)
        if way == 0:
            message[source.randrange(len(message))] = source.randrange(256)
        elif way == 1:
            message = message[: source.randint(1, len(message))]
        elif way == 2 and len(message) > 5:
            place = source.randrange(1, len(message) - 3)
            message[place : place + 4] = struct.pack(">i", source.choice(LENGTHS))
        elif way == 3:
            message += source.randbytes(source.randint(1, 9))
        elif way == 4:
            message = bytearray(source.randbytes(source.randint(1, 40)))
        elif way == 5:
            message[0] = ord(source.choice("BCIUDTRYOMSEcA"))
        found[at] = bytes(message)
        if way == 6 and len(found) > 1:
            del found[at]
        elif way == 7:
            found.insert(source.randrange(len(found)), found[at])
    return found


def survives(seed: int, messages: Sequence[bytes]) -> bool:
    """Take the messages, broken; return whether they were refused."""
    source = random.Random(seed)
    transactions = made()
    # Without anything between them, a step too far leads out of the buffer at once.
    wire = source.choice([m.WIRE, m.Wire(b"")])
    tail = patch.object(module, "TAIL_BYTES", source.choice([0, 100, module.TAIL_BYTES]))
    piece = patch.object(module, "PIECE_MESSAGES", source.choice([1, module.PIECE_MESSAGES]))
    try:
        with tail, piece:
            for part in cut(source, mutated(source, messages)):
                for changes in taken(transactions, part, wire):
                    for table in changes.tables:
                        table.rows.validate(full=True)
    except BadMessage as error:
        assert isinstance(error.facts["offset"], int)
        return True
    return False


@given(seed=st.integers(0, 2**32))
@examples(200)
@pytest.mark.meets("R23f")
@pytest.mark.slow
def test_broken_messages_are_refused_or_read_and_nothing_else(seed: int) -> None:
    history = History(random.Random(seed)).run(25)
    if history.messages:
        survives(seed, history.messages)


@given(buffer=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=20))
@examples(200)
def test_any_bytes_are_refused_or_read_and_nothing_else(buffer: list[bytes]) -> None:
    try:
        taken(made(), buffer, m.Wire(b""))
    except BadMessage as error:
        assert isinstance(error.facts["offset"], int)


_HEAD = [m.begin(5), m.relation(relation(1, 0)), m.relation(relation(2, 0))]
_TUPLE = ["1", "a", "b", "c"]


@pytest.mark.parametrize(
    "messages",
    [
        [m.commit(9)],
        [m.insert(1, _TUPLE)],
        [m.begin(5), m.begin(6), m.commit(9), m.commit(10)],
        [*_HEAD, m.commit(8), m.begin(6), m.insert(1, _TUPLE), *_HEAD, m.commit(9)],
        [m.begin(5), m.insert(1, _TUPLE), *_HEAD, m.commit(9)],
        [m.begin(5), m.insert(1, _TUPLE), m.commit(9)],
        [m.begin(5), m.truncate([1]), m.commit(9)],
        [*_HEAD, m.insert(77, _TUPLE), m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE[:3]), m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE) + b"x", m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE)[:-1], m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE)[:6], m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE)[:5], m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE)[:2], m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE).replace(b"N", b"X"), m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE).replace(b"N", b"K"), m.commit(9)],
        [*_HEAD, m.insert(1, _TUPLE).replace(b"t", b"x"), m.commit(9)],
        [*_HEAD, m.insert(1, ["1", "a", m.Binary(b"b"), "c"]), m.insert(1, _TUPLE), m.commit(9)],
        [*_HEAD, m.delete(1, key=_TUPLE).replace(b"K", b"N"), m.commit(9)],
        [*_HEAD, m.delete(1, key=_TUPLE) + b"N", m.commit(9)],
        [*_HEAD, m.update(2, _TUPLE, old=_TUPLE)[:-30], m.commit(9)],
        [*_HEAD, m.update(2, _TUPLE, old=_TUPLE).replace(b"N", b"O"), m.commit(9)],
        [*_HEAD, m.begin(5)[:-1]],
        [*_HEAD, m.commit(9) + b"\0"],
        [*_HEAD, m.commit(2**63)],
        [*_HEAD, m.commit(9, time=2**62 + 2**61)],
        [*_HEAD, m.commit(9, time=m.EPOCH - 2**63)],
        [*_HEAD, m.commit(9), m.begin(6), m.commit(9)],
        [*_HEAD, m.commit(9), m.begin(6), m.commit(8)],
        [*_HEAD, m.truncate([1])[:-1], m.commit(9)],
        [*_HEAD, m.origin(1, "x")[:-1], m.commit(9)],
        [*_HEAD, m.type_(1, "x", "y")[:-1], m.commit(9)],
        [*_HEAD, m.message(1, "x", b"y")[:-1], m.commit(9)],
        [*_HEAD, m.relation(relation(1, 0))[:-1], m.commit(9)],
        [m.message(1, "x", b"y")],
        [m.origin(1, "x")],
        [m.relation(relation(1, 0))],
        [m.stream_stop()],
        [m.stream_commit(5, 9)],
        [m.stream_start(5, first=False)],
        [m.stream_start(5, first=True), m.stream_stop(), m.stream_start(5, first=True)],
        [m.stream_start(5, first=True), m.stream_start(6, first=True)],
        [m.stream_start(5, first=True), m.stream_commit(5, 9)],
        [m.stream_start(5, first=True), m.begin(5)],
        [m.stream_start(5, first=True), b"I\0\0"],
        [m.stream_start(5, first=True), m.stream_stop() + b"\0"],
        [m.stream_start(5, first=True), m.stream_stop(), m.stream_commit(5, 9)[:-1]],
        [m.stream_start(5, first=True), m.stream_stop(), m.stream_commit(5, 2**63)],
        [m.stream_start(5, first=True), m.stream_stop(), m.stream_abort(5, 6) + b"1"],
        [
            m.stream_start(5, first=True),
            m.insert(1, _TUPLE, xid=5),
            m.stream_stop(),
            m.stream_commit(5, 9),
        ],
        [*_HEAD, m.stream_start(5, first=True)],
        [*_HEAD, m.stream_abort(5, 5)],
        [b"b" + bytes(28)],
        [b"\0"],
    ],
)
def test_what_a_server_never_sends_is_refused(messages: list[bytes]) -> None:
    with pytest.raises(BadMessage) as caught:
        taken(made(), messages)
    assert isinstance(caught.value.facts["offset"], int)


@pytest.mark.parametrize("size", [-1, -(2**31), 2, 2**31 - 1, 2**31 - 6, 10**9])
@pytest.mark.parametrize("column", [0, 3])
@pytest.mark.parametrize("last", [True, False])
def test_a_length_that_leads_out_of_its_message_is_refused(
    size: int, column: int, last: bool
) -> None:
    message = bytearray(m.insert(1, _TUPLE))
    struct.pack_into(">i", message, 8 + 6 * column + 1, size)
    rest = [] if last else [m.insert(1, _TUPLE)] * 40
    with pytest.raises(BadMessage) as caught:
        taken(made(), [*_HEAD, bytes(message), *rest, m.commit(9)])
    assert caught.value.facts == {"kind": "I", "offset": caught.value.facts["offset"]}


@pytest.mark.parametrize("kind", "BCIUDTRYOMSEcA")
@pytest.mark.parametrize("streamed", [True, False])
def test_a_message_of_one_byte_is_refused(kind: str, streamed: bool) -> None:
    transactions = made()
    before = [m.stream_start(5, first=True)] if streamed else [m.begin(5)]
    taken(transactions, before)
    if streamed and kind == "E":
        return
    with pytest.raises(BadMessage):
        taken(transactions, [kind.encode()], m.Wire(b""))
        after = [m.stream_stop(), m.stream_commit(5, 9)] if streamed else [m.commit(9)]
        taken(transactions, after, m.Wire(b""))


def test_an_error_says_how_far_into_the_message_the_trouble_is() -> None:
    message = m.insert(1, _TUPLE)
    broken = message[:20] + b"?" + message[21:]
    with pytest.raises(BadMessage) as caught:
        taken(made(), [*_HEAD, m.insert(1, _TUPLE), broken, m.commit(9)])
    assert caught.value.facts == {"kind": "I", "offset": 20}


def test_bounds_that_overlap_or_leave_the_buffer_are_refused() -> None:
    got = m.received([m.begin(5), m.commit(9)])
    for starts, stops in (
        (got.starts - 40, got.stops),
        (got.starts, got.stops + 40),
        (got.stops, got.starts),
        (got.starts, got.starts),
    ):
        with pytest.raises(BadMessage):
            list(made().take(got.buffer, starts, stops))


def test_after_an_error_nothing_more_is_taken() -> None:
    transactions = made()
    with pytest.raises(BadMessage):
        taken(transactions, [m.commit(9)])
    with pytest.raises(HeadraceError):
        taken(transactions, [m.begin(5), m.commit(9)])


def test_changes_that_were_not_read_to_their_end_are_not_lost_in_silence() -> None:
    transactions = made()
    got = m.received([*_HEAD, m.insert(1, _TUPLE), m.commit(9)])
    next(transactions.take(got.buffer, got.starts, got.stops))
    with pytest.raises(HeadraceError):
        transactions.take(got.buffer, got.starts, got.stops)


def test_an_abort_of_a_stream_that_is_not_known_takes_nothing_away() -> None:
    found = taken(made(), [m.stream_abort(8, 8), m.stream_abort(8, 9), *_HEAD, m.commit(9)])
    assert rows(found) == []
    assert [each.upto.commit for each in found] == [9]
