"""
The text of a configuration: source locations, characters, and the tree of values.

A loaded configuration is a tree of plain values, each with its source location (`Node`). The
parser builds the tree; the check uses the locations to report where a wrong value is.

Offsets become lines and columns only where a value or an error needs them. A line that is shown
in an error has possible passwords masked: syntax errors are pasted into chats.

Before substitutions are resolved, the tree keeps the configuration as it is written. A key may be
set several times. A scalar or a list hides the earlier values, objects merge, and the result of a
substitution is known only at the end. So a field keeps its values as layers, the last on top, and
drops those that are certainly hidden.

A `Cursor` moves through a text: over white space, along a path of keys, up to an unexpected
character.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from headrace.config.secrets import concerns_secret
from headrace.errors import ConfigSyntax, ConfigText

# --- the tree of values after resolution ----------------------------------------------------------

Scalar: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where a value was written: in a file, an environment variable, or an option."""

    origin: str
    """A file as it was named, `environment variable X`, or `--set`; empty for a default."""

    line: int = 0
    """From 1; 0 if the origin has no lines."""

    column: int = 0

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}:{self.column}" if self.line else self.origin


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its location: a scalar, a list of nodes, or an object of nodes by key."""

    value: Scalar | list[Node] | dict[str, Node]
    location: SourceLocation

    def plain(self) -> Scalar | list[object] | dict[str, object]:
        """Return the value without locations, as JSON has it."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


# --- characters and their locations ---------------------------------------------------------------

BLANKS = " \t\x0b\x0c\r\x1c-\x1f\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""HOCON's white space without the newline, as a character class; includes the byte order mark."""

_RESERVED = r'$"{}\[\]:=,+#`\^?!@*&\\'

BLANK = re.compile(f"[{BLANKS}]*+")
GAP = re.compile(rf"(?:[{BLANKS}\n]++|(?:\#|//)[^\n]*+)*+")
WORD = re.compile(rf"(?:[^{_RESERVED}/{BLANKS}\n\x00-\x1f]|/(?!/))++")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?+([eE][+-]?[0-9]++)?+")
QUOTED = re.compile(r'"([^"\\\x00-\x1f]*+)"')

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_STRING_END = re.compile(r'(?:[^"\\\x00-\x1f]++|\\.)*+')
_INVALID = re.compile("[\x00\ud800-\udfff]")
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")

_ASSIGNED = re.compile(r'(?<![\w.-])([\w.-]++)"?[ \t]*+(?:\+?=|:)[ \t]*+')
_CONNECTION_KEY = re.compile(r"(?i)(^|[._-])(connection|dsn|ur[il])$")
_NON_BLANK = re.compile(r"\S++")
_KEY_AT_END = re.compile(r'(?<![\w.-])([\w.-]++)"?\s*+(?:\+?=|:)\s*+\Z')
_KEY_WINDOW = 200
_EXCERPT_WIDTH = 96


class SourceText:
    """A text and its origin; `located` is false if the origin has no lines."""

    __slots__ = ("_starts", "located", "origin", "text")

    def __init__(self, text: str, origin: str, *, located: bool = True) -> None:
        self.text = text
        self.origin = origin
        self.located = located
        self._starts: list[int] | None = None

    def location(self, offset: int) -> SourceLocation:
        """Return the location of the character at `offset`."""
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
        """Return an error with the message `sentence`, located at `offset`."""
        location = self.location(min(offset, len(self.text)))
        raised = kind(f"{location}: {sentence}", remedy=remedy, place=str(location))
        if self.located:
            start = self.text.rfind("\n", 0, offset) + 1
            end = self.text.find("\n", offset)
            line = self.text[start : len(self.text) if end < 0 else end]
            before = _KEY_AT_END.search(self.text, max(0, start - _KEY_WINDOW), start)
            if before is not None and _may_hold_secret(before[1]):
                line = _stars(line)
            raised.excerpt = excerpt(line, location)
        return raised

    def check(self) -> None:
        """Raise if the text contains a NUL or half of a surrogate pair."""
        if found := _INVALID.search(self.text):
            if found[0] == "\0":
                raise self.error(
                    found.start(),
                    "Unexpected NUL byte",
                    "Save the file as UTF-8 text. It may be UTF-16, or a binary file.",
                )
            raise self.error(found.start(), "Unpaired surrogate", "Save the file as UTF-8 text.")

    def string(self, at: int) -> tuple[str, int]:
        """Return the value of the quoted string that begins at `at`, and its end."""
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
                    "Unknown escape sequence",
                    r"Use \" \\ \/ \b \f \n \r \t or \u and four hexadecimal digits; write a"
                    r' backslash as \\, or the string in """three quotes""".',
                )
            pieces += (inner[at:next_at], _unescape(escape))
            at = escape.end()
        value = _SURROGATES.sub(_join_surrogates, "".join((*pieces, inner[at:])))
        if not is_text(value):
            raise self.error(
                start - 1,
                "The string has an escape for a NUL or for an unpaired surrogate",
                "Write the character itself.",
            )
        return value


