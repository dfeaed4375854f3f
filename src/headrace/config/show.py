"""
The effective configuration: every value with its origin, secrets masked.

Only for a tree that was checked: its keys declare what is secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.config.plugins import PartOf
from headrace.config.schema import (
    NOWHERE,
    Connection,
    Entries,
    FilePath,
    Key,
    Kind,
    ListOf,
    Plain,
    Reference,
    Section,
    Text,
    key_path,
    node_of,
)
from headrace.config.secrets import MASK, is_reference, is_secret, masked_connection, masked_text
from headrace.config.text import Node, SourceLocation

Path = tuple[str | int, ...]
"""Keys and list indexes, from the root."""


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One effective value."""

    path: Path
    value: Plain
    """With secrets masked."""

    location: SourceLocation
    """`NOWHERE` for a default."""

    @property
    def name(self) -> str:
        """The path as text: `pipelines.orders.tables[0]`."""
        text = ""
        for part in self.path:
            text = f"{text}[{part}]" if isinstance(part, int) else key_path(text, part)
        return text


def settings(node: Node, keys: Sequence[Key], path: Path = ()) -> Iterator[EffectiveSetting]:
    """Yield every value of a section, also defaults; skip keys that have neither."""
    given = node.value if isinstance(node.value, dict) else {}
    for key in keys:
        found = given.get(key.name)
        if found is None or (found.value is None and not getattr(key.kind, "nullable", False)):
            if key.default is None:
                continue
            found = node_of(key.default, NOWHERE)
        yield from _settings_of(key.kind, found, (*path, key.name))


def as_tree(found: Sequence[EffectiveSetting]) -> dict[str, Any]:
    """Return settings as one nested object, as they would be written."""
    tree: dict[str | int, Any] = {}
    for setting in found:
        at = tree
        for part in setting.path[:-1]:
            at = at.setdefault(part, {})
        at[setting.path[-1]] = setting.value
    whole = _with_lists(tree)
    assert isinstance(whole, dict)
    return whole


def _with_lists(tree: dict[str | int, Any]) -> dict[str, Any] | list[Any]:
    made = {
        key: _with_lists(each) if isinstance(each, dict) and each else each
        for key, each in tree.items()
    }
    if made and all(isinstance(key, int) for key in made):
        return list(made.values())
    return {str(key): each for key, each in made.items()}


def _settings_of(kind: Kind, node: Node, path: Path) -> Iterator[EffectiveSetting]:
    match kind, node.value:
        case Section(keys), dict():
            yield from settings(node, keys, path)
        case PartOf(), dict():
            yield from settings(node, kind.keys_of(node), path)
        case (Entries(), dict(value)) | (ListOf(), list(value)) if not value:
            # Shown only if it is set to be empty, not if it is empty by default.
            if node.location.origin:
                yield EffectiveSetting(path, {} if isinstance(value, dict) else [], node.location)
        case Entries(of), dict():
            for name, each in kind.entries(node):
                yield from _settings_of(of, each, (*path, name))
        case ListOf(of), list(entries):
            for number, each in enumerate(entries):
                yield from _settings_of(of, each, (*path, number))
        case _:
            yield EffectiveSetting(path, _display_value(kind, node, path), node.location)


def _display_value(kind: Kind, node: Node, path: Path) -> Plain:
    value = node.value
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    match kind:
        case Connection():
            return masked_connection(str(value))
        case Reference():
            return str(value) if is_reference(str(value)) else MASK
        case Text(secret=True):
            return MASK
        case FilePath():
            return str(kind.resolved(node))
    if is_secret(name):
        return MASK
    if isinstance(value, str):
        return masked_text(value)
    return None if isinstance(value, list | dict) else value
