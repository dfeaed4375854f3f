"""A reader who is held up by something else does not lose his stream for it (R7)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.capture.messages import FlushNow, StateReport, TakeBaseline
from headrace.capture.postgres.stream import stream as module
from headrace.capture.postgres.stream.stream import ReplicationStream
from headrace.errors import SourceUnreachable
from headrace.storage.disk import RealDisk
from tests.postgres.recording import Recording
from tests.postgres.servers import Database, wait_until
from tests.postgres.test_stream import BOTH, Slots, slots, take
from tests.support.patience import slowness

__all__ = ["slots"]

SHORT = "options='-c wal_sender_timeout=2s'"
NO_LIMIT = "options='-c wal_sender_timeout=0'"
"""The server lets each session say for itself how long a silence it takes."""


@pytest.fixture
def unprompted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server's time-out alone decide how often it hears from a stream."""
    monkeypatch.setattr(module, "SILENT_SECONDS", 3600.0)


@pytest.fixture
def hasty(unprompted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have us believe in a short time-out. A real one would be too short on a busy machine."""
    monkeypatch.setattr(module, "_server_timeout", lambda connection: 0.3)


def active(slots: Slots, slot: str) -> int | None:
    pid: int | None = slots.database.value(
        "select active_pid from pg_replication_slots where slot_name = %s", slot
    )
    return pid


def heard(slots: Slots, slot: str) -> object:
    """Return when that was sent which the server heard last from the reader of a slot."""
    return slots.database.value(
        "select reply_time from pg_stat_replication join pg_replication_slots on pid = active_pid"
        " where slot_name = %s",
        slot,
    )


def await_words(
    slots: Slots, slot: str, count: int, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Do something again and again until the server has heard so often from the reader."""
    times = {heard(slots, slot)}

    def told() -> bool:
        meanwhile()
        times.add(heard(slots, slot))
        return len(times) > count

    wait_until(told, what="words of ours")


@pytest.mark.meets("R7", "PG-16")
@pytest.mark.parametrize(
    ("timeout", "silence"),
    [(SHORT, 2 / 3), ("options='-c wal_sender_timeout=60s'", 10.0)],
    ids=["short", "long"],
)
@BOTH
def test_a_stream_is_silent_for_a_third_of_the_servers_timeout_and_never_for_long(
    slots: Slots, monkeypatch: pytest.MonkeyPatch, direct: bool, timeout: str, silence: float
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 10.0)
    stream = slots.open(slots.make(), timeout, direct=direct)
    assert stream._status.every == pytest.approx(silence)


@pytest.mark.meets("R7", "PG-16")
@pytest.mark.usefixtures("hasty")
@BOTH
def test_the_server_hears_from_a_stream_while_it_waits_or_beats(slots: Slots, direct: bool) -> None:
    slot = slots.make()
    stream = slots.open(slot, NO_LIMIT, direct=direct)
    stream._keep_alive.close()  # it sends updates for a reader that does neither
    await_words(slots, slot, 2, lambda: stream.receive(0.01))
    await_words(slots, slot, 2, stream.send_status)  # not reading, as under back-pressure
    slots.database.execute("insert into numbers values (1, 'a')")
    assert len(take(stream, 4)) == 4


@pytest.mark.meets("R7", "PG-15", "PG-16")
@BOTH
def test_a_server_that_asks_gets_its_answer_at_once(slots: Slots, direct: bool) -> None:
    # It asks after half of the time; then there is enough left also on a busy machine.
    slot = slots.make()
    stream = slots.open(
        slot,
        "options='-c wal_sender_timeout=4s'",
        direct=direct,
        clock=lambda: time.monotonic() / 1000,  # ours goes so slowly that nothing is ever due
    )

    def wait() -> None:
        assert stream.receive(0.0001) is None

    await_words(slots, slot, 1, wait)
    slots.database.execute("insert into numbers values (1, 'a')")
    assert len(take(stream, 4)) == 4


@pytest.mark.meets("R7")
@pytest.mark.usefixtures("hasty")
@BOTH
def test_the_server_hears_from_a_stream_while_its_reader_is_away(
    slots: Slots, direct: bool
) -> None:
    slot = slots.make()
    stream = slots.open(slot, NO_LIMIT, direct=direct)
    stream.receive(0)
    sender = active(slots, slot)
    assert sender is not None
    # Also with more under way than fits into the socket.
    slots.database.execute(
        "insert into numbers select n, repeat('x', 1000) from generate_series(1, 20000) n"
    )
    before = slots.confirmed(slot)
    await_words(slots, slot, 3)
    assert active(slots, slot) == sender
    assert slots.confirmed(slot) == before
    found = take(stream, 20_003)
    assert len(found) == 20_003
    assert active(slots, slot) == sender


@pytest.mark.ci
@pytest.mark.meets("R7", "PG-16")
@pytest.mark.usefixtures("unprompted")
def test_streams_outlive_the_servers_timeout_whatever_their_readers_do(slots: Slots) -> None:
    # The time is the server's own, and so it has to pass: once and more for each.
    seconds = round(5 * slowness())
    timeout, longer = f"options='-c wal_sender_timeout={seconds}s'", seconds + 1
    names = slots.make(), slots.make()
    streams = [
        slots.open(slot, timeout, direct=way)
        for slot, way in zip(names, (True, False), strict=True)
    ]
    senders = [active(slots, slot) for slot in names]

    def for_longer(do: Callable[[ReplicationStream], object]) -> None:
        until = time.monotonic() + longer
        while time.monotonic() < until:
            for stream in streams:
                do(stream)
            threading.Event().wait(0.05)

    for_longer(lambda stream: stream.receive(0.05))
    for_longer(lambda stream: stream.send_status())
    for_longer(lambda stream: None)
    assert [active(slots, slot) for slot in names] == senders
    slots.database.execute("insert into numbers values (1, 'a')")
    assert [len(take(stream, 4)) for stream in streams] == [4, 4]


@pytest.mark.meets("R7")
def test_a_reader_who_does_not_come_back_is_not_spoken_for_for_ever(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.5)
    slot = slots.make()
    stream = slots.open(slot, SHORT)
    stream.receive(0)
    wait_until(lambda: active(slots, slot) is None)
    with pytest.raises(SourceUnreachable):
        take(stream, 1)


def test_a_stream_that_is_closed_says_nothing_any_more(slots: Slots) -> None:
    stream = slots.open(slots.make(), SHORT)
    assert any(thread.name == "headrace-keepalive" for thread in threading.enumerate())
    stream.close()
    assert not any(thread.name == "headrace-keepalive" for thread in threading.enumerate())


class SlowDisk:
    """Holds up the next sync until the server has heard from us several times."""

    def __init__(self, patch: pytest.MonkeyPatch, database: Database) -> None:
        self.slow = 0
        self._database = database
        self._sync = RealDisk.sync
        patch.setattr(RealDisk, "sync", lambda disk, path: self.sync(disk, path))

    def sync(self, disk: RealDisk, path: str) -> None:
        if self.slow:
            self.slow -= 1
            self._await_words()
        self._sync(disk, path)

    def _await_words(self) -> None:
        heard = set[object]()

        def told() -> bool:
            heard.update(sent for _, sent in senders(self._database))
            return len(heard) > 3

        wait_until(told, what="words of ours")


@pytest.fixture
def recording(database: Database, tmp_path: Path) -> Iterator[Recording]:
    made = Recording(database, tmp_path)
    yield made
    made.die()


def senders(database: Database) -> list[tuple[int, object]]:
    """Who reads from this database, by pid, and when what was heard last of him was sent."""
    return database.rows(
        "select pid, reply_time from pg_stat_replication join pg_replication_slots"
        " on pid = active_pid where database = current_database()"
    )


@pytest.mark.meets("R7")
@pytest.mark.usefixtures("hasty")
def test_a_slow_disk_does_not_cut_a_recorder_off(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = recording.database
    database.execute("create table t (id bigint primary key, pad text)")
    disk = SlowDisk(monkeypatch, database)
    recording.live("t")
    recording.until(lambda: StateReport("streaming", "") in recording.reports)
    [(sender, _)] = senders(database)
    # A flush that takes long, and a copy that does.
    database.execute("insert into t select n, repeat('x', 500) from generate_series(1, 5000) n")
    recording.until(lambda: recording.recorder._first_pending is not None, idle=False)
    disk.slow = 1
    recording.reports += recording.recorder.step([FlushNow()], 0)
    assert not disk.slow
    assert [pid for pid, _ in senders(database)] == [sender]
    disk.slow = 1
    recording.reports += recording.recorder.step([TakeBaseline("t")], 0)
    recording.until(lambda: recording.log.usable_baseline("t"))
    assert not disk.slow
    assert [pid for pid, _ in senders(database)] == [sender]
    states = [each.state for each in recording.reports if isinstance(each, StateReport)]
    assert "reconnecting" not in states


@pytest.mark.meets("R7")
@BOTH
def test_a_reply_counts_only_once_it_was_read_with_all_that_was_sent_before_it(
    slots: Slots, direct: bool
) -> None:
    stream = slots.open(slots.make(), direct=direct)
    wait_until(lambda: stream.receive(0.01) is None and stream.replied_at > 0)
    before = stream.replied_at
    slots.database.execute("insert into numbers values (1, 'a')")
    stream.ask()
    heard = time.monotonic() - stream.silence
    wait_until(lambda: time.monotonic() - stream.silence > heard, what="something to arrive")
    assert stream.replied_at == before
    assert len(take(stream, 4)) == 4
    wait_until(lambda: stream.receive(0.01) is None and stream.replied_at > before)
