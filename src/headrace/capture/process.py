"""
The supervision of a recorder, which runs in its own process or on a thread.

A recorder runs in its own process, so that nothing in the engine can delay reading, and a crash
on one side does not affect the other. The same loop runs on a thread for tests and for sources
that exist only in this process. Both have the same interface.

The process has one parent and one connection to it. When the connection ends, the process exits,
whatever it is doing: an engine that was killed must not leave a second writer running (R31). If
another process has inherited the engine's end of the connection, the parent's process id shows
that the engine has ended.

A recorder that exits without having been asked to, and without having reported that it stops
for good, is started again, with growing pauses, until one of them works; or until as many in a row
have exited as the source's `reconnect` allows.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

import headrace
from headrace.capture.messages import (
    COMMANDS,
    ENDLESS,
    REPORTS,
    Acknowledge,
    Channel,
    Command,
    Failed,
    Flushed,
    FlushNow,
    MaintainLog,
    Report,
    Reset,
    Retries,
    Setup,
    Started,
    StateReport,
    StopRecorder,
)
from headrace.capture.recorder import Recorder
from headrace.capture.registry import KINDS, build
from headrace.capture.source import Recordable, SourceSpec, reader_of
from headrace.changelog.reader import LogWriter
from headrace.errors import HeadraceError, RecorderFailed
from headrace.storage.permissions import make_private_folder, open_private
from headrace.storage.s3 import opened

# --- the recorder's loop --------------------------------------------------------------------------

WAIT_SECONDS = 1.0
"""How long one step may wait for changes; commands end the wait early."""


class Inbox:
    """The queue of commands for a recorder; any thread and any signal handler can add to it."""

    def __init__(self) -> None:
        # Unlike other queues, this one allows `put` while `get` runs on the same thread.
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.closed = False
        self._pressing = False

    @property
    def pressing(self) -> bool:
        """Whether it contains a command that must not wait for sessions at the source."""
        return self._pressing or self.closed

    def put(self, command: Command) -> None:
        """Add a command."""
        self._queue.put(command)
        # Set afterwards: otherwise a `take` in between would clear it and leave the command.
        if isinstance(command, StopRecorder | Reset):
            self._pressing = True

    def close(self) -> None:
        """End the loop at once: the engine is gone."""
        self.closed = True
        self._queue.put(None)

    def take(self, seconds: float) -> list[Command]:
        """Return the commands that have arrived, after waiting up to `seconds` for the first."""
        taken: list[Command | None] = []
        self._pressing = False
        try:
            taken.append(self._queue.get(timeout=seconds) if seconds > 0 else None)
            while True:
                taken.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return _latest([command for command in taken if command is not None])


def _latest(commands: list[Command]) -> list[Command]:
    """Leave out commands that a later one of the same kind replaces."""
    seen: set[type] = set()
    kept = []
    for command in reversed(commands):
        if isinstance(command, FlushNow | Acknowledge | MaintainLog):
            if type(command) in seen:
                continue
            seen.add(type(command))
        kept.append(command)
    return kept[::-1]


def run(recorder: Recorder, inbox: Inbox, report: Callable[[Report], object]) -> None:
    """Run steps until the recorder is done or the inbox is closed."""
    recorder.on_report, recorder.pressed = report, lambda: inbox.pressing
    while not recorder.done and not inbox.closed:
        for each in recorder.step(inbox.take(recorder.rest), WAIT_SECONDS):
            report(each)


# --- the recorder as a process --------------------------------------------------------------------

GRACE_SECONDS = 1.0
"""Time for the main thread to end by itself once the connection is closed."""

LOOK_SECONDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """Run as `python -m headrace.capture.recorder DESCRIPTOR`."""
    # Ctrl-C in a terminal reaches every process in it; the recorder is stopped by its engine.
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
        inbox.put(StopRecorder())
        source.wake()

    signal.signal(signal.SIGTERM, stop)
    done = threading.Event()
    threading.Thread(target=_listen, args=(channel, inbox, source, done), daemon=True).start()
    threading.Thread(target=_look, args=(parent, inbox, source, done), daemon=True).start()
    recorder = Recorder(
        source,
        log_opener(setup, source),
        setup.tables,
        time.monotonic,
        setup.selections,
        setup.reconnect,
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
        # It is in a long operation. The log allows a writer to end at any instant.
        os._exit(3)


# --- the supervisor -------------------------------------------------------------------------------

OnReport: TypeAlias = Callable[[Report], object]
"""Called on the recorder's own thread, one report at a time; must not block."""

