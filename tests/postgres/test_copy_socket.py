"""Rows of a COPY from the socket itself: whatever comes, in whatever pieces."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.copy import reader
from headrace.capture.postgres.copy.reader import SIGNATURE, TRAILER, CopySocket, heads_of
from headrace.capture.postgres.stream.wire import StreamEnded
from headrace.errors import BadMessage
from tests.postgres.copies import copied, copy_of
from tests.postgres.messages import plainly
from tests.postgres.servers import Database
from tests.postgres.test_stream_direct import NOTICE, REFUSED, Idle, message
from tests.support.tiers import examples

HEADER = SIGNATURE + struct.pack(">Ii", 0, 0)
BEGUN = message(b"H", struct.pack(">bhhh", 1, 2, 1, 1))
ENDED = message(b"c", b"") + message(b"C", b"COPY 1\0") + message(b"Z", b"T")
FIELDS = 2
LIKE_A_HEAD = b"d\0\0\0\x08" + struct.pack(">h", FIELDS)

contents = st.lists(
    st.sampled_from([b"", b"d", LIKE_A_HEAD, 9 * LIKE_A_HEAD, b"x" * 70_000])
    | st.binary(max_size=40),
    max_size=6,
).map(b"".join)

rows = contents.map(lambda content: struct.pack(">h", FIELDS) + content)


class Ends:
    """A socket of ours, and the server's end of it."""

    def __init__(self, most_rows: int = 100, most_bytes: int = 1 << 20) -> None:
        self.server, self._ours = socket.socketpair()
        self.wire = CopySocket(cast(Any, Idle(self._ours)), most_rows, most_bytes)

    def copy(self, *sent: bytes) -> list[bytes]:
        """Run a COPY that is answered by these bytes, piece by piece."""
        sender = threading.Thread(target=self._send, args=[sent])
        sender.start()
        try:
            return self._rows()
        finally:
            sender.join()

    def close(self) -> None:
        self.wire.close()
        self.server.close()
        self._ours.close()

    def _rows(self) -> list[bytes]:
        found: list[bytes] = []
        before: list[bytes] = []
        shown = None
        for given_rows in self.wire.rows("copy", FIELDS):
            # What was given last time can still be read now.
            assert shown is None or self._bytes(shown) == before
            shown = given_rows
            before = [] if given_rows is None else self._bytes(given_rows)
            found += before
        return found

    @staticmethod
    def _bytes(found: Any) -> list[bytes]:
        places = zip(found.starts.tolist(), found.stops.tolist(), strict=True)
        return [bytes(found.buffer[start:stop]) for start, stop in places]

    def _send(self, sent: Sequence[bytes]) -> None:
        assert self.server.recv(100) == message(b"Q", b"copy\0")
        for piece in sent:
            self.server.sendall(piece)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def answer(sent: Sequence[bytes]) -> bytes:
    """What the server sends for these rows; the header is in the first one's message."""
    first, *others = [*sent, TRAILER]
    messages = [HEADER + first, *others]
    return BEGUN + b"".join(message(b"d", each) for each in messages) + ENDED


@examples(200)
@given(st.lists(rows.map(lambda row: message(b"d", row)) | st.just(NOTICE)), st.data())
def test_the_heads_found_at_once_are_those_found_one_by_one(
    messages: list[bytes], data: st.DataObject
) -> None:
    buffer = b"".join(messages)
    fill = data.draw(st.integers(0, len(buffer)))

    found, end = heads_of(buffer, 0, fill, FIELDS)

    assert (found.tolist(), end) == plainly(buffer, fill)


def test_many_bytes_that_look_like_heads_are_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = b"".join(
        message(b"d", struct.pack(">h", FIELDS) + LIKE_A_HEAD * (n % 4)) for n in range(500)
    )
    expected = plainly(buffer, len(buffer))

    for most in (1, 10_000):
        monkeypatch.setattr(reader, "MOST_RUNS", most)
        found, end = heads_of(buffer, 0, len(buffer), FIELDS)
        assert (found.tolist(), end) == expected


