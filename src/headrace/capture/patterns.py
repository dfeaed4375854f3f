"""
Names of tables that are not written out: `public.*`, and without some, `!public.audit_*`.

An entry with `*` (any letters) or `?` (one letter) stands for every table that it matches,
today's and those to come. One that begins with `!` takes names away again, wherever in the
list it stands. Both speak of a schema and a table; without a schema, `public` is meant. As
in SQL, letters are lower case except within quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PART = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


def is_pattern(entry: str) -> bool:
    """Whether an entry stands for other names than its own."""
    return entry.startswith("!") or "*" in entry or "?" in entry


def place_of(name: str) -> tuple[str, str]:
    """Return the schema and the table that a name or a pattern speaks of."""
    parts = [
        (quoted.replace('""', '"') if quoted else plain.lower())
        for quoted, plain in _PART.findall(name)
    ]
    # A name that is none is for its source to refuse.
    return ("public", parts[-1] if parts else name) if len(parts) < 2 else (parts[-2], parts[-1])


def matches(name: str, pattern: str) -> bool:
    """Whether `pattern`, without a `!`, stands for the table called `name`."""
    return all(
        _expression(wanted).fullmatch(found)
        for wanted, found in zip(place_of(pattern), place_of(name), strict=True)
    )


def chosen(names: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a pattern stands for and no `!` takes away, in their order."""
    wanted = [each for each in patterns if not each.startswith("!")]
    unwanted = [each[1:] for each in patterns if each.startswith("!")]
    return tuple(
        name
        for name in dict.fromkeys(names)
        if any(matches(name, each) for each in wanted)
        and not any(matches(name, each) for each in unwanted)
    )


def _expression(wanted: str) -> re.Pattern[str]:
    signs = {"*": ".*", "?": "."}
    return re.compile("".join(signs.get(letter) or re.escape(letter) for letter in wanted), re.S)
