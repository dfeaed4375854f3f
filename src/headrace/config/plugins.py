"""
Parts by type: what a configuration's `type = …` stands for.

Each part says its keys and how it is built. The package's own are named in a table; others
come by entry points, where the entry's name is the type. An entry names a `Part`, or simply a
class: its `config_keys` are the keys, and it is called with their values by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeAlias

from headrace.config.schema import Key, Problems, Text, Values, below, located, meant, read_section
from headrace.config.text import Node
from headrace.errors import BadPart, MissingKey, UnknownPart, WrongType

Build: TypeAlias = "Callable[[str, Values], Any]"
"""Makes the part, from the id of its source or pipeline and its checked values."""


@dataclass(frozen=True, slots=True)
class Part:
    """A type of source, target, filter or transform."""

    doc: str
    keys: Sequence[Key]
    build: Build
    also: tuple[str, ...] = ()
    """Other names that are understood."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A part that a configuration asks for, with its values."""

    type: str
    part: Part | None
    """None where there is no such type: that is among the problems."""

    values: Values

    def build(self, name: str) -> Any:
        """Make the part, for the source or pipeline of this id, of its own keys' values."""
        assert self.part is not None
        all_ = self.values
        own = {key.name: all_[key.name] for key in self.part.keys}
        return self.part.build(name, Values(all_.at, all_.place, own, all_.places))


class Catalogue:
    """The parts of one sort, ours and those of installed packages."""

    def __init__(
        self,
        what: str,
        group: str,
        built_in: Mapping[str, Part],
        adopt: Callable[[str, Any], Part] | None = None,
    ) -> None:
        self.what = what
        """As messages call it: `source`."""

        self.group = group
        self.built_in = built_in
        self._adopt = adopt or called_by_name
        self._names = {name: part for type, part in built_in.items() for name in (type, *part.also)}

    def types(self) -> tuple[str, ...]:
        """Return every type there is; ours first."""
        return (*self.built_in, *sorted(each.name for each in self._provided()))

    def find(self, type: str) -> Part | None:
        """Return a part; None where nobody provides it, `BadPart` where it cannot be used."""
        # Ours first: no package can take over what a configuration has meant so far.
        if (part := self._names.get(type)) is not None:
            return part
        for entry in self._provided():
            if entry.name == type:
                return self._load(entry)
        return None

    def _load(self, entry: metadata.EntryPoint) -> Part:
        try:
            loaded = entry.load()
        except Exception as error:  # whatever an import may raise
            raise BadPart(
                f"The {self.what} type {entry.name} cannot be imported",
                entry_point=entry.value,
                error=type(error).__name__,
            ) from error
        return loaded if isinstance(loaded, Part) else self._adopt(entry.name, loaded)

    def _provided(self) -> Iterator[metadata.EntryPoint]:
        found = metadata.entry_points(group=self.group)
        return (each for each in found if each.name not in self._names)


def called_by_name(type: str, maker: Any) -> Part:
    """Return a part for a class of somebody else: called with its values by name."""
    doc = (getattr(maker, "__doc__", None) or type).strip().splitlines()[0]
    return Part(doc, tuple(getattr(maker, "config_keys", ())), lambda _, values: maker(**values))


@dataclass(frozen=True, slots=True)
class PartOf:
    """A section whose `type` names a part, and whose other keys are the part's."""

    catalogue: Catalogue
    common: Sequence[Key] = ()
    """Keys that every type has."""

    @property
    def says(self) -> str:
        return self.catalogue.what

    def keys_of(self, node: Node) -> Sequence[Key]:
        """Return the keys that this very section may have; none where its type is not known."""
        part = self._part(node)
        return () if part is None else (self._type_key(), *self.common, *part.keys)

    def read(self, node: Node, at: str, problems: Problems) -> Chosen:
        type = _type_of(node)
        try:
            part = self._part(node)
        except BadPart as error:
            problems.found.append(located(error, node.place))
            return Chosen(type, None, Values(at, node.place, {}, {}))
        if part is None:
            self._complain(node, at, type, problems)
            return Chosen(type, None, Values(at, node.place, {}, {}))
        values = read_section(node, self.keys_of(node), at, problems)
        return Chosen(type, part, values)

    def _part(self, node: Node) -> Part | None:
        return self.catalogue.find(_type_of(node))

    def _type_key(self) -> Key:
        return Key("type", Text(), f"Which {self.says} it is.", required=True)

    def _complain(self, node: Node, at: str, type: str, problems: Problems) -> None:
        known, what = self.catalogue.types(), self.catalogue.what
        where = below(at, "type")
        if not isinstance(node.value, dict):
            remedy = f"Write {{ type = {known[0]}, … }}."
            problems.add(
                WrongType, node.place, at, f"is a section that says a {what}", remedy=remedy
            )
        elif not type:
            remedy = f"Give one of {', '.join(known)}."
            problems.add(MissingKey, node.place, where, "is missing", remedy=remedy)
        else:
            place = node.value["type"].place
            remedy = meant(type, known, "There are")
            problems.add(UnknownPart, place, where, f"is no type of {what}", remedy=remedy)


def _type_of(node: Node) -> str:
    if isinstance(node.value, dict) and (found := node.value.get("type")) is not None:
        return str(found.value) if isinstance(found.value, str) else ""
    return ""
