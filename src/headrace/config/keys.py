"""
The keys of a section: what may stand there, of which kind, what it means without being given.

A part says its keys once; from that a configuration is checked, shown with its secrets
masked, and described in the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headrace.config.checking import Problems, Values, below, meant
from headrace.config.tree import Node, Place
from headrace.errors import MissingKey, UnknownKey, WrongType

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | dict[str, Plain] | None"

NOWHERE = Place("")
"""Of a default: nobody wrote it."""


class Kind(Protocol):
    """What a value may be."""

    @property
    def says(self) -> str:
        """What it is, in a few words: `text`, `list of text`."""
        ...

    def read(self, node: Node, at: str, problems: Problems) -> object:
        """Return the value; what is wrong with it goes to `problems`, and anything returns."""
        ...


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section."""

    name: str
    kind: Kind
    doc: str
    """What it does, in a sentence or two."""

    default: Plain = None
    """As it would be written; None leaves it out, and its value is None."""

    required: bool = False


def checked(node: Node, keys: Sequence[Key], at: str = "") -> Values:
    """Return the values of a section, or raise `InvalidConfiguration` with all that is wrong."""
    problems = Problems()
    values = read_section(node, keys, at, problems)
    problems.raise_all()
    return values


def read_section(node: Node, keys: Sequence[Key], at: str, problems: Problems) -> Values:
    """Return the values of a section, as far as they are right."""
    if not isinstance(node.value, dict):
        problems.add(
            WrongType,
            node.place,
            at or "The configuration",
            "is a section: keys and values in braces",
            remedy=f"Write {at} {{ … }}, with keys in it.",
        )
        return Values(at, node.place, {}, {})
    known = [key.name for key in keys]
    for name, given in node.value.items():
        if name not in known:
            problems.add(
                UnknownKey,
                given.place,
                below(at, name),
                "is not known",
                remedy=meant(name, known, f"The keys of {at or 'a configuration'} are"),
            )
    values: dict[str, object] = {}
    places: dict[str, Place] = {}
    for key in keys:
        here = below(at, key.name)
        found = node.value.get(key.name)
        # Null takes a value away again, as HOCON has it; except where null is a value.
        if found is None or (found.value is None and not getattr(key.kind, "nullable", False)):
            if key.required:
                problems.add(
                    MissingKey, node.place, here, "is missing", remedy=f"Give it: {key.doc}"
                )
            default = Node(None, NOWHERE) if key.required else node_of(key.default)
            values[key.name] = (
                None if default.value is None else key.kind.read(default, here, problems)
            )
        else:
            places[key.name] = found.place
            values[key.name] = key.kind.read(found, here, problems)
    return Values(at, node.place, values, places)


def node_of(plain: Plain, place: Place = NOWHERE) -> Node:
    """Return a plain value as a node, all of it at one place."""
    if isinstance(plain, dict):
        return Node({key: node_of(each, place) for key, each in plain.items()}, place)
    if isinstance(plain, list | tuple):
        return Node([node_of(each, place) for each in plain], place)
    assert plain is None or isinstance(plain, bool | int | float | str)
    return Node(plain, place)
