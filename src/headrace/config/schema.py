"""
The keys of a configuration, the kinds of values they take, and the check against them.

A part declares its keys once: what may stand there, of which kind, and what it means without
being given. From that a configuration is checked, shown with its secrets masked, and described
in the reference.

A check gathers what is wrong (`Problems`) and freezes what is right (`Values`). No message here
repeats a value: the place says where it stands, and it may be a secret that slipped into the
wrong line. For a word that is not known, the message names the known one that was most likely
meant.

As in HOCON a number or a boolean is also a text, and a text that looks like a number is one: an
environment variable cannot say which it is. A duration requires its unit, because a bare number
is milliseconds to some and seconds to others.

Long because every kind of value stands beside the check that it is part of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from headrace.config.secrets import Secret, is_reference, schemes
from headrace.config.text import Node, SourceLocation
from headrace.errors import (
    HeadraceError,
    InvalidConfiguration,
    MissingKey,
    SettingError,
    UnknownKey,
    WrongType,
    WrongValue,
)

# --- the word that was most likely meant ----------------------------------------------------------


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that is hardly different from `word`; None where none is."""
    ranked = sorted((_distance(word.lower(), each.lower()), each) for each in known)
    if ranked and ranked[0][0] <= max(1, len(word) // 3):
        return ranked[0][1]
    # `equals` for `field-equals`, `slot` for `slot_mode`: a part was left out, or added.
    parts = set(_parts(word))
    related = [
        each for _, each in ranked if parts <= set(_parts(each)) or set(_parts(each)) <= parts
    ]
    return related[0] if related else None


def _parts(word: str) -> list[str]:
    return [part for part in re.split(r"[^a-z0-9]+", word.lower()) if part]


def _distance(a: str, b: str) -> int:
    """Return how many letters to add, remove, replace, or exchange with their neighbour."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, right in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]


# --- problems and checked values ------------------------------------------------------------------

_PLAIN = re.compile(r"[\w-]+")


class Problems:
    """Errors in the order they are found, each with its place."""

    def __init__(self) -> None:
        self.found: list[HeadraceError] = []

    def add(
        self,
        kind: type[SettingError],
        place: SourceLocation,
        at: str,
        says: str,
        *,
        remedy: str | None = None,
    ) -> None:
        """Add one: `at` is the path of the key, `says` goes on from there."""
        where = {"place": str(place)} if place.origin else {}
        self.found.append(kind(prefixed(place, f"{at} {says}"), key=at, remedy=remedy, **where))

    def raise_all(self) -> None:
        """Raise `InvalidConfiguration` with all of them, if there are any."""
        if self.found:
            raise InvalidConfiguration.of(self.found)


class Values(Mapping[str, Any]):
    """The checked values of a section by key; never changed, and never printed."""

    __slots__ = ("_values", "at", "place", "places")

    def __init__(
        self,
        at: str,
        place: SourceLocation,
        values: Mapping[str, Any],
        places: Mapping[str, SourceLocation],
    ) -> None:
        self.at = at
        self.place = place
        self.places = places
        """Of the values that were given; the others are defaults."""
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def place_of(self, key: str) -> SourceLocation:
        """Return where a value was written, or else where its section was."""
        return self.places.get(key, self.place)

    def __repr__(self) -> str:
        return f"Values({self.at or 'all'}: {', '.join(self._values)})"


def located(error: HeadraceError, place: SourceLocation) -> HeadraceError:
    """Return the same error, saying where in the configuration it comes from."""
    if not place.origin or "place" in error.facts:
        return error
    facts = {**error.facts, "place": str(place)}
    return type(error)(prefixed(place, error.message), remedy=error.remedy, **facts)


def prefixed(place: SourceLocation, sentence: str) -> str:
    """Return a sentence after the place it speaks of."""
    return f"{place}: {sentence}" if place.origin else sentence


def below(at: str, name: str) -> str:
    """Return the path of a key in a section, as it could be written in a file."""
    quoted = name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '\\"') + '"'
    return f"{at}.{quoted}" if at else quoted


def meant(word: str, known: Iterable[str], what: str) -> str:
    """Return a remedy that names the nearest of `known`, or else all of them."""
    names = list(known)
    if (near := nearest(word, names)) is not None:
        return f"Did you mean {near}?"
    return f"{what} {', '.join(names)}." if names else "Take it out."


# --- the keys of a section ------------------------------------------------------------------------

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | dict[str, Plain] | None"

NOWHERE = SourceLocation("")
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
    places: dict[str, SourceLocation] = {}
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


def node_of(plain: Plain, place: SourceLocation = NOWHERE) -> Node:
    """Return a plain value as a node, all of it at one place."""
    if isinstance(plain, dict):
        return Node({key: node_of(each, place) for key, each in plain.items()}, place)
    if isinstance(plain, list | tuple):
        return Node([node_of(each, place) for each in plain], place)
    assert plain is None or isinstance(plain, bool | int | float | str)
    return Node(plain, place)


# --- the kinds of values --------------------------------------------------------------------------

_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    example: str = ""
    secret: bool = False
    """Whether it is never shown."""

    empty: bool = False
    """Whether it may be empty."""

    @property
    def says(self) -> str:
        return "text"

    def read(self, node: Node, at: str, problems: Problems) -> str:
        text = _text(node)
        if text is None:
            problems.add(WrongType, node.place, at, "is a text", remedy=_such(at, self.example))
            return ""
        if not text and not self.empty:
            problems.add(WrongValue, node.place, at, "is empty", remedy=_such(at, self.example))
        return text


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection string or URI as libpq takes it; shown without its password."""

    @property
    def says(self) -> str:
        return "connection"

    def read(self, node: Node, at: str, problems: Problems) -> str:
        return Text("postgresql://user@host/database").read(node, at, problems)


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a secret is read from, not the secret."""

    @property
    def says(self) -> str:
        return "reference"

    def read(self, node: Node, at: str, problems: Problems) -> Secret:
        text = _text(node) or ""
        if not is_reference(text):
            known = ", ".join(f'"{each}:…"' for each in schemes())
            problems.add(
                WrongValue,
                node.place,
                at,
                "is not a reference to a secret",
                remedy=f"Say where the secret is: {known}.",
            )
        return Secret(text)


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path; one that is not absolute begins where the file that says it lies."""

    example: str = ""

    @property
    def says(self) -> str:
        return "path"

    def read(self, node: Node, at: str, problems: Problems) -> Path:
        Text(self.example).read(node, at, problems)
        return self.resolved(node)

    def resolved(self, node: Node) -> Path:
        """Return the path from where we stand."""
        path = Path(_text(node) or "").expanduser()
        # Only places in files have lines; variables and options begin where we stand.
        return Path(node.place.origin).parent / path if node.place.line else path


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false."""

    @property
    def says(self) -> str:
        return "boolean"

    def read(self, node: Node, at: str, problems: Problems) -> bool:
        word = _text(node)
        if word not in (*_TRUE, *_FALSE):
            problems.add(
                WrongType,
                node.place,
                at,
                "is true or false",
                remedy=f"Write {at} = true, or false.",
            )
        return word in _TRUE


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number."""

    least: int | None = None
    most: int | None = None

    @property
    def says(self) -> str:
        return f"integer{_bounds(self.least, self.most)}"

    def read(self, node: Node, at: str, problems: Problems) -> int:
        number = _number(node)
        if number is None or number != int(number):
            problems.add(WrongType, node.place, at, "is a whole number", remedy=_such(at, "20"))
            return self.least or 0
        _check_bounds(number, self.least, self.most, node, at, problems)
        return int(number)


@dataclass(frozen=True, slots=True)
class Number:
    """A number, whole or not."""

    least: float | None = None
    more_than: float | None = None

    @property
    def says(self) -> str:
        if self.more_than is not None:
            return f"number, more than {self.more_than:g}"
        return f"number{_bounds(self.least, None)}"

    def read(self, node: Node, at: str, problems: Problems) -> float:
        number = _number(node)
        if number is None:
            problems.add(WrongType, node.place, at, "is a number", remedy=_such(at, "1000"))
            return 0.0
        if self.more_than is not None and number <= self.more_than:
            says = f"is more than {self.more_than:g}"
            problems.add(WrongValue, node.place, at, says, remedy="Write a larger number.")
        _check_bounds(number, self.least, None, node, at, problems)
        return number


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time with its unit, in seconds."""

    @property
    def says(self) -> str:
        return "duration"

    def read(self, node: Node, at: str, problems: Problems) -> float:
        from headrace.config.units import duration

        text = _text(node)
        try:
            # A bare zero is the same in every unit.
            if text is None or (_number(node) or 0) != 0:
                raise ValueError  # noqa: TRY301  # told below, with what is no duration at all
            return 0.0 if _number(node) == 0 else float(duration(text))
        except (ValueError, HeadraceError):
            problems.add(
                WrongType,
                node.place,
                at,
                "is a duration with its unit",
                remedy=f"Write {at} = 500ms, 10s, 5m, 24h or 7d.",
            )
            return 0.0


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes; a bare number is bytes."""

    least: int | None = None

    @property
    def says(self) -> str:
        return f"size{f', at least {self.least >> 20} MiB' if self.least else ''}"

    def read(self, node: Node, at: str, problems: Problems) -> int:
        from headrace.config.units import size

        text = _text(node)
        try:
            if text is None:
                raise ValueError  # noqa: TRY301  # told below, with what is no size at all
            number = _number(node)
            found = int(size(text)) if number is None else int(number)
        except (ValueError, HeadraceError):
            problems.add(
                WrongType,
                node.place,
                at,
                "is a number of bytes",
                remedy=f"Write {at} = 512MiB, 1GB, or the bytes.",
            )
            return 0
        if self.least is not None and found < self.least:
            says = f"is at least {self.least} bytes"
            problems.add(WrongValue, node.place, at, says, remedy=_such(at, f"{self.least}"))
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def says(self) -> str:
        return " or ".join(f"`{word}`" for word in self.words)

    def read(self, node: Node, at: str, problems: Problems) -> str:
        word = _text(node)
        if word not in self.words:
            names = ", ".join(self.words)
            says = f"is one of {names}" if len(self.words) > 1 else f"can only be {names}"
            remedy = meant(word or "", self.words, "Write one of")
            problems.add(WrongValue, node.place, at, says, remedy=remedy)
            return self.words[0]
        return word


@dataclass(frozen=True, slots=True)
class Anything:
    """A text, a number, a boolean or null."""

    @property
    def nullable(self) -> bool:
        return True

    @property
    def says(self) -> str:
        return "text, number, boolean or null"

    def read(self, node: Node, at: str, problems: Problems) -> object:
        if isinstance(node.value, list | dict):
            problems.add(WrongType, node.place, at, "is a single value", remedy=_such(at, "paid"))
            return None
        return node.value


@dataclass(frozen=True, slots=True)
class ListOf:
    """Several of a kind, in order."""

    of: Kind
    least: int = 0
    example: str = "[a, b]"

    @property
    def says(self) -> str:
        return f"list of {self.of.says}"

    def read(self, node: Node, at: str, problems: Problems) -> tuple[object, ...]:
        if not isinstance(node.value, list):
            problems.add(WrongType, node.place, at, "is a list", remedy=_such(at, self.example))
            return ()
        if len(node.value) < self.least:
            says = "needs an entry" if self.least == 1 else f"needs {self.least} entries"
            problems.add(WrongValue, node.place, at, says, remedy=_such(at, self.example))
        return tuple(
            self.of.read(each, f"{at}[{number}]", problems)
            for number, each in enumerate(node.value)
        )


@dataclass(frozen=True, slots=True)
class Entries:
    """Values of a kind by names that are the user's own."""

    of: Kind
    called: str = "NAME"
    """What stands for the name in the reference."""

    flat: bool = False
    """
    Whether names have dots in them: `spark.driver.memory` is a name, not three sections.

    A file's reader makes sections of it, so they are put together again.
    """

    least: int = 0

    @property
    def says(self) -> str:
        return f"{self.of.says} by name"

    def read(self, node: Node, at: str, problems: Problems) -> Mapping[str, object]:
        if not isinstance(node.value, dict):
            problems.add(
                WrongType,
                node.place,
                at,
                "is a section of names and values",
                remedy=f"Write {at} {{ {self.called.lower()} = … }}.",
            )
            return MappingProxyType({})
        found = dict(self.entries(node))
        if len(found) < self.least:
            says, remedy = "has no entry", f"Write {at} {{ {self.called.lower()} = … }}."
            problems.add(WrongValue, node.place, at, says, remedy=remedy)
        return MappingProxyType(
            {
                name: self.of.read(each, below(at, name), problems)
                for name, each in found.items()
                if each.value is not None
            }
        )

    def entries(self, node: Node) -> Iterator[tuple[str, Node]]:
        """Yield names and their nodes."""
        assert isinstance(node.value, dict)
        for name, each in node.value.items():
            if self.flat and isinstance(each.value, dict):
                yield from ((f"{name}.{rest}", leaf) for rest, leaf in self.entries(each))
            else:
                yield name, each


@dataclass(frozen=True, slots=True)
class Section:
    """Keys of their own."""

    keys: Sequence[Key]

    @property
    def says(self) -> str:
        return "section"

    def read(self, node: Node, at: str, problems: Problems) -> Values:
        return read_section(node, self.keys, at, problems)


def _text(node: Node) -> str | None:
    match node.value:
        case str(text):
            return text
        case bool(truth):
            return "true" if truth else "false"
        case int() | float():
            return str(node.value)
    return None


def _number(node: Node) -> float | int | None:
    """Return a number, also one that came as text; None for anything else."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        try:
            value = int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            return None
    # Whole numbers are finite, and may be too large to ask.
    return value if isinstance(value, int) or math.isfinite(value) else None


def _check_bounds(
    number: float,
    least: float | None,
    most: float | None,
    node: Node,
    at: str,
    problems: Problems,
) -> None:
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = _bounds(least, most).lstrip(", ")
        problems.add(WrongValue, node.place, at, f"is {bounds}", remedy="Write such a number.")


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f", from {least:g} to {most:g}"
    if least is not None:
        return f", at least {least:g}"
    return f", at most {most:g}" if most is not None else ""


def _such(at: str, example: str) -> str:
    name = at.rpartition(".")[2]
    return (
        f"Write it as in {name} = {example}." if example else "Write a text, in quotes if need be."
    )
