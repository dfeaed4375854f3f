"""
The keys of a configuration, the kinds of values they take, and validation.

A part declares each of its keys once: name, kind, default and description. From these
declarations a configuration is checked, shown with its secrets masked, and described in the
reference.

A check collects all errors (`Problems`) and freezes the valid values (`Values`). No message
repeats a value: its location is enough, and it may be a secret in the wrong line. For an unknown
word, the message suggests the most similar known one.

As in HOCON a number or a boolean is also a text, and a text that looks like a number is one: an
environment variable has no types. A duration must have a unit, because a bare number could be
milliseconds or seconds.

Long because each kind of value is defined together with its check.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
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

# --- the most similar word ------------------------------------------------------------------------


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that is most similar to `word`; None if none is similar."""
    names = {each.lower(): each for each in known}
    # `equals` for `field-equals`, `slot` for `slot_mode`: a part was left out, or added.
    parts = _parts(word)
    related = [each for each in names if parts <= _parts(each) or _parts(each) <= parts]
    close = get_close_matches(word.lower(), names, 1, 0.65) or get_close_matches(
        word.lower(), related, 1, 0.0
    )
    return names[close[0]] if close else None


def _parts(word: str) -> set[str]:
    return {part for part in re.split(r"[^a-z0-9]+", word.lower()) if part}


# --- problems and checked values ------------------------------------------------------------------

_PLAIN = re.compile(r"[\w-]+")


class Problems:
    """Errors in the order they are found, each with its source location."""

    def __init__(self) -> None:
        self.found: list[HeadraceError] = []

    def add(
        self,
        kind: type[SettingError],
        location: SourceLocation,
        at: str,
        message: str,
        *,
        remedy: str | None = None,
    ) -> None:
        """Add an error: `at` is the path of the key, which `message` follows."""
        where = {"place": str(location)} if location.origin else {}
        self.found.append(
            kind(prefixed(location, f"{at} {message}"), key=at, remedy=remedy, **where)
        )

    def raise_all(self) -> None:
        """Raise `InvalidConfiguration` with all errors, if there are any."""
        if self.found:
            raise InvalidConfiguration.of(self.found)


class Values(Mapping[str, Any]):
    """The checked values of a section by key; immutable, and not shown by `repr`."""

    __slots__ = ("_values", "at", "location", "locations")

    def __init__(
        self,
        at: str,
        location: SourceLocation,
        values: Mapping[str, Any],
        locations: Mapping[str, SourceLocation],
    ) -> None:
        self.at = at
        self.location = location
        self.locations = locations
        """The locations of the values that are set; the others are defaults."""
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def location_of(self, key: str) -> SourceLocation:
        """Return the location of a value, or that of its section if the value is a default."""
        return self.locations.get(key, self.location)

    def __repr__(self) -> str:
        return f"Values({self.at or 'all'}: {', '.join(self._values)})"


def located(error: HeadraceError, location: SourceLocation) -> HeadraceError:
    """Return the same error with the source location that it is about."""
    if not location.origin or "place" in error.facts:
        return error
    facts = {**error.facts, "place": str(location)}
    return type(error)(prefixed(location, error.message), remedy=error.remedy, **facts)


def prefixed(location: SourceLocation, sentence: str) -> str:
    """Return a sentence prefixed with the location that it is about."""
    return f"{location}: {sentence}" if location.origin else sentence


def key_path(at: str, name: str) -> str:
    """Return the path of key `name` in section `at`, quoted as in a file."""
    quoted = name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '\\"') + '"'
    return f"{at}.{quoted}" if at else quoted


def suggestion(word: str, known: Iterable[str], what: str) -> str:
    """Return a remedy that names the most similar of `known`, or else all of them."""
    names = list(known)
    if (near := nearest(word, names)) is not None:
        return f"Did you mean {near}?"
    return f"{what} {', '.join(names)}." if names else "Remove it."


# --- the keys of a section ------------------------------------------------------------------------

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | dict[str, Plain] | None"

