"""A SQLite source in a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.plugins import Part
from headrace.config.schema import Choice, Entries, FilePath, Key, Number, Size, Values

if TYPE_CHECKING:
    from headrace.capture.sqlite.source import SQLiteSource


COLUMN_KINDS = ("int64", "float64", "text", "bytes", "variant")
"""The same as `tables.KINDS`, which would import Arrow."""


def _build(name: str, values: Values) -> SQLiteSource:
    from headrace.capture.sqlite.source import sqlite

    return sqlite(
        values["path"],
        name=name,
        columns=values["columns"],
        copy_rows_per_s=values["copy_rows_per_s"],
        capture_budget=values["capture_budget"],
    )


SQLITE = Part(
    "A SQLite database.",
    (
        Key("path", FilePath("shop.db"), "The path of the database file.", required=True),
        Key(
            "columns",
            Entries(Choice(COLUMN_KINDS), "COLUMN", flat=True),
            "Column types to use instead of the declared ones: `at = text`, or"
            " `orders.at = text` for one table only.",
            default={},
        ),
        Key(
            "copy_rows_per_s",
            Number(more_than=0),
            "Maximum number of rows a second for copies of tables, all tables together.",
        ),
        Key(
            "capture_budget",
            Size(or_zero=True),
            "How many bytes of changes the database file may keep for pipelines that have not taken"
            " them; at 90 % the pipeline that holds them is released.",
            default="1GiB",
        ),
    ),
    _build,
)
