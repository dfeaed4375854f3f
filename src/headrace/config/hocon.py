"""
A reader of HOCON: JSON that people can write.

It reads a part of the language, the one docs/guides/configuration.md describes: objects, lists,
comments, strings of three kinds, dotted keys, merging, concatenation, substitution, include.
What it does not read is an error, with its place and what to write instead.

The files of a configuration are read here, and so are those that one includes. Depth and size
are bounded: text that was written to do harm ends in an error, too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from headrace.config.resolve import resolved
from headrace.config.text import (
    NUMBER,
    QUOTE_IT,
    WORD,
    Blank,
    Concatenation,
    Cursor,
    Fraction,
    ListValue,
    Node,
    ObjectValue,
    PathOfKeys,
    Plain,
    Scalar,
    SourceLocation,
    SourceText,
    Substitution,
    Written,
    excerpt,
)
from headrace.errors import ConfigText, ConfigUnreadable

# --- files, and those they include ----------------------------------------------------------------

Read: TypeAlias = Callable[[str, str], tuple[str, str] | None]
"""
Given a name and the origin of the text that includes it, returns origin and text; None where
there is no such file.
"""

LARGEST = 4 * 1024 * 1024
"""Characters of all files of a configuration together."""

NESTED = 20
_FILES = 1_000


@dataclass(slots=True)
class _Total:
    """What all included files of a configuration come to."""

    files: int = 0
    characters: int = 0


@dataclass(frozen=True, slots=True)
class IncludeChain:
    """Where a text stands among the files that include each other."""

    read: Read | None
    prefix: PathOfKeys = ()
    """The keys under which the text was included."""

    depth: int = 0
    """How deep in objects it was included."""

    chain: tuple[str, ...] = ()
    """The origins of the files above it."""

    total: _Total = field(default_factory=_Total)


def included(
    context: IncludeChain,
    source: SourceText,
    offset: int,
    name: str,
    *,
    required: bool,
    at: PathOfKeys,
    depth: int,
) -> tuple[SourceText, IncludeChain] | None:
    """Return the text of an included file and its context; None where it may be missing."""
    if context.read is None:
        raise source.error(offset, "No file can be included here", "Write its text instead.")
    try:
        found = context.read(name, source.origin)
    except (OSError, ValueError) as error:
        # ValueError: names that no file can have.
        raise source.error(
            offset, f"The file cannot be read: {_reason(error)}", None, ConfigUnreadable
        ) from None
    if found is None:
        if required:
            raise source.error(
                offset,
                "There is no such file",
                "Create it, or take out required( ): then it may be missing.",
                ConfigUnreadable,
            )
        return None
    origin, text = found
    chain = (*context.chain, source.origin)
    total = context.total
    total.files += 1
    total.characters += len(text)
    if origin in chain:
        way = " → ".join((*chain[chain.index(origin) :], origin))
        raise source.error(offset, f"Files include each other: {way}", "Break the circle.")
    if len(chain) > NESTED or total.files > _FILES or total.characters > LARGEST:
        raise source.error(
            offset,
            "Includes are nested too deep, or are too many or too large together",
            f"At most {NESTED} deep, {_FILES:,} files and {LARGEST:,} characters.",
        )
    return SourceText(text, origin), replace(context, prefix=at, depth=depth, chain=chain)


def read_beside(name: str, origin: str) -> tuple[str, str] | None:
    """Read a file that is named from the folder of the file `origin`."""
    # Not resolved further: people know their files by the names they gave.
    path = os.path.normpath(Path(origin).parent / Path(name))
    return (path, text_of(Path(path))) if Path(path).exists() else None


def text_of(path: Path) -> str:
    """Return the text of a file; raise `ConfigUnreadable` where it has none."""
    try:
        with path.open("rb") as file:
            # Not by its size: a device or a pipe has none, and may never end.
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise ConfigUnreadable(
            f"{path} cannot be read: {_reason(error)}",
            remedy="Check the path; headrace init writes a configuration to begin with.",
        ) from None
    if len(data) > LARGEST:
        raise ConfigUnreadable(
            f"{path} is larger than {LARGEST:,} bytes",
            remedy="Check the path: this is more than any configuration needs.",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_text(path, data, error.start) from None


def _no_text(path: Path, data: bytes, offset: int) -> ConfigUnreadable:
    start = data.rfind(b"\n", 0, offset) + 1
    line = data[start:].split(b"\n", 1)[0].decode("utf-8", "replace")
    column = len(data[start:offset].decode("utf-8", "replace")) + 1
    place = SourceLocation(str(path), data.count(b"\n", 0, offset) + 1, column)
    raised = ConfigUnreadable(
        f"{place}: A byte stands there that is not UTF-8",
        remedy="Save the file as UTF-8.",
        place=str(place),
    )
    raised.excerpt = excerpt(line, place)
    return raised


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


# --- the reader -----------------------------------------------------------------------------------

DEPTH = 64
"""How deep objects and lists may be nested; people do not go beyond ten."""

_DIGITS = 4_000
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None}
_SEPARATORS = ("=", ":", "+=")
_ELSEWHERE = ("url(", "classpath(", "package(")


def parse(
    text: str,
    origin: str,
    *,
    read: Read | None = None,
    environment: Mapping[str, str] | None = None,
) -> Node:
    """
    Return the configuration that `text` says; `origin` is what places call it.

    `read` gives the files that are included; without it, none can be. `environment` gives
    what substitutions do not find in the text. Raises `ConfigText`, of which `ConfigSyntax`
    is the most frequent kind, with place, line and caret.
    """
    root = section_of(SourceText(text, origin), IncludeChain(read))
    return resolved(root, {} if environment is None else environment)


def section_of(source: SourceText, include: IncludeChain) -> ObjectValue:
    """Return what a whole text says, as it is written."""
    if len(source.text) > LARGEST:
        raise source.error(0, f"The text is longer than {LARGEST:,} characters", "Make it shorter.")
    source.check()
    reader = _Reader(source, include)
    reader.gap()
    start = reader.at
    opening = source.text[start : start + 1]
    if opening == "[":
        raise source.error(start, "A list stands where keys belong", "Write key = value.")
    root = ObjectValue(source.place(start))
    if opening == "{":
        reader.at += 1
    reader.fields(root, start if opening == "{" else None)
    reader.gap()
    if reader.at < len(source.text):
        raise source.error(
            reader.at, "Something follows the closing }", "Take it out, or the } before it."
        )
    return root


def value_of(source: SourceText) -> Written | None:
    """Return the one value a text says; None where it is none, or not only one."""
    reader = _Reader(source, IncludeChain(None))
    try:
        source.check()
        reader.gap()
        value = reader.value()
    except ConfigText:
        return None
    reader.gap()
    return value if reader.at == len(source.text) else None


def path_of(source: SourceText) -> tuple[PathOfKeys, int]:
    """Return the path of keys that a text begins with, and where it ends."""
    source.check()
    cursor = Cursor(source)
    return cursor.keys("a key"), cursor.at


class _Reader(Cursor):
    """Reads one text from the beginning to its end."""

    def __init__(self, source: SourceText, include: IncludeChain) -> None:
        super().__init__(source)
        self.include = include
        self.depth = include.depth
        self.path: PathOfKeys | None = include.prefix
        """Of the object that is read; None in a list, where keys lead nowhere."""

        self.lookups = 0

    def deeper(self, at: int, levels: int = 1) -> None:
        """Count levels of nesting, and raise where they are too many."""
        self.depth += levels
        if self.depth > DEPTH:
            raise self.source.error(
                at,
                f"Objects and lists are nested deeper than {DEPTH}",
                "Write it flatter: this is more than any setting needs.",
            )

    # -- objects --------------------------------------------------------------------------

    def fields(self, section: ObjectValue, opened: int | None) -> None:
        """Read fields into `section`: to its closing brace, or to the end of the text."""
        text = self.text
        while True:
            self.gap()
            if self.ended(opened, "}", "object"):
                return
            if text[self.at] == ",":
                raise self.source.error(
                    self.at, "A comma has nothing before it", "Take out the comma."
                )
            self.field(section)
            newline = self.gap()
            following = text[self.at : self.at + 1]
            if following == ",":
                self.at += 1
            elif not newline and following not in ("", "}"):
                raise self.unexpected("The value goes on with", "a comma or a new line")

    def ended(self, opened: int | None, closing: str, what: str) -> bool:
        """Whether the object or list is at its end; go over its closing bracket."""
        following = self.text[self.at : self.at + 1]
        if following == "":
            if opened is not None:
                raise self.source.error(
                    opened,
                    f"The {what} that begins here is not closed",
                    f"Add {closing} where it ends.",
                )
            return True
        if following != closing:
            return False
        if opened is None:
            raise self.source.error(
                self.at, f"There is a {closing} that nothing opened", "Take it out."
            )
        self.at += 1
        return True

    def field(self, section: ObjectValue) -> None:
        """Read `key = value`, `key { … }`, `key += value` or an include."""
        start = self.at
        word = WORD.match(self.text, start)
        if word is not None and word[0] == "include":
            self.at = word.end()
            self.included(section, start)
            return
        path = self.keys("a key")
        end = self.at
        self.gap()
        separator = self.separator(end)
        if separator != "{":
            self.at += len(separator)
            self.gap()
        outer, depth = self.path, self.depth
        self.path = None if outer is None else (*outer, *path)
        self.deeper(start, len(path) - 1)
        before = self.lookups
        begin = self.at
        value = self.value()
        self.path, self.depth = outer, depth
        if separator == "+=":
            one = ListValue([value], value.place, self.lookups == before)
            self.lookups += 1
            section.append(path, one, self.source, begin)
        else:
            section.put(path, value)

    def separator(self, end: int) -> str:
        """Return what stands between key and value; a brace is the value's own."""
        following = self.text[self.at : self.at + 2]
        if following == "+=":
            return following
        if following[:1] in ("=", ":", "{") and following:
            return following[0]
        if following == "":
            raise self.source.error(end, "The key has no value", "Write key = value.")
        if "\n" in self.text[end : self.at]:
            raise self.source.error(end, "The key has no value", "Write key = value in one line.")
        raise self.unexpected("The key is followed by", "=")

    def included(self, section: ObjectValue, start: int) -> None:
        """Read what follows `include`, and take over the fields of that file."""
        source = self.source
        self.gap()
        opened = 0
        required = False
        for word in ("required(", "file("):
            if self.text.startswith(word, self.at):
                required = required or word == "required("
                self.at += len(word)
                opened += 1
                self.gap()
        if self.text.startswith(_ELSEWHERE, self.at):
            raise source.error(self.at, "Only files can be included", 'Write include "name.conf".')
        if not self.text.startswith('"', self.at):
            raise source.error(
                self.at,
                "After include stands the name of a file, in double quotes",
                'Write include "name.conf"; to have a key of that name, write "include" = ….',
            )
        named = self.at
        name, self.at = source.string(self.at)
        for _ in range(opened):
            self.gap()
            if not self.text.startswith(")", self.at):
                raise self.unexpected("The name of the file is followed by", ")")
            self.at += 1
        if self.path is None:
            raise source.error(start, "A file cannot be included in a list", "Include it above.")
        found = included(
            self.include, source, named, name, required=required, at=self.path, depth=self.depth
        )
        if found is not None:
            inner, context = found
            section.merge(section_of(inner, context))
            self.lookups += 1

    # -- values ---------------------------------------------------------------------------

    def value(self) -> Written:
        """Read a value: all that stands side by side in the line."""
        start = self.at
        parts: list[Written | Blank] = []
        while (part := self.part()) is not None:
            parts.append(part)
            end = self.at
            if blank := self.blank():
                parts.append(Blank(blank))
        if not parts:
            raise self.no_value()
        self.at = end
        if isinstance(parts[-1], Blank):
            parts.pop()
        if len(parts) == 1:
            return parts[0]  # type: ignore[return-value]  # the first is never blank
        return self.joined(parts, start)

    def joined(self, parts: list[Written | Blank], start: int) -> Written:
        """Return several parts as one: text now, or what has to wait for a substitution."""
        place = self.source.place(start)
        kinds = {type(part) for part in parts}
        if kinds <= {Plain, Blank}:
            text = "".join(part.text for part in parts if isinstance(part, Plain | Blank))
            return Plain(text, text, place)
        if (Plain in kinds) + (ListValue in kinds) + (ObjectValue in kinds) > 1:
            raise self.source.error(
                start,
                "Values of different kinds stand side by side",
                "Join text with text, lists with lists, objects with objects; or put a comma or"
                " a new line between them.",
            )
        self.lookups += 1
        return Concatenation(parts, place, self.source, start)

    def part(self) -> Written | None:
        """Read one part of a value; None where none begins here."""
        text, at = self.text, self.at
        following = text[at : at + 1]
        if following == '"':
            said, self.at = self.source.string(at)
            return Plain(said, said, self.source.place(at))
        if following == "{":
            return self.section(at)
        if following == "[":
            return self.listed(at)
        if following == "$":
            return self.substitution(at)
        if following and following in "-0123456789" and (number := NUMBER.match(text, at)):
            self.at = number.end()
            if WORD.match(text, self.at) is None:
                return Plain(self.number(number[0], at), number[0], self.source.place(at))
            return Plain(number[0], number[0], self.source.place(at))
        word = WORD.match(text, at)
        if word is None:
            return None
        self.at = word.end()
        said = word[0]
        return Plain(_WORDS.get(said, said), said, self.source.place(at))

    def number(self, text: str, at: int) -> Scalar:
        if len(text) > _DIGITS:
            raise self.source.error(
                at, f"A number has more than {_DIGITS} characters", "Put it in double quotes."
            )
        if text.lstrip("-").isdigit():
            return int(text)
        number = Fraction(text)
        if math.isinf(number):
            raise self.source.error(at, "A number is too large", "Put it in double quotes.")
        return number

    def section(self, at: int) -> ObjectValue:
        depth = self.depth
        self.deeper(at)
        self.at += 1
        section = ObjectValue(self.source.place(at))
        self.fields(section, at)
        self.depth = depth
        return section

    def listed(self, at: int) -> ListValue:
        outer, depth = self.path, self.depth
        self.deeper(at)
        self.path = None
        self.at += 1
        before = self.lookups
        items: list[Written] = []
        while True:
            self.gap()
            if self.ended(at, "]", "list"):
                break
            if self.text[self.at] == ",":
                raise self.source.error(
                    self.at, "A comma has nothing before it", "Take out the comma."
                )
            items.append(self.value())
            newline = self.gap()
            following = self.text[self.at : self.at + 1]
            if following == ",":
                self.at += 1
            elif not newline and following not in ("", "]"):
                raise self.unexpected("The value goes on with", "a comma or a new line")
        self.path, self.depth = outer, depth
        return ListValue(items, self.source.place(at), self.lookups == before)

    def substitution(self, at: int) -> Substitution:
        source = self.source
        if not self.text.startswith("${", at):
            raise source.error(at, "A $ stands outside of quotes", QUOTE_IT)
        self.at += 2
        optional = self.text.startswith("?", self.at)
        self.at += optional
        self.blank()
        path = self.keys("a key")
        self.blank()
        if not self.text.startswith("}", self.at):
            raise self.unexpected("In ${…} there is", "}", nothing="The ${ is not closed")
        self.at += 1
        self.lookups += 1
        return Substitution(path, optional, source.place(at), source, at, self.include.prefix)

    # -- errors ---------------------------------------------------------------------------

    def no_value(self) -> ConfigText:
        following = self.text[self.at : self.at + 1]
        if following in ("", "}", "]", ",") or following in _SEPARATORS:
            return self.source.error(
                self.at, "A value is missing", 'Write one; the empty text is "".'
            )
        return self.unexpected("There is", "a value")
