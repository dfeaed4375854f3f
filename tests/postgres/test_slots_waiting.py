"""Making a slot has to wait for older transactions, and can be watched and called off."""

from __future__ import annotations

import threading

import psycopg
import pytest

from headrace.capture.postgres.server import slot
from headrace.capture.postgres.server.slot import Older, SlotState
from headrace.errors import SlotTimeout
from tests.postgres.servers import Database, wait_until
from tests.postgres.test_slots import NAME, replicating, state_of
from tests.support.patience import patience


class GivenUp(Exception):
    pass


@pytest.mark.meets("R17")
def test_an_open_transaction_is_waited_for_and_named(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    writer = database.connect(autocommit=False)
    writer.execute("insert into t values (1)")
    watcher, sender = database.connect(), replicating(database)
    named: list[Older] = []

    def on_wait(seconds: float) -> None:
        assert seconds > 0
        older = slot.waiting_for(watcher, sender.info.backend_pid)
        if any(one.blocks for one in older) and not named:
            named.extend(older)
            writer.commit()

    created = slot.create(sender, NAME, on_wait=on_wait)
    assert created.consistent > 0
    [one] = [one for one in named if one.blocks]
    assert (one.pid, one.gid) == (writer.info.backend_pid, None)
    assert (one.user, one.database) == ("postgres", database.name)
    assert one.age is not None and one.age > 0
    assert one.query_age is not None


@pytest.mark.meets("R17")
def test_a_prepared_transaction_is_waited_for_and_named(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("begin; insert into t values (1); prepare transaction 'left by somebody'")
    watcher, sender = database.connect(), replicating(database)
    named: list[Older] = []

    def on_wait(seconds: float) -> None:
        older = [one for one in slot.waiting_for(watcher, sender.info.backend_pid) if one.blocks]
        if older and not named:
            named.extend(older)
            watcher.execute("commit prepared 'left by somebody'")

    slot.create(sender, NAME, on_wait=on_wait)
    assert [(one.pid, one.gid) for one in named] == [(None, "left by somebody")]


@pytest.mark.meets("R17")
def test_a_creation_that_takes_too_long_is_ended_and_leaves_nothing(database: Database) -> None:
    writer = database.connect(autocommit=False)
    writer.execute("create table t (id int primary key)")
    sender = replicating(database)
    with pytest.raises(SlotTimeout) as caught:
        slot.create(sender, NAME, timeout=0.5)
    assert "create_slot_timeout" in caught.value.remedy
    assert state_of(database) is SlotState.ABSENT
    writer.commit()
    assert slot.create(sender, NAME, timeout=patience()).snapshot  # over the same connection
    assert state_of(database) is SlotState.USABLE


@pytest.mark.meets("R17")
@pytest.mark.parametrize("reason", [GivenUp, psycopg.OperationalError, KeyboardInterrupt])
def test_a_creation_can_be_given_up_at_any_moment(
    database: Database, reason: type[BaseException]
) -> None:
    writer = database.connect(autocommit=False)
    writer.execute("create table t (id int primary key)")
    sender = replicating(database)

    def on_wait(seconds: float) -> None:
        raise reason

    with pytest.raises(reason):
        slot.create(sender, NAME, on_wait=on_wait)
    assert state_of(database) is SlotState.ABSENT
    assert slot.identify(sender).timeline


def test_a_slot_that_is_done_just_as_it_is_given_up_is_dropped(database: Database) -> None:
    writer = database.connect(autocommit=False)
    writer.execute("create table t (id int primary key)")
    sender = replicating(database)

    def on_wait(seconds: float) -> None:
        writer.commit()
        wait_until(lambda: state_of(database) is SlotState.USABLE, what="the slot")
        raise GivenUp

    with pytest.raises(GivenUp):
        slot.create(sender, NAME, on_wait=on_wait)
    assert state_of(database) is SlotState.ABSENT


def test_a_server_that_goes_away_meanwhile_ends_the_wait(database: Database) -> None:
    writer = database.connect(autocommit=False)
    writer.execute("create table t (id int primary key)")
    sender = replicating(database)
    pid = sender.info.backend_pid

    def on_wait(seconds: float) -> None:
        database.rows("select pg_terminate_backend(%s)", pid)

    with pytest.raises(psycopg.OperationalError):
        slot.create(sender, NAME, on_wait=on_wait)
    wait_until(lambda: state_of(database) is SlotState.ABSENT, what="no slot")


def test_other_threads_run_while_a_slot_is_waited_for(database: Database) -> None:
    writer = database.connect(autocommit=False)
    writer.execute("create table t (id int primary key)")
    turns = 0
    before: int | None = None
    ended = threading.Event()

    def work() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            ended.wait(0.005)

    def on_wait(seconds: float) -> None:
        nonlocal before
        # Since the last time: while nothing but the server's answer was waited for.
        if before is not None and turns - before >= 3:
            writer.commit()
        before = turns

    thread = threading.Thread(target=work)
    thread.start()
    try:
        slot.create(replicating(database), NAME, timeout=patience(), on_wait=on_wait)
    finally:
        ended.set()
        thread.join()
