import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.position import Position
from headrace.runtime.model import Watermark, acknowledged

END = Position(1, 100)
positions = st.builds(Position, st.just(1), st.integers(0, 200))
watermarks = st.builds(Watermark, st.booleans(), positions, st.none() | positions, st.booleans())


def test_a_volatile_target_needs_nothing_of_the_source() -> None:
    assert acknowledged(END, [Watermark(False, Position(1, 1))], None) == END


def test_a_durable_target_holds_the_acknowledgement_back() -> None:
    marks = [Watermark(True, Position(1, 40)), Watermark(True, Position(1, 60))]
    assert acknowledged(END, marks, None) == Position(1, 40)


def test_a_running_baseline_holds_it_at_its_beginning() -> None:
    assert acknowledged(END, [Watermark(False, END, Position(1, 30))], None) == Position(1, 30)


def test_a_pipeline_set_aside_holds_nothing() -> None:
    assert acknowledged(END, [Watermark(True, Position(1, 1), None, True)], None) == END


@pytest.mark.meets("R8")
@given(positions, st.lists(watermarks, max_size=5), st.none() | positions)
def test_it_never_passes_the_log_or_a_watermark_and_never_falls(
    end: Position, marks: list[Watermark], before: Position | None
) -> None:
    upto = acknowledged(end, marks, before)
    bounds = [end, *(mark.upto(end) for mark in marks if not mark.released)]
    assert upto == (min(bounds) if before is None else max(before, min(bounds)))
