"""A lake table in a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.plugins import Part
from headrace.config.schema import Boolean, Choice, Integer, Key, ListOf, Text, Values

if TYPE_CHECKING:
    from headrace.targets.target import Target

COMPACT_EVERY = 50
STAGED_FROM = 100_000
"""The same as in `lake.target`, which is not imported here because it imports Arrow."""


def _build(name: str, values: Values) -> Target:
    from headrace.lake.target import table

    return table(
        values.get("name"),
        format=values["format"],
        mode=values["mode"],
        path=values.get("path"),
        key=values["key_fields"] or None,
        adopt=values["adopt"],
        compact_every=values["compact_every"],
        staged_from=values["staged_from"],
    )


TABLE = Part(
    "Writes a lake table in Delta, Iceberg or plain Parquet.",
    (
        Key(
            "name",
            Text('"lake.orders"'),
            "Name of the table; `{table}` and `{schema}` are replaced by the source's.",
        ),
        Key(
            "format",
            Choice(("delta", "iceberg", "parquet")),
            "Format of the table.",
            default="delta",
        ),
        Key(
            "mode",
            Choice(("merge", "append", "history")),
            "Keep the current rows, append every change as a row, or keep all versions of a row.",
            default="merge",
        ),
        Key("path", Text('"/lake/orders"'), "Folder of the table, if it is not found by its name."),
        Key(
            "key_fields",
            ListOf(Text(), example="[id]"),
            "Check that the source's key has these columns; it cannot be changed here.",
            default=[],
        ),
        Key(
            "adopt",
            Boolean(),
            "Whether to take over an existing table and replace its rows.",
            default=False,
        ),
        Key(
            "compact_every",
            Integer(0),
            "Compact small files after this many commits; 0 turns it off.",
            default=COMPACT_EVERY,
        ),
        Key(
            "staged_from",
            Integer(1),
            "Number of rows in a batch or baseline from which executors prepare it.",
            default=STAGED_FROM,
        ),
    ),
    _build,
)
