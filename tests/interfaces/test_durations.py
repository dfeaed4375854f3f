from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.common import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("2m", 120.0),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        (" 5S ", 5.0),
        ("1d", 86_400.0),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1 s", "30s2m", "1s1s", "1e3s", "٣s", "1x"])
def test_anything_else_is_no_duration(text: str) -> None:
    assert parse_seconds(text) is None


@given(st.text(max_size=12))
def test_no_text_makes_it_fail(text: str) -> None:
    seconds = parse_seconds(text)
    assert seconds is None or seconds >= 0
