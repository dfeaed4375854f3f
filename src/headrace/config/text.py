"""
The text of a configuration: places in it, what its characters mean, and what it says.

A configuration that was read is a tree of plain values, each with the place it came from
(`Node`): the reader makes it, and a check uses the places to report where a wrong value stands.

Offsets become lines and columns only where a value or an error needs them. A line is shown
in an error without what may be a password in it: syntax errors are pasted into chats.

Before substitutions are looked up, a configuration is kept as it is written. A key may be given
several values, one after the other. A scalar or a list hides what came before it, objects merge,
and what a substitution does is known only at the end; so a field keeps its values as layers, the
last on top, and drops those that are hidden for certain.

A `Cursor` goes through a text: over white space, along a path of keys, to what cannot stand
there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from headrace.config.secrets import leads_to_secret
from headrace.errors import ConfigSyntax, ConfigText

# --- a configuration as it was read ---------------------------------------------------------------

Scalar: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where a value was written: in a file, an environment variable, or an option."""

    origin: str
    """A file as it was named, `environment variable X`, or `--set`; empty for a default."""

    line: int = 0
    """From 1; 0 where lines mean nothing."""

    column: int = 0

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}:{self.column}" if self.line else self.origin


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place: a scalar, a list of nodes, or an object of nodes by key."""

    value: Scalar | list[Node] | dict[str, Node]
    place: SourceLocation

    def plain(self) -> Scalar | list[object] | dict[str, object]:
        """Return it without places, as JSON has it."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


# --- characters and their places ------------------------------------------------------------------

BLANKS = " \t\x0b\x0c\r\x1c-\x1f\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""White space but the newline, as a class of a pattern: what HOCON says, byte order mark too."""

_RESERVED = r'$"{}\[\]:=,+#`\^?!@*&\\'

BLANK = re.compile(f"[{BLANKS}]*+")
GAP = re.compile(rf"(?:[{BLANKS}\n]++|(?:\#|//)[^\n]*+)*+")
WORD = re.compile(rf"(?:[^{_RESERVED}/{BLANKS}\n\x00-\x1f]|/(?!/))++")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?+([eE][+-]?[0-9]++)?+")
QUOTED = re.compile(r'"([^"\\\x00-\x1f]*+)"')

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_STRING_END = re.compile(r'(?:[^"\\\x00-\x1f]++|\\.)*+')
_BROKEN = re.compile("[\x00\ud800-\udfff]")
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")

_ASSIGNED = re.compile(r'(?<![\w.-])([\w.-]++)"?[ \t]*+(?:\+?=|:)[ \t]*+')
_LEADS_IN = re.compile(r"(?i)(^|[._-])(connection|dsn|ur[il])$")
_RUN = re.compile(r"\S++")
_LEADS_ON = re.compile(r'(?<![\w.-])([\w.-]++)"?\s*+(?:\+?=|:)\s*+\Z')
_BEFORE = 200
_SHOWN = 96


class SourceText:
    """A text and what it is called; `located` is false where lines mean nothing."""

    __slots__ = ("_starts", "located", "origin", "text")

    def __init__(self, text: str, origin: str, *, located: bool = True) -> None:
        self.text = text
        self.origin = origin
        self.located = located
        self._starts: list[int] | None = None

    def place(self, offset: int) -> SourceLocation:
        """Return the place of the character at `offset`."""
        if not self.located:
            return SourceLocation(self.origin)
        if (starts := self._starts) is None:
            starts = self._starts = [0, *(at.end() for at in re.finditer("\n", self.text))]
        line = bisect_right(starts, offset)
        return SourceLocation(self.origin, line, offset - starts[line - 1] + 1)

    def error(
        self,
        offset: int,
        sentence: str,
        remedy: str | None = None,
        kind: type[ConfigText] = ConfigSyntax,
    ) -> ConfigText:
        """Return an error that says `sentence` about the character at `offset`."""
        place = self.place(min(offset, len(self.text)))
        raised = kind(f"{place}: {sentence}", remedy=remedy, place=str(place))
        if self.located:
            start = self.text.rfind("\n", 0, offset) + 1
            end = self.text.find("\n", offset)
            line = self.text[start : len(self.text) if end < 0 else end]
            before = _LEADS_ON.search(self.text, max(0, start - _BEFORE), start)
            if before is not None and _may_hold_secret(before[1]):
                line = _stars(line)
            raised.excerpt = excerpt(line, place)
        return raised

    def check(self) -> None:
        """Raise where a character stands that no text has."""
        if found := _BROKEN.search(self.text):
            if found[0] == "\0":
                raise self.error(
                    found.start(),
                    "There is a NUL byte",
                    "Save the file as UTF-8 text: it is UTF-16, or no text at all.",
                )
            raise self.error(
                found.start(), "There is half of a surrogate pair", "Save it as UTF-8 text."
            )

    def string(self, at: int) -> tuple[str, int]:
        """Return what the quoted string that begins at `at` says, and where it ends."""
        text = self.text
        if text.startswith('"""', at):
            end = text.find('"""', at + 3)
            if end < 0:
                raise self.error(at, "The string is not closed", 'Close it with """.')
            # Quotes before the closing three belong to the string.
            while text.startswith('"', end + 3):
                end += 1
            return text[at + 3 : end], end + 3
        if simple := QUOTED.match(text, at):
            return simple[1], simple.end()
        end = _string_end(self, at)
        inner = text[at + 1 : end]
        return self._unescaped(inner, at + 1), end + 1

    def _unescaped(self, inner: str, start: int) -> str:
        pieces: list[str] = []
        at = 0
        while (next_at := inner.find("\\", at)) >= 0:
            escape = _ESCAPE.match(inner, next_at)
            if escape is None:
                raise self.error(
                    start + next_at,
                    "There is no such escape",
                    r"Use \" \\ \/ \b \f \n \r \t or \u and four hexadecimal digits; write a"
                    r' backslash as \\, or the string in """three quotes""".',
                )
            pieces += (inner[at:next_at], _escaped(escape))
            at = escape.end()
        said = _SURROGATES.sub(_paired, "".join((*pieces, inner[at:])))
        if not is_text(said):
            raise self.error(
                start - 1,
                "The string has an escape for a NUL or for half of a surrogate pair",
                "Write the character itself.",
            )
        return said


