"""
Is the target what it should be? Read both ends and look at every row.

What the pipeline does is said a second time here, in Python over what SQL returns, and
shares nothing with the pipeline: a mistake in one of the two is found by the other.

A row that a dead letter holds is compared, too: with what it was before the letter. And a
letter must have a cause: of a row that can be computed it is a difference, as is a row that
cannot be computed and has no letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.interfaces.cli.demo.snapshot import Comparison, Difference

MOST_SHOWN = 20
"""Differences that are kept: one is enough to fail, a few are enough to see why."""

LARGEST = 2**63 - 1
"""A total beyond it cannot be computed; the shop has no negative ones."""

Row = Mapping[str, object]


class Letter(Protocol):
    """A dead letter, as far as a comparison needs it."""

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> tuple[object, ...]: ...
    @property
    def before(self) -> Row | None: ...
    @property
    def after(self) -> Row | None: ...


@dataclass(frozen=True, slots=True)
class Expected:
    """What the target must hold, by order id."""

    rows: Mapping[int, Row]
    held: tuple[int, ...] = ()
    """The orders among them, or missing from them, that dead letters hold."""

    wrong: tuple[Difference, ...] = ()
    """What is wrong before the target is looked at."""


@dataclass(slots=True)
class _Expecting:
    rows: dict[int, Row] = field(default_factory=dict)
    wrong: list[Difference] = field(default_factory=list)


def as_in_target(order: Row) -> dict[str, object] | None:
    """
    Return what the target must make of an order: filter, derive and drop, restated.

    None for one that is filtered out. Raises `ValueError` where the total cannot be computed.
    """
    if order["status"] == "cancelled":
        return None
    row = {name: value for name, value in order.items() if name != "card_number"}
    total = _number(order["qty"]) * _number(order["price_cents"])
    if total > LARGEST:
        raise ValueError("beyond a 64-bit integer")
    row["total_cents"] = total
    return row


def expect(orders: Mapping[int, Row], letters: Iterable[Letter]) -> Expected:
    """Return what the target must hold of these orders; `letters` are in position order."""
    first: dict[int, Letter] = {}
    for letter in letters:
        first.setdefault(_number(letter.key[0]), letter)
    found = _Expecting()
    for key, order in orders.items():
        if key not in first:
            _expect_row(found, key, order, "letterless")
    for key, letter in first.items():
        if not _has_cause(letter):
            found.wrong.append(Difference(key, "causeless"))
        if letter.before is not None:
            _expect_row(found, key, letter.before, "causeless")
    return Expected(found.rows, tuple(sorted(first)), tuple(found.wrong))


def compare(expected: Expected, found: Iterable[Row]) -> Comparison:
    """Compare row by row and column by column; a value of another type is another value."""
    differences = list(expected.wrong)
    seen: set[object] = set()
    for row in found:
        key = row["id"]
        wanted = expected.rows.get(key) if isinstance(key, int) else None
        if wanted is None or key in seen:
            differences.append(Difference(_number(key), "extra"))
        elif columns := _differing(wanted, row):
            differences.append(Difference(_number(key), "columns", columns))
        seen.add(key)
    differences += [Difference(key, "missing") for key in expected.rows.keys() - seen]
    differences.sort(key=lambda difference: difference.key)
    compared = len(expected.rows.keys() | seen)
    return Comparison(compared, tuple(differences[:MOST_SHOWN]), expected.held)


def _expect_row(found: _Expecting, key: int, order: Row, otherwise: str) -> None:
    try:
        row = as_in_target(order)
    except ValueError:
        found.wrong.append(Difference(key, otherwise))
        return
    if row is not None:
        found.rows[key] = row


def _has_cause(letter: Letter) -> bool:
    """Whether the first letter of a row is of a change that really cannot be computed."""
    if letter.kind != "failed" or letter.after is None:
        return False
    try:
        as_in_target(letter.after)
    except ValueError:
        return True
    return False


def _differing(wanted: Row, row: Row) -> tuple[str, ...]:
    return tuple(
        name
        for name in sorted(wanted.keys() | set(row))
        # 1, 1.0 and True are equal in Python; a replica that mixes them up is not right.
        if name not in wanted
        or name not in row
        or type(wanted[name]) is not type(row[name])
        or wanted[name] != row[name]
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1