NOWHERE = SourceLocation("")
"""The location of a default."""


class Kind(Protocol):
    """The kind of a value: what it may be, and how it is checked."""

    @property
    def label(self) -> str:
        """The kind in a few words, for the reference: `text`, `list of text`."""
        ...

    def read(self, node: Node, at: str, problems: Problems) -> object:
        """Return the value; errors go to `problems`, and any placeholder is returned then."""
        ...


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section."""

    name: str
    kind: Kind
    doc: str
    """What it does, in a sentence or two."""

    default: Plain = None
    """As it would be written in a file; None for no default, so that the value is None."""

    required: bool = False


def checked(node: Node, keys: Sequence[Key], at: str = "") -> Values:
    """Return the values of a section, or raise `InvalidConfiguration` with all errors."""
    problems = Problems()
    values = read_section(node, keys, at, problems)
    problems.raise_all()
    return values


def read_section(node: Node, keys: Sequence[Key], at: str, problems: Problems) -> Values:
    """Return the values of a section; errors go to `problems`."""
    if not isinstance(node.value, dict):
        problems.add(
            WrongType,
            node.location,
            at or "The configuration",
            "must be a section: keys and values in braces",
            remedy=f"Write {at} {{ … }}, with keys in it.",
        )
        return Values(at, node.location, {}, {})
    known = [key.name for key in keys]
    for name, given in node.value.items():
        if name not in known:
            problems.add(
                UnknownKey,
                given.location,
                key_path(at, name),
                "is not a known key",
                remedy=suggestion(name, known, f"The keys of {at or 'a configuration'} are"),
            )
    values: dict[str, object] = {}
    locations: dict[str, SourceLocation] = {}
    for key in keys:
        here = key_path(at, key.name)
        found = node.value.get(key.name)
        # As in HOCON, null unsets a value, except where null is a value.
        if found is None or (found.value is None and not getattr(key.kind, "nullable", False)):
            if key.required:
                problems.add(
                    MissingKey, node.location, here, "is missing", remedy=f"Add it: {key.doc}"
                )
            default = Node(None, NOWHERE) if key.required else node_of(key.default)
            values[key.name] = (
                None if default.value is None else key.kind.read(default, here, problems)
            )
        else:
            locations[key.name] = found.location
            values[key.name] = key.kind.read(found, here, problems)
    return Values(at, node.location, values, locations)


def node_of(plain: Plain, location: SourceLocation = NOWHERE) -> Node:
    """Return a plain value as a node, all of it with one location."""
    if isinstance(plain, dict):
        return Node({key: node_of(each, location) for key, each in plain.items()}, location)
    if isinstance(plain, list | tuple):
        return Node([node_of(each, location) for each in plain], location)
    assert plain is None or isinstance(plain, bool | int | float | str)
    return Node(plain, location)


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
    def label(self) -> str:
        return "text"

    def read(self, node: Node, at: str, problems: Problems) -> str:
        text = _text(node)
        if text is None:
            problems.add(
                WrongType, node.location, at, "must be a text", remedy=_example(at, self.example)
            )
            return ""
        if not text and not self.empty:
            problems.add(
                WrongValue,
                node.location,
                at,
                "must not be empty",
                remedy=_example(at, self.example),
            )
        return text


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection string or URI for libpq; displayed without its password."""

    @property
    def label(self) -> str:
        return "connection"

    def read(self, node: Node, at: str, problems: Problems) -> str:
        return Text("postgresql://user@host/database").read(node, at, problems)


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a secret, not the secret itself."""

    @property
    def label(self) -> str:
        return "reference"

    def read(self, node: Node, at: str, problems: Problems) -> Secret:
        text = _text(node) or ""
        if not is_reference(text):
            known = ", ".join(f'"{each}:…"' for each in schemes())
            problems.add(
                WrongValue,
                node.location,
                at,
                "must be a reference to a secret",
                remedy=f"Write where to read the secret from: {known}.",
            )
        return Secret(text)


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path; a relative one is relative to the configuration file that contains it."""

    example: str = ""

    @property
    def label(self) -> str:
        return "path"

    def read(self, node: Node, at: str, problems: Problems) -> Path:
        Text(self.example).read(node, at, problems)
        return self.resolved(node)

    def resolved(self, node: Node) -> Path:
        """Return the path, absolute or relative to the current folder."""
        path = Path(_text(node) or "").expanduser()
        # Only files have lines; other paths are relative to the current folder already.
        return Path(node.location.origin).parent / path if node.location.line else path


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false."""

    @property
    def label(self) -> str:
        return "boolean"

    def read(self, node: Node, at: str, problems: Problems) -> bool:
        word = _text(node)
        if word not in (*_TRUE, *_FALSE):
            problems.add(
                WrongType,
                node.location,
                at,
                "must be true or false",
                remedy=f"Write {at} = true or {at} = false.",
            )
        return word in _TRUE


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number."""

    least: int | None = None
    most: int | None = None

    @property
    def label(self) -> str:
        return f"integer{_bounds(self.least, self.most)}"

    def read(self, node: Node, at: str, problems: Problems) -> int:
        number = _number(node)
        if number is None or number != int(number):
            problems.add(
                WrongType, node.location, at, "must be a whole number", remedy=_example(at, "20")
            )
            return self.least or 0
        _check_bounds(number, self.least, self.most, node, at, problems)
        return int(number)


