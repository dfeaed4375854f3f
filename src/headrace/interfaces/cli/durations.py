"""Durations as people write them: `30s`, `2m`, `1h`, `1m30s`, `500ms`."""

from __future__ import annotations

import re

import click

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def parse_seconds(text: str) -> float | None:
    """Return the seconds that `text` says; None where it is no duration."""
    text = text.strip().lower()
    if _WHOLE.fullmatch(text) is None:
        return None
    parts = _PART.findall(text)
    units = [_UNITS[unit] for _, unit in parts]
    # Largest unit first, each once: `30s2m` is more likely a mistake than a duration.
    if units != sorted(set(units), reverse=True):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def as_optional_seconds(
    context: click.Context, option: click.Parameter, value: str | None
) -> float | None:
    """Turn an option's text into seconds above zero, where it was given: a callback for click."""
    return None if value is None else as_seconds(context, option, value)


def as_seconds(_context: click.Context, _option: click.Parameter, value: str) -> float:
    """Turn an option's text into seconds above zero: a callback for click."""
    seconds = parse_seconds(value)
    if not seconds:
        raise click.BadParameter(f"{value!r} is not a duration like 30s, 2m or 1m30s.")
    return seconds