def is_text(text: str) -> bool:
    """Whether it has neither NUL nor what stands for bytes that are no UTF-8."""
    return _BROKEN.search(text) is None


def _string_end(source: SourceText, at: int) -> int:
    end = _end_of(source.text, at + 1)
    found = source.text[end : end + 1]
    if found == '"':
        return end
    if found in ("", "\n", "\\"):
        raise source.error(
            at, "The string is not closed", 'Close it with " in its line, or write """ around it.'
        )
    raise source.error(
        end,
        "A control character stands in a string",
        r'Write it as an escape (a tab is \t), or write """ around the string.',
    )


def _end_of(text: str, at: int) -> int:
    found = _STRING_END.match(text, at)
    assert found is not None, "it matches nothing too"
    return found.end()


def _escaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _ESCAPES[escape[2]]


def _paired(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")


def excerpt(line: str, place: SourceLocation) -> tuple[str, str]:
    """Return `line` as people see it in an editor, and a caret under the place's column."""
    column = place.column - 1
    shown = "".join(each if each.isprintable() else " " for each in _masked(line))
    first = max(0, column - _SHOWN * 2 // 3)
    if first:
        shown = "…" + shown[first + 1 :]
    if len(shown) > _SHOWN:
        shown = shown[: _SHOWN - 1] + "…"
    number = str(place.line)
    margin = " " * len(number)
    return f"  {number} | {shown.rstrip()}", f"  {margin} | {' ' * (column - first)}^"


def _masked(line: str) -> str:
    """Return the line as long as it was, with stars for what may be a secret."""
    for found in _ASSIGNED.finditer(line):
        if _may_hold_secret(found[1]):
            line = line[: found.end()] + _stars(line[found.end() :])
            break
    return _RUN.sub(_masked_address, line)


def _may_hold_secret(key: str) -> bool:
    # Also where a reference belongs: who writes the line wrong may have put the password there.
    return leads_to_secret(key) or _LEADS_IN.search(key) is not None


def _masked_address(run: re.Match[str]) -> str:
    """Return it with stars for who asks, with which password: from :// to the last @."""
    scheme, found, rest = run[0].partition("://")
    asks, at, address = rest.rpartition("@")
    return f"{scheme}{found}{_stars(asks)}{at}{address}"


def _stars(text: str) -> str:
    return re.sub(r"\S", "*", text)


# --- a configuration as it is written -------------------------------------------------------------

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
    place: SourceLocation


@dataclass(frozen=True, slots=True)
class Blank:
    """White space between the parts of a concatenation: kept in text, not between objects."""

    text: str


@dataclass(frozen=True, slots=True)
class Below:
    """What a key had before this value: `a += 1` is below, then `[1]`."""

    place: SourceLocation


@dataclass(frozen=True, slots=True)
class Substitution:
    """`${path}` or `${?path}`."""

    path: PathOfKeys
    optional: bool
    place: SourceLocation
    source: SourceText
    offset: int
    prefix: PathOfKeys = ()
    """Where the file that has it was included: its paths are looked up there first."""


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list; `settled` if nothing in it has to be looked up."""

    items: list[Written]
    place: SourceLocation
    settled: bool


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Values written side by side, of which some are to be looked up or merged."""

    parts: list[Written | Blank]
    place: SourceLocation
    source: SourceText
    offset: int


class ObjectValue:
    """An object: fields by key, in the order they first appeared."""

    __slots__ = ("fields", "place")

    def __init__(self, place: SourceLocation) -> None:
        self.place = place
        self.fields: dict[str, Field] = {}

    def put(self, path: Sequence[str], value: Written) -> None:
        """Set the value at a path, with an object for each key before the last."""
        section = self
        for key in path[:-1]:
            section = section._field(key).section(value.place)
        section._field(path[-1]).add(value)

    def append(self, path: Sequence[str], one: ListValue, source: SourceText, offset: int) -> None:
        """Do what `path += value` says; `one` is the list of that value."""
        section = self
        for key in path[:-1]:
            section = section._field(key).section(one.place)
        section._field(path[-1]).append(one, source, offset)

    def merge(self, later: ObjectValue) -> None:
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
        if isinstance(value, ObjectValue) and self.layers:
            top = self.layers[-1]
            if isinstance(top, ObjectValue):
                top.merge(value)
                return
        if isinstance(value, Plain) or (isinstance(value, ListValue) and value.settled):
            self.layers = [value]
        else:
            self.layers.append(value)

    def section(self, place: SourceLocation) -> ObjectValue:
        """Return the object on top; a new one where something else is."""
        top = self.layers[-1] if self.layers else None
        if not isinstance(top, ObjectValue):
            top = ObjectValue(place)
            self.layers.append(top)
        return top

    def append(self, one: ListValue, source: SourceText, offset: int) -> None:
        """Add `one` to the list on top, or to what will be found to be there."""
        top = self.layers[-1] if self.layers else None
        # A layer for each += would be looked up through all others: a long way for many.
        if one.settled and isinstance(top, ListValue) and top.settled:
            top.items.extend(one.items)
        elif one.settled and _grows(top):
            top.parts.append(one)
        else:
            self.layers.append(Concatenation([Below(one.place), one], one.place, source, offset))

    def below(self, index: int) -> Field:
        """Return the field as it was before its layer `index`."""
        if self.belows is None:
            self.belows = {}
        found = self.belows.get(index)
        if found is None:
            found = self.belows[index] = Field(self.layers, index)
            found.belows = self.belows
        return found


Written: TypeAlias = Plain | ListValue | ObjectValue | Substitution | Concatenation | Below
Layer: TypeAlias = Written | Field


def _grows(top: Layer | None) -> TypeGuard[Concatenation]:
    """Whether it is what `+=` made: one more value can then be added to it."""
    return isinstance(top, Concatenation) and isinstance(top.parts[0], Below)


# --- a way through a text -------------------------------------------------------------------------

QUOTE_IT = 'Put the value in double quotes: "…".'


class Cursor:
    """A place in a text, which only moves on."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.text = source.text
        self.at = 0

    def gap(self) -> bool:
        """Go over white space, newlines and comments; return whether a newline was there."""
        start = self.at
        found = GAP.match(self.text, start)
        assert found is not None, "it matches nothing too"
        self.at = found.end()
        return self.text.find("\n", start, self.at) >= 0

    def blank(self) -> str:
        """Go over white space in the line, and return it."""
        found = BLANK.match(self.text, self.at)
        assert found is not None, "it matches nothing too"
        self.at = found.end()
        return found[0]

    def keys(self, what: str) -> PathOfKeys:
        """Read a path: words and strings side by side, with dots between its keys."""
        text, source = self.text, self.source
        start = self.at
        path: list[str] = []
        key: list[str] = []
        quoted = False
        end = start
        while True:
            blank = self.blank() if key or path else ""
            following = text[self.at : self.at + 1]
            if following == '"':
                said, after = source.string(self.at)
                key += (blank, said)
                quoted = True
                self.at = after
            elif (word := WORD.match(text, self.at)) is not None:
                key.append(blank)
                first, *more = word[0].split(".")
                key.append(first)
                for part in more:
                    path.append(self.key(key, quoted, start))
                    key, quoted = [part], False
                self.at = word.end()
            else:
                break
            end = self.at
        if not key and not path:
            raise self.unexpected("There is", what, nothing="The text ends")
        path.append(self.key(key, quoted, start))
        self.at = end
        return tuple(path)

    def key(self, pieces: list[str], quoted: bool, start: int) -> str:
        said = "".join(pieces)
        if not said and not quoted:
            raise self.source.error(
                start, "A dot has no key on one of its sides", 'Write it, or an empty key as "".'
            )
        return said

    def unexpected(self, sentence: str, wanted: str, nothing: str = "The text ends") -> ConfigText:
        """Return the error about the character that is next, which cannot stand here."""
        following = self.text[self.at : self.at + 1]
        if following in ("", "\n"):
            where = "The line ends" if following and nothing == "The text ends" else nothing
            return self.source.error(self.at, f"{where} where {wanted} belongs", f"Add {wanted}.")
        shown = following if following.isprintable() else f"U+{ord(following):04X}"
        remedy = f"Write {wanted} here; text with special characters goes in double quotes."
        if self.text.startswith("://", self.at):
            remedy = f"An address has special characters. {QUOTE_IT}"
        return self.source.error(self.at, f"{sentence} {shown} where {wanted} belongs", remedy)
