"""The table that all contract suites are about: `things`."""

from __future__ import annotations

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType

TABLE = "things"
THINGS = TableSchema(
    TABLE,
    (Column("id", ValueType("int64"), 1), Column("name", ValueType("text"), 2)),
    key=("id",),
)
Step = tuple[str, int, str | None]
"""`insert`, `update` or `delete`, a key, and the name to give."""

State = dict[int, str | None]
