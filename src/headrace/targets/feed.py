"""
Changes on their way to whoever wants to hear of them.

The writer hands over what a batch did as row numbers, and goes on; every reader has a queue
of its own and makes the changes on its own thread. So a slow reader costs the writer
nothing but memory, and that has an end: too far behind, it is told so and let go.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from headrace.errors import FellBehind, TableError
from headrace.observe.logs import logger
from headrace.tables import Row, RowChanges, TableChange

log = logger(__name__)

MOST_BEHIND: Final = 100_000
"""Changes that may wait for a reader; a single batch may be more, and waits as a whole."""

Listener = Callable[[Row | None, Row | None], object]
"""Called with the row before and after; both are None for a truncate."""


class ChangeReader(Iterator[TableChange]):
    """
    Every change of a table, in order, each after it is visible.

    Ends when the engine stops, after the changes that were there. `close` ends it before.
    For one thread at a time.
    """

    def __init__(self, most_behind: int = MOST_BEHIND) -> None:
        self._most_behind = most_behind
        self._wake = threading.Condition()
        self._waiting: deque[RowChanges] = deque()
        self._put = 0
        self._taken = 0
        self._done = False
        self._error: TableError | None = None
        self._batch: Iterator[TableChange] = iter(())

    def __next__(self) -> TableChange:
        while (change := next(self._batch, None)) is None:
            self._batch = iter(self._next_batch())
        # An int of one thread's: the writer may see it a little late, which is no harm.
        self._taken += 1
        return change

    def _next_batch(self) -> RowChanges:
        with self._wake:
            while not self._waiting:
                if self._error is not None:
                    raise self._error
                if self._done:
                    raise StopIteration
                self._wake.wait()
            return self._waiting.popleft()

    def put(self, changes: RowChanges) -> None:
        """Add changes for this reader; one that is too far behind loses what waits for it."""
        with self._wake:
            if self._done:
                return
            self._put += len(changes)
            behind = self._put - self._taken
            if behind > self._most_behind and behind > len(changes):
                self._waiting.clear()
                self._done = True
                self._error = FellBehind("Reader of changes is too slow", behind=behind)
            else:
                self._waiting.append(changes)
            self._wake.notify_all()

    @property
    def behind(self) -> int:
        """Changes that are visible and not read yet."""
        return self._put - self._taken

    @property
    def done(self) -> bool:
        """Whether nothing will be added any more."""
        return self._done

    def end(self) -> None:
        """Say that no change will follow; what waits can still be read."""
        with self._wake:
            self._done = True
            self._wake.notify_all()

    def close(self) -> None:
        """Stop reading, and forget what waits; safe from any thread, and twice."""
        with self._wake:
            self._waiting.clear()
            self._done = True
            self._batch = iter(())
            self._wake.notify_all()


class Feed:
    """
    The readers and listeners of one table.

    `lock` is held while a version is put in place and its changes are handed out, and while
    a reader joins: so it sees each change in its rows or in its changes, never in both or
    neither. Nobody holds it for longer than that, and reads of rows do not take it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.dropped = 0
        """Listeners that were let go: they raised, or fell behind."""
        # Weak: a loop over changes that was left must not gather them for ever.
        self._readers: list[weakref.ref[ChangeReader]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return bool(self._living())

    def put(self, changes: RowChanges) -> None:
        """Hand changes to every reader; the caller holds the lock."""
        if len(changes):
            for reader in self._living():
                reader.put(changes)

    def join(self, first: RowChanges) -> ChangeReader:
        """Return a new reader that begins with `first`; the caller holds the lock."""
        reader = ChangeReader()
        if len(first):
            reader.put(first)
        if self._closed:
            reader.end()
        self._readers = [weakref.ref(reader), *(weakref.ref(other) for other in self._living())]
        return reader

    def listen(self, reader: ChangeReader, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every change of `reader`, on a thread; return what stops it."""
        thread = threading.Thread(
            target=self._run, args=(reader, listener), name="headrace-listener", daemon=True
        )
        self._threads.append(thread)
        thread.start()
        return reader.close

    def close(self) -> None:
        """End all readers, and let listeners hear what is there already."""
        with self.lock:
            self._closed = True
            for reader in self._living():
                reader.end()
            threads, self._threads = self._threads, []
        for thread in threads:
            # A listener may stop the engine itself; and a slow one must not hold it up.
            if thread is not threading.current_thread():
                thread.join(timeout=1.0)

    def _living(self) -> list[ChangeReader]:
        readers = [reader for ref in self._readers if (reader := ref()) is not None]
        return [reader for reader in readers if not reader.done]

    def _run(self, reader: ChangeReader, listener: Listener) -> None:
        try:
            for change in reader:
                listener(change.before, change.after)
        except Exception as error:  # noqa: BLE001  it is the user's code, and may raise anything
            # Its text may hold values of the row, and stays out of the log.
            reader.close()
            # Counted last: whoever sees the number finds the line.
            log.warning("listener dropped", error=type(error).__name__, dropped=self.dropped + 1)
            self.dropped += 1
