"""
Whom we wait for, in words.

A new slot waits for every transaction that has a number, prepared ones too (R17); a copy waits
for those that wrote its table before it was published (R13). Either may take hours, and a
person can end it only if he knows whom to look for: by pid, user and application, and since
when. What those transactions do is never said: a query can hold anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import psycopg

from headrace.capture.postgres.slots import waiting_for

LOOK_SECONDS = 1.0
"""Between two looks at who is waited for: it costs the server a little."""


class Transaction(Protocol):
    """A transaction of somebody else, as `Older` and `Locker` have it."""

    @property
    def pid(self) -> int | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def application(self) -> str | None: ...
    @property
    def age(self) -> float | None: ...
    @property
    def gid(self) -> str | None: ...


class Watcher:
    """
    Looks at whom a slot under way waits for, and tells.

    `query` is an ordinary connection of the same thread, `sender` the pid at the other end of
    the connection that makes the slot. What `tell` raises ends the creation.
    """

    def __init__(
        self, query: psycopg.Connection[Any], sender: int, tell: Callable[[str], object]
    ) -> None:
        self._query = query
        self._sender = sender
        self._tell = tell
        self._looked = 0.0
        self._text = ""

    def look(self, waited: float) -> None:
        """Tell whom is waited for; called as often as you like with the seconds so far."""
        if not self._text or waited - self._looked >= LOOK_SECONDS:
            self._looked = waited
            found = waiting_for(self._query, self._sender)
            # The server waits for one after the other, and says for which.
            blocking = [one for one in found if one.blocks]
            self._text = whom("A new slot waits for", blocking or found)
        self._tell(self._text)


def whom(who_waits: str, transactions: Sequence[Transaction]) -> str:
    """Say for whom somebody waits, the first of them by name."""
    if not transactions:
        return f"{who_waits} transactions that are open"
    first, others = transactions[0], len(transactions) - 1
    more = f", and {others} more" if others else ""
    return f"{who_waits} {_named(first)}{more}"


def _named(one: Transaction) -> str:
    who = f"pid {one.pid}" if one.pid is not None else f"the prepared transaction {one.gid!r}"
    if one.user is not None:
        who += f" of user {one.user}"
    if one.application:
        who += f" ({one.application})"
    if one.age is None:
        return who
    began = datetime.fromtimestamp(time.time(), UTC) - timedelta(seconds=one.age)
    return f"{who}, open for {_span(one.age)}, since {began:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float) -> str:
    """Return a time as a person says it; coarse, so that it does not change all the time."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
