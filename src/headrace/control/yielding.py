"""
A pipeline that was set aside: it holds nothing at its source any more, until it is exact again.

It is stored first, and from then on nothing is kept for it, whatever it is doing: one that
hangs, failed or is paused is just the one that this is about. Its own next step then puts
its tables back. A life that ends in between leaves that to the next one.
"""

from __future__ import annotations

import threading

from headrace.control.store import Store
from headrace.errors import SetAside


class Yielding:
    """Whether one pipeline was set aside, and why. Safe to call from several threads."""

    def __init__(self, pipeline: str, store: Store) -> None:
        self.why: SetAside | None = None
        self.owing = False
        """Whether its tables have not been put back yet."""

        self._pipeline = pipeline
        self._store = store
        self._lock = threading.Lock()

    def open(self) -> None:
        """Find what a life before this one left."""
        found = self._store.set_aside(self._pipeline)
        if found is not None:
            facts, taken = found
            self.why, self.owing = self._error(facts), not taken

    def begin(self, facts: dict[str, object]) -> None:
        """Set it aside, from now on."""
        with self._lock:
            self._store.note_set_aside(self._pipeline, facts, taken=False)
            self.why, self.owing = self._error(facts), True

    def taken(self) -> None:
        """Note that its tables were put back."""
        with self._lock:
            if self.owing and self.why is not None:
                self._store.note_set_aside(self._pipeline, self.why.facts, taken=True)
                self.owing = False

    def end(self) -> None:
        """Note that it is exact again, and holds the source back as others do."""
        with self._lock:
            if self.why is not None and not self.owing:
                self._store.forget_set_aside(self._pipeline)
                self.why = None

    def _error(self, facts: dict[str, object]) -> SetAside:
        message = "Set aside, so that the source has room and keeps our place"
        return SetAside(message, remedy=SetAside.remedy, **facts)
