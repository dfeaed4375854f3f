"""
A configuration as it is in effect: every value with where it came from, secrets masked.

Only for a tree that was checked: what is a secret, its keys say.
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
    below,
    node_of,
)
from headrace.config.secrets import MASK, is_reference, is_secret, masked_connection, masked_text
from headrace.config.text import Node, SourceLocation

Path = tuple[str | int, ...]
"""Keys and numbers of list entries, from the top."""


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One value in effect."""

    path: Path
    value: Plain
    """As it may be shown."""

    place: SourceLocation
    """Of a default, no place."""

    @property
    def name(self) -> str:
        """The path as text: `pipelines.orders.tables[0]`."""
        text = ""
        for part in self.path:
            text = f"{text}[{part}]" if isinstance(part, int) else below(text, part)
        return text


def settings(node: Node, keys: Sequence[Key], path: Path = ()) -> Iterator[EffectiveSetting]:
    """Yield every value of a section, defaults too; keys without either are left out."""
    given = node.value if isinstance(node.value, dict) else {}
    for key in keys:
        found = given.get(key.name)
        if found is None or (found.value is None and not getattr(key.kind, "nullable", False)):
            if key.default is None:
                continue
            found = node_of(key.default, NOWHERE)
        yield from _of(key.kind, found, (*path, key.name))


def as_tree(found: Sequence[EffectiveSetting]) -> dict[str, Any]:
    """Return settings as one nested object, in the shape they would be written in."""
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


def _of(kind: Kind, node: Node, path: Path) -> Iterator[EffectiveSetting]:
    match kind, node.value:
        case Section(keys), dict():
            yield from settings(node, keys, path)
        case PartOf(), dict():
            yield from settings(node, kind.keys_of(node), path)
        case (Entries(), dict(value)) | (ListOf(), list(value)) if not value:
            # Said to be empty, or empty by default: only what was said is worth a line.
            if node.place.origin:
                yield EffectiveSetting(path, {} if isinstance(value, dict) else [], node.place)
        case Entries(of), dict():
            for name, each in kind.entries(node):
                yield from _of(of, each, (*path, name))
        case ListOf(of), list(entries):
            for number, each in enumerate(entries):
                yield from _of(of, each, (*path, number))
        case _:
            yield EffectiveSetting(path, _shown(kind, node, path), node.place)


def _shown(kind: Kind, node: Node, path: Path) -> Plain:
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
