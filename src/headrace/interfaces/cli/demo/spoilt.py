"""
One order that cannot be computed, on purpose: how a dead letter looks.

A barcode is scanned into the quantity, so the order's total overflows. Once its letter is
there the order is paid: that change can be computed no better, and waits behind the first.
"""

from __future__ import annotations

from headrace.interfaces.cli.demo.shop import Shop

PLACED_SECONDS = 3.0
"""After the first visible row; earlier where the demo is too short for that."""

MOVED_SECONDS = 3.0
"""After the letter, likewise."""


class SpoiltOrder:
    """The order's story, told as time goes by. A shop has one such order, over all runs."""

    def __init__(self, shop: Shop, run_seconds: float) -> None:
        self.changes = 0
        """Made to the shop so far."""

        self._shop = shop
        self._placed_at = min(PLACED_SECONDS, 0.25 * run_seconds)
        self._moved_after = min(MOVED_SECONDS, 0.15 * run_seconds)
        self._placed = self._moved = False
        self._held_since: float | None = None

    def go_on(self, seconds: float, *, held: bool) -> str | None:
        """
        Do what is due, so many seconds after the first visible row; return what was done.

        `held` tells whether the order's letter is there.
        """
        if not self._placed and seconds >= self._placed_at:
            self._placed = True
            return self._place()
        if not held or self._moved or not self._placed:
            return None
        if self._held_since is None:
            self._held_since = seconds
        if seconds < self._held_since + self._moved_after:
            return None
        self._moved = True
        return self._move()

    def _place(self) -> str | None:
        if self._shop.spoilt_order() is not None:
            return None
        order = self._shop.place_spoilt_order()
        self.changes += 1
        return f"order {order}: a barcode is scanned as its quantity"

    def _move(self) -> str | None:
        order = self._shop.spoilt_order()
        status = None if order is None else self._shop.move_on(order)
        if status is None:
            return None
        self.changes += 1
        return f"order {order} is {status}: waits behind its dead letter"
