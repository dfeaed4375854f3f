"""Durations and sizes, as people write them."""

from __future__ import annotations

import pytest

from headrace.config.units import duration, size
from headrace.errors import WrongValue


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("250 ms", 0.25),
        (" 1.5h ", 5400.0),
        ("24h", 86_400.0),
        ("7d", 604_800.0),
        ("1 day", 86_400.0),
        ("2 minutes", 120.0),
        ("5m", 300.0),
        ("10s", 10.0),
        ("3 seconds", 3.0),
        ("1 microsecond", 1e-6),
        ("15us", 15e-6),
        ("100ns", 1e-7),
        ("0", 0.0),
        ("0s", 0.0),
        ("0.1s", 0.1),
    ],
)
def test_a_duration_in_seconds(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4_096),
        ("17 B", 17),
        ("17 bytes", 17),
        ("1kB", 1_000),
        ("1 kilobyte", 1_000),
        ("1k", 1_024),
        ("1K", 1_024),
        ("1KiB", 1_024),
        ("2 MB", 2_000_000),
        ("2 MiB", 2 * 1024**2),
        ("2m", 2 * 1024**2),
        ("512Mi", 512 * 1024**2),
        ("1.5g", 3 * 1024**3 // 2),
        ("1.5GB", 1_500_000_000),
        ("1 terabyte", 10**12),
        ("1TiB", 1024**4),
        ("1pebibytes", 1024**5),
        ("0.3KiB", 307),
        ("9007199254740993B", 9_007_199_254_740_993),
    ],
)
def test_a_size_in_bytes(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "1e3s", "1S", "1 fortnight", "1h30m", "1.s", ".5s", "1s s", "∞"]
)
def test_what_is_no_duration_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(WrongValue, match="Not a valid duration") as caught:
        duration(text)
    assert "250ms" in caught.value.remedy


@pytest.mark.parametrize("text", ["", "-1B", "1 KB x", "1kb", "1 furlong", "9" * 40 + "B"])
def test_what_is_no_size_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(WrongValue, match="Not a valid size") as caught:
        size(text)
    assert "512MiB" in caught.value.remedy


def test_the_text_itself_is_in_no_error() -> None:
    for read in (duration, size):
        with pytest.raises(WrongValue) as caught:
            read("planted")
        assert "planted" not in f"{caught.value} {caught.value.remedy}"
