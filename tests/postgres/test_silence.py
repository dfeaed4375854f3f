"""A replication connection on which nothing arrives any more, while everything else is well."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.capture import recorder
from headrace.capture.messages import StateReport
from headrace.capture.postgres import connection
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.server import slot as slots
from headrace.capture.postgres.server.wal_usage import PAGE_BYTES, LagMeter
from headrace.capture.postgres.stream import stream
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.runtime import source_run
from headrace.runtime.info import SourceInfo
from headrace.runtime.source_run import SourceRun
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.patience import patience
from tests.support.proxy import Proxy, proxy_to
from tests.support.shop import file_rows_at

PATIENCE = patience()


class Followed:
    """A table, and an engine that follows it into memory through a proxy."""

    def __init__(self, database: Database, folder: Path, proxy: Proxy) -> None:
        self.database = database
        self.proxy = proxy
        self.orders: IndexedMemory = memory()
        database.execute("create table orders (id bigint primary key, value text)")
        database.execute("insert into orders select n, 'v' from generate_series(1, 10) n")
        dsn = database.dsn.replace(f"port={database.server.port}", f"port={proxy.port}")
        # Long enough for a busy machine: that the server gives up is not what is tested here.
        source = postgres(f"{dsn} options='-c wal_sender_timeout=30s'", name="shop")
        self.engine = Engine(
            Pipeline(source, "orders", self.orders, name="orders"),
            data=folder / "data",
            runner=ArrowRunner(),
            recorder="thread",
        )

    @property
    def info(self) -> SourceInfo:
        return self.engine.source_info("shop")

    def sender(self) -> int:
        """Return the server's process that sends; 0: none does."""
        return int(
            self.database.value("select coalesce(max(active_pid), 0) from pg_replication_slots")
        )

    def insert(self, key: int) -> None:
        self.database.execute("insert into orders values (%s, 'new')", key)

    def await_state(self, state: str, reason: str) -> SourceInfo:
        seen = [self.info]

        def there() -> bool:
            seen.append(self.info)
            return seen[-1].state == state and reason in seen[-1].reason

        wait_until(there, PATIENCE, what=f"{state}: {reason}")
        return seen[-1]

    def await_whole(self, *keys: int) -> None:
        wait_until(lambda: all(self.orders.get(key) for key in keys), PATIENCE, what="the rows")
        assert self.engine.await_ready(PATIENCE)
        assert self.orders.count() == 10 + len(keys)


@pytest.fixture
def followed(database: Database, tmp_path: Path) -> Iterator[Followed]:
    with proxy_to(database.server.port) as proxy:
        found = Followed(database, tmp_path, proxy)
        with found.engine:
            assert found.engine.await_ready(PATIENCE)
            yield found


def shorten(patch: pytest.MonkeyPatch, seconds: float = 0.5) -> None:
    """Let silence count soon: only once all is ready, for a busy machine is silent by itself."""
    patch.setattr(source_run, "SILENT_SECONDS", seconds)


