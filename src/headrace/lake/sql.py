"""
The SQL of a commit: this module only builds text, and runs nothing.

A MERGE reads its rows from a view whose columns are named by their index (`c0`, `c1`, …), so that
a user's column never has the name of one of ours. Both Delta and Iceberg accept these statements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.pipeline.sql import quoted

VIEW = "headrace_batch"
"""The view with the rows of a commit, in the writer's own session."""

GONE = "gone"
ADDED = "added"
"""Flags of a row: its key is deleted; it is a new row of a history."""


def value(at: int) -> str:
    """Return the name of a column by its index."""
    return f"c{at}"


def key(at: int) -> str:
    """Return the name of a key column that a history is matched by, by its index in the key."""
    return f"k{at}"


def merge_rows(
    table: str,
    names: Sequence[str],
    keys: Sequence[str],
    bounds: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """Return the MERGE with the deletes and upserts of a batch, in one commit."""
    index = {name: at for at, name in enumerate(names)}
    on = [f"t.{quoted(name)} = s.{value(index[name])}" for name in keys]
    changed = [name for name in names if name not in keys]
    sets = ", ".join(f"t.{quoted(name)} = s.{value(index[name])}" for name in changed)
    update = f" WHEN MATCHED THEN UPDATE SET {sets}" if changed else ""
    columns = ", ".join(quoted(name) for name in names)
    values = ", ".join(f"s.{value(index[name])}" for name in names)
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
    Return the MERGE that ends rows of a history and adds others, in one commit.

    `ends` are the columns with the time and the position at which a row ended. With `emptied`,
    all rows that have not ended do so: at that microsecond since 1970, and that position.
    """
    index = {name: at for at, name in enumerate(names)}
    to, to_position = (quoted(name) for name in ends)
    on = [f"t.{quoted(name)} = s.{key(at)}" for at, name in enumerate(keys)]
    columns = ", ".join(quoted(name) for name in names)
    values = ", ".join(f"s.{value(index[name])}" for name in names)
    text = (
        f"MERGE INTO {table} AS t USING {VIEW} AS s"
        f" ON {_and(on, [f't.{to} IS NULL'], [] if emptied else _within(bounds))}"
        f" WHEN MATCHED THEN UPDATE SET t.{to} = s.{value(index[ends[0]])},"
        f" t.{to_position} = s.{value(index[ends[1]])}"
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
    Return the MERGE that adds rows and removes those that have `least` or more in a column.

    The view has each value of the column that is to be removed, once, as `k0` and not `added`. So
    only files with such rows are read, and not the whole table.
    """
    at = f"t.{quoted(column)}"
    columns = ", ".join(quoted(name) for name in names)
    values = ", ".join(f"s.{value(index)}" for index in range(len(names)))
    return (
        f"MERGE INTO {table} AS t USING {VIEW} AS s ON {at} = s.{key(0)} AND {at} >= '{least}'"
        f" WHEN MATCHED THEN DELETE"
        f" WHEN NOT MATCHED AND s.{ADDED} THEN INSERT ({columns}) VALUES ({values})"
    )


def _within(bounds: Mapping[str, tuple[int, int]] | None) -> list[str]:
    """Return conditions by which files without any of the keys are skipped."""
    return [
        f"t.{quoted(name)} BETWEEN {least} AND {most}"
        for name, (least, most) in (bounds or {}).items()
    ]


def _and(*conditions: Sequence[str]) -> str:
    return " AND ".join(each for some in conditions for each in some)
