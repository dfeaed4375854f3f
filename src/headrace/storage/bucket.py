"""
The steps an object storage offers, one method each.

Each is atomic and durable by itself: an object is absent or whole, and what was stored is seen
by everybody at once. What is new beside a disk is the answer that gets lost: a step that raised
`Unanswered` may have taken effect, or may still. What is made of these steps stands in
`objects.py`; what goes wrong in them is played by `simulated_bucket.py`, which is why they are
a protocol.
"""

from __future__ import annotations

from typing import Protocol

from headrace.storage.disk import Buffer


class Unanswered(Exception):
    """A step was put off, or its answer is lost: it may have taken effect. Worth another try."""


class Refused(Exception):
    """The storage does not do this, and will not the next time either."""

    def __init__(self, reason: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class Bucket(Protocol):
    """
    Steps on one bucket; a key is the whole name of an object.

    *Order*: a step sees what those before it did. *Durability*: what `store` put is durable when
    it returns. *Failure*: `Unanswered` or `Refused`; nothing is tried twice in here, because only
    the caller can tell its own object from another's. *Threads*: any number.
    """

    def store(self, key: str, data: Buffer, *, new: bool) -> None:
        """Store an object; with `new`, `FileExistsError` where there is one of that key."""
        ...

    def read(self, key: str) -> bytes:
        """Return all bytes; `FileNotFoundError` where there is no such object."""
        ...

    def size(self, key: str) -> int:
        """Return an object's size; `FileNotFoundError` where there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return what follows `prefix` up to the next `/` in all keys that begin with it."""
        ...

    def remove(self, key: str) -> None:
        """Remove an object, if there is one."""
        ...

    def unique(self) -> str:
        """Return a word that nobody else who writes here is given."""
        ...

    def rest(self, seconds: float) -> None:
        """Wait before another try."""
        ...
