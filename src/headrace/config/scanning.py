"""
Text and places in it: what characters mean in HOCON, and errors that point at them.

Offsets become lines and columns only where a value or an error needs them. A line is shown
in an error without what may be a password in it: syntax errors are pasted into chats.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from headrace.config.masking import leads_to_secret
from headrace.config.tree import Place
from headrace.errors import ConfigSyntax, ConfigText

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


class Source:
    """A text and what it is called; `located` is false where lines mean nothing."""

    __slots__ = ("_starts", "located", "origin", "text")

    def __init__(self, text: str, origin: str, *, located: bool = True) -> None:
        self.text = text
        self.origin = origin
        self.located = located
        self._starts: list[int] | None = None

    def place(self, offset: int) -> Place:
        """Return the place of the character at `offset`."""
        if not self.located:
            return Place(self.origin)
        if (starts := self._starts) is None:
            starts = self._starts = [0, *(at.end() for at in re.finditer("\n", self.text))]
        line = bisect_right(starts, offset)
        return Place(self.origin, line, offset - starts[line - 1] + 1)

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


def _string_end(source: Source, at: int) -> int:
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


def excerpt(line: str, place: Place) -> tuple[str, str]:
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
