"""The stream gives what the server sends, tells it what we have, and ends when it ends."""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.position import parse_lsn
from headrace.capture.postgres.stream.stream import (
    ReceivedMessages,
    ReplicationStream,
    start_command,
)
from headrace.embedded.postgres import PostgresServer
from headrace.errors import (
    BadPosition,
    PublicationRefused,
    SlotBusy,
    SlotRefused,
    SourceUnreachable,
)
from tests.postgres.servers import (
    Database,
    fresh_database,
    stops_by_itself,
    wait_until,
    without_timeout,
)
from tests.support.patience import patience

BOTH = pytest.mark.parametrize("direct", [True, False], ids=["socket", "libpq"])


class Slots:
    """Slots of one publication over all tables of a database, and streams from them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._opened: list[ReplicationStream] = []
        self._made = 0
        database.execute("create table numbers (id bigint primary key, text text)")
        database.execute("create publication everything for all tables")

    def make(self) -> str:
        self._made += 1
        name = f"{self.database.name}_{self._made}"
        self.database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        return name

    def open(
        self,
        slot: str,
        parameters: str = "",
        *,
        at: int = 0,
        publication: str = "everything",
        **more: Any,
    ) -> ReplicationStream:
        options = PostgresOptions(name="x", connection=f"{self.database.dsn} {parameters}")
        stream = ReplicationStream(
            connect(options, replication=True), slot, at, publication, **more
        )
        self._opened.append(stream)
        return stream

    def wait_until_free(self, slot: str) -> None:
        free = "select from pg_replication_slots where slot_name = %s and not active"
        wait_until(lambda: self.database.rows(free, slot))

    def expected(self, slot: str, *, streaming: bool) -> list[bytes]:
        """Return what the server has for a slot, got by SQL."""
        extra = ", 'streaming', 'on'" if streaming else ""
        version = "2" if streaming else "1"
        rows = self.database.rows(
            "select data from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version',"
            f" '{version}', 'publication_names', 'everything', 'messages', 'true'{extra})",
            slot,
        )
        return [data for (data,) in rows]

    def confirmed(self, slot: str) -> int:
        return parse_lsn(
            self.database.value(
                "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s",
                slot,
            )
        )

    def end(self) -> int:
        return parse_lsn(self.database.value("select pg_current_wal_lsn()::text"))

    def close(self) -> None:
        for stream in self._opened:
            stream.close()


@pytest.fixture
def slots(database: Database) -> Iterator[Slots]:
    made = Slots(database)
    yield made
    made.close()


@pytest.fixture
def own_slots(own_server: PostgresServer) -> Iterator[Slots]:
    with fresh_database(own_server) as database:
        made = Slots(database)
        yield made
        made.close()
        own_server.start()


def contents(received: ReceivedMessages) -> list[bytes]:
    view = bytes(received.buffer)
    pairs = zip(received.starts, received.stops, strict=True)
    return [view[start:stop] for start, stop in pairs]


def take(stream: ReplicationStream, count: int, most_bytes: int = 16 << 20) -> list[bytes]:
    """Receive `count` messages."""
    found: list[bytes] = []
    until = time.monotonic() + patience()
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count}"
        if (received := stream.receive(0.1, most_bytes)) is not None:
            found += contents(received)
    return found


def commit_end(messages: list[bytes]) -> int:
    """Return the end of the last commit."""
    ends = [struct.unpack_from(">Q", message, 10)[0] for message in messages if message[:1] == b"C"]
    return int(ends[-1])


def is_commit(message: bytes) -> bool:
    return message[:1] == b"C"


@pytest.mark.meets("PG-01")
@BOTH
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
def test_both_ways_give_the_servers_very_bytes(slots: Slots, direct: bool, streaming: bool) -> None:
    slot, other = slots.make(), slots.make()
    database = slots.database
    for number in range(50):
        database.execute("insert into numbers values (%s, %s)", number, "x" * number * 37)
    database.execute(
        "insert into numbers select n, repeat('y', 300) from generate_series(100, 5000) n"
    )
    database.execute("update numbers set text = repeat('z', 3000000) where id = 7")
    database.execute("select pg_logical_emit_message(true, 'a', 'b')")
    database.execute("delete from numbers where id < 20")
    database.execute("truncate numbers")
    expected = slots.expected(other, streaming=streaming)
    assert len(expected) > 5000
    stream = slots.open(slot, direct=direct, streaming=streaming)
    assert take(stream, len(expected)) == expected
    assert stream.receive(0.05) is None


@BOTH
@pytest.mark.parametrize("most_bytes", [1, 100, 5000])
def test_small_portions_give_the_same(slots: Slots, direct: bool, most_bytes: int) -> None:
    slot, other = slots.make(), slots.make()
    for number in range(20):
        slots.database.execute("insert into numbers values (%s, %s)", number, "x" * number * 97)
    expected = slots.expected(other, streaming=True)
    stream = slots.open(slot, direct=direct)
    assert take(stream, len(expected), most_bytes) == expected


@BOTH
def test_a_commit_that_was_given_out_counts_as_received(slots: Slots, direct: bool) -> None:
    slot = slots.make()
    early = slots.database.connect(autocommit=False)
    early.execute("insert into numbers values (1, 'a')")
    slots.database.execute("insert into numbers values (2, 'b')")
    early.commit()  # its first change lies before the commit of the other
    for most_bytes in range(100, 700, 50):
        stream = slots.open(slot, direct=direct, streaming=False)
        given: list[bytes] = []
        while len(given) < 7:
            received = stream.receive(5, most_bytes)
            assert received is not None
            given += contents(received)
            if any(map(is_commit, given)):
                stream._status.acknowledge(commit_end(given))
                stream._status.acknowledged = 0
        stream.close()
        slots.wait_until_free(slot)


@BOTH
def test_a_long_backlog_is_drained_whole_and_in_order(slots: Slots, direct: bool) -> None:
    slot = slots.make()
    slots.database.execute(
        "do $$ begin for n in 1..1000 loop"
        " insert into numbers select m, 'text' from generate_series(n * 100, n * 100 + 99) m;"
        " commit; end loop; end $$"
    )
    stream = slots.open(slot, direct=direct, streaming=False)
    # Begin, hundred rows, Commit, a thousand times, and one Relation.
    found = take(stream, 1000 * 102 + 1)
    rows = [message for message in found if message[:1] == b"I"]
    digits = [bytes(row[13 : row.index(b"t", 13)]) for row in rows]
    assert [int(text) for text in digits] == list(range(100, 100_100))
    ends = [
        commit_end([message])
        for before, message in pairwise(found)
        # PostgreSQL 14 also sends transactions without rows: those of its own maintenance.
        if is_commit(message) and before[:1] != b"B"
    ]
    assert len(ends) == 1000
    assert ends == sorted(set(ends))


@BOTH
def test_a_single_commit_is_given_at_once(
    slots: Slots, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    slot = slots.make()
    stream = slots.open(slot, direct=direct)
    rests: list[float] = []
    monkeypatch.setattr(stream._waker, "rest", rests.append)
    kept: list[int] = []
    enough = stream._pace.enough

    def noted(now: float) -> int:
        kept.append(enough(now))
        return kept[-1]

    monkeypatch.setattr(stream._pace, "enough", noted)
    for number in range(20):
        execute = slots.database.execute
        writer = threading.Thread(
            target=execute, args=("insert into numbers values (%s, 'x')", number)
        )
        writer.start()
        found: list[bytes] = []
        while not any(map(is_commit, found)):
            received = stream.receive(patience())
            assert received is not None
            found += contents(received)
        writer.join()
    # It is read when the socket has it, and never left to gather. How soon that is, bench says.
    assert max(rests) <= 0
    assert set(kept) == {0}, "something was kept back until there is more"


@pytest.mark.meets("PG-22")
@BOTH
def test_wake_ends_a_wait_from_another_thread(slots: Slots, direct: bool) -> None:
    stream = slots.open(slots.make(), direct=direct)
    while stream.receive(0.05) is not None:
        pass

    def ended_by_wake(*, before: bool) -> None:
        got: queue.SimpleQueue[ReceivedMessages | None] = queue.SimpleQueue()
        if before:
            stream.wake()
        reader = threading.Thread(target=lambda: got.put(stream.receive(3600)), daemon=True)
        reader.start()
        if not before:
            with pytest.raises(queue.Empty):
                got.get(timeout=0.05)
            stream.wake()
        assert got.get(timeout=patience()) is None
        reader.join()

    ended_by_wake(before=False)
    ended_by_wake(before=True)
    stream.close()
    stream.wake()


@pytest.mark.meets("R4", "R8", "PG-21")
@BOTH
def test_an_acknowledgement_moves_the_slot_to_it_and_not_beyond(slots: Slots, direct: bool) -> None:
    slot = slots.make()
    stream = slots.open(slot, direct=direct)
    before = slots.confirmed(slot)
    slots.database.execute("insert into numbers values (1, 'a')")
    first = commit_end(take(stream, 4))
    slots.database.execute("insert into numbers values (2, 'b')")
    second = commit_end(take(stream, 3))
    stream.acknowledge(first)

    def settled() -> bool:
        stream.receive(0.05)
        return stream.confirmed == first and slots.confirmed(slot) == first

    wait_until(settled)
    assert before < first < second <= stream.received
    stream.acknowledge(before)  # never falls
    with pytest.raises(BadPosition):
        stream.acknowledge(stream.received + 1)
    stream.acknowledge(second)
    stream.close()
    wait_until(lambda: slots.confirmed(slot) == second)


@pytest.mark.meets("PG-21")
@BOTH
def test_without_an_acknowledgement_the_slot_stays(slots: Slots, direct: bool) -> None:
    slot = slots.make()
    stream = slots.open(slot, direct=direct)
    before = slots.confirmed(slot)
    slots.database.execute("insert into numbers values (1, 'a')")
    found = take(stream, 4)
    stream._send_status()
    stream.close()
    wait_until(
        lambda: (
            not slots.database.rows(
                "select from pg_replication_slots where active and slot_name = %s", slot
            )
        )
    )
    assert slots.confirmed(slot) == before
    again = slots.open(slot, at=before, direct=direct)
    assert take(again, 4) == found


@BOTH
def test_reading_goes_on_after_the_position_given(slots: Slots, direct: bool) -> None:
    slot = slots.make()
    stream = slots.open(slot, direct=direct)
    for number in range(3):
        slots.database.execute("insert into numbers values (%s, 'a')", number)
    found = take(stream, 10)
    second = commit_end(found[:7])
    stream.close()
    slots.wait_until_free(slot)
    again = slots.open(slot, at=second, direct=direct)
    expected = [found[7], found[1], *found[8:]]  # a Relation is told anew
    assert take(again, 4) == expected


@pytest.mark.meets("PG-15", "PG-23")
@BOTH
def test_the_end_of_the_log_is_told_while_nothing_of_ours_is_written(
    slots: Slots, direct: bool
) -> None:
    stream = slots.open(slots.make(), direct=direct)
    slots.database.execute("create unlogged table elsewhere as select generate_series(1, 1000)")
    end = slots.end()

    def told() -> bool:
        stream.receive(0.05)
        return stream.end >= end

    wait_until(told)
    assert stream.received >= end


@pytest.mark.meets("R7")
def test_a_held_back_acknowledgement_does_not_keep_the_server_from_stopping(
    own_slots: Slots, own_server: PostgresServer
) -> None:
    without_timeout(own_slots.database)
    readers = [HeldBack(own_slots, direct=direct) for direct in (True, False)]
    own_slots.database.execute("insert into numbers values (1, 'a')")
    for reader in readers:
        reader.take_and_acknowledge()
    own_slots.database.execute("insert into numbers values (2, 'b')")
    for reader in readers:
        reader.take_and_hold_back()
    for reader in readers:
        reader.start()
    assert stops_by_itself(own_server)
    for reader in readers:
        reader.join(patience())
    own_server.start()
    for reader in readers:
        assert isinstance(reader.ended, SourceUnreachable)
        # Servers before 17 may forget at a restart how far they had got, but only backwards.
        assert own_slots.confirmed(reader.slot) <= reader.first
        again = own_slots.open(reader.slot, at=reader.first, direct=reader.direct)
        # The Relation is told again before the row.
        found = take(again, 4)
        assert [found[0], *found[2:]] == reader.held


class HeldBack(threading.Thread):
    """Reads on in a thread of its own, and acknowledges less than it has."""

    def __init__(self, slots: Slots, *, direct: bool) -> None:
        super().__init__()
        self.slots = slots
        self.direct = direct
        self.slot = slots.make()
        self.stream = slots.open(self.slot, direct=direct)
        self.ended: Exception | None = None

    def take_and_acknowledge(self) -> None:
        self.first = commit_end(take(self.stream, 4))
        self.stream.acknowledge(self.first)
        wait_until(self.settled)

    def settled(self) -> bool:
        return self.stream.receive(0.05) is None and self.slots.confirmed(self.slot) == self.first

    def take_and_hold_back(self) -> None:
        self.held = take(self.stream, 3)

    def run(self) -> None:
        try:
            while True:
                self.stream.receive(0.2)
        except SourceUnreachable as error:
            self.ended = error


@BOTH
def test_an_ended_sender_is_unreachable_after_what_it_had_sent(slots: Slots, direct: bool) -> None:
    slot = slots.make()
    stream = slots.open(slot, direct=direct)
    slots.database.execute("insert into numbers values (1, 'a')")
    wait_until(
        lambda: slots.database.value(
            "select sent_lsn >= %s::pg_lsn from pg_stat_replication where pid ="
            " (select active_pid from pg_replication_slots where slot_name = %s)",
            slots.database.value("select pg_current_wal_flush_lsn()::text"),
            slot,
        )
    )
    slots.database.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
        slot,
    )
    wait_until(
        lambda: (
            not slots.database.rows(
                "select from pg_replication_slots where active and slot_name = %s", slot
            )
        )
    )
    assert len(take(stream, 4)) == 4
    with pytest.raises(SourceUnreachable) as caught:
        stream.receive(5)
    assert caught.value.facts.get("sqlstate") == "57P01"
    with pytest.raises(SourceUnreachable):
        stream.receive(5)


def test_a_killed_server_is_unreachable(own_slots: Slots, own_server: PostgresServer) -> None:
    streams = [own_slots.open(own_slots.make(), direct=direct) for direct in (True, False)]
    own_server.kill()
    for stream in streams:
        with pytest.raises(SourceUnreachable):
            stream.receive(5)
            stream.receive(5)


@BOTH
def test_a_slot_that_is_taken_or_missing_is_said(slots: Slots, direct: bool) -> None:
    slot = slots.make()
    slots.open(slot, direct=direct)
    with pytest.raises(SlotBusy):
        slots.open(slot, direct=direct)
    with pytest.raises(SlotRefused, match="slot does not exist"):
        slots.open("not_there", direct=direct)


@BOTH
def test_a_slot_that_cannot_be_read_is_looked_at_anew(slots: Slots, direct: bool) -> None:
    slot = f"{slots.database.name}_physical"
    slots.database.execute("select pg_create_physical_replication_slot(%s)", slot)
    try:
        with pytest.raises(SourceUnreachable):
            slots.open(slot, direct=direct)
    finally:
        slots.wait_until_free(slot)
        slots.database.execute("select pg_drop_replication_slot(%s)", slot)


@BOTH
def test_a_missing_publication_ends_the_stream_or_sends_nothing(slots: Slots, direct: bool) -> None:
    stream = slots.open(slots.make(), publication='it\'s "missing"', direct=direct)
    slots.database.execute("insert into numbers values (1, 'a')")
    if slots.database.value("select current_setting('server_version_num')::int") >= 180000:
        assert stream.receive(0.5) is None  # from 18 on a server only warns about it
    else:
        with pytest.raises(PublicationRefused):
            take(stream, 4)  # 14 sends a Begin before it looks


def test_names_are_quoted_for_the_command() -> None:
    made = start_command("slot_1", 0x1_0000_0002, 'it\'s "mine"', streaming=True)
    assert made == (
        b'START_REPLICATION SLOT "slot_1" LOGICAL 1/2 (publication_names '
        b"'\"it''s \"\"mine\"\"\"', messages 'true', proto_version '2', streaming 'on')"
    )
