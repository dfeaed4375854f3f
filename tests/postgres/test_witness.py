"""What a server has to send again, for its history to be the log's: without a server."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest

from headrace.capture.postgres.decode import pgoutput
from headrace.capture.postgres.position import LsnPosition, Mark
from headrace.capture.postgres.server import start_position
from headrace.capture.postgres.stream import transactions as module
from headrace.capture.postgres.stream.stream import ReceivedMessages
from tests.postgres import messages as m
from tests.postgres.naive import made, taken

MARK = Mark(start=1000, xid=740, time=pgoutput.EPOCH + 5)
END = LsnPosition("7", 5, 0, 1, 2000, MARK)
OURS, THEIRS = 16_400, 16_500


def transaction(start: int, end: int, xid: int, time: int, *oids: int) -> list[bytes]:
    begin = struct.pack(">cqqI", b"B", start, time, xid)
    changes = [struct.pack(">cIc", b"I", oid, b"N") for oid in oids]
    return [begin, *changes, struct.pack(">cbqqq", b"C", 0, start, end, time)]


SAME = transaction(1000, 1050, 740, 5, OURS)


class Sent:
    """A stream that has been received already, message by message."""

    def __init__(self, messages: Sequence[bytes], end: int) -> None:
        self.end = 0
        self.at = 0
        self.closed = False
        self._messages = list(messages)
        self._end = end

    def receive(self, wait: float) -> ReceivedMessages | None:
        if not self._messages:
            self.end = self._end
            return None
        message = self._messages.pop(0)
        return ReceivedMessages(message, np.array([0]), np.array([len(message)]), 0)

    def close(self) -> None:
        self.closed = True


def asked(messages: Sequence[bytes], *, confirmed: int = 0, end: int = 3000) -> bool | None:
    stream = Sent(messages, end)

    def begin(at: int) -> Sent:
        stream.at = at
        return stream

    found = start_position.same_history(begin, END, confirmed, [OURS], lambda reason: None)  # type: ignore[arg-type]
    assert stream.closed or not stream.at
    assert stream.at in (0, max(confirmed, MARK.start))
    return found


@pytest.mark.meets("R2")
@pytest.mark.parametrize(
    ("messages", "same"),
    [
        (SAME, True),
        ([], False),
        (transaction(1000, 1050, 740, 6, OURS), False),
        (transaction(1000, 1050, 741, 5, OURS), False),
        (transaction(1008, 1058, 740, 5, OURS), False),
        (transaction(2010, 2050, 740, 5, OURS), False),
        (SAME + transaction(1100, 1150, 741, 7, OURS), False),
        (SAME + transaction(1100, 1150, 741, 7, THEIRS), True),
        (SAME + transaction(1100, 1150, 741, 7), True),
        (SAME + transaction(1100, 2001, 741, 7, OURS), True),
    ],
)
def test_the_log_ends_with_the_commit_that_the_server_begins_with(
    messages: Sequence[bytes], same: bool
) -> None:
    assert asked(messages) is same


@pytest.mark.meets("R2")
def test_behind_what_was_confirmed_there_is_nothing_of_ours() -> None:
    assert asked([], confirmed=1050)
    assert asked(transaction(1100, 1150, 741, 7, THEIRS), confirmed=1050)
    assert asked(transaction(1100, 1150, 741, 7, THEIRS, OURS), confirmed=1050) is False
    emptied = struct.pack(">cIbII", b"T", 2, 0, THEIRS, OURS)
    begin, commit = transaction(1100, 1150, 741, 7)
    assert asked([begin, emptied, commit], confirmed=1050) is False


def test_a_slot_that_knows_of_the_logs_end_need_not_be_read() -> None:
    assert asked(transaction(1000, 1050, 1, 1, OURS), confirmed=2000)


def test_half_a_transaction_and_half_an_answer_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_position, "ASK_SECONDS", 0.05)
    assert asked(SAME, end=1900) is None
    assert asked(SAME[:-1]) is None


@pytest.mark.meets("R2", "R3")
def test_every_place_carries_the_last_commit_however_it_came() -> None:
    ours = made()
    assert ours.position_at(5).mark is None
    small = [m.begin(1), m.commit(100, time=5, start=90), m.begin(2), m.commit(200, time=6)]
    [changes] = taken(ours, small)
    assert ours.position_at(250).mark == Mark(192, 2, 6)
    assert str(changes.upto) == "7/5/0/1/0/C8@0/C0:2:6"
    streamed = [m.stream_start(3, first=True), m.stream_stop(), m.stream_commit(3, 300, time=7)]
    taken(ours, streamed)
    assert ours.position_at(300).mark == Mark(292, 3, 7)
    with patch.object(module, "TAIL_BYTES", 10):
        taken(ours, [m.begin(4), m.message(350, "p", b"x" * 100)])
    assert ours.position_at(300).mark == Mark(292, 3, 7)
    taken(ours, [m.commit(400, time=8, start=380)])
    assert ours.position_at(400).mark == Mark(380, 4, 8)
