"""Frames between engine and recorder."""

import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.capture.messages import (
    COMMANDS,
    REPORTS,
    Acknowledge,
    BaselineProgress,
    Channel,
    Command,
    Failed,
    Flushed,
    FlushNow,
    LagReport,
    Report,
    Setup,
    Started,
    StateReport,
    StopRecorder,
    TakeBaseline,
)
from headrace.capture.process import Inbox
from headrace.errors import RecorderFailed, TableRefused
from tests.support.patience import patience

Line = tuple[Channel[Report], Channel[Command | Setup]]

COMMANDS_SENT: list[Command | Setup] = [
    FlushNow(),
    Acknowledge("0001-0000000000000001-00000000"),
    TakeBaseline("orders"),
    StopRecorder(),
    Setup("sqlite", "shop", {"path": "/x", "columns": {"at": "text"}}, ("t",), "/d", "w", 3, "r"),
]
REPORTS_SENT: list[Report] = [
    Started(1),
    Flushed(7),
    LagReport(None, None, 4),
    StateReport("streaming"),
    BaselineProgress("orders", 10, done=True),
    Failed("capture.failed", "A message", "Do this", {"a": "1"}, stops=True),
]


@pytest.fixture
def line() -> Iterator[Line]:
    ours, theirs = socket.socketpair()
    engine, recorder = Channel(ours, REPORTS), Channel(theirs, COMMANDS)
    yield engine, recorder
    engine.close()
    recorder.close()


def test_frames_arrive_as_they_were_sent(line: Line) -> None:
    engine, recorder = line
    for command in COMMANDS_SENT:
        assert engine.send(command)
        assert recorder.receive() == command
    for report in REPORTS_SENT:
        assert recorder.send(report)
        assert engine.receive() == report


def test_a_closed_end_is_an_end_of_file_at_the_other(line: Line) -> None:
    engine, recorder = line
    got: list[object] = []
    listener = threading.Thread(target=lambda: got.append(recorder.receive()))
    listener.start()
    engine.close()
    listener.join(patience())
    assert got == [None]
    assert not recorder.send(Flushed(1))


def test_half_a_frame_is_an_end_of_file(line: Line) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"\0\0\0\x10{")
    ours.close()
    channel = Channel(theirs, REPORTS)
    assert channel.receive() is None
    channel.close()


def test_an_error_keeps_its_class_over_the_line() -> None:
    error = TableRefused("No key", table="t", remedy="Declare one.")
    again = Failed.of(error, stops=True).error()
    assert isinstance(again, TableRefused)
    assert (again.message, again.remedy, again.facts) == ("No key", "Declare one.", {"table": "t"})
    assert isinstance(Failed("no.such", "x", "y", {}).error(), RecorderFailed)


def test_of_commands_that_pile_up_the_last_of_a_kind_counts() -> None:
    inbox = Inbox()
    for number in range(3):
        inbox.put(FlushNow())
        inbox.put(Acknowledge(str(number)))
        inbox.put(TakeBaseline(str(number)))
    assert inbox.take(0) == [
        TakeBaseline("0"),
        TakeBaseline("1"),
        FlushNow(),
        Acknowledge("2"),
        TakeBaseline("2"),
    ]
    assert inbox.take(0.01) == []
