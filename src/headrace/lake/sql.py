"""
The SQL of a commit: texts alone, nothing is run here.

A MERGE reads its rows from a view whose columns are named by place (`c0`, `c1`, …), so that no
name of a user's column can be taken for one of ours. Both Delta and Iceberg take these texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.pipeline.sql import quoted

VIEW = "headrace_batch"
"""The view that the rows of a commit are in; its session is the writer's own."""

GONE = "gone"
ADDED = "added"
"""Flags of a row: the key is deleted; the row is a new one of a history."""


def value(at: int) -> str:
    """Return the name of the column at a place."""
    return f"c{at}"


def key(at: int) -> str:
    """Return the name of the column that a history is matched by, at a place of the key."""
    return f"k{at}"


def merge_rows(
    table: str,
    names: Sequence[str],
    keys: Sequence[str],
    bounds: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """Return the MERGE that makes a table the source's: deletes and upserts in one commit."""
    places = {name: at for at, name in enumerate(names)}
    on = [f"t.{quoted(name)} = s.{value(places[name])}" for name in keys]
    changed = [name for name in names if name not in keys]
    sets = ", ".join(f"t.{quoted(name)} = s.{value(places[name])}" for name in changed)
    update = f" WHEN MATCHED THEN UPDATE SET {sets}" if changed else ""
    columns = ", ".join(quoted(name) for name in names)
    values = ", ".join(f"s.{value(places[name])}" for name in names)
    return (
        f"MERGE INTO {table} AS t USING {VIEW} AS s ON {_and(on, _within(bounds))}"
        f" WHEN MATCHED AND s.{GONE} THEN DELETE{update}"
        f" WHEN NOT MATCHED AND NOT s.{GONE} THEN INSERT ({columns}) VALUES ({values})"
    )


def merge_history(
    table: str,
    names: Sequence[str],
    keys: Sequence[str],
    ends: tuple[str, str],
    bounds: Mapping[str, tuple[int, int]] | None = None,
    emptied: tuple[int, str] | None = None,
) -> str:
    """
    Return the MERGE that ends rows of a history and begins others, in one commit.

    `ends` are the columns that say when and where a row ended; among `names` they are the
    last but one and the last of those that the view has by place. With `emptied`, all rows that
    are not ended are: at that microsecond since 1970, and that position.
    """
    places = {name: at for at, name in enumerate(names)}
    to, to_position = (quoted(name) for name in ends)
    on = [f"t.{quoted(name)} = s.{key(at)}" for at, name in enumerate(keys)]
    columns = ", ".join(quoted(name) for name in names)
    values = ", ".join(f"s.{value(places[name])}" for name in names)
    text = (
        f"MERGE INTO {table} AS t USING {VIEW} AS s"
        f" ON {_and(on, [f't.{to} IS NULL'], [] if emptied else _within(bounds))}"
        f" WHEN MATCHED THEN UPDATE SET t.{to} = s.{value(places[ends[0]])},"
        f" t.{to_position} = s.{value(places[ends[1]])}"
        f" WHEN NOT MATCHED AND s.{ADDED} THEN INSERT ({columns}) VALUES ({values})"
    )
    if emptied:
        micros, position = emptied
        text += (
            f" WHEN NOT MATCHED BY SOURCE AND t.{to} IS NULL THEN UPDATE SET"
            f" t.{to} = timestamp_micros({micros}), t.{to_position} = '{position}'"
        )
    return text


def replace_from(table: str, names: Sequence[str], column: str, least: str) -> str:
    """
    Return the MERGE that adds rows in place of those that have `least` or more in a column.

    The view has each value of the column that is to go, once, as `k0` and not `added`. So what is
    looked through are the files that have such rows, and not the table.
    """
    at = f"t.{quoted(column)}"
    columns = ", ".join(quoted(name) for name in names)
    values = ", ".join(f"s.{value(place)}" for place in range(len(names)))
    return (
        f"MERGE INTO {table} AS t USING {VIEW} AS s ON {at} = s.{key(0)} AND {at} >= '{least}'"
        f" WHEN MATCHED THEN DELETE"
        f" WHEN NOT MATCHED AND s.{ADDED} THEN INSERT ({columns}) VALUES ({values})"
    )


def _within(bounds: Mapping[str, tuple[int, int]] | None) -> list[str]:
    """Return conditions that let files without any of the keys be left alone."""
    return [
        f"t.{quoted(name)} BETWEEN {least} AND {most}"
        for name, (least, most) in (bounds or {}).items()
    ]


def _and(*conditions: Sequence[str]) -> str:
    return " AND ".join(each for some in conditions for each in some)
