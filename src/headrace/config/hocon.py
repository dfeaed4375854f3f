"""
The HOCON parser. HOCON is JSON that is easier to write by hand.

It supports the subset that docs/guides/configuration.md describes: objects, lists, comments,
strings of three kinds, dotted keys, merging, concatenation, substitution, include. Anything else
is an error, with its location and what to write instead.

It also reads the files of a configuration and those they include. Depth and size are limited, so
that malicious input is rejected, too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from headrace.config.resolve import resolve_root
from headrace.config.secrets import is_special
from headrace.config.text import (
    NUMBER,
    QUOTE_IT,
    WORD,
    Blank,
    Concatenation,
    Cursor,
    Expression,
    Fraction,
    ListValue,
    Node,
    ObjectValue,
    PathOfKeys,
    Scalar,
    ScalarValue,
    SourceLocation,
    SourceText,
    Substitution,
    excerpt,
)
from headrace.errors import ConfigText, ConfigUnreadable

# --- files and includes ---------------------------------------------------------------------------

Read: TypeAlias = Callable[[str, str], tuple[str, str] | None]
"""
Given a name and the origin of the including text, returns origin and text; None if there is no
such file.
"""

LARGEST = 4 * 1024 * 1024
"""Maximum number of characters in all files of a configuration."""

MAX_INCLUDE_DEPTH = 20
_MAX_FILES = 1_000


@dataclass(slots=True)
class _IncludeTotal:
    """How much the included files of a configuration add up to."""

    files: int = 0
    characters: int = 0


@dataclass(frozen=True, slots=True)
class IncludeChain:
    """The files that lead to a text by including each other."""

    read: Read | None
    prefix: PathOfKeys = ()
    """The keys under which the text was included."""

    depth: int = 0
    """The depth of nested objects at the include."""

    chain: tuple[str, ...] = ()
    """The origins of the including files."""

    total: _IncludeTotal = field(default_factory=_IncludeTotal)


def open_include(
    context: IncludeChain,
    source: SourceText,
    offset: int,
    name: str,
    *,
    required: bool,
    at: PathOfKeys,
    depth: int,
) -> tuple[SourceText, IncludeChain] | None:
    """Return the text of an included file and its context; None if it is optional and missing."""
    if context.read is None:
        raise source.error(offset, "No file can be included here", "Insert its text instead.")
    try:
        found = context.read(name, source.origin)
    except (OSError, ValueError) as error:
        # ValueError: a name that is not valid for a file.
        raise source.error(
            offset, f"The file cannot be read: {_reason(error)}", None, ConfigUnreadable
        ) from None
    if found is None:
        if required:
            raise source.error(
                offset,
                "The included file does not exist",
                "Create it, or remove required( ) if it may be missing.",
                ConfigUnreadable,
            )
        return None
    origin, text = found
    chain = (*context.chain, source.origin)
    total = context.total
    total.files += 1
    total.characters += len(text)
    if origin in chain:
        cycle = " → ".join((*chain[chain.index(origin) :], origin))
        raise source.error(offset, f"Files include each other: {cycle}", "Break the cycle.")
    if len(chain) > MAX_INCLUDE_DEPTH or total.files > _MAX_FILES or total.characters > LARGEST:
        raise source.error(
            offset,
            "Includes are nested too deep, too many, or too large in total",
            f"At most {MAX_INCLUDE_DEPTH} levels, {_MAX_FILES:,} files and {LARGEST:,} characters.",
        )
    return SourceText(text, origin), replace(context, prefix=at, depth=depth, chain=chain)


def read_relative(name: str, origin: str) -> tuple[str, str] | None:
    """Read a file whose name is relative to the folder of the file `origin`."""
    # Symbolic links are kept: messages show the names that users wrote.
    path = os.path.normpath(Path(origin).parent / Path(name))
    return (path, read_text(Path(path))) if Path(path).exists() else None


def read_text(path: Path, *, pipes: bool = False) -> str:
    """
    Return the text of a file; raise `ConfigUnreadable` if it cannot be read as text.

    With `pipes` the file may also be a pipe or a device, which may never end or never begin.
    """
    try:
        if not pipes and is_special(path):
            raise ConfigUnreadable(
                f"{path} is a pipe, a device or a socket",
                remedy="Name a file. Only the file of --config may be a pipe.",
            )
        with path.open("rb") as file:
            # The size is not used: a device or a pipe has none, and may never end.
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
        raise _not_utf8(path, data, error.start) from None


def _not_utf8(path: Path, data: bytes, offset: int) -> ConfigUnreadable:
    start = data.rfind(b"\n", 0, offset) + 1
    line = data[start:].split(b"\n", 1)[0].decode("utf-8", "replace")
    column = len(data[start:offset].decode("utf-8", "replace")) + 1
    location = SourceLocation(str(path), data.count(b"\n", 0, offset) + 1, column)
    raised = ConfigUnreadable(
        f"{location}: Byte that is not UTF-8",
        remedy="Save the file as UTF-8.",
        place=str(location),
    )
    raised.excerpt = excerpt(line, location)
    return raised


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


# --- the parser -----------------------------------------------------------------------------------

DEPTH = 64
"""How deep objects and lists may be nested; real configurations stay below ten."""

_DIGITS = 4_000
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None}
_SEPARATORS = ("=", ":", "+=")
_OTHER_INCLUDES = ("url(", "classpath(", "package(")


def parse(
    text: str,
    origin: str,
    *,
    read: Read | None = None,
    environment: Mapping[str, str] | None = None,
) -> Node:
    """
    Parse and resolve `text`; `origin` names it in source locations.

    `read` reads included files; without it, includes are errors. `environment` is used for
    substitutions that the text does not define. Raises `ConfigText`, most often `ConfigSyntax`,
    with location, line and caret.
    """
    root = parse_section(SourceText(text, origin), IncludeChain(read))
    return resolve_root(root, {} if environment is None else environment)


def parse_section(source: SourceText, include: IncludeChain) -> ObjectValue:
    """Parse a whole text, without resolving substitutions."""
    if len(source.text) > LARGEST:
        raise source.error(0, f"The text is longer than {LARGEST:,} characters", "Make it shorter.")
    source.check()
    reader = _Reader(source, include)
    reader.gap()
    start = reader.at
    opening = source.text[start : start + 1]
    if opening == "[":
        raise source.error(start, "A list where keys are expected", "Write key = value.")
    root = ObjectValue(source.location(start))
    if opening == "{":
        reader.at += 1
    reader.fields(root, start if opening == "{" else None)
    reader.gap()
    if reader.at < len(source.text):
        raise source.error(reader.at, "Text after the closing }", "Remove it, or the } before it.")
    return root


def parse_value(source: SourceText) -> Expression | None:
    """Parse a text that is a single value; None if it is not."""
    reader = _Reader(source, IncludeChain(None))
    try:
        source.check()
        reader.gap()
        value = reader.value()
    except ConfigText:
        return None
    reader.gap()
    return value if reader.at == len(source.text) else None


def parse_path(source: SourceText) -> tuple[PathOfKeys, int]:
    """Parse the path of keys at the beginning of a text; return it and its end."""
    source.check()
    cursor = Cursor(source)
    return cursor.keys("a key"), cursor.at


class _Reader(Cursor):
    """Parses one text from beginning to end."""

    def __init__(self, source: SourceText, include: IncludeChain) -> None:
        super().__init__(source)
        self.include = include
        self.depth = include.depth
        self.path: PathOfKeys | None = include.prefix
        """The path of the object being parsed; None in a list, whose elements have no path."""

        self.lookups = 0

    def deeper(self, at: int, levels: int = 1) -> None:
        """Count levels of nesting, and raise if there are too many."""
        self.depth += levels
        if self.depth > DEPTH:
            raise self.source.error(
                at,
                f"Objects and lists are nested more than {DEPTH} levels deep",
                "Reduce the nesting: no setting needs this much.",
            )

    # -- objects --------------------------------------------------------------------------

    def fields(self, section: ObjectValue, opened: int | None) -> None:
        """Parse fields into `section`, up to its closing brace or the end of the text."""
        text = self.text
        while True:
            self.gap()
            if self.ended(opened, "}", "object"):
                return
            if text[self.at] == ",":
                raise self.source.error(self.at, "No value before the comma", "Remove the comma.")
            self.field(section)
            newline = self.gap()
            following = text[self.at : self.at + 1]
            if following == ",":
                self.at += 1
            elif not newline and following not in ("", "}"):
                raise self.unexpected("The value is followed by", "a comma or a new line")

    def ended(self, opened: int | None, closing: str, what: str) -> bool:
        """Whether the object or list ends here; skip its closing bracket."""
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
            raise self.source.error(self.at, f"Unmatched {closing}", "Remove it.")
        self.at += 1
        return True

    def field(self, section: ObjectValue) -> None:
        """Parse `key = value`, `key { … }`, `key += value` or an include."""
        start = self.at
        word = WORD.match(self.text, start)
        if word is not None and word[0] == "include":
            self.at = word.end()
            self.include_file(section, start)
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
            one = ListValue([value], value.location, self.lookups == before)
            self.lookups += 1
            section.append(path, one, self.source, begin)
        else:
            section.put(path, value)

    def separator(self, end: int) -> str:
        """Return what separates key and value; a brace is part of the value."""
        following = self.text[self.at : self.at + 2]
        if following == "+=":
            return following
        if following[:1] in ("=", ":", "{") and following:
            return following[0]
        if following == "":
            raise self.source.error(end, "The key has no value", "Write key = value.")
        if "\n" in self.text[end : self.at]:
            raise self.source.error(end, "The key has no value", "Write key = value on one line.")
        raise self.unexpected("The key is followed by", "=")

    def include_file(self, section: ObjectValue, start: int) -> None:
        """Parse what follows `include`, and add the fields of that file."""
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
        if self.text.startswith(_OTHER_INCLUDES, self.at):
            raise source.error(self.at, "Only files can be included", 'Write include "name.conf".')
        if not self.text.startswith('"', self.at):
            raise source.error(
                self.at,
                "include must be followed by a file name in double quotes",
                'Write include "name.conf". For a key of that name, write "include" = ….',
            )
        named = self.at
        name, self.at = source.string(self.at)
        for _ in range(opened):
            self.gap()
            if not self.text.startswith(")", self.at):
                raise self.unexpected("The file name is followed by", ")")
            self.at += 1
        if self.path is None:
            raise source.error(
                start, "A file cannot be included in a list", "Include it before the list."
            )
        found = open_include(
            self.include, source, named, name, required=required, at=self.path, depth=self.depth
        )
        if found is not None:
            inner, context = found
            section.merge(parse_section(inner, context))
            self.lookups += 1

    # -- values ---------------------------------------------------------------------------

    def value(self) -> Expression:
        """Parse a value: all parts that are side by side in the line."""
        start = self.at
        parts: list[Expression | Blank] = []
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
        return self.concatenated(parts, start)

    def concatenated(self, parts: list[Expression | Blank], start: int) -> Expression:
        """Return several parts as one value: a text, or a concatenation to be resolved later."""
        location = self.source.location(start)
        kinds = {type(part) for part in parts}
        if kinds <= {ScalarValue, Blank}:
            text = "".join(part.text for part in parts if isinstance(part, ScalarValue | Blank))
            return ScalarValue(text, text, location)
        if (ScalarValue in kinds) + (ListValue in kinds) + (ObjectValue in kinds) > 1:
            raise self.source.error(
                start,
                "Values of different kinds side by side",
                "Join text with text, lists with lists, objects with objects; or put a comma or"
                " a new line between them.",
            )
        self.lookups += 1
        return Concatenation(parts, location, self.source, start)

    def part(self) -> Expression | None:
        """Parse one part of a value; None if none begins here."""
        text, at = self.text, self.at
        following = text[at : at + 1]
        if following == '"':
            string, self.at = self.source.string(at)
            return ScalarValue(string, string, self.source.location(at))
        if following == "{":
            return self.section(at)
        if following == "[":
            return self.list_value(at)
        if following == "$":
            return self.substitution(at)
        if following and following in "-0123456789" and (number := NUMBER.match(text, at)):
            self.at = number.end()
            if WORD.match(text, self.at) is None:
                return ScalarValue(self.number(number[0], at), number[0], self.source.location(at))
            return ScalarValue(number[0], number[0], self.source.location(at))
        word = WORD.match(text, at)
        if word is None:
            return None
        self.at = word.end()
        written = word[0]
        return ScalarValue(_WORDS.get(written, written), written, self.source.location(at))

    def number(self, text: str, at: int) -> Scalar:
        if len(text) > _DIGITS:
            raise self.source.error(
                at, f"The number has more than {_DIGITS} characters", "Put it in double quotes."
            )
        if text.lstrip("-").isdigit():
            return int(text)
        number = Fraction(text)
        if math.isinf(number):
            raise self.source.error(at, "The number is too large", "Put it in double quotes.")
        return number

    def section(self, at: int) -> ObjectValue:
        depth = self.depth
        self.deeper(at)
        self.at += 1
        section = ObjectValue(self.source.location(at))
        self.fields(section, at)
        self.depth = depth
        return section

    def list_value(self, at: int) -> ListValue:
        outer, depth = self.path, self.depth
        self.deeper(at)
        self.path = None
        self.at += 1
        before = self.lookups
        items: list[Expression] = []
        while True:
            self.gap()
            if self.ended(at, "]", "list"):
                break
            if self.text[self.at] == ",":
                raise self.source.error(self.at, "No value before the comma", "Remove the comma.")
            items.append(self.value())
            newline = self.gap()
            following = self.text[self.at : self.at + 1]
            if following == ",":
                self.at += 1
            elif not newline and following not in ("", "]"):
                raise self.unexpected("The value is followed by", "a comma or a new line")
        self.path, self.depth = outer, depth
        return ListValue(items, self.source.location(at), self.lookups == before)

    def substitution(self, at: int) -> Substitution:
        source = self.source
        if not self.text.startswith("${", at):
            raise source.error(at, "A $ outside of quotes", QUOTE_IT)
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
        return Substitution(path, optional, source.location(at), source, at, self.include.prefix)

    # -- errors ---------------------------------------------------------------------------

    def no_value(self) -> ConfigText:
        following = self.text[self.at : self.at + 1]
        if following in ("", "}", "]", ",") or following in _SEPARATORS:
            return self.source.error(
                self.at, "A value is missing", 'Add it; write an empty text as "".'
            )
        return self.unexpected("There is", "a value")
