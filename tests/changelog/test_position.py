from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.position import MAX_COMMIT, MAX_EPOCH, MAX_ORDINAL, ORIGIN, Position
from headrace.errors import BadPosition

positions = st.builds(
    Position,
    st.integers(0, MAX_EPOCH),
    st.integers(0, MAX_COMMIT),
    st.integers(0, MAX_ORDINAL),
)


@given(positions)
def test_text_reads_back_as_the_same_position(position: Position) -> None:
    assert Position.parse(str(position)) == position


@given(positions, positions)
def test_text_sorts_as_positions_do(a: Position, b: Position) -> None:
    assert (str(a) < str(b)) == (a < b)


@pytest.mark.meets("R1")
def test_the_epoch_outranks_the_commit_and_the_commit_the_ordinal() -> None:
    assert ORIGIN < Position(1, 0) < Position(1, 0, 9) < Position(1, 1) < Position(2, 0)


def test_the_text_is_of_fixed_width() -> None:
    assert str(Position(1, 1204)) == "0001-00000000000004b4-00000000"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0001",
        "1-2-3",
        "0001-00000000000004B4-00000000",
        "0001-00000000000004b4-00000000 ",
        "0001-00000000000004b4-00000000\n",
        "-001-00000000000004b4-00000000",
        "0001-0x000000000004b4-00000000",
        "0001-ffffffffffffffff-00000000",
        "0001-0000000000000000-80000000",
    ],
)
def test_text_we_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(BadPosition):
        Position.parse(text)


@pytest.mark.parametrize(
    "parts",
    [(-1, 0, 0), (2**16, 0, 0), (1, -1, 0), (1, 2**63, 0), (1, 0, -1), (1, 0, 2**31)],
)
def test_a_position_out_of_range_is_refused(parts: tuple[int, int, int]) -> None:
    with pytest.raises(BadPosition) as caught:
        Position(*parts)
    assert tuple(caught.value.facts.values()) == parts
