"""
A source's reset, from being asked for until reading has begun anew.

Whoever asks is answered at once, and the recorder may be away, or die on the way: so what
was asked is kept here, given to every recorder that starts, and forgotten when one has done
it. A recorder that dies between the two does it again, which costs another copy and no more.
"""

from __future__ import annotations

from headrace.capture.wire import Reset


class OwedReset:
    """For callers that hold their own lock."""

    def __init__(self) -> None:
        self._asked: Reset | None = None
        self._begun = False

    @property
    def owed(self) -> bool:
        """Whether one was asked for, and reading has not begun anew since."""
        return self._asked is not None

    def ask(self, reset: Reset) -> None:
        """Note what was asked for."""
        self._asked, self._begun = reset, False

    def give(self) -> Reset | None:
        """Return what a recorder that starts now has to do first."""
        self._begun = False
        return self._asked

    def moved(self, state: str) -> None:
        """Take it that the recorder came to that state."""
        if state == "resetting":
            self._begun = self._asked is not None
        elif state == "streaming" and self._begun:
            # The log has its gap: that was told before this state.
            self._asked, self._begun = None, False

    def stopped(self) -> bool:
        """The recorder stopped for good; return whether it did so before it had heard of this."""
        unheard = self._asked is not None and not self._begun
        if not unheard:
            self._asked, self._begun = None, False
        return unheard