@dataclass(frozen=True, slots=True)
class Number:
    """Any finite number."""

    least: float | None = None
    more_than: float | None = None

    @property
    def label(self) -> str:
        if self.more_than is not None:
            return f"number, more than {self.more_than:g}"
        return f"number{_bounds(self.least, None)}"

    def read(self, node: Node, at: str, problems: Problems) -> float:
        number = _number(node)
        if number is None:
            problems.add(
                WrongType, node.location, at, "must be a number", remedy=_example(at, "1000")
            )
            return 0.0
        if self.more_than is not None and number <= self.more_than:
            message = f"must be more than {self.more_than:g}"
            problems.add(WrongValue, node.location, at, message, remedy="Write a larger number.")
        _check_bounds(number, self.least, None, node, at, problems)
        return number


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration, written with its unit; the value is in seconds."""

    least: str | None = None

    @property
    def label(self) -> str:
        return "duration" if self.least is None else f"duration, at least {self.least}"

    def read(self, node: Node, at: str, problems: Problems) -> float:
        from headrace.config.units import duration

        text = _text(node)
        try:
            # A bare zero is the same in every unit.
            if text is None or (_number(node) or 0) != 0:
                raise ValueError  # noqa: TRY301  # reported below, like other invalid durations
            found = 0.0 if _number(node) == 0 else float(duration(text))
        except (ValueError, HeadraceError):
            problems.add(
                WrongType,
                node.location,
                at,
                "must be a duration with a unit",
                remedy=f"Write {at} = 500ms, 10s, 5m, 24h or 7d.",
            )
            return 0.0
        if self.least is not None and found < duration(self.least):
            problems.add(
                WrongValue,
                node.location,
                at,
                f"must be at least {self.least}",
                remedy="Change it to such a duration.",
            )
        return found


@dataclass(frozen=True, slots=True)
class Size:
    """A size; a number without a unit is in bytes."""

    least: int | None = None
    or_zero: bool = False
    """Whether 0 is allowed, too: it means no limit."""

    @property
    def label(self) -> str:
        least = f", at least {self.least >> 20} MiB" if self.least else ""
        return f"size{least}{', or 0 for no limit' if self.or_zero else ''}"

    def read(self, node: Node, at: str, problems: Problems) -> int:
        from headrace.config.units import size

        text = _text(node)
        try:
            if text is None:
                raise ValueError  # noqa: TRY301  # reported below, like other invalid sizes
            number = _number(node)
            found = int(size(text)) if number is None else int(number)
        except (ValueError, HeadraceError):
            problems.add(
                WrongType,
                node.location,
                at,
                "must be a size",
                remedy=f"Write {at} = 512MiB, 1GB, or a number of bytes.",
            )
            return 0
        allowed = self.or_zero and found == 0
        if self.least is not None and found < self.least and not allowed:
            message = f"must be at least {self.least} bytes"
            problems.add(
                WrongValue, node.location, at, message, remedy=_example(at, f"{self.least}")
            )
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def label(self) -> str:
        return " or ".join(f"`{word}`" for word in self.words)

    def read(self, node: Node, at: str, problems: Problems) -> str:
        word = _text(node)
        if word not in self.words:
            names = ", ".join(self.words)
            message, what = f"must be {names}", "Write"
            if len(self.words) > 1:
                message, what = f"must be one of {names}", "Write one of"
            remedy = suggestion(word or "", self.words, what)
            problems.add(WrongValue, node.location, at, message, remedy=remedy)
            return self.words[0]
        return word


@dataclass(frozen=True, slots=True)
class Anything:
    """A text, a number, a boolean or null."""

    @property
    def nullable(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return "text, number, boolean or null"

    def read(self, node: Node, at: str, problems: Problems) -> object:
        if isinstance(node.value, list | dict):
            problems.add(
                WrongType, node.location, at, "must be a single value", remedy=_example(at, "paid")
            )
            return None
        return node.value


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one kind."""

    of: Kind
    least: int = 0
    example: str = "[a, b]"

    @property
    def label(self) -> str:
        return f"list of {self.of.label}"

    def read(self, node: Node, at: str, problems: Problems) -> tuple[object, ...]:
        if not isinstance(node.value, list):
            problems.add(
                WrongType, node.location, at, "must be a list", remedy=_example(at, self.example)
            )
            return ()
        if len(node.value) < self.least:
            message = "must have an entry" if self.least == 1 else f"must have {self.least} entries"
            problems.add(WrongValue, node.location, at, message, remedy=_example(at, self.example))
        return tuple(
            self.of.read(each, f"{at}[{number}]", problems)
            for number, each in enumerate(node.value)
        )