def is_text(text: str) -> bool:
    """Whether the text has no NUL and no surrogates, which stand for bytes that are not UTF-8."""
    return _INVALID.search(text) is None


def _string_end(source: SourceText, at: int) -> int:
    end = _match_end(source.text, at + 1)
    found = source.text[end : end + 1]
    if found == '"':
        return end
    if found in ("", "\n", "\\"):
        raise source.error(
            at, "The string is not closed", 'Close it with " in its line, or write """ around it.'
        )
    raise source.error(
        end,
        "Control character in a string",
        r'Write it as an escape (a tab is \t), or write """ around the string.',
    )


def _match_end(text: str, at: int) -> int:
    found = _STRING_END.match(text, at)
    assert found is not None, "the pattern also matches nothing"
    return found.end()


def _unescape(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _ESCAPES[escape[2]]


def _join_surrogates(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")


def excerpt(line: str, location: SourceLocation) -> tuple[str, str]:
    """Return `line` as an editor shows it, and a line with a caret under the column."""
    column = location.column - 1
    shown = "".join(each if each.isprintable() else " " for each in _mask_line(line))
    first = max(0, column - _EXCERPT_WIDTH * 2 // 3)
    if first:
        shown = "…" + shown[first + 1 :]
    if len(shown) > _EXCERPT_WIDTH:
        shown = shown[: _EXCERPT_WIDTH - 1] + "…"
    number = str(location.line)
    margin = " " * len(number)
    return f"  {number} | {shown.rstrip()}", f"  {margin} | {' ' * (column - first)}^"


def _mask_line(line: str) -> str:
    """Return the line at the same length, with stars for possible secrets."""
    for found in _ASSIGNED.finditer(line):
        if _may_hold_secret(found[1]):
            line = line[: found.end()] + _stars(line[found.end() :])
            break
    return _NON_BLANK.sub(_mask_address, line)


def _may_hold_secret(key: str) -> bool:
    # Also keys for references: the password itself may have been written there by mistake.
    return concerns_secret(key) or _CONNECTION_KEY.search(key) is not None


def _mask_address(run: re.Match[str]) -> str:
    """Return it with stars for user and password: from :// to the last @."""
    scheme, separator, rest = run[0].partition("://")
    userinfo, at, address = rest.rpartition("@")
    return f"{scheme}{separator}{_stars(userinfo)}{at}{address}"


def _stars(text: str) -> str:
    return re.sub(r"\S", "*", text)


# --- the tree of values before resolution ---------------------------------------------------------

PathOfKeys: TypeAlias = tuple[str, ...]


class Fraction(float):
    """A number with a fraction or an exponent; its text is kept as it was written: 1.10."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Fraction:
        """Parse a JSON number."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)


@dataclass(frozen=True, slots=True)
class ScalarValue:
    """A scalar, and its text as it was written, which a concatenation uses."""

    value: Scalar
    text: str
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class Blank:
    """White space between the parts of a concatenation: kept in text, not between objects."""

    text: str


@dataclass(frozen=True, slots=True)
class PriorValue:
    """The value a key had before this one: `a += 1` is the prior value, then `[1]`."""

    location: SourceLocation


@dataclass(frozen=True, slots=True)
class Substitution:
    """`${path}` or `${?path}`."""

    path: PathOfKeys
    optional: bool
    location: SourceLocation
    source: SourceText
    offset: int
    prefix: PathOfKeys = ()
    """The keys under which its file was included: the path is looked up there first."""


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list; `settled` if it contains no substitution."""

    items: list[Expression]
    location: SourceLocation
    settled: bool


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Values written side by side, some of which have to be looked up or merged."""

    parts: list[Expression | Blank]
    location: SourceLocation
    source: SourceText
    offset: int


class ObjectValue:
    """An object: fields by key, in the order they first appeared."""

    __slots__ = ("fields", "location")

    def __init__(self, location: SourceLocation) -> None:
        self.location = location
        self.fields: dict[str, Field] = {}

    def put(self, path: Sequence[str], value: Expression) -> None:
        """Set the value at a path; create an object for each key before the last."""
        section = self
        for key in path[:-1]:
            section = section._field(key).section(value.location)
        section._field(path[-1]).add(value)

    def append(self, path: Sequence[str], one: ListValue, source: SourceText, offset: int) -> None:
        """Apply `path += value`; `one` is a list that holds the value."""
        section = self
        for key in path[:-1]:
            section = section._field(key).section(one.location)
        section._field(path[-1]).append(one, source, offset)

    def merge(self, later: ObjectValue) -> None:
        """Add the fields of `later`, which must not be used again."""
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
    """The values of one key as layers, the last on top, and the state of its resolution."""

    __slots__ = ("busy", "count", "head", "layers", "level", "priors", "resolving", "result")

    def __init__(self, layers: list[Layer] | None = None, count: int = -1) -> None:
        self.layers: list[Layer] = [] if layers is None else layers
        self.count = count
        """How many of the layers apply; all of them if negative."""
        self.busy = -1
        self.level = -1
        self.resolving = False
        self.head: object = None
        self.result: object = None
        self.priors: dict[int, Field] | None = None

    def add(self, value: Layer) -> None:
        """Add a value as the top layer."""
        if isinstance(value, ObjectValue) and self.layers:
            top = self.layers[-1]
            if isinstance(top, ObjectValue):
                top.merge(value)
                return
        if isinstance(value, ScalarValue) or (isinstance(value, ListValue) and value.settled):
            self.layers = [value]
        else:
            self.layers.append(value)

    def section(self, location: SourceLocation) -> ObjectValue:
        """Return the object in the top layer; add a new one if the top is something else."""
        top = self.layers[-1] if self.layers else None
        if not isinstance(top, ObjectValue):
            top = ObjectValue(location)
            self.layers.append(top)
        return top

    def append(self, one: ListValue, source: SourceText, offset: int) -> None:
        """Append `one` to the list in the top layer, or to what that layer resolves to."""
        top = self.layers[-1] if self.layers else None
        # With a layer for each +=, resolving many of them would recurse through all layers.
        if one.settled and isinstance(top, ListValue) and top.settled:
            top.items.extend(one.items)
        elif one.settled and _grows(top):
            top.parts.append(one)
        else:
            self.layers.append(
                Concatenation([PriorValue(one.location), one], one.location, source, offset)
            )

    def prior(self, index: int) -> Field:
        """Return the field without the layers from `index` on."""
        if self.priors is None:
            self.priors = {}
        found = self.priors.get(index)
        if found is None:
            found = self.priors[index] = Field(self.layers, index)
            found.priors = self.priors
        return found


Expression: TypeAlias = (
    ScalarValue | ListValue | ObjectValue | Substitution | Concatenation | PriorValue
)
Layer: TypeAlias = Expression | Field


def _grows(top: Layer | None) -> TypeGuard[Concatenation]:
    """Whether the layer was made by `+=`, so that another value can be added to it."""
    return isinstance(top, Concatenation) and isinstance(top.parts[0], PriorValue)


# --- moving through a text ------------------------------------------------------------------------

QUOTE_IT = 'Put the value in double quotes: "…".'


class Cursor:
    """An offset in a text, which only moves forward."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.text = source.text
        self.at = 0

    def gap(self) -> bool:
        """Skip white space, newlines and comments; return whether there was a newline."""
        start = self.at
        found = GAP.match(self.text, start)
        assert found is not None, "the pattern also matches nothing"
        self.at = found.end()
        return self.text.find("\n", start, self.at) >= 0

    def blank(self) -> str:
        """Skip white space within the line, and return it."""
        found = BLANK.match(self.text, self.at)
        assert found is not None, "the pattern also matches nothing"
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
                value, after = source.string(self.at)
                key += (blank, value)
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
        name = "".join(pieces)
        if not name and not quoted:
            raise self.source.error(
                start, "A key is missing before or after a dot", 'Add it; write an empty key as "".'
            )
        return name

    def unexpected(self, sentence: str, wanted: str, nothing: str = "The text ends") -> ConfigText:
        """Return the error for the next character, which is not allowed here."""
        following = self.text[self.at : self.at + 1]
        if following in ("", "\n"):
            where = "The line ends" if following and nothing == "The text ends" else nothing
            return self.source.error(
                self.at, f"{where} where {wanted} is expected", f"Add {wanted}."
            )
        shown = following if following.isprintable() else f"U+{ord(following):04X}"
        remedy = f"Write {wanted} here; text with special characters goes in double quotes."
        if self.text.startswith("://", self.at):
            remedy = f"A URL has special characters. {QUOTE_IT}"
        return self.source.error(self.at, f"{sentence} {shown} where {wanted} is expected", remedy)
