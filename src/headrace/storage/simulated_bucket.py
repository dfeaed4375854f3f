"""
A bucket in memory whose answers get lost.

Each step may fail in one of three ways, by the dice it was given: it was put off and had no
effect (503, 409), it had its effect and the answer is lost, or it has its effect later, behind
the back of whoever gave up on it. So a seed decides and replays a history (P2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from random import Random
from threading import RLock
from typing import TypeVar

from headrace.storage.bucket import Unanswered
from headrace.storage.disk import Buffer

T = TypeVar("T")


class SimulatedBucket:
    """
    A `Bucket` for simulations; `trouble` is the share of steps that fail.

    With `late`, what is created may come after its answer was given up, and so after the
    object was removed again. Without `conditions` it is one of those that heed none.
    """

    def __init__(
        self,
        dice: Random | None = None,
        trouble: float = 0.0,
        *,
        late: bool = False,
        conditions: bool = True,
    ) -> None:
        self.trouble = trouble
        self.objects: dict[str, bytes] = {}
        self.steps: list[tuple[str, str]] = []
        """Every step that was asked for, with its key."""
        self.rested = 0.0
        self._dice = dice or Random(0)
        self._creates_late = late
        self._conditions = conditions
        self._late: list[Callable[[], object]] = []
        self._numbers = itertools.count(1)
        self._lock = RLock()

    def store(self, key: str, data: Buffer, *, new: bool) -> None:
        """Store; with `new`, only where the bucket heeds conditions."""
        content = bytes(memoryview(data).cast("B"))

        def effect() -> None:
            if new and self._conditions and key in self.objects:
                raise FileExistsError(key)
            self.objects[key] = content

        # Only what is created may come late: a late replacement would undo a newer one, and a
        # storage orders those by when they came.
        self._step("store", key, effect, late=new and self._creates_late)

    def read(self, key: str) -> bytes:
        """Return what is there now."""
        return self._step("read", key, lambda: self._there(key))

    def size(self, key: str) -> int:
        """Return its length."""
        return self._step("size", key, lambda: len(self._there(key)))

    def list(self, prefix: str) -> list[str]:
        """Return names in no order."""

        def names() -> list[str]:
            rest = (key[len(prefix) :] for key in self.objects if key.startswith(prefix))
            found = sorted({name.partition("/")[0] for name in rest})
            self._dice.shuffle(found)
            return found

        return self._step("list", prefix, names)

    def remove(self, key: str) -> None:
        """Remove, silently where nothing is."""
        self._step("remove", key, lambda: self.objects.pop(key, None))

    def unique(self) -> str:
        """Return a number nobody had."""
        return str(next(self._numbers))

    def rest(self, seconds: float) -> None:
        """Let time pass, and what was under way arrive."""
        with self._lock:
            self.rested += seconds
            self._arrive()

    def _step(self, step: str, key: str, effect: Callable[[], T], *, late: bool = False) -> T:
        with self._lock:
            self.steps.append((step, key))
            if self._dice.random() >= self.trouble:
                return effect()
            fate = self._dice.choice(("put off", "lost", "late") if late else ("put off", "lost"))
            if fate == "lost":
                with suppress(FileExistsError, FileNotFoundError):
                    effect()
            elif fate == "late":
                self._late.append(effect)
            raise Unanswered(fate)

    def _arrive(self) -> None:
        waiting, self._late = self._late, []
        for effect in waiting:
            if self._dice.random() < 0.5:
                self._late.append(effect)
                continue
            with suppress(FileExistsError):
                effect()

    def _there(self, key: str) -> bytes:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]
