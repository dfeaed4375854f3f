"""What is read in a short way, because it is usual, is what the long way finds."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.decode import rows as images
from headrace.capture.postgres.decode import rows as tuples
from headrace.capture.postgres.decode import text
from headrace.capture.postgres.decode.text import text_column
from headrace.capture.postgres.stream import stream
from headrace.capture.postgres.stream import wire as framing
from headrace.capture.postgres.stream.transactions import Transactions
from headrace.capture.postgres.stream.wire import whole_messages
from headrace.changelog.change import Changes
from headrace.changelog.values import ValueType
from headrace.errors import BadMessage
from tests.postgres import messages as m
from tests.postgres.messages import plainly
from tests.postgres.naive import History, Naive, cut, made, relation, rows, taken
from tests.postgres.test_transactions_fuzz import mutated
from tests.support.tiers import NIGHTLY, examples

MOST_STEPS = 60 if NIGHTLY else 20


class Whole(History):
    """Transactions in one piece."""

    def run(self, steps: int) -> Whole:
        for _ in range(steps):
            self._plain()
        return self


def one_by_one(source: random.Random, steps: int) -> list[bytes]:
    """Return what a server might send of transactions that mostly hold one change each."""
    found: list[bytes] = []
    lsn, xid = 1000, 700
    before: list[bytes] = []
    for message in Whole(source).run(steps).messages:
        kind = message[:1]
        if kind not in (b"I", b"U", b"D", b"T", b"R"):
            continue
        before.append(message)
        if kind == b"R" or source.random() < 0.03:
            continue
        lsn, xid = lsn + source.randint(1, 100), xid + 1
        time = source.randint(0, 2**50)
        found += [m.begin(xid, time=time), *before, m.commit(lsn, time=time)]
        before = []
    return found


@contextmanager
def long_ways() -> Iterator[None]:
    """Let everything be read as if it were unusual."""
    with ExitStack() as patches:
        for owner, name in (
            (Transactions, "_each_one"),
            (tuples, "_inserts"),
            (tuples, "stride"),
            (text, "_usual_timestamps"),
        ):
            patches.enter_context(patch.object(owner, name, lambda *given, **named: None))
        patches.enter_context(patch.object(images, "TOGETHER", 1))
        yield


def outcome(parts: Sequence[Sequence[bytes]], after: int, wire: m.Wire) -> object:
    """Return the rows with their commits and what else is known after them, or what was wrong."""
    transactions = made(after=after)
    found: list[Changes] = []
    try:
        for part in parts:
            found += taken(transactions, part, wire)
    except BadMessage as error:
        return rows(found), error.message, error.facts
    ends = [(each.upto, each.ends, each.markers) for each in found]
    known = transactions.committed.pairs(), transactions.dropped, transactions.position
    return rows(found), ends, known, transactions.position_at(10**6)


@given(seed=st.integers(0, 2**32), broken=st.booleans())
@examples(50)
@pytest.mark.meets("R3", "R5", "R6", "R21", "R23f")
@pytest.mark.slow
def test_commits_of_one_change_are_read_in_a_short_way_as_in_the_long_one(
    seed: int, broken: bool
) -> None:
    source = random.Random(seed)
    messages = one_by_one(source, source.randint(1, MOST_STEPS))
    if broken and messages:
        messages = mutated(source, messages)
    parts = list(cut(source, messages))
    after = source.choice([0, 0, 1200])
    wire = source.choice([m.WIRE, m.Wire(b"")])
    with long_ways():
        expected = outcome(parts, after, wire)
    assert outcome(parts, after, wire) == expected


@given(seed=st.integers(0, 2**32))
@examples(50)
@pytest.mark.meets("R3", "R5")
@pytest.mark.slow
def test_commits_of_one_change_are_those_that_a_reader_of_single_rows_finds(seed: int) -> None:
    source = random.Random(seed)
    messages = one_by_one(source, MOST_STEPS)
    naive = Naive(0, 1000)
    for message in messages:
        naive.take(message)
    ours = made()
    found = [each for part in cut(source, messages) for each in taken(ours, part)]
    assert rows(found) == sorted(
        naive.found, key=lambda it: (it[2]["_commit"], it[2]["_ordinal"], it[0])
    )


def test_the_short_ways_are_taken_where_all_is_usual() -> None:
    described = [m.begin(5), m.relation(relation(3, 0)), m.commit(8)]
    plain = [
        message
        for at in range(9)
        for message in (m.begin(9 + at), m.truncate([3]), m.commit(9 + at))
    ]
    transactions = made()
    taken(transactions, described)
    with patch.object(Transactions, "_any", side_effect=AssertionError("the long way")):
        taken(transactions, plain)
    assert transactions.position == 17


# --- where messages begin ------------------------------------------------------------------


def framed(content: bytes) -> bytes:
    return b"d" + struct.pack(">I", len(content) + 4) + content


def sent(message: bytes) -> bytes:
    """Return a message as the server sends it: in the replication protocol, in a frame."""
    return framed(b"w" + bytes(24) + message)


@given(seed=st.integers(0, 2**32))
@examples(200)
def test_messages_begin_where_the_lengths_of_all_before_say(seed: int) -> None:
    source = random.Random(seed)
    found = b""
    for _ in range(source.randint(0, 12)):
        change = sent(m.insert(1, ["x" * source.randint(0, 60)]))
        turn = [sent(m.commit(9)), sent(m.begin(5)), change]
        at = source.randrange(3)
        found += b"".join((turn[at:] + turn[:at]) * source.randint(0, 40))
        others = [framed(b"k" + bytes(17)), change, sent(m.begin(5)), framed(source.randbytes(51))]
        found += b"".join(source.choices(others, k=source.randint(0, 4)))
    buffer = bytearray(found)
    if len(buffer) > 5 and source.random() < 0.3:
        at = source.randrange(len(buffer) - 4)
        buffer[at : at + 4] = struct.pack(">I", source.choice([0, 1, 50, 55, 2**32 - 1]))
    fill = source.choice([len(buffer), source.randint(0, len(buffer))])
    few, most = source.choice([6, 10, 48]), source.choice([12, 8192])
    with patch.object(framing, "FEW", few), patch.object(framing, "MOST", most):
        starts, end = whole_messages(buffer, fill)
    assert (starts.tolist(), end) == plainly(buffer, fill)


# --- days and hours ------------------------------------------------------------------------

_TIMES = st.datetimes().map(lambda it: it.isoformat(" "))
_ODD = st.sampled_from(
    [
        "0000-01-01 00:00:00",
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "10000-01-01 00:00:00",
        "0044-03-15 00:00:00 BC",
        "infinity",
        "2026-01-01T00:00:00",
        "2026-01-01 00:00",
        "2026-01-01 000000.1",
        "2026-02-29 00:00:00",
        "2026-01-01 24:00:00",
        "2026-01-01 00:00:60",
        "2026-01-01 00:00:00.",
        "2026-01-01 00:00:00.1234567",
        "2026-01-01 00:00:00Z",
        " 026-01-01 00:00:00",
    ]
)
_ZONES = st.sampled_from(["+00", "+00", "+00", "", "+05", "-05", "+05:30", "+0530", "Z", "+99"])


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
@given(data=st.data())
@examples(100)
@pytest.mark.meets("R18", "R23f")
def test_usual_timestamps_are_read_in_a_short_way_as_in_the_long_one(
    kind: str, data: st.DataObject
) -> None:
    usual = data.draw(st.booleans(), label="usual")
    day = _TIMES if usual else st.one_of(_TIMES, _ODD)
    zone = (st.just("+00") if usual else _ZONES) if kind == "timestamptz" else st.just("")
    texts = data.draw(st.lists(st.tuples(day, zone).map("".join), max_size=4), label="texts")
    values = pa.array([each.encode() for each in texts], pa.binary())
    found = text_column(ValueType(kind), values)
    with patch.object(text, "_usual_timestamps", lambda *given, **named: None):
        expected = text_column(ValueType(kind), values)
    assert found[1] == expected[1]
    assert found[0].type == expected[0].type
    assert found[0].view(pa.int64()).to_pylist() == expected[0].view(pa.int64()).to_pylist()


# --- what is kept until it is enough ---------------------------------------------------------


@pytest.fixture
def busy() -> Iterator[stream.Pace]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        made = stream.Pace(client.fileno())
    made.busy = True
    made.note(200_000, 1.0)
    yield made


def test_gulps_of_a_busy_stream_are_kept_for_a_while(busy: stream.Pace) -> None:
    now = 1.0 + stream.GULP_SECONDS
    assert busy.enough(now) == stream.FULL_BYTES
    busy.keep(now)
    assert busy.busy
    assert busy.pause(now) == pytest.approx(stream.GULP_SECONDS)
    assert busy.enough(1.0 + stream.KEPT_SECONDS) == 0


def test_a_stream_whose_gulps_are_kept_is_not_busy_for_longer(busy: stream.Pace) -> None:
    busy.note(stream.BUSY_BYTES * 2 + 1000, 1.0 + 2 * stream.GULP_SECONDS)
    assert busy.busy
    busy.note(stream.BUSY_BYTES * 2 - 1000, 1.0 + 4 * stream.GULP_SECONDS)
    assert not busy.busy
    assert busy.enough(1.0 + 5 * stream.GULP_SECONDS) == 0
