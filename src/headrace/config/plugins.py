"""
Parts by type: maps a configuration's `type = …` to a source, target, filter or transform.

Each part declares its keys and how it is built. Built-in parts are listed in a table, as a `Part`
or by name, `"package.module:PART"`, which is imported when it is needed. Other packages add parts
by entry points, whose name is the type. An entry point refers to a `Part` or to a class: the class
has its keys in `config_keys`, and is called with their values by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeAlias

from headrace.config.schema import (
    Key,
    Problems,
    Text,
    Values,
    key_path,
    located,
    read_section,
    suggestion,
)
from headrace.config.text import Node
from headrace.errors import BadPart, MissingKey, UnknownPart, WrongType

Build: TypeAlias = "Callable[[str, Values], Any]"
"""Builds the part from the id of its source or pipeline and its checked values."""


@dataclass(frozen=True, slots=True)
class Part:
    """A type of source, target, filter or transform."""

    doc: str
    keys: Sequence[Key]
    build: Build
    aliases: tuple[str, ...] = ()
    """Other names of the type."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A part that a configuration selects, with its values."""

    type: str
    part: Part | None
    """None if the type is unknown, which is then among the problems."""

    values: Values

    def build(self, name: str) -> Any:
        """Build the part for the source or pipeline `name` from the part's own values."""
        assert self.part is not None
        all_ = self.values
        own = {key.name: all_[key.name] for key in self.part.keys}
        return self.part.build(name, Values(all_.at, all_.location, own, all_.locations))


class Catalogue:
    """The parts of one sort, built in and from installed packages."""

    def __init__(
        self,
        what: str,
        group: str,
        built_in: Mapping[str, Part | str],
        adopt: Callable[[str, Any], Part] | None = None,
    ) -> None:
        self.what = what
        """The sort as messages name it: `source`."""

        self.group = group
        self._built_in = built_in
        self._adopt = adopt or part_of_class
        self._names = {type: type for type in built_in}
        """The built-in type that each name stands for."""

        for type, part in built_in.items():
            if isinstance(part, Part):
                self._names |= dict.fromkeys(part.aliases, type)

    @property
    def built_in(self) -> Mapping[str, Part]:
        """The built-in parts, by type."""
        return {type: self._own(type) for type in self._built_in}

    def types(self) -> tuple[str, ...]:
        """Return all types, built-in ones first."""
        return (*self._built_in, *sorted(each.name for each in self._entry_points()))

    def find(self, type: str) -> Part | None:
        """Return a part; None if the type is unknown. Raises `BadPart` if it cannot be imported."""
        # Built-in ones first: no package can change the meaning of an existing configuration.
        if (own := self._names.get(type)) is not None:
            return self._own(own)
        for entry in self._entry_points():
            if entry.name == type:
                return self._load(entry)
        return None

    def _own(self, type: str) -> Part:
        part = self._built_in[type]
        if isinstance(part, Part):
            return part
        found = metadata.EntryPoint(type, part, self.group).load()
        assert isinstance(found, Part)
        return found

    def _load(self, entry: metadata.EntryPoint) -> Part:
        try:
            loaded = entry.load()
        except Exception as error:  # an import may raise anything
            raise BadPart(
                f"The {self.what} type {entry.name} cannot be imported",
                entry_point=entry.value,
                error=type(error).__name__,
            ) from error
        return loaded if isinstance(loaded, Part) else self._adopt(entry.name, loaded)

    def _entry_points(self) -> Iterator[metadata.EntryPoint]:
        found = metadata.entry_points(group=self.group)
        return (each for each in found if each.name not in self._names)


def part_of_class(type: str, maker: Any) -> Part:
    """Return a part for a class of another package, which is called with its values by name."""
    doc = (getattr(maker, "__doc__", None) or type).strip().splitlines()[0]
    return Part(doc, tuple(getattr(maker, "config_keys", ())), lambda _, values: maker(**values))


@dataclass(frozen=True, slots=True)
class PartOf:
    """A section whose `type` names a part, and whose other keys belong to that part."""

    catalogue: Catalogue
    common: Sequence[Key] = ()
    """Keys of every type."""

    short: bool = False
    """Whether the name of a type alone means a section with nothing else."""

    @property
    def label(self) -> str:
        return self.catalogue.what

    def keys_of(self, node: Node) -> Sequence[Key]:
        """Return the keys that this section may have; none if its type is unknown."""
        part = self._part(self._section(node))
        return () if part is None else (self._type_key(), *self.common, *part.keys)

    def read(self, node: Node, at: str, problems: Problems) -> Chosen:
        node = self._section(node)
        type = _type_of(node)
        try:
            part = self._part(node)
        except BadPart as error:
            problems.found.append(located(error, node.location))
            return Chosen(type, None, Values(at, node.location, {}, {}))
        if part is None:
            self._report(node, at, type, problems)
            return Chosen(type, None, Values(at, node.location, {}, {}))
        values = read_section(node, self.keys_of(node), at, problems)
        return Chosen(type, part, values)

    def _section(self, node: Node) -> Node:
        return Node({"type": node}, node.location) if self._is_short(node) else node

    def _is_short(self, node: Node) -> bool:
        return self.short and isinstance(node.value, str)

    def _part(self, node: Node) -> Part | None:
        return self.catalogue.find(_type_of(node))

    def _type_key(self) -> Key:
        return Key("type", Text(), f"Which {self.label} it is.", required=True)

    def _report(self, node: Node, at: str, type: str, problems: Problems) -> None:
        known, what = self.catalogue.types(), self.catalogue.what
        where = key_path(at, "type")
        if not isinstance(node.value, dict):
            remedy = f"Write {{ type = {known[0]}, … }}."
            problems.add(
                WrongType,
                node.location,
                at,
                f"must be a section that describes a {what}",
                remedy=remedy,
            )
        elif not type:
            remedy = f"Add one of {', '.join(known)}."
            problems.add(MissingKey, node.location, where, "is missing", remedy=remedy)
        else:
            location = node.value["type"].location
            remedy = suggestion(type, known, "The types are")
            problems.add(
                UnknownPart, location, where, f"is not a known type of {what}", remedy=remedy
            )


def _type_of(node: Node) -> str:
    if isinstance(node.value, dict) and (found := node.value.get("type")) is not None:
        return str(found.value) if isinstance(found.value, str) else ""
    return ""
