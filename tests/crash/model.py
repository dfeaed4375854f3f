"""
What must have become of every change: at the target, or a dead letter, and nothing else.

Told a second time, in the plainest way there is: the baseline's rows, then change after
change. A row that cannot be computed is a letter, and so is every later change of its key,
old or new (R30); the target keeps such a row as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.changelog.position import Position

Image = tuple[object, ...]
"""A row as the log has it: id, customer_id, status, card."""

BAD_CUSTOMER = 5
"""A paid order of this one cannot be computed, in a round where rows fail."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A change as our log has it."""

    table: str
    position: Position
    op: int
    before: Image | None
    after: Image | None


@dataclass(frozen=True, slots=True)
class Start:
    """The baseline that a table's rows began with."""

    number: int
    first: Position
    rows: Sequence[Image] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A dead letter, as far as the check is concerned."""

    position: Position
    baseline: int | None
    before: Image | None
    after: Image | None


@dataclass(slots=True)
class Expected:
    """What one table must have come to."""

    rows: dict[object, Mapping[str, object]] = field(default_factory=dict)
    letters: dict[Kept, bool] = field(default_factory=dict)
    """Each with whether it must have failed: one that is held already may not be tried."""

    held: set[object] = field(default_factory=set)
    """The keys with letters."""


def expected(start: Start, changes: Sequence[Logged], *, fails: bool) -> Expected:
    """Return what becomes of a table that began so, in a round where some rows fail or none."""
    found = Expected()
    for image in start.rows:
        if fails and _failing(image):
            found.letters[Kept(start.first, start.number, None, image)] = True
            found.held.add(image[0])
        elif _paid(image):
            found.rows[image[0]] = _shaped(image)
    for change in changes:
        if change.position > start.first:
            _take(found, change, fails and _failing(change.after))
    return found


def _take(found: Expected, change: Logged, failing: bool) -> None:
    before, after = change.before, change.after
    keys = {image[0] for image in (before, after) if image is not None}
    held = not keys.isdisjoint(found.held)
    if failing or held:
        found.letters[Kept(change.position, None, before, after)] = not held
        found.held |= keys
        return
    for key in keys:
        found.rows.pop(key, None)
    if after is not None and _paid(after):
        found.rows[after[0]] = _shaped(after)


def _failing(image: Image | None) -> bool:
    return image is not None and _paid(image) and image[1] == BAD_CUSTOMER


def _paid(image: Image) -> bool:
    return image[2] == "paid"


def _shaped(image: Image) -> dict[str, object]:
    return {"id": image[0], "customer_id": image[1], "status": image[2]}
