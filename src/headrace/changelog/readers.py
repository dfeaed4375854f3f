"""
Named readers: who reads a log on his own account, and has it kept for him while he does (R27).

A reader writes down where he stands, for the length of a lease, and says so again before it
is over. The log keeps everything after that place. A lease that ran out holds nothing: the
reader may find his place still there, or gets `changelog.expired`, but never fewer rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from headrace.changelog.entry import FORMAT
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.errors import BadPosition, ChangeLogError, PositionExpired
from headrace.storage.files import Files

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_FORGOTTEN = 24 * 3600 * 1_000_000


class _Stored(msgspec.Struct, frozen=True):
    position: str
    until: int
    format: int = FORMAT
    baselines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """Where a named reader stands, and until when that counts."""

    name: str
    position: Position
    until: int
    """Microseconds since 1970."""

    baselines: tuple[int, ...] = ()
    """Those whose rows it has not read to the end."""


class NamedReader:
    """One reader's lease; *durable* on return of each call. For one thread."""

    def __init__(
        self, files: Files, source: str, name: str, seconds: float, clock: Callable[[], float]
    ) -> None:
        """`files` is the data directory, `seconds` the lease, `clock` tells seconds since 1970."""
        if NAME.fullmatch(name) is None:
            raise ChangeLogError(
                "A reader's name has letters, digits, dots, dashes and underscores", name=name
            )
        self._files = files.within(f"log/{source}/readers")
        self._source = source
        self._name = name
        self._seconds = seconds
        self._clock = clock

    def hold(self, at: Position, log: LogReader, baselines: Collection[int] = ()) -> None:
        """
        Have everything after `at` kept from now on, until the lease is over or the next call.

        So are these baselines, whether they are the newest or not.

        `PositionExpired` where it is not there any more.
        """
        until = int((self._clock() + self._seconds) * 1_000_000)
        stored = _Stored(str(at), until, baselines=tuple(sorted(baselines)))
        self._files.make_folder("")
        self._files.put(f"{self._name}.json", msgspec.json.encode(stored))
        # After it is written: whoever decided before that may have dropped it meanwhile.
        log.refresh()
        if at < log.floor:
            self.release()
            raise PositionExpired(
                "The log does not reach back so far",
                source=self._source,
                reader=self._name,
                asked=at,
                kept_after=log.floor,
            )

    def release(self) -> None:
        """Let go; a second time does nothing."""
        with suppress(FileNotFoundError):
            self._files.remove(f"{self._name}.json")


def leases(files: Files, source: str, now: float) -> list[Lease]:
    """Return the leases that count now; those that are long over are removed."""
    inside = files.within(f"log/{source}/readers")
    time = int(now * 1_000_000)
    found = []
    for name in inside.list(""):
        if not name.endswith(".json"):
            continue
        try:
            stored = msgspec.json.decode(inside.read(name), type=_Stored)
            position = Position.parse(stored.position)
        except (FileNotFoundError, msgspec.DecodeError, BadPosition):
            continue  # released meanwhile; or nobody can say what it was
        if stored.until > time:
            found.append(
                Lease(name.removesuffix(".json"), position, stored.until, stored.baselines)
            )
        elif stored.until + _FORGOTTEN < time:
            with suppress(FileNotFoundError):
                inside.remove(name)
    return found
