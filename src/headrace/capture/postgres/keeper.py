"""
Says that we live while nobody reads.

Whoever reads the stream also writes the log, and a slow disk may hold him up for longer than
the server waits for a word of ours. It would end the connection, and all that was sent and
not yet durable would be sent again, only for the disk to hold it up again (R7). So a thread of
its own sends the update that is due.

Not for ever: a server that shuts down asks, and nobody who is away hears it. After
`AWAY_SECONDS` we count as gone; the server ends the connection by its own time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

AWAY_SECONDS = 300.0
"""How long a reader may be away and still be spoken for."""

_LEAST_SECONDS = 0.01


class Keeper:
    """Calls `speak`, which returns in how many seconds it wants to be called again."""

    def __init__(self, speak: Callable[[], float]) -> None:
        self._speak = speak
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="headrace-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; nothing is said once this has returned."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _keep(self) -> None:
        wait = 0.0
        while not self._over.wait(max(_LEAST_SECONDS, wait)):
            wait = self._speak()
