"""A reader who is held up by something else does not lose his stream for it (R7)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.capture.postgres import stream as module
from headrace.capture.wire import FlushNow, StateReport, TakeBaseline
from headrace.embedded.postgres import PostgresServer
from headrace.errors import SourceUnreachable
from headrace.storage.disk import RealDisk
from tests.postgres.recording import Recording
from tests.postgres.servers import Database, fresh_database, wait_until
from tests.postgres.test_stream import BOTH, Slots, slots, take

__all__ = ["slots"]

SHORT = "options='-c wal_sender_timeout=900ms'"
LONG = 2.5
"""Of these time-outs, nearly three."""


def hold_up(seconds: float = LONG) -> None:
    """Do nothing for a while: what has to happen meanwhile is done by others."""
    threading.Event().wait(seconds)


def active(slots: Slots, slot: str) -> int | None:
    pid: int | None = slots.database.value(
        "select active_pid from pg_replication_slots where slot_name = %s", slot
    )
    return pid


@pytest.mark.meets("R7")
@BOTH
def test_a_stream_outlives_the_servers_timeout_while_its_reader_is_away(
    slots: Slots, direct: bool
) -> None:
    slot = slots.make()
    stream = slots.open(slot, SHORT, direct=direct)
    stream.receive(0)
    sender = active(slots, slot)
    assert sender is not None
    # Also with more under way than fits into the socket.
    slots.database.execute(
        "insert into numbers select n, repeat('x', 1000) from generate_series(1, 20000) n"
    )
    before = slots.confirmed(slot)
    hold_up()
    assert active(slots, slot) == sender
    assert slots.confirmed(slot) == before
    found = take(stream, 20_003)
    assert len(found) == 20_003
    assert active(slots, slot) == sender


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
    assert any(thread.name == "headrace-keeper" for thread in threading.enumerate())
    stream.close()
    assert not any(thread.name == "headrace-keeper" for thread in threading.enumerate())


class SlowDisk:
    """Holds up the next sync."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.slow = 0
        self._sync = RealDisk.sync
        patch.setattr(RealDisk, "sync", lambda disk, path: self.sync(disk, path))

    def sync(self, disk: RealDisk, path: str) -> None:
        if self.slow:
            self.slow -= 1
            hold_up()
        self._sync(disk, path)


@pytest.fixture
def recording(own_server: PostgresServer, tmp_path: Path) -> Iterator[Recording]:
    with fresh_database(own_server) as database:
        made = Recording(database, tmp_path)
        yield made
        made.die()


def senders(database: Database) -> list[int]:
    return [pid for (pid,) in database.rows("select pid from pg_stat_replication order by pid")]


@pytest.mark.meets("R7")
@pytest.mark.parametrize("own_server", [{"wal_sender_timeout": "900ms"}], indirect=True)
def test_a_slow_disk_does_not_cut_a_recorder_off(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = recording.database
    database.execute("create table t (id bigint primary key, pad text)")
    disk = SlowDisk(monkeypatch)
    recording.live("t")
    recording.until(lambda: StateReport("streaming", "") in recording.reports)
    [sender] = senders(database)
    # A flush that takes long, and a copy that does.
    database.execute("insert into t select n, repeat('x', 500) from generate_series(1, 5000) n")
    recording.until(lambda: recording.recorder._first_pending is not None)
    disk.slow = 1
    recording.reports += recording.recorder.step([FlushNow()], 0)
    assert not disk.slow
    assert senders(database) == [sender]
    disk.slow = 1
    recording.reports += recording.recorder.step([TakeBaseline("t")], 0)
    recording.until(lambda: recording.log.usable_baseline("t"))
    assert not disk.slow
    assert senders(database) == [sender]
    states = [each.state for each in recording.reports if isinstance(each, StateReport)]
    assert "reconnecting" not in states