@dataclass(frozen=True, slots=True)
class Entries:
    """Values of one kind by names that the user chooses."""

    of: Kind
    called: str = "NAME"
    """The placeholder for the name in the reference."""

    flat: bool = False
    """
    Whether names contain dots: `spark.driver.memory` is one name, not nested sections.

    The parser makes sections of it, which are joined again.
    """

    least: int = 0

    @property
    def label(self) -> str:
        return f"{self.of.label} by name"

    def read(self, node: Node, at: str, problems: Problems) -> Mapping[str, object]:
        if not isinstance(node.value, dict):
            problems.add(
                WrongType,
                node.location,
                at,
                "must be a section of names and values",
                remedy=f"Write {at} {{ {self.called.lower()} = … }}.",
            )
            return MappingProxyType({})
        found = dict(self.entries(node))
        if len(found) < self.least:
            message, remedy = "must have an entry", f"Write {at} {{ {self.called.lower()} = … }}."
            problems.add(WrongValue, node.location, at, message, remedy=remedy)
        return MappingProxyType(
            {
                name: self.of.read(each, key_path(at, name), problems)
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
    """A section with its own keys."""

    keys: Sequence[Key]

    @property
    def label(self) -> str:
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
    """Return a number, also if it is given as text; None for anything else."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        try:
            value = int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            return None
    # Integers are always finite, and may be too large for `isfinite`.
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
        problems.add(
            WrongValue, node.location, at, f"must be {bounds}", remedy="Change it to such a number."
        )


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f", from {least:g} to {most:g}"
    if least is not None:
        return f", at least {least:g}"
    return f", at most {most:g}" if most is not None else ""


def _example(at: str, example: str) -> str:
    name = at.rpartition(".")[2]
    return (
        f"For example: {name} = {example}." if example else "Write a text, in quotes if necessary."
    )
