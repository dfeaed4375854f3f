"""
Follows the target's changes on a thread, and looks up the customer they speak of most.

The thread ends when the target's changes do, which is when the engine stops.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from headrace.errors import FellBehind, HeadraceError
from headrace.interfaces.cli.demo.snapshot import Lookup, SeenChange
from headrace.observe import logs

KEPT = 40
PAID = ("paid", "shipped")

Row = Mapping[str, object]


class TargetChange(Protocol):
    """A change as the memory target gives it."""

    @property
    def op(self) -> str: ...
    @property
    def key(self) -> tuple[object, ...]: ...
    @property
    def before(self) -> Row | None: ...
    @property
    def after(self) -> Row | None: ...
    @property
    def position(self) -> object: ...


class Watch:
    """The last changes, and one lookup."""

    def __init__(
        self,
        changes: Callable[[], Iterator[TargetChange]],
        lookup_all: Callable[..., Sequence[Row]],
        index: str,
    ) -> None:
        self._changes = changes
        self._lookup_all = lookup_all
        self._index = index
        self._last: deque[TargetChange] = deque(maxlen=KEPT)
        self._customers: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="demo-watch", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, once the engine has stopped."""
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def last(self) -> tuple[SeenChange, ...]:
        """Return the last changes, newest first."""
        with self._lock:
            seen = list(self._last)
        return tuple(described(change) for change in reversed(seen))

    def lookup(self) -> Lookup | None:
        """Look up all orders of the customer with most changes so far."""
        with self._lock:
            if not self._customers:
                return None
            # Ties go to the smaller number, so that the choice does not flicker.
            customer = min(self._customers, key=lambda number: (-self._customers[number], number))
        began = time.perf_counter()
        found = self._lookup_all(self._index, customer)
        took = 1e6 * (time.perf_counter() - began)
        paid = sum(_int(row["total_cents"]) for row in found if row["status"] in PAID)
        return Lookup(customer, len(found), paid, round(took, 1))

    def _follow(self) -> None:
        while True:
            try:
                for change in self._changes():
                    self._take(change)
            except FellBehind:
                continue  # A demo may skip some: it shows the last ones only.
            except HeadraceError as error:
                logs.logger("demo").failed("changes ended", error, code=error.code)
            return

    def _take(self, change: TargetChange) -> None:
        row = change.after or change.before
        with self._lock:
            self._last.append(change)
            if row is not None:
                self._customers[_int(row["customer_id"])] += 1


def described(change: TargetChange) -> SeenChange:
    """Return the change as one line of text says it."""
    key = ", ".join(str(part) for part in change.key)
    return SeenChange(change.op, key, _text(change.before, change.after), str(change.position))


def _text(before: Row | None, after: Row | None) -> str:
    if before is not None and after is not None:
        moved = [
            f"{name} {before[name]} → {after[name]}"
            for name in after
            if name in before and before[name] != after[name]
        ]
        return ", ".join(moved) or "no difference"
    row = after if after is not None else before
    if row is None:
        return ""
    total = _int(row["total_cents"]) / 100
    return (
        f"customer {row['customer_id']}, {row['qty']} {row['product']},"
        f" {total:,.2f}, {row['status']}"
    )


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
