"""A way through a text: over white space, along a path of keys, to what cannot stand there."""

from __future__ import annotations

from headrace.config.scanning import BLANK, GAP, WORD, Source
from headrace.config.written import PathOfKeys
from headrace.errors import ConfigText

QUOTE_IT = 'Put the value in double quotes: "…".'


class Cursor:
    """A place in a text, which only moves on."""

    def __init__(self, source: Source) -> None:
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
