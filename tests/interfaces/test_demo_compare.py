from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.position import Position
from headrace.cli.demo.goods import BARCODE
from headrace.cli.demo.session import (
    MOST_SHOWN,
    ExpectedRows,
    RowDifference,
    as_in_target,
    compare,
    expect,
)
from headrace.cli.demo.sqlite_shop import SqliteShop, make
from headrace.deadletters.letter import DeadLetter

Rows = dict[int, dict[str, object]]


def letter(
    number: int,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    kind: Literal["failed", "behind"] = "failed",
) -> DeadLetter:
    now = datetime.now(UTC)
    return DeadLetter(
        pipeline="orders",
        table="orders",
        lineage="a",
        position=Position(1, 1),
        baseline=None,
        op="insert" if before is None else "update",
        kind=kind,
        code="ARITHMETIC_OVERFLOW" if kind == "failed" else "",
        facts={},
        key=(number,),
        before=before,
        after=after,
        time=now,
        parked=now,
        superseded=None,
        keys=(str(number).encode(),),
    )


def rows() -> Rows:
    return {
        number: {"id": number, "status": "paid", "qty": number, "total_cents": 100 * number}
        for number in range(1, 6)
    }


def test_equal_rows_are_equal_and_counted() -> None:
    comparison = compare(ExpectedRows(rows()), rows().values())
    assert comparison.equal
    assert comparison.rows == 5


def test_a_value_that_differs_is_named_by_key_and_column() -> None:
    found = rows()
    found[3]["status"] = "new"
    found[3]["total_cents"] = 1
    assert compare(ExpectedRows(rows()), found.values()).differences == (
        RowDifference(3, "columns", ("status", "total_cents")),
    )


def test_a_missing_an_extra_and_a_doubled_row_are_found() -> None:
    found = rows()
    del found[2]
    listed = [*found.values(), {**found[1], "id": 99}, found[4]]
    comparison = compare(ExpectedRows(rows()), listed)
    assert comparison.differences == (
        RowDifference(2, "missing"),
        RowDifference(4, "extra"),
        RowDifference(99, "extra"),
    )
    assert comparison.rows == 6


def test_a_column_that_should_be_gone_or_there_is_a_difference() -> None:
    found = rows()
    found[1]["card_number"] = "0000"
    del found[2]["qty"]
    assert compare(ExpectedRows(rows()), found.values()).differences == (
        RowDifference(1, "columns", ("card_number",)),
        RowDifference(2, "columns", ("qty",)),
    )


@pytest.mark.parametrize("other", [3.0, "3", None, True])
def test_an_equal_looking_value_of_another_type_is_a_difference(other: object) -> None:
    found = rows()
    found[3]["qty"] = other
    assert compare(ExpectedRows(rows()), found.values()).differences == (
        RowDifference(3, "columns", ("qty",)),
    )


def test_an_empty_target_is_not_equal_to_a_full_source() -> None:
    wanted = {number: {"id": number} for number in range(1_000)}
    comparison = compare(ExpectedRows(wanted), [])
    assert not comparison.equal
    assert comparison.rows == 1_000
    assert len(comparison.differences) == MOST_SHOWN


_ROWS = st.dictionaries(
    st.integers(0, 9),
    st.fixed_dictionaries({"qty": st.integers(0, 2), "status": st.text(max_size=1)}),
)


@given(_ROWS, _ROWS)
def test_rows_are_called_equal_exactly_when_they_are(
    wanted: dict[int, dict[str, object]], found: dict[int, dict[str, object]]
) -> None:
    left = {key: {"id": key, **row} for key, row in wanted.items()}
    right = [{"id": key, **row} for key, row in found.items()]
    assert compare(ExpectedRows(left), right).equal == (wanted == found)


def test_what_is_expected_is_filtered_derived_and_dropped(tmp_path: Path) -> None:
    shop = SqliteShop(tmp_path)
    make(shop.path, orders=200)
    expected = expect(shop.orders(), []).rows
    with shop.connected() as till:
        counted = till.execute(
            "select count(*), sum(qty * price_cents) from orders where status <> 'cancelled'"
        ).fetchone()
    assert counted == (len(expected), sum(int(str(r["total_cents"])) for r in expected.values()))
    assert 0 < len(expected) < 200
    assert all("card_number" not in row for row in expected.values())


# -- rows that dead letters hold ------------------------------------------------------------


def order(number: int, *, qty: int = 2, status: str = "new") -> dict[str, object]:
    return {"id": number, "qty": qty, "price_cents": 100, "status": status, "card_number": "0"}


SPOILT = order(3, qty=BARCODE)


def target(*orders: Mapping[str, object]) -> list[Mapping[str, object]]:
    made = [as_in_target(each) for each in orders]
    return [row for row in made if row is not None]


@pytest.mark.meets("R30")
def test_an_order_that_never_came_in_is_held_and_must_be_absent() -> None:
    expected = expect({1: order(1), 3: SPOILT}, [letter(3, None, SPOILT)])
    found = compare(expected, target(order(1)))
    assert (found.equal, found.rows, found.held) == (True, 1, (3,))
    wrong = compare(expected, [*target(order(1)), {**order(3), "total_cents": 0}])
    assert wrong.differences == (RowDifference(3, "extra"),)


@pytest.mark.meets("R30")
def test_an_order_that_was_spoilt_later_must_be_as_it_was_before() -> None:
    letters = [
        letter(3, order(3), SPOILT),
        letter(3, SPOILT, order(3, status="paid"), "behind"),
    ]
    expected = expect({3: order(3, status="paid")}, letters)
    assert compare(expected, target(order(3))).equal
    moved = compare(expected, target(order(3, status="paid")))
    assert moved.differences == (RowDifference(3, "columns", ("status",)),)
    assert compare(expected, []).differences == (RowDifference(3, "missing"),)


def test_a_letter_of_an_order_that_can_be_computed_is_a_difference() -> None:
    expected = expect({3: order(3)}, [letter(3, None, order(3))])
    assert compare(expected, []).differences == (RowDifference(3, "causeless"),)
    alone = expect({}, [letter(3, order(3), None, "behind")])
    assert RowDifference(3, "causeless") in compare(alone, target(order(3))).differences


def test_an_order_that_cannot_be_computed_and_has_no_letter_is_a_difference() -> None:
    expected = expect({3: SPOILT}, [])
    assert compare(expected, []).differences == (RowDifference(3, "letterless"),)


def test_a_held_order_does_not_hide_another_that_differs() -> None:
    expected = expect({1: order(1), 3: SPOILT}, [letter(3, None, SPOILT)])
    assert compare(expected, target(order(1, qty=3))).differences == (
        RowDifference(1, "columns", ("qty", "total_cents")),
    )
