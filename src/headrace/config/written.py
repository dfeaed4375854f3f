"""
A configuration as it is written, before substitutions are looked up.

A key may be given several values, one after the other. A scalar or a list hides what came
before it, objects merge, and what a substitution does is known only at the end; so a field
keeps its values as layers, the last on top, and drops those that are hidden for certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from headrace.config.tree import Place, Scalar

if TYPE_CHECKING:
    from headrace.config.scanning import Source

PathOfKeys: TypeAlias = tuple[str, ...]


class Fraction(float):
    """A number with a fraction or an exponent; as text, it is what was written: 1.10."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Fraction:
        """Read a JSON number."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)


@dataclass(frozen=True, slots=True)
class Plain:
    """A scalar, and its text as it was written: the text is what a concatenation takes."""

    value: Scalar
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class Blank:
    """White space between the parts of a concatenation: kept in text, not between objects."""

    text: str


@dataclass(frozen=True, slots=True)
class Below:
    """What a key had before this value: `a += 1` is below, then `[1]`."""

    place: Place


@dataclass(frozen=True, slots=True)
class Substitution:
    """`${path}` or `${?path}`."""

    path: PathOfKeys
    optional: bool
    place: Place
    source: Source
    offset: int
    prefix: PathOfKeys = ()
    """Where the file that has it was included: its paths are looked up there first."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A list; `settled` if nothing in it has to be looked up."""

    items: list[Written]
    place: Place
    settled: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """Values written side by side, of which some are to be looked up or merged."""

    parts: list[Written | Blank]
    place: Place
    source: Source
    offset: int


class Section:
    """An object: fields by key, in the order they first appeared."""

    __slots__ = ("fields", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.fields: dict[str, Field] = {}

    def put(self, path: Sequence[str], value: Written) -> None:
        """Set the value at a path, with an object for each key before the last."""
        section = self
        for key in path[:-1]:
            section = section._field(key).section(value.place)
        section._field(path[-1]).add(value)

    def append(self, path: Sequence[str], one: Listed, source: Source, offset: int) -> None:
        """Do what `path += value` says; `one` is the list of that value."""
        section = self
        for key in path[:-1]:
            section = section._field(key).section(one.place)
        section._field(path[-1]).append(one, source, offset)

    def merge(self, later: Section) -> None:
        """Take over the fields of `later`, which is not used again."""
        if not self.fields:
            self.fields = later.fields
            return
        for key, field in later.fields.items():
            mine = self.fields.get(key)
            if mine is None:
                self.fields[key] = field
            else:
                for layer in field.layers:
                    mine.add(layer)

    def _field(self, key: str) -> Field:
        field = self.fields.get(key)
        if field is None:
            field = self.fields[key] = Field()
        return field


class Field:
    """The values of one key, the last on top; and, while and after it is looked up, what it is."""

    __slots__ = ("belows", "busy", "count", "head", "layers", "level", "resolving", "result")

    def __init__(self, layers: list[Layer] | None = None, count: int = -1) -> None:
        self.layers: list[Layer] = [] if layers is None else layers
        self.count = count
        """How many of the layers count; all of them where it is negative."""
        self.busy = -1
        self.level = -1
        self.resolving = False
        self.head: object = None
        self.result: object = None
        self.belows: dict[int, Field] | None = None

    def add(self, value: Layer) -> None:
        """Put a value on top."""
        if isinstance(value, Section) and self.layers:
            top = self.layers[-1]
            if isinstance(top, Section):
                top.merge(value)
                return
        if isinstance(value, Plain) or (isinstance(value, Listed) and value.settled):
            self.layers = [value]
        else:
            self.layers.append(value)

    def section(self, place: Place) -> Section:
        """Return the object on top; a new one where something else is."""
        top = self.layers[-1] if self.layers else None
        if not isinstance(top, Section):
            top = Section(place)
            self.layers.append(top)
        return top

    def append(self, one: Listed, source: Source, offset: int) -> None:
        """Add `one` to the list on top, or to what will be found to be there."""
        top = self.layers[-1] if self.layers else None
        # A layer for each += would be looked up through all others: a long way for many.
        if one.settled and isinstance(top, Listed) and top.settled:
            top.items.extend(one.items)
        elif one.settled and _grows(top):
            top.parts.append(one)
        else:
            self.layers.append(Joined([Below(one.place), one], one.place, source, offset))

    def below(self, index: int) -> Field:
        """Return the field as it was before its layer `index`."""
        if self.belows is None:
            self.belows = {}
        found = self.belows.get(index)
        if found is None:
            found = self.belows[index] = Field(self.layers, index)
            found.belows = self.belows
        return found


Written: TypeAlias = Plain | Listed | Section | Substitution | Joined | Below
Layer: TypeAlias = Written | Field


def _grows(top: Layer | None) -> TypeGuard[Joined]:
    """Whether it is what `+=` made: one more value can then be added to it."""
    return isinstance(top, Joined) and isinstance(top.parts[0], Below)