@pytest.mark.meets("R7")
def test_a_row_that_did_not_arrive_on_a_silent_connection_is_not_green(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert followed.proxy.lose("to_client", "to_server") == 1
    followed.insert(11)
    shorten(monkeypatch)
    info = followed.await_state("silent", "Nothing was received from the server since")
    assert not followed.engine.is_ready()
    assert info.silence_seconds is not None
    assert info.silence_seconds > 0.5
    # The other connection says what is missing.
    wait_until(lambda: followed.info.lag_bytes, PATIENCE, what="a lag in bytes")
    wait_until(lambda: (followed.info.lag_seconds or 0) > 1, PATIENCE, what="a lag in seconds")
    assert followed.orders.get(11) is None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up a silent connection soon; the server itself waits much longer."""
    monkeypatch.setattr(stream, "_server_timeout", lambda connection: 0.4)
    monkeypatch.setattr(stream, "ANSWER_SECONDS", 1.0)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[StateReport]:
    """Every change of state that a recorder reports."""
    seen: list[StateReport] = []
    moved = SourceRun._moved

    def note(run: SourceRun, report: StateReport) -> None:
        seen.append(report)
        moved(run, report)

    monkeypatch.setattr(SourceRun, "_moved", note)
    return seen


@pytest.mark.meets("R7", "R31")
@pytest.mark.parametrize("lost", [("to_client",), ("to_server",), ("to_client", "to_server")])
def test_a_silent_connection_is_given_up_for_a_new_one_and_nothing_is_lost(
    impatient: None, moves: list[StateReport], followed: Followed, lost: tuple[str, ...]
) -> None:
    sender = followed.sender()
    followed.proxy.lose(*lost)
    followed.insert(11)
    wait_until(lambda: followed.sender() not in (0, sender), PATIENCE, what="a new connection")
    followed.insert(12)
    followed.await_whole(11, 12)
    [why, *_] = [each.reason for each in moves if each.state == "reconnecting"]
    assert "Nothing was received on the replication connection since" in why


def test_a_connection_for_queries_that_is_silent_is_given_up(
    followed: Followed, moves: list[StateReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    moves.clear()
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.5)
    assert followed.proxy.lose("to_client", of=lambda each: not each.replicates)
    followed.insert(11)
    wait_until(lambda: moves, PATIENCE, what="the connection to be given up")
    assert moves[0].state == "reconnecting"
    assert "did not answer a query" in moves[0].reason
    monkeypatch.undo()
    followed.await_whole(11)


@pytest.mark.meets("R7", "R31")
def test_a_suspended_sender_is_red_with_its_reason_until_it_goes_on(
    impatient: None, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "RELEASE_SECONDS", 0.1)
    monkeypatch.setattr(recorder, "LONGEST_PAUSE_SECONDS", 0.2)
    sender = followed.sender()
    os.kill(sender, signal.SIGSTOP)
    try:
        followed.insert(11)
        info = followed.await_state("reconnecting", f"process {sender}")
        assert "earlier connection" in info.reason
        assert not followed.engine.is_ready()
        assert followed.orders.get(11) is None
    finally:
        os.kill(sender, signal.SIGCONT)
    followed.await_whole(11)
    assert followed.sender() != sender


def test_a_server_with_nothing_to_send_is_asked_now_and_then(
    impatient: None, moves: list[StateReport], followed: Followed
) -> None:
    silences: list[float] = []

    def heard_again() -> bool:
        silences.append(followed.info.silence_seconds or 0.0)
        return sum(now < before for before, now in pairwise(silences)) >= 2

    wait_until(heard_again, PATIENCE, what="messages of an idle server")
    assert followed.engine.is_ready()


@pytest.mark.meets("R4")
def test_an_open_transaction_whose_last_record_is_incomplete_does_not_count_as_lag(
    followed: Followed,
) -> None:
    database = followed.database
    database.execute("create table others (id bigint, value text)")
    writer = database.connect(autocommit=False)

    def end() -> int:
        return int(database.value("select (pg_current_wal_flush_lsn() - '0/0')::int8"))

    def sent() -> int:
        return int(database.value("select max(sent_lsn - '0/0')::int8 from pg_stat_replication"))

    def counts_as_read() -> bool:
        at = end()
        if at % PAGE_BYTES:
            # The server writes whole pages of what is not committed, and so half a record.
            writer.execute("insert into others select n, 'x' from generate_series(1, 500) n")
            return False
        return followed.info.lag_bytes == 0 and sent() < at == end()

    wait_until(counts_as_read, PATIENCE, what="an end within a record")
    assert followed.engine.is_ready()


@pytest.mark.meets("R8")
def test_what_is_committed_without_waiting_for_the_disk_counts_once_it_must_be_flushed(
    database: Database,
) -> None:
    meter = LagMeter("none", lambda: 100.0)
    meter.look(database.connect(), replied=False)
    meter.reached(meter.end)
    # Three times the server's 200 ms, in which a visible commit may not be flushed yet.
    assert meter.age == pytest.approx(0.6)


@pytest.mark.meets("R2", "R8")
def test_what_was_committed_before_a_start_is_there_once_it_is_ready(
    database: Database, tmp_path: Path
) -> None:
    database.execute("create table orders (id bigint primary key, value text)")

    def engine() -> Engine:
        source = postgres(database.dsn, name="shop")
        file = FileTarget(tmp_path / "target.db")
        pipeline = Pipeline(source, tables=["orders"], target=file, name="file")
        return Engine(pipeline, data=tmp_path / "data", runner=ArrowRunner(), recorder="thread")

    with engine() as first:
        assert first.await_ready(PATIENCE)
    for turn in range(1, 4):
        database.execute(
            "insert into orders select n + %s * 10000, 'x' from generate_series(1, 5000) n", turn
        )
    with engine() as second:
        assert second.await_ready(PATIENCE)
        rows, _ = file_rows_at(tmp_path / "target.db", "orders")
        assert len(rows) == 15_000
