"""
Is the target what it should be? Read both ends and look at every row.

What the pipeline does is said a second time here, in Python over what SQL returns, and
shares nothing with the pipeline: a mistake in one of the two is found by the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.interfaces.cli.demo.shop import connected
from headrace.interfaces.cli.demo.snapshot import Comparison, Difference

MOST_SHOWN = 20
"""Differences that are kept: one is enough to fail, a few are enough to see why."""


def expected_rows(path: Path) -> dict[int, dict[str, object]]:
    """Return what the target must hold, by order id: filter, derive and drop, restated."""
    with connected(path) as shop:
        cursor = shop.execute("select * from orders")
        names = [column[0] for column in cursor.description]
        orders = [dict(zip(names, row, strict=True)) for row in cursor]
    expected = {}
    for order in orders:
        if order["status"] == "cancelled":
            continue
        order["total_cents"] = order["qty"] * order["price_cents"]
        del order["card_number"]
        expected[order["id"]] = order
    return expected


def compare(
    expected: Mapping[int, Mapping[str, object]], found: Iterable[Mapping[str, object]]
) -> Comparison:
    """Compare row by row and column by column; a value of another type is another value."""
    differences: list[Difference] = []
    seen: set[object] = set()
    for row in found:
        key = row["id"]
        wanted = expected.get(key) if isinstance(key, int) else None
        if wanted is None or key in seen:
            differences.append(Difference(_number(key), "extra"))
        elif columns := _differing(wanted, row):
            differences.append(Difference(_number(key), "columns", columns))
        seen.add(key)
    differences += [Difference(key, "missing") for key in expected.keys() - seen]
    differences.sort(key=lambda difference: difference.key)
    return Comparison(len(expected.keys() | seen), tuple(differences[:MOST_SHOWN]))


def _differing(wanted: Mapping[str, object], row: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(
        name
        for name in sorted(wanted.keys() | set(row))
        # 1, 1.0 and True are equal in Python; a replica that mixes them up is not right.
        if name not in wanted
        or name not in row
        or type(wanted[name]) is not type(row[name])
        or wanted[name] != row[name]
    )


def _number(key: object) -> int:
    return key if isinstance(key, int) else -1
