"""A table of a lake in a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.plugins import Part
from headrace.config.schema import Boolean, Choice, Integer, Key, ListOf, Text, Values

if TYPE_CHECKING:
    from headrace.targets.target import Target

COMPACT_EVERY = 50
STAGED_FROM = 100_000
"""As `lake.target` has them, which is not imported with Arrow for that."""


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
    "Keeps a table of a lake, in Delta, Iceberg or plain Parquet.",
    (
        Key(
            "name",
            Text('"lake.orders"'),
            "Its name; `{table}` and `{schema}` stand for the source's.",
        ),
        Key(
            "format",
            Choice(("delta", "iceberg", "parquet")),
            "How it is kept.",
            default="delta",
        ),
        Key(
            "mode",
            Choice(("merge", "append", "history")),
            "The rows as they are, every change as a row, or all rows that ever were.",
            default="merge",
        ),
        Key("path", Text('"/lake/orders"'), "Its folder, where it is not by its name."),
        Key(
            "key_fields",
            ListOf(Text(), example="[id]"),
            "The source's key, to have it checked; it cannot be another.",
            default=[],
        ),
        Key(
            "adopt",
            Boolean(),
            "Whether a table that is there already is taken, and its rows replaced.",
            default=False,
        ),
        Key(
            "compact_every",
            Integer(0),
            "Commits between two compactions of small files; 0: never.",
            default=COMPACT_EVERY,
        ),
        Key(
            "staged_from",
            Integer(1),
            "Rows of a batch or baseline from which executors prepare it.",
            default=STAGED_FROM,
        ),
    ),
    _build,
)
