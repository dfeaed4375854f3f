"""
The kinds of values a key may take.

As HOCON has it a number or a boolean is also a text, and a text that looks like a number is
one: an environment variable cannot say which it is. A duration needs its unit, because a bare
number is milliseconds to some and seconds to others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from headrace.config.checking import Problems, Values, below, meant
from headrace.config.keys import Key, Kind, read_section
from headrace.config.secrets import Secret, is_reference, schemes
from headrace.config.tree import Node
from headrace.errors import HeadraceError, WrongType, WrongValue

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
