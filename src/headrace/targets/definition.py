"""The memory target in a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.plugins import Part
from headrace.config.schema import Entries, Key, ListOf, Section, Text, Values

if TYPE_CHECKING:
    from headrace.targets.memory import IndexedMemory


def _build(name: str, values: Values) -> IndexedMemory:
    from headrace.targets.memory import memory

    return memory(
        indexes={index: each["fields"] for index, each in values["indexes"].items()},
        lookup=values["lookup_fields"] or None,
        key=values["key_fields"] or None,
    )


_FIELDS = (
    Key("fields", ListOf(Text(), 1, "[customer_id]"), "The columns of the index.", required=True),
)

MEMORY = Part(
    "Tables in the engine's memory, for lookups and for reading changes.",
    (
        Key(
            "lookup_fields",
            ListOf(Text(), example="[email]"),
            "The columns of a unique lookup. Rows can always be looked up by the source's key.",
            default=[],
        ),
        Key(
            "indexes",
            Entries(Section(_FIELDS), "INDEX"),
            "Other indexes, by name. Their values need not be unique.",
            default={},
        ),
        Key(
            "key_fields",
            ListOf(Text(), example="[id]"),
            "The key, if the source table has none and sends only inserts.",
            default=[],
        ),
    ),
    _build,
    aliases=("memory",),
)
