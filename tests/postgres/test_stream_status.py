"""Status updates to the server, and when they are sent: without a server, on a given clock."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.postgres.stream.stream import ACKNOWLEDGE_BYTES, SilencePatience, Status
from headrace.errors import BadPosition


def sent_update(status: Status, now: float = 0.0, *, sent: bool = True) -> tuple[int, int, int]:
    """Send an update; return what it says."""
    return asking_update(status, now, sent=sent)[:3]


def asking_update(status: Status, now: float, *, sent: bool = True) -> tuple[int, int, int, bool]:
    """Send an update; return what it says, and whether it asks for a reply."""
    update, acknowledged = status.update(now)
    kind, write, flush, apply, _, reply = struct.unpack(">cQQQqB", update)
    assert kind == b"r"
    status.note_sent(acknowledged, now, sent=sent)
    return write, flush, apply, bool(reply)


def test_before_the_first_acknowledgement_nothing_is_said_about_it() -> None:
    status = Status(100, 60.0, 0.0)
    status.moved(150, 160)
    assert sent_update(status) == (150, 0, 0)


def test_an_update_tells_what_was_received_and_what_was_acknowledged() -> None:
    status = Status(100, 60.0, 0.0)
    status.moved(150, 160)
    status.acknowledge(120)
    assert sent_update(status) == (150, 120, 120)
    assert status.confirmed == 120


@pytest.mark.meets("R2")
def test_nothing_is_acknowledged_that_was_not_received() -> None:
    status = Status(100, 60.0, 0.0)
    status.moved(150, 900)
    with pytest.raises(BadPosition):
        status.acknowledge(151)
    assert status.acknowledged == 0


@pytest.mark.meets("R8")
def test_what_was_not_sent_is_not_confirmed() -> None:
    status = Status(100, 60.0, 0.0)
    status.acknowledge(100)
    sent_update(status, sent=False)
    assert status.confirmed == 0


@pytest.mark.meets("R7")
@pytest.mark.parametrize(("timeout", "seconds"), [(60.0, 10.0), (0.0, 10.0), (6.0, 2.0)])
def test_a_silence_is_a_third_of_what_the_server_takes(timeout: float, seconds: float) -> None:
    status = Status(100, timeout, 5.0)
    for second in range(20):
        status.note_received(5.0 + second / 2)
    assert status.due == 5.0 + seconds


def test_an_acknowledgement_is_told_within_a_second_and_a_long_one_at_once() -> None:
    status = Status(100, 60.0, 5.0)
    status.moved(100 + 2 * ACKNOWLEDGE_BYTES, 0)
    status.acknowledge(101)
    sent_update(status, 5.0)
    status.acknowledge(102)
    assert status.due == 6.0
    status.acknowledge(102 + ACKNOWLEDGE_BYTES)
    assert status.due <= 5.0


@pytest.mark.meets("R7")
def test_a_server_that_asks_without_news_is_leaving_and_gets_no_statement() -> None:
    status = Status(100, 60.0, 0.0)
    status.moved(150, 150)
    status.acknowledge(120)
    for number in range(3):
        status.asked(number / 10)
        assert status.due <= number / 10
        assert sent_update(status, number / 10) == (150, 120, 120)
    status.asked(0.3)
    assert sent_update(status) == (150, 0, 0)
    assert status.confirmed == 120
    status.moved(151, 151)  # it goes on after all
    assert sent_update(status) == (151, 120, 120)


@pytest.mark.meets("R7")
def test_a_server_that_asks_now_and_then_or_has_news_is_not_leaving() -> None:
    slow = Status(100, 60.0, 0.0)
    for second in range(10):
        slow.asked(second / 2)
    assert not slow.leaving
    busy = Status(100, 60.0, 0.0)
    for step in range(10):
        busy.moved(0, 101 + step)
        busy.asked(step / 100)
    assert not busy.leaving


@pytest.mark.meets("R7")
@pytest.mark.parametrize(
    ("timeout", "asked", "lost"),
    [(60.0, 5.0, 45.0), (0.0, 5.0, 45.0), (300.0, 5.0, 225.0), (4.0, 2.0, 7.0)],
)
def test_a_silent_server_is_asked_for_a_reply_and_given_up_without_one(
    timeout: float, asked: float, lost: float
) -> None:
    status = Status(100, timeout, 0.0)
    assert status.due <= asked
    assert not asking_update(status, asked - 0.1)[3]
    assert status.due <= asked
    assert asking_update(status, asked)[3]
    assert not asking_update(status, asked + 0.1)[3]
    assert not status.lost(lost - 0.1)
    assert asking_update(status, lost - 0.1)[3]  # again and again
    assert status.lost(lost)
    status.note_received(lost)
    assert not status.lost(lost)
    assert status.due > lost


@pytest.mark.meets("R7")
def test_a_server_that_was_given_up_has_twice_the_time_until_it_has_come_further() -> None:
    patience = SilencePatience()
    for waits in (45.0, 90.0, 180.0, 300.0, 300.0):
        status = Status(100, 60.0, 0.0, patience)
        asking_update(status, 5.0)
        assert not status.lost(waits - 0.1)
        assert status.lost(waits)
        status.give_up(waits)
    status = Status(100, 60.0, 0.0, patience)
    status.moved(100, 100)
    asking_update(status, 5.0)
    assert not status.lost(299.0)
    status.moved(101, 101)
    assert status.lost(45.0)


def test_a_server_that_was_not_asked_is_not_given_up() -> None:
    # Nobody read, and so nobody can say that it did not send anything.
    assert not Status(100, 60.0, 0.0).lost(3600.0)


@pytest.mark.meets("R4", "PG-21", "PG-22")
@given(
    st.lists(
        st.tuples(st.sampled_from(["moved", "asked", "acknowledge", "tell"]), st.integers(0, 40))
    )
)
def test_the_slot_is_never_moved_but_by_what_was_acknowledged(
    steps: list[tuple[str, int]],
) -> None:
    status = Status(10, 60.0, 0.0)
    acknowledged = received = 0
    for number, (step, lsn) in enumerate(steps):
        if step == "moved":
            status.moved(lsn, lsn)
            received = max(received, lsn)
        elif step == "asked":
            status.asked(number / 20)
        elif step == "acknowledge" and lsn <= max(received, 10):
            status.acknowledge(lsn)
            acknowledged = max(acknowledged, lsn)
        elif step == "tell":
            write, flush, apply = sent_update(status)
            assert flush == apply
            assert flush in (0, acknowledged)
            assert flush <= write
