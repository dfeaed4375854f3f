"""
The recorder as a process of its own.

It has one parent and one line to it. When the line ends, so does the process, whatever it
is doing: an engine that was killed must not leave a second writer behind (R31). Should
somebody else have inherited the engine's end of the line, the parent's number tells.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial

from headrace.capture.loop import Inbox, run
from headrace.capture.recorder import Recorder
from headrace.capture.registry import build
from headrace.capture.source import Recordable, SourceSpec
from headrace.capture.wire import COMMANDS, Channel, Command, Failed, Setup, Started, Stop
from headrace.changelog.log import LogWriter
from headrace.errors import HeadraceError
from headrace.storage.opening import opened

GRACE_SECONDS = 1.0
"""For the main thread to end by itself once the line has ended."""

LOOK_SECONDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """Run as `python -m headrace.capture.recorder DESCRIPTOR`."""
    # Ctrl-C in a terminal reaches every process in it; ours is stopped by its engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    channel = Channel(socket.socket(fileno=int(arguments[0])), COMMANDS)
    setup = channel.receive()
    if not isinstance(setup, Setup):
        return 2
    try:
        source = build(SourceSpec(setup.kind, setup.name, setup.options), setup.reader)
    except HeadraceError as error:
        channel.send(Failed.of(error, stops=True))
        return 1
    inbox = Inbox()
    if setup.reset is not None:
        inbox.put(setup.reset)

    def stop(signum: int, frame: object) -> None:
        inbox.put(Stop())
        source.wake()

    signal.signal(signal.SIGTERM, stop)
    done = threading.Event()
    threading.Thread(target=_listen, args=(channel, inbox, source, done), daemon=True).start()
    threading.Thread(target=_look, args=(parent, inbox, source, done), daemon=True).start()
    recorder = Recorder(
        source, log_opener(setup, source), setup.tables, time.monotonic, setup.selections
    )
    channel.send(Started(os.getpid()))
    run(recorder, inbox, channel.send)
    done.set()
    channel.close()
    return 0


def log_opener(setup: Setup, source: Recordable) -> partial[LogWriter]:
    """Return what opens the log for writing."""
    return partial(
        LogWriter.open,
        opened(setup.storage),
        source=setup.name,
        origin=source.origin,
        writer=setup.writer,
        term=setup.term,
        clock=time.time,
        baselines=setup.baselines,
    )


def _listen(
    channel: Channel[Command | Setup], inbox: Inbox, source: Recordable, done: threading.Event
) -> None:
    while (command := channel.receive()) is not None:
        if not isinstance(command, Setup):
            inbox.put(command)
            source.wake()
    _leave(inbox, source, done)


def _look(parent: int, inbox: Inbox, source: Recordable, done: threading.Event) -> None:
    while os.getppid() == parent:
        if done.wait(LOOK_SECONDS):
            return
    _leave(inbox, source, done)


def _leave(inbox: Inbox, source: Recordable, done: threading.Event) -> None:
    inbox.close()
    source.wake()
    if not done.wait(GRACE_SECONDS):
        # In the middle of something long. The log is made to be left at any instant.
        os._exit(3)
