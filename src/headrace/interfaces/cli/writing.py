"""Writing a configuration for people: lines, comments, and values that read back the same."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS = ("true", "false", "null", "include")
"""What is not a text unless it is quoted."""

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Of a private use area: around a variable's name, where its value would stand."""

_VARIABLE = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_WIDTH = 96


class Substituted(Mapping[str, str]):
    """An environment in which every variable is set, to something that says its name."""

    def __getitem__(self, name: str) -> str:
        return f"{_OPEN}{name}{_CLOSE}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Lines:
    """The lines of a file, one after the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, *lines: str) -> None:
        """Add lines as they are."""
        self._lines += lines

    def blank(self) -> None:
        """Add an empty line, unless one stands there."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def comment(self, text: str, indent: str = "") -> None:
        """Add a comment, over as many lines as it takes."""
        start = f"{indent}# "
        self._lines += textwrap.wrap(
            " ".join(text.split()),
            _WIDTH,
            initial_indent=start,
            subsequent_indent=start,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def text(self) -> str:
        """Return the file."""
        return "\n".join(self._lines).rstrip("\n") + "\n"


def variables_of(text: str) -> list[str]:
    """Return the variables that a text of `Substituted` stands for in part."""
    return _VARIABLE.findall(text)


def without_variables(text: str) -> str:
    """Return what of a text of `Substituted` is written out."""
    return _VARIABLE.sub("", text)


def with_scheme(text: str) -> str:
    """Return an address whose scheme is a variable with one that can be read."""
    return re.sub(f"^{_VARIABLE.pattern}(?=://)", "x", text)


def entry(value: object) -> str:
    """Return a key or a value as it is written; variables as substitutions."""
    if not isinstance(value, str):
        return json.dumps(value)
    if not variables_of(value):
        return _quoted(value)
    # Side by side they are put together again.
    parts = _VARIABLE.split(value)
    return "".join(
        f"${{{part}}}" if number % 2 else json.dumps(part, ensure_ascii=False)
        for number, part in enumerate(parts)
        if part
    )


def list_of(values: Sequence[str]) -> str:
    """Return a list as it is written."""
    return f"[{', '.join(entry(each) for each in values)}]"


def _quoted(text: str) -> str:
    if _BARE.fullmatch(text) and not text.startswith(_WORDS):
        return text
    return json.dumps(text, ensure_ascii=False)