PendingReset: TypeAlias = Callable[[], Reset | None]
"""Called whenever a recorder starts: returns the pending reset, which is done first."""


def no_reset() -> None:
    """Return None: no reset is pending."""


FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0
PROVED_SECONDS = 10.0
"""A recorder that ran for this long, or flushed, has worked: the next pause is short again."""


class RunningRecorder(Protocol):
    """A recorder under supervision."""

    restarts: int
    """How often it had to be restarted."""

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        ...

    @property
    def alive(self) -> bool: ...

    def start(self) -> None: ...

    def send(self, command: Command) -> None:
        """Send a command; it is lost if the recorder does not run at the time (see `Started`)."""
        ...

    def stop(self, timeout: float = 10.0) -> None:
        """Let it flush and exit; after `timeout` seconds it is ended by force."""
        ...


class RecorderProcess:
    """A recorder in a child process."""

    def __init__(
        self,
        setup: Setup,
        on_report: OnReport,
        *,
        log_file: str,
        pending_reset: PendingReset = no_reset,
    ) -> None:
        self.restarts = 0
        self._setup = setup
        self._pending_reset = pending_reset
        self._on_report = on_report
        self._log_file = Path(log_file)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._failed = False
        self._proved = False
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: Channel[Report] | None = None
        self._supervisor: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        child = self._child
        return None if child is None or child.poll() is not None else child.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, or will be restarted."""
        return self._supervisor is not None and self._supervisor.is_alive()

    def start(self) -> None:
        """Start the child and the thread that receives its reports."""
        channel, child = self._spawn()
        self._supervisor = threading.Thread(
            target=self._supervise,
            args=(channel, child),
            name=f"headrace-recorder-{self._setup.name}",
            daemon=True,
        )
        self._supervisor.start()

    def send(self, command: Command) -> None:
        """Send to the current child."""
        if (channel := self._channel) is not None:
            channel.send(command)

    def stop(self, timeout: float = 10.0) -> None:
        """Ask the child to exit; kill it if it does not."""
        self._stopping.set()
        self.send(StopRecorder())
        supervisor = self._supervisor
        if supervisor is not None and supervisor is not threading.current_thread():
            supervisor.join(timeout)
            if supervisor.is_alive():
                with self._lock:
                    if self._child is not None:
                        self._child.kill()
                supervisor.join(timeout)

    def _spawn(self) -> tuple[Channel[Report], subprocess.Popen[bytes]]:
        # Python's sockets are not inherited: the child gets only its own end, and no other
        # process gets ours. Otherwise the connection would outlive this process (R31).
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            make_private_folder(self._log_file.parent)
            with open_private(self._log_file, append=True) as log:
                child = subprocess.Popen(
                    # -P: a file in the user's current folder must not replace a module.
                    [sys.executable, "-P", "-m", "headrace.capture.recorder", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(),
                    start_new_session=True,
                )
            self._child = child
            self._channel = channel = Channel(ours, REPORTS)
        channel.send(msgspec.structs.replace(self._setup, reset=self._pending_reset()))
        if self._stopping.is_set():
            channel.send(StopRecorder())
        return channel, child

    def _supervise(self, channel: Channel[Report], child: subprocess.Popen[bytes]) -> None:
        pause, exits = FIRST_PAUSE_SECONDS, 0
        while True:
            began = time.monotonic()
            self._proved = False
            self._listen(channel)
            channel.close()
            code = child.wait()
            if self._stopping.is_set() or self._failed:
                return
            if self._proved or time.monotonic() - began >= PROVED_SECONDS:
                pause, exits = FIRST_PAUSE_SECONDS, 0
            exits += 1
            if self._setup.reconnect.exhausted(exits):
                error = RecorderFailed(
                    "The recorder exited again and again", times=exits, exit_code=code
                )
                self._failed = True
                self._on_report(Failed.of(error, stops=True))
                return
            self._on_report(StateReport("reconnecting", f"The recorder exited with code {code}"))
            if self._stopping.wait(pause):
                return
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            self.restarts += 1
            channel, child = self._spawn()

    def _listen(self, channel: Channel[Report]) -> None:
        greeted = False
        while (report := channel.receive()) is not None:
            if isinstance(report, Flushed):
                # The first one only reports where the log ends: it does not prove anything yet.
                self._proved, greeted = greeted, True
            if isinstance(report, Failed) and report.stops:
                self._failed = True
            self._on_report(report)


class RecorderThread:
    """A recorder on a thread of this process."""

    restarts = 0

    def __init__(
        self,
        source: Recordable,
        setup: Setup,
        on_report: OnReport,
        *,
        recorder: Recorder | None = None,
        pending_reset: PendingReset = no_reset,
    ) -> None:
        self._source = source
        self._on_report = on_report
        self._name = setup.name
        self._recorder = recorder or Recorder(
            source,
            log_opener(setup, source),
            setup.tables,
            time.monotonic,
            setup.selections,
            setup.reconnect,
        )
        self._inbox = Inbox()
        if (reset := pending_reset()) is not None:
            self._inbox.put(reset)
        self._thread: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """This process, while it runs."""
        return os.getpid() if self.alive else None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-recorder-{self._name}", daemon=True
        )
        self._thread.start()

    def send(self, command: Command) -> None:
        """Add the command to the inbox, from which the next step takes it."""
        self._inbox.put(command)
        self._source.wake()

    def stop(self, timeout: float = 10.0) -> None:
        """Let it flush and end; after `timeout` it ends without a flush."""
        self.send(StopRecorder())
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
            if thread.is_alive():
                self._inbox.close()
                self._source.wake()

    def _run(self) -> None:
        self._on_report(Started(os.getpid()))
        try:
            run(self._recorder, self._inbox, self._on_report)
        finally:
            if not self._recorder.done and not self._inbox.closed:
                # An unexpected error is being raised; the engine must not wait for ever.
                error = RecorderFailed("The recorder stopped on an unexpected error")
                self._on_report(Failed.of(error, stops=True))


def start_recorder(
    source: Recordable,
    spec: SourceSpec,
    tables: Sequence[str],
    *,
    data: str,
    storage: str | None = None,
    writer: str,
    term: int,
    on_report: OnReport,
    how: str = "process",
    reader: str | None = None,
    pending_reset: PendingReset = no_reset,
    selections: Sequence[Sequence[str]] = (),
    baselines: int = 0,
    reconnect: Retries = ENDLESS,
) -> RunningRecorder:
    """
    Start recording `tables` of a source into the data directory `data`, or into `storage`.

    Tables that match a list of patterns in `selections` are recorded, too, also later ones.
    `reader` is the name of this reader at the source; by default it is made from the data
    directory. Baselines get numbers above `baselines`, even in a log that was recreated.
    """
    where = str(Path(data).resolve())
    setup = Setup(
        kind=spec.kind,
        name=spec.name,
        options=dict(spec.options),
        tables=tuple(tables),
        storage=storage or where,
        writer=writer,
        term=term,
        reader=reader or reader_of(spec.name, where),
        baselines=baselines,
        selections=tuple(tuple(patterns) for patterns in selections),
        reconnect=reconnect,
    )
    recorder: RunningRecorder
    if how == "thread":
        # Its own object if it can be built: the caller's object is used by other threads.
        own = build(spec, setup.reader) if spec.kind in KINDS else source
        recorder = RecorderThread(own, setup, on_report, pending_reset=pending_reset)
    else:
        log_file = str(Path(where) / "logs" / f"recorder-{spec.name}.log")
        recorder = RecorderProcess(setup, on_report, log_file=log_file, pending_reset=pending_reset)
    recorder.start()
    return recorder


def _environment() -> dict[str, str]:
    """Return our environment, with the folder of this package first in PYTHONPATH."""
    environment = dict(os.environ)
    folder = str(Path(headrace.__path__[0]).parent)
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = folder if not others else f"{folder}{os.pathsep}{others}"
    return environment