@examples(50)
@given(st.lists(rows, max_size=30), st.data())
def test_rows_come_whole_and_in_order_in_whatever_pieces(
    sent: list[bytes], data: st.DataObject
) -> None:
    whole = answer(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    ends = Ends(most_rows=data.draw(st.integers(1, 20)), most_bytes=10_000)
    try:
        assert ends.copy(*pieces) == sent
        # The next one finds everything as it was.
        assert ends.copy(whole) == sent
    finally:
        ends.close()


def test_a_header_may_have_a_message_of_its_own(ends: Ends) -> None:
    row = struct.pack(">hii", FIELDS, -1, -1)
    sent = [message(b"d", each) for each in (HEADER, row, TRAILER)]

    assert ends.copy(BEGUN, NOTICE, *sent, ENDED) == [row]
    assert ends.wire.over


def test_a_row_longer_than_any_buffer_comes_too(ends: Ends) -> None:
    sent = [b"\0\x02" + bytes(20), b"\0\x02" + bytes(5 << 20), b"\0\x02" + bytes(30)]

    assert ends.copy(answer(sent)) == sent


@pytest.mark.parametrize(
    "sent",
    [
        BEGUN + ENDED,
        BEGUN + message(b"d", HEADER + b"\0\x02") + ENDED,
        BEGUN + message(b"d", b"\0\x02") + ENDED,
        answer([])[: -len(ENDED)] + message(b"d", b"\0\x02") + ENDED,
        BEGUN + message(b"T", b""),
        BEGUN + b"d\0\0\0\x01" + ENDED,
        BEGUN + b"d\xff\xff\xff\xff" + ENDED,
    ],
    ids=["empty", "no-trailer", "no-header", "goes-on", "kind", "short", "long"],
)
def test_what_is_no_copy_is_refused(ends: Ends, sent: bytes) -> None:
    with pytest.raises(BadMessage):
        ends.copy(sent)


def test_what_follows_the_end_is_passed_over_or_the_end_of_the_connection(ends: Ends) -> None:
    assert ends.copy(answer([]) + NOTICE) == []
    with pytest.raises(StreamEnded):
        ends.copy(answer([]) + NOTICE[:9])
    assert not ends.wire.over


def test_the_servers_error_is_told_by_its_code(ends: Ends) -> None:
    with pytest.raises(StreamEnded) as raised:
        ends.copy(BEGUN + message(b"E", REFUSED) + message(b"Z", b"E"))
    assert raised.value.sqlstate == "55006"
    assert ends.wire.over


def test_a_server_that_is_gone_is_noticed(ends: Ends) -> None:
    def leave() -> None:
        ends.server.recv(100)
        ends.server.sendall(BEGUN)
        ends.server.shutdown(socket.SHUT_RDWR)

    leaving = threading.Thread(target=leave)
    leaving.start()
    with pytest.raises(StreamEnded) as raised:
        list(ends.wire.rows("copy", FIELDS))
    leaving.join()
    assert raised.value.sqlstate is None
    assert not ends.wire.over


def test_who_waits_hears_that_there_is_nothing_yet(ends: Ends) -> None:
    found = ends.wire.rows("copy", FIELDS)

    assert next(found) is None


@pytest.mark.meets("R18")
def test_both_ways_off_the_wire_give_the_same_rows(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "create table t (id int primary key, v text, n numeric(12,2), at timestamptz, flag bool)"
    )
    database.execute(
        "insert into t select g, case when g % 7 <> 0 then repeat('d', g % 300) end, g * 1.01,"
        " timestamptz '2024-01-01' + g * interval '1 hour', case when g % 3 <> 0 then g % 2 = 0 end"
        " from generate_series(1, 30000) g"
    )
    found = copied(database, "t")

    monkeypatch.setattr(reader, "is_plain", lambda connection: False)

    assert found == copied(database, "t")
    assert sorted(found) == database.rows("select * from t order by id")


def test_batches_hold_nothing_of_the_buffer_they_came_in(database: Database) -> None:
    database.execute("create table t (id int, v text, b bytea, u uuid)")
    database.execute(
        "insert into t select g, md5(g::text), decode(md5((-g)::text), 'hex'), md5(g::text)::uuid"
        " from generate_series(1, 90000) g"
    )
    copy = copy_of(database, "t")

    batches = list(copy)

    ids = np.concatenate([batch.column("id").to_numpy() for batch in batches])
    assert sorted(ids.tolist()) == list(range(1, 90_001))
    texts = [text for batch in batches for text in batch.column("v").to_pylist()]
    uuids = [raw.hex() for batch in batches for raw in batch.column("u").cast("binary").to_pylist()]
    assert texts == uuids
