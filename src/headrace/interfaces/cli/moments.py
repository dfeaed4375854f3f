"""Places in a log as people write them: a position, a time, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from headrace.interfaces.cli.durations import parse_seconds

if TYPE_CHECKING:
    from headrace.changelog.ranges import Moment

HELP = "A position, a time (2026-11-15T12:00, UTC unless it has an offset) or a span ago (-2h)."


def parse_moment(text: str, now: datetime) -> Moment | None:
    """Return what `text` stands for; None where it is nothing of the kind."""
    from headrace.changelog.position import Position
    from headrace.errors import BadPosition

    text = text.strip()
    if text == "now":
        return now
    if text.startswith("-"):
        seconds = parse_seconds(text[1:])
        return None if seconds is None else now - timedelta(seconds=seconds)
    try:
        return Position.parse(text)
    except BadPosition:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def as_moment(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> Moment | None:
    """Turn an option's text into a place in the log: a callback for click."""
    if value is None:
        return None
    found = parse_moment(value, datetime.now(UTC))
    if found is None:
        raise click.BadParameter(
            f"{value!r} is not a position (0001-00000000000004b4-00000000), a time"
            " (2026-11-15T12:00) or a span (-2h)."
        )
    return found
