"""The base of every error, its code in texts, and the tree of all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

_CODE = re.compile(r"\[headrace:([a-z_.]+)\]")


class HeadraceError(Exception):
    """
    Base of every error raised on purpose.

    Takes one positional argument, so that it also pickles: an exception is rebuilt
    by calling its class with `args`, and then given back its attributes.
    """

    code: ClassVar[str] = "internal"
    """Stable identity for clients, logs and docs; never reused for another meaning."""

    exit_code: int = 1
    """What a command that ends with this error returns to the shell."""

    remedy: str = "Please report this, with the log in the data directory."
    """What an operator can do about it, as a sentence."""

    def __init__(self, message: str, *, remedy: str | None = None, **facts: object) -> None:
        super().__init__(message)
        # Names, counts and positions. Never row values: this text reaches Spark's logs.
        self.facts = facts
        if remedy is not None:
            self.remedy = remedy

    @property
    def message(self) -> str:
        """The sentence alone, without code and facts."""
        return str(self.args[0])

    def __str__(self) -> str:
        facts = "".join(f", {name}={value}" for name, value in self.facts.items())
        return f"[headrace:{self.code}] {self.message}{facts}"


def code_in(text: str) -> str | None:
    """Return the code of the first of our errors in `text`: in a traceback, the root cause."""
    match = _CODE.search(text)
    return match[1] if match else None


def all_errors() -> Iterator[type[HeadraceError]]:
    """Yield every class of the tree: the docs, the exit codes and a test are made from it."""
    waiting = [HeadraceError]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(found.__subclasses__())
