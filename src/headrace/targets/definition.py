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
    Key("fields", ListOf(Text(), 1, "[customer_id]"), "The columns it is over.", required=True),
)

MEMORY = Part(
    "Tables in the engine's memory, to be looked up and followed.",
    (
        Key(
            "lookup_fields",
            ListOf(Text(), example="[email]"),
            "The columns of a unique lookup; the source's key has one in any case.",
            default=[],
        ),
        Key(
            "indexes",
            Entries(Section(_FIELDS), "INDEX"),
            "Other indexes, by name, whose values need not be unique.",
            default={},
        ),
        Key(
            "key_fields",
            ListOf(Text(), example="[id]"),
            "The key, where the source has none and sends inserts alone.",
            default=[],
        ),
    ),
    _build,
    aliases=("memory",),
)
